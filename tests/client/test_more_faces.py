"""Orderly consumers, transactions, requests and lite pulling as users see them: asyncio and blocking, over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import roquet
from roquet.client import (
    RETRY_LATER,
    LitePullConsumer,
    Message,
    Outcome,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RequestTimedOut,
    Suspend,
    TransactionProducer,
    TransactionState,
    sync,
)
from roquet.errors import ClientError
from roquet.wire.calls.transactions import CheckTransactionHeader
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.headers import encode
from tests.client.tcp import FakeServer, run, until

TOPICS = {"t": 1, "%RETRY%g": 1, "c_REPLY_TOPIC": 1}


def test_every_new_name_is_there() -> None:
    assert roquet.TransactionProducer is TransactionProducer
    assert roquet.LitePullConsumer is LitePullConsumer
    assert roquet.TransactionState is TransactionState


# -- orderly


def test_an_orderly_function_gets_messages_in_order_and_again_after_a_failure() -> None:
    async def test(server: FakeServer) -> None:
        consumer = PushConsumer("g", server.address, consume_from="first", suspend_queue_ms=10)
        seen: list[tuple[bytes, int]] = []

        @consumer.on_orderly("t")
        async def consume(message: ReceivedMessage) -> Outcome | Suspend | None:
            seen.append((message.body, message.reconsume_times))
            answers: dict[int, Outcome | Suspend] = {0: RETRY_LATER, 1: Suspend(20)}
            return answers.get(message.reconsume_times)

        async with Producer("p", server.address) as producer, consumer:
            for number in range(3):
                await producer.send(Message("t", b"%d" % number), key="one")
            await until(lambda: len(seen) == 9)
        assert seen == [(b"%d" % number, times) for number in range(3) for times in range(3)]
        assert server.cluster.locks == {}

    run(test, **TOPICS)


def test_a_consumer_is_orderly_as_a_whole() -> None:
    async def test(server: FakeServer) -> None:
        consumer = PushConsumer("g", server.address)
        consumer.subscribe("t", "*", print)
        with pytest.raises(ClientError, match="orderly as a whole"):
            consumer.on_orderly("u")

    run(test, **TOPICS)


# -- transactions


def test_a_transaction_commits_when_its_function_says_so_and_unknown_when_it_raises() -> None:
    async def test(server: FakeServer) -> None:
        async def execute(message: Message, argument: Any) -> Any:
            if argument is None:
                raise ValueError("no argument")
            return argument

        def check(message: ReceivedMessage) -> TransactionState:
            checked.append(message.body)
            return TransactionState.ROLLBACK

        checked: list[bytes] = []
        states: list[str] = []
        server.cluster.overrides[37] = lambda _, command: states.append(command.fields["commitOrRollback"])
        async with TransactionProducer("p", server.address, execute=execute, check=check) as producer:
            for argument, state in ((TransactionState.COMMIT, "COMMIT"), ("what?", "UNKNOWN"), (None, "UNKNOWN")):
                if argument is None:
                    with pytest.raises(ValueError, match="no argument"):
                        await producer.send_in_transaction(Message("t", b"x"), argument)
                    continue
                got = await producer.send_in_transaction(Message("t", b"x"), argument)
                assert (str(got.state), bool(got.error)) == (state, state == "UNKNOWN")
            half = server.cluster.half[-1]
            fields = encode(CheckTransactionHeader(half.queue_offset, half.physical_offset))
            server.push("", Command(RequestCode.CHECK_TRANSACTION_STATE, fields, half.encode(), flag=2))
            await until(lambda: len(states) == 4)
            assert (await producer.send(Message("t", b"plain"))).ok
        assert states == ["8", "0", "0", "12"]
        assert checked == [b"x"]

    run(test, **TOPICS)


# -- requests


def test_a_request_is_answered_by_a_consumer_that_replies() -> None:
    async def test(server: FakeServer) -> None:
        consumer = PushConsumer("g", server.address, consume_from="first")

        @consumer.on("t")
        async def answer(message: ReceivedMessage) -> None:
            if message.body != b"silence":
                await consumer.reply(message, b"re:" + message.body, properties={"mine": "yes"})

        async with Producer("p", server.address) as producer, consumer:
            replies = await asyncio.gather(*(producer.request(Message("t", b"%d" % one), 5_000) for one in range(5)))
            assert [reply.body for reply in replies] == [b"re:%d" % one for one in range(5)]
            assert replies[0].properties["mine"] == "yes"
            with pytest.raises(RequestTimedOut, match="within 50 ms"):
                await producer.request(Message("t", b"silence"), 50)

    run(test, **TOPICS)


# -- lite pull


def test_a_lite_consumer_polls_what_it_subscribed_to() -> None:
    async def test(server: FakeServer) -> None:
        [queue] = server.cluster.create_topic("t", 1)
        for number in range(15):
            server.cluster.append(queue, b"%d" % number)
        consumer = LitePullConsumer("g", server.address, consume_from="first")
        consumer.subscribe("t")
        async with consumer:
            assert [len(await consumer.poll()) for _ in range(2)] == [10, 5]
            assert consumer.assignment == [queue]
            await consumer.commit()
            assert await consumer.committed(queue) == 15
            assert await consumer.seek(queue, 14) == 14
            assert [message.body for message in await consumer.poll()] == [b"14"]
            assert consumer.position(queue) == 15
            consumer.pause([queue])
            consumer.resume([queue])
            with pytest.raises(ClientError, match="reaches from 0 to 15"):
                await consumer.seek(queue, 16)
        assert server.cluster.offsets["g", queue] == 15

    run(test, **TOPICS)


def test_a_poll_that_is_cancelled_loses_nothing() -> None:
    async def test(server: FakeServer) -> None:
        [queue] = server.cluster.create_topic("t", 1)
        consumer = LitePullConsumer("g", server.address, consume_from="first")
        consumer.assign([queue])
        async with consumer:
            polling = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0)
            server.cluster.append(queue, b"x")
            server.cluster.run()
            await asyncio.sleep(0)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert [message.body for message in await consumer.poll()] == [b"x"]

    run(test, **TOPICS)


def test_what_the_last_poll_returned_comes_again_when_the_block_ends_with_an_error() -> None:
    async def test(server: FakeServer) -> None:
        [queue] = server.cluster.create_topic("t", 1)
        for _ in range(20):
            server.cluster.append(queue, b"x")
        consumer = LitePullConsumer("g", server.address, consume_from="first")
        consumer.subscribe("t")

        async def stumble() -> None:
            async with consumer:
                await consumer.poll()
                await consumer.poll()
                raise RuntimeError("in the middle")

        with pytest.raises(RuntimeError, match="in the middle"):
            await stumble()
        assert server.cluster.offsets["g", queue] == 10

    run(test, **TOPICS)


# -- blocking


def test_the_blocking_classes_do_the_same() -> None:
    async def test(server: FakeServer) -> None:
        [queue] = server.cluster.create_topic("t", 1)

        def program() -> list[object]:
            done: list[object] = []
            consumer = sync.PushConsumer("g", server.address, consume_from="first")

            def answer(message: ReceivedMessage) -> None:
                if "CORRELATION_ID" in message.properties:
                    consumer.reply(message, b"re:" + message.body)

            consumer.on_orderly("t")(answer)
            transactions = sync.TransactionProducer(
                "tx", server.address, execute=lambda message, state: state, check=lambda message: TransactionState.COMMIT
            )
            with sync.Producer("p", server.address) as producer, consumer, transactions:
                done.append(producer.request(Message("t", b"ping"), 5_000).body)
                done.append(transactions.send_in_transaction(Message("t", b"x"), TransactionState.ROLLBACK).state)
            lite = sync.LitePullConsumer("other", server.address, consume_from="first")
            lite.assign([queue])
            with lite:
                done.append([message.body for message in lite.poll(5_000)])
            return done

        assert await asyncio.to_thread(program) == [b"re:ping", TransactionState.ROLLBACK, [b"ping"]]
        assert server.cluster.offsets["other", queue] == 1

    run(test, **TOPICS)
