"""What producers and consumers count, when a limit holds a queue back, and what a message knows of its queue."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.client.core.held_back import QUIET_MS
from roquet.client.core.lite_pull import LitePullSettings
from roquet.client.core.namespaces import Namespace
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.pull_consumer import PullConsumerCore
from roquet.client.core.stats import ConsumerStats, Durations, ProducerStats
from roquet.client.core.verdicts import DEAD_LETTER, Outcome, RetryLater, Verdict
from roquet.message import Message, MessageQueue, PulledMessage, ReceivedMessage
from roquet.wire.calls.consumers import ConsumerRunningInfo
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import Record
from tests.client.fakes import FakeCluster, Results
from tests.client.members import GROUP, Member, MemoryFile, ask, cluster_with
from tests.client.test_gathering import prepared, send_all
from tests.client.test_lite_pull import Lite
from tests.client.test_plain_sends import gather, known

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


# -- durations


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=200), st.floats(1, 100))
def test_a_percentile_is_in_the_bucket_of_the_real_one(taken: list[int], percent: float) -> None:
    durations = Durations()
    for ms in taken:
        durations.add(ms)
    real = sorted(taken)[max(0, math.ceil(len(taken) * percent / 100) - 1)]
    low, high = (1 << (real.bit_length() - 1) if real else 0), 1 << real.bit_length()
    assert low <= durations.percentile_ms(percent) <= high
    assert durations.count == len(taken)
    assert durations.mean_ms == pytest.approx(sum(taken) / len(taken))


def test_durations_without_any_are_zeros_and_the_longest_have_a_bucket() -> None:
    durations = Durations()
    assert (durations.count, durations.mean_ms, durations.p50_ms, durations.p99_ms) == (0, 0.0, 0.0, 0.0)
    durations.add(1 << 50)
    assert durations.buckets[-1] == 1


def test_durations_are_exported_by_upper_bounds_of_their_buckets() -> None:
    durations = Durations()
    for ms, times in ((0, 5), (1, 2), (3, 1), (1000, 1)):
        durations.add(ms, times)
    assert durations.as_dict() == {
        "count": 9, "total_ms": 1005, "mean_ms": 111.667, "p50_ms": 0.9, "p99_ms": 977.92,
        "buckets": {"1": 5, "2": 2, "4": 1, "1024": 1},
    }  # fmt: skip


# -- producers


def counts(stats: ProducerStats) -> tuple[int, int, int]:
    return stats.sent, stats.failed, stats.oneway


def test_a_producer_counts_each_message_once_however_it_is_sent() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t", 1)
    cluster.create_topic("other", 1)
    producer = ProducerCore(cluster.client(), "g")
    producer.start()
    cluster.overrides[SEND] = lambda _, command: cluster.clock.forward(20) or None  # type: ignore[func-returns-value]
    producer.send(Message("t", b"x"), lambda _: None)
    producer.client.tasks.start(producer.send_batch([Message("t", b"x")] * 5))
    producer.client.tasks.start(producer.send_batch([Message("other", b"x")] * 2))
    cluster.run()
    assert counts(producer.stats) == (8, 0, 0)
    assert {topic: one.sent for topic, one in producer.stats.topics.items()} == {"t": 6, "other": 2}
    assert producer.stats.topics["t"].durations.buckets[(20).bit_length()] == 6
    assert producer.stats.durations.count == 8
    producer.client.tasks.start(producer.send_oneway(Message("t", b"x")))
    cluster.overrides[SEND] = cluster.overrides[BATCH] = lambda _, command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")
    producer.send(Message("t", b"x"), lambda _: None)
    producer.client.tasks.start(producer.send_batch([Message("t", b"x")] * 3), lambda _: None)
    cluster.run()
    assert counts(producer.stats) == (8, 4, 1)
    assert producer.stats.durations.count == 8
    shown = json.loads(json.dumps(producer.stats.as_dict()))
    assert (shown["group"], shown["sent"], shown["failed"], shown["oneway"]) == ("g", 8, 4, 1)
    assert shown["topics"]["other"]["sent"] == 2


def test_a_send_that_is_tried_again_is_counted_when_it_is_through() -> None:
    cluster, producer, _ = prepared(1, linger_ms=None)
    answers = [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
    cluster.overrides[SEND] = lambda _, command: command.reply(answers.pop(), "busy") if answers else None
    producer.send(Message("t", b"x"), lambda _: None)
    cluster.advance(50)
    assert counts(producer.stats) == (0, 0, 0)
    cluster.advance(3_000)
    assert counts(producer.stats) == (1, 0, 0)
    assert producer.stats.durations.total_ms > 50


def test_plain_sends_are_counted_by_request_and_each_once_when_one_fails() -> None:
    cluster, producer = known()
    before = producer.stats.sent
    futures = gather(producer, 40)
    cluster.advance(20)
    assert producer.stats.sent == before + 40
    assert producer.stats.topics["t"].durations.count == producer.stats.sent
    cluster.overrides[BATCH] = lambda _, command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")
    cluster.overrides[SEND] = lambda _, command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no") if command.body == b"102" else None
    futures = gather(producer, 5, first=100)
    cluster.advance(50)
    assert all(future.done() for future in futures)
    assert counts(producer.stats) == (before + 44, 1, 0)


def test_plain_sends_that_are_withdrawn_or_badly_confirmed_are_failures() -> None:
    cluster, producer = known()
    before = producer.stats.sent
    [future] = gather(producer, 1)
    producer.plain["t"].withdraw(future)
    assert counts(producer.stats) == (before, 1, 0)
    cluster.overrides[BATCH] = lambda _, command: command.reply(fields={"msgId": "x", "queueId": "many", "queueOffset": "0"})
    gather(producer, 3)
    cluster.advance(20)
    assert counts(producer.stats) == (before, 4, 0)


def test_sends_that_gather_for_a_queue_are_counted() -> None:
    cluster, producer, _ = prepared(1)
    results = Results()
    send_all(producer, "t", 30, results, key="k")
    cluster.advance(50)
    assert len(results) == 30
    assert counts(producer.stats) == (30, 0, 0)


# -- consumers


def consumed(verdict: Verdict, bodies: int = 4, **settings: Any) -> tuple[FakeCluster, Member]:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=verdict, **settings)
    for number in range(bodies):
        cluster.append(queue, b"%d" % number)
    member.start()
    cluster.advance(100)
    return cluster, member


def told(stats: ConsumerStats) -> tuple[int, int, int, int]:
    return stats.consumed, stats.retried, stats.dead_lettered, stats.given_up


@pytest.mark.parametrize(
    ("verdict", "settings", "expected"),
    [
        (Outcome.SUCCESS, {}, (4, 0, 0, 0)),
        (Outcome.SUCCESS, {"batch_size": 4}, (4, 0, 0, 0)),
        (Outcome.RETRY_LATER, {}, (0, 4, 0, 0)),
        (DEAD_LETTER, {}, (0, 0, 4, 0)),
        (Outcome.RETRY_LATER, {"reconsume_times_max": 0}, (0, 0, 4, 0)),
        (Outcome.RETRY_LATER, {"broadcasting": True, "file": MemoryFile()}, (0, 0, 0, 4)),
        (Outcome.SUCCESS, {"orderly": True}, (4, 0, 0, 0)),
        (Outcome.COMMIT, {"orderly": True, "auto_commit": False}, (4, 0, 0, 0)),
        (Outcome.RETRY_LATER, {"orderly": True}, (0, 1, 0, 0)),
        (Outcome.RETRY_LATER, {"orderly": True, "reconsume_times_max": 0}, (0, 0, 4, 0)),
    ],
)
def test_a_consumer_counts_what_became_of_its_messages(verdict: Verdict, settings: dict[str, Any], expected: tuple[int, ...]) -> None:
    _, member = consumed(verdict, **settings)
    stats = member.core.stats
    assert told(stats) == expected
    assert stats.topics.keys() == {"t"}
    assert stats.durations.count == len(member.calls)
    assert stats.pulled == 4
    shown = json.loads(json.dumps(stats.as_dict()))
    assert [shown[name] for name in ("consumed", "retried", "dead_lettered", "given_up")] == list(expected)
    assert shown["topics"]["t"]["consumed"] == expected[0]


def test_of_a_list_those_that_failed_are_counted_apart() -> None:
    cluster, member = consumed(Outcome.SUCCESS, bodies=0, batch_size=8)

    def judge_two(messages: list[ReceivedMessage], judge: Any) -> None:
        judge(RetryLater(messages=messages[:2]))

    member.core.consuming.listener = judge_two
    for number in range(5):
        cluster.append(MessageQueue("t", "a", 0), b"%d" % number)
    cluster.advance(20)
    assert told(member.core.stats) == (3, 2, 0, 0)


def test_a_retried_message_counts_for_the_topic_that_it_was_sent_to() -> None:
    cluster, member = consumed(RetryLater(1), bodies=1)
    member.decide = Outcome.SUCCESS
    cluster.advance(2_000)
    assert told(member.core.stats) == (1, 1, 0, 0)
    assert member.core.stats.topics["t"].consumed == 1
    assert {topic: one.pulled for topic, one in member.core.stats.topics.items()} == {"t": 1, f"%RETRY%{GROUP}": 1}


def test_how_long_a_handler_took_is_counted_also_when_it_took_too_long() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, consume_timeout_ms=5_000).start()
    cluster.append(queue, b"x")
    cluster.advance(12_000, 100)
    assert told(member.core.stats) == (0, 1, 0, 0)
    member.held[0][1](Outcome.SUCCESS)
    assert told(member.core.stats) == (0, 1, 0, 0), "it comes again: what its handler says is too late"
    assert member.core.stats.topics["t"].durations.total_ms == 12_000


def test_names_of_topics_are_those_of_the_user() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("blue%t", 1)
    producer = ProducerCore(cluster.client(), "g", ProducerSettings(namespace=Namespace("blue")))
    producer.start()
    producer.send(Message("t", b"x"), lambda _: None)
    cluster.run()
    assert producer.stats.topics["t"].sent == 1
    member = Member(cluster, namespace=Namespace("blue"))
    member.start()
    cluster.advance(50)
    assert member.core.stats.topics["t"].consumed == 1
    assert member.core.stats.topics["t"].pulled == 1


def test_a_lite_pull_consumer_counts_what_poll_returned() -> None:
    cluster, [queue] = cluster_with(1)
    for number in range(5):
        cluster.append(queue, b"%d" % number)
    lite = Lite(cluster, pull_batch_size=2).subscribed()
    assert len(lite.poll()) == 2
    assert (lite.core.stats.consumed, lite.core.stats.pulled) == (2, 5)
    results = Results()
    lite.core.client.tasks.start(lite.core.poll(1_000), results.append)
    taken = results.only
    assert isinstance(taken, list)
    assert lite.core.stats.consumed == 4
    lite.core.unread(taken)
    assert lite.core.stats.consumed == 2
    cluster.run()
    while lite.poll(10):
        pass
    assert lite.core.stats.consumed == 5


def test_a_pull_consumer_counts_what_it_pulled() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.append(queue, b"x")
    core = PullConsumerCore(cluster.client(), "g")
    core.start()
    core.client.tasks.start(core.pull(queue, 0), lambda _: None)
    cluster.run()
    assert core.stats.pulled == 1
    assert core.stats.topics["t"].pull_durations.count == 1


# -- an operator who asks


def test_running_info_shows_what_was_done_in_the_last_minute() -> None:
    cluster, member = consumed(Outcome.SUCCESS, bodies=0)
    queue = MessageQueue("t", "a", 0)
    for _ in range(90):
        cluster.append(queue, b"x")
        cluster.append(queue, b"y")
        member.decide = None
        cluster.run()
        for _messages, judge in member.held:
            cluster.clock.forward(5)
            judge(Outcome.SUCCESS)
        member.held.clear()
        cluster.advance(1_000 - 10, 1_000)
    asked = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": GROUP, "clientId": "c1"})
    status = ConsumerRunningInfo.decode(ask(cluster, member, asked).body).status_table["t"]
    assert status.consume_ok_tps == pytest.approx(2, rel=0.1)
    assert status.pull_tps == pytest.approx(2, rel=0.1)
    assert status.consume_rt == pytest.approx(7.5, rel=0.1)
    assert (status.consume_failed_tps, status.consume_failed_msgs) == (0, 0)
    member.decide = RetryLater(18)
    for _ in range(60):
        cluster.append(queue, b"z")
    cluster.advance(100)
    cluster.advance(60_000, 1_000)
    status = ConsumerRunningInfo.decode(ask(cluster, member, asked).body).status_table["t"]
    assert status.consume_failed_msgs == 60
    assert status.consume_failed_tps == pytest.approx(1, rel=0.15)
    assert status.consume_ok_tps < 0.3
    cluster.advance(70_000, 1_000)
    status = ConsumerRunningInfo.decode(ask(cluster, member, asked).body).status_table["t"]
    assert (status.consume_failed_tps, status.pull_tps, status.consume_failed_msgs) == (0, 0, 60)


# -- limits


LIMITS: list[tuple[str, dict[str, Any], str]] = [
    ("messages", {"count_max": 10}, "messages of it are held here, more than count_max=10"),
    ("bytes", {"size_max": 100}, "bytes, more than size_max=100"),
    ("span", {"span_max": 10}, "more than span_max=10 apart"),
]


@pytest.mark.parametrize(("limit", "settings", "words"), LIMITS)
def test_a_limit_that_holds_a_queue_back_is_counted_and_said_once_a_minute(
    limit: str, settings: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, pull_batch_size=8, concurrency=64, **settings).start()
    for _ in range(60):
        cluster.append(queue, b"x" * 10)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if words in record.getMessage()]

    held = member.core.stats.held_back
    with caplog.at_level(logging.WARNING):
        cluster.advance(10_000)
        assert getattr(held, limit) == 1, "it waits, for one reason"
        assert len(lines()) == 1
        assert f"group {GROUP}" in lines()[0]
        assert str(queue) in lines()[0]
        for _, judge in member.held:
            judge(Outcome.SUCCESS)
        member.held.clear()
        cluster.advance(1_000)
        assert getattr(held, limit) == 2, "it waits once more"
        assert len(lines()) == 1
        cluster.advance(QUIET_MS, 1_000)
        for _, judge in member.held:
            judge(Outcome.SUCCESS)
        member.held.clear()
        cluster.advance(1_000)
        assert getattr(held, limit) == 3
        assert len(lines()) == 2
    assert held.as_dict() == {"messages": 0, "bytes": 0, "span": 0, "lock": 0, "all": 0} | {limit: 3}


def test_a_queue_that_waits_for_a_moment_is_counted_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, count_max=10, concurrency=64).start()
    for _ in range(60):
        cluster.append(queue, b"x")
    cluster.advance(900)
    assert member.core.stats.held_back.messages == 1
    assert "count_max" not in caplog.text
    for _, judge in member.held:
        judge(Outcome.SUCCESS)
    cluster.advance(5_000)
    assert member.core.stats.held_back.messages == 2
    assert caplog.text.count("count_max=10") == 1


def test_a_queue_whose_limits_are_not_reached_is_not_held_back() -> None:
    _, member = consumed(Outcome.SUCCESS)
    assert not any(member.core.stats.held_back.as_dict().values())


def test_a_lock_that_another_member_has_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    cluster, [queue] = cluster_with(1)
    cluster.locks[GROUP, queue] = ("somebody", cluster.clock.ms + 10_000)
    with caplog.at_level(logging.INFO):
        member = Member(cluster, orderly=True).start()
        cluster.advance(5_000)
    assert member.core.stats.held_back.lock > 1
    [line] = [
        record.getMessage() for record in caplog.records if "holds its lock" in record.getMessage() and str(queue) in record.getMessage()
    ]
    assert "usual for some seconds" in line


def test_a_lock_that_is_not_confirmed_is_counted() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, orderly=True).start()
    cluster.overrides[RequestCode.LOCK_BATCH_MQ] = lambda _, command: command.reply(ResponseCode.SYSTEM_ERROR, "no")
    cluster.advance(31_000, 100)
    assert member.core.stats.held_back.lock == 0
    cluster.append(queue, b"x")
    cluster.advance(1_000)
    assert member.seen == []
    assert member.core.stats.held_back.lock == 1


@pytest.mark.parametrize(("limit", "settings"), [("messages", {"count_max": 4}), ("bytes", {"size_max": 4}), ("all", {"count_all_max": 4})])
def test_reading_ahead_that_stops_is_counted(limit: str, settings: dict[str, Any]) -> None:
    cluster, [queue] = cluster_with(1)
    for _ in range(40):
        cluster.append(queue, b"x")
    lite = Lite(cluster, pull_batch_size=2, **settings).subscribed()
    cluster.advance(1_000)
    assert getattr(lite.core.stats.held_back, limit) == 1
    lite.poll()
    cluster.advance(1_000)
    assert lite.core.stats.held_back.as_dict() == {"messages": 0, "bytes": 0, "span": 0, "lock": 0, "all": 0} | {limit: 2}
    assert LitePullSettings().count_all_max == 10_000


# -- what a message knows


def test_a_pulled_message_knows_how_far_its_queue_reached_and_how_many_stand_behind_it() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.first[queue] = 100
    for number in range(5):
        cluster.append(queue, b"%d" % number)
    member = Member(cluster, pull_batch_size=3)
    member.start()
    cluster.append(queue, b"5")
    cluster.advance(50)
    assert [(one.queue_offset, one.min_offset, one.max_offset, one.lag) for one in member.seen] == [
        (100, 100, 105, 4), (101, 100, 105, 3), (102, 100, 105, 2), (103, 100, 105, 1), (104, 100, 105, 0), (105, 100, 106, 0),
    ]  # fmt: skip
    assert {type(one) for one in member.seen} == {PulledMessage}
    assert len({id(one.reach) for one in member.seen}) == 3, "one for each answer"


def test_a_message_that_is_read_one_by_one_knows_it_too() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster)
    record = cluster.append(queue, b"x")
    record.queue_id = 7  # so that the answer is not of this queue alone
    member.start()
    cluster.advance(50)
    [seen] = member.seen
    assert type(seen) is ReceivedMessage
    assert (seen.min_offset, seen.max_offset, seen.lag) == (0, 1, 0)


def test_a_message_that_was_not_pulled_knows_nothing_of_it() -> None:
    message = ReceivedMessage(Record("t", 0, b"x", b""), "a")
    assert (message.min_offset, message.max_offset, message.lag, message.attempt, message.consuming_began_ms) == (-1, -1, -1, 1, 0)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_knows_when_its_consuming_began_and_which_attempt_it_is(orderly: bool) -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, concurrency=1, orderly=orderly).start()
    cluster.append(queue, b"1")
    cluster.append(queue, b"2")
    cluster.clock.step(1_000_000)
    cluster.advance(100)
    first_ms = member.seen[0].consuming_began_ms
    assert abs(cluster.clock.now_ms() - first_ms) <= 100, "it is wall time"
    cluster.advance(500)
    member.held[0][1](Outcome.SUCCESS)
    cluster.run()
    assert member.seen[1].consuming_began_ms == cluster.clock.now_ms() > first_ms
    member.held[1][1](RetryLater(1))
    cluster.advance(2_000)
    assert (member.seen[2].body, member.seen[2].attempt) == (b"2", 2)
    assert [one.attempt for one in member.seen[:1]] == [1]


def test_a_polled_message_knows_when_poll_returned_it() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.append(queue, b"x")
    lite = Lite(cluster).subscribed()
    cluster.advance(3_000)
    results = Results()
    lite.core.client.tasks.start(lite.core.poll(1_000), results.append)
    polled = results.only
    assert isinstance(polled, list)
    assert polled[0].consuming_began_ms == cluster.clock.now_ms()
