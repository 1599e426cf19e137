"""The asyncio classes and the blocking ones, over a real socket."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from roquet.client import (
    RETRY_LATER,
    GroupTaken,
    Message,
    Outcome,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    ReceivedMessage,
    SendReceipt,
    shared,
    sync,
)
from roquet.errors import ClientError, ConnectFailed, NotStarted, RoquetError
from tests.client.tcp import FakeServer, fake_server, run, until


@pytest.mark.parametrize("linger_ms", [None, 5])
def test_a_producer_sends_in_its_own_loop_whichever_thread_that_runs_in_and_in_no_other(linger_ms: int | None) -> None:
    async def start() -> Producer:
        server = await stack.enter_async_context(fake_server())
        server.cluster.create_topic("t", 2)
        producer = await Producer("p", server.address, linger_ms=linger_ms).start()
        stack.push_async_callback(producer.close)
        return producer

    def sent() -> SendReceipt:
        return loop.run_until_complete(producer.send(Message("t", b"x")))

    stack = AsyncExitStack()
    with closing(asyncio.new_event_loop()) as loop:
        producer = loop.run_until_complete(start())
        assert sent().ok
        with pytest.raises(NotStarted, match="in another event loop and is used in this one"):
            asyncio.run(producer.send(Message("t", b"x")))
        with pytest.raises(RuntimeError, match="no running event loop"):
            producer.send(Message("t", b"x")).send(None)
        with ThreadPoolExecutor() as threads:
            assert threads.submit(sent).result().ok
        loop.run_until_complete(stack.aclose())


def test_sending_in_every_way() -> None:
    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address) as producer:
            receipt = await producer.send(Message("t", b"1"))
            assert isinstance(receipt, SendReceipt)
            queue = (await producer.fetch_queues("t"))[1]
            assert (await producer.send(Message("t", b"2"), queue=queue)).queue == queue
            assert (await producer.send(Message("t", b"3"), selector=lambda queues, *_: queues[0])).queue.queue_id == 0
            heard: list[SendReceipt | RoquetError] = []
            producer.send_async(Message("t", b"4"), heard.append)
            await until(lambda: bool(heard))
            assert isinstance(heard[0], SendReceipt)
            await producer.send_oneway(Message("t", b"5"))
            assert len(await producer.send_batch([Message("t", b"6"), Message("t", b"7")])) == 2
            await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(100)))
            bodies = [record.body for queue in server.cluster.log.values() for record in queue]
            assert sorted(bodies)[:7] == [b"%d" % number for number in range(1, 8)]
            assert len(bodies) == 107

    run(test)


def test_reading_by_hand() -> None:
    async def test(server: FakeServer) -> None:
        async with PullConsumer("g", server.address) as consumer:
            queue, other = await consumer.fetch_queues("t")
            for tag in "ab":
                server.cluster.append(queue, tag.encode(), f"TAGS\x01{tag}")
            result = await consumer.pull(queue, 0)
            assert (result.status, result.next_offset, [message.body for message in result.messages]) == (PullStatus.FOUND, 2, [b"a", b"b"])
            assert [message.tags for message in (await consumer.pull(queue, 0, tags="b")).messages] == ["b"]
            assert (await consumer.pull(other, 0)).status is PullStatus.NO_NEW_MESSAGE
            assert (await consumer.pull(queue, 50)).status is PullStatus.OFFSET_ILLEGAL
            waiting = asyncio.ensure_future(consumer.pull_blocking(other, 0))
            await until(lambda: len(server.cluster.requests(11)) == 5)
            server.cluster.append(other, b"late")
            server.cluster.run()
            assert (await waiting).messages[0].body == b"late"
            assert await consumer.fetch_offset(queue) == -1
            await consumer.commit(queue, 2)
            assert (await consumer.fetch_offset(queue), await consumer.min_offset(queue), await consumer.max_offset(queue)) == (2, 0, 2)
            assert await consumer.create_topic("made", 3) == ["a"]
            assert len(await consumer.fetch_queues("made")) == 3

    run(test)


def test_functions_of_both_kinds_consume_and_failures_are_sent_back() -> None:
    async def test(server: FakeServer) -> None:
        server.cluster.overrides[36] = lambda _, command: command.reply()
        server.cluster.create_topic("plain", 1)
        seen: list[tuple[bytes, bool]] = []
        main = threading.get_ident()
        consumer = PushConsumer("g", server.address, consume_from="first")

        @consumer.on("t", "*")
        async def async_one(message: ReceivedMessage) -> Outcome | bool | None:
            seen.append((message.body, threading.get_ident() == main))
            if message.body == b"raise":
                raise ValueError("no")
            answers: dict[bytes, Outcome | bool] = {b"later": RETRY_LATER, b"false": False}
            return answers.get(message.body)

        @consumer.on("plain")
        def plain_one(message: ReceivedMessage) -> None:
            seen.append((message.body, threading.get_ident() == main))

        async with consumer, Producer("p", server.address) as producer:
            for body in (b"fine", b"raise", b"later", b"false"):
                await producer.send(Message("t", body))
            await producer.send(Message("plain", b"thread"))
            await until(lambda: len(seen) == 5 and len(server.cluster.requests(36)) == 3)
        assert dict(seen) == {b"fine": True, b"raise": True, b"later": True, b"false": True, b"thread": False}
        assert sum(server.cluster.offsets[key] for key in server.cluster.offsets if key[1].topic == "t") == 4

    run(test)


def test_a_batch_size_gives_lists() -> None:
    async def test(server: FakeServer) -> None:
        sizes: list[int] = []

        async def listener(messages: list[ReceivedMessage]) -> None:
            sizes.append(len(messages))

        queue = server.cluster.create_topic("one", 1)[0]
        for _ in range(5):
            server.cluster.append(queue, b"x")
        consumer = PushConsumer("g", server.address, consume_from="first", batch_size=4, listener=listener)
        consumer.subscribe("one")
        async with consumer:
            await until(lambda: sum(sizes) == 5)
        assert sizes == [4, 1]

    run(test)


def test_all_members_of_a_process_share_one_connection_and_the_last_one_closes_it() -> None:
    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address) as first, Producer("q", server.address) as second:
            await asyncio.gather(first.send(Message("t", b"x")), second.send(Message("t", b"x")))
            assert first.client_id == second.client_id
            assert len(server.connections) == 1
            await first.close()
            await second.send(Message("t", b"x"))
        await until(lambda: not server.connections)

    run(test)


def test_a_second_member_of_a_group_gets_a_client_id_of_its_own_unless_it_was_named() -> None:
    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address) as first, Producer("p", server.address) as second:
            assert second.client_id == first.client_id + "#2"
        async with Producer("p", server.address, instance_name="me") as named:
            assert named.client_id.endswith("@me")
            with pytest.raises(GroupTaken):
                await Producer("p", server.address, instance_name="me").start()
        async with Producer("p", server.address, instance_name="me", unit_name="u") as named:
            assert named.client_id.endswith("@me@u")

    run(test)


def test_broadcast_offsets_survive_in_a_file(tmp_path: Path) -> None:
    async def test(server: FakeServer) -> None:
        queue = server.cluster.create_topic("one", 1)[0]
        seen: list[bytes] = []
        for number in range(3):
            server.cluster.append(queue, b"%d" % number)
            consumer = PushConsumer("g", server.address, broadcasting=True, consume_from="first", offsets_directory=tmp_path)
            consumer.subscribe("one", "*", lambda message: seen.append(message.body))
            async with consumer:
                await until(lambda wanted=number + 1: len(seen) == wanted)  # type: ignore[misc] # a lambda with a default
        assert seen == [b"0", b"1", b"2"]
        [file] = tmp_path.glob("127.0.0.1@DEFAULT/g/offsets.json")
        assert b'"topic":"one"}:3' in file.read_bytes()
        assert file.with_name("offsets.json.bak").exists()

    run(test)


def test_a_cancelled_send_leaves_nothing_behind() -> None:
    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address) as producer:
            await producer.send(Message("t", b"x"))
            server.cluster.silent = {server.address}
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await producer.send(Message("t", b"x"))
            server.cluster.silent = set()
            await producer.send(Message("t", b"x"))

    run(test)


def test_what_is_wrong_is_said_in_words() -> None:
    async def test(server: FakeServer) -> None:
        with pytest.raises(NotStarted, match="async with"):
            await Producer("p", server.address).send(Message("t", b"x"))
        with pytest.raises(ClientError, match="host:port"):
            Producer("p", "no port:here")
        with pytest.raises(ClientError, match="no name server"):
            Producer("p", "")
        with pytest.raises(ClientError, match="known are zlib"):
            Producer("p", compression="rar")  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="first, last, timestamp"):
            PushConsumer("g", consume_from="middle")  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="AVG_BY_CIRCLE"):
            PushConsumer("g", strategy="RANDOM")  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="no function"):
            PushConsumer("g").subscribe("t")
        async with Producer("p", "127.0.0.1:1", start_timeout_ms=0) as producer:
            with pytest.raises(ConnectFailed, match="no name server answered"):
                await producer.send(Message("t", b"x"), timeout_ms=200)

    run(test)


def test_the_blocking_face_does_the_same() -> None:
    """The server runs in a loop of its own thread, as a program without asyncio would find it."""
    ready = threading.Event()
    over = threading.Event()
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
    assert ready.wait(10)
    address = found[0].address
    try:
        seen: list[bytes] = []
        consumer = sync.PushConsumer("g", address, consume_from="first")

        @consumer.on("t")
        def listener(message: ReceivedMessage) -> None:
            seen.append(message.body)

        with sync.Producer("p", address) as producer, consumer:
            assert producer.send(Message("t", b"1")).queue_offset == 0
            assert [one.queue_offset for one in producer.send_batch([Message("t", b"2"), Message("t", b"3")])] == [1, 2]
            deadline = time.monotonic() + 600
            while len(seen) < 3 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert sorted(seen) == [b"1", b"2", b"3"]
            assert producer.group == "p"
            with pytest.raises(AttributeError):
                producer._no_such_thing  # noqa: B018 (the access is the test)
        with sync.PullConsumer("h", address) as reader:
            [queue] = reader.fetch_queues("t")
            assert len(reader.pull(queue, 0).messages) == 3
        with pytest.raises(NotStarted):
            producer.send(Message("t", b"late"))
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("call", ["send", "send_batch"])
def test_a_send_that_is_cancelled_while_it_waits_is_forgotten(call: str) -> None:
    """So that wait_for() and a second try of the user's make no duplicate."""

    async def scenario() -> None:
        async with Producer("p", "127.0.0.1:1", start_timeout_ms=0) as producer:
            message = Message("t", b"x")
            sending = producer.send(message, key="k") if call == "send" else producer.send_batch([message, message])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sending, 0.2)
            assert producer._core is not None
            assert not producer._core.waiting

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_two_tasks_that_start_one_member_start_it_once(kind: str) -> None:
    async def test(server: FakeServer) -> None:
        consumer = PushConsumer("c", server.address)
        consumer.subscribe("t", function=ignored)
        member = Producer("p", server.address) if kind == "producer" else consumer
        first, second = await asyncio.gather(member.start(), member.start())
        assert first is second is member
        await member.close()
        assert not shared._clients_of(asyncio.get_running_loop()), "nothing is left that works on unseen"

    run(test)


