"""One turn of the loop: how much of what arrived is done before others get theirs."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from roquet.broker import core
from roquet.broker import members as members_module
from roquet.broker import stats as stats_module
from roquet.broker.handler import LARGE, PORTION, Portions, elsewhere
from roquet.broker.locks import PIECE, pieces
from roquet.broker.members import EXPIRED_MAX, LOOK_COST, NOTIFIED_MAX, REMOVED_MAX
from roquet.broker.pull import WAKES_MAX
from roquet.broker.stats import Stats
from roquet.broker.topics import Topic
from roquet.errors import Refused
from roquet.message import MessageQueue
from roquet.ports import Peer, Read
from roquet.store.disk import Cold
from roquet.testing import FakePeer
from roquet.testing.clock import ManualClock
from roquet.wire.calls.queues import LockBody
from roquet.wire.calls.topics import TopicStats
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, Command, command_of
from roquet.wire.frame import Frame, Framer

from .whole import Whole, pull_fields, send_fields

SLOW = 9_999
"""A request of the test's own."""


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path)
    yield made
    made.close()


def frames_of(*commands: Command) -> list[Frame]:
    return [frame for command in commands for frame in Framer().feed(command.encode())]


def plain_send(opaque: int) -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body", opaque=opaque)


def taking(whole: Whole, ms: int) -> list[int]:
    """From now on a SLOW request takes so long; returns the opaques of those that were handled."""
    handled: list[int] = []

    def handle(peer: Peer, command: Command) -> Command:
        handled.append(command.opaque)
        whole.clock.forward(ms)
        return command.reply()

    whole.broker.table[SLOW] = handle
    return handled


def test_who_does_not_take_its_answers_gets_no_more_of_them_but_its_sends_are_stored(whole: Whole) -> None:
    handled = taking(whole, 0)
    peer = FakePeer()

    def handle(_: Peer, command: Command) -> Command:
        peer.unread = command.opaque == 2
        handled.append(command.opaque)
        return command.reply()

    whole.broker.table[SLOW] = handle
    whole.broker.topics.put(Topic("T", 4, 4))
    frames = frames_of(*[Command(SLOW, opaque=n) for n in range(4)], plain_send(4), Command(SLOW, opaque=5))
    rest = whole.broker.receive(peer, frames)
    assert rest == frames[3:]
    assert [one.opaque for one in peer.take()] == [0, 1, 2]
    assert whole.broker.receive(peer, frames[4:]) == frames[5:], "a send has no answer to speak of"
    assert [one.opaque for one in peer.take()] == [4]
    peer.unread = False
    assert whole.broker.receive(peer, rest) is None
    assert handled == [0, 1, 2, 3, 5]


def test_of_who_is_gone_what_needs_no_answer_is_done_and_nothing_else(whole: Whole) -> None:
    handled = taking(whole, 0)
    whole.broker.topics.put(Topic("T", 4, 4))
    peer = FakePeer()
    peer.closed = True
    oneways = [Command(SLOW, opaque=n, flag=ONEWAY) for n in (1, 3)]
    assert whole.broker.receive(peer, frames_of(Command(SLOW, opaque=0), oneways[0], plain_send(2), oneways[1])) is None
    assert handled == [1, 3]
    assert whole.broker.store.queue("T", 0).visible == 1
    assert not peer.take()
    pulls = frames_of(*[Command(RequestCode.PULL_MESSAGE, pull_fields(), opaque=n) for n in range(4)])
    going = FakePeer()
    for _ in range(2):  # a shape that is known
        whole.broker.receive(going, pulls)
    assert len(going.take()) == 8
    going.closed = True
    handled.clear()
    assert whole.broker.receive(going, [*pulls, *frames_of(*oneways)]) is None
    assert handled == [1, 3]
    taking(whole, 11)
    left = whole.broker.receive(peer, frames_of(*oneways), whole.clock.steady_ms() + 10)
    assert left == frames_of(oneways[1]), "no longer than a turn"


