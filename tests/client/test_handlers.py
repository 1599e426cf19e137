"""Who calls a consumer's handlers: tasks that take one call after another, as if each call had a task of its own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from roquet.client import PushConsumer, ReceivedMessage
from roquet.client.functions import CALLS_A_TURN, Functions
from roquet.wire.calls.consumers import ConsumeDirectlyResult
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.client.tcp import FakeServer, run, until

SENT_BACK = 36


def fill(server: FakeServer, count: int, topic: str = "t") -> None:
    [queue, *_] = server.cluster.create_topic(topic, 2)
    for number in range(count):
        server.cluster.append(queue, b"%d" % number)


def test_handlers_that_do_not_wait_leave_the_loop_its_turns() -> None:
    async def test(server: FakeServer) -> None:
        fill(server, 6 * CALLS_A_TURN)
        turn, calls = 0, Counter[int]()

        async def handle(message: ReceivedMessage) -> None:
            calls[turn] += 1

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            asyncio.get_running_loop().call_soon(next_turn)

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle, pull_batch_size=1_024)
        consumer.subscribe("t")
        async with consumer:
            next_turn()
            await until(lambda: calls.total() == 6 * CALLS_A_TURN)
        assert max(calls.values()) == CALLS_A_TURN

    run(test)


def test_a_handler_that_waits_holds_up_no_other_until_as_many_wait_as_may_run() -> None:
    async def test(server: FakeServer) -> None:
        fill(server, 32)
        running: list[int] = []
        seen: list[bytes] = []
        go = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"0":
                for _ in range(100):  # turns of the loop
                    await asyncio.sleep(0)
                    running.append(consumer.running)
                go.set()
            else:
                await go.wait()
            seen.append(message.body)

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle, concurrency=8)
        consumer.subscribe("t")
        async with consumer:
            await until(lambda: len(seen) == 32 and consumer.running == 0)
        assert max(running) == running[-1] == 8

    run(test)


def test_a_queue_whose_handler_waits_holds_up_no_other_queue_of_an_orderly_consumer() -> None:
    async def test(server: FakeServer) -> None:
        for queue in server.cluster.create_topic("t", 8):
            for number in range(5):
                server.cluster.append(queue, b"%d" % number)
        seen: list[bytes] = []
        go = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"0":  # the first of its queue
                await go.wait()
            seen.append(message.body)

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle, orderly=True)
        consumer.subscribe("t")
        async with consumer:
            await until(lambda: consumer.running == 8)
            assert seen == []
            go.set()
            await until(lambda: len(seen) == 40 and consumer.running == 0)

    run(test)


def test_a_call_whose_task_is_cancelled_from_outside_has_failed_and_no_other_suffers() -> None:
    async def test(server: FakeServer) -> None:
        fill(server, 100)
        seen: list[bytes] = []
        tasks: list[asyncio.Task[None] | None] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"50":
                tasks.append(asyncio.current_task())
                await asyncio.Event().wait()
            seen.append(message.body)

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle)
        consumer.subscribe("t")
        async with consumer:
            await until(lambda: len(seen) == 99)
            [task] = tasks
            assert task is not None
            task.cancel()
            await until(lambda: len(server.cluster.requests(SENT_BACK)) == 1 and consumer.running == 0)
        assert len(seen) == 99

    run(test)


def test_a_handler_that_cancels_its_own_task_takes_no_other_call_with_it() -> None:
    async def test(server: FakeServer) -> None:
        fill(server, 100)
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"3":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()  # it is raised where it waits next, which is not in this call
            else:
                await asyncio.sleep(0)
            seen.append(message.body)

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle)
        consumer.subscribe("t")
        async with consumer:
            await until(lambda: len(seen) + len(server.cluster.requests(SENT_BACK)) == 100)
        assert len(seen) == 100

    run(test)


def test_an_operators_message_is_served_though_as_many_calls_wait_as_may_run() -> None:
    async def test(server: FakeServer) -> None:
        fill(server, 10)
        go, seen = asyncio.Event(), list[bytes]()

        async def handle(message: ReceivedMessage) -> None:
            if not message.body.startswith(b"from"):
                await go.wait()
            seen.append(message.body)

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle, concurrency=2)
        consumer.subscribe("t")
        async with consumer:
            await until(lambda: consumer.running == 2)
            [queue, _] = server.cluster.create_topic("elsewhere", 2)
            record = server.cluster.append(queue, b"from an operator")
            [connection] = server.connections
            server.push("", Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g", "brokerName": "a"}, record.encode()))
            await until(lambda: bool(connection.answers))
            assert seen == [b"from an operator"]
            assert consumer.running == 2
            go.set()
        answer = ConsumeDirectlyResult.decode(connection.answers[0].body)
        assert answer.consume_result == ConsumeDirectlyResult.SUCCESS

    run(test)


def test_a_topic_without_a_function_any_more_is_said_and_its_messages_come_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: FakeServer) -> None:
        fill(server, 3)
        consumer = PushConsumer("g", server.address, consume_from="first")
        consumer.subscribe("t", function=lambda message: None)
        [queue] = server.cluster.create_topic("%RETRY%g", 1)
        server.cluster.append(queue, b"x", "RETRY_TOPIC\x01of another program\x02")
        async with consumer:
            await until(lambda: len(server.cluster.requests(SENT_BACK)) == 1)

    run(test)
    assert "group g has no function for topic of another program of message" in caplog.text


def test_a_consumer_that_is_started_again_serves_again() -> None:
    async def test(server: FakeServer) -> None:
        fill(server, 5)
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle)
        consumer.subscribe("t")
        for count in (5, 10):
            async with consumer:
                await until(lambda count=count: len(seen) == count)  # type: ignore[misc]
            assert consumer.running == 0
            fill(server, 5, "t")

    run(test)


@pytest.mark.parametrize("close_wait_ms", [0, 30_000])
def test_a_closed_consumer_keeps_nothing_of_what_it_held(close_wait_ms: int) -> None:
    async def test(server: FakeServer) -> None:
        fill(server, 500)
        go = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await go.wait()

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle, close_wait_ms=close_wait_ms)
        consumer.subscribe("t")
        await consumer.start()
        await until(lambda: consumer.running == consumer.concurrency)
        core = weakref.ref(consumer._core)
        if close_wait_ms:
            go.set()
        await consumer.close()
        await until(lambda: not consumer.calls())
        gc.collect()
        assert core() is None

    run(test)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the closed loop's task is thrown away
def test_a_loop_that_was_closed_before_its_tasks_had_ended_does_not_keep_the_next_one_from_serving() -> None:
    functions = Functions("f", 4)
    served: list[int] = []

    async def serve(number: int) -> None:
        served.append(number)

    def begin(number: int) -> None:
        functions.open()
        functions.begin(serve, (number,), lambda: None)

    with closing(asyncio.new_event_loop()) as loop:
        loop.call_soon(begin, 1)
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert served == []

    async def test() -> None:
        begin(2)
        await until(lambda: served == [1, 2] and not functions.tasks)
        functions.close()

    asyncio.run(test())


def test_what_a_function_that_cannot_be_hashed_returns_counts_as_of_any_other(caplog: pytest.LogCaptureFixture) -> None:
    class Handle:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        async def __call__(self, message: ReceivedMessage) -> Any:
            return 17

    async def test(server: FakeServer) -> None:
        fill(server, 3)
        consumer = PushConsumer("g", server.address, consume_from="first", listener=Handle())
        consumer.subscribe("t")
        async with consumer:
            await until(lambda: consumer.stats.consumed == 3)
        assert server.cluster.requests(SENT_BACK) == []

    run(test)
    assert caplog.text.count("returned 17, which counts as done") == 1


@pytest.mark.parametrize("orderly", [False, True])
def test_messages_of_a_light_queue_count_where_they_were_pulled_from_whatever_became_of_them(orderly: bool) -> None:
    """Their records name other topics."""

    async def test(server: FakeServer) -> None:
        [queue, *_] = server.cluster.create_topic("%LMQ%x", 1)
        for number in range(12):
            server.cluster.append(queue, b"%d" % number).topic = ("t1", "t2")[number % 2]
        failed: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.body not in failed and message.queue_offset % 3 == 0:
                failed.append(message.body)
                raise ValueError(message.body)

        consumer = PushConsumer("g", server.address, consume_from="first", listener=handle, orderly=orderly, suspend_queue_ms=10)
        consumer.subscribe("%LMQ%x")
        async with consumer:
            stats = consumer.stats
            await until(lambda: len(failed) == 4 and stats.consumed == (12 if orderly else 8) and not consumer.running)
            assert list(stats.topics) == ["%LMQ%x"]
            assert stats.topics["%LMQ%x"].retried == 4

    run(test)
