"""The table of marks, and the statements on it. All of them take a plain Connection: an async one lends its own (run_sync)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    MetaData,
    String,
    Table,
    Update,
    bindparam,
    delete,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from roquet.idempotence.keys import shown
from roquet.idempotence.store import DONE, MINE, Claim, LeaseLost, Mark, Standing, State

RUNNING, FINISHED, FAILED = "running", "done", "failed"
KEY_MAX = 255
FORGET_MAX = 1_000
"""So many old marks are deleted at a time."""
DEADLOCK_CODES = frozenset({"40001", "40P01", 1020, 1205, 1213})
"""PostgreSQL's and MariaDB's words for: try this transaction once more. 1020: another one changed the row since this one looked."""


def marks_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """For people to look at; only `digest` and `token` are compared. Times are milliseconds since 1970."""
    return Table(
        name,
        metadata,
        Column("digest", String(32), primary_key=True),
        Column("consumer_group", String(KEY_MAX), nullable=False),
        Column("message_key", String(KEY_MAX), nullable=False),
        Column("state", String(8), nullable=False),
        Column("token", String(32), nullable=False),
        Column("lease_until_ms", BigInteger, nullable=False),
        Column("changed_ms", BigInteger, nullable=False),
        Index(f"{name}_changed", "changed_ms"),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


class SqlMarks:
    """The statements. Each method is one transaction, or a part of the handler's. What every message needs is built once."""

    def __init__(self, table: Table, keep_ms: int, now_ms: Callable[[], int]) -> None:
        self.table = table
        self.keep_ms = keep_ms
        self.now_ms = now_ms
        columns = table.c
        asked = select(columns.digest, columns.state, columns.token, columns.lease_until_ms)
        self._look = asked.where(columns.digest.in_(bindparam("digests", expanding=True)))
        self._add_all = insert(table)
        ours = update(table).where(
            columns.digest == bindparam("of_digest"), columns.token == bindparam("of_token"), columns.state == RUNNING
        )
        self._hold = ours.values(lease_until_ms=bindparam("until_ms"))
        self._settle = ours.values(state=bindparam("to_state"), changed_ms=bindparam("now_ms"))

    def create(self, connection: Connection) -> None:
        """Several programs may do it at the same time: one that is refused looks whether another one did it."""
        try:
            with connection.begin():
                self.table.create(connection, checkfirst=True)
        except DBAPIError:
            if not self.is_there(connection):
                raise

    def is_there(self, connection: Connection) -> bool:
        """Whether the database has the table."""
        with connection.begin():
            return inspect(connection).has_table(self.table.name, schema=self.table.schema)

    # -- claiming

    def claim(self, connection: Connection, claim: Claim) -> list[Standing]:
        """Raises IntegrityError when somebody else claimed one of them meanwhile: then ask once more."""
        rows = {row.digest: row for row in connection.execute(self._look, {"digests": [mark.digest for mark in claim.marks]})}
        now_ms = self.now_ms()
        fresh = [mark for mark in claim.marks if mark.digest not in rows]
        free = {row.digest: row for row in rows.values() if row.state == FAILED or (row.state == RUNNING and row.lease_until_ms <= now_ms)}
        if fresh:
            self._add(connection, claim, fresh, now_ms)
        taken = self._take_over(connection, claim, free, now_ms) if free else set()

        def standing(mark: Mark) -> Standing:
            row = rows.get(mark.digest)
            if row is None or mark.digest in taken:
                return MINE
            return DONE if row.state == FINISHED else Standing(State.RUNNING, max(0, row.lease_until_ms - now_ms))

        return [standing(mark) for mark in claim.marks]

    def _add(self, connection: Connection, claim: Claim, fresh: Sequence[Mark], now_ms: int) -> None:
        same = {"state": RUNNING, "token": claim.token, "lease_until_ms": now_ms + claim.lease_ms, "changed_ms": now_ms}
        # In one order everywhere, so that two lists with the same marks do not wait for each other.
        rows = [
            {"digest": mark.digest, "consumer_group": shown(mark.group, KEY_MAX), "message_key": shown(mark.key, KEY_MAX), **same}
            for mark in sorted(fresh)
        ]
        connection.execute(self._add_all, rows)

    def _take_over(self, connection: Connection, claim: Claim, free: dict[str, Any], now_ms: int) -> set[str]:
        """Those that failed, or whose lease is over. A row that is locked belongs to a handler that still runs: it is passed by."""
        table, taken = self.table, set()
        values = {"state": RUNNING, "token": claim.token, "lease_until_ms": now_ms + claim.lease_ms, "changed_ms": now_ms}
        for digest, row in sorted(free.items()):
            is_same = (table.c.digest == digest, table.c.token == row.token, table.c.state == row.state)
            is_free = connection.execute(select(table.c.digest).where(*is_same).with_for_update(skip_locked=True)).first()
            if is_free and connection.execute(update(table).where(*is_same).values(values)).rowcount == 1:
                taken.add(digest)
        return taken

    # -- around the handler

    def hold(self, connection: Connection, claim: Claim) -> None:
        """The first statement of the handler's transaction: locks the rows until its end (in SQLite: the database), with a new lease."""
        if self._each(connection, self._hold, claim, claim.marks, until_ms=self.now_ms() + claim.lease_ms) != len(claim.marks):
            raise LeaseLost("somebody else has the message now: its lease was over before its handler began")

    def finish(self, connection: Connection, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None:
        """The last ones of it."""
        count = self._each(connection, self._settle, claim, done, to_state=FINISHED, now_ms=self.now_ms())
        count += self._each(connection, self._settle, claim, failed, to_state=FAILED, now_ms=self.now_ms())
        if count != len(done) + len(failed):
            raise LeaseLost(f"marks in {self.table.name} are not as they were claimed: somebody changed or deleted them meanwhile")

    def fail(self, connection: Connection, claim: Claim) -> None:
        """After the handler's transaction was rolled back."""
        self._each(connection, self._settle, claim, claim.marks, to_state=FAILED, now_ms=self.now_ms())

    def _each(self, connection: Connection, statement: Update, claim: Claim, marks: Sequence[Mark], **values: Any) -> int:
        """How many were still ours. One by one: for a list MariaDB may read, and so lock, the rows of others, too."""
        rows = ({"of_digest": mark.digest, "of_token": claim.token, **values} for mark in sorted(marks))
        return sum(connection.execute(statement, row).rowcount for row in rows)

    # -- what is old

    def forget(self, connection: Connection) -> int:
        """Delete marks that are older than they are kept, a portion of them; how many."""
        table, oldest_ms = self.table, self.now_ms() - self.keep_ms
        old = select(table.c.digest).where(table.c.changed_ms < oldest_ms).order_by(table.c.changed_ms).limit(FORGET_MAX)
        digests = connection.execute(old.with_for_update(skip_locked=True)).scalars().all()
        if not digests:
            return 0
        return connection.execute(delete(table).where(table.c.digest.in_(digests), table.c.changed_ms < oldest_ms)).rowcount


def is_race(error: DBAPIError) -> bool:
    """Somebody else was quicker: in a new transaction the statement sees what that one did."""
    if isinstance(error, IntegrityError):
        return True
    code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or next(iter(getattr(error.orig, "args", ())), None)
    return code in DEADLOCK_CODES


def is_locked(error: DBAPIError) -> bool:
    """SQLite has one writer, and another one did not end within the time that this connection waits."""
    return "database is locked" in str(error.orig)
