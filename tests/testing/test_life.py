"""The life of a test's broker: it is stopped, killed and ended, used from one loop after another and from none, and leaves no trace."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from roquet import Message, NotStarted, Producer, PushConsumer, ReceivedMessage, SendStatus
from roquet.client import sync
from roquet.client.place import PLACES
from roquet.errors import ClientError, ConnectFailed, RoquetError
from roquet.testing import Broker


def run(scenario: Callable[[Broker], Awaitable[None]]) -> None:
    async def over() -> None:
        async with Broker() as broker:
            await scenario(broker)

    asyncio.run(over())


async def consumed(broker: Broker, group: str = "billing") -> list[bytes]:
    seen: list[bytes] = []
    consumer = PushConsumer(group, broker.namesrv, consume_from="first")
    consumer.subscribe("orders", function=lambda message: seen.append(message.body))
    async with consumer:
        await broker.settle()
    return seen


def test_what_was_acknowledged_outlives_a_kill() -> None:
    async def scenario(broker: Broker) -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("orders", b"order 17"))
            await producer.send(Message("orders", b"order 18", deliver_after=3_600))
            await broker.kill()
            assert not broker.running
            with pytest.raises(ClientError, match="the test broker is stopped"):
                broker.published.to("orders")
            await broker.clock.advance(hours=2)
            await broker.start()
            assert broker.running
            assert broker.published.bodies("orders") == [b"order 17", b"order 18"]
            assert sorted(await consumed(broker)) == [b"order 17", b"order 18"]
            assert await consumed(broker) == [], "progress was written when the consumer closed"
            await broker.kill()
            await broker.start()
            assert sorted(await consumed(broker)) in ([], [b"order 17", b"order 18"]), "progress is saved every five seconds"

    run(scenario)


def test_stop_and_start_are_idempotent_and_settings_changed_at_run_time_stay() -> None:
    async def scenario(broker: Broker) -> None:
        async with broker.admin() as admin:
            (master,) = await admin.masters()
            await admin.update_broker_config(master.address, {"maxMessageSize": "100"})
        await broker.stop()
        await broker.stop()
        await broker.start()
        await broker.start()
        async with Producer("shop", broker.namesrv) as producer:
            with pytest.raises(RoquetError, match="100"):
                await producer.send(Message("orders", bytes(200)))

    run(scenario)


def test_a_consumer_without_a_broker_waits_and_goes_on() -> None:
    async def scenario(broker: Broker) -> None:
        seen: list[bytes] = []
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first")
        consumer.subscribe("orders", function=lambda message: seen.append(message.body))
        async with Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("orders", b"before"))
            async with consumer:
                for _ in range(3):
                    await broker.stop()
                    await broker.clock.advance(hours=1)
                    await broker.start()
                    await broker.clock.until(lambda: consumer.queues)
                sending = producer.send(Message("orders", b"after"))
                assert (await broker.clock.until(sending)).status is SendStatus.SEND_OK
                await broker.clock.until(lambda: len(seen) == 2, minutes=2)
        assert seen == [b"before", b"after"]

    run(scenario)


def test_the_progress_of_a_broadcasting_consumer_stays_with_the_broker() -> None:
    async def scenario(broker: Broker) -> None:
        seen: list[bytes] = []

        async def listen() -> None:
            consumer = PushConsumer("chat", broker.namesrv, consume_from="first", broadcasting=True)
            consumer.subscribe("orders", function=lambda message: seen.append(message.body))
            async with consumer:
                await broker.settle()

        async with Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("orders", b"one"))
            await listen()
            await producer.send(Message("orders", b"two"))
            await listen()
        assert seen == [b"one", b"two"]

    run(scenario)


def test_one_broker_serves_one_loop_after_another_also_when_clients_were_left_open() -> None:
    left: list[Producer] = []

    async def first(namesrv: str) -> None:
        producer = await Producer("shop", namesrv).start()
        left.append(producer)
        await producer.send(Message("orders", b"order 17"))

    with Broker() as broker:
        asyncio.run(first(broker.namesrv))
        broker.clock.advance(hours=1)
        asyncio.run(first(broker.namesrv))
        assert broker.published.bodies("orders") == [b"order 17"] * 2
        assert len(asyncio.run(consumed(broker))) == 2
        assert len({producer._loop for producer in left}) == 2


def test_a_member_that_was_left_in_a_loop_that_ended_is_gone_for_its_group() -> None:
    async def leave(broker: Broker) -> None:
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first", instance_name="left behind")
        consumer.subscribe("orders", function=lambda message: None)
        await consumer.start()

    async def join(broker: Broker) -> int:
        consumer = PushConsumer("billing", broker.namesrv, consume_from="first")
        consumer.subscribe("orders", function=lambda message: None)
        async with consumer:
            await broker.settle()
            return sum(queue.topic == "orders" for queue in consumer.queues)

    async def create(broker: Broker) -> None:
        async with broker.producer() as producer:
            await producer.create_topic("orders", 4)

    with Broker() as broker:
        asyncio.run(create(broker))
        asyncio.run(leave(broker))
        assert asyncio.run(join(broker)) == 4


def test_clients_in_two_loops_at_once_are_an_error_that_says_so() -> None:
    async def other(broker: Broker) -> None:
        with pytest.raises(ClientError, match="has clients in another event loop"):
            async with Producer("shop", broker.namesrv):
                pass

    async def scenario(broker: Broker) -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await asyncio.to_thread(asyncio.run, other(broker))
            await producer.send(Message("orders", b"order 17"))

    run(scenario)


def test_blocking_code_is_tested_without_a_loop() -> None:
    seen: list[tuple[bytes, float]] = []
    with Broker() as broker:
        consumer = sync.PushConsumer("billing", broker.namesrv, consume_from="first")

        @consumer.on("orders")
        def bill(message: ReceivedMessage) -> bool:
            seen.append((message.body, broker.clock.monotonic()))
            return message.reconsume_times == 1

        with sync.Producer("shop", broker.namesrv) as producer, consumer:
            producer.send(Message("orders", b"order 17", deliver_after=7_200))
            broker.clock.advance(hours=2)
            assert seen == [(b"order 17", 7_200)]
            broker.clock.advance(seconds=10)
            assert seen[1:] == [(b"order 17", 7_210)]
            assert broker.published.bodies("orders") == [b"order 17"]
            broker.stop()
            broker.start()
            broker.clock.until(lambda: consumer.queues)


def test_an_async_test_may_turn_the_clock_of_blocking_code() -> None:
    async def scenario() -> None:
        with Broker() as broker, sync.Producer("shop", broker.namesrv) as producer:
            await asyncio.to_thread(producer.send, Message("orders", b"order 17", deliver_after=60))
            await broker.clock.advance(minutes=1)
            assert broker.published.bodies("orders") == [b"order 17"]

    asyncio.run(scenario())


def test_a_loop_that_is_driven_by_hand_is_driven() -> None:
    loop = asyncio.new_event_loop()
    try:
        with Broker() as broker:
            seen: list[bytes] = []
            consumer = PushConsumer("billing", broker.namesrv, consume_from="first")
            consumer.subscribe("orders", function=lambda message: seen.append(message.body))
            producer = Producer("shop", broker.namesrv)
            loop.run_until_complete(producer.start())
            loop.run_until_complete(producer.send(Message("orders", b"order 17", deliver_after=60)))
            loop.run_until_complete(consumer.start())
            broker.clock.advance(minutes=1)
            assert seen == [b"order 17"]
            loop.run_until_complete(consumer.close())
            loop.run_until_complete(producer.close())
    finally:
        loop.close()


def test_clients_that_are_closed_after_the_broker_has_ended_close() -> None:
    async def scenario() -> None:
        async with Broker() as broker:
            producer = await Producer("shop", broker.namesrv).start()
            consumer = PushConsumer("billing", broker.namesrv)
            consumer.subscribe("orders", function=lambda message: None)
            await consumer.start()
        assert broker.namesrv not in PLACES
        async with asyncio.timeout(60):
            await consumer.close()
            await producer.close()
            with pytest.raises(NotStarted):
                await producer.send(Message("orders", b"x"))
            with pytest.raises(ConnectFailed, match="is not started: no name server answered"):
                await Producer("shop", broker.namesrv, start_timeout_ms=100).start()
        with pytest.raises(ClientError, match="has ended; make another one"):
            await broker.start()

    asyncio.run(scenario())


def test_clients_in_a_loop_that_is_driven_by_hand_may_be_closed_after_the_broker_has_ended() -> None:
    loop = asyncio.new_event_loop()
    try:
        with Broker() as broker:
            producer = Producer("shop", broker.namesrv)
            loop.run_until_complete(producer.start())
        loop.run_until_complete(asyncio.wait_for(producer.close(), 60))
    finally:
        loop.close()


def test_two_brokers_know_nothing_of_each_other() -> None:
    async def scenario() -> None:
        async with Broker() as one, Broker() as two:
            async with Producer("shop", one.namesrv) as here, Producer("shop", two.namesrv) as there:
                await here.send(Message("orders", b"one"))
                await there.send(Message("orders", b"two"))
            await one.clock.advance(days=1)
            assert (one.clock.monotonic(), two.clock.monotonic()) == (86_400, 0)
            assert (one.published.bodies("orders"), two.published.bodies("orders")) == ([b"one"], [b"two"])

    asyncio.run(scenario())


def test_it_works_on_another_event_loop() -> None:
    async def scenario() -> None:
        seen: list[float] = []
        async with Broker() as broker:
            consumer = PushConsumer("billing", broker.namesrv, consume_from="first")

            @consumer.on("orders")
            async def fail(message: ReceivedMessage) -> bool:
                seen.append(broker.clock.monotonic())
                return message.reconsume_times == 2

            async with Producer("shop", broker.namesrv) as producer, consumer:
                await producer.send(Message("orders", b"order 17", deliver_after=60))
                await broker.clock.advance(minutes=2)
        assert seen == [60, 70, 100]

    uvloop.run(scenario())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aclEnable": "true"}, "aclEnable=true is nothing for a test broker"),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, "brokerRole=SLAVE is nothing for a test broker"),
        ({"enableDLegerCommitLog": "true"}, "enableDLegerCommitLog=true is nothing for a test broker"),
        ({"maxMesageSize": "1"}, "maxMesageSize"),
    ],
)
def test_settings_that_cannot_hold_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(RoquetError, match=words):
        Broker(settings=settings)


def test_a_start_takes_milliseconds() -> None:
    with Broker():
        pass  # what is loaded once is loaded
    began = time.process_time()
    for _ in range(10):
        with Broker():
            pass
    assert (time.process_time() - began) / 10 < 0.1, "some five milliseconds, on a machine with nothing else to do"


WATCHED = """
    import asyncio, os, sys, threading

    from roquet import Message, Producer, PushConsumer
    from roquet.testing import Broker

    happened = []

    def watch(event, arguments):
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            happened.append((event, arguments[0]))
        elif event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "os.mkdir", "subprocess.Popen"):
            happened.append((event, arguments))

    async def main():
        async with Broker() as broker:
            seen = []
            consumer = PushConsumer("billing", broker.namesrv, consume_from="first")
            broadcast = PushConsumer("chat", broker.namesrv, consume_from="first", broadcasting=True)

            async def keep(message):
                seen.append(message.body)

            consumer.subscribe("orders", function=keep)
            broadcast.subscribe("orders", function=keep)
            async with Producer("shop", broker.namesrv) as producer, consumer, broadcast, broker.admin() as admin:
                await producer.send(Message("orders", b"order 17", deliver_after=86400))
                await broker.clock.advance(days=1)
                await broker.stop()
                await broker.start()
                await admin.topic_names()
                assert seen == [b"order 17"] * 2, seen
            # Closed while it is asked to go on, and never awaited again: a task that is left behind would be told of.
            await producer.start()
        assert threading.active_count() == 1, threading.enumerate()

    sys.addaudithook(watch)
    asyncio.run(main())
    assert not happened, happened
    print("nothing")
"""


def test_it_opens_no_port_starts_no_thread_and_writes_no_file_and_leaves_no_task_behind() -> None:
    program = [sys.executable, "-W", "error", "-c", textwrap.dedent(WATCHED)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("nothing\n", 0), done.stderr
    assert "never" not in done.stderr
    assert "destroyed" not in done.stderr
