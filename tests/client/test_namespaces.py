"""Namespaces: the servers see wrapped names, users see their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.client.core.namespaces import NO_NAMESPACE, Namespace
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.verdicts import Outcome, RetryLater
from roquet.errors import ClientError
from roquet.message import Message, MessageQueue
from roquet.wire.record import decode_properties
from tests.client.fakes import FakeCluster, Results
from tests.client.members import Member

BLUE = Namespace("blue")


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("orders", "blue%orders"), ("blue%orders", "blue%orders"), ("%RETRY%billing", "%RETRY%blue%billing"),
        ("%DLQ%billing", "%DLQ%blue%billing"), ("%RETRY%blue%billing", "%RETRY%blue%billing"), ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"), ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"), ("bluebird", "blue%bluebird"), ("", ""),
    ],
)  # fmt: skip
def test_names_are_wrapped_as_upstream_does(name: str, wrapped: str) -> None:
    assert BLUE.wrap(name) == wrapped
    assert NO_NAMESPACE.wrap(name) == NO_NAMESPACE.unwrap(name) == name


@given(st.text("ab%_", max_size=8))
def test_wrapping_twice_is_wrapping_once_and_unwrapping_undoes_it(name: str) -> None:
    wrapped = BLUE.wrap(name)
    assert BLUE.wrap(wrapped) == wrapped
    assert BLUE.unwrap(wrapped) == name


@pytest.mark.parametrize("name", ["a b", "a%b", "x" * 65])
def test_a_name_that_cannot_be_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(ClientError, match="namespace"):
        Namespace(name)


def test_a_producer_sends_into_its_namespace_and_shows_its_own_names() -> None:
    cluster = FakeCluster("a")
    [queue] = cluster.create_topic("blue%t", 1)
    producer = ProducerCore(cluster.client(), "p", ProducerSettings(namespace=BLUE))
    producer.start()
    seen: list[object] = []

    def choose(queues: object, message: Message, key: object) -> MessageQueue:
        seen.append((queues, message.topic))
        return MessageQueue("t", "a", 0)

    message = Message("t", b"x")
    for how in ({}, {"queue": MessageQueue("t", "a", 0)}, {"selector": choose}, {"key": "k"}):
        results = Results()
        producer.send(message, results.append, **how)
        cluster.advance_until(lambda results=results: bool(results))  # type: ignore[misc] # bound now
        assert isinstance(results.only, SendReceipt)
        assert results.only.queue == MessageQueue("t", "a", 0)
    assert seen == [([MessageQueue("t", "a", 0)], "t")]
    batch = Results()
    producer.client.tasks.start(producer.send_batch([message, message]), batch.append)
    cluster.run()
    assert isinstance(batch.only, list)
    assert (message.topic, message.properties) == ("t", {})
    assert len(cluster.log[queue]) == 6
    assert decode_properties(cluster.log[queue][0].properties)["INSTANCE_ID"] == "blue"
    assert {command.fields["a"] for command in cluster.requests(310)} == {"blue%p"}


def test_a_consumer_joins_the_wrapped_group_and_shows_its_own_topics_in_retries_too() -> None:
    cluster = FakeCluster("a")
    [queue] = cluster.create_topic("blue%t", 1)
    [retry] = cluster.create_topic("%RETRY%blue%g", 1)
    member = Member(cluster, decide=RetryLater(1), namespace=BLUE).start()
    cluster.append(queue, b"x")
    cluster.advance(500)
    member.decide = Outcome.SUCCESS
    cluster.advance(2_000)
    assert [(one.topic, one.queue) for one in member.seen] == [("t", queue), ("t", retry)]
    [command] = cluster.requests(36)
    assert (command.fields["group"], command.fields["originTopic"]) == ("blue%g", "blue%t")
    [data] = cluster.heartbeats[-1][1].consumer_data_set
    assert (data.group_name, {one.topic for one in data.subscription_data_set}) == ("blue%g", {"blue%t", "%RETRY%blue%g"})
    cluster.advance(5_000)
    assert cluster.offsets["blue%g", queue] == 1
