"""Marks in the database that the handler writes to, in the handler's own transaction.

    claim    a short transaction: the row of the mark is added, or taken over from one that failed or whose lease is over
    begin    the handler's transaction: its first statement locks the row, so that nobody takes it over while the transaction lives
    finish   the row becomes `done`, and the transaction is committed: work and mark together
    fail     the transaction is rolled back; then the row becomes `failed`, in a short one

So the lock of the row is the lease that counts: the database ends it with the connection. The lease in the row only says how soon a message
is tried again whose consumer is gone, and no correctness hangs on the clocks of several machines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, MetaData, Table
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, AsyncTransaction, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from roquet.errors import ClientError
from roquet.idempotence.sql_marks import FORGET_MAX, SqlMarks, is_locked, is_race, marks_table
from roquet.idempotence.store import Claim, LeaseLost, Mark, Standing, State

log = logging.getLogger(__name__)

TABLE = "roquet_once"
KEEP_S = 7 * 86_400
RACES_MAX = 5
TIDY_S, TIDY_SOON_S = 60.0, 1.0

BUSY = Standing(State.RUNNING)

C = TypeVar("C")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Work(Generic[C, S, T]):
    """A handler's transaction."""

    connection: C
    transaction: T
    session: S | None


class _Base:
    blocks = True
    has_session = True

    def __init__(self, metadata: MetaData | None, name: str, schema: str | None, keep_s: float, clock: Callable[[], float]) -> None:
        if keep_s <= 0:
            raise ClientError(f"keep_s={keep_s}; expected are more than 0 seconds")
        self.table: Table = marks_table(MetaData() if metadata is None else metadata, name, schema)
        self._marks = SqlMarks(self.table, round(keep_s * 1000), lambda: round(clock() * 1000))
        self._tidy_at = 0.0

    def _check(self, engine: Engine) -> None:
        if is_autocommit(engine):
            raise ClientError("this engine is in AUTOCOMMIT, so that a handler has no transaction; use one without that isolation_level")

    @property
    def _is_time_to_tidy(self) -> bool:
        now = time.monotonic()
        if now < self._tidy_at:
            return False
        self._tidy_at = now + TIDY_S
        return True

    def _tidied(self, count: int) -> None:
        if count == FORGET_MAX:  # there are more
            self._tidy_at = time.monotonic() + TIDY_SOON_S

    def _missing(self) -> ClientError:
        return ClientError(f"the table {self.table.fullname} is not in the database; make it once: store.create()")


