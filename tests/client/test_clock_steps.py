"""Somebody sets the clock of a client's machine: timeouts, locks and pauses do not notice."""

from __future__ import annotations

import pytest

from roquet.client.core.failures import SendTimedOut
from roquet.client.core.producer import ProducerCore
from roquet.client.core.push_consumer import PushConsumerCore
from roquet.client.core.receipt import SendReceipt
from roquet.message import Message
from roquet.wire.codes import RequestCode, ResponseCode
from tests.client.fakes import FakeCluster, Results
from tests.client.members import Member, cluster_with

HOUR = 3_600_000
each_step = pytest.mark.parametrize("step_ms", [-HOUR, 60_000, HOUR])


@each_step
def test_a_send_that_nobody_answers_fails_in_time(step_ms: int) -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    cluster.silent.add("a:10911")
    producer = ProducerCore(cluster.client(), "g")
    producer.start()
    results = Results()
    producer.send(Message("t", b"x"), results.append)
    cluster.clock.step(step_ms)
    cluster.advance(2_900)
    assert not results
    cluster.advance(200)
    assert isinstance(results.only, SendTimedOut)


@each_step
def test_a_send_is_tried_again_although_the_clock_was_set(step_ms: int) -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t")
    producer = ProducerCore(cluster.client(), "g")
    producer.start()
    cluster.overrides[RequestCode.SEND_MESSAGE_V2] = lambda address, command: (
        command.reply(ResponseCode.SYSTEM_BUSY, "later") if cluster.clock.stepped_ms == 0 else None
    )
    results = Results()
    producer.send(Message("t", b"x"), results.append)
    refused = cluster.overrides[RequestCode.SEND_MESSAGE_V2]

    def refuse_once(address: str, command: object) -> object:
        answer = refused(address, command)  # type: ignore[arg-type]
        cluster.clock.step(step_ms)
        return answer

    cluster.overrides[RequestCode.SEND_MESSAGE_V2] = refuse_once  # type: ignore[assignment]
    cluster.advance(1_000)
    assert isinstance(results.only, SendReceipt)


def test_an_ordered_consumer_whose_clock_is_set_back_does_not_hold_a_lock_that_is_not_confirmed() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, "c1", orderly=True).start()
    cluster.clock.step(-HOUR)
    cluster.overrides[41] = lambda _, command: command.reply(ResponseCode.SYSTEM_ERROR, "no")
    cluster.advance(45_000, 100)
    cluster.append(queue, b"0")
    cluster.advance(4_000, 100)
    assert member.bodies == []


def test_an_ordered_consumer_whose_clock_is_set_forward_keeps_its_lock() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, "c1", orderly=True).start()
    cluster.append(queue, b"0")
    cluster.run()
    cluster.clock.step(60_000)
    cluster.append(queue, b"1")
    cluster.run()
    assert member.bodies == [b"0", b"1"]
    begun = len(cluster.requests(RequestCode.QUERY_CONSUMER_OFFSET))
    cluster.advance(25_000, 100)  # the lock is renewed; had it been lost, the queue would begin anew
    assert len(cluster.requests(RequestCode.QUERY_CONSUMER_OFFSET)) == begun


@each_step
def test_a_client_goes_on_with_its_heartbeats(step_ms: int) -> None:
    cluster, _ = cluster_with(1)
    Member(cluster, "c1").start()
    cluster.advance(30_000, 100)
    before = len(cluster.heartbeats)
    cluster.clock.step(step_ms)
    cluster.advance(29_900, 100)
    assert len(cluster.heartbeats) <= before + 1
    cluster.advance(30_200, 100)
    assert before + 1 <= len(cluster.heartbeats) <= before + 3


def test_subscribing_again_after_the_clock_was_set_back_is_a_newer_version() -> None:
    cluster, _ = cluster_with(1)
    consumer = PushConsumerCore(cluster.client("c2"), "g2", lambda messages, judge: None)
    consumer.subscribe("t", "a")
    first = consumer.subscriptions["t"].sub_version
    cluster.clock.step(-HOUR)
    consumer.subscribe("t", "b")
    assert consumer.subscriptions["t"].sub_version > first
