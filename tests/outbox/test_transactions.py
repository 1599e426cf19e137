"""The seeds' third form: a transaction producer whose check looks into a table."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, select, update
from sqlalchemy.ext.asyncio import create_async_engine

import roquet
from roquet import ClientError, Message, ReceivedMessage, TransactionState
from roquet.message import Property
from roquet.outbox import LocalTransactions, TransactionOver
from roquet.wire.record import Record, encode_properties
from tests.outbox.conftest import numbers
from tests.outbox.fakes import PATIENCE_S, until

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
def transactions(engine: Engine) -> Iterator[LocalTransactions]:
    transactions = LocalTransactions(engine, name=f"transactions_{next(numbers)}", rollback_after_checks=2)
    transactions.create()
    yield transactions
    transactions.metadata.drop_all(engine)


def given(transaction_id: str) -> Message:
    """What execute() gets."""
    return Message("paid", b"x", properties={Property.UNIQUE_KEY: transaction_id})


def half(transaction_id: str, checks: int) -> ReceivedMessage:
    """What check() gets."""
    properties = {Property.UNIQUE_KEY: transaction_id, Property.TRANSACTION_CHECK_TIMES: str(checks)}
    record = Record(topic="paid", queue_id=0, body=b"x", properties=encode_properties(properties).encode())
    return ReceivedMessage(record)


def check(transactions: LocalTransactions, transaction_id: str, checks: int) -> TransactionState:
    return asyncio.run(transactions.check(half(transaction_id, checks)))


def test_the_row_decides(engine: Engine, transactions: LocalTransactions) -> None:
    with engine.begin() as connection:
        transactions.record(connection, given("A1"))
    with engine.connect() as connection:
        transactions.record(connection, given("A2"))
        connection.rollback()
    assert check(transactions, "A1", 1) is COMMIT
    assert check(transactions, "A1", 15) is COMMIT
    assert [check(transactions, "A2", number) for number in (1, 2, 3)] == [UNKNOWN, ROLLBACK, ROLLBACK]


def test_a_transaction_that_is_slower_than_every_check_cannot_commit_after_its_message_was_dropped(
    engine: Engine, transactions: LocalTransactions
) -> None:
    assert check(transactions, "A1", 2) is ROLLBACK
    with pytest.raises(TransactionOver, match="A1 took too long"), engine.begin() as connection:
        transactions.record(connection, given("A1"))
    assert check(transactions, "A1", 3) is ROLLBACK


def test_a_check_waits_for_a_row_that_is_not_committed_yet(engine: Engine, transactions: LocalTransactions) -> None:
    """It sees no row; were it to say ROLLBACK, the message of a transaction that commits the moment after would be lost."""
    answers: list[TransactionState] = []
    writes = threading.Event()

    def begins(_: object, __: object, sql: str, *rest: object) -> None:
        if sql.startswith("INSERT"):
            writes.set()

    def ask() -> None:
        answers.append(check(transactions, "A1", 2))

    with engine.begin() as connection:
        transactions.record(connection, given("A1"))
        event.listen(engine, "before_cursor_execute", begins)
        asking = threading.Thread(target=ask)
        asking.start()
        asyncio.run(until(lambda: writes.is_set() or answers))
        assert answers == []
    asking.join(PATIENCE_S)
    assert answers == [COMMIT]


def test_old_rows_are_deleted(engine: Engine, transactions: LocalTransactions) -> None:
    table = transactions.table
    with engine.begin() as connection:
        transactions.record(connection, given("A1"))
        connection.execute(update(table).values(at_ms=table.c.at_ms - 7 * 86_400_000))
        transactions.record(connection, given("A2"))
    assert asyncio.run(transactions.forget()) == 1
    with engine.begin() as connection:
        assert list(connection.scalars(select(table.c.transaction_id))) == ["A2"]


def test_wrong_use_says_what_is_expected(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'data.db'}")
    with pytest.raises(ClientError, match="takes the message that TransactionProducer gives to execute"):
        LocalTransactions(engine).record(object(), Message("paid", b"x"))  # type: ignore[call-overload]
    with pytest.raises(ClientError, match="rollback_after_checks=16"):
        LocalTransactions(engine, rollback_after_checks=16)
    with pytest.raises(ClientError, match="keep_s=60"):
        LocalTransactions(engine, keep_s=60)


def test_a_real_broker_asks_and_the_table_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'data.db'}")
        transactions = LocalTransactions(engine, rollback_after_checks=2)
        making = transactions.create()
        assert inspect.isawaitable(making)
        await making

        async def pay(message: Message, how: str) -> TransactionState:
            if how != "before the commit":
                async with engine.begin() as connection:
                    await transactions.record(connection, message)
            return COMMIT if how == "well" else UNKNOWN  # as if the process had died here

        seen: list[bytes] = []
        asked: list[TransactionState] = []

        async def was_paid(message: ReceivedMessage) -> TransactionState:
            asked.append(await transactions.check(message))
            return asked[-1]

        settings = {"transactionTimeOut": "10", "transactionCheckInterval": "100"}
        async with roquet.embedded(settings=settings) as mq, asyncio.timeout(PATIENCE_S):
            consumer = mq.consumer("shipping", consume_from="first")
            consumer.subscribe("paid", function=lambda message: seen.append(message.body))
            async with roquet.TransactionProducer("payments", mq.namesrv, execute=pay, check=was_paid) as producer:
                for how in ("well", "after the commit", "before the commit"):
                    await producer.send_in_transaction(Message("paid", how.encode()), how)
                async with consumer:
                    await until(lambda: len(seen) >= 2 and ROLLBACK in asked)
        assert set(asked) == {UNKNOWN, COMMIT, ROLLBACK}  # a busy broker may ask twice before it has heard the answer
        assert asked.index(UNKNOWN) < asked.index(ROLLBACK)
        assert sorted(seen) == [b"after the commit", b"well"]
        await engine.dispose()

    asyncio.run(scenario())