def test_a_request_that_needs_more_turns_is_in_nobody_else_s_way(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    def portions(peer: Peer, command: Command) -> Portions:
        for _ in range(3):
            whole.clock.ms += 11
            yield None
        return command.reply()

    whole.broker.table[SLOW] = portions
    whole.broker.topics.put(Topic("T", 4, 4))
    busy, other = FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    rest = whole.broker.receive(busy, frames_of(Command(SLOW, opaque=1)), whole.clock.steady_ms() + 10)
    assert rest == []
    assert whole.broker.has_begun(busy)
    assert not whole.broker.has_begun(other)
    short: list[Peer] = []
    take, take_reads = whole.broker.puller.take, whole.broker.sender.take_reads

    def pulls(peer: Peer, *rest: Any) -> tuple[int, bool]:
        short.append(peer)
        return take(peer, *rest)

    def sends(reads: list[Read]) -> tuple[int, int]:
        short.extend(peer for peer, _ in reads)
        return take_reads(reads)

    monkeypatch.setattr(whole.broker.puller, "take", pulls)
    monkeypatch.setattr(whole.broker.sender, "take_reads", sends)
    for request in (Command(RequestCode.PULL_MESSAGE, pull_fields()), plain_send(2)):
        for peer in (busy, other):
            short.clear()
            whole.broker.receive(peer, frames_of(request), 0)
            usual = peer is other and (request.code == RequestCode.PULL_MESSAGE or whole.broker.sender.plain.native is not None)
            assert short == ([peer] if usual else [])
    busy.unread = True
    while whole.broker.receive(busy, [], whole.clock.steady_ms() + 10) is not None:
        pass
    assert not whole.broker.has_begun(busy)
    assert busy.take()[-1].opaque == 1


def test_a_turn_ends_with_the_request_that_uses_it_up_and_the_rest_comes_back_in_order(whole: Whole) -> None:
    handled = taking(whole, 4)
    frames = frames_of(*[Command(SLOW, opaque=n) for n in range(10)])
    peer, turns = FakePeer(), 0
    rest: list[Frame] | None = frames
    while rest is not None:
        before = len(handled)
        rest = whole.broker.receive(peer, rest, whole.clock.steady_ms() + 10)
        assert len(handled) - before <= 3
        turns += 1
    assert turns == 4
    assert handled == [answer.opaque for answer in peer.take()] == list(range(10))


def test_in_a_turn_that_is_over_plain_sends_are_taken_and_what_is_behind_another_request_waits_with_it(whole: Whole) -> None:
    whole.broker.topics.put(Topic("T", 4, 4))
    handled = taking(whole, 1)
    peer = FakePeer()
    frames = frames_of(plain_send(1), plain_send(2), Command(SLOW, opaque=3), plain_send(4))
    rest = whole.broker.receive(peer, frames, whole.clock.steady_ms())
    assert [answer.opaque for answer in peer.take()] == [1, 2]
    assert rest == frames[2:]
    assert not handled
    assert whole.broker.receive(peer, rest, whole.clock.steady_ms() + 10) is None
    assert sorted(answer.opaque for answer in peer.take()) == [3, 4]


def test_a_request_that_takes_a_whole_turn_to_be_read_is_handled_in_it(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    handled = taking(whole, 1)
    real = command_of

    def slowly(head: Any, body: bytes) -> Command:
        whole.clock.forward(30)
        return real(head, body)

    monkeypatch.setattr(core, "command_of", slowly)
    rest = whole.broker.receive(FakePeer(), frames_of(Command(SLOW, opaque=1), Command(SLOW, opaque=2)), whole.clock.steady_ms() + 10)
    assert handled == [1]
    assert rest is not None
    assert len(rest) == 1


def in_portions(whole: Whole, portions: int, ms: int) -> None:
    def work(peer: Peer, command: Command) -> Portions:
        for _ in range(portions):
            whole.clock.forward(ms)
            yield None
        return command.reply(0, "done")

    whole.broker.table[SLOW] = work


def test_work_in_portions_goes_on_turn_by_turn_before_what_came_behind_it(whole: Whole) -> None:
    in_portions(whole, 10, 5)
    handled = taking_other(whole)
    peer, turns = FakePeer(), 0
    rest = whole.broker.receive(peer, frames_of(Command(SLOW, opaque=1), Command(SLOW + 1, opaque=2)), whole.clock.steady_ms() + 10)
    while rest is not None:
        assert not handled
        rest = whole.broker.receive(peer, rest, whole.clock.steady_ms() + 10)
        turns += 1
    assert turns == 5
    assert [(answer.opaque, answer.remark) for answer in peer.take()] == [(1, "done"), (2, None)]


def taking_other(whole: Whole) -> list[int]:
    handled: list[int] = []

    def handle(peer: Peer, command: Command) -> Command:
        handled.append(command.opaque)
        return command.reply()

    whole.broker.table[SLOW + 1] = handle
    return handled


def test_portions_of_a_connection_that_is_gone_are_not_worked_on(whole: Whole) -> None:
    in_portions(whole, 10, 20)
    peer = FakePeer()
    assert whole.broker.receive(peer, frames_of(Command(SLOW)), whole.clock.steady_ms() + 10) == []
    peer.closed = True
    whole.broker.disconnected(peer)
    before = whole.clock.steady_ms()
    assert whole.broker.receive(peer, [], before + 10) is None
    assert whole.clock.steady_ms() == before
    assert not peer.sent


def test_a_portion_that_needs_the_disk_goes_on_when_the_disk_has_answered(whole: Whole) -> None:
    fetched: list[int] = []

    def work(peer: Peer, command: Command) -> Portions:
        for n in range(3):
            yield Cold(lambda n=n: fetched.append(n))  # type: ignore[misc]
        return command.reply(0, str(fetched))

    whole.broker.table[SLOW] = work
    peer = FakePeer()
    handled = taking_other(whole)
    frames = frames_of(Command(SLOW, opaque=1), Command(SLOW + 1, opaque=2))
    assert whole.broker.receive(peer, frames, whole.clock.steady_ms() + 10) is None
    assert handled == [2], "what is behind it does not wait for the disk"
    for _ in range(4):
        whole.background.release()
        whole.broker.tick(whole.clock.steady_ms())
    assert [answer.remark for answer in peer.take()] == [None, "[0, 1, 2]"]


def test_a_portion_that_raises_cold_begins_anew_and_one_that_fails_is_answered(whole: Whole) -> None:
    warm: list[int] = []

    def work(peer: Peer, command: Command) -> Portions:
        yield None
        if not warm:
            raise Cold(lambda: warm.append(1))
        raise Refused(7, "no")

    whole.broker.table[SLOW] = work
    peer = FakePeer()
    assert whole.broker.receive(peer, frames_of(Command(SLOW, opaque=1)), whole.clock.steady_ms() + 10) is None
    whole.background.release()
    whole.broker.tick(whole.clock.steady_ms())
    assert [(answer.code, answer.remark) for answer in peer.take()] == [(7, "no")]


# ---- ticks and wake-ups ----------------------------------------------------------------------------------------------


def park(whole: Whole, count: int) -> list[FakePeer]:
    """As many pulls, each on its own connection, that wait for the end of T/0."""
    peers = [FakePeer(f"127.0.0.1:{n}") for n in range(count)]
    for peer in peers:
        assert whole.broker.receive(peer, frames_of(Command(RequestCode.PULL_MESSAGE, pull_fields(offset=0, sysFlag="6")))) is None
    assert len(whole.broker.puller.parking) == count
    return peers


def answered(peers: list[FakePeer]) -> int:
    return sum(1 for peer in peers if peer.sent)


def test_a_message_that_many_wait_for_wakes_some_at_once_and_the_others_tick_by_tick(whole: Whole) -> None:
    whole.broker.topics.put(Topic("T", 1, 1))
    peers = park(whole, 2 * WAKES_MAX + 10)
    whole.frames(plain_send(1))
    counts = [answered(peers)]
    while counts[-1] < len(peers):
        whole.tick(50)
        counts.append(answered(peers))
    assert counts == [WAKES_MAX, 2 * WAKES_MAX, 2 * WAKES_MAX + 10]
    assert all(peer.sent[0].code == 0 and len(peer.sent) == 1 for peer in peers)


def test_pulls_whose_time_is_up_are_answered_some_a_tick(whole: Whole) -> None:
    whole.broker.topics.put(Topic("T", 1, 1))
    peers = park(whole, WAKES_MAX + 20)
    whole.tick(20_000)
    assert answered(peers) == WAKES_MAX
    whole.tick(50)
    assert answered(peers) == len(peers)


def test_counters_are_sampled_some_a_tick_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "SAMPLES", 10)
    clock = ManualClock()
    stats = Stats(clock, "c")
    for n in range(35):
        stats.put(f"T{n}", 6, 60)
    sampled: list[int] = []
    for _ in range(8):
        clock.forward(10_000 if not sampled else 50)
        stats.tick(clock.ms)
        sampled.append(sum(1 for n in range(35) if window(stats, f"T{n}")))
    assert sampled == [8, 18, 28, 35, 35, 35, 35, 35]


def window(stats: Stats, topic: str) -> int:
    found = stats.find("TOPIC_PUT_NUMS", topic)
    assert found is not None
    return found[0].minute.moved()[1][0]


def test_silent_clients_are_removed_some_a_tick_and_one_that_speaks_meanwhile_stays(whole: Whole) -> None:
    peers = [FakePeer(f"127.0.0.1:{n}") for n in range(3 * REMOVED_MAX)]
    beats = [Command(RequestCode.HEART_BEAT, {}, orjson.dumps(
        {"clientID": f"c{n}", "consumerDataSet": [], "producerDataSet": [{"groupName": "p"}]})) for n in range(len(peers))]  # fmt: skip
    for peer, beat in zip(peers, beats, strict=True):
        whole.broker.receive(peer, frames_of(beat))
    whole.tick(200_000)
    assert sum(peer.closed for peer in peers) == REMOVED_MAX
    whole.broker.receive(peers[-1], frames_of(beats[-1]))
    for _ in range(3):
        whole.tick(50)
    assert [peer.closed for peer in peers] == [True] * (len(peers) - 1) + [False]


def consumer_beat(n: int, topics: int = 1, groups: Sequence[str] = ("g",)) -> Command:
    consumer = {
        "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "unitMode": False,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": f"topic-number-{k}", "subString": "*", "subVersion": 1} for k in range(topics)],
    }  # fmt: skip
    consumers = [consumer | {"groupName": group} for group in groups]
    body = {"clientID": f"c{n}", "consumerDataSet": consumers, "producerDataSet": []}
    return Command(RequestCode.HEART_BEAT, {}, orjson.dumps(body))


