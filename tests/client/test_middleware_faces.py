"""Middleware of producers and consumers over a real socket: around handlers of every kind, at the start and at the end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from roquet import (
    COMMIT,
    DEAD_LETTER,
    RETRY_LATER,
    ConsumeEvent,
    LitePullConsumer,
    Message,
    Middleware,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendEvent,
    Suspend,
    TransactionEvent,
    TransactionProducer,
    TransactionState,
)
from roquet.client import member, sync
from roquet.errors import ConnectFailed
from roquet.message import MessageQueue
from tests.client.tcp import FakeServer, fake_server, run, until

REQUEST: ContextVar[str] = ContextVar("request", default="nothing")


class Recorder(Middleware):
    def __init__(self) -> None:
        self.begun: list[ConsumeEvent] = []
        self.ended: list[ConsumeEvent] = []
        self.sent: list[SendEvent] = []
        self.told: list[str] = []
        self.threads: list[tuple[str, str]] = []

    def before_consume(self, event: ConsumeEvent) -> None:
        self.begun.append(event)
        event.data["token"] = REQUEST.set(event.messages[0].body.decode())
        self.threads.append(("before", threading.current_thread().name))

    def after_consume(self, event: ConsumeEvent) -> None:
        REQUEST.reset(event.data["token"])  # raises in another context than that of before_consume
        event.data["reset"] = True
        self.threads.append(("after", threading.current_thread().name))
        self.ended.append(event)

    def after_send(self, event: SendEvent) -> None:
        self.sent.append(event)

    def started(self, member: Any) -> None:
        self.told.append(f"started {member.group} {member.client_id != ''}")

    async def closing(self, member: Any) -> None:
        await asyncio.sleep(0)
        self.told.append(f"closing {member.group} after {len(self.ended)}")


def consumer_of(server: FakeServer, function: Any, *middleware: Middleware, topic: str = "t", **settings: Any) -> PushConsumer:
    consumer = PushConsumer("g", server.address, consume_from="first", middleware=list(middleware), **settings)
    consumer.subscribe(topic, function=function)
    return consumer


def append(server: FakeServer, *bodies: bytes, topic: str = "t") -> None:
    [queue] = server.cluster.create_topic(topic, 1)
    for body in bodies:
        server.cluster.append(queue, body)


def consume(function: Any, *bodies: bytes, count: int | None = None, **settings: Any) -> Recorder:
    """What middleware heard when these messages were consumed."""
    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        server.cluster.overrides[36] = lambda _, command: command.reply()
        append(server, *bodies)
        async with consumer_of(server, function, recorder, **settings):
            await until(lambda: len(recorder.ended) >= (len(bodies) if count is None else count))

    run(test)
    return recorder


# -- around handlers


async def in_the_loop(message: ReceivedMessage) -> None:
    assert REQUEST.get() == message.body.decode()
    await asyncio.sleep(0)
    assert REQUEST.get() == message.body.decode()


def in_a_thread(message: ReceivedMessage) -> None:
    assert threading.current_thread() is not threading.main_thread()
    assert REQUEST.get() == message.body.decode()


async def awaited_later(message: ReceivedMessage) -> None:
    assert threading.current_thread() is threading.main_thread()
    await asyncio.sleep(0)
    assert REQUEST.get() == message.body.decode()


@pytest.mark.parametrize("function", [in_the_loop, in_a_thread, lambda message: awaited_later(message)])
@pytest.mark.parametrize("orderly", [False, True])
def test_a_handler_sees_the_variables_that_were_set_before_it_and_they_are_reset_after_it(function: Any, orderly: bool) -> None:
    recorder = consume(function, b"1", b"2", b"3", orderly=orderly)
    assert sorted(event.messages[0].body for event in recorder.begun) == [b"1", b"2", b"3"]
    assert all(event.data["reset"] for event in recorder.ended)
    assert {(event.outcome, event.error, event.orderly) for event in recorder.ended} == {("success", None, orderly)}
    for event in recorder.ended:
        assert (event.group, event.topic, event.attempt, event.batch_size, event.failed) == ("g", "t", 1, 1, [])
        assert event.queue.broker_name == "a"
        assert event.begun_ms > 1_600_000_000_000
        assert event.client_id


def test_hooks_of_a_plain_handler_are_called_in_its_thread() -> None:
    here: list[str] = []

    def handler(message: ReceivedMessage) -> None:
        here.append(threading.current_thread().name)

    recorder = consume(handler, b"x")
    assert recorder.threads == [("before", here[0]), ("after", here[0])]
    assert here[0] != threading.current_thread().name


def raises(message: ReceivedMessage) -> None:
    raise ValueError("no")


OUTCOMES: list[tuple[Any, dict[str, Any], str]] = [
    (None, {}, "success"),
    (True, {}, "success"),
    (False, {}, "retry"),
    (RETRY_LATER, {}, "retry"),
    (RetryLater(3), {}, "retry"),
    (Suspend(), {}, "retry"),
    (DEAD_LETTER, {}, "dead letter"),
    (RETRY_LATER, {"reconsume_times_max": 0}, "dead letter"),
    (False, {"broadcasting": True}, "given up"),
    (None, {"orderly": True}, "success"),
    (COMMIT, {"orderly": True, "auto_commit": False}, "success"),
    (False, {"orderly": True}, "suspend"),
    (Suspend(20), {"orderly": True}, "suspend"),
    (Outcome.ROLLBACK, {"orderly": True, "auto_commit": False}, "suspend"),
    (False, {"orderly": True, "reconsume_times_max": 0}, "dead letter"),
]


@pytest.mark.parametrize(("answer", "settings", "outcome"), OUTCOMES)
def test_what_a_handler_returns_is_told_as_what_becomes_of_the_message(
    answer: Any, settings: dict[str, Any], outcome: str, tmp_path: Any
) -> None:
    if settings.get("broadcasting"):
        settings = {**settings, "offsets_directory": tmp_path}
    recorder = consume(lambda _: answer, b"x", **settings)
    event = recorder.ended[0]
    assert (event.outcome, event.error) == (outcome, None)
    assert event.failed == ([] if outcome == "success" else event.messages)


def test_what_a_handler_raises_is_told() -> None:
    event = consume(raises, b"x").ended[0]
    assert (event.outcome, str(event.error), event.failed) == ("retry", "no", event.messages)


def test_a_message_that_comes_again_is_told_with_its_attempt() -> None:
    recorder = consume(raises, b"x", count=3, orderly=True, suspend_queue_ms=10)
    assert [event.attempt for event in recorder.begun[:3]] == [1, 2, 3]


def test_a_list_is_one_call_and_those_of_it_that_failed_are_told() -> None:
    def handler(messages: list[ReceivedMessage]) -> RetryLater:
        return RetryLater(messages=messages[1:])

    recorder = consume(handler, b"1", b"2", b"3", count=1, batch_size=8)
    [event] = recorder.ended
    assert (event.batch_size, [message.body for message in event.messages]) == (3, [b"1", b"2", b"3"])
    assert (event.outcome, [message.body for message in event.failed]) == ("retry", [b"2", b"3"])


def test_a_handler_that_the_end_cancels_is_told_as_one_whose_message_comes_again() -> None:
    recorder = Recorder()

    async def handler(message: ReceivedMessage) -> None:
        await asyncio.Event().wait()

    async def test(server: FakeServer) -> None:
        append(server, b"x")
        async with consumer_of(server, handler, recorder, close_wait_ms=0):
            await until(lambda: bool(recorder.begun))
        await until(lambda: bool(recorder.ended))

    run(test)
    [event] = recorder.ended
    assert event.outcome == "retry"
    assert isinstance(event.error, asyncio.CancelledError)


def test_a_hook_that_raises_does_not_fail_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Middleware):
        def before_consume(self, event: ConsumeEvent) -> None:
            raise ValueError("before")

        def after_consume(self, event: ConsumeEvent) -> None:
            raise ValueError("after")

    seen: list[bytes] = []
    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        append(server, b"1", b"2")
        async with consumer_of(server, lambda message: seen.append(message.body), Fails(), recorder):
            await until(lambda: len(recorder.ended) == 2)
        assert server.cluster.requests(36) == []

    run(test)
    assert sorted(seen) == [b"1", b"2"]
    said = [record.getMessage() for record in caplog.records if "Fails." in record.getMessage()]
    assert len(said) == 2, "one line for each hook, not for each message"


def test_a_reply_of_a_consumer_is_a_send_of_its_middleware() -> None:
    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        server.cluster.create_topic("c_REPLY_TOPIC", 1)
        append(server)
        consumer = PushConsumer("g", server.address, consume_from="first", middleware=[recorder])

        @consumer.on("t")
        async def answer(message: ReceivedMessage) -> None:
            await consumer.reply(message, b"pong")

        async with consumer, Producer("p", server.address) as producer:
            assert (await producer.request(Message("t", b"ping"), 60_000)).body == b"pong"
            await until(lambda: bool(recorder.sent))

    run(test)
    assert [(event.kind, event.group, event.error) for event in recorder.sent] == [("reply", "g", None)]


# -- those that are asked for messages


def test_messages_of_a_poll_are_told_as_consumed_when_the_next_poll_asks() -> None:
    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        append(server, b"1", b"2", b"3")
        consumer = LitePullConsumer("g", server.address, consume_from="first", pull_batch_size=2, middleware=[recorder])
        consumer.subscribe("t")
        async with consumer:
            first = await consumer.poll()
            assert (len(recorder.begun), len(recorder.ended)) == (1, 0)
            assert REQUEST.get() == "1"
            second = await consumer.poll()
            assert [event.messages for event in recorder.begun] == [first, second]
            assert [event.messages for event in recorder.ended] == [first]
        assert [event.outcome for event in recorder.ended] == ["success", "success"]

    run(test)


def test_async_for_tells_of_one_message_after_the_other_and_of_what_ends_it() -> None:
    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        append(server, b"1", b"2", b"3")
        consumer = LitePullConsumer("g", server.address, consume_from="first", middleware=[recorder])
        consumer.subscribe("t")
        with contextlib.suppress(ZeroDivisionError):
            async with consumer:
                async for message in consumer:
                    if message.body == b"2":
                        raise ZeroDivisionError

    run(test)
    assert [(event.messages[0].body, event.outcome) for event in recorder.ended] == [(b"1", "success"), (b"2", "retry")]
    assert isinstance(recorder.ended[1].error, ZeroDivisionError)


def test_a_pull_tells_that_messages_were_handed_out() -> None:
    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        append(server, b"1", b"2")
        async with PullConsumer("g", server.address, middleware=[recorder]) as consumer:
            [queue] = await consumer.fetch_queues("t")
            await consumer.pull(queue, 0)
            await consumer.pull_blocking(queue, 1)
            await consumer.pull(queue, 2)

    run(test)
    assert [[message.body for message in event.messages] for event in recorder.ended] == [[b"1", b"2"], [b"2"]]


# -- the beginning and the end


def test_started_comes_before_anything_is_consumed_and_closing_after_the_last_handler() -> None:
    recorder, other = Recorder(), Recorder()

    async def test(server: FakeServer) -> None:
        append(server, b"x")
        release = asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            assert recorder.told
            release.set()
            await asyncio.sleep(0.01)

        async with Producer("p", server.address, middleware=[recorder, other]), consumer_of(server, handler, recorder):
            await release.wait()

    run(test)
    assert recorder.told == ["started p True", "started g True", "closing g after 1", "closing p after 1"]
    assert other.told == ["started p True", "closing p after 0"]


def test_nothing_is_consumed_before_started_has_ended() -> None:
    told: list[str] = []

    async def test(server: FakeServer) -> None:
        append(server, b"x")
        handled = asyncio.Event()

        class Slow(Middleware):
            async def started(self, member: Any) -> None:
                told.append("started begins")
                for _ in range(50):  # time enough to pull
                    await member.max_offset(MessageQueue("t", "a", 0))
                told.append("started has ended")

        async def handler(message: ReceivedMessage) -> None:
            told.append("handled")
            handled.set()

        async with consumer_of(server, handler, Slow()):
            await handled.wait()

    run(test)
    assert told == ["started begins", "started has ended", "handled"]


@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_whose_start_is_cancelled_while_middleware_is_told_consumes_nothing_and_is_closed(orderly: bool) -> None:
    async def test(server: FakeServer) -> None:
        append(server, b"x")
        begun = asyncio.Event()

        class Hangs(Middleware):
            async def started(self, member: Any) -> None:
                begun.set()
                await asyncio.Event().wait()

        async def handler(message: ReceivedMessage) -> None:
            raise AssertionError("consumed")

        consumer = consumer_of(server, handler, Hangs(), orderly=orderly)
        starting = asyncio.create_task(consumer.start())
        await begun.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await consumer.closed()

    run(test)


def test_a_member_that_cannot_start_closes_its_middleware() -> None:
    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        producer = Producer("p", "127.0.0.1:1", start_timeout_ms=50, middleware=[recorder])
        with pytest.raises(ConnectFailed):
            await producer.start()

    run(test)
    assert recorder.told == ["started p True", "closing p after 0"]


def test_a_hook_that_fails_or_does_not_end_at_the_end_keeps_nobody_from_closing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(member, "HOOK_MAX_S", 0.01)

    class Fails(Middleware):
        def started(self, member: Any) -> None:
            raise ValueError("started")

        def closing(self, member: Any) -> None:
            raise ValueError("closing")

    class Hangs(Middleware):
        async def closing(self, member: Any) -> None:
            await asyncio.Event().wait()

    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address, middleware=[recorder, Fails(), Hangs()]) as producer:
            await producer.send(Message("t", b"x"))
        await producer.closed()

    run(test)
    assert recorder.told == ["started p True", "closing p after 0"]
    for words in ("Fails.started", "Fails.closing", "Hangs.closing"):
        assert words in caplog.text


def test_a_transaction_producer_tells_of_its_sends_and_of_their_end() -> None:
    class Ends(Middleware):
        def __init__(self) -> None:
            self.ended: list[TransactionEvent] = []

        def after_transaction(self, event: TransactionEvent) -> None:
            self.ended.append(event)

    ends = Ends()

    async def test(server: FakeServer) -> None:
        def decide(message: object, argument: object = None) -> TransactionState:
            return TransactionState.COMMIT

        async with TransactionProducer("p", server.address, execute=decide, check=decide, middleware=[ends]) as producer:
            receipt = await producer.send_in_transaction(Message("t", b"x"))
            assert ends.ended[0].message_id == receipt.receipt.message_id

    run(test)
    assert [event.state for event in ends.ended] == [TransactionState.COMMIT]


def test_a_send_that_its_caller_cancels_is_told_once() -> None:
    recorder = Recorder()

    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address, middleware=[recorder]) as producer:
            await producer.send(Message("t", b"1"))
            server.cluster.masters["a"] = "127.0.0.1:1"
            await producer._wait(producer._client().routes.fetch("t"))
            sending = asyncio.create_task(producer.send(Message("t", b"2")))
            await until(lambda: bool(producer._part().waiting))
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            assert len(recorder.sent) == 2

    run(test)
    assert recorder.sent[1].error is not None


def blocking(test: Callable[[str], None]) -> None:
    """The server runs in a loop of its own thread, as a program without asyncio would find it."""
    ready, over = threading.Event(), threading.Event()
    found: list[FakeServer] = []

    async def serve() -> None:
        async with fake_server() as server:
            server.cluster.create_topic("t", 1)
            found.append(server)
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.005)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(600)
    try:
        test(found[0].address)
    finally:
        over.set()
        thread.join()


def test_the_blocking_face_takes_middleware_too() -> None:
    recorder = Recorder()
    seen: list[str] = []

    def test(address: str) -> None:
        consumer = sync.PushConsumer("g", address, consume_from="first", middleware=[recorder])
        consumed = threading.Event()

        @consumer.on("t")
        def handle(message: ReceivedMessage) -> None:
            seen.append(REQUEST.get())
            consumed.set()

        with sync.Producer("p", address, middleware=[recorder]) as producer, consumer:
            producer.send(Message("t", b"x"))
            assert consumed.wait(600)
        assert producer.stats.sent == 1
        assert consumer.stats.as_dict()["consumed"] == 1

    blocking(test)
    assert seen == ["x"]
    assert [event.outcome for event in recorder.ended] == ["success"]
    assert [event.error for event in recorder.sent] == [None]
    assert recorder.told == ["started p True", "started g True", "closing g after 1", "closing p after 1"]
