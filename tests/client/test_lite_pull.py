"""LitePullCore: queues are read ahead, poll hands out, and nothing counts as finished before it was asked for again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.client.core.beginning import FROM_FIRST
from roquet.client.core.lite_pull import LitePullCore, LitePullSettings
from roquet.client.core.namespaces import Namespace
from roquet.client.core.tasks import Cancelled, Task, Work
from roquet.errors import ClientError, ConnectFailed, NotStarted
from roquet.message import MessageQueue, ReceivedMessage
from roquet.wire.calls.members import ConsumeType
from roquet.wire.calls.offsets import ResetOffsetBody
from roquet.wire.codes import PullFlag, ResponseCode
from roquet.wire.command import Command
from tests.client.fakes import FakeCluster, Results

GROUP = "lite"


class Lite:
    def __init__(self, cluster: FakeCluster, name: str = "c1", **changes: object) -> None:
        self.cluster = cluster
        made = LitePullSettings(**{"consume_from": FROM_FIRST, **changes})  # type: ignore[arg-type] # the tests pass what it takes
        self.core = LitePullCore(cluster.client(name, seed=len(cluster.cores)), GROUP, made)

    def subscribed(self, tags: str = "*") -> Lite:
        self.core.subscribe("t", tags)
        return self.start()

    def start(self) -> Lite:
        self.core.start()
        self.cluster.run()
        assert self.core.settled.over
        return self

    def poll(self, timeout_ms: int = 1_000) -> list[bytes]:
        results = Results()
        self.begin_poll(timeout_ms, results)
        self.cluster.advance_until(lambda: bool(results), timeout_ms + 100)
        assert isinstance(results.only, list), results.only
        return [message.body for message in results.only]

    def begin_poll(self, timeout_ms: int, results: Results) -> Task[list[ReceivedMessage]]:
        return self.core.client.tasks.start(self.core.poll(timeout_ms), results.append)

    def do(self, work: Work[object]) -> object:
        results = Results()
        self.core.client.tasks.start(work, results.append)
        self.cluster.advance_until(lambda: bool(results))
        return results.only

    def close(self, **how: bool) -> None:
        done: list[bool] = []
        self.core.client.tasks.start(self.core.close(**how), lambda _: done.append(True))
        self.cluster.run()
        assert done == [True]


def cluster_with(queues: int, messages: int = 0) -> tuple[FakeCluster, list[MessageQueue]]:
    cluster = FakeCluster("a")
    made = cluster.create_topic("t", queues)
    for queue in made:
        for number in range(messages):
            cluster.append(queue, b"%d:%d" % (queue.queue_id, number), f"TAGS\x01{'even' if number % 2 == 0 else 'odd'}")
    return cluster, made


def committed(cluster: FakeCluster, queue: MessageQueue) -> int | None:
    return cluster.offsets.get((GROUP, queue))


def test_poll_returns_what_is_there_in_order_and_waits_when_there_is_nothing() -> None:
    cluster, [queue] = cluster_with(1, 25)
    lite = Lite(cluster).subscribed()
    got = [lite.poll(), lite.poll(), lite.poll()]
    assert [len(one) for one in got] == [10, 10, 5]
    assert [body for one in got for body in one] == [b"0:%d" % number for number in range(25)]
    assert lite.poll(500) == []
    results = Results()
    lite.begin_poll(1_000, results)
    cluster.advance(200)
    assert not results
    cluster.append(queue, b"late")
    cluster.run()
    assert isinstance(results.only, list)
    assert [message.body for message in results.only] == [b"late"]


def test_it_pulls_as_upstreams_lite_consumer_does() -> None:
    cluster, _ = cluster_with(1)
    Lite(cluster).subscribed("even || odd")
    [command] = cluster.requests(11)
    assert int(command.fields["sysFlag"]) == PullFlag.SUSPEND | PullFlag.SUBSCRIPTION | PullFlag.LITE_PULL
    assert [command.fields[name] for name in ("subscription", "suspendTimeoutMillis", "maxMsgNums")] == ["even || odd", "20000", "10"]
    [data] = cluster.heartbeats[-1][1].consumer_data_set
    assert data.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert [one.topic for one in data.subscription_data_set] == ["t"]


def test_only_messages_with_the_tags_come_and_the_others_do_not_hold_progress() -> None:
    cluster, [queue] = cluster_with(1, 6)
    lite = Lite(cluster).subscribed("odd")
    assert lite.poll() == [b"0:1", b"0:3", b"0:5"]
    lite.poll(10)
    lite.close()
    assert committed(cluster, queue) == 6


# -- progress


def test_auto_commit_counts_what_earlier_polls_returned_every_five_seconds() -> None:
    cluster, [queue] = cluster_with(1, 15)
    lite = Lite(cluster).subscribed()
    lite.poll()
    cluster.advance(6_000)
    assert committed(cluster, queue) is None  # nobody said that they are finished
    lite.poll()
    cluster.run()
    assert committed(cluster, queue) == 10
    lite.poll(10)
    cluster.run()
    assert committed(cluster, queue) == 10  # not five seconds later yet
    cluster.advance(6_000)
    lite.poll(10)
    cluster.run()
    assert committed(cluster, queue) == 15


@pytest.mark.parametrize(("finish", "offset"), [(True, 20), (False, 10)])
def test_closing_commits_the_last_poll_unless_it_was_left_unfinished(finish: bool, offset: int) -> None:
    cluster, [queue] = cluster_with(1, 30)
    lite = Lite(cluster).subscribed()
    lite.poll()
    lite.poll()
    lite.close(finish=finish)
    assert committed(cluster, queue) == offset
    assert not cluster.members[GROUP]


def test_without_auto_commit_only_commit_counts() -> None:
    cluster, [queue] = cluster_with(1, 25)
    lite = Lite(cluster, auto_commit=False).subscribed()
    lite.poll()
    lite.poll()
    assert lite.do(lite.core.commit()) is None
    assert lite.do(lite.core.committed(queue)) == 20
    lite.poll()
    lite.do(lite.core.commit({queue: 3}))
    assert committed(cluster, queue) == 3
    cluster.advance(10_000)
    lite.close()
    assert committed(cluster, queue) == 3


def test_a_commit_that_fails_says_so() -> None:
    cluster, _ = cluster_with(1, 1)
    lite = Lite(cluster).subscribed()
    lite.poll()
    cluster.overrides[15] = lambda _, command: command.reply(ResponseCode.SYSTEM_ERROR, "no")
    assert isinstance(lite.do(lite.core.commit()), ClientError)


def test_the_next_one_goes_on_where_this_one_stopped() -> None:
    cluster, _ = cluster_with(1, 15)
    lite = Lite(cluster).subscribed()
    lite.poll()
    lite.close()
    assert Lite(cluster, "c2").subscribed().poll() == [b"0:%d" % number for number in range(10, 15)]


# -- moving


def test_seeking_goes_back_and_forth_and_forgets_what_was_read_ahead() -> None:
    cluster, [queue] = cluster_with(1, 25)
    lite = Lite(cluster).subscribed()
    lite.poll()
    assert lite.do(lite.core.seek(queue, 3)) == 3
    assert lite.poll()[0] == b"0:3"
    assert lite.core.position(queue) == 13
    lite.do(lite.core.seek_to_end(queue))
    assert lite.poll(100) == []
    lite.do(lite.core.seek_to_begin(queue))
    assert lite.poll()[0] == b"0:0"


def test_seeking_outside_of_the_queue_or_in_one_that_is_not_ours_is_refused() -> None:
    cluster, [queue] = cluster_with(1, 5)
    lite = Lite(cluster).subscribed()
    for offset in (-1, 6):
        assert "reaches from 0 to 5" in str(lite.do(lite.core.seek(queue, offset)))
    refusal = lite.do(lite.core.seek(MessageQueue("t", "a", 7), 0))
    assert isinstance(refusal, ClientError)
    assert "not read by this consumer" in str(refusal)
    assert len(lite.poll()) == 5


def test_a_paused_queue_gives_nothing_until_it_is_resumed() -> None:
    cluster, queues = cluster_with(2, 5)
    lite = Lite(cluster).subscribed()
    lite.core.pause([queues[0]])
    assert lite.poll()[0].startswith(b"1:")
    assert lite.poll(200) == []
    cluster.append(queues[0], b"0:5")
    cluster.append(queues[1], b"1:5")
    assert lite.poll() == [b"1:5"]
    lite.core.resume([queues[0]])
    assert lite.poll() + lite.poll() == [b"0:%d" % number for number in range(6)]


def test_reading_ahead_stops_at_the_limits_and_goes_on_when_poll_takes_some() -> None:
    cluster, queues = cluster_with(2, 100)
    lite = Lite(cluster, count_max=20, count_all_max=30).subscribed()
    cluster.advance(1_000)
    assert 30 <= lite.core._count <= 40  # a pull that was under way is still taken
    got = [body for _ in range(20) for body in lite.poll(100)]
    assert sorted(got) == sorted(b"%d:%d" % (queue.queue_id, number) for queue in queues for number in range(100))


def test_what_a_paused_queue_holds_takes_no_room_from_the_others() -> None:
    cluster, [full, other] = cluster_with(2)
    lite = Lite(cluster, count_all_max=30).subscribed()
    lite.core.pause([other])
    for number in range(100):
        cluster.append(full, b"0:%d" % number)
    cluster.advance(25_000, 100)
    lite.core.resume([other])
    cluster.append(other, b"1:0")
    cluster.advance(1_000)
    assert [lite.core.readings[queue].count for queue in (full, other)] == [30, 0]
    lite.core.pause([full])
    assert lite.poll() == [b"1:0"]
    cluster.append(other, b"1:1")
    assert lite.poll() == [b"1:1"]
    lite.core.resume([full])
    assert lite.poll()[0] == b"0:0"


def test_an_offset_that_is_gone_goes_on_at_the_nearest() -> None:
    cluster, [queue] = cluster_with(1, 10)
    cluster.offsets[GROUP, queue] = 2
    cluster.first[queue] = 5
    cluster.log[queue] = cluster.log[queue][5:]
    assert Lite(cluster).subscribed().poll()[0] == b"0:5"


def test_an_operators_reset_moves_the_queue() -> None:
    cluster, [queue] = cluster_with(1, 10)
    lite = Lite(cluster).subscribed()
    lite.poll()
    body = ResetOffsetBody(offset_table={queue: 7}).encode()
    [answer] = cluster.ask("c1", Command(220, {"topic": "t", "group": GROUP, "timestamp": "0", "isForce": "true"}, body))
    assert answer.code == 0
    assert lite.poll() == [b"0:7", b"0:8", b"0:9"]
    [answer] = cluster.ask("c1", Command(307, {"consumerGroup": GROUP, "clientId": "c1"}))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# -- which queues


def test_a_broker_that_is_down_is_asked_once_in_three_seconds_for_each_assigned_queue() -> None:
    cluster, queues = cluster_with(3)
    lite = Lite(cluster)
    lite.core.assign(queues)
    cluster.overrides[14] = lambda *_: ConnectFailed("down")
    lite.start()
    cluster.advance(13_000, 500)
    assert len(cluster.requests(14)) == 3 * 5
    del cluster.overrides[14]
    cluster.advance(3_000, 500)
    assert set(lite.core.readings) == set(queues)


def test_a_closed_consumer_leaves_no_task_behind() -> None:
    cluster, queues = cluster_with(3, 5)
    for how in ("subscribed", "assigned"):
        lite = Lite(cluster, how)
        before = len(lite.core.client.tasks)
        if how == "subscribed":
            lite.subscribed()
        else:
            lite.core.assign(queues)
            lite.start()
        lite.poll()
        lite.core.pause([queues[0]])
        lite.close()
        cluster.advance(60_000, 500)
        assert len(lite.core.client.tasks) == before


def test_members_share_the_queues_and_take_over_where_the_other_stopped() -> None:
    cluster, queues = cluster_with(2, 20)
    one = Lite(cluster, "c1").subscribed()
    one.poll()
    one.poll()
    one.poll(1)  # what was returned before is finished
    two = Lite(cluster, "c2").subscribed()
    one.core.rebalance()
    cluster.run()
    assert (set(one.core.readings), set(two.core.readings)) == ({queues[0]}, {queues[1]})
    cluster.advance(2_000)
    two.core.client.rebalance_all()
    rest = [body for _ in range(4) for lite in (one, two) for body in lite.poll(50)]
    assert len(rest) <= 30
    assert {b"0:%d" % number for number in range(20)} | {b"1:%d" % number for number in range(20)} >= set(rest)


def test_assigned_queues_are_read_without_joining_the_group() -> None:
    cluster, queues = cluster_with(3, 2)
    lite = Lite(cluster)
    lite.core.assign(queues[:2])
    lite.start()
    assert sorted(lite.poll() + lite.poll()) == [b"0:0", b"0:1", b"1:0", b"1:1"]
    assert not cluster.members[GROUP]
    lite.poll(10)  # those before are finished
    lite.core.assign([queues[2]])
    assert lite.poll() == [b"2:0", b"2:1"]
    assert set(lite.core.readings) == {queues[2]}
    lite.close()
    assert [committed(cluster, queue) for queue in queues] == [2, 2, 2]


def test_an_assigned_queue_whose_broker_is_down_is_tried_again() -> None:
    cluster, [queue] = cluster_with(1, 1)
    cluster.refused = {"a:10911"}
    lite = Lite(cluster)
    lite.core.assign([queue])
    lite.start()
    assert lite.poll(1_000) == []
    cluster.refused = set()
    assert lite.poll(5_000) == [b"0:0"]


def test_subscribing_and_assigning_exclude_each_other() -> None:
    cluster, queues = cluster_with(1)
    one, two = Lite(cluster, "c1"), Lite(cluster, "c2")
    one.core.subscribe("t")
    two.core.assign(queues)
    with pytest.raises(ClientError, match="exclude each other"):
        one.core.assign(queues)
    with pytest.raises(ClientError, match="exclude each other"):
        two.core.subscribe("t")


def test_a_topic_can_be_subscribed_and_left_while_running() -> None:
    cluster, _ = cluster_with(1, 2)
    lite = Lite(cluster).start()
    assert lite.poll(50) == []
    lite.core.subscribe("t")
    assert lite.poll(2_000) == [b"0:0", b"0:1"]
    lite.core.unsubscribe("t")
    assert lite.core.readings == {}


def test_in_a_namespace_names_are_wrapped_and_shown_without() -> None:
    cluster = FakeCluster("a")
    [queue] = cluster.create_topic("blue%t", 1)
    cluster.append(queue, b"x")
    lite = Lite(cluster, namespace=Namespace("blue")).subscribed()
    results = Results()
    lite.begin_poll(100, results)
    cluster.run()
    assert isinstance(results.only, list)
    [message] = results.only
    assert isinstance(message, ReceivedMessage)
    assert message.topic == "t"
    assert lite.core.position(MessageQueue("t", "a", 0)) == 1


# -- polling


def test_those_who_wait_are_served_in_turn_and_closing_tells_them() -> None:
    cluster, [queue] = cluster_with(1)
    lite = Lite(cluster).subscribed()
    results = [Results(), Results(), Results()]
    polls = [lite.begin_poll(10_000, one) for one in results]
    polls[0].cancel()
    cluster.append(queue, b"x")
    cluster.run()
    assert isinstance(results[0].only, Cancelled)
    assert [len(one) for one in results[1:]] == [1, 0]
    lite.close()
    assert isinstance(results[2].only, NotStarted)
    assert isinstance(lite.do(lite.core.poll(1)), NotStarted)


def test_what_was_handed_to_nobody_is_handed_out_again() -> None:
    cluster, _ = cluster_with(1, 3)
    lite = Lite(cluster).subscribed()
    results = Results()
    lite.begin_poll(100, results)
    assert isinstance(results.only, list)
    lite.core.unread(results.only)
    assert lite.poll() == [b"0:0", b"0:1", b"0:2"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["send", "poll", "commit", "crash", "close", "wait"]), max_size=40))
def test_whatever_happens_no_message_is_skipped(steps: list[str]) -> None:
    cluster, queues = cluster_with(2)
    names = iter(range(1_000))
    lite = Lite(cluster, f"c{next(names)}", pull_batch_size=2).subscribed()
    sent: set[bytes] = set()
    seen: set[bytes] = set()
    last: list[bytes] = []

    def fresh() -> Lite:
        cluster.members[GROUP].clear()
        return Lite(cluster, f"c{next(names)}", pull_batch_size=2).subscribed()

    for number, step in enumerate(steps):
        match step:
            case "send":
                sent.add(b"%d" % number)
                cluster.append(queues[number % 2], b"%d" % number)
            case "poll":
                seen.update(last)  # asked again: those are done
                last = lite.poll(10)
            case "commit":
                seen.update(last)
                lite.do(lite.core.commit())
            case "close":
                seen.update(last)
                last = []
                lite.close()
                lite = fresh()
            case "crash":
                last = []  # never finished
                lite.core.client.close()
                lite.core.started = False
                lite = fresh()
            case "wait":
                cluster.advance(3_000, 100)
    for _ in range(60):
        seen.update(last)
        last = lite.poll(50)
        if not last and seen == sent:
            break
    assert seen == sent