def test_a_group_hears_once_a_tick_of_its_silent_members_and_large_groups_bound_how_many_go(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [FakePeer(f"127.0.0.1:{n}") for n in range(100)]
    for n, peer in enumerate(peers):
        whole.broker.receive(peer, frames_of(consumer_beat(n)))
    whole.clock.forward(100_000)
    for n, peer in enumerate(peers[:10]):
        whole.broker.receive(peer, frames_of(consumer_beat(n)))
    for peer in peers:
        peer.take()
    whole.tick(60_000)
    assert sum(peer.closed for peer in peers) == REMOVED_MAX
    assert [len(peer.take()) for peer in peers[:10]] == [1] * 10, "each of them costs a look at all members: not once for each that goes"
    monkeypatch.setattr(members_module, "NOTIFIED_MAX", 50)
    whole.tick(50)
    assert sum(peer.closed for peer in peers) == REMOVED_MAX + 1
    group = whole.broker.members.group("g")
    assert group is not None
    assert len(group.members) == 100 - REMOVED_MAX - 1
    for _ in range(80):
        whole.tick(50)
    assert list(group.members) == peers[:10]


def test_who_leaves_a_thousand_groups_is_gone_at_once_and_the_groups_hear_of_it_some_a_tick(whole: Whole) -> None:
    one, other = FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    names = [f"g{n}" for n in range(1_000)]
    left: list[str] = []
    whole.broker.members.on_left.append(left.append)
    for first in range(0, 1_000, 100):
        whole.broker.receive(one, frames_of(consumer_beat(1, groups=names[first : first + 100])))
    whole.broker.receive(other, frames_of(consumer_beat(2, groups=names[:10])))
    other.take()
    whole.broker.disconnected(one)
    assert [name for name in names if whole.broker.members.group(name) is not None] == names[:10]
    assert len(other.take()) == 10
    at_once = NOTIFIED_MAX // LOOK_COST
    assert 0 < len(left) <= at_once
    whole.broker.receive(one, frames_of(consumer_beat(1, groups=names[-1:])))  # back before anybody was told
    for _ in range(1_000 // at_once + 1):
        before = len(left)
        whole.tick(50)
        assert len(left) - before <= at_once
    assert left == names[10:-1]
    assert whole.broker.members.group(names[-1]) is not None


def test_of_calls_to_clients_that_are_due_together_each_turn_gives_up_some_and_none_waits_for_a_tick(whole: Whole) -> None:
    tool, silent = FakePeer("127.0.0.1:9"), [FakePeer(f"127.0.0.1:{n}") for n in range(3)]
    for n, peer in enumerate(silent):
        whole.broker.receive(peer, frames_of(consumer_beat(n, groups=["g"])))
    asked = {"consumerGroup": "g", "jstackEnable": "false"}
    client_ids = whole.broker.members.group("g").client_ids()  # type: ignore[union-attr]
    for client_id in client_ids:
        command = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, asked | {"clientId": client_id})
        whole.broker.receive(tool, frames_of(*[command] * EXPIRED_MAX))
    assert not tool.take()
    whole.clock.forward(10_000)
    rest = whole.broker.tick(whole.clock.steady_ms())
    for _ in silent:
        assert [answer.code for answer in tool.take()] == [ResponseCode.CONSUME_MSG_TIMEOUT] * EXPIRED_MAX
        assert rest is not None
        rest = rest()
    assert not tool.take()
    assert rest is None


def test_who_joins_and_leaves_all_the_time_does_not_keep_silent_clients_in(whole: Whole) -> None:
    restless, silent = FakePeer("127.0.0.1:1"), [FakePeer(f"127.0.0.1:{n}") for n in (2, 3)]
    names = [f"g{n}" for n in range(2 * NOTIFIED_MAX // LOOK_COST)]
    for n, peer in enumerate(silent):
        whole.broker.receive(peer, frames_of(consumer_beat(n, groups=["q"])))
    whole.clock.forward(200_000)
    for _ in range(4):
        for first in range(0, len(names), 100):
            whole.broker.receive(restless, frames_of(consumer_beat(9, groups=names[first : first + 100])))
        whole.broker.disconnected(restless)
        whole.tick(50)
    assert [peer.closed for peer in silent] == [True, True]


def test_a_heartbeat_with_thousands_of_subscriptions_is_read_elsewhere(whole: Whole) -> None:
    beat = consumer_beat(1, topics=3_000)
    assert len(beat.body) >= LARGE
    whole.background.hold = True
    peer = FakePeer()
    assert whole.broker.receive(peer, frames_of(beat)) is None
    assert not peer.sent, "not on the loop"
    whole.background.hold = False
    whole.background.release()
    whole.broker.tick(whole.clock.steady_ms())
    group = whole.broker.members.group("g")
    assert group is not None
    assert len(group.subscriptions) == 3_000
    assert [answer.code for answer in peer.take() if answer.is_response] == [0]


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUME_STATS, RequestCode.GET_BROKER_CONSUME_STATS])
def test_progress_in_many_small_topics_is_looked_at_some_queues_at_a_time(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    broker = whole.broker
    for n in range(300):
        broker.topics.put(Topic(f"T{n}", 2, 2))
        broker.offsets.commit("g", f"T{n}", 0, 0)
    whole.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, orjson.dumps({"groupName": "g"}))
    looked: list[str] = []
    find = broker.store.find_queue

    def counted(topic: str, queue_id: int) -> Any:
        looked.append(topic)
        return find(topic, queue_id)

    monkeypatch.setattr(broker.store, "find_queue", counted)
    command = Command(code, {"consumerGroup": "g", "isOrder": "false"})
    work = broker.table[code](whole.peer, command)
    assert isinstance(work, Generator)
    counts = []
    while True:
        before = len(looked)
        try:
            next(work)
        except StopIteration as stop:
            answer = stop.value
            break
        counts.append(len(looked) - before)
    assert len(looked) == 600
    assert max(counts) <= PORTION
    assert answer.body.count(b'"lastTimestamp"') == 600


def test_the_files_of_a_deleted_topic_go_in_the_background_and_one_of_its_name_can_be_made_at_once(whole: Whole) -> None:
    whole.broker.topics.put(Topic("T", 4, 4))
    whole.frames(plain_send(1))
    for _ in range(3):
        whole.tick(1_000)
    old = whole.root / "consumequeue/T"
    assert list(old.rglob("0*"))
    whole.background.hold = True
    whole.broker.topics.delete("T")
    assert not old.exists()
    assert list((whole.root / "deleted").rglob("0*")), "put away, and not removed on the loop"
    whole.broker.topics.put(Topic("T", 4, 4))
    whole.peer.take()
    whole.frames(plain_send(2))
    for _ in range(3):
        whole.tick(1_000)
    whole.background.hold = False
    whole.background.release()
    assert not list((whole.root / "deleted").rglob("0*"))
    assert list(old.rglob("0*")), "those of the new topic stay"
    assert whole.broker.store.queues["T", 0].next == 1


def test_hundreds_of_filtered_pulls_in_one_read_take_many_turns_and_each_gets_on(tmp_path: Path) -> None:
    """Issue 10.18: 566 of them held the loop for 4.6 s."""
    whole = Whole(tmp_path / "sql", clock=ManualClock(look_ms=1), enable_property_filter=True)
    whole.broker.topics.put(Topic("T", 1, 1))
    for n in range(900):
        whole.frames(plain_send(n))
    whole.peer.take()
    fields = pull_fields(subscription="never = 'there'", expressionType="SQL92")
    peer = FakePeer()
    rest: list[Frame] | None = frames_of(*[Command(RequestCode.PULL_MESSAGE, fields, opaque=n) for n in range(100)])
    turns = []
    while rest is not None:
        before = len(peer.sent)
        rest = whole.broker.receive(peer, rest, whole.clock.ms + 10)
        turns.append(len(peer.sent) - before)
    assert max(turns) <= 10
    assert sum(turns) == 100
    assert {int(answer.fields["nextBeginOffset"]) for answer in peer.sent} == {800}, "judged, none taken, and the next begins behind them"
    whole.close()


def test_a_large_answer_is_written_elsewhere_and_is_the_same(whole: Whole) -> None:
    whole.broker.topics.put(Topic("T", 1_500, 1_500))
    whole.background.hold = True
    peer = FakePeer()
    assert whole.broker.receive(peer, frames_of(Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}))) is None
    assert not peer.sent, "not on the loop"
    whole.background.hold = False
    whole.background.release()
    whole.broker.tick(whole.clock.steady_ms())
    (answer,) = peer.take()
    assert len(TopicStats.decode(answer.body).offset_table) == 1_500


