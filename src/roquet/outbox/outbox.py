"""Outbox: writing messages into the tables."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol, overload

import orjson
from sqlalchemy import Connection, Engine, MetaData, Table, inspect, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from roquet.client.core.batches import MESSAGE_SIZE_MAX
from roquet.client.core.checks import valid
from roquet.client.core.receipt import SendReceipt
from roquet.errors import ClientError, InvalidMessage, NotStarted
from roquet.message import Message, Property
from roquet.outbox.database import AnyEngine, Awaited, Database, Plain, inside, make, shown_url
from roquet.outbox.tables import BODY_MAX, ID_MAX, KEY_MAX, SLOTS, fill_slots, lane_of, messages_table, now_ms, slots_table
from roquet.wire.ids import UniqueIds
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.names import check_send_topic
from roquet.wire.record import encode_properties

log = logging.getLogger(__name__)

MARK = "roquet_outbox"
"""In a connection's `info`: something was added, so relays of this process look when the connection is given back."""


class Sends(Protocol):
    """What publishes: a Producer, or whatever sends like one."""

    async def send(self, message: Message, *, key: object = None, timeout_ms: int | None = None) -> SendReceipt:
        """See Producer.send."""
        ...


class Stored(NamedTuple):
    """What send_or_store gives for a message that is in the outbox and will be sent later."""

    message_id: str
    """UNIQ_KEY, under which it will be published."""
    error: Exception | None
    """Why it could not be sent at once; None: others of its key wait in the outbox already."""


class Outbox:
    """The tables, and how messages get into them. One object may serve a whole program: it holds no connection and no state."""

    def __init__(
        self,
        metadata: MetaData | None = None,
        *,
        name: str = "roquet_outbox",
        schema: str | None = None,
        message_size_max: int = MESSAGE_SIZE_MAX,
    ) -> None:
        """`metadata`: where its tables are declared, such as `Base.metadata` of your models (default: its own). `name`: of the table; a
        second one, with `_slots` behind it, holds locks. `message_size_max`: bytes of a body at most; as the producer has it."""
        if not 1 <= message_size_max <= BODY_MAX:
            raise ClientError(f"message_size_max={message_size_max}; allowed are 1 to {BODY_MAX}")
        self.metadata = MetaData() if metadata is None else metadata
        self.message_size_max = message_size_max
        self.table: Table = messages_table(self.metadata, name, schema)
        self.slots: Table = slots_table(self.metadata, f"{name}_slots", schema)
        fresh = {"created_ms": now_ms(), "next_try_ms": now_ms(), "sent_ms": 0, "lease_ms": 0, "owner": "", "tries": 0, "error": ""}
        self._insert = self.table.insert().values(fresh)

    # -- tables

    @overload
    def create(self, engine: Engine | Connection) -> None: ...

    @overload
    def create(self, engine: AsyncEngine) -> Coroutine[Any, Any, None]: ...

    def create(self, engine: AnyEngine | Connection) -> Coroutine[Any, Any, None] | None:
        """Make the tables that are not there yet. With an AsyncEngine, await it. In a migration, give it the migration's connection."""
        if isinstance(engine, Connection):
            self._create(engine)
            return None
        return make(engine, self._create)

    def _create(self, connection: Connection) -> None:
        self.metadata.create_all(connection, tables=[self.table, self.slots])
        fill_slots(self.slots, connection)

    def check(self, connection: Connection) -> None:
        """Raises ClientError when the tables are not in this database."""
        there = inspect(connection)
        for table in (self.table, self.slots):
            if not there.has_table(table.name, table.schema):
                where = shown_url(connection.engine.url)
                raise ClientError(f"the table {table.fullname} is not in {where}; make it once: outbox.create(engine)")

    # -- writing

    @overload
    def add(self, where: Plain, message: Message, *, key: str | None = None) -> str: ...

    @overload
    def add(self, where: Awaited, message: Message, *, key: str | None = None) -> Coroutine[Any, Any, str]: ...

    def add(self, where: Plain | Awaited, message: Message, *, key: str | None = None) -> str | Coroutine[Any, Any, str]:
        """Write the message in the transaction of `where`, your Session or Connection. Its id (UNIQ_KEY), which stays the same for every
        attempt to publish it. With an AsyncSession or AsyncConnection, await it.

        Messages with one `key` are published one after another, in the order in which their transactions commit, into one queue. To that
        end a second transaction that adds to the same key waits here until the first has ended: call it last, shortly before the commit.
        Without a key nothing waits, and the order is not promised.

        Raises InvalidMessage for what no broker would take, so that it fails here and not later.
        """
        values = self._values(message, key)
        return inside(where, self.table, lambda connection: self._add(connection, values))

    def _values(self, message: Message, key: str | None) -> dict[str, Any]:
        check(message, self.message_size_max)
        if key is not None and (not isinstance(key, str) or not 0 < len(key) <= KEY_MAX or not key.isprintable()):
            raise InvalidMessage(f"key={key!r:.80}; expected is a text of 1 to {KEY_MAX} characters, as in key='order-17', or None")
        properties = dict(message.properties)
        message_id = properties.pop(Property.UNIQUE_KEY, "") or new_message_id()
        if len(message_id) > ID_MAX or not message_id.isalnum():
            raise InvalidMessage(f"the message's own id (UNIQ_KEY) is {message_id!r:.80}; allowed are {ID_MAX} letters and digits")
        given: dict[str, Any] = {"topic": message.topic, "body": message.body, "flag": message.flag}
        given["properties"] = orjson.dumps(properties).decode()
        given |= {"message_id": message_id, "order_key": key, "lane": None if key is None else lane_of(key)}
        return given

    def _add(self, connection: Connection, values: dict[str, Any]) -> str:
        if values["lane"] is not None:
            self._lock(connection, values["lane"])
        connection.execute(self._insert, values)
        connection.info[MARK] = True
        message_id: str = values["message_id"]
        return message_id

    def _lock(self, connection: Connection, lane: int) -> None:
        """Until the transaction ends nobody else adds to this lane: ids of a lane rise in the order of commits."""
        if connection.dialect.name == "sqlite":
            return  # one transaction writes at a time
        slot = self.slots.c.slot
        if connection.scalar(select(slot).where(slot == lane % SLOTS).with_for_update()) is None:
            raise ClientError(
                f"the table {self.slots.fullname} is empty, so keys cannot be kept in order; fill it once: outbox.create(engine)"
            )

    # -- send, and store what cannot be sent

    async def send_or_store(
        self, producer: Sends, engine: AnyEngine, message: Message, *, key: str | None = None, timeout_ms: int | None = None
    ) -> SendReceipt | Stored:
        """Send at once; when that fails, write the message into the outbox, in a transaction of its own, and let a relay send it later.

        A message whose key has others waiting in the outbox is stored behind them. One whose send timed out may be stored by its broker
        too: it is published again with the same id. Raises InvalidMessage for what no broker would take, and the send's own error when
        the database fails as well.
        """
        database = Database(engine)
        values = self._values(message, key)
        if key is not None and await self._waiting(database, values["lane"]):
            return await self._store(database, values, None)
        try:
            return await producer.send(with_id(message, values["message_id"]), key=key, timeout_ms=timeout_ms)
        except (NotStarted, InvalidMessage):
            raise
        except ClientError as error:
            return await self._store(database, values, error)

    async def _waiting(self, database: Database, lane: int) -> bool:
        try:
            return await database.run(self._has_waiting, lane)
        except (SQLAlchemyError, OSError) as error:  # asyncpg: a connection that is refused
            log.warning("! outbox: nobody knows whether messages of this key wait, since the database failed: %s", first_line(error))
            return False

    def _has_waiting(self, connection: Connection, lane: int) -> bool:
        waiting = select(self.table.c.id).where(self.table.c.sent_ms == 0, self.table.c.lane == lane).limit(1)
        return connection.scalar(waiting) is not None

    async def _store(self, database: Database, values: dict[str, Any], error: Exception | None) -> Stored:
        try:
            await database.run(self._add, values)
        except (SQLAlchemyError, OSError) as failure:
            if error is None:
                raise
            error.add_note(f"nor could the message be stored in the outbox: {first_line(failure)}")
            raise error from failure
        if error is not None:
            log.warning("! outbox: message %s to %s is stored and sent later: %s", values["message_id"], values["topic"], error)
        return Stored(values["message_id"], error)


