"""The same outbox under asyncio's faces of SQLAlchemy, under the blocking ones, and without SQLAlchemy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, create_engine, select
from sqlalchemy.dialects import mssql
from sqlalchemy.exc import CompileError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker

import roquet
from roquet import Message
from roquet.client import sync
from roquet.outbox import Outbox, Relay
from roquet.outbox.sync import Relay as BlockingRelay
from roquet.outbox.sync import send_or_store
from roquet.outbox.tables import now_ms
from tests.outbox.conftest import numbers
from tests.outbox.fakes import PATIENCE_S, FakeProducer, until


def test_an_async_engine_promises_the_same(awaited_url: str) -> None:
    async def scenario() -> None:
        engine = create_async_engine(awaited_url)
        outbox, producer = Outbox(name=f"outbox_{next(numbers)}"), FakeProducer()
        sessions = async_sessionmaker(engine)
        try:
            await outbox.create(engine)
            await outbox.create(engine)  # which changes nothing
            async with Relay(outbox, engine, producer, poll_ms=3_600_000) as relay, asyncio.timeout(PATIENCE_S):
                async with sessions() as session:
                    await outbox.add(session, Message("orders", b"rolled back"), key="a")
                    await session.rollback()
                async with sessions.begin() as session:
                    await outbox.add(session, Message("orders", b"first"), key="a")
                    await outbox.add(session, Message("orders", b"second"), key="a")
                await until(lambda: len(producer.sent) == 2, "a commit wakes the relay")
                async with engine.begin() as connection:
                    await outbox.add(connection, Message("orders", b"third"), key="a")
                await relay.drained()
            assert producer.bodies("a") == ["first", "second", "third"]
        finally:
            async with engine.begin() as connection:
                await connection.run_sync(outbox.metadata.drop_all)
            await engine.dispose()

    asyncio.run(scenario())


def test_two_processes_may_make_the_tables_at_once(engine: Engine) -> None:
    one, other = (Outbox(name="made_twice") for _ in range(2))

    async def both() -> None:
        await asyncio.gather(*(asyncio.to_thread(outbox.create, engine) for outbox in (one, other)))

    try:
        asyncio.run(both())
        with engine.begin() as connection:
            one.add(connection, Message("orders", b"x"), key="a")
    finally:
        one.metadata.drop_all(engine)


def test_the_tables_may_be_declared_with_the_users_own(tmp_path: Path) -> None:
    class Base(DeclarativeBase):
        metadata = MetaData()

    class Order(Base):
        __tablename__ = "order"
        id = Column(Integer, primary_key=True)

    outbox = Outbox(Base.metadata)
    engine = create_engine(f"sqlite:///{tmp_path / 'data.db'}")
    Base.metadata.create_all(engine)
    sessions = scoped_session(sessionmaker(engine))
    sessions.add(Order(id=1))
    outbox.add(sessions, Message("orders", b"x"), key="a")
    sessions.commit()
    sessions.remove()
    with Session(engine) as session:
        assert session.query(Order).count() == session.query(outbox.table).count() == 1
    engine.dispose()


def test_a_program_without_asyncio_has_the_same_faces(tmp_path: Path) -> None:
    async def serve() -> None:
        async with roquet.embedded() as mq:
            await asyncio.to_thread(work, mq.namesrv)

    def work(namesrv: str) -> None:
        engine = create_engine(f"sqlite:///{tmp_path / 'data.db'}")
        outbox = Outbox()
        outbox.create(engine)
        with sync.Producer("orders", namesrv) as producer, BlockingRelay(outbox, engine, producer, poll_ms=20) as relay:
            with Session(engine) as session, session.begin():
                message_id = outbox.add(session, Message("orders", b"one"), key="a")
            relay.drained()
            assert producer.view_message(message_id, topic="orders").body == b"one"
            receipt = send_or_store(outbox, producer, engine, Message("orders", b"two"), key="a")
            assert isinstance(receipt, roquet.SendReceipt)
            assert relay.published == 1
        engine.dispose()

    asyncio.run(serve())


def test_nothing_else_of_roquet_loads_sqlalchemy() -> None:
    code = (
        "import sys, roquet, roquet.client.sync, roquet.embed, roquet.cli.main\n"
        "roquet.cli.main.build_parser()\n"
        "for name in roquet.__all__: getattr(roquet, name)\n"
        "assert 'sqlalchemy' not in sys.modules\n"
        "sys.modules['sqlalchemy'] = None\n"
        "import roquet.outbox\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == (
        'ImportError: roquet.outbox needs SQLAlchemy 2, which is not installed: pip install "roquet[sql]"'
    )


def test_a_database_that_the_outbox_does_not_know_is_named() -> None:
    with pytest.raises(CompileError, match=r"roquet.outbox does not know mssql; it knows sqlite, postgresql, mysql, mariadb"):
        select(now_ms()).compile(dialect=mssql.dialect())  # type: ignore[no-untyped-call]