def test_large_answers_under_way_have_a_limit(whole: Whole) -> None:
    whole.broker.topics.put(Topic("T", 1_500, 1_500))
    whole.background.hold = True
    peer = FakePeer()
    asked = [Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}, opaque=n) for n in range(core.AWAY_MAX + 3)]
    assert whole.broker.receive(peer, frames_of(*asked)) is None
    assert [answer.code for answer in peer.take()] == [ResponseCode.SYSTEM_BUSY] * 3
    whole.background.hold = False
    whole.background.release()
    for _ in range(3):
        whole.broker.tick(whole.clock.steady_ms())
    assert [answer.code for answer in peer.take()] == [0] * core.AWAY_MAX
    assert whole.broker.receive(peer, frames_of(asked[0])) is None
    whole.broker.tick(whole.clock.steady_ms())
    assert [answer.code for answer in peer.take()] == [0], "there is room again"


def test_the_rows_of_a_large_answer_are_let_go_of_elsewhere(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TopicStats] = []

    def make(table: Any) -> TopicStats:
        made.append(TopicStats(table))
        return made[-1]

    monkeypatch.setattr("roquet.wire.calls.topics.TopicStats", make)
    whole.broker.topics.put(Topic("T", 1_500, 1_500))
    whole.background.hold = True
    assert whole.broker.receive(FakePeer(), frames_of(Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}))) is None
    (work, _), (body,) = whole.background.waiting.pop(), made
    assert len(body.offset_table) == 1_500
    work()
    assert not body.offset_table, "nothing is left for the loop to free"