def with_id(message: Message, message_id: str) -> Message:
    return Message(message.topic, message.body, properties={**message.properties, Property.UNIQUE_KEY: message_id}, flag=message.flag)


def check(message: Message, size_max: int) -> None:
    """What a producer would refuse is refused before it is written: it could never be sent."""
    if not isinstance(message, Message):
        raise InvalidMessage(f'{message!r:.80} is a {type(message).__name__}; expected is a Message: Message("topic", b"hello")')
    valid(check_send_topic, message.topic)
    if not isinstance(message.body, bytes) or not 0 < len(message.body) <= size_max:
        found = f"{len(message.body)} bytes" if isinstance(message.body, bytes) else f"a {type(message.body).__name__}"
        raise InvalidMessage(f"the body of a message to {message.topic!r} is {found}; allowed are 1 to {size_max} bytes")
    if not -0x80000000 <= message.flag <= 0x7FFFFFFF:
        raise InvalidMessage(f"flag {message.flag} does not fit 32 bits; use a property instead")
    size = len(encode_properties(message.properties).encode()) + ID_MAX + len(Property.UNIQUE_KEY) + 2
    if size > PROPERTIES_MAX:
        raise InvalidMessage(f"properties of {size} bytes, limit is {PROPERTIES_MAX}; move the large ones into the body")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _Ids:
    """Of this process, in the form of every producer: tools read the time out of it. Some address of the loopback network stands for the
    host, so that two machines never make the same id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._ids = UniqueIds(b"\x7f" + secrets.token_bytes(3), self._pid, secrets.randbits(32))

    def next(self) -> str:
        with self._lock:
            if self._pid != os.getpid():  # a fork
                self._renew()
            return self._ids.next(time.time_ns() // 1_000_000)


_ids = _Ids()
new_message_id = _ids.next


def _after_fork() -> None:
    """Its lock may have been held."""
    _ids._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