class SqlStore(_Base):
    """Guarantee: what a handler writes through its session and its mark are committed together or not at all, so a message takes effect in
    that database exactly once, however often it is delivered and whatever crashes, as long as its mark is kept.

    `source`: an Engine, and the handler gets a Connection; or a sessionmaker, and it gets a Session. It neither commits nor closes it. What
    a handler of a list wrote for messages that it says have failed is committed with the others: use a savepoint for each.
    """

    def __init__(
        self,
        source: Engine | sessionmaker[Any],
        metadata: MetaData | None = None,
        *,
        name: str = TABLE,
        schema: str | None = None,
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`metadata`: where its table is declared, such as `Base.metadata` of your models (default: its own). `name`: of the table.
        `keep_s`: older marks are deleted while the store is used."""
        super().__init__(metadata, name, schema, keep_s, clock)
        check_binds(source)
        self._factory = source if isinstance(source, sessionmaker) else None
        self._engine = self._factory_engine(source) if isinstance(source, sessionmaker) else source
        if not isinstance(self._engine, Engine):
            raise ClientError(
                f"source={source!r}; expected is an Engine or a sessionmaker that is bound to one; AsyncSqlStore takes async ones"
            )
        self._check(self._engine)

    def _factory_engine(self, factory: sessionmaker[Any]) -> Any:
        with suppress(UnboundExecutionError), factory() as session:
            return session.get_bind(clause=self.table)

    def create(self) -> None:
        """Make its table if it is not there."""
        with self._engine.connect() as connection:
            self._marks.create(connection)

    def claim(self, claim: Claim) -> list[Standing]:
        """Races with others are run again, in a new transaction."""
        standings = self._claim(claim)
        if self._is_time_to_tidy:
            self._tidy()
        return standings

    def _claim(self, claim: Claim) -> list[Standing]:
        for race in range(RACES_MAX):
            try:
                with self._engine.begin() as connection:
                    return self._marks.claim(connection, claim)
            except DBAPIError as error:
                if is_locked(error):
                    return [BUSY] * len(claim.marks)
                if not is_race(error) or race == RACES_MAX - 1:
                    self._explain()
                    raise
        raise AssertionError

    def _explain(self) -> None:
        with suppress(SQLAlchemyError), self._engine.connect() as connection:
            if self._marks.is_there(connection):
                return
            raise self._missing() from None

    def _tidy(self) -> None:
        try:
            with self._engine.begin() as connection:
                self._tidied(self._marks.forget(connection))
        except (SQLAlchemyError, OSError) as error:  # a pool whose connections are all in use, too
            log.warning("! old marks in %s could not be deleted; it is tried again in %d s: %s", self.table.name, TIDY_S, error)

    def begin(self, claim: Claim) -> Session | Connection:
        """The handler's session."""
        connection = self._engine.connect()
        try:
            transaction = connection.begin()
            self._marks.hold(connection, claim)
            session = self._factory(bind=connection, join_transaction_mode="rollback_only") if self._factory else None
            if session is not None:
                keep_to(session, connection)
            claim.work = Work(connection, transaction, session)
            vars(connection).update(commit=refuse_commit, begin=refuse_begin)
        except BaseException as error:
            connection.close()
            raise held_up(error) from None
        return session or connection

    def finish(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None:
        """Commits."""
        work = claim.work
        check_open(work.transaction.is_active)
        if work.session is not None:
            work.session.commit()  # flushes: the transaction is ours
        check_open(work.transaction.is_active)
        self._marks.finish(work.connection, claim, done, failed)
        work.transaction.commit()
        self._close(claim)

    def fail(self, claim: Claim) -> None:
        """Rolls back."""
        self._close(claim)
        with self._engine.begin() as connection:
            self._marks.fail(connection, claim)

    def _close(self, claim: Claim) -> None:
        work, claim.work = claim.work, None
        if work is not None:
            with suppress(SQLAlchemyError):  # a connection that is lost, too, is rolled back
                if work.session is not None:
                    work.session.close()
                work.connection.close()


class AsyncSqlStore(_Base):
    """Guarantee: that of SqlStore.

    `source`: an AsyncEngine, and the handler gets an AsyncConnection; or an async_sessionmaker, and it gets an AsyncSession.
    """

    blocks = False

    def __init__(
        self,
        source: AsyncEngine | async_sessionmaker[Any],
        metadata: MetaData | None = None,
        *,
        name: str = TABLE,
        schema: str | None = None,
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """As SqlStore has them."""
        super().__init__(metadata, name, schema, keep_s, clock)
        check_binds(source)
        self._factory = source if isinstance(source, async_sessionmaker) else None
        self._engine = self._factory_engine(source) if isinstance(source, async_sessionmaker) else source
        if not isinstance(self._engine, AsyncEngine):
            raise ClientError(
                f"source={source!r}; expected is an AsyncEngine or an async_sessionmaker that is bound to one; SqlStore takes plain ones"
            )
        self._check(self._engine.sync_engine)

    def _factory_engine(self, factory: async_sessionmaker[Any]) -> Any:
        with suppress(UnboundExecutionError):
            bind = factory().get_bind(clause=self.table)
            return AsyncEngine(bind) if isinstance(bind, Engine) else bind

    async def create(self) -> None:
        """Make its table if it is not there."""
        async with self._engine.connect() as connection:
            await connection.run_sync(self._marks.create)

    async def claim(self, claim: Claim) -> list[Standing]:
        """Races with others are run again, in a new transaction."""
        standings = await self._claim(claim)
        if self._is_time_to_tidy:
            await self._tidy()
        return standings

    async def _claim(self, claim: Claim) -> list[Standing]:
        for race in range(RACES_MAX):
            try:
                async with self._engine.begin() as connection:
                    return await connection.run_sync(self._marks.claim, claim)
            except DBAPIError as error:
                if is_locked(error):
                    return [BUSY] * len(claim.marks)
                if not is_race(error) or race == RACES_MAX - 1:
                    await self._explain()
                    raise
        raise AssertionError

    async def _explain(self) -> None:
        with suppress(SQLAlchemyError):
            async with self._engine.connect() as connection:
                if await connection.run_sync(self._marks.is_there):
                    return
            raise self._missing() from None

    async def _tidy(self) -> None:
        try:
            async with self._engine.begin() as connection:
                self._tidied(await connection.run_sync(self._marks.forget))
        except (SQLAlchemyError, OSError) as error:  # a pool whose connections are all in use, too
            log.warning("! old marks in %s could not be deleted; it is tried again in %d s: %s", self.table.name, TIDY_S, error)

    async def begin(self, claim: Claim) -> AsyncSession | AsyncConnection:
        """The handler's session."""
        connection = await self._engine.connect()
        try:
            transaction: AsyncTransaction = await connection.begin()
            await connection.run_sync(self._marks.hold, claim)
            session = self._factory(bind=connection, join_transaction_mode="rollback_only") if self._factory else None
            if session is not None:
                keep_to(session.sync_session, connection.sync_connection)
            claim.work = Work(connection, transaction, session)
            vars(connection.sync_connection).update(commit=refuse_commit, begin=refuse_begin)
        except BaseException as error:
            await connection.close()
            raise held_up(error) from None
        return session or connection

    async def finish(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None:
        """Commits."""
        work = claim.work
        check_open(work.transaction.is_active)
        if work.session is not None:
            await work.session.commit()  # flushes: the transaction is ours
        check_open(work.transaction.is_active)
        await work.connection.run_sync(self._marks.finish, claim, done, failed)
        await work.transaction.commit()
        await self._close(claim)

    async def fail(self, claim: Claim) -> None:
        """Rolls back."""
        await self._close(claim)
        async with self._engine.begin() as connection:
            await connection.run_sync(self._marks.fail, claim)

    async def _close(self, claim: Claim) -> None:
        work, claim.work = claim.work, None
        if work is not None:
            with suppress(SQLAlchemyError):  # a connection that is lost, too, is rolled back
                if work.session is not None:
                    await work.session.close()
                await work.connection.close()


def is_autocommit(engine: Engine) -> bool:
    """Its own level counts, or else the one of create_engine()."""
    level = engine.get_execution_options().get("isolation_level", getattr(engine.dialect, "_on_connect_isolation_level", None))
    return bool(level == "AUTOCOMMIT")


def held_up(error: BaseException) -> BaseException:
    """An SQLite database that others write to is no failure: the message comes again."""
    return LeaseLost(f"SQLite: {error.orig}") if isinstance(error, DBAPIError) and is_locked(error) else error


def check_binds(source: Any) -> None:
    """Raises ClientError for a sessionmaker that sends tables to engines of its own."""
    if isinstance(source, sessionmaker | async_sessionmaker) and source.kw.get("binds"):
        raise ClientError(
            "the sessionmaker has binds, so a handler could write outside the transaction of its mark; expected is one with bind alone"
        )


def keep_to(session: Session, connection: Any) -> None:
    """A class of sessions may choose where it writes (get_bind): what is not the handler's transaction is refused."""
    choose = session.get_bind

    def get_bind(*given: Any, **named: Any) -> Any:
        found = choose(*given, **named)
        if found is not connection and named.get("bind") is None:  # else the handler itself says where to
            raise ClientError(
                f"get_bind() of {type(session).__name__} chose another engine, so the handler would write outside the transaction of its"
                " mark; give the store a sessionmaker whose sessions stay on the connection that they are bound to"
            )
        return found

    vars(session)["get_bind"] = get_bind


def refuse_commit() -> None:
    """In place of commit() of a handler's connection: what it commits before the mark could happen twice."""
    raise ClientError("a handler with a guard does not commit: the guard commits its work together with the mark; leave it out")


def refuse_begin() -> None:
    """In place of begin(): after a rollback a session would begin anew, and commit without the mark what follows."""
    raise ClientError(
        "a handler with a guard has one transaction, the guard's, and begins no other, nor does it go on after a rollback; use"
        " begin_nested() for work that may be taken back, and raise or return False when it failed"
    )


def check_open(is_active: bool) -> None:
    """Raises ClientError when the handler ended its transaction."""
    if not is_active:
        raise ClientError(
            "the handler rolled its transaction back and returned; expected of one that failed is that it raises or returns False"
        )
