"""Plain sends that gather are columns; whoever awaits one cannot tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roquet.client import Producer
from roquet.client.core.batches import ADDED_SIZE, RECORD_SIZE
from roquet.client.core.failures import BadAnswer, SendTimedOut, ServerRejected
from roquet.client.core.gathering import MANY
from roquet.client.core.plain_sends import Told, plain_batch
from roquet.client.core.producer import ProducerCore
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.sending import Sending
from roquet.client.core.timers import Timer
from roquet.errors import InvalidMessage, NotStarted, RoquetError, SendFailed
from roquet.message import Message, Property
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_properties
from tests.client.fakes import FakeCluster, Results
from tests.client.tcp import FakeServer, run, until
from tests.client.test_gathering import BATCH, LINGER_MS, SEND, bodies, in_batches, prepared, receipts, refuse, send_all


class Future:
    """As asyncio's: done when it was told, or cancelled."""

    def __init__(self) -> None:
        self.told: list[SendReceipt | RoquetError] = []
        self.cancelled = False

    def done(self) -> bool:
        return self.cancelled or bool(self.told)

    def set_result(self, result: SendReceipt | RoquetError, /) -> None:
        assert not self.done(), "asyncio's would raise InvalidStateError"
        self.told.append(result)

    set_exception = set_result

    @property
    def receipt(self) -> SendReceipt:
        [receipt] = self.told
        assert isinstance(receipt, SendReceipt), receipt
        return receipt


def known(**settings: Any) -> tuple[FakeCluster, ProducerCore]:
    """A producer that has sent to its topic before."""
    cluster, producer, _ = prepared(1, **settings)
    send_all(producer, "t", 1, Results(), first=1_000)
    cluster.advance(20)
    cluster.asked.clear()
    return cluster, producer


def gather(producer: ProducerCore, count: int, first: int = 0) -> list[Future]:
    futures = [Future() for _ in range(count)]
    for number, future in enumerate(futures):
        assert producer.plain["t"].add(Message("t", b"%d" % (first + number)), future)
    return futures


def stored(cluster: FakeCluster) -> list[bytes]:
    return [record.body for records in cluster.log.values() for record in records if record.body != b"1000"]


def test_each_awaits_the_receipt_of_its_own_message_with_its_properties() -> None:
    cluster, producer = known()
    futures = gather(producer, 3)
    tagged = Future()
    assert producer.plain["t"].add(Message("t", b"tagged", tags="é", keys=["k"], properties={"a": "b"}), tagged)
    cluster.advance(20)
    assert in_batches(cluster) == [4]
    for number, future in enumerate(futures):
        record = cluster.log[future.receipt.queue][future.receipt.queue_offset]
        assert record.body == b"%d" % number
        assert decode_properties(record.properties) == {"UNIQ_KEY": future.receipt.message_id}
        assert int(future.receipt.offset_message_id[-16:], 16) == record.physical_offset
    record = cluster.log[tagged.receipt.queue][tagged.receipt.queue_offset]
    assert decode_properties(record.properties) == {"TAGS": "é", "KEYS": "k", "a": "b", "UNIQ_KEY": tagged.receipt.message_id}


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", properties={Property.UNIQUE_KEY: "mine"}),
        Message("t", b"x", delay_level=1),
        Message("t", b"x", flag=1),
        Message("t", b"x" * 4_096),
        Message("t", b""),
        Message("t", b"x", properties={"large": "x" * 20_000}),
    ],
    ids=["own id", "delay", "flag", "to compress", "empty", "many properties"],
)
def test_what_is_not_plain_takes_the_general_way(message: Message) -> None:
    _, producer = known()
    future = Future()
    assert not producer.plain["t"].add(message, future)
    assert not future.told


def test_a_body_that_became_something_else_is_refused_as_without_linger() -> None:
    _, producer = known()
    message = Message("t", b"x")
    message.body = "text"  # type: ignore[assignment]
    with pytest.raises(InvalidMessage, match="body is a str"):
        producer.send(message, Results().append)


def test_a_message_that_is_changed_after_its_send_goes_as_it_was() -> None:
    cluster, producer = known()
    message, future = Message("t", b"before", tags="before"), Future()
    assert producer.plain["t"].add(message, future)
    message.body, message.tags = b"after", "after"
    cluster.advance(20)
    record = cluster.log[future.receipt.queue][future.receipt.queue_offset]
    assert (record.body, decode_properties(record.properties)["TAGS"]) == (b"before", "before")


def test_a_property_that_cannot_be_sent_is_refused_at_once_and_the_others_go() -> None:
    cluster, producer = known()
    futures = gather(producer, 2)
    with pytest.raises(InvalidMessage, match="0x01 or 0x02"):
        producer.plain["t"].add(Message("t", b"x", properties={"a": "\x01"}), Future())
    cluster.advance(20)
    assert [future.receipt.ok for future in futures] == [True, True]
    assert stored(cluster) == [b"0", b"1"]