def test_what_fails_elsewhere_leaves_nothing_that_only_the_collector_could_free() -> None:
    class Body:
        pass

    def prepared() -> tuple[Callable[[], object], weakref.ref[Body]]:
        body = Body()

        def work() -> object:
            raise ValueError(f"{body} is too large")

        return work, weakref.ref(body)

    gc.disable()
    try:
        work, body = prepared()
        portions = elsewhere(work)
        cold = next(portions)
        assert cold is not None
        cold.fetch()
        with contextlib.suppress(ValueError):
            next(portions)
        del work, portions, cold
        assert body() is None
    finally:
        gc.enable()


class Slowly:
    """A part whose tick takes so long."""

    def __init__(self, whole: Whole, name: str, ms: int, ticked: list[str]) -> None:
        self.whole, self.name, self.ms, self.ticked = whole, name, ms, ticked

    def tick(self, now_ms: int) -> None:
        self.whole.clock.forward(self.ms)
        self.ticked.append(self.name)


def test_a_tick_ends_with_the_part_that_uses_the_turn_up_and_the_others_begin_the_next(whole: Whole) -> None:
    ticked: list[str] = []
    parts = [Slowly(whole, name, ms, ticked) for name, ms in (("a", 0), ("b", 12), ("c", 6), ("d", 6), ("e", 0))]
    whole.broker._ticking = deque(parts)
    whole.broker.tick(whole.clock.steady_ms())
    assert ticked == ["a", "b"]
    whole.broker.tick(whole.clock.steady_ms())
    assert ticked == ["a", "b", "c", "d"]
    whole.broker.tick(whole.clock.steady_ms())
    assert ticked == ["a", "b", "c", "d", "e", "a", "b"]