async def ignored(message: ReceivedMessage) -> None: ...


def test_closed_returns_after_a_start_that_failed() -> None:
    async def test(server: FakeServer) -> None:
        first, second = Producer("p", server.address, instance_name="one"), Producer("p", server.address, instance_name="one")
        async with first:
            with pytest.raises(GroupTaken):
                await second.start()
            await asyncio.wait_for(second.closed(), 60)

    run(test)


def test_a_start_that_is_cancelled_leaves_nothing_that_consumes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: FakeServer) -> None:
        consumer = PushConsumer("c", server.address)
        consumer.subscribe("t", function=ignored)
        settling = asyncio.Event()

        async def settle(_: object) -> None:
            settling.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(consumer, "_settle", settle)  # queues that do not come
        starting = asyncio.create_task(consumer.start())
        await settling.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not shared._clients_of(asyncio.get_running_loop())

    run(test)


def test_a_member_whose_loop_has_ended_can_be_closed_and_started_in_another() -> None:
    async def test(server: FakeServer) -> None:
        producer = Producer("p", server.address)

        def in_loops_of_its_own() -> SendReceipt:
            asyncio.run(producer.start())
            asyncio.run(producer.close())
            asyncio.run(producer.start())

            async def whole() -> SendReceipt:
                async with producer:
                    return await producer.send(Message("t", b"x"))

            return asyncio.run(whole())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # asyncio's, for the sockets that were left in the loops that ended
            assert (await asyncio.to_thread(in_loops_of_its_own)).ok
            gc.collect()

    run(test)


def test_a_plain_function_that_raises_stop_iteration_fails_as_with_any_other_exception(caplog: pytest.LogCaptureFixture) -> None:
    """No future takes a StopIteration, so the call never ended."""

    async def test(server: FakeServer) -> None:
        consumer = PushConsumer("c", server.address, consume_from="first")

        @consumer.on("t")
        def handle(message: ReceivedMessage) -> None:
            next(iter(()))

        async with consumer, Producer("p", server.address) as producer:
            await producer.send(Message("t", b"x"))
            await until(lambda: bool(server.cluster.requests(36)))

    run(test)
    assert "StopIteration" in caplog.text


def test_a_cancelled_error_of_the_functions_own_is_a_failure_like_others(caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: FakeServer) -> None:
        consumer = PushConsumer("c", server.address, consume_from="first")

        @consumer.on("t")
        async def handle(message: ReceivedMessage) -> None:
            raise asyncio.CancelledError

        async with consumer, Producer("p", server.address) as producer:
            await producer.send(Message("t", b"x"))
            await until(lambda: bool(server.cluster.requests(36)))

    run(test)
    assert "handler handle failed with t " in caplog.text