def test_a_thousand_sends_of_one_turn_make_few_requests_that_grow() -> None:
    cluster, producer = known()
    futures = gather(producer, 1_000)
    cluster.advance(50)
    assert all(future.receipt.ok for future in futures)
    sizes = in_batches(cluster)
    assert sizes[:4] == [MANY, MANY, 2 * MANY, 3 * MANY]
    assert len(sizes) < 12
    assert sum(sizes) == 1_000


def test_no_request_of_plain_sends_is_larger_than_batch_bytes() -> None:
    cluster, producer = known(batch_bytes=1_000)
    futures = gather(producer, 20)
    cluster.advance(50)
    assert all(future.receipt.ok for future in futures)
    assert set(in_batches(cluster)) == {5}


def test_one_that_is_cancelled_before_its_request_goes_is_not_sent() -> None:
    cluster, producer = known()
    futures = gather(producer, 3)
    futures[1].cancelled = True
    producer.plain["t"].withdraw(futures[1])
    cluster.advance(20)
    assert stored(cluster) == [b"0", b"2"]
    assert [len(future.told) for future in futures] == [1, 0, 1]


def test_one_that_is_cancelled_while_its_request_is_under_way_is_not_told_and_not_sent_again() -> None:
    cluster, producer = known()
    cluster.refused = set(cluster.masters.values())
    futures = gather(producer, MANY)  # they go at once
    futures[1].cancelled = True
    producer.plain["t"].withdraw(futures[1])
    cluster.run()
    cluster.refused = set()
    cluster.advance(3_000)
    assert b"1" not in stored(cluster)
    assert len(stored(cluster)) == MANY - 1
    assert [len(future.told) for future in futures[:3]] == [1, 0, 1]


def test_one_that_is_cancelled_while_it_waits_for_a_broker_that_is_away_is_not_sent() -> None:
    cluster, producer = known()
    cluster.refused = set(cluster.masters.values())
    futures = gather(producer, 4)
    cluster.advance(300)
    futures[2].cancelled = True
    producer.plain["t"].withdraw(futures[2])
    cluster.refused = set()
    cluster.advance(3_000)
    assert sorted(stored(cluster)) == [b"0", b"1", b"3"]
    assert not producer.waiting
    assert not producer.plain["t"]._in_trouble


def test_a_batch_of_plain_sends_that_is_refused_for_one_fails_only_that_one() -> None:
    cluster, producer = known()
    refuse(cluster, b"bad")
    futures = gather(producer, 5)
    bad = Future()
    assert producer.plain["t"].add(Message("t", b"bad"), bad)
    futures += gather(producer, 5, first=5)
    cluster.advance(300)
    assert isinstance(bad.told[0], ServerRejected)
    assert [cluster.log[one.receipt.queue][one.receipt.queue_offset].body for one in futures] == [b"%d" % n for n in range(10)]


def test_of_a_refused_batch_that_others_have_left_the_last_one_goes_alone() -> None:
    """Who was cancelled may have been at fault."""
    cluster, producer = known()
    refuse(cluster, b"bad")
    [good], bad = gather(producer, 1), Future()
    assert producer.plain["t"].add(Message("t", b"bad"), bad)
    producer.plain["t"].go()
    bad.cancelled = True
    producer.plain["t"].withdraw(bad)
    cluster.advance(300)
    assert cluster.log[good.receipt.queue][good.receipt.queue_offset].body == b"0"
    assert producer.in_flight.room == producer.in_flight.limit


def test_a_refused_batch_that_nobody_waits_for_any_more_is_forgotten() -> None:
    cluster, producer = known()
    refuse(cluster, b"bad")
    bad = [Future(), Future()]
    for future in bad:
        assert producer.plain["t"].add(Message("t", b"bad"), future)
    producer.plain["t"].go()
    for future in bad:
        future.cancelled = True
    [after] = gather(producer, 1)
    cluster.advance(300)
    assert after.receipt.ok
    assert producer.in_flight.room == producer.in_flight.limit


def test_plain_sends_without_an_answer_may_be_stored_and_are_not_repeated() -> None:
    cluster, producer = known()
    cluster.silent = set(cluster.masters.values())
    futures = gather(producer, 3)
    cluster.advance(3_100)
    assert [type(future.told[0]) for future in futures] == [SendTimedOut] * 3
    assert in_batches(cluster) == [3]


def test_plain_sends_that_no_broker_takes_are_given_up_when_their_time_is_over() -> None:
    cluster, producer = known(delivery_timeout_ms=2_000)
    cluster.refused = set(cluster.masters.values())
    futures = gather(producer, 3)
    cluster.advance(1_900)
    assert not any(future.told for future in futures)
    cluster.advance(200)
    assert [type(future.told[0]) for future in futures] == [SendFailed] * 3


