"""What becomes of messages that a concurrent listener does not finish: later, elsewhere, here again, or never."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from roquet.client.core.push_consumer import PushConsumerSettings
from roquet.client.core.verdicts import DEAD_LETTER, Outcome, RetryLater
from roquet.errors import ClientError
from roquet.message import MessageQueue
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_properties
from tests.client.fakes import FakeCluster
from tests.client.members import GROUP, Member, MemoryFile, cluster_with, stored

RETRY = MessageQueue(f"%RETRY%{GROUP}", "a", 0)
DEAD = MessageQueue(f"%DLQ%{GROUP}", "a", 0)


def refuse(cluster: FakeCluster, *codes: int) -> None:
    for code in codes:
        cluster.overrides[code] = lambda _, command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")


def test_a_message_that_fails_comes_again_with_its_own_topic_and_the_count_of_failures() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=RetryLater(1)).start()
    cluster.append(queue, b"x", "UNIQ_KEY\x01ABC")
    cluster.advance(500)
    member.decide = Outcome.SUCCESS
    cluster.advance(2_000)
    assert [(one.topic, one.reconsume_times, one.message_id, one.queue) for one in member.seen] == [
        ("t", 0, "ABC", queue),
        ("t", 1, "ABC", RETRY),
    ]
    cluster.advance(5_000)
    assert (stored(cluster, queue), stored(cluster, RETRY)) == (1, 1)


def test_without_a_level_the_broker_counts_the_delay_from_the_number_of_failures() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=Outcome.RETRY_LATER).start()
    cluster.append(queue, b"x")
    cluster.advance(110_000, 100)
    waits = [10_000, 30_000, 60_000]
    assert [one.reconsume_times for one in member.seen] == [0, 1, 2, 3]
    assert [command.fields["delayLevel"] for command in cluster.requests(36)] == ["0"] * 4
    assert cluster.clock.ms - member.seen[-1].store_timestamp < 110_000 - sum(waits) + 1_000


def test_a_message_that_failed_too_often_becomes_a_dead_letter() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=RetryLater(1), reconsume_times_max=2).start()
    cluster.append(queue, b"x")
    cluster.advance(10_000)
    assert [one.reconsume_times for one in member.seen] == [0, 1, 2]
    assert [record.body for record in cluster.log[DEAD]] == [b"x"]


def test_a_limit_that_nobody_set_is_the_groups_own() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.retry_max = 2
    member = Member(cluster, decide=RetryLater(1)).start()
    cluster.append(queue, b"x")
    cluster.advance(10_000)
    assert [one.reconsume_times for one in member.seen] == [0, 1, 2]
    assert [record.body for record in cluster.log[DEAD]] == [b"x"]
    assert not any("maxReconsumeTimes" in command.fields for command in cluster.requests(36))


def test_so_it_is_where_the_broker_takes_nothing_back() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.retry_max = 2
    refuse(cluster, 36)
    member = Member(cluster, decide=Outcome.RETRY_LATER).start()
    cluster.append(queue, b"x")
    cluster.advance(60_000, 100)
    assert [one.reconsume_times for one in member.seen] == [0, 1]
    assert [record.reconsume_times for record in cluster.log[DEAD]] == [2]


@pytest.mark.parametrize(("version", "said"), [(397, "16"), (399, None)])
def test_a_broker_before_4_9_3_fails_without_a_limit_and_is_told_the_usual_one(version: int, said: str | None) -> None:
    cluster, [queue] = cluster_with(1)

    def heartbeat(address: str, command: Command) -> Command:
        cluster.members[GROUP] = ["c1"]
        answer = command.reply()
        answer.version = version
        return answer

    cluster.overrides[34] = heartbeat
    cluster.overrides[36] = lambda _, command: command.reply(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException")
    Member(cluster, decide=Outcome.RETRY_LATER).start()
    cluster.append(queue, b"x")
    cluster.advance(500)
    assert [command.fields.get("maxReconsumeTimes") for command in cluster.requests(36)] == [said]
    assert [command.fields.get("l") for command in cluster.requests(310)] == [said]


def test_a_listener_can_make_a_message_a_dead_letter_at_once() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=DEAD_LETTER).start()
    cluster.append(queue, b"x")
    cluster.advance(6_000)
    assert len(member.seen) == 1
    assert [record.body for record in cluster.log[DEAD]] == [b"x"]
    assert stored(cluster, queue) == 1


def test_of_a_batch_only_those_that_failed_come_again() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, batch_size=4)
    for number in range(4):
        cluster.append(queue, b"%d" % number)
    member.start()
    [(messages, judge)] = member.held
    judge(RetryLater(1, messages=messages[1:3]))
    cluster.run()
    member.decide = Outcome.SUCCESS
    cluster.advance(3_000)
    assert sorted(member.bodies[4:]) == [b"1", b"2"]
    cluster.advance(5_000)
    assert stored(cluster, queue) == 4


def test_messages_of_a_batch_have_levels_and_reasons_of_their_own() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, batch_size=4)
    for number in range(4):
        cluster.append(queue, b"%d" % number)
    member.start()
    [(messages, judge)] = member.held
    judge(RetryLater(1, messages[:1], "later", also=[RetryLater(-1, messages[1:2], "never"), RetryLater(-1, messages[3:], "nor this")]))
    member.decide = Outcome.SUCCESS
    cluster.advance(8_000)
    assert member.bodies[4:] == [b"0"]
    assert sorted(record.body for record in cluster.log[DEAD]) == [b"1", b"3"]
    sent_back = sorted((int(one.fields["delayLevel"]), one.fields["failure"]) for one in cluster.requests(36))
    assert sent_back == [(-1, "never"), (-1, "nor this"), (1, "later")]
    assert stored(cluster, queue) == 4
    counted = member.core.consuming.stats.of("t")
    assert (counted.consumed, counted.retried, counted.dead_lettered) == (2, 1, 2)


def test_a_message_that_its_broker_does_not_take_back_is_sent_to_the_retry_topic_as_upstream_does() -> None:
    cluster, [queue] = cluster_with(1)
    refuse(cluster, 36)
    member = Member(cluster, decide=Outcome.RETRY_LATER).start()
    cluster.append(queue, b"x", "UNIQ_KEY\x01ABC\x02TAGS\x01green\x02TRAN_MSG\x01true\x02mine\x01yes")
    cluster.advance(500)
    [command] = cluster.requests(310)
    assert (command.fields["a"], command.fields["b"]) == ("CLIENT_INNER_PRODUCER", RETRY.topic)
    assert command.fields["j"] == "1"
    assert "l" not in command.fields
    assert decode_properties(command.fields["i"]) == {
        "UNIQ_KEY": "ABC", "TAGS": "green", "mine": "yes", "ORIGIN_MESSAGE_ID": "ABC", "RETRY_TOPIC": "t", "DELAY": "3",
    }  # fmt: skip
    assert command.encode().count(b'"j":"1"') == 1
    member.decide = Outcome.SUCCESS
    cluster.advance(11_000)
    assert [(one.topic, one.reconsume_times) for one in member.seen] == [("t", 0), ("t", 1)]
    assert stored(cluster, queue) == 1


def test_the_inner_producer_is_announced_and_made_once() -> None:
    cluster, [queue] = cluster_with(1)
    refuse(cluster, 36)
    Member(cluster, decide=Outcome.RETRY_LATER).start()
    for _ in range(3):
        cluster.append(queue, b"x")
    cluster.advance(500)
    assert len(cluster.requests(310)) == 3
    assert [producer.group_name for producer in cluster.heartbeats[-1][1].producer_data_set] == ["CLIENT_INNER_PRODUCER"]


def test_what_no_broker_takes_is_consumed_here_again_and_then_counts_one_failure_more() -> None:
    cluster, [queue] = cluster_with(1)
    refuse(cluster, 36, 310)
    member = Member(cluster, decide=Outcome.RETRY_LATER).start()
    cluster.append(queue, b"x")
    cluster.advance(4_900)
    assert member.calls == [1]
    member.decide = Outcome.SUCCESS
    cluster.advance(400)
    assert (member.calls, member.seen[-1].reconsume_times) == ([1, 1], 1)


def test_a_copy_that_is_not_surely_stored_is_consumed_here_again() -> None:
    """A broker that fails and then loses its power would take the copy along, and our progress would have moved past it."""
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=RetryLater(1)).start()
    refuse(cluster, 36)
    place = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"}
    cluster.overrides[310] = lambda _, command: command.reply(ResponseCode.FLUSH_DISK_TIMEOUT, "late", place)
    cluster.append(queue, b"x")
    cluster.advance(4_000)
    assert len(member.seen) == 1
    assert stored(cluster, queue) in (None, 0, -1)
    member.decide = Outcome.SUCCESS
    cluster.advance(8_000)
    assert len(member.seen) == 2


def test_broadcasting_gives_failures_up() -> None:
    cluster, [queue] = cluster_with(1)
    file = MemoryFile()
    member = Member(cluster, decide=Outcome.RETRY_LATER, file=file, broadcasting=True).start()
    cluster.append(queue, b"x")
    cluster.advance(20_000)
    assert member.calls == [1]
    assert not cluster.requests(36)


# -- what takes too long


def test_what_takes_longer_than_fifteen_minutes_is_given_back_with_level_three_and_holds_progress_no_longer() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None).start()
    cluster.append(queue, b"stuck")
    cluster.append(queue, b"fine")
    cluster.run()
    [stuck, fine] = member.held
    fine[1](Outcome.SUCCESS)
    cluster.advance(14 * 60_000, 500)
    assert not cluster.requests(36)
    cluster.advance(2 * 60_000, 500)
    [command] = cluster.requests(36)
    assert command.fields["delayLevel"] == "3"
    assert stored(cluster, queue) == 2
    assert [one.body for one in member.seen] == [b"stuck", b"fine", b"stuck"]
    for late in (Outcome.RETRY_LATER, Outcome.SUCCESS):
        stuck[1](late)
    cluster.run()
    assert len(cluster.requests(36)) == 1
    member.held[-1][1](Outcome.SUCCESS)
    assert member.core.consuming.running == 0


def test_the_timeout_does_not_touch_what_is_quick() -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, consume_timeout_ms=1_000).start()
    cluster.append(queue, b"x")
    cluster.advance(10_000)
    assert not cluster.requests(36)
    assert member.calls == [1]


# -- mistakes


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryLater(-2),
        lambda: PushConsumerSettings(reconsume_times_max=-2),
        lambda: PushConsumerSettings(consume_timeout_ms=0),
        lambda: PushConsumerSettings(suspend_queue_ms=1),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ClientError, match="allowed are"):
        make()


def test_a_golden_send_back_of_java_has_the_same_fields_as_ours(golden: Callable[[int], list[Command]]) -> None:
    """Java's always says 16, so that what the group has holds for nobody."""
    cluster, [queue] = cluster_with(1)
    Member(cluster, decide=RetryLater(1), reconsume_times_max=16).start()
    cluster.append(queue, b"x")
    cluster.run()
    [ours] = cluster.requests(36)
    for theirs in golden(36):
        assert theirs.fields.keys() == ours.fields.keys()
        assert theirs.fields["maxReconsumeTimes"] == ours.fields["maxReconsumeTimes"]
