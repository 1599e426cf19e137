"""The SQL stores: what a handler gets, what it may do with it, and the table."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import QueuePool

from roquet import ClientError
from roquet.idempotence import AsyncSqlStore, Once, SqlStore, StoreFailed, current_session
from roquet.message import ReceivedMessage
from tests.idempotence.shops import PATIENCE_S, SQL_KINDS, Gate, Shop, message

plain_kinds = pytest.mark.parametrize("shop", ["sqlite", "postgresql", "mariadb"], indirect=True)
sqlite = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)


class Base(DeclarativeBase):
    pass


class Paid(Base):
    __tablename__ = "paid"
    order: Mapped[str] = mapped_column("order_id", primary_key=True)


def sessions(shop: Shop) -> sessionmaker[Session]:
    Base.metadata.create_all(shop.plain)
    return sessionmaker(shop.plain)


def paid(shop: Shop) -> list[str]:
    with Session(shop.plain) as session:
        return sorted(session.scalars(select(Paid.order)))


# -- sessions


@sqlite
def test_with_a_sessionmaker_a_handler_gets_a_session_and_may_commit_in_it_without_ending_the_transaction(shop: Shop) -> None:
    store = SqlStore(sessions(shop), name=shop.marks)

    @Once(store, group="g")
    def handle(one: ReceivedMessage, session: Session) -> None:
        session.add(Paid(order="a"))
        session.commit()
        with session.begin():
            session.add(Paid(order="b"))
        session.add(Paid(order="c"))
        if one.keys == ["fails"]:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        handle(message("fails"))
    assert paid(shop) == [], "what it committed is rolled back with the rest"
    handle(message("works"))
    assert paid(shop) == ["a", "b", "c"]
    assert shop.states() == ["done", "failed"]


@sqlite
@pytest.mark.parametrize("with_session", [True, False])
def test_a_handler_that_rolled_back_and_returned_is_not_done(shop: Shop, with_session: bool) -> None:
    store = SqlStore(sessions(shop) if with_session else shop.plain, name=shop.marks)

    @Once(store, group="g")
    def handle(one: ReceivedMessage, session: Any) -> None:
        session.execute(insert(Paid).values(order_id="a"))
        session.rollback()

    Base.metadata.create_all(shop.plain)
    with pytest.raises(StoreFailed, match="the handler rolled its transaction back and returned"):
        handle(message())
    assert shop.states() == ["failed"]
    assert paid(shop) == []


@plain_kinds
@pytest.mark.parametrize("goes_on", ["add", "execute", "begin"])
def test_what_a_handler_writes_after_it_rolled_back_is_never_committed_without_its_mark(shop: Shop, goes_on: str) -> None:
    """Its session would begin a transaction of its own on the connection, and the guard would commit that one."""
    table = shop.effects_table
    factory = sessionmaker(shop.plain)
    store = SqlStore(factory, name=shop.marks)

    class Effect(DeclarativeBase):
        pass

    class What(Effect):
        __tablename__ = table.name
        what: Mapped[str] = mapped_column(primary_key=True)

    @Once(store, group="g")
    def handle(one: ReceivedMessage, session: Session) -> None:
        session.execute(insert(table).values(what="before"))
        session.rollback()
        if goes_on == "add":
            session.add(What(what="after"))  # flushed by the guard
        elif goes_on == "execute":
            session.execute(insert(table).values(what="after"))
        else:
            with session.begin():
                session.execute(insert(table).values(what="after"))

    for _ in range(2):
        with pytest.raises(ClientError, match=r"rollback|rolled its transaction back"):
            handle(message())
        assert shop.effects() == []
        assert shop.states() == ["failed"]


@plain_kinds
def test_what_a_handler_writes_to_its_connection_after_it_rolled_back_is_refused(shop: Shop) -> None:
    @Once(shop.store, group="g")
    def handle(one: ReceivedMessage, connection: Any) -> None:
        connection.rollback()
        with connection.begin_nested() if one.keys == ["nested"] else nullcontext():
            connection.execute(insert(shop.effects_table).values(what="after"))

    for key in ("plain", "nested"):
        with pytest.raises(ClientError, match="nor does it go on after a rollback"):
            handle(message(key))
    assert shop.effects() == []


@pytest.mark.parametrize("shop", ["sqlite-async", "postgresql-async", "mariadb-async"], indirect=True)
def test_what_an_async_handler_writes_after_it_rolled_back_is_never_committed_without_its_mark(shop: Shop) -> None:
    @Once(shop.store, group="g")
    async def handle(one: ReceivedMessage, session: AsyncSession) -> None:
        await session.execute(insert(shop.effects_table).values(what="before"))
        await session.rollback()
        await session.execute(insert(shop.effects_table).values(what="after"))

    for _ in range(2):
        with pytest.raises(ClientError, match="nor does it go on after a rollback"):
            shop.wait(handle(message()))
        assert shop.effects() == []
        assert shop.states() == ["failed"]


@plain_kinds
def test_a_handler_that_commits_its_connection_is_refused_and_nothing_is_committed(shop: Shop) -> None:
    @Once(shop.store, group="g")
    def handle(one: ReceivedMessage, connection: Any) -> None:
        connection.execute(insert(shop.effects_table).values(what="a"))
        connection.commit()

    with pytest.raises(ClientError, match="a handler with a guard does not commit"):
        handle(message())
    assert shop.effects() == []
    assert shop.states() == ["failed"]


@pytest.mark.parametrize("shop", ["sqlite-async", "postgresql-async"], indirect=True)
def test_with_an_async_engine_a_handler_gets_a_connection_and_does_not_commit_it(shop: Shop) -> None:
    engine = create_async_engine(shop.url)
    store = AsyncSqlStore(engine, name=shop.marks)
    kinds: list[type] = []

    @Once(store, group="g")
    async def handle(one: ReceivedMessage, connection: AsyncConnection) -> None:
        kinds.append(type(connection))
        await connection.execute(insert(shop.effects_table).values(what=one.keys[0]))
        if one.keys == ["commits"]:
            await connection.commit()

    shop.wait(handle(message("a")))
    with pytest.raises(ClientError, match="a handler with a guard does not commit"):
        shop.wait(handle(message("commits")))
    shop.wait(engine.dispose())
    assert shop.effects() == ["a"]
    assert kinds == [AsyncConnection] * 2


def test_with_an_async_sessionmaker_a_handler_gets_an_async_session(tmp_path: Path) -> None:
    async def work() -> list[Any]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/base")
        store = AsyncSqlStore(async_sessionmaker(engine))
        await store.create()
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

        @Once(store, group="g")
        async def handle(many: list[ReceivedMessage], session: AsyncSession) -> None:
            session.add_all(Paid(order=one.keys[0]) for one in many)

        await handle([message("a"), message("b")])
        await handle([message("b"), message("c")])
        async with engine.connect() as connection:
            found = (await connection.execute(select(Paid.order))).scalars().all()
        await engine.dispose()
        return sorted(found)

    assert asyncio.run(work()) == ["a", "b", "c"]


@pytest.mark.parametrize("shop", ["postgresql-async", "mariadb-async"], indirect=True)
def test_a_call_that_is_cancelled_before_its_commit_leaves_no_open_transaction(shop: Shop) -> None:
    store = shop.open()
    reached: list[int] = []

    async def stands(*_: Any) -> None:
        reached.append(1)
        await asyncio.Event().wait()

    store.finish = stands

    async def cancel() -> None:
        task = asyncio.ensure_future(shop.guard(store=store)(message()))
        while not reached:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    shop.wait(cancel())
    assert shop.states() == ["failed"]
    assert shop.call(shop.guard(), message()) is None
    assert shop.effects() == ["order-17"]


@sqlite
def test_a_handler_of_one_parameter_finds_its_session_and_loses_it_afterwards(shop: Shop) -> None:
    @Once(shop.store, group="g")
    def handle(one: ReceivedMessage) -> None:
        current_session().execute(insert(shop.effects_table).values(what="a"))

    handle(message())
    handle(message())
    assert shop.effects() == ["a"]
    with pytest.raises(ClientError, match="no handler with a session runs here"):
        current_session()


@sqlite
def test_of_a_list_what_a_savepoint_took_back_is_gone_and_the_rest_is_committed(shop: Shop) -> None:
    from roquet import RetryLater

    @Once(shop.store, group="g")
    def handle(many: list[ReceivedMessage], connection: Any) -> RetryLater:
        failed = []
        for one in many:
            with connection.begin_nested() as savepoint:
                connection.execute(insert(shop.effects_table).values(what=one.keys[0]))
                if one.keys == ["b"]:
                    failed.append(one)
                    savepoint.rollback()
        return RetryLater(messages=failed)

    handle([message("a"), message("b"), message("c")])
    assert shop.effects() == ["a", "c"]
    assert shop.states() == ["done", "done", "failed"]


@sqlite
def test_work_that_the_database_refuses_at_the_end_is_a_failure(shop: Shop) -> None:
    @Once(SqlStore(sessions(shop), name=shop.marks), group="g")
    def handle(one: ReceivedMessage, session: Session) -> None:
        session.add(Paid(order="a"))  # flushed by the guard

    handle(message("first"))
    with pytest.raises(StoreFailed, match=r"UNIQUE constraint failed.*what the handler did was rolled back"):
        handle(message("second"))
    assert paid(shop) == ["a"]
    assert shop.states() == ["done", "failed"]


@sqlite
def test_a_plain_store_ends_an_async_handler_although_claims_that_wait_for_it_have_all_threads(shop: Shop) -> None:
    """In SQLite a handler's transaction has the only lock there is."""
    store = shop.open(timeout_s=PATIENCE_S)
    claims: list[Any] = []
    claim = store.claim
    began, may_end = asyncio.Event(), asyncio.Event()

    def told(one: Any) -> Any:
        claims.append(one)
        return claim(one)

    store.claim = told

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))

        @Once(store, group="g")
        async def handle(one: ReceivedMessage, connection: Any) -> None:
            connection.execute(insert(shop.effects_table).values(what=one.keys[0]))
            began.set()
            await may_end.wait()

        first = asyncio.ensure_future(handle(message("first")))
        await began.wait()
        others = [asyncio.ensure_future(handle(message(f"{number}"))) for number in range(2)]
        while len(claims) < 3:
            await asyncio.sleep(0.001)
        may_end.set()
        async with asyncio.timeout(PATIENCE_S / 4):
            await asyncio.gather(first, *others)

    asyncio.run(work())
    assert shop.effects() == ["0", "1", "first"]


