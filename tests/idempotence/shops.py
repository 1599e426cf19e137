"""Every store behind one face, so that one test holds for all of them. A plain handler runs in threads, an async one on a loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from roquet.idempotence import AsyncRedisStore, AsyncSqlStore, MemoryStore, Once, RedisStore, SqlStore
from roquet.message import ReceivedMessage
from roquet.wire.record import Record, encode_properties

PATIENCE_S = 120.0
SQL_KINDS = ("sqlite", "sqlite-async", "postgresql", "postgresql-async", "mariadb", "mariadb-async")
REDIS_KINDS = ("redis", "redis-async")
KINDS = ("memory", *SQL_KINDS, *REDIS_KINDS)
DRIVERS = {"postgresql": "psycopg", "postgresql-async": "psycopg", "mariadb": "pymysql", "mariadb-async": "aiomysql"}
OWN_CONNECTION = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT connection_id()"}

_numbers = count()


def message(key: str = "order-17", *, topic: str = "orders", times: int = 0, **properties: str) -> ReceivedMessage:
    properties.setdefault("KEYS", key)
    properties = {name: value for name, value in properties.items() if value}
    return ReceivedMessage(Record(topic, 0, b"x", encode_properties(properties).encode(), reconsume_times=times))


def until(condition: Callable[[], Any]) -> Any:
    """What it says as soon as it says something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
    return found


@dataclass
class Clock:
    """Turned by hand; for stores that take a clock."""

    now: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.now


