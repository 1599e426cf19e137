"""How many messages are under way is bounded: the next ones wait, in their order, and whatever becomes of a send gives its place free."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from roquet.client import Message, Producer, SendReceipt, TooManySends, sync
from roquet.client.core.plain_sends import PlainSends
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.errors import CallTimeout, ClientError, ConnectFailed, NotStarted, RoquetError, SendFailed
from roquet.message import MessageQueue
from roquet.wire.batch import split_batch
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from tests.client.fakes import FakeCluster, Results
from tests.client.tcp import Connection, FakeServer, run, until
from tests.client.test_gathering import bodies, in_batches, prepared, send_all
from tests.client.test_plain_sends import Future

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def plain(limit: int, queues: int = 1, **settings: Any) -> tuple[FakeCluster, ProducerCore, list[MessageQueue]]:
    return prepared(queues, linger_ms=None, sends_in_flight_max=limit, **settings)


# -- the core


def test_at_the_limit_sends_wait_for_one_to_be_answered_and_go_in_their_order() -> None:
    cluster, producer, [queue] = plain(3)
    results = Results()
    send_all(producer, "t", 8, results)
    assert len(cluster._out) == 3
    assert producer.in_flight.room == 0
    cluster.run()
    assert bodies(cluster, queue) == [b"%d" % number for number in range(8)]
    assert len(results) == 8
    assert producer.in_flight.room == 3


def test_a_keyed_send_does_not_overtake_one_that_waits() -> None:
    cluster, producer, _ = plain(1, queues=4)
    for number in range(20):
        producer.send(Message("t", b"%d" % number), Results().append, key="one")
    cluster.run()
    [used] = [queue for queue, records in cluster.log.items() if records]
    assert bodies(cluster, used) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("linger_ms", [None, 50])
def test_what_waits_for_room_runs_out_of_time_and_says_why(linger_ms: int | None) -> None:
    cluster, producer, _ = prepared(1, linger_ms=linger_ms, sends_in_flight_max=2, send_timeout_ms=10_000)
    cluster.silent.add("a:10911")
    results = Results()
    send_all(producer, "t", 2, results)
    producer.send(Message("t", b"late"), results.append, timeout_ms=1_000)
    cluster.advance(1_100)
    [failure] = results
    assert isinstance(failure, SendFailed)
    assert "not confirmed after 0 attempts in 1000 ms (2 messages were under way, which is sends_in_flight_max)" in str(failure)
    cluster.advance(10_000)
    assert len(results) == 3
    assert producer.in_flight.room == 2


def test_one_that_waits_for_room_can_be_withdrawn() -> None:
    cluster, producer, [queue] = plain(1)
    results = Results()
    send_all(producer, "t", 1, results)
    waiting = producer.send(Message("t", b"not any more"), results.append)
    producer.send(Message("t", b"after it"), results.append)
    waiting.withdraw()
    cluster.run()
    assert bodies(cluster, queue) == [b"0", b"after it"]
    assert isinstance(results[0], SendFailed)
    assert "it was cancelled" in str(results[0])


def test_closing_ends_what_waits_for_room() -> None:
    cluster, producer, _ = plain(1)
    cluster.silent.add("a:10911")
    results = Results()
    send_all(producer, "t", 2, results)
    told: list[object] = []
    producer.client.tasks.start(producer.until_room(), told.append)
    producer.client.tasks.start(producer.close())
    cluster.run()
    [failure] = results
    assert "the producer was closed" in str(failure)
    assert isinstance(told[0], NotStarted)


def test_closing_lets_nothing_in_that_waits_for_room_behind_one_that_waits_for_its_broker() -> None:
    cluster, producer, [queue] = plain(1)
    cluster.refused = {"a:10911"}
    results = Results()
    send_all(producer, "t", 1, results)
    cluster.run()
    send_all(producer, "t", 2, results, first=1)
    assert len(producer.waiting) == 3
    cluster.refused = set()
    producer.client.tasks.start(producer.close())
    cluster.run()
    assert [type(one) for one in results] == [SendFailed] * 3
    assert bodies(cluster, queue) == []
    assert (producer.stats.failed, producer.in_flight.room) == (3, 1)


def test_sends_that_gather_count_each() -> None:
    cluster, producer, _ = prepared(1, linger_ms=50, sends_in_flight_max=10)
    results = Results()
    send_all(producer, "t", 1, results)
    cluster.advance(10)
    cluster.asked.clear()
    send_all(producer, "t", 25, results)
    assert producer.in_flight.room == 0
    cluster.advance(10)
    assert max(in_batches(cluster)) == 10
    cluster.advance(500)
    assert len(results) == 26
    assert producer.in_flight.room == 10


def test_a_batch_goes_whole_and_counts_what_is_in_it() -> None:
    cluster, producer, _ = plain(10)
    results = Results()
    producer.client.tasks.start(producer.send_batch([Message("t", b"%d" % number) for number in range(30)]), results.append)
    assert producer.in_flight.room == -20
    send_all(producer, "t", 1, results)
    assert len(cluster._out) == 1, "the other one waits"
    cluster.run()
    assert len(results) == 2
    assert producer.in_flight.room == 10


def test_a_send_without_a_wait_is_refused_at_the_limit_and_there_is_something_to_wait_for() -> None:
    cluster, producer, _ = plain(2)
    results, told = Results(), Results()
    for _ in range(2):
        producer.send_async(Message("t", b"x"), results.append)
    with pytest.raises(TooManySends, match=r"while 2 messages are under way, which is sends_in_flight_max; await producer.room\(\)"):
        producer.send_async(Message("t", b"x"), results.append)
    producer.client.tasks.start(producer.until_room(), told.append)
    assert not told
    cluster.run()
    assert told == [None]
    producer.send_async(Message("t", b"x"), results.append)
    cluster.run()
    assert len(results) == 3


def test_a_send_without_a_wait_has_retries_of_its_own() -> None:
    for linger_ms in (None, 50):
        cluster, producer, _ = prepared(1, *"abcdef", linger_ms=linger_ms, retries=1, async_retries=3)
        send_all(producer, "t", 1, Results())
        cluster.advance(100)
        cluster.overrides[SENDS[0]] = lambda _, command: command.reply(ResponseCode.SYSTEM_ERROR, "no")
        for send, attempts in ((producer.send, 2), (producer.send_async, 4)):
            results = Results()
            cluster.asked.clear()
            send(Message("t", b"x"), results.append)
            cluster.advance(3_000)
            assert len(results) == 1
            assert len(in_batches(cluster)) == attempts, (linger_ms, send)


def test_who_sends_when_one_has_failed_does_not_overtake_those_that_wait() -> None:
    cluster, producer, [queue] = plain(1)

    def fails(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
        raise LookupError

    def next_one(result: object) -> None:
        send_all(producer, "t", 1, Results(), first=2, key="one")

    send_all(producer, "t", 1, Results(), first=0)
    producer.send(Message("t", b"never"), next_one, selector=fails)
    send_all(producer, "t", 1, Results(), first=1, key="one")
    cluster.run()
    assert bodies(cluster, queue) == [b"0", b"1", b"2"]


def cancel(columns: PlainSends, future: Future) -> None:
    """As asyncio does to a task that awaits its send."""
    if not future.done():
        future.cancelled = True
        columns.withdraw(future)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_becomes_of_sends_each_is_told_once_and_all_room_is_free_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    linger_ms, limit = chance.choice((None, 1, 50)), chance.choice((1, 5, 40))
    cluster, producer, _ = prepared(
        3, "a", "b", linger_ms=linger_ms, sends_in_flight_max=limit, retry_when_not_ok=chance.random() < 0.5,
        delivery_timeout_ms=4_000, send_timeout_ms=1_000,
    )  # fmt: skip

    def odd(address: str, command: Command) -> Command | RoquetError | None:
        kind = chance.randrange(12)
        place = {"msgId": "7F00000100002A9F0000000000000000", "queueId": command.fields["e"], "queueOffset": "0"}
        if kind == 0:
            return command.reply(chance.choice((ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_BUSY)), "no")
        if kind == 1:
            return ConnectFailed("gone")
        if kind == 2:
            return CallTimeout("no answer")
        if kind == 3:
            return command.reply(chance.choice((ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)), "hm", place)
        if kind == 4:
            return command.reply(chance.choice((ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)), None, {"msgId": "nonsense"})
        return None

    for code in SENDS:
        cluster.overrides[code] = odd
    told: list[Results] = []
    futures: list[Future] = []
    for number in range(300):
        results = Results()
        told.append(results)
        how: dict[str, Any] = chance.choice(({}, {}, {"key": number % 3}, {"timeout_ms": 700}))
        kind = chance.randrange(11)
        columns = producer.plain.get("t")
        future = Future()
        if kind == 2 and columns is not None and columns.add(Message("t", b"%d" % number), future):
            futures.append(future)
            told.pop()
            if chance.random() < 0.5:
                producer.client.after(chance.randrange(30), partial(cancel, columns, future))
        elif kind == 0:
            batch = [Message("t", b"%d" % number)] * chance.randrange(1, 9)
            producer.client.tasks.start(producer.send_batch(batch), results.append)
        else:
            send = producer.send(Message("t", b"%d" % number, tags=chance.choice(("", "x"))), results.append, **how)
            if kind == 1:
                if chance.random() < 0.5:
                    send.withdraw()
                else:
                    producer.client.after(chance.randrange(300), send.withdraw)
        if chance.random() < 0.2:
            cluster.advance(chance.choice((10, 10, 200)))
    cluster.advance(30_000, 100)
    assert [len(results) for results in told] == [1] * len(told)
    assert all(future.done() for future in futures)
    assert producer.in_flight.room == limit
    assert not producer.waiting


def test_a_limit_that_cannot_be_is_refused() -> None:
    with pytest.raises(ClientError, match="sends_in_flight_max=0; allowed are 1 to 10000000"):
        ProducerSettings(sends_in_flight_max=0)


# -- through the front door


class Slow:
    """A server that keeps sends to itself until it is told to answer."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.kept: list[tuple[Connection, Command]] = []
        self.answers = False
        self._answer = server.answer
        server.answer = self.take  # type: ignore[method-assign]

    def take(self, connection: Connection, commands: list[Command]) -> None:
        sends = [] if self.answers else [command for command in commands if command.code in SENDS]
        self.kept.extend((connection, command) for command in sends)
        self._answer(connection, [command for command in commands if command not in sends])

    def let_go(self) -> None:
        self.answers = True
        kept, self.kept = self.kept, []
        for connection, command in kept:
            self._answer(connection, [command])


