"""Orderly consuming: one call per queue at a time, nothing overtakes a failure, and one member per queue."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roquet.client.core.ordered import OrderedConsuming
from roquet.client.core.verdicts import DEAD_LETTER, Outcome, RetryLater, Suspend
from roquet.message import MessageQueue
from roquet.wire.calls.consumers import ConsumeDirectlyResult, ConsumerRunningInfo
from roquet.wire.calls.offsets import ResetOffsetBody
from roquet.wire.calls.queues import LockBody
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from tests.client.fakes import FakeCluster
from tests.client.members import GROUP, Member, MemoryFile, ask, cluster_with, stored


def ordered(cluster: FakeCluster, name: str = "c1", **changes: object) -> Member:
    return Member(cluster, name, **{"orderly": True, **changes})  # type: ignore[arg-type] # settings, which Member passes on


def owner(cluster: FakeCluster, queue: MessageQueue) -> str:
    return cluster.locks.get((GROUP, queue), ("", 0))[0]


def fill(cluster: FakeCluster, queue: MessageQueue, count: int) -> None:
    for number in range(count):
        cluster.append(queue, b"%d" % number)


# -- one after the other


def test_the_messages_of_a_queue_come_one_after_the_other() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=None).start()
    fill(cluster, queue, 5)
    cluster.run()
    for number in range(5):
        assert member.bodies == [b"%d" % one for one in range(number + 1)]
        member.held[number][1](Outcome.SUCCESS)
        cluster.run()
    cluster.advance(5_000)
    assert stored(cluster, queue) == 5


def test_queues_do_not_wait_for_each_other() -> None:
    cluster, queues = cluster_with(4)
    member = ordered(cluster, decide=None).start()
    for queue in queues:
        fill(cluster, queue, 2)
    cluster.run()
    assert member.bodies == [b"0"] * 4


def test_after_a_failure_the_same_messages_come_again_in_a_second_and_nothing_overtakes_them() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=Outcome.RETRY_LATER, batch_size=2).start()
    fill(cluster, queue, 4)
    cluster.advance(900)
    assert member.bodies == [b"0", b"1"]
    cluster.advance(200)
    assert member.bodies == [b"0", b"1"] * 2
    assert [one.reconsume_times for one in member.seen[:2]] == [2, 2]  # the same two objects, after two failures
    member.decide = Outcome.SUCCESS
    cluster.advance(1_100)
    assert member.bodies[4:] == [b"0", b"1", b"2", b"3"]
    assert not cluster.requests(36)


def test_a_listener_can_say_how_long_the_queue_rests() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=Suspend(5_000)).start()
    fill(cluster, queue, 1)
    cluster.advance(4_900)
    assert member.calls == [1]
    cluster.advance(200)
    assert member.calls == [1, 1]


def test_a_listener_that_raises_suspends_its_queue() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster)

    def raising(messages: object, judge: object) -> None:
        member.calls.append(1)
        raise ValueError("no")

    member.core.consuming.listener = raising
    member.start()
    fill(cluster, queue, 1)
    cluster.advance(2_500)
    assert member.calls == [1, 1, 1]


def test_a_message_that_failed_too_often_becomes_a_dead_letter_and_the_queue_goes_on() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=Outcome.RETRY_LATER, reconsume_times_max=2, suspend_queue_ms=100).start()
    fill(cluster, queue, 1)
    cluster.advance(1_000)
    assert member.calls == [1, 1, 1]
    [command] = cluster.requests(310)
    assert (command.fields["b"], command.fields["j"], command.fields["l"]) == (f"%RETRY%{GROUP}", "2", "2")
    assert [record.body for record in cluster.log[MessageQueue(f"%DLQ%{GROUP}", "a", 0)]] == [b"0"]
    member.decide = Outcome.SUCCESS
    cluster.append(queue, b"next")
    cluster.advance(5_000)
    assert member.bodies[-1] == b"next"
    assert stored(cluster, queue) == 2


def test_a_dead_letter_that_cannot_be_sent_keeps_its_place_in_the_queue() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.overrides[310] = lambda _, command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")
    member = ordered(cluster, decide=Outcome.RETRY_LATER, reconsume_times_max=0, suspend_queue_ms=100).start()
    fill(cluster, queue, 2)
    cluster.advance(350)
    assert member.bodies == [b"0"] * 4


def test_by_default_an_orderly_message_is_never_given_up() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=Outcome.RETRY_LATER, suspend_queue_ms=10).start()
    fill(cluster, queue, 1)
    cluster.advance(1_000)
    assert len(member.calls) > 40
    assert not cluster.requests(310)


def test_no_more_calls_run_at_once_than_allowed_and_a_queue_lets_others_go_first_after_a_while() -> None:
    cluster, queues = cluster_with(2)
    member = ordered(cluster, decide=None, concurrency=1, continuous_ms=1_000)
    for queue in queues:
        fill(cluster, queue, 30)
    member.start()
    turns: list[int] = []
    while len(turns) < 40:
        [(messages, judge)] = member.held
        member.held.clear()
        turns.append(messages[0].queue_id)
        cluster.advance(100)
        judge(Outcome.SUCCESS)
        cluster.run()
    assert turns == [turns[0]] * 10 + [1 - turns[0]] * 10 + [turns[0]] * 10 + [1 - turns[0]] * 10


# -- committing by hand


def test_without_auto_commit_progress_moves_at_commit_and_a_rollback_repeats_from_the_last_one() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=Outcome.SUCCESS, auto_commit=False).start()
    fill(cluster, queue, 3)
    cluster.advance(5_000)
    assert member.bodies == [b"0", b"1", b"2"]
    assert not stored(cluster, queue)
    member.decide = Outcome.ROLLBACK
    cluster.append(queue, b"3")
    cluster.advance(500)
    member.decide = Outcome.COMMIT
    cluster.advance(6_000)
    assert member.bodies == [b"0", b"1", b"2", b"3"] * 2
    assert stored(cluster, queue) == 4


def test_without_auto_commit_a_dead_letter_commits_nothing_of_what_was_consumed_before_it() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=Outcome.SUCCESS, auto_commit=False).start()
    fill(cluster, queue, 2)
    cluster.run()
    member.decide = DEAD_LETTER
    cluster.append(queue, b"bad")
    cluster.advance(6_000)
    assert dead(cluster) == [b"bad"]
    assert not stored(cluster, queue)
    member.decide = Outcome.ROLLBACK
    cluster.append(queue, b"3")
    cluster.advance(500)
    member.decide = Outcome.COMMIT
    cluster.advance(6_000)
    assert member.bodies == [b"0", b"1", b"bad", b"3", b"0", b"1", b"3"]
    assert stored(cluster, queue) == 4


def test_without_auto_commit_a_dead_letter_with_nothing_before_it_is_progress() -> None:
    cluster, [queue] = cluster_with(1)
    ordered(cluster, decide=DEAD_LETTER, auto_commit=False).start()
    fill(cluster, queue, 2)
    cluster.advance(6_000)
    assert (dead(cluster), stored(cluster, queue)) == ([b"0", b"1"], 2)


def test_a_rollback_repeats_in_the_order_of_the_queue_what_became_done_in_another_one() -> None:
    cluster, [queue] = cluster_with(1)
    fill(cluster, queue, 2)
    member = ordered(cluster, decide=None, auto_commit=False, batch_size=2).start()
    [(messages, judge)] = member.held
    judge(RetryLater(0, messages[:1]))
    member.decide = Outcome.ROLLBACK
    cluster.advance(1_100)
    member.decide = Outcome.COMMIT
    cluster.advance(1_100)
    assert member.bodies == [b"0", b"1", b"0", b"0", b"1"]


# -- locks


def test_a_queue_is_locked_before_its_progress_is_read_as_java_does(golden: Callable[[int], list[Command]]) -> None:
    cluster, [queue] = cluster_with(1)
    ordered(cluster).start()
    codes = [command.code for _, command in cluster.asked if command.code in (41, 14) and b"RETRY" not in command.body]
    assert codes[:2] == [41, 14] or codes[0] == 41
    theirs, ours = LockBody.decode(golden(41)[0].body), LockBody.decode(cluster.requests(41)[0].body)
    assert (ours.client_id, ours.consumer_group) == ("c1", GROUP)
    assert {type(one) for one in theirs.mq_set} == {type(one) for one in ours.mq_set}
    assert owner(cluster, queue) == "c1"


def test_a_queue_that_another_member_holds_is_waited_for() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.locks[GROUP, queue] = ("somebody", cluster.clock.ms + 60_000)
    fill(cluster, queue, 1)
    member = ordered(cluster).start()
    cluster.advance(10_000)
    assert (member.bodies, member.share) == ([], set())
    del cluster.locks[GROUP, queue]
    cluster.advance(3_000)
    assert member.bodies == [b"0"]


def test_locks_are_renewed_every_twenty_seconds() -> None:
    cluster, _ = cluster_with(4)
    ordered(cluster).start()
    taken = len(cluster.requests(41))
    cluster.advance(62_000, 100)
    renewed = cluster.requests(41)[taken:]
    assert [len(LockBody.decode(command.body).mq_set) for command in renewed] == [5, 5, 5, 5]  # and the retry queue


def test_nothing_is_consumed_while_the_lock_is_not_confirmed() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster).start()
    down = [True]
    cluster.overrides[41] = lambda _, command: command.reply(ResponseCode.SYSTEM_ERROR, "no") if down[0] else None
    cluster.advance(45_000, 100)
    fill(cluster, queue, 1)
    cluster.advance(4_000, 100)
    assert member.bodies == []
    down[0] = False
    cluster.advance(4_000, 100)
    assert member.bodies == [b"0"]


def test_a_lock_that_was_lost_begins_the_queue_anew_where_its_next_owner_stopped() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=None).start()
    fill(cluster, queue, 3)
    cluster.run()
    cluster.locks[GROUP, queue] = ("somebody", cluster.clock.ms + 30_000)
    cluster.offsets[GROUP, queue] = 2  # what somebody did
    cluster.advance(22_000, 100)
    assert member.share == set()
    member.held[0][1](Outcome.SUCCESS)  # too late to count
    del cluster.locks[GROUP, queue]
    cluster.advance(3_000, 100)
    assert member.bodies == [b"0", b"2"]
    assert stored(cluster, queue) == 2


def restart(cluster: FakeCluster) -> None:
    """The broker dies, with its locks; whoever waits at it hears so."""
    cluster.refused = {"a:10911"}
    cluster.locks.clear()
    cluster.append(MessageQueue("t", "a", 0), b"wakes the pull")
    cluster.run()


def test_after_a_broker_restarted_nothing_is_consumed_until_the_lock_is_confirmed() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=Outcome.RETRY_LATER, suspend_queue_ms=1_000).start()
    fill(cluster, queue, 3)
    cluster.run()
    assert member.bodies == [b"0"]
    restart(cluster)
    cluster.advance(2_500)
    assert member.bodies == [b"0"]
    cluster.refused = set()
    cluster.locks[GROUP, queue] = ("somebody", cluster.clock.ms + 60_000)  # who was quicker
    cluster.advance(8_000)
    assert (member.bodies, member.share) == ([b"0"], set())
    cluster.offsets[GROUP, queue] = 2
    del cluster.locks[GROUP, queue]
    cluster.advance(2_000)
    assert member.bodies[1] == b"2"


def test_after_a_broker_restarted_a_queue_that_nobody_took_goes_on_without_repeating() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=None).start()
    fill(cluster, queue, 3)
    cluster.run()
    member.held[0][1](Outcome.SUCCESS)
    restart(cluster)
    member.held[1][1](Outcome.SUCCESS)
    cluster.advance(2_000)
    assert member.bodies == [b"0", b"1"]
    cluster.refused = set()
    cluster.advance(4_000)
    assert member.bodies == [b"0", b"1", b"2"]


def test_a_queue_that_somebody_had_and_gave_back_while_the_broker_was_away_begins_where_they_stopped() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=None).start()
    fill(cluster, queue, 4)
    cluster.run()
    restart(cluster)
    member.held[0][1](Outcome.SUCCESS)
    cluster.advance(2_000)
    cluster.offsets[GROUP, queue] = 3
    cluster.refused = set()
    cluster.advance(6_000)
    assert member.bodies == [b"0", b"3"]


# -- moving over


def test_a_queue_moves_after_the_call_that_runs_and_exactly_there() -> None:
    cluster, queues = cluster_with(2)
    one = ordered(cluster, "c1", decide=None).start()
    for queue in queues:
        fill(cluster, queue, 3)
    cluster.run()
    two = ordered(cluster, "c2").start()
    one.core.rebalance()
    cluster.advance(5_000)
    [moving] = queues[1:]
    assert one.share == {queues[0]}
    assert (owner(cluster, moving), two.bodies) == ("c1", [])  # one has not finished with it
    for messages, judge in list(one.held):
        if messages[0].queue == moving:
            judge(Outcome.SUCCESS)
    cluster.advance(2_000)
    assert owner(cluster, moving) == "c2"
    assert two.bodies == [b"1", b"2"]  # what one finished, two does not repeat


def test_a_queue_that_is_not_being_consumed_moves_at_once() -> None:
    cluster, queues = cluster_with(2)
    one = ordered(cluster, "c1").start()
    two = ordered(cluster, "c2")
    two.core.start()
    cluster.advance(300)
    one.core.rebalance()
    cluster.advance(1_500)
    assert (one.share, two.share) == ({queues[0]}, {queues[1]})
    assert (owner(cluster, queues[0]), owner(cluster, queues[1])) == ("c1", "c2")


def test_a_queue_that_comes_back_before_it_was_left_waits_for_the_call_that_runs() -> None:
    cluster, queues = cluster_with(2)
    one = ordered(cluster, "c1", decide=None).start()
    for queue in queues:
        fill(cluster, queue, 2)
    cluster.run()
    two = ordered(cluster, "c2").start()
    one.core.rebalance()
    cluster.run()
    two.close()
    one.core.rebalance()
    cluster.advance(3_000)
    assert [message.body for message in one.seen] == [b"0", b"0"]
    for _, judge in list(one.held):
        judge(Outcome.SUCCESS)
    cluster.advance(3_000)
    assert [message.body for message in one.seen] == [b"0", b"0", b"1", b"1"]


def test_a_queue_that_was_lost_while_it_was_let_go_and_comes_back_during_the_same_call_is_consumed_after_it() -> None:
    cluster, [_, moving] = cluster_with(2)
    one = ordered(cluster, "c1", decide=None).start()
    fill(cluster, moving, 3)
    cluster.run()
    two = ordered(cluster, "c2").start()
    one.core.rebalance()
    cluster.run()
    assert moving not in one.share
    cluster.locks[GROUP, moving] = ("somebody", cluster.clock.ms + 600_000)
    cluster.advance(21_000, 100)
    two.close()
    del cluster.locks[GROUP, moving]
    one.core.rebalance()
    cluster.advance(3_000, 100)
    assert moving in one.share
    assert one.bodies == [b"0"]
    one.decide = Outcome.SUCCESS
    one.held[0][1](Outcome.SUCCESS)  # too late to count
    cluster.advance(6_000, 100)
    assert one.bodies == [b"0", b"0", b"1", b"2"]
    assert stored(cluster, moving) == 3


def test_closing_waits_writes_progress_and_gives_the_locks_back() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=None).start()
    fill(cluster, queue, 2)
    cluster.run()
    done: list[bool] = []
    member.core.client.tasks.start(member.core.close(), lambda _: done.append(True))
    cluster.advance(100)
    assert not done
    member.held[0][1](Outcome.SUCCESS)
    cluster.run()
    assert done == [True]
    assert (stored(cluster, queue), owner(cluster, queue)) == (1, "")
    order = [command.code for _, command in cluster.asked if command.code in (15, 42, 35)]
    assert order == [15, 42, 35]


def test_closing_does_not_wait_for_a_call_that_never_ends_in_a_queue_that_was_let_go() -> None:
    cluster, queues = cluster_with(2)
    member = ordered(cluster, decide=None).start()
    fill(cluster, queues[1], 1)
    cluster.run()
    ordered(cluster, "c2").start()
    member.core.rebalance()
    cluster.run()
    assert (member.share, len(member.held)) == ({queues[0]}, 1)
    done: list[bool] = []
    member.core.client.tasks.start(member.core.close(wait_ms=1_000), lambda _: done.append(True))
    cluster.advance(900)
    assert not done
    cluster.advance(3_000)
    assert done == [True]


# -- what operators ask


def test_a_reset_does_not_run_two_calls_of_a_queue_at_once() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=None).start()
    fill(cluster, queue, 3)
    cluster.run()
    body = ResetOffsetBody(offset_table={queue: 0}).encode()
    ask(cluster, member, Command(220, {"topic": "t", "group": GROUP, "timestamp": "0", "isForce": "true"}, body))
    cluster.advance(500)
    assert len(member.held) == 1
    member.held[0][1](Outcome.SUCCESS)
    cluster.advance(500)
    assert member.bodies == [b"0", b"0"]


def test_an_orderly_consumer_says_so() -> None:
    cluster, _ = cluster_with(1)
    member = ordered(cluster, auto_commit=False, decide=Outcome.COMMIT).start()
    info = ConsumerRunningInfo.decode(ask(cluster, member, Command(307, {"consumerGroup": GROUP, "clientId": "c1"})).body)
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    record = cluster.append(MessageQueue("t", "a", 0), b"x")
    reply = ask(cluster, member, Command(309, {"consumerGroup": GROUP, "brokerName": "a"}, record.encode()))
    result = ConsumeDirectlyResult.decode(reply.body)
    assert (result.order, result.auto_commit, result.consume_result) == (True, False, "CR_COMMIT")


# -- whatever happens


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32))
def test_whoever_comes_and_goes_every_queue_is_consumed_in_order_and_by_one_member_at_a_time(seed: int) -> None:
    random = Random(seed)
    cluster, queues = cluster_with(3)
    members: list[Member] = []
    consumed: dict[MessageQueue, list[int]] = {queue: [] for queue in queues}
    sent = 0
    names = 0

    def finish(member: Member, verdict: Outcome) -> None:
        messages, judge = member.held.pop(0)
        queue = messages[0].queue
        if verdict is Outcome.SUCCESS:
            consumed[queue].append(int(messages[0].body))
        judge(verdict)
        cluster.run()

    def look() -> None:
        running = [messages[0].queue for member in members for messages, _ in member.held]
        assert len(running) == len(set(running)), f"two calls at once: {running}"

    for _ in range(40):
        match random.randrange(6):
            case 0 | 1:
                cluster.append(random.choice(queues), b"%d" % sent)
                sent += 1
            case 2 if len(members) < 3:
                names += 1
                members.append(ordered(cluster, f"c{names}", decide=None, suspend_queue_ms=100).start())
            case 3 if len(members) > 1:
                leaving = random.choice(members)
                leaving.core.client.tasks.start(leaving.core.close(), lambda _: None)
                cluster.advance(random.choice((0, 3_000)), 50)
                look()
                while leaving.held:
                    finish(leaving, Outcome.SUCCESS)
                members.remove(leaving)
            case 4 | 5:
                busy = [member for member in members if member.held]
                if busy:
                    finish(random.choice(busy), random.choice((Outcome.SUCCESS, Outcome.RETRY_LATER)))
        cluster.advance(random.choice((0, 300, 2_000)), 50)
        look()
    if not members:
        members.append(ordered(cluster, "last", decide=None).start())
    for _ in range(400):
        for member in members:
            while member.held:
                finish(member, Outcome.SUCCESS)
        if sum(len(set(done)) for done in consumed.values()) == sent:
            break
        cluster.advance(500, 100)
        look()
    for queue, done in consumed.items():
        assert done == [int(record.body) for record in cluster.log[queue]], queue


def test_the_member_is_of_the_ordered_kind() -> None:
    cluster, _ = cluster_with(1)
    assert isinstance(ordered(cluster).core.consuming, OrderedConsuming)


@pytest.mark.parametrize("orderly", [True, False])
def test_consuming_begins_where_the_group_stopped(orderly: bool) -> None:
    cluster, [queue] = cluster_with(1)
    fill(cluster, queue, 5)
    cluster.offsets[GROUP, queue] = 3
    member = Member(cluster, orderly=orderly).start()
    assert member.bodies == [b"3", b"4"]


# -- what shall not come again


def dead(cluster: FakeCluster) -> list[bytes]:
    return [record.body for record in cluster.log.get(MessageQueue(f"%DLQ%{GROUP}", "a", 0), [])]


def test_a_listener_can_make_a_message_a_dead_letter_and_the_queue_goes_on() -> None:
    cluster, [queue] = cluster_with(1)
    member = ordered(cluster, decide=DEAD_LETTER).start()
    fill(cluster, queue, 3)
    cluster.advance(6_000)
    assert member.bodies == dead(cluster) == [b"0", b"1", b"2"]
    assert stored(cluster, queue) == 3
    assert member.core.consuming.stats.of("t").dead_lettered == 3


def test_of_an_orderly_batch_some_are_done_some_come_again_and_some_become_dead_letters() -> None:
    cluster, [queue] = cluster_with(1)
    fill(cluster, queue, 4)
    member = ordered(cluster, decide=None, batch_size=4).start()
    [(messages, judge)] = member.held
    judge(RetryLater(-1, messages[:1], "worst", also=[RetryLater(0, messages[2:3])]))
    member.decide = Outcome.SUCCESS
    cluster.advance(6_000)
    assert dead(cluster) == [b"0"]
    assert member.bodies[4:] == [b"2"]
    assert stored(cluster, queue) == 4
    counted = member.core.consuming.stats.of("t")
    assert (counted.consumed, counted.retried, counted.dead_lettered) == (3, 1, 1)


def test_what_an_orderly_broadcasting_listener_will_not_have_again_is_given_up() -> None:
    cluster, [queue] = cluster_with(1)
    fill(cluster, queue, 2)
    member = ordered(cluster, decide=DEAD_LETTER, broadcasting=True, file=MemoryFile()).start()
    cluster.advance(6_000)
    assert member.bodies == [b"0", b"1"]
    assert dead(cluster) == []
    assert member.core.consuming.stats.of("t").given_up == 2
