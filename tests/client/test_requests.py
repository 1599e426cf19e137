"""Request and reply, timed messages that are cancelled, and keys that choose the queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest

from roquet.client.core.producer import ProducerCore, by_hash, java_object_hash
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.replies import RequestTimedOut, host_bytes, reply_message
from roquet.client.core.tasks import ignore
from roquet.client.core.verdicts import Judged, Outcome
from roquet.errors import ClientError, InvalidMessage, NoRoute
from roquet.message import Message, MessageQueue, ReceivedMessage
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_properties
from tests.client.fakes import FakeCluster, Results
from tests.client.members import Member


def asking(cluster: FakeCluster) -> ProducerCore:
    producer = ProducerCore(cluster.client("asker"), "askers")
    producer.start()
    return producer


def replying(cluster: FakeCluster) -> Member:
    """A consumer that replies to what it consumes with another producer."""
    member = Member(cluster, "replier").start()
    answering = ProducerCore(member.core.client, "repliers")
    answering.start()

    def reply(messages: list[ReceivedMessage], judge: Judged) -> None:
        for message in messages:
            answering.send(reply_message(message, b"re:" + message.body), lambda _: None)
        judge(Outcome.SUCCESS)

    member.core.consuming.listener = reply
    return member


def cluster_for_requests() -> FakeCluster:
    cluster = FakeCluster("a")
    for topic in ("t", "%RETRY%g", "c_REPLY_TOPIC"):
        cluster.create_topic(topic, 1)
    return cluster


def test_a_request_gets_the_reply_of_whoever_consumes_it() -> None:
    cluster = cluster_for_requests()
    replying(cluster)
    producer = asking(cluster)
    results = Results()
    message = Message("t", b"ping")
    producer.client.tasks.start(producer.request(message, timeout_ms=2_000), results.append)
    cluster.advance_until(lambda: bool(results))
    reply = results.only
    assert isinstance(reply, ReceivedMessage)
    assert (reply.body, reply.topic, reply.born_host) == (b"re:ping", "c_REPLY_TOPIC", "10.0.0.9:555")
    assert message.properties == {}
    [sent] = [command for command in cluster.requests(310) if command.fields["b"] == "t"]
    properties = decode_properties(sent.fields["i"])
    assert (properties["REPLY_TO_CLIENT"], properties["TTL"]) == ("asker", "2000")
    assert reply.properties["CORRELATION_ID"] == properties["CORRELATION_ID"]


def test_many_requests_get_each_their_own_reply() -> None:
    cluster = cluster_for_requests()
    replying(cluster)
    producer = asking(cluster)
    results: dict[int, object] = {}
    for number in range(30):
        producer.client.tasks.start(producer.request(Message("t", b"%d" % number)), partial(results.__setitem__, number))
    cluster.advance_until(lambda: len(results) == 30)
    assert [result.body for result in results.values() if isinstance(result, ReceivedMessage)] == [b"re:%d" % one for one in range(30)]


def test_the_brokers_know_the_requester_before_the_first_request() -> None:
    cluster = cluster_for_requests()
    producer = asking(cluster)
    for _ in range(2):
        producer.client.tasks.start(producer.request(Message("t", b"x")), ignore)
        cluster.run()
    codes = [command.code for _, command in cluster.asked if command.code in (34, 310)]
    assert codes[-2:] == [310, 310]
    assert codes.index(310) > codes.index(34)
    assert cluster.heartbeats[0][1].producer_data_set[0].group_name == "askers"


def test_the_reply_is_the_one_that_java_sends(golden: Callable[[int], list[Command]]) -> None:
    cluster = cluster_for_requests()
    replying(cluster)
    producer = asking(cluster)
    producer.client.tasks.start(producer.request(Message("t", b"ping")), ignore)
    cluster.advance(100)
    [ours] = cluster.requests(325)
    for theirs in golden(325):
        assert theirs.fields.keys() == ours.fields.keys()
        assert decode_properties(theirs.fields["i"]).keys() == decode_properties(ours.fields["i"]).keys()


def test_a_request_without_a_reply_ends_in_time() -> None:
    cluster = cluster_for_requests()
    producer = asking(cluster)
    results = Results()
    producer.client.tasks.start(producer.request(Message("t", b"x"), timeout_ms=500), results.append)
    cluster.advance(450)
    assert not results
    cluster.advance(100)
    assert isinstance(results.only, RequestTimedOut)
    assert isinstance(results.only, TimeoutError)


def test_a_request_that_cannot_be_sent_fails_at_once_and_only_once() -> None:
    cluster = cluster_for_requests()
    cluster.overrides[310] = lambda _, command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")
    producer = asking(cluster)
    for topic, kind in (("t", ClientError), ("nowhere", NoRoute)):
        results = Results()
        producer.client.tasks.start(producer.request(Message(topic, b"x"), timeout_ms=500), results.append)
        cluster.advance(2_000)
        assert isinstance(results.only, kind)


def test_a_reply_that_nobody_waits_for_is_taken_and_forgotten(golden: Callable[[int], list[Command]]) -> None:
    cluster = cluster_for_requests()
    asking(cluster)
    fields = {
        "producerGroup": "p", "topic": "c_REPLY_TOPIC", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "bornHost": "/10.0.0.1:1", "storeHost": "what", "storeTimestamp": "1",
    }  # fmt: skip
    [answer] = cluster.ask("asker", Command(326, fields, b"x"))
    assert (answer.code, answer.is_response) == (0, True)
    [theirs] = golden(326)[:1]
    assert theirs.code == 0


def test_only_a_request_can_be_replied_to() -> None:
    cluster = cluster_for_requests()
    record = cluster.append(MessageQueue("t", "a", 0), b"x", "CLUSTER\x01c")
    with pytest.raises(InvalidMessage, match="asks for no reply"):
        reply_message(ReceivedMessage(record), b"y")


@pytest.mark.parametrize(
    ("text", "host"),
    [("10.0.0.1:10911", "0a00000100002a9f"), ("/10.0.0.1:1", "0a00000100000001"), ("[::1]:2", "0" * 31 + "100000002"), ("x", "0" * 16)],
)
def test_hosts_are_read_as_brokers_write_them(text: str, host: str) -> None:
    assert host_bytes(text).hex() == host


# -- keys


QUEUES = [MessageQueue("t", "a", number) for number in range(7)]


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("hello", 99162322), ("", 0), (17, 17), (-5, -5), (1 << 32, 1), (-(1 << 40), -256), (1.5, 48568),
    ],
)  # fmt: skip
def test_keys_hash_as_in_java(key: object, code: int) -> None:
    assert java_object_hash(key) == code
    assert by_hash(QUEUES, Message("t", b"x"), key) == QUEUES[abs(code) % 7]


def test_messages_with_one_key_go_to_one_queue() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t", 4)
    producer = asking(cluster)
    queues: set[MessageQueue] = set()
    for _ in range(8):
        results = Results()
        producer.send(Message("t", b"x"), results.append, key="customer-1")
        cluster.advance_until(lambda results=results: bool(results))  # type: ignore[misc] # bound now
        assert isinstance(results.only, SendReceipt)
        queues.add(results.only.queue)
    assert len(queues) == 1


# -- delays


def test_delays_are_properties_as_upstream_names_them() -> None:
    assert Message("t", b"x", delay_level=3).properties == {"DELAY": "3"}
    assert Message("t", b"x", deliver_at=1_800_000_000_123).properties == {"TIMER_DELIVER_MS": "1800000000123"}
    when = datetime(2027, 1, 15, 8, 0, 0, 123_000, UTC)
    assert Message("t", b"x", deliver_at=when).properties == {"TIMER_DELIVER_MS": "1800000000123"}
    assert Message("t", b"x", deliver_after=1.5).properties == {"TIMER_DELAY_MS": "1500"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"delay_level": -1}, {"delay_level": 1.5}, {"delay_level": 10_000}, {"deliver_after": 0}, {"deliver_after": -1},
        {"deliver_after": float("nan")}, {"deliver_at": 0}, {"deliver_at": datetime(2027, 1, 1)}, {"deliver_at": "tomorrow"},
        {"delay_level": 1, "deliver_after": 5}, {"deliver_at": 5, "deliver_after": 5},
    ],
)  # fmt: skip
def test_delays_that_mean_nothing_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage):
        Message("t", b"x", **arguments)  # type: ignore[arg-type] # the point


def test_a_timed_message_is_cancelled_with_the_handle_of_its_receipt() -> None:
    cluster = cluster_for_requests()
    producer = asking(cluster)

    def with_handle(address: str, command: Command) -> Command:
        answer = cluster._stored(address, command)
        answer.fields["recallHandle"] = "HANDLE"
        return answer

    cluster.overrides[310] = with_handle
    cluster.overrides[370] = lambda _, command: command.reply(fields={"msgId": "ID"})
    sent, cancelled = Results(), Results()
    producer.send(Message("t", b"x", deliver_after=60), sent.append)
    cluster.run()
    assert isinstance(sent.only, SendReceipt)
    assert sent.only.recall_handle == "HANDLE"
    producer.client.tasks.start(producer.recall(sent.only), cancelled.append)
    cluster.run()
    assert cancelled.only == "ID"
    [command] = cluster.requests(370)
    assert command.fields == {"producerGroup": "askers", "topic": "t", "recallHandle": "HANDLE", "bname": "a"}
    producer.client.tasks.start(producer.recall(sent.only._replace(recall_handle=None)), cancelled.append)
    assert isinstance(cancelled[1], ClientError)
    assert "no recall handle" in str(cancelled[1])