def test_what_a_tick_had_no_time_for_goes_on_turn_by_turn_and_nothing_has_its_tick_twice(whole: Whole) -> None:
    ticked: list[str] = []
    parts = [Slowly(whole, name, ms, ticked) for name, ms in (("a", 0), ("b", 12), ("c", 6), ("d", 6), ("e", 0))]
    whole.broker._ticking = deque(parts)
    rest = whole.broker.tick(whole.clock.steady_ms())
    assert rest is not None
    assert ticked == ["a", "b"]
    rest = rest()
    assert rest is not None
    assert ticked == ["a", "b", "c", "d"]
    assert rest() is None
    assert ticked == ["a", "b", "c", "d", "e"]
    whole.broker._ticking = deque(parts[:1])
    assert whole.broker.tick(whole.clock.steady_ms()) is None


def test_portions_that_the_disk_has_answered_do_not_wait_for_the_next_tick_when_the_turn_is_over(whole: Whole) -> None:
    def work(peer: Peer, command: Command) -> Portions:
        yield Cold(lambda: None)
        for _ in range(3):
            whole.clock.forward(12)
            yield None
        return command.reply()

    whole.broker.table[SLOW] = work
    peer = FakePeer()
    whole.broker.receive(peer, frames_of(Command(SLOW, opaque=1)), whole.clock.steady_ms() + 10)
    whole.background.release()
    turns, rest = 1, whole.broker.tick(whole.clock.steady_ms())
    while rest is not None:
        turns, rest = turns + 1, rest()
    assert turns >= 3
    assert [answer.opaque for answer in peer.take()] == [1]


