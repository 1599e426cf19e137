"""One way into a database, whether the caller has SQLAlchemy's plain faces or its asyncio ones: SQL is written once, for a Connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from random import random
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from roquet.errors import ClientError

P = ParamSpec("P")
T = TypeVar("T")

Plain = Session | scoped_session[Session] | Connection
"""Of a program without asyncio."""
Awaited = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection
AnyEngine = Engine | AsyncEngine


def inside(where: Plain | Awaited, table: Table, work: Callable[[Connection], T]) -> T | Coroutine[Any, Any, T]:
    """Do it in the caller's transaction: at once, or, for the asyncio faces, when what this returns is awaited."""
    if isinstance(where, AsyncSession | async_scoped_session | AsyncConnection):
        return _inside(where, table, work)
    return work(_in_transaction(_connection(where, table)))


async def _inside(where: Awaited, table: Table, work: Callable[[Connection], T]) -> T:
    if isinstance(where, AsyncConnection):
        connection = where
    else:
        connection = await where.connection(bind_arguments={"clause": table})
    return await connection.run_sync(lambda plain: work(_in_transaction(plain)))


def _connection(where: Plain, table: Table) -> Connection:
    if isinstance(where, Connection):
        return where
    if isinstance(where, Session | scoped_session):
        return where.connection(bind_arguments={"clause": table})
    raise ClientError(f"{where!r} is no place to write to; expected is the Session or the Connection of your own transaction")


def _in_transaction(connection: Connection) -> Connection:
    own = getattr(connection.dialect, "_on_connect_isolation_level", None)  # of create_engine()
    if connection.get_execution_options().get("isolation_level", own) == "AUTOCOMMIT":
        raise ClientError("this connection is in AUTOCOMMIT, so it has no transaction to write into; use one without that isolation_level")
    return connection


class Database:
    """Transactions of our own. A plain engine blocks, so it is used in a thread."""

    def __init__(self, engine: AnyEngine) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ClientError(f"{engine!r} is no engine; expected is what create_engine() or create_async_engine() of SQLAlchemy returns")
        self.engine = engine
        self.plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine

    async def run(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a transaction that is committed at the end."""
        if isinstance(self.engine, AsyncEngine):
            async with self.engine.begin() as connection:
                return await connection.run_sync(work, *args, **kwargs)
        return await asyncio.to_thread(lambda: self.run_here(work, *args, **kwargs))

    def run_here(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self.plain.begin() as connection:
            return work(connection, *args, **kwargs)


def shown_url(url: URL) -> str:
    """Without its password, and without what is behind the ?, where there may be another one."""
    return url.set(query={}).render_as_string()


MAKING_TRIES = 5


def make(engine: AnyEngine, work: Callable[[Connection], None]) -> Coroutine[Any, Any, None] | None:
    """Make tables in a transaction of our own: at once, or when it is awaited. Another process may be making the same, and fail us."""
    database = Database(engine)
    if isinstance(engine, AsyncEngine):
        return _make(database, work)
    for left in reversed(range(MAKING_TRIES)):
        try:
            database.run_here(work)
            break
        except DBAPIError:
            if not left:
                raise
            time.sleep(random() / 5)
    return None


async def _make(database: Database, work: Callable[[Connection], None]) -> None:
    for left in reversed(range(MAKING_TRIES)):
        try:
            return await database.run(work)
        except DBAPIError:
            if not left:
                raise
            await asyncio.sleep(random() / 5)
