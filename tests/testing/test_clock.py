"""The clock of the test kit: what is due happens at its time, long spans take no time, and nothing else moves it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from roquet import (
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RequestTimedOut,
    SendFailed,
    Suspend,
    TransactionProducer,
    TransactionState,
)
from roquet.errors import ClientError
from roquet.testing import Broker
from roquet.testing.kit import driver
from roquet.wire.names import CHECK_MAX_TIME_TOPIC

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
RETRY_DELAYS_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200]
"""Of the first retry to the sixteenth."""


def run(scenario: Callable[[Broker], Awaitable[None]], **options: object) -> None:
    async def over() -> None:
        async with Broker(now=NEW_YEAR, **options) as broker:  # type: ignore[arg-type]
            await scenario(broker)

    asyncio.run(over())


def test_forty_days_pass_in_a_moment_and_a_timed_message_comes_to_the_millisecond(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: Broker) -> None:
        seen: list[datetime] = []
        consumer = PushConsumer("late", broker.namesrv, consume_from="first")

        @consumer.on("reminders")
        async def remind(message: ReceivedMessage) -> None:
            seen.append(broker.clock.now())

        async with Producer("shop", broker.namesrv) as producer, consumer:
            await producer.send(Message("reminders", b"soon", deliver_after=20 * 86_400.123))
            await producer.send(Message("reminders", b"pay", deliver_after=40 * 86_400))
            began = time.process_time()
            await broker.clock.advance(timedelta(days=40) - timedelta(milliseconds=1))
            assert seen == [NEW_YEAR + timedelta(seconds=20 * 86_400.123)]
            await broker.clock.advance(milliseconds=1)
            assert seen[1:] == [NEW_YEAR + timedelta(days=40)]
            assert time.process_time() - began < 5, "tens of milliseconds, on a machine with nothing else to do"
        assert broker.clock.monotonic() == 40 * 86_400

    run(scenario)
    assert not [text for text in caplog.messages if "was set" in text], "nobody set a clock"


def test_sixteen_retries_come_after_their_usual_delays_and_then_the_dead_letter() -> None:
    async def scenario(broker: Broker) -> None:
        calls: list[datetime] = []
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first")

        @consumer.on("orders")
        async def fail(message: ReceivedMessage) -> None:
            calls.append(broker.clock.now())
            assert message.reconsume_times == len(calls) - 1
            raise ValueError("no such order")

        async with Producer("shop", broker.namesrv) as producer, consumer:
            await producer.send(Message("orders", b"order 17"))
            await broker.clock.advance(seconds=sum(RETRY_DELAYS_S) - 1)
            assert (len(calls), broker.published.dead_letters("billing")) == (16, [])
            await broker.clock.advance(seconds=1)
            assert [message.body for message in broker.published.dead_letters("billing")] == [b"order 17"]
            await broker.clock.advance(days=3)
        waited = [(later - sooner).total_seconds() for sooner, later in itertools.pairwise(calls)]
        assert waited == RETRY_DELAYS_S

    logging.getLogger("roquet").setLevel(logging.CRITICAL)
    try:
        run(scenario)
    finally:
        logging.getLogger("roquet").setLevel(logging.NOTSET)


def test_a_silent_transaction_is_asked_about_every_minute_and_given_up_after_fifteen_times() -> None:
    async def scenario(broker: Broker) -> None:
        asked: list[float] = []

        async def check(message: ReceivedMessage) -> TransactionState:
            asked.append(broker.clock.monotonic())
            return TransactionState.UNKNOWN

        unknown: Callable[[Message, object], TransactionState] = lambda message, argument: TransactionState.UNKNOWN  # noqa: E731
        async with TransactionProducer("payments", broker.namesrv, execute=unknown, check=check) as producer:
            await producer.send_in_transaction(Message("paid", b"order 17"))
            await broker.clock.advance(hours=1)
        assert len(asked) == 15
        gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
        assert all(55 <= gap <= 65 for gap in gaps)
        assert broker.published.bodies(CHECK_MAX_TIME_TOPIC) == [b"order 17"]
        assert not broker.published.to("paid")

    run(scenario)


def test_rounds_that_come_once_an_hour_are_not_skipped() -> None:
    async def scenario(broker: Broker) -> None:
        asked: list[float] = []

        async def check(message: ReceivedMessage) -> TransactionState:
            asked.append(broker.clock.monotonic())
            return TransactionState.COMMIT if len(asked) == 3 else TransactionState.UNKNOWN

        async def execute(message: Message, argument: object) -> None:
            raise ConnectionError("the database is away")

        async with TransactionProducer("payments", broker.namesrv, execute=execute, check=check) as producer:
            with pytest.raises(ConnectionError):
                await producer.send_in_transaction(Message("paid", b"order 17"))
            await broker.clock.advance(hours=4)
        assert [round(when / 3_600) for when in asked] == [1, 2, 3]
        assert broker.published.bodies("paid") == [b"order 17"]

    run(scenario, settings={"transactionCheckInterval": "3600000"})


def test_eighteen_delay_levels_are_what_they_say() -> None:
    async def scenario(broker: Broker) -> None:
        levels = [1, 5, 10, 30, *(60 * minutes for minutes in range(1, 11)), 20 * 60, 30 * 60, 3_600, 7_200]
        async with Producer("shop", broker.namesrv) as producer:
            for level in range(1, 19):
                await producer.send(Message("orders", b"%d" % level, delay_level=level))
            assert [one.due for one in broker.published.scheduled("orders")] == [NEW_YEAR + timedelta(seconds=delay) for delay in levels]
            await broker.clock.advance(hours=2)
        waited = [message.store_timestamp - message.born_timestamp for message in broker.published.to("orders")]
        assert waited == [delay * 1_000 for delay in levels]

    run(scenario)


def test_nothing_moves_the_clock_but_the_test() -> None:
    async def scenario(broker: Broker) -> None:
        async with Producer("shop", broker.namesrv) as producer:
            for number in range(20):
                await producer.send(Message("orders", b"%d" % number))
            consumer = PushConsumer("billing", broker.namesrv, consume_from="first")
            seen: list[bytes] = []
            consumer.subscribe("orders", function=lambda message: seen.append(message.body))
            async with consumer:
                await broker.settle()
                assert len(seen) == 20
                await asyncio.sleep(0.01)
        assert broker.clock.now() == NEW_YEAR

    run(scenario)


def test_a_start_that_waits_for_time_gets_it() -> None:
    """A consumer whose broker is away waits five seconds for its share; nobody could turn the clock meanwhile."""

    async def scenario(broker: Broker) -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.create_topic("orders")
        await broker.kill()
        consumer = PushConsumer("billing", broker.namesrv)
        consumer.subscribe("orders", function=lambda message: None)
        async with consumer:
            assert timedelta() <= broker.clock.now() - NEW_YEAR <= timedelta(seconds=6)
            await broker.start()

    run(scenario)


def test_a_close_does_not_wait_for_ever_for_a_handler_that_does_not_end() -> None:
    async def scenario(broker: Broker) -> None:
        begun = asyncio.Event()
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first")

        @consumer.on("orders")
        async def hang(message: ReceivedMessage) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("orders", b"order 17"))
            async with consumer:
                await begun.wait()
        assert broker.clock.monotonic() == pytest.approx(30, abs=2), "close_wait_ms"

    run(scenario, patience=0.05)


def test_time_goes_on_without_a_handler_that_does_not_end_and_its_message_is_given_back_after_a_quarter_of_an_hour() -> None:
    async def scenario(broker: Broker) -> None:
        calls: list[float] = []
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first")

        @consumer.on("orders")
        async def hang_once(message: ReceivedMessage) -> None:
            calls.append(broker.clock.monotonic())
            if len(calls) == 1:
                await asyncio.Event().wait()

        async with Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("orders", b"order 17"))
            consumer.close_wait_ms = 0
            async with consumer:
                await broker.clock.advance(minutes=20)
        assert len(calls) == 2
        assert 15 * 60 <= calls[1] <= 17 * 60

    run(scenario, patience=0.05)


def test_advance_waits_for_handlers_whatever_they_do() -> None:
    async def scenario(broker: Broker) -> None:
        done: list[str] = []
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first")

        async def sleeper(message: ReceivedMessage) -> None:
            await asyncio.sleep(0.02)  # of the machine's clock
            done.append("slept")

        def in_a_thread(message: ReceivedMessage) -> None:
            time.sleep(0.02)
            done.append("thread")

        async def through_others(message: ReceivedMessage) -> None:
            queue: asyncio.Queue[int] = asyncio.Queue()
            for number in range(50):
                asyncio.get_running_loop().call_soon(queue.put_nowait, number)
                assert await queue.get() == number
            done.append("hops")

        for topic, function in (("a", sleeper), ("b", in_a_thread), ("c", through_others)):
            consumer.subscribe(topic, function=function)
        async with Producer("shop", broker.namesrv) as producer:
            for topic in "abc":
                await producer.create_topic(topic)
            async with consumer:
                for topic in "abc":
                    await producer.send(Message(topic, b"x", deliver_after=60))
                await broker.clock.advance(minutes=1)
                assert sorted(done) == ["hops", "slept", "thread"]

    run(scenario)


def test_what_waits_for_time_is_waited_for_with_until() -> None:
    async def scenario(broker: Broker) -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.create_topic("quotes")
            with pytest.raises(RequestTimedOut):
                await broker.clock.until(producer.request(Message("quotes", b"bread"), timeout_ms=3_000))
            assert broker.clock.monotonic() == 3
            async with LitePullConsumer("readers", broker.namesrv) as reader:
                reader.subscribe("nothing")
                assert await broker.clock.until(reader.poll(timeout_ms=90_000)) == []
            assert 93 <= broker.clock.monotonic() < 100
            await broker.stop()
            with pytest.raises(SendFailed):
                await broker.clock.until(producer.send(Message("quotes", b"milk"), timeout_ms=20_000))
            await broker.start()
            assert (await broker.clock.until(producer.send(Message("quotes", b"milk")))).queue.topic == "quotes"

    run(scenario)


def test_until_says_what_did_not_come_true_and_when_it_gave_up() -> None:
    async def scenario(broker: Broker) -> None:
        with pytest.raises(TimeoutError, match="not true after 7200 s of the test's clock"):
            await broker.clock.until(lambda: False, hours=2)
        assert broker.clock.monotonic() == 7_200
        with pytest.raises(TimeoutError, match="not done after 60 s of the test's clock"):
            await broker.clock.until(asyncio.Event().wait(), minutes=1)
        with pytest.raises(ZeroDivisionError):
            await broker.clock.until(raises())

    async def raises() -> None:
        raise ZeroDivisionError

    run(scenario)


def test_a_timeout_of_hours_is_not_skipped() -> None:
    async def scenario(broker: Broker) -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.create_topic("quotes")
            asking = asyncio.create_task(producer.request(Message("quotes", b"bread"), timeout_ms=2 * 3_600_000))
            await broker.clock.advance(hours=2, seconds=-1)
            assert not asking.done()
            await broker.clock.advance(seconds=1)
            assert asking.done()
            with pytest.raises(RequestTimedOut):
                await asking

    run(scenario)


def test_an_orderly_queue_that_is_suspended_again_and_again_is_not_skipped() -> None:
    async def scenario(broker: Broker) -> None:
        calls: list[float] = []
        consumer = PushConsumer("ledger", broker.namesrv, consume_from="first", orderly=True)

        @consumer.on("orders")
        async def wait(message: ReceivedMessage) -> Suspend | None:
            calls.append(broker.clock.monotonic())
            return Suspend(30_000) if len(calls) < 60 else None

        async with Producer("shop", broker.namesrv) as producer, consumer:
            await producer.send(Message("orders", b"order 17"))
            await broker.clock.advance(hours=1)
        assert len(calls) == 60
        assert calls[-1] - calls[0] == 59 * 30

    run(scenario)


def test_members_stay_members_however_long_nothing_happens() -> None:
    async def scenario(broker: Broker) -> None:
        seen: list[bytes] = []
        async with Producer("shop", broker.namesrv) as producer:
            await producer.create_topic("orders")
            members = [PushConsumer("billing", broker.namesrv, consume_from="first", orderly=True) for _ in range(2)]
            for member in members:
                member.subscribe("orders", function=lambda message: seen.append(message.body))
            async with members[0], members[1]:
                await broker.clock.advance(minutes=1)
                before = [member.queues for member in members]
                assert all(before)
                await broker.clock.advance(days=400)
                assert [member.queues for member in members] == before
                await producer.send(Message("orders", b"order 17"))
                await broker.settle()
                assert seen == [b"order 17"]

    run(scenario)


def test_the_wall_clock_can_be_set_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: Broker) -> None:
        clock = broker.clock
        async with Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("orders", b"tomorrow", deliver_at=NEW_YEAR + timedelta(days=1)))
            await clock.set_wall(timedelta(hours=-3))
            assert (clock.now(), clock.monotonic()) == (NEW_YEAR - timedelta(hours=3), 0)
            await clock.advance(days=1)
            assert not broker.published.to("orders")
            await clock.set_wall(NEW_YEAR + timedelta(days=1))
            assert broker.published.bodies("orders") == [b"tomorrow"]
            await clock.set_wall(int(NEW_YEAR.timestamp() * 1_000))
            assert (clock.now(), clock.now_ms(), clock.time()) == (NEW_YEAR, 1_893_456_000_000, 1_893_456_000.0)
            assert clock.monotonic() == 86_400

    run(scenario)
    assert len([text for text in caplog.messages if "the clock of this machine was set" in text]) == 3


def test_time_does_not_go_back() -> None:
    async def scenario(broker: Broker) -> None:
        with pytest.raises(ClientError, match="told to go back by 1:00:00; time only passes"):
            await broker.clock.advance(hours=-1)
        with pytest.raises(ClientError, match="has no time zone"):
            await broker.clock.set_wall(datetime(2030, 1, 1))

    run(scenario)


def test_one_seed_is_one_story() -> None:
    def story() -> list[tuple[str, int, int, int]]:
        lines: list[tuple[str, int, int, int]] = []

        async def scenario(broker: Broker) -> None:
            consumers = [PushConsumer("billing", broker.namesrv, consume_from="first") for _ in range(3)]
            for number, consumer in enumerate(consumers):

                async def note(message: ReceivedMessage, number: int = number) -> bool:
                    lines.append((message.body.decode(), number, message.queue_id, broker.clock.now_ms()))
                    return message.reconsume_times >= 2

                consumer.subscribe("orders", function=note)
            async with Producer("shop", broker.namesrv) as producer, consumers[0], consumers[1], consumers[2]:
                for number in range(10):
                    await producer.send(Message("orders", b"%d" % number, deliver_after=number + 1))
                    await broker.clock.advance(seconds=3)
                await broker.clock.advance(hours=1)

        run(scenario, seed=7)
        return lines

    first = story()
    assert len({(body, queue, when) for body, _, queue, when in first}) >= 30
    assert first == story()


def test_what_never_comes_to_rest_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "EVENTS_MAX", 2_000)

    async def scenario(broker: Broker) -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.create_topic("orders")
            consumer = PushConsumer("billing", broker.namesrv, consume_from="first")

            @consumer.on("orders")
            async def again(message: ReceivedMessage) -> None:
                await producer.send(Message("orders", message.body))

            async with consumer:
                await producer.send(Message("orders", b"round and round"))
                with pytest.raises(ClientError, match="2000 things have happened while the clock stands still"):
                    await broker.settle()
                consumer.pause()
                consumer.unsubscribe("orders")

    run(scenario)


def test_a_test_that_waits_for_a_clock_that_nobody_turns_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(driver, "STILL_S", 0.01)

    async def scenario(broker: Broker) -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.create_topic("quotes")
            asking = asyncio.create_task(producer.request(Message("quotes", b"bread")))
            async with asyncio.timeout(60):
                while not caplog.messages:
                    await asyncio.sleep(0.01)
            assert not asking.done()
            asking.cancel()

    run(scenario)
    (said,) = caplog.messages
    assert "the clock of this test broker stands still" in said
    assert "await broker.clock.advance(...)" in said


def test_two_tasks_may_turn_it_and_each_gets_the_time_it_asked_for() -> None:
    async def scenario(broker: Broker) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait(broker, 10))
            tasks.create_task(wait(broker, 25))
        assert broker.clock.monotonic() == 25

    async def wait(broker: Broker, seconds: int) -> None:
        await broker.clock.advance(seconds=seconds)
        assert broker.clock.monotonic() >= seconds

    run(scenario)


def test_a_handler_may_turn_it() -> None:
    async def scenario(broker: Broker) -> None:
        seen: list[float] = []
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first")

        @consumer.on("orders")
        async def wait(message: ReceivedMessage) -> None:
            await broker.clock.advance(minutes=1)
            seen.append(broker.clock.monotonic())

        async with Producer("shop", broker.namesrv) as producer, consumer:
            await producer.send(Message("orders", b"order 17"))
            await broker.clock.until(lambda: seen)
        assert seen[0] >= 60

    run(scenario, patience=0.05)
