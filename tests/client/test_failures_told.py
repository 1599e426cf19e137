"""Why a handler failed: in the log, with the message, and for the caller of a transaction. Against a real broker."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import roquet
from roquet import DEAD_LETTER, Message, MessageQueue, ReceivedMessage, RetryLater, TransactionProducer, TransactionState
from roquet.cli.main import main
from roquet.embed import Embedded
from tests.client.programs import PATIENCE_S


def against_a_broker(test: Callable[[Embedded], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded(fast_retries=True) as mq, mq.admin() as admin:
            await admin.create_topic("orders", read_queues=1, write_queues=1)
            await test(mq)

    asyncio.run(scenario())


async def letters(mq: Embedded, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with mq.pull_consumer() as reader:
        while len(found) < count:
            try:
                [queue] = await reader.fetch_queues("%DLQ%g")
                found = (await reader.pull(queue, 0)).messages
            except roquet.NoRoute:
                pass
            await asyncio.sleep(0.01)
    return found


def test_the_exceptions_text_is_with_the_dead_letter(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    async def test(mq: Embedded) -> None:
        consumer = mq.consumer("g", consume_from="first", reconsume_times_max=2)

        @consumer.on("orders")
        async def handle(message: ReceivedMessage) -> RetryLater | None:
            if message.body == b"given up":
                return RetryLater(-1, why="nobody wants it")
            if message.body == b"silent":
                return DEAD_LETTER
            raise ValueError(f"card \x01 refused {message.reconsume_times} " + "x" * 5_000)

        async with mq.producer() as producer, consumer:
            await producer.send(Message("orders", b"fails", keys=["order-17"]))
            [letter] = await letters(mq, 1)
            await producer.send(Message("orders", b"given up"))
            await producer.send(Message("orders", b"silent"))
            _, second, third = await letters(mq, 3)
        why = letter.properties["ROQUET_FAILURE"]
        assert why.startswith("ValueError: card ? refused 2 xxx")
        assert len(why) <= 300
        assert letter.failure == why
        assert (second.failure, third.failure) == ("nobody wants it", "")
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert lines[0].startswith(
            f"! group g: handler handle failed with orders broker-a:0 @0, keys order-17, id {letter.message_id}, attempt 1 of 3;"
            " it comes again after delay level 3 (10 s, unless its broker has other levels): ValueError: card"
        )
        assert "attempt 2 of 3; it comes again after delay level 4 (30 s, unless" in lines[1]
        assert "attempt 3 of 3; it becomes a dead letter now" in lines[2]
        assert await asyncio.to_thread(main, ["dead-letters", "look", "g", "-n", mq.namesrv]) == 0
        assert "failed with ValueError: card ? refused 2 x" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["dead-letters", "look", "g", "--json", "-n", mq.namesrv]) == 0
        assert [one["failure"] for one in json.loads(capsys.readouterr().out)] == [why, "nobody wants it", None]
        replay = ["dead-letters", "replay", "g", "--all", "--yes", "-n", mq.namesrv]
        assert await asyncio.to_thread(main, replay) == 0
        async with mq.pull_consumer() as reader:
            again = (await reader.pull(MessageQueue("orders", "broker-a", 0), 3)).messages
        assert len(again) == 3
        assert not any(message.failure for message in again), "it starts anew"

    against_a_broker(test)


def test_the_groups_own_limit_holds_for_a_consumer_without_one(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: Embedded) -> None:
        assert await asyncio.to_thread(main, ["group", "create", "g", "--retry-max", "2", "-n", mq.namesrv]) == 0
        attempts: list[int] = []
        consumer = mq.consumer("g", consume_from="first")

        @consumer.on("orders")
        async def handle(message: ReceivedMessage) -> None:
            attempts.append(message.reconsume_times)
            raise ValueError("no")

        async with mq.producer() as producer, consumer:
            await producer.send(Message("orders", b"fails"))
            [letter] = await letters(mq, 1)
        assert attempts == [0, 1, 2], "two retries, and then no more"
        assert letter.body == b"fails"
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(lines) == 3
        for number, line in enumerate(lines, 1):  # how many there are is the broker's to know
            assert f"attempt {number}; it comes again after delay level {number + 2} (" in line
            assert ", or becomes a dead letter if its group has no more retries (roquet group create --retry-max; usually 16)" in line

    against_a_broker(test)


def test_an_orderly_handlers_failure_travels_too() -> None:
    async def test(mq: Embedded) -> None:
        consumer = mq.consumer("g", consume_from="first", reconsume_times_max=1)

        @consumer.on_orderly("orders")
        async def handle(message: ReceivedMessage) -> None:
            raise KeyError("no such account")

        async with mq.producer() as producer, consumer:
            await producer.send(Message("orders", b"fails"))
            [letter] = await letters(mq, 1)
        assert letter.failure == "KeyError: 'no such account'"

    against_a_broker(test)


def test_a_message_whose_properties_are_full_comes_again_without_the_reason() -> None:
    async def test(mq: Embedded) -> None:
        consumer = mq.consumer("g", consume_from="first", reconsume_times_max=0)

        @consumer.on("orders")
        async def handle(message: ReceivedMessage) -> None:
            raise ValueError("no")

        async with mq.producer() as producer, consumer:
            await producer.send(Message("orders", b"full", properties={"much": "x" * 32_300}))
            [letter] = await letters(mq, 1)
        assert letter.body == b"full"

    against_a_broker(test)


def test_the_caller_of_a_transaction_learns_what_execute_raised() -> None:
    async def test(mq: Embedded) -> None:
        async def execute(message: Message, argument: object) -> TransactionState:
            raise LookupError("no such order")

        async def check(message: ReceivedMessage) -> TransactionState:
            return TransactionState.ROLLBACK

        async with TransactionProducer("tx", mq.namesrv, execute=execute, check=check) as producer:
            with pytest.raises(LookupError, match="no such order") as raised:
                await producer.send_in_transaction(Message("orders", b"17"))
        assert "is UNKNOWN" in raised.value.__notes__[0]

    against_a_broker(test)