def test_a_confirmation_without_sense_is_told_to_each_with_an_error_of_its_own() -> None:
    cluster, producer = known()
    cluster.overrides[BATCH] = lambda _, command: command.reply(fields={"msgId": "x", "queueId": "many", "queueOffset": "0"})
    futures = gather(producer, 3)
    cluster.advance(20)
    assert [type(future.told[0]) for future in futures] == [BadAnswer] * 3
    assert len({id(future.told[0]) for future in futures}) == 3


def test_plain_sends_that_are_not_stored_as_safely_as_asked_go_to_another_broker() -> None:
    cluster, producer, _ = prepared(1, "a", "b", retry_when_not_ok=True)
    send_all(producer, "t", 1, Results(), first=1_000)
    cluster.advance(20)

    def unsafe(address: str, command: Command) -> Command | None:
        if address != cluster.masters["a"]:
            return None
        answer = cluster._stored(address, command)
        answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
        return answer

    cluster.overrides = {SEND: unsafe, BATCH: unsafe}
    for first in (0, 4):
        futures = gather(producer, 4, first)
        cluster.advance(200)
        assert [(future.receipt.ok, future.receipt.queue.broker_name) for future in futures] == [(True, "b")] * 4


def test_plain_sends_go_on_when_the_route_was_forgotten_and_when_the_master_is_away() -> None:
    cluster, producer = known()
    futures = gather(producer, 2)
    producer.client.routes.topics.clear()
    cluster.advance(50)
    assert [future.receipt.ok for future in futures] == [True, True]


def test_one_group_after_another_has_the_same_timer_and_each_lingers_as_long_as_it_may() -> None:
    cluster, producer = known()
    cluster.silent = set(cluster.masters.values())
    gather(producer, 1)
    cluster.advance(10)
    first = gather(producer, 1, first=1)
    cluster.advance(LINGER_MS - 20)
    gather(producer, MANY - 1, first=2)  # with the first one they are many, and go
    cluster.run()
    assert in_batches(cluster) == [1, MANY]
    cluster.advance(10)
    second = gather(producer, 2, first=100)
    assert len(lingering(producer)) == 1
    cluster.silent = set()
    cluster.advance(LINGER_MS - 10)
    assert in_batches(cluster) == [1, MANY]
    cluster.advance(20)
    assert in_batches(cluster) == [1, MANY, 2]
    assert [future.receipt.ok for future in second] == [True, True]
    assert not first[0].told
    assert not lingering(producer)


def lingering(producer: ProducerCore) -> list[Timer]:
    return [timer for timer in producer.client.timers.after(0) if timer.work == producer.plain["t"]._lingered]


def test_nothing_rings_any_more_for_a_producer_that_closed() -> None:
    cluster, producer = known()
    cluster.silent = set(cluster.masters.values())
    gather(producer, 1)
    cluster.advance(10)
    gather(producer, 1, first=1)
    [timer] = lingering(producer)
    producer.client.tasks.start(producer.close())
    cluster.run()
    assert timer.work is None
    assert in_batches(cluster) == [1, 1]


def test_a_producer_that_closed_takes_nothing_more_and_leaves_nothing_behind() -> None:
    cluster, producer = known()
    futures = gather(producer, 3)
    producer.client.tasks.start(producer.close())
    cluster.run()
    assert [future.receipt.ok for future in futures] == [True] * 3
    assert not producer.plain
    with pytest.raises(NotStarted):
        producer.send(Message("t", b"x"), Results().append)


@pytest.mark.parametrize("settings", [{"delivery_timeout_ms": 900}, {"send_timeout_ms": 100}], ids=["in all", "an attempt"])
def test_where_lingering_takes_a_good_part_of_the_time_nothing_is_plain(settings: dict[str, Any]) -> None:
    cluster, producer, _ = prepared(1, **settings)
    results = Results()
    for _ in range(3):
        assert isinstance(producer.send(Message("t", b"x"), results.append), Sending)
    cluster.advance(100)
    assert len(receipts(results)) == 3
    assert not producer.plain


def test_a_callback_is_told_as_a_future_is_and_may_be_withdrawn() -> None:
    cluster, producer = known()
    results = Results()
    sends = [producer.send(Message("t", b"%d" % number), results.append) for number in range(3)]
    assert [type(send) for send in sends] == [Told] * 3
    sends[0].withdraw()
    assert isinstance(results.only, SendFailed)
    cluster.advance(20)
    assert len(results) == 3
    assert stored(cluster) == [b"1", b"2"]
    assert [send.attempts for send in sends] == [None] * 3