# -- the databases


@plain_kinds
def test_keys_that_a_database_would_take_for_one_are_two(shop: Shop) -> None:
    """MariaDB compares texts without case and without spaces at the end."""
    keys = ["a", "A", "a ", "á", "ä", "😀", "\0", "x" * 40_000, "x" * 40_001]
    handled: list[str] = []

    def handle(one: ReceivedMessage) -> None:
        handled.append("")

    for _ in range(2):
        for key in keys:
            Once(shop.store, group="g", key=lambda _, key=key: key)(handle)(message())  # type: ignore[misc]
    assert len(handled) == len(keys)


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_a_database_in_an_old_character_set_keeps_marks_of_every_key(shop: Shop) -> None:
    with shop.plain.begin() as connection:
        connection.execute(text("CREATE DATABASE IF NOT EXISTS old CHARACTER SET latin1"))
    engine = create_engine(shop.url.replace("/test", "/old"))
    store = SqlStore(engine, name=shop.marks)
    store.create()
    Once(store, group="g", key=lambda _: "訂單 😀")(lambda one: None)(message())
    with engine.connect() as connection:
        assert connection.execute(select(store.table.c.message_key)).scalar_one() == "\\u8a02\\u55ae \\U0001f600"
    engine.dispose()


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("shop", ["postgresql", "mariadb"], indirect=True)
def test_in_every_isolation_of_two_deliveries_one_takes_effect(shop: Shop, level: str) -> None:
    engine = create_engine(shop.url, isolation_level=level)
    stores = [SqlStore(engine, name=shop.marks, clock=shop.clock) for _ in range(2)]
    start = threading.Barrier(2)

    def consume(store: SqlStore) -> None:
        for number in range(8):
            start.wait(60)
            while True:
                try:
                    if shop.call(shop.guard(store=store), message(f"m{number}")) is None:
                        break
                except StoreFailed:
                    pass  # a database may refuse to serialise: it comes again

    threads = [threading.Thread(target=consume, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    engine.dispose()
    assert shop.effects() == sorted(f"m{number}" for number in range(8))


@pytest.mark.parametrize("shop", ["mariadb", "mariadb-async", "postgresql"], indirect=True)
def test_a_handler_that_runs_locks_no_other_message(shop: Shop) -> None:
    """A table of few rows is one that a database may rather read as a whole, and lock what it reads."""
    gate = Gate()
    shop.call(shop.guard(), [message(f"old-{number}") for number in range(3)])
    first = shop.start(shop.guard(gate=gate), [message("a"), message("b")])
    assert gate.reached.wait(60)
    assert shop.call(shop.guard(), [message("c"), message("d")]) is None
    assert shop.call(shop.guard(answer=False), [message("e"), message("f")]) is False
    assert shop.call(shop.guard(), [message("e"), message("f")]) is None
    assert not first.done()
    gate.opened.set()
    assert first.result(60) is None


# -- the table


@pytest.mark.parametrize("shop", SQL_KINDS, indirect=True)
def test_marks_that_are_too_old_are_deleted_while_the_store_is_used(shop: Shop) -> None:
    store = shop.open(keep_s=100)
    guard = shop.guard(store=store)
    shop.call(guard, [message(f"old-{number}") for number in range(5)])
    shop.clock.now += 60
    shop.call(guard, message("young"))
    shop.clock.now += 41
    store._tidy_at = 0.0
    shop.call(guard, message("new"))
    with shop.plain.connect() as connection:
        keys = connection.execute(select(store.table.c.message_key)).scalars()
        assert sorted(keys) == ['keys ["orders", "", "new"]', 'keys ["orders", "", "young"]']


@sqlite
def test_many_old_marks_are_deleted_in_portions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.idempotence.sql_marks.FORGET_MAX", 3)
    monkeypatch.setattr("roquet.idempotence.sql.FORGET_MAX", 3)
    monkeypatch.setattr("roquet.idempotence.sql.TIDY_SOON_S", 0.0)
    store = shop.open(keep_s=100)
    guard = shop.guard(store=store)
    shop.call(guard, [message(f"old-{number}") for number in range(8)])
    shop.clock.now += 101
    store._tidy_at = 0.0
    left = []
    for number in range(4):
        shop.call(guard, message(f"new-{number}"))
        with shop.plain.connect() as connection:
            old = store.table.c.message_key.contains("old")
            left.append(connection.execute(select(func.count()).select_from(store.table).where(old)).scalar_one())
    assert left == [5, 2, 0, 0]


@plain_kinds
def test_programs_that_start_together_make_one_table(shop: Shop) -> None:
    for number in range(3):
        stores = [SqlStore(shop.plain, name=f"{shop.marks}_{number}") for _ in range(4)]
        start = threading.Barrier(len(stores))
        failures: list[BaseException] = []

        def create(store: SqlStore, start: threading.Barrier = start, failures: list[BaseException] = failures) -> None:
            start.wait(60)
            try:
                store.create()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=create, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []


def test_migrations_see_the_table_in_the_metadata_that_was_given() -> None:
    metadata = MetaData()
    SqlStore(create_engine("sqlite://"), metadata=metadata, name="once")
    assert list(metadata.tables) == ["once"]


@sqlite
def test_a_claim_succeeds_when_old_marks_cannot_be_deleted_for_want_of_a_connection(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(shop.url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    store: Any = SqlStore(engine, name=shop.marks)
    kept: list[Any] = []
    claim = store._claim

    def claim_and_keep(one: Any) -> Any:
        standings = claim(one)
        kept.append(engine.connect())  # somebody else's
        return standings

    store._claim = claim_and_keep
    begin = store.begin

    def begin_later(one: Any) -> Any:
        kept.pop().close()
        return begin(one)

    store.begin = begin_later
    assert shop.call(shop.guard(store=store), message()) is None
    assert "could not be deleted; it is tried again" in caplog.text
    engine.dispose()


# -- wrong use


def test_an_engine_that_was_made_in_autocommit_is_refused() -> None:
    with pytest.raises(ClientError, match="this engine is in AUTOCOMMIT"):
        SqlStore(create_engine("sqlite://", isolation_level="AUTOCOMMIT"))
    with pytest.raises(ClientError, match="this engine is in AUTOCOMMIT"):
        AsyncSqlStore(create_async_engine("sqlite+aiosqlite://", isolation_level="AUTOCOMMIT"))
    SqlStore(create_engine("sqlite://", isolation_level="AUTOCOMMIT").execution_options(isolation_level="SERIALIZABLE"))


def test_a_sessionmaker_that_sends_tables_to_engines_of_its_own_is_refused() -> None:
    engine, other = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(ClientError, match="the sessionmaker has binds"):
        SqlStore(sessionmaker(engine, binds={Base: engine}))
    with pytest.raises(ClientError, match="the sessionmaker has binds"):
        AsyncSqlStore(async_sessionmaker(other, binds={Base: other}))


@sqlite
def test_a_session_that_chooses_another_engine_is_refused_before_it_writes(shop: Shop) -> None:
    engine = shop.plain

    class Routed(Session):
        def get_bind(self, mapper: Any = None, **given: Any) -> Any:
            return engine if mapper is not None else super().get_bind(mapper, **given)

    Base.metadata.create_all(engine)
    store = SqlStore(sessionmaker(engine, class_=Routed), name=shop.marks)

    @Once(store, group="g")
    def handle(one: ReceivedMessage, session: Session) -> None:
        session.add(Paid(order="a"))  # flushed by the guard

    @Once(store, group="g")
    def handle_plainly(one: ReceivedMessage, session: Session) -> None:
        session.execute(insert(shop.effects_table).values(what="b"))

    with pytest.raises(StoreFailed, match="Routed chose another engine"):
        handle(message("one"))
    assert paid(shop) == []
    handle_plainly(message("two"))
    assert shop.effects() == ["b"], "what stays on its connection works"
    assert shop.states() == ["done", "failed"]


@pytest.mark.parametrize("shop", ["sqlite-async"], indirect=True)
def test_an_async_session_that_chooses_another_engine_is_refused_before_it_writes(shop: Shop) -> None:
    engine = create_async_engine(shop.url)

    class Routed(Session):
        def get_bind(self, mapper: Any = None, **given: Any) -> Any:
            return engine.sync_engine

    store = AsyncSqlStore(async_sessionmaker(engine, sync_session_class=Routed), name=shop.marks)

    @Once(store, group="g")
    async def handle(one: ReceivedMessage, session: AsyncSession) -> None:
        await session.execute(insert(shop.effects_table).values(what="a"))

    with pytest.raises(ClientError, match="Routed chose another engine"):
        shop.wait(handle(message()))
    shop.wait(engine.dispose())
    assert shop.effects() == []


def test_a_source_of_the_other_kind_is_told() -> None:
    plain, other = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
    for kind, wrong in ((SqlStore, other), (SqlStore, sessionmaker()), (SqlStore, "sqlite://"), (AsyncSqlStore, plain)):
        with pytest.raises(ClientError, match="expected is an"):
            kind(wrong)  # type: ignore[arg-type]


@sqlite
def test_options_and_handlers_that_do_not_fit_a_database_are_told(shop: Shop) -> None:
    with pytest.raises(ClientError, match=r'store_away="run" has no meaning with SqlStore'):
        Once(shop.store, group="g", store_away="run")
    with pytest.raises(ClientError, match="keep_s=0"):
        SqlStore(shop.plain, keep_s=0)

    def handle(message: ReceivedMessage) -> None: ...

    store = AsyncSqlStore(create_async_engine("sqlite+aiosqlite://"))
    with pytest.raises(ClientError, match=r"handler handle\(\) is plain, and AsyncSqlStore is async; expected is `async def handle`"):
        Once(store, group="g")(handle)
