"""Sends that wait at the same time share requests (linger_ms), and nobody can tell from what becomes of each."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from roquet.client import Producer, sync
from roquet.client.core.failures import BadAnswer, SendTimedOut, ServerRejected
from roquet.client.core.gathering import MANY
from roquet.client.core.namespaces import Namespace
from roquet.client.core.producer import ProducerCore, ProducerSettings, Selector
from roquet.client.core.receipt import SendReceipt, SendStatus
from roquet.client.core.sending import Sending
from roquet.errors import ClientError, RoquetError, SendFailed
from roquet.message import Message, MessageQueue, Property
from roquet.wire.batch import split_batch
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_properties
from tests.client import test_producer, test_requests
from tests.client.fakes import FakeCluster, Results
from tests.client.tcp import FakeServer, run, until

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
LINGER_MS = 50


def gathering(cluster: FakeCluster, **settings: Any) -> ProducerCore:
    producer = ProducerCore(cluster.client(), "g", ProducerSettings(**{"linger_ms": LINGER_MS, **settings}))
    producer.start()
    return producer


def send_all(producer: ProducerCore, topic: str, count: int, results: Results, first: int = 0, **how: Any) -> None:
    for number in range(first, first + count):
        producer.send(Message(topic, b"%d" % number), results.append, **how)


def prepared(queues: int = 4, *brokers: str, **settings: Any) -> tuple[FakeCluster, ProducerCore, list[MessageQueue]]:
    """A cluster, and a producer that knows where the topic is."""
    cluster = FakeCluster(*(brokers or ("a",)))
    made = cluster.create_topic("t", queues)
    producer = gathering(cluster, **settings)
    cluster.cores[0].tasks.start(producer.fetch_route("t"))
    cluster.run()
    return cluster, producer, made


def receipts(results: Results) -> list[SendReceipt]:
    assert all(isinstance(one, SendReceipt) for one in results), list(results)
    return results  # type: ignore[return-value] # just looked


def bodies(cluster: FakeCluster, queue: MessageQueue) -> list[bytes]:
    return [record.body for record in cluster.log[queue]]


def in_batches(cluster: FakeCluster) -> list[int]:
    """How many messages the requests had."""
    return [len(split_batch(command.body)) if command.code == BATCH else 1 for _, command in cluster.asked if command.code in (SEND, BATCH)]


def test_sends_of_one_turn_share_a_request_and_each_gets_the_receipt_of_its_own_message() -> None:
    cluster, producer, _ = prepared()
    results = Results()
    send_all(producer, "t", 5, results)
    cluster.advance(10)
    assert in_batches(cluster) == [5]
    for number, receipt in enumerate(receipts(results)):
        record = cluster.log[receipt.queue][receipt.queue_offset]
        assert record.body == b"%d" % number
        assert decode_properties(record.properties) == {"UNIQ_KEY": receipt.message_id}
        assert int(receipt.offset_message_id[-16:], 16) == record.physical_offset
        assert (receipt.status, receipt.region) == (SendStatus.SEND_OK, "DefaultRegion")
    assert len({receipt.message_id for receipt in receipts(results)}) == 5


def test_without_linger_each_send_is_a_request_of_its_own() -> None:
    for off in (None, 0):
        cluster, producer, _ = prepared(linger_ms=off)
        results = Results()
        send_all(producer, "t", 5, results)
        cluster.run()
        assert in_batches(cluster) == [1] * 5
        assert len(receipts(results)) == 5


def test_one_send_at_a_time_waits_for_no_other_and_is_an_ordinary_request() -> None:
    cluster, producer, _ = prepared()
    for number in range(3):
        results = Results()
        send_all(producer, "t", 1, results, first=number)
        cluster.advance(10)
        assert len(receipts(results)) == 1
    assert not cluster.requests(BATCH)


def test_sends_wait_for_the_answer_to_those_before_them_but_not_longer_than_they_may_linger() -> None:
    cluster, producer, _ = prepared(1)
    first, later = Results(), Results()
    cluster.silent = set(cluster.masters.values())
    send_all(producer, "t", 2, first)
    cluster.advance(10)
    cluster.silent = set()
    send_all(producer, "t", 3, later, first=2)
    cluster.advance(LINGER_MS - 20)
    assert not later
    cluster.advance(30)
    assert len(receipts(later)) == 3
    assert in_batches(cluster) == [2, 3]
    answered = Results()
    send_all(producer, "t", 1, answered, first=5)  # the first two are still under way
    cluster.advance(3_000)
    assert [type(one) for one in first] == [SendTimedOut] * 2
    assert len(receipts(answered)) == 1


def test_many_sends_of_one_turn_go_at_once_and_no_request_is_larger_than_batch_bytes() -> None:
    cluster, producer, _ = prepared(4)
    results = Results()
    send_all(producer, "t", MANY, results)
    cluster.run()
    assert in_batches(cluster) == [MANY], "without any timer"
    small, producer, [queue, *_] = prepared(4, batch_bytes=5_000)
    results = Results()
    for number in range(40):
        producer.send(Message("t", b"%03d" % number + b"x" * (10 * number)), results.append, queue=queue if number % 2 else None)
    producer.send(Message("t", b"large" * 2_000, flag=7), results.append)
    small.advance(100)
    assert len(receipts(results)) == 41
    for _, command in small.asked:
        if command.code == BATCH:
            stored = sum(91 + len("t") + len(body) + len(text) for _, body, text in split_batch(command.body))
            assert stored <= 5_000
    odd = [int(body[:3]) for body in bodies(small, queue) if body[:3].isdigit() and int(body[:3]) % 2]
    assert odd == list(range(1, 40, 2))


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"alone", delay_level=3),
        Message("t", b"alone", deliver_after=90),
        Message("t", b"alone", wait_store_ok=False),
        Message("t", b"alone", properties={Property.TRANSACTION_PREPARED: "true"}),
        Message("t", b"alone" * 2_000),
        Message("t", b"alone", properties={Property.CORRELATION_ID: "1"}),
        Message("%RETRY%g", b"alone"),
        Message("t", b"alone", properties={Property.INNER_MULTI_DISPATCH: "x,y"}),
        Message("t", b"alone", properties={Property.START_DELIVER_TIME: "1"}),
    ],
    ids=["delay", "timed", "no wait", "transaction", "compressed", "request", "retry topic", "many queues", "start time"],
)
@pytest.mark.parametrize("chosen", [False, True])
def test_what_may_be_in_no_batch_goes_alone(message: Message, chosen: bool) -> None:
    cluster, producer, _ = prepared()
    [queue, *_] = cluster.create_topic(message.topic)
    results = Results()
    how: dict[str, Any] = {"queue": queue} if chosen else {}
    send_all(producer, message.topic, 2, Results(), **how)
    producer.send(message, results.append, **how)
    send_all(producer, message.topic, 2, Results(), first=2, **how)
    cluster.advance(100)
    assert len(receipts(results)) == 1
    for command in cluster.requests(BATCH):
        assert b"alone" not in command.body
    if chosen and message.topic == "t":
        assert in_batches(cluster) == [2, 1, 2], "in its place among the others of its queue"


def test_messages_of_one_key_keep_their_order_one_request_at_a_time() -> None:
    cluster, producer, _ = prepared()
    results: dict[int, object] = {}
    for number in range(60):
        message = Message("t", b"%d" % number, delay_level=1 if number % 13 == 5 else 0)
        producer.send(message, partial(results.__setitem__, number), key=f"k{number % 3}")
        if number % 7 == 0:
            cluster.advance(10)
    cluster.advance(100)
    assert len(results) == 60
    for key in range(3):
        [queue] = {result.queue for number, result in results.items() if number % 3 == key and isinstance(result, SendReceipt)}
        mine = [int(body) for body in bodies(cluster, queue) if int(body) % 3 == key]
        assert mine == [number for number in range(60) if number % 3 == key and number % 13 != 5]
    assert max(in_batches(cluster)) > 1


@pytest.mark.parametrize("trouble", ["away", "busy", "comes and goes"])
def test_messages_of_one_key_keep_their_order_when_their_broker_is_in_trouble(trouble: str) -> None:
    cluster, producer, _ = prepared()
    results: dict[int, object] = {}

    def send(number: int) -> None:
        message = Message("t", b"%d" % number, wait_store_ok=number % 11 != 3)
        producer.send(message, partial(results.__setitem__, number), key="one", timeout_ms=700 if number == 9 else None)

    def busy(_: str, command: Command) -> Command | None:
        return command.reply(ResponseCode.SYSTEM_BUSY, "wait") if cluster.clock.ms // 50 % 2 else None

    cluster.overrides = {SEND: busy, BATCH: busy} if trouble == "busy" else {}
    for number in range(60):
        if trouble != "busy":
            cluster.refused = set(cluster.masters.values()) if number < 30 and (trouble == "away" or number % 4 < 3) else set()
        send(number)
        if number % 3:
            cluster.advance(40)
    cluster.advance(10_000)
    assert len(results) == 60
    stored = [number for number, result in results.items() if isinstance(result, SendReceipt)]
    assert len(stored) >= 59
    [queue] = {result.queue for result in results.values() if isinstance(result, SendReceipt)}
    assert [int(body) for body in bodies(cluster, queue)] == sorted(stored)


def refuse(cluster: FakeCluster, bad: bytes, code: int = ResponseCode.MESSAGE_ILLEGAL) -> None:
    def look(_: str, command: Command) -> Command | None:
        return command.reply(code, "one of them is illegal") if bad in command.body else None

    cluster.overrides = {SEND: look, BATCH: look}


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("place", [0, 7, 15])
def test_a_batch_that_is_refused_for_one_message_fails_only_that_one(place: int, chosen: bool) -> None:
    cluster, producer, [queue, *_] = prepared(1)
    refuse(cluster, b"bad")
    results: dict[int, object] = {}
    for number in range(16):
        body = b"bad" if number == place else b"%d" % number
        producer.send(Message("t", body), partial(results.__setitem__, number), queue=queue if chosen else None)
    cluster.advance(20)
    later = Results()
    send_all(producer, "t", 2, later, first=100, queue=queue if chosen else None)
    cluster.advance(300)
    assert isinstance(results.pop(place), ServerRejected)
    assert all(isinstance(one, SendReceipt) for one in results.values()), results
    assert sorted(results) == [number for number in range(16) if number != place]
    assert len(receipts(later)) == 2
    for number, one in results.items():
        assert isinstance(one, SendReceipt)
        assert cluster.log[queue][one.queue_offset].body == b"%d" % number
    if chosen:
        stored = [int(body) for body in bodies(cluster, queue)]
        assert stored == [*sorted(results), 100, 101]


def test_sends_that_cannot_go_for_a_mistake_of_ours_leave_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, producer, [broken, fine, *_] = prepared(2)
    address_of = producer.address_of

    def mistaken(queue: MessageQueue) -> str:
        if queue == broken:
            raise ValueError("a mistake")
        return address_of(queue)

    monkeypatch.setattr(producer, "address_of", mistaken)
    results = Results()
    for queue in (broken, fine):
        producer.send(Message("t", b"x"), results.append, queue=queue)
    cluster.advance(300)
    assert [one.queue for one in receipts(results)] == [fine]
    producer.send(Message("t", b"y"), results.append, queue=fine)
    cluster.advance(300)
    assert bodies(cluster, fine) == [b"x", b"y"]


def test_a_broker_that_knows_no_batches_gets_the_messages_one_by_one() -> None:
    cluster, producer, _ = prepared()
    cluster.overrides[BATCH] = lambda _, command: command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "what is 320?")
    results = Results()
    send_all(producer, "t", 9, results)
    cluster.advance(200)
    assert len(receipts(results)) == 9
    assert len(cluster.requests(SEND)) == 9


def test_sends_that_failed_together_go_together_to_another_broker() -> None:
    cluster, producer, _ = prepared(2, "a", "b")
    cluster.refused = {cluster.masters["a"]}
    for _ in range(4):
        results = Results()
        send_all(producer, "t", 6, results)
        cluster.advance(200)
        assert {receipt.queue.broker_name for receipt in receipts(results)} == {"b"}
        assert len(results) == 6
    assert max(in_batches(cluster)) == 6
    assert not cluster.requests(SEND)


def test_a_gathered_send_that_is_withdrawn_is_not_sent_later_and_the_others_are() -> None:
    for chosen in (False, True):
        cluster, producer, [queue] = prepared(1)
        results = Results()
        how: dict[str, Any] = {"queue": queue} if chosen else {}
        sendings = [producer.send(Message("t", b"%d" % number), results.append, **how) for number in range(4)]
        sendings[1].withdraw()
        cluster.refused = set(cluster.masters.values())
        cluster.advance(500)
        assert [type(one) for one in results] == [SendFailed], "the one that nobody waits for"
        sendings[2].withdraw()
        cluster.refused = set()
        cluster.advance(3_000)
        assert len(results) == 4
        assert sorted(bodies(cluster, queue)) == [b"0", b"3"]


def test_sends_behind_one_that_ends_in_its_turn_are_sent_once() -> None:
    """The first tries again; in the same turn others come behind it, and it is withdrawn."""
    cluster, producer, [queue] = prepared(1)
    first, others = Results(), Results()
    cluster.refused = set(cluster.masters.values())
    head = producer.send(Message("t", b"0"), first.append, queue=queue)
    assert isinstance(head, Sending)
    tries_again = head.start

    def in_one_turn() -> None:
        cluster.refused = set()
        tries_again()
        send_all(producer, "t", 3, others, first=1, queue=queue)
        head.withdraw()

    head.start = in_one_turn  # type: ignore[method-assign]
    cluster.advance(3_000)
    assert isinstance(first.only, SendFailed)
    assert bodies(cluster, queue) == [b"1", b"2", b"3"]
    assert len(receipts(others)) == 3


def test_a_send_that_waits_for_the_answer_to_others_ends_when_its_own_time_is_over() -> None:
    cluster, producer, [queue] = prepared(1)
    first, short, patient = Results(), Results(), Results()
    cluster.silent = set(cluster.masters.values())
    send_all(producer, "t", 1, first, queue=queue)
    cluster.advance(10)
    send_all(producer, "t", 1, short, first=1, queue=queue, timeout_ms=200)
    send_all(producer, "t", 2, patient, first=2, queue=queue)
    cluster.advance(190)
    assert not short
    cluster.silent = set()
    cluster.advance(20)
    assert isinstance(short.only, SendFailed)
    assert not isinstance(short.only, SendTimedOut), "it never left"
    cluster.advance(3_000)
    assert isinstance(first.only, SendTimedOut)
    assert len(receipts(patient)) == 2
    assert bodies(cluster, queue) == [b"2", b"3"]


def test_a_send_with_less_time_than_others_linger_does_not_wait_for_them() -> None:
    cluster, producer, _ = prepared(1, linger_ms=1_000)
    cluster.silent = set(cluster.masters.values())
    send_all(producer, "t", 1, Results())
    cluster.advance(10)
    cluster.silent = set()
    quick = Results()
    send_all(producer, "t", 1, quick, timeout_ms=300)
    cluster.run()
    assert len(receipts(quick)) == 1


def test_sends_with_very_different_times_share_no_request() -> None:
    cluster, producer, _ = prepared(1)
    patient, short = Results(), Results()
    cluster.silent = set(cluster.masters.values())
    send_all(producer, "t", 2, patient)
    send_all(producer, "t", 2, short, timeout_ms=200)
    cluster.advance(300)
    assert [type(one) for one in short] == [SendTimedOut] * 2
    assert not patient, "they have their whole time"
    assert in_batches(cluster) == [2, 2]


def test_every_send_of_a_request_without_an_answer_may_be_stored_and_is_not_repeated() -> None:
    cluster, producer, _ = prepared()
    cluster.silent = set(cluster.masters.values())
    results = Results()
    send_all(producer, "t", 3, results)
    cluster.advance(3_100)
    assert [type(one) for one in results] == [SendTimedOut] * 3
    assert in_batches(cluster) == [3]


def test_what_was_gathered_before_the_producer_closes_goes_before_its_goodbye() -> None:
    cluster, producer, [queue, *_] = prepared()
    results = Results()
    send_all(producer, "t", 3, results)
    send_all(producer, "t", 3, results, first=3, queue=queue)
    cluster.run()
    cluster.advance(10)
    send_all(producer, "t", 3, results, first=6)
    send_all(producer, "t", 3, results, first=9, queue=queue)
    producer.client.heartbeat_now()
    cluster.run()
    producer.client.tasks.start(producer.close())
    cluster.run()  # no timer rings any more
    assert len(receipts(results)) == 12
    chosen = [b"%d" % number for number in (3, 4, 5, 9, 10, 11)]
    assert [body for body in bodies(cluster, queue) if body in chosen] == chosen
    assert cluster.asked[-1][1].code == RequestCode.UNREGISTER_CLIENT


def test_a_batch_that_is_refused_while_the_producer_closes_leaves_nobody_waiting() -> None:
    cluster, producer, [queue, *_] = prepared()
    refuse(cluster, b"2")
    results = Results()
    send_all(producer, "t", 5, results, queue=queue)
    producer.client.tasks.start(producer.close())
    cluster.run()
    assert sorted(type(one).__name__ for one in results) == ["SendReceipt"] * 4 + ["ServerRejected"]


def test_a_batch_that_is_refused_while_the_producer_closes_goes_in_parts_before_what_came_later() -> None:
    cluster, producer, [queue, *_] = prepared(batch_bytes=600)
    refuse(cluster, b"bad")
    results: dict[int, object] = {}
    for number in range(12):
        producer.send(Message("t", b"bad" if number == 1 else b"%d" % number), partial(results.__setitem__, number), queue=queue)
    producer.client.tasks.start(producer.close())
    cluster.run()  # no timer rings any more
    assert isinstance(results.pop(1), ServerRejected)
    assert all(isinstance(one, SendReceipt) for one in results.values()), results
    assert [int(body) for body in bodies(cluster, queue)] == [0, *range(2, 12)]
    assert cluster.asked[-1][1].code == RequestCode.UNREGISTER_CLIENT


def test_a_producer_that_closes_does_not_wait_for_a_silent_broker_longer_than_for_an_answer() -> None:
    cluster, producer, [queue, *_] = prepared(batch_bytes=600)
    cluster.silent = set(cluster.masters.values())
    results = Results()
    send_all(producer, "t", 12, results, queue=queue)
    closing = producer.client.tasks.start(producer.close())
    cluster.advance(3_100)
    assert max(in_batches(cluster)) > 1
    assert sum(in_batches(cluster)) == 12, "the rest went, too, before it left"
    cluster.advance(3_100)
    assert closing.over
    assert [type(one) for one in results] == [SendTimedOut] * 12


def test_what_waits_for_its_next_attempt_ends_though_closing_is_cancelled() -> None:
    cluster, producer, [queue, *_] = prepared(1, "a", "b")
    cluster.overrides[SEND] = lambda address, command: (
        command.reply(ResponseCode.SYSTEM_BUSY, "busy") if address == cluster.masters["b"] else cluster._stored(address, command)
    )
    cluster.silent = {cluster.masters["a"]}
    ordered, waiting = Results(), Results()
    producer.send(Message("t", b"1"), ordered.append, queue=queue)  # closing waits for it
    producer.send(Message("t", b"2"), waiting.append, queue=MessageQueue("t", "b", 0))
    cluster.advance(LINGER_MS)
    closing = producer.client.tasks.start(producer.close())
    cluster.run()
    assert not closing.over
    assert not waiting
    closing.cancel()
    assert [type(one) for one in waiting] == [SendFailed]


@pytest.mark.parametrize("again", [False, True])
def test_messages_that_are_not_stored_as_safely_as_asked_are_told_so_or_sent_again(again: bool) -> None:
    cluster, producer, _ = prepared(1, "a", "b", retry_when_not_ok=again)

    def unsafe(address: str, command: Command) -> Command | None:
        if address != cluster.masters["a"]:
            return None
        answer = cluster._stored(address, command)
        answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
        return answer

    cluster.overrides = {SEND: unsafe, BATCH: unsafe}
    results = Results()
    for first in (0, 4):
        send_all(producer, "t", 4, results, first=first)
        cluster.advance(200)
    assert len(receipts(results)) == 8
    assert {receipt.ok for receipt in receipts(results)} == ({True} if again else {True, False})
    assert {(receipt.queue.broker_name, receipt.ok) for receipt in receipts(results)} >= {("b", True)}


def test_a_confirmation_without_sense_is_told_to_each() -> None:
    cluster, producer, _ = prepared()
    cluster.overrides[BATCH] = lambda _, command: command.reply(fields={"msgId": "x", "queueId": "many", "queueOffset": "0"})
    results = Results()
    send_all(producer, "t", 3, results)
    cluster.advance(20)
    assert [type(one) for one in results] == [BadAnswer] * 3
    assert "a:10911 confirmed a send without a usable" in str(results[0])


def test_receipts_show_names_without_the_namespace() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("ns%t")
    producer, results = gathering(cluster, namespace=Namespace("ns")), Results()
    send_all(producer, "t", 3, results)
    send_all(producer, "t", 3, results, first=3, key="k")
    cluster.advance(100)
    assert {receipt.queue.topic for receipt in receipts(results)} == {"t"}
    assert max(in_batches(cluster)) == 3


def test_callbacks_may_fail_and_may_send(caplog: pytest.LogCaptureFixture) -> None:
    cluster, producer, [queue, *_] = prepared()
    results = Results()

    def fails(_: object) -> None:
        raise ValueError("a mistake of the user's")

    def sends(_: object) -> None:
        producer.send(Message("t", b"again"), results.append, queue=queue)

    for done in (fails, results.append, sends, fails, results.append):
        producer.send(Message("t", b"x"), done, queue=queue)
    cluster.advance(100)
    assert len(receipts(results)) == 3
    assert bodies(cluster, queue) == [b"x"] * 5 + [b"again"]
    assert "callback of a send to topic 't' failed" in caplog.text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"linger_ms": -1}, "linger_ms=-1; allowed are 0 to 10000"),
        ({"linger_ms": 60_000}, "linger_ms=60000; allowed are 0 to 10000"),
        ({"linger_ms": 0.5}, "linger_ms=0.5; expected is a whole number"),
        ({"linger_ms": True}, "linger_ms=True; expected is a whole number"),
        ({"linger_ms": 5, "batch_bytes": 0}, "batch_bytes=0; allowed are 1 to 4128768"),
        ({"linger_ms": 5, "batch_bytes": 5_000, "batch_size_max": 4_000}, "batch_bytes=5000; allowed are 1 to 4000"),
        ({"batch_bytes": 5_000}, "batch_bytes=5000 has no use without linger_ms; give that too"),
        ({"linger_ms": 5, "batch_bytes": "1k"}, "batch_bytes='1k'; expected is a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_to_do(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ClientError, match=says):
        Producer("p", "127.0.0.1:1", **settings)


# -- the promises of every producer

TICKS_COUNT = {"test_a_send_waits_for_brokers_that_are_away_and_the_failure_lists_every_attempt"}
"""It measures pauses, and the cluster of these tests ends a turn of the loop after 10 ms."""

PROMISES = [
    promise
    for module in (test_producer, test_requests)
    for name, promise in vars(module).items()
    if name.startswith("test_")
    and name not in TICKS_COUNT
    and not inspect.signature(promise).parameters
    and not hasattr(promise, "hypothesis")
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_every_promise_of_a_producer_holds_with_gathering_too(promise: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ProducerSettings.__init__

    def with_linger(self: ProducerSettings, *args: Any, **settings: Any) -> None:
        usual(self, *args, **{"linger_ms": 5, **settings})

    monkeypatch.setattr(ProducerSettings, "__init__", with_linger)
    promise()


# -- over a socket


def last(queues: Any, message: Message, key: object) -> MessageQueue:
    return queues[-1]  # type: ignore[no-any-return] # MessageQueue


def test_tasks_that_send_at_the_same_time_share_requests() -> None:
    async def test(server: FakeServer) -> None:
        chosen: Selector = last
        async with Producer("p", server.address, linger_ms=20) as producer:
            await producer.send(Message("t", b"first"))
            found = await asyncio.gather(*(producer.send(Message("t", b"%d" % number)) for number in range(10)))
            ordered = await asyncio.gather(*(producer.send(Message("t", b"o%d" % number), selector=chosen) for number in range(10)))
            sizes = in_batches(server.cluster)
            assert sizes == [1, 10, 10]
            assert [server.cluster.log[one.queue][one.queue_offset].body for one in found] == [b"%d" % number for number in range(10)]
            assert [one.queue_offset for one in ordered] == list(range(ordered[0].queue_offset, ordered[0].queue_offset + 10))
            server.cluster.silent = {server.address}
            waits = asyncio.create_task(producer.send(Message("t", b"waits"), timeout_ms=200))
            await until(lambda: b"waits" in server.cluster.asked[-1][1].body)
            cancelled = asyncio.create_task(producer.send(Message("t", b"never")))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([waits, cancelled])
            assert cancelled.cancelled()
            server.cluster.silent.clear()
            await producer.send(Message("t", b"last"))
            heard: list[SendReceipt | RoquetError] = []
            producer.send_async(Message("t", b"at the end"), heard.append)
        assert [type(one) for one in heard] == [SendReceipt], "close() does not leave behind what was sent before it"
        stored = [record.body for queue in server.cluster.log.values() for record in queue]
        assert b"never" not in stored
        assert len(stored) == 23

    run(test)


def test_threads_that_send_at_the_same_time_share_requests() -> None:
    """The blocking face is served by one loop, so it gathers too."""

    async def test(server: FakeServer) -> None:
        def work() -> list[SendReceipt]:
            found: list[SendReceipt] = []
            lock = threading.Lock()

            def one(number: int) -> None:
                for step in range(20):
                    receipt = producer.send(Message("t", b"%d/%d" % (number, step)), key=str(number))
                    with lock:
                        found.append(receipt)

            with sync.Producer("p", server.address, linger_ms=5, batch_bytes=50_000) as producer:
                threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            return found

        found = await asyncio.to_thread(work)
        assert len(found) == 160
        places = {(receipt.queue, receipt.queue_offset) for receipt in found}
        assert len(places) == 160
        for number in range(8):
            stored = [record.body for queue in server.cluster.log.values() for record in queue if record.body.startswith(b"%d/" % number)]
            assert stored == [b"%d/%d" % (number, step) for step in range(20)]

    run(test)