def test_a_batch_that_programs_send_all_day_and_one_that_takes_a_closer_look_store_the_same() -> None:
    found = []
    for odd in ({}, {"flag": 1}):
        cluster, producer, [queue] = prepared(1)
        batch = [Message("t", b"%d" % number, tags="é" if number % 2 else "", keys=["k"]) for number in range(5)]
        batch[4].flag = odd.get("flag", 0)
        task = producer.client.tasks.start(producer.send_batch(batch))
        cluster.advance(20)
        made: list[SendReceipt] = task._result
        found.append(
            [
                (cluster.log[queue][one.queue_offset].body, decode_properties(cluster.log[queue][one.queue_offset].properties))
                for one in made
            ]
        )
        assert [properties.pop("UNIQ_KEY") for _, properties in found[-1]] == [one.message_id for one in made]
        assert bodies(cluster, queue) == [b"%d" % number for number in range(5)]
    assert found[0] == found[1]


def test_columns_of_a_batch_keep_the_places_of_its_messages_and_no_batch_is_larger_than_allowed() -> None:
    messages = [Message("t", b"a"), Message("t", b"bc", tags="é"), Message("t", b"d")]
    columns = [b"a", b"bc", b"d"], ["", "TAGS\x01é", ""]
    size = 3 * (RECORD_SIZE + ADDED_SIZE + len("t")) + len(b"abcd") + len("TAGS\x01é".encode())
    assert plain_batch("t", messages, 2, size) == columns
    assert plain_batch("t", messages, 2, size - 1) is None
    assert plain_batch("t", messages, 1, size) is None, "one body is too large"
    messages[2].body = b""
    assert plain_batch("t", messages, 2, size) is None, "one is empty"


# -- over a socket


def test_tasks_await_their_receipts_and_one_that_is_cancelled_is_not_sent() -> None:
    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address, linger_ms=20) as producer:
            await producer.send(Message("t", b"first"))
            await producer.send(Message("t", b"second"))
            found = await asyncio.gather(*(producer.send(Message("t", b"%d" % number)) for number in range(100)))
            assert [server.cluster.log[one.queue][one.queue_offset].body for one in found] == [b"%d" % number for number in range(100)]
            server.cluster.silent = {server.address}
            waits = asyncio.create_task(producer.send(Message("t", b"waits")))
            await until(lambda: b"waits" in server.cluster.asked[-1][1].body)
            never = asyncio.create_task(producer.send(Message("t", b"never")))
            await asyncio.sleep(0)
            never.cancel()
            await asyncio.wait([never])
            assert never.cancelled()
            server.cluster.silent = set()
            await producer.send(Message("t", b"last"))
            waits.cancel()
            with pytest.raises(InvalidMessage, match="expected is a Message"):
                await producer.send("text")  # type: ignore[arg-type]
        told = [record.body for queue in server.cluster.log.values() for record in queue]
        assert b"never" not in told
        assert told.count(b"last") == 1

    run(test)


def test_a_batch_is_stored_or_told_why_not_and_is_not_sent_once_nobody_waits_for_it() -> None:
    async def test(server: FakeServer) -> None:
        async with Producer("p", server.address, sends_in_flight_max=2, send_timeout_ms=500) as producer:
            await producer.send(Message("t", b"first"))
            for names in ([b"a", b"b", b"c"], [b"d", b"e"]):
                found = await producer.send_batch(Message("t", name) for name in names)
                assert [server.cluster.log[one.queue][one.queue_offset].body for one in found] == names
            server.cluster.silent = {server.address}
            waits = asyncio.create_task(producer.send_batch([Message("t", b"waits"), Message("t", b"too")]))
            await until(lambda: b"waits" in server.cluster.asked[-1][1].body)
            never = asyncio.create_task(producer.send_batch([Message("t", b"never"), Message("t", b"sent")]))
            await asyncio.sleep(0)
            never.cancel()
            await asyncio.wait([never])
            assert never.cancelled()
            waits.cancel()
            await asyncio.wait([waits])
            server.cluster.silent = set()  # when the time of `waits` is over there is room
            await producer.send_batch([Message("t", b"last"), Message("t", b"pair")])
            with pytest.raises(InvalidMessage, match="timeout_ms is -1"):
                await producer.send_batch([Message("t", b"a"), Message("t", b"b")], timeout_ms=-1)
            server.cluster.silent = {server.address}
            with pytest.raises(SendTimedOut, match="may be stored"):
                await producer.send_batch([Message("t", b"no"), Message("t", b"answer")], timeout_ms=50)
        with pytest.raises(NotStarted):
            await producer.send_batch([Message("t", b"a"), Message("t", b"b")])
        told = [record.body for queue in server.cluster.log.values() for record in queue]
        assert b"never" not in told
        assert told.count(b"last") == 1

    run(test)