@dataclass
class Gate:
    """A handler stands in it until it is opened."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def stand(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)


class Shop:
    """A store, and handlers whose effect can be counted."""

    def __init__(self, kind: str, url: str, number: int | None = None) -> None:
        """`number`: of a shop in another process, whose tables these are."""
        self.kind = kind
        self.url = url
        self.is_async = kind.endswith("-async")
        self.is_sql = kind in SQL_KINDS
        self.clock = Clock()
        self.began: list[str] = []
        """Keys that a handler was called with."""
        self._effects: list[str] = []
        self._threads = ThreadPoolExecutor(32)
        self._loop = asyncio.new_event_loop()
        self._runs = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runs.start()
        self._close: list[Callable[[], Any]] = []
        self._gates: list[Gate] = []
        self._calls: list[Future[Any]] = []
        self.number = number = next(_numbers) if number is None else number
        self.marks, self.effects_table = f"marks_{number}", Table(f"effects_{number}", MetaData(), Column("what", String(99)))
        if self.is_sql:
            plain = create_engine(url.replace("+aiosqlite", "").replace("aiomysql", "pymysql"))
            self._close.append(plain.dispose)
            self.plain = plain
            self.effects_table.create(plain, checkfirst=True)
        self.connection: Any = None
        """The database's number of the connection that the last handler got."""
        self._own_connection = text(next((asked for name, asked in OWN_CONNECTION.items() if kind.startswith(name)), "SELECT 0"))
        self.store = self.open()

    def open(self, *, timeout_s: float = 60, **options: Any) -> Any:
        """One more store of the same marks, as another process has it. `timeout_s`: how long SQLite waits for another writer."""
        if self.kind == "memory":
            return MemoryStore(**options)
        if self.kind in REDIS_KINDS:
            options = {"prefix": f"{self.marks}:", **options}
            if self.is_async:
                client = redis.asyncio.Redis.from_url(self.url)
                self._close.append(lambda: self.wait(client.aclose()))
                return AsyncRedisStore(client, **options)
            plain = redis.Redis.from_url(self.url)
            self._close.append(plain.close)
            return RedisStore(plain, **options)
        waiting: dict[str, Any] = {"connect_args": {"timeout": timeout_s}} if self.kind.startswith("sqlite") else {}
        options = {"name": self.marks, "clock": self.clock, **options}
        if self.is_async:
            loop_engine = create_async_engine(self.url, **waiting)
            self._close.append(lambda: self.wait(loop_engine.dispose()))
            store = AsyncSqlStore(async_sessionmaker(loop_engine), **options)
            self.wait(store.create())
            return store
        engine = create_engine(self.url, **waiting)
        self._close.append(engine.dispose)
        plain_store = SqlStore(engine, **options)
        plain_store.create()
        return plain_store

    # -- calling

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def start(self, guard: Callable[[Any], Any], given: Any) -> Future[Any]:
        """Call it, as a consumer does."""
        call = asyncio.run_coroutine_threadsafe(guard(given), self._loop) if self.is_async else self._threads.submit(guard, given)
        self._calls.append(call)
        return call

    def call(self, guard: Callable[[Any], Any], given: Any) -> Any:
        """What it answered."""
        return self.start(guard, given).result(PATIENCE_S)

    def guard(self, *, answer: Any = None, gate: Gate | None = None, store: Any = None, **options: Any) -> Callable[[Any], Any]:
        """A handler in its guard: it leaves an effect for each message, stands in the gate, and raises or returns its answer."""
        if gate is not None:
            self._gates.append(gate)
        once = Once(self.store if store is None else store, **{"group": "billing", "lease_s": 60, **options})

        def finish(messages: list[ReceivedMessage]) -> Any:
            said = answer(messages) if callable(answer) else answer
            if isinstance(said, BaseException):
                raise said
            return said

        def handle(given: Any, session: Any = None) -> Any:
            messages = given if isinstance(given, list) else [given]
            for one in messages:
                self.began.append(one.keys[0])
                if self.is_sql:
                    session.execute(insert(self.effects_table).values(what=one.keys[0]))
                    self.connection = session.execute(self._own_connection).scalar()
                else:
                    self._effects.append(one.keys[0])
            if gate is not None:
                gate.stand()
            return finish(messages)

        async def handle_async(given: Any, session: Any = None) -> Any:
            messages = given if isinstance(given, list) else [given]
            for one in messages:
                self.began.append(one.keys[0])
                if self.is_sql:
                    await session.execute(insert(self.effects_table).values(what=one.keys[0]))
                    self.connection = (await session.execute(self._own_connection)).scalar()
                else:
                    self._effects.append(one.keys[0])
            if gate is not None:
                await asyncio.to_thread(gate.stand)
            return finish(messages)

        guarded: Any = once(handle_async) if self.is_async else once(handle)
        guarded.once = once
        return guarded  # type: ignore[no-any-return]

    # -- looking

    def effects(self) -> list[str]:
        """What has happened for good, sorted."""
        if not self.is_sql:
            return sorted(self._effects)
        with self.plain.connect() as connection:
            return sorted(connection.execute(select(self.effects_table.c.what)).scalars())

    def states(self) -> list[str]:
        """Of all marks of an SQL store."""
        table = self.store.table
        with self.plain.connect() as connection:
            return sorted(connection.execute(select(table.c.state)).scalars())

    def left_ms(self, set_to: int | None = None) -> int:
        """What the lease of the only running mark in Redis has left; it may be set."""
        with redis.Redis.from_url(self.url) as client:
            [key] = [key for key in client.keys(f"{self.marks}:*") if client.get(key) not in (b"done", b"failed")]
            if set_to is not None:
                client.pexpire(key, set_to)
            return int(client.pttl(key))

    def end_leases(self) -> None:
        """As if an hour had passed."""
        if self.is_sql:
            self.clock.now += 3_600
        else:
            self.left_ms(set_to=1)

    def close(self) -> None:
        for gate in self._gates:
            gate.opened.set()
        wait(self._calls, PATIENCE_S)
        for close in reversed(self._close):
            close()
        self._threads.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._runs.join()
        self._loop.close()


@contextmanager
def opened(kind: str, url: str, number: int | None = None) -> Iterator[Shop]:
    shop = Shop(kind, url, number)
    try:
        yield shop
    finally:
        shop.close()


def url_of(kind: str, fixture: Callable[[str], Any], directory: Path) -> str:
    """Where its server is; `fixture` gives a pytest fixture by name."""
    name = kind.removesuffix("-async")
    if name == "sqlite":
        return f"sqlite{'+aiosqlite' if kind.endswith('-async') else ''}:///{directory / 'base.sqlite'}"
    return "" if name == "memory" else str(fixture(f"{name}_server").url(DRIVERS.get(kind, "")))