@pytest.mark.parametrize("linger_ms", [None, 1])
def test_a_producer_whose_broker_is_slow_waits(linger_ms: int | None) -> None:
    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address, linger_ms=linger_ms, sends_in_flight_max=20, send_timeout_ms=60_000) as producer:
            await producer.send(Message("t", b"first"))
            slow = Slow(server)
            sends = [asyncio.ensure_future(producer.send(Message("t", b"%d" % number))) for number in range(100)]
            await until(lambda: sum(count_of(command) for _, command in slow.kept) == 20)
            heard: list[SendReceipt | RoquetError] = []
            with pytest.raises(TooManySends):
                producer.send_async(Message("t", b"x"), heard.append)
            sends[99].cancel()
            room = asyncio.ensure_future(producer.room())
            await asyncio.sleep(0)
            assert not room.done()
            assert sum(count_of(command) for _, command in slow.kept) == 20
            slow.let_go()
            await room
            results = await asyncio.gather(*sends, return_exceptions=True)
            assert [isinstance(result, SendReceipt) for result in results] == [True] * 99 + [False]
            stored = sorted(record.body for records in server.cluster.log.values() for record in records)
            assert stored == sorted([b"first", *(b"%d" % number for number in range(99))])
            producer.send_async(Message("t", b"x"), heard.append)
            await until(lambda: bool(heard))

    run(test)


def count_of(command: Command) -> int:
    return len(split_batch(command.body)) if command.code == SENDS[1] else 1


def test_in_the_blocking_face_a_send_without_a_wait_for_its_answer_waits_for_room() -> None:
    async def test(server: FakeServer) -> None:
        heard: list[object] = []
        begun: list[int] = []

        def program() -> None:
            with sync.Producer("p", server.address, sends_in_flight_max=3, send_timeout_ms=60_000) as producer:
                for number in range(6):
                    producer.send_async(Message("t", b"%d" % number), heard.append)
                    begun.append(number)
                ended.wait()

        ended = threading.Event()
        slow = Slow(server)
        thread = asyncio.ensure_future(asyncio.to_thread(program))
        await until(lambda: len(slow.kept) == 3 and len(begun) == 3)
        slow.let_go()
        await until(lambda: len(heard) == 6)
        ended.set()
        await thread
        assert begun == list(range(6))
        assert all(isinstance(one, SendReceipt) for one in heard)

    run(test)
