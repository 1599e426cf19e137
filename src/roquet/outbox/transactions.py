"""LocalTransactions: a TransactionProducer whose check looks into a table.

    transactions = LocalTransactions(engine)
    transactions.create()

    def pay(message: Message, order: Order) -> TransactionState:           # the half message is stored, and hidden
        with Session(engine) as session, session.begin():
            ...
            transactions.record(session, message)                          # committed with your data, or not at all
        return TransactionState.COMMIT

    TransactionProducer("payments", execute=pay, check=transactions.check)

The row of a transaction decides. There is one: it is committed. There is none, and the broker has asked often enough: a row is written that
says "rolled back", and from then on `record` fails for it. So a transaction that is slower than every check cannot commit after its message
was dropped, whatever the clocks say. A row that is written but not committed yet lets the check wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any, overload

from sqlalchemy import Connection, MetaData, Table, delete, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from roquet.client.core.transactions import TransactionState
from roquet.errors import ClientError
from roquet.message import Message, Property, ReceivedMessage
from roquet.outbox.database import AnyEngine, Awaited, Database, Plain, inside, make
from roquet.outbox.rows import PORTION, change
from roquet.outbox.tables import ID_MAX, now_ms, transactions_table

FORGET_EVERY_S = 600.0
WAIT_S = 5
"""How long a check waits for a transaction that is about to commit; then it says UNKNOWN, and the broker asks again."""


class TransactionOver(ClientError):
    """The broker was told that this transaction is rolled back, since it took too long. It must not commit: let this error end it."""


class LocalTransactions:
    """A table of transactions that were committed, for TransactionProducer's check."""

    def __init__(
        self,
        engine: AnyEngine,
        metadata: MetaData | None = None,
        *,
        name: str = "roquet_transactions",
        schema: str | None = None,
        rollback_after_checks: int = 3,
        keep_s: float = 7 * 86_400,
    ) -> None:
        """`rollback_after_checks`: of a transaction without a row, the check that says ROLLBACK; those before say UNKNOWN. Brokers ask once
        a minute by default, 15 times at most. `keep_s`: how long rows stay, which must be longer than brokers ask (three days)."""
        if not 1 <= rollback_after_checks <= 15:
            raise ClientError(f"rollback_after_checks={rollback_after_checks}; allowed are 1 to 15, since brokers ask no more often")
        if not 3 * 86_400 <= keep_s <= 10 * 365 * 86_400:
            raise ClientError(f"keep_s={keep_s}; allowed are {3 * 86_400} (three days, as long as brokers may ask) to ten years")
        self.metadata = MetaData() if metadata is None else metadata
        self.table: Table = transactions_table(self.metadata, name, schema)
        self.rollback_after_checks = rollback_after_checks
        self.keep_s = keep_s
        self._engine = engine
        self._database = Database(engine)
        self._forgot = time.monotonic()

    def create(self) -> Coroutine[Any, Any, None] | None:
        """Make the table if it is not there. With an AsyncEngine, await it."""
        return make(self._engine, lambda connection: self.metadata.create_all(connection, tables=[self.table]))

    @overload
    def record(self, where: Plain, message: Message) -> None: ...

    @overload
    def record(self, where: Awaited, message: Message) -> Coroutine[Any, Any, None]: ...

    def record(self, where: Plain | Awaited, message: Message) -> Coroutine[Any, Any, None] | None:
        """Write the row that says "committed" in the transaction of `where`, your Session or Connection: in execute(), with the message
        that it was given. With an AsyncSession or AsyncConnection, await it.

        Raises TransactionOver when the broker was told meanwhile that this transaction is rolled back.
        """
        transaction_id = message.transaction_id
        if not 0 < len(transaction_id) <= ID_MAX:
            raise ClientError(f"{message!r} has no transaction id; record() takes the message that TransactionProducer gives to execute()")
        return inside(where, self.table, lambda connection: self._record(connection, transaction_id))

    def _record(self, connection: Connection, transaction_id: str) -> None:
        try:
            self._insert(connection, transaction_id, committed=True)
        except IntegrityError as error:
            raise TransactionOver(
                f"transaction {transaction_id} took too long: its broker was told ROLLBACK, so it must not commit; send it anew"
            ) from error

    def _insert(self, connection: Connection, transaction_id: str, *, committed: bool) -> None:
        connection.execute(self.table.insert().values(transaction_id=transaction_id, committed=int(committed), at_ms=now_ms()))

    async def check(self, message: ReceivedMessage) -> TransactionState:
        """How the transaction of this half message ended: what TransactionProducer(check=...) takes."""
        await self._forget()
        transaction_id = message.transaction_id
        if state := await self._database.run(self._look, transaction_id):
            return state
        asked = message.properties.get(Property.TRANSACTION_CHECK_TIMES, "")
        if (int(asked) if asked.isdecimal() else 1) < self.rollback_after_checks:
            return TransactionState.UNKNOWN
        try:
            await self._database.run(self._roll_back, transaction_id)
            return TransactionState.ROLLBACK
        except IntegrityError:  # it was committed, or another check rolled it back
            return await self._database.run(self._look, transaction_id) or TransactionState.UNKNOWN
        except DBAPIError:  # somebody holds the row and has not ended, or the database is away
            return TransactionState.UNKNOWN

    def _look(self, connection: Connection, transaction_id: str) -> TransactionState | None:
        committed = connection.scalar(select(self.table.c.committed).where(self.table.c.transaction_id == transaction_id))
        return None if committed is None else TransactionState.COMMIT if committed else TransactionState.ROLLBACK

    def _roll_back(self, connection: Connection, transaction_id: str) -> None:
        if connection.dialect.name == "postgresql":  # the others do not wait for ever anyway
            connection.execute(text(f"SET LOCAL lock_timeout = '{WAIT_S}s'"))
        self._insert(connection, transaction_id, committed=False)

    async def _forget(self) -> None:
        now = time.monotonic()
        if now >= self._forgot + FORGET_EVERY_S:
            self._forgot = now
            await self.forget()

    async def forget(self) -> int:
        """Delete a portion of the rows that are older than keep_s; check() does it now and then. How many there were."""
        return await self._database.run(self._delete)

    def _delete(self, connection: Connection) -> int:
        old = select(self.table.c.transaction_id).where(self.table.c.at_ms <= now_ms() - int(self.keep_s * 1000)).limit(PORTION)
        ids = list(connection.scalars(old))
        change(connection, delete(self.table), ids)
        return len(ids)
