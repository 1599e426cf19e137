"""The seeds' second form: what cannot be sent now is stored, and sent later."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from roquet import InvalidMessage, Message, NotStarted, Producer, SendFailed, SendReceipt
from roquet.outbox import Outbox, Relay, Stored
from roquet.outbox.database import Database
from tests.outbox.fakes import PATIENCE_S, FakeProducer

AWAY = SendFailed("the broker is away", [])


def test_what_cannot_be_sent_is_stored_and_published_later_with_the_same_id_and_behind_it_the_rest_of_its_key(
    engine: Engine, outbox: Outbox
) -> None:
    producer = FakeProducer()

    async def send(body: str, key: str | None) -> SendReceipt | Stored:
        return await outbox.send_or_store(producer, engine, Message("orders", body.encode()), key=key)

    async def scenario() -> None:
        assert isinstance(await send("first", "a"), SendReceipt)
        producer.fails = lambda message: AWAY
        second = await send("second", "a")
        assert isinstance(second, Stored)
        assert second.error is AWAY
        producer.fails = lambda message: None
        third = await send("third", "a")
        assert isinstance(third, Stored)
        assert third.error is None, "it waits behind the second"
        assert isinstance(await send("other", "b"), SendReceipt)
        assert isinstance(await send("free", None), SendReceipt)
        async with Relay(outbox, engine, producer, poll_ms=10) as relay, asyncio.timeout(PATIENCE_S):
            await relay.drained()
        assert producer.bodies("a") == ["first", "second", "third"]
        assert [message_id for _, _, message_id in producer.sent[-2:]] == [second.message_id, third.message_id]
        assert isinstance(await send("fourth", "a"), SendReceipt)

    asyncio.run(scenario())


def test_what_no_broker_would_take_and_a_producer_that_is_not_started_are_errors_at_once(engine: Engine, outbox: Outbox) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidMessage):
            await outbox.send_or_store(FakeProducer(), engine, Message("orders", b""))
        with pytest.raises(NotStarted):
            await outbox.send_or_store(Producer("orders"), engine, Message("orders", b"x"))
        strict = FakeProducer()
        strict.fails = lambda message: InvalidMessage("this producer takes less")
        with pytest.raises(InvalidMessage, match="takes less"):
            await outbox.send_or_store(strict, engine, Message("orders", b"x"), key="a")

    asyncio.run(scenario())
    with engine.begin() as connection:
        assert not connection.execute(outbox.table.select()).all()


def test_when_the_database_fails_too_the_caller_hears_of_both(engine: Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    producer = FakeProducer()
    outbox.metadata.drop_all(engine)

    async def scenario() -> None:
        receipt = await outbox.send_or_store(producer, engine, Message("orders", b"x"), key="a")
        assert isinstance(receipt, SendReceipt), "the database is not needed as long as brokers are there"
        assert "since the database failed" in caplog.text
        producer.fails = lambda message: AWAY
        with pytest.raises(SendFailed, match="the broker is away") as raised:
            await outbox.send_or_store(producer, engine, Message("orders", b"x"), key="a")
        assert "nor could the message be stored in the outbox" in raised.value.__notes__[0]
        assert isinstance(raised.value.__cause__, SQLAlchemyError)

    asyncio.run(scenario())


def test_a_connection_that_is_refused_as_a_plain_os_error_is_a_failure_of_the_database(
    engine: Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg raises it so."""
    producer = FakeProducer()

    async def refused(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(Database, "run", refused)

    async def scenario() -> None:
        assert isinstance(await outbox.send_or_store(producer, engine, Message("orders", b"x"), key="a"), SendReceipt)
        producer.fails = lambda message: AWAY
        with pytest.raises(SendFailed) as raised:
            await outbox.send_or_store(producer, engine, Message("orders", b"x"), key="a")
        assert "nor could the message be stored in the outbox: nobody listens" in raised.value.__notes__[-1]

    asyncio.run(scenario())