def test_a_reset_of_thousands_of_queues_is_one_short_line_in_the_log(whole: Whole, caplog: pytest.LogCaptureFixture) -> None:
    whole.broker.topics.put(Topic("T", 2_000, 2_000))
    for queue_id in range(2_000):
        whole.broker.offsets.commit("g", "T", queue_id, 1)
    beat = consumer_beat(1)
    beat.version = 401
    whole.broker.receive(FakePeer(), frames_of(beat))
    fields = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
    whole.frames(Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields, opaque=7))
    while not (answers := whole.peer.take()):
        whole.broker.tick(whole.clock.steady_ms())
    assert [(answer.opaque, answer.code) for answer in answers] == [(7, ResponseCode.SUCCESS)]
    line = next(record.getMessage() for record in caplog.records if "reset group g" in record.getMessage())
    assert "the 2000 queues of T" in line
    assert len(line) < 1_000


def test_queues_of_a_lock_request_are_let_go_of_piece_by_piece() -> None:
    body = LockBody("g", "client", {MessageQueue("T", "b", n) for n in range(3 * PIECE)})
    left = pieces(body.mq_set)
    assert len(next(left)) == PIECE
    assert not body.mq_set, "nobody else holds them, so a piece that was used is freed with it"
    assert [len(piece) for piece in left] == [PIECE, PIECE]
