"""Pulls that a broker answers together get what each would get alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from roquet.broker import entries_ahead, pull, pull_requests
from roquet.broker.pull import Puller
from roquet.broker.pull_runs import Answers, answer_pulls
from roquet.broker.topics import Topic
from roquet.errors import Refused
from roquet.routing.subscription import subscribe
from roquet.store import stretches
from roquet.store.disk import blocking
from roquet.store.queue import ENTRY_SIZE
from roquet.store.stretches import STRETCH, LogStretches
from roquet.store.window import LogWindow
from roquet.testing import FakePeer
from roquet.wire.batch import join_batch
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame, Framer
from roquet.wire.layout import ENTRY
from roquet.wire.pull_shapes import pull_shape
from roquet.wire.record import decode_records

from .test_answer_pulls import frame_of
from .whole import Whole, pull_fields, send_fields

COUNT = 100
"""Messages in each of the first four queues of T."""


@pytest.fixture(params=["as it runs", "without the extension"])
def whole(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Whole]:
    if request.param == "without the extension":
        monkeypatch.setattr(pull_requests, "shape_of", pull_shape)
        monkeypatch.setattr(pull, "answer_run", answer_pulls)
    made = Whole(tmp_path / "store")
    fill(made)
    yield made
    made.close()


def fill(whole: Whole) -> None:
    whole.broker.topics.put(Topic("T", 8, 8))
    for queue_id in range(4):
        for begin in range(0, COUNT, 10):
            parts = [(0, b"%d/%d" % (queue_id, number), b"TAGS\x01" + b"ab"[number % 2 :][:1]) for number in range(begin, begin + 10)]
            assert whole.ask(310, send_fields(queue_id=queue_id, m="true"), join_batch(parts)).code == 0


class Runs:
    """How many answers were made together each time, and how many pulls were taken so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[int] = []
        self.taken: list[int] = []
        answer, take = vars(pull)["answer_run"], Puller._answer_run

        def answered(*args: Any) -> Answers:
            found: Answers = answer(*args)
            self.made.append(len(found[0]))
            return found

        def taken(puller: Puller, *args: Any) -> int:
            self.taken.append(take(puller, *args))
            return self.taken[-1]

        monkeypatch.setattr(pull, "answer_run", answered)
        monkeypatch.setattr(Puller, "_answer_run", taken)

    def take(self) -> list[int]:
        """How many were taken each time since the last call, where any were."""
        taken, self.taken = self.taken, []
        self.made = []
        return [count for count in taken if count]


def a_pull(queue_id: int = 0, offset: int = 0, told: int = 0, opaque: int = 0, **more: str) -> Command:
    """One that tells the group's progress."""
    fields = pull_fields(queue_id=queue_id, offset=offset, commitOffset=str(told), **{"sysFlag": "5", "maxMsgNums": "5"} | more)
    return Command(11, fields, opaque=opaque)


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


def of(queue_id: int, begin: int, stop: int) -> list[bytes]:
    return [b"%d/%d" % (queue_id, number) for number in range(begin, stop)]


def answered(whole: Whole, *requests: Command) -> list[Command]:
    """In one read."""
    peer = FakePeer()
    whole.give(peer, *requests)
    return peer.take()


def make_usual(whole: Whole, *requests: Command) -> None:
    """The first is looked at properly, with the second its entries are read."""
    for request in requests * 2:
        assert [one.code for one in answered(whole, request)] == [0]


def progress(whole: Whole, group: str = "g") -> dict[int, int]:
    return dict(whole.broker.offsets.queues_of(group, "T"))


class RawPeer(FakePeer):
    """Keeps the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []

    def send(self, data: bytes | memoryview) -> None:
        self.frames += Framer().feed(bytes(data))

    def answers_to(self, opaques: set[int]) -> list[Frame]:
        return [frame for frame in self.frames if decode(frame).opaque in opaques]


def test_pulls_of_who_does_not_take_its_answers_wait(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "RUN_BYTES", 1)
    pulls = [a_pull(opaque=number) for number in range(6)]
    make_usual(whole, pulls[0])
    frames = [frame_of(one) for one in pulls]

    class Full(FakePeer):
        def send(self, data: bytes | memoryview) -> None:
            super().send(data)
            self.unread = self.sends == 3

    peer = Full()
    rest = whole.broker.receive(peer, frames)
    assert [one.opaque for one in peer.take()] == [0, 1, 2]
    assert rest == frames[3:]
    peer.unread = False
    assert whole.broker.receive(peer, rest) is None
    assert [one.opaque for one in peer.take()] == [3, 4, 5]


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_answers_as_one_that_looks_at_everything_properly(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    careful, runs = Whole(tmp_path / "careful"), Runs(monkeypatch)
    fill(careful)
    careful.broker.admission.guards.append(lambda peer, command: None)  # who sees every request taken apart
    monkeypatch.setattr(careful.broker.puller, "_read_at_once", lambda *args: None)
    random = Random(seed)
    at = Counter[tuple[str, int, str]]()

    def a_request(opaque: int, trouble: float) -> Command:
        def odd(share: float) -> bool:
            return random.random() < share * trouble

        if odd(0.03):
            return Command(310, send_fields(queue_id=random.randrange(4)), b"%d" % opaque, opaque=opaque)
        group, queue_id, count = "h" if odd(0.2) else "g", random.randrange(4), random.choice(("1", "32")) if odd(0.1) else "5"
        place = group, queue_id, count
        offset = random.choice((0, COUNT - 1, COUNT, COUNT + 50, 10**6)) if odd(0.05) else at[place]
        at[place] = at[place] + int(count) if at[place] < COUNT - 40 else 0
        told = random.choice((0, offset, offset, offset, COUNT * 2, 10**9))
        more = {"maxMsgNums": count, "consumerGroup": group, "sysFlag": "4" if odd(0.1) else "5"}
        if odd(0.05):
            more |= random.choice(
                ({"maxMsgBytes": "300"}, {"subscription": "a"}, {"topic": "nowhere"}, {"scanBytes": "1000"}, {"queueId": "77"})
            )
        made = a_pull(queue_id, offset, told, opaque, **more)
        made.binary = queue_id % 2 == 1
        return made

    for batch in range(60):
        for one in (whole, careful):
            if batch % 20 == 15:
                one.tick(2_000)  # the entries are in their files
            if batch == 40:
                one.broker.puller.memory_bytes = 50_000  # many a message counts as not being in memory from here on
        trouble = random.choice((0.0, 0.2, 1.0))
        requests = [a_request(100 * batch + number, trouble) for number in range(random.choice((1, 5, 40)))]
        peers = RawPeer(), RawPeer()
        whole.give(peers[0], *requests)
        careful.give(peers[1], *requests)
        pulls = {request.opaque for request in requests if request.code == 11}
        assert peers[0].answers_to(pulls) == peers[1].answers_to(pulls)
        assert len(peers[0].frames) == len(peers[1].frames) == len(requests)
        assert whole.broker.offsets._table == careful.broker.offsets._table
        for group in "gh":
            rows = [one.broker.stats._gets.get(f"T@{group}") for one in (whole, careful)]
            assert rows[0] is rows[1] or (rows[0] and rows[1] and rows[0].reading() == rows[1].reading())
        assert whole.broker.stats.gets.reading() == careful.broker.stats.gets.reading()
    assert sum(runs.take()) > 100
    careful.close()


def test_pulls_from_all_queues_of_a_topic_are_answered_together(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, stats = Runs(monkeypatch), whole.broker.stats
    make_usual(whole, *map(a_pull, range(4)))
    runs.take()
    row = stats._gets["T@g"]
    before, all_before = row.reading(), stats.gets.reading()
    got = answered(whole, *(a_pull(number % 4, 5 + number, 5 + number, number) for number in range(20)))
    assert runs.take() == [20]
    assert [answer.opaque for answer in got] == list(range(20))
    assert [bodies(answer) for answer in got] == [of(number % 4, 5 + number, 10 + number) for number in range(20)]
    assert progress(whole) == {0: 21, 1: 22, 2: 23, 3: 24}, "of two from one queue the last counts"
    size = sum(len(answer.body) for answer in got)
    for now, then in ((row.reading(), before), (stats.gets.reading(), all_before)):
        assert (now[0] - then[0], now[1] - then[1], now[2] - then[2]) == (100, 20, size), "messages, pulls, bytes"


def test_pulls_of_a_group_are_answered_together_whoever_else_was_allowed_between_them(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups that start at the same time: their first pulls come in turn."""
    runs = Runs(monkeypatch)
    make_usual(whole, *(a_pull(queue_id, consumerGroup=group) for queue_id in range(4) for group in "gh"))
    runs.take()
    for group in "gh":
        answered(whole, *(a_pull(queue_id, consumerGroup=group) for queue_id in range(4)))
    assert runs.take() == [4, 4]


def test_pulls_without_a_filter_of_their_own_are_answered_together_while_the_members_want_all(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch)
    heartbeat(whole, "*", 1)
    requests = [a_pull(queue_id, sysFlag="1", subscription="") for queue_id in range(4)]
    make_usual(whole, *requests)
    answered(whole, *requests)
    assert runs.take() == [4]
    heartbeat(whole, "a", 2)
    for _ in range(3):
        got = answered(whole, *requests)
        assert [bodies(answer) for answer in got] == [
            [b"%d/%d" % (queue_id, number) for number in range(0, 10, 2)] for queue_id in range(4)
        ]
    assert runs.take() == []
    heartbeat(whole, "*", 3)
    for _ in range(3):
        assert [bodies(answer) for answer in answered(whole, *requests)] == [of(queue_id, 0, 5) for queue_id in range(4)]
    assert runs.take()[-1] == 4


def heartbeat(whole: Whole, tags: str, version: int) -> None:
    found = subscribe("T", tags)
    subscription = {
        "topic": "T", "subString": tags, "tagsSet": sorted(found.tags_set), "codeSet": sorted(found.code_set), "subVersion": version,
    }  # fmt: skip
    data = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription], "unitMode": False,
    }  # fmt: skip
    assert whole.ask(34, body=orjson.dumps({"clientID": "c", "consumerDataSet": [data], "producerDataSet": []})).code == 0


def test_a_group_that_is_to_ask_another_broker_is_told_so_each_time(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    whole.settings.slave_read_enable = True
    make_usual(whole, a_pull(0))
    assert answered(whole, a_pull(0))[0].fields["suggestWhichBrokerId"] == "0"
    assert runs.take() == [1]
    whole.broker.groups.put(GroupConfig("g", broker_id=1))
    for _ in range(3):
        assert answered(whole, a_pull(0))[0].fields["suggestWhichBrokerId"] == "1"
    assert runs.take() == []


@pytest.mark.parametrize("change", ["group", "topic", "permission", "gone"])
def test_nothing_is_counted_or_committed_when_the_grant_holds_no_more(whole: Whole, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    runs, broker = Runs(monkeypatch), whole.broker
    make_usual(whole, *map(a_pull, range(4)))
    before, counted = progress(whole), broker.stats._gets["T@g"].reading()
    if change == "group":
        broker.groups.put(GroupConfig("g", consume_enable=False))
    elif change == "topic":
        broker.topics.put(Topic("T", 8, 8, perm=2))
    elif change == "permission":
        whole.settings.broker_permission = 2
    else:
        broker.topics._table.pop("T")
    runs.take()
    codes = {answer.code for answer in answered(whole, *(a_pull(queue_id, 5, 5) for queue_id in range(4)))}
    assert codes <= {ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST}
    assert runs.made[0] == 4, "the answers were there"
    assert not any(runs.taken)
    assert progress(whole) == before
    assert broker.stats._gets["T@g"].reading() == counted


def test_the_progress_of_a_queue_that_is_new_to_the_group_is_remembered(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, offsets = Runs(monkeypatch), whole.broker.offsets
    make_usual(whole, *map(a_pull, range(4)))
    for known in ({}, {0: 1}, {0: 1, 2: 1}, {3: 1}):
        offsets.remove_group("g")
        for queue_id, offset in known.items():
            offsets.commit("g", "T", queue_id, offset)
        runs.take()
        got = answered(whole, *(a_pull(queue_id, 5, 6 + queue_id, queue_id) for queue_id in range(4)))
        assert [(answer.opaque, bodies(answer)) for answer in got] == [(queue_id, of(queue_id, 5, 10)) for queue_id in range(4)]
        assert progress(whole) == {0: 6, 1: 7, 2: 8, 3: 9}
        assert offsets._entries == sum(map(len, offsets._table.values()))


def test_progress_beyond_the_end_of_the_queue_is_not_remembered(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    make_usual(whole, a_pull(0, told=3), a_pull(1, told=3))
    runs.take()
    answered(whole, a_pull(0, 5, COUNT), a_pull(1, 5, COUNT + 1), a_pull(1, 5, 10**17))
    assert runs.take() == [3]
    assert progress(whole) == {0: COUNT, 1: 3}


def test_pulls_that_do_not_tell_the_progress_leave_it_as_it_is(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    make_usual(whole, a_pull(0, told=3))
    make_usual(whole, a_pull(0, sysFlag="4"))
    runs.take()
    answered(whole, a_pull(0, 5, 9, sysFlag="4"), a_pull(0, 5, 9, sysFlag="4"))
    assert runs.take() == [2]
    assert progress(whole) == {0: 3}


@pytest.mark.parametrize("subscription", ["*", "a"])
def test_a_slave_takes_no_progress_from_pulls(whole: Whole, monkeypatch: pytest.MonkeyPatch, subscription: str) -> None:
    """It has that of its master. The one with a filter is answered alone."""
    runs = Runs(monkeypatch)
    requests = [a_pull(queue_id, told=3, subscription=subscription) for queue_id in range(2)]
    make_usual(whole, *requests)
    assert progress(whole) == {0: 3, 1: 3}
    whole.settings.broker_role, whole.settings.broker_id = "SLAVE", 1
    runs.take()
    taken, _ = whole.broker.puller.take(
        FakePeer(), [frame_of(a_pull(queue_id, 4, 4, subscription=subscription)) for queue_id in (0, 1, 0)], 1 << 60
    )
    assert taken == 3
    assert runs.take() == ([3] if subscription == "*" else [])
    assert progress(whole) == {0: 3, 1: 3}
    whole.broker.offsets.remove_group("g")
    answered(whole, a_pull(0, 5, 5, subscription=subscription))
    assert progress(whole) == {}


def test_the_progress_of_several_queues_is_that_of_each_also_where_some_are_new(whole: Whole) -> None:
    offsets = whole.broker.offsets
    for rows, expected in (
        ([(("T", 0), 1)], {0: 1}),
        ([(("T", 0), 2), (("T", 2), 2)], {0: 2, 2: 2}),
        ([(("T", 0), 2), (("T", 2), 3), (("T", 0), 4)], {0: 4, 2: 3}),
    ):
        offsets.saving.unsaved = False
        offsets.texts.stale.clear()
        offsets.commit_all("g", "T", rows)
        assert progress(whole) == expected
        assert offsets.saving.unsaved
        assert list(offsets.texts.stale) == ["T@g"]


def test_where_progress_is_refused_the_pulls_of_the_run_are_looked_at_one_by_one(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    make_usual(whole, a_pull(0, told=3), a_pull(1, told=3))
    runs = Runs(monkeypatch)

    def refuses(*args: object) -> None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "too many")

    monkeypatch.setattr(whole.broker.offsets, "commit_all", refuses)
    answered(whole, a_pull(0, 5, 5), a_pull(1, 5, 6))
    assert runs.take() == []
    assert progress(whole) == {0: 5, 1: 6}


class Leaver(FakePeer):
    """Is closed when it has got so many answers, as one that does not read them; what is sent to it after that nobody sees."""

    def __init__(self, stays: int) -> None:
        super().__init__()
        self.stays = stays

    def send(self, data: bytes | memoryview) -> None:
        if not self.closed:
            super().send(data)
            if len(self.sent) >= self.stays:
                self.close("it does not read")


@pytest.mark.parametrize("run_bytes", [1, 1_000, 1 << 20])
def test_a_peer_that_is_closed_in_the_middle_gets_nothing_more_and_nothing_else_it_asked_for_is_done(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, run_bytes: int
) -> None:
    monkeypatch.setattr(pull, "RUN_BYTES", run_bytes)
    make_usual(whole, *map(a_pull, range(4)))
    runs, peer, queue = Runs(monkeypatch), Leaver(6), whole.broker.store.queue("T", 0)
    pulls = [a_pull(number % 4, 5, opaque=number) for number in range(20)]
    whole.give(peer, *pulls, Command(310, send_fields(), b"nobody waits for it"))
    assert [answer.opaque for answer in peer.sent] == list(range(6))
    assert sum(runs.take()) == (6 if run_bytes == 1 else 20 if run_bytes == 1 << 20 else 6), "whole runs"
    assert queue.visible == COUNT
    assert [bodies(answer) for answer in answered(whole, a_pull(0, 5))] == [of(0, 5, 10)]


def test_a_long_row_of_pulls_is_interrupted_when_its_turn_is_over(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    make_usual(whole, *map(a_pull, range(4)))
    one = len(answered(whole, a_pull(0, 5))[0].body)
    monkeypatch.setattr(pull, "RUN_BYTES", 3 * one - 20)
    runs, peer = Runs(monkeypatch), FakePeer()
    rest: list[Frame] | None = [frame_of(a_pull(number % 4, 5, opaque=number)) for number in range(20)]
    rests: list[int] = []
    while rest is not None:
        rest = whole.broker.receive(peer, rest, whole.clock.steady_ms())
        rests.append(len(rest or ()))
        assert len(rests) < 99
    assert rests[0] == 17
    assert runs.take()[0] == 3, "give or take one answer"
    assert [answer.opaque for answer in peer.sent] == list(range(20))


def test_entries_are_kept_for_so_many_kinds_of_pulls_at_most(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_ahead, "KEPT_MAX", 4)
    kept = whole.broker.puller.ahead._kept
    most = 0
    for _ in range(3):
        for count in range(1, 11):
            (answer,) = answered(whole, a_pull(0, 3, maxMsgNums=str(count)))
            assert bodies(answer) == of(0, 3, 3 + count)
            most = max(most, len(kept))
    assert most == 4


def test_whoever_renews_its_entries_leaves_those_of_others_in_peace(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_ahead, "KEPT_MAX", 4)
    monkeypatch.setattr(entries_ahead, "AHEAD", 20)
    make_usual(whole, *map(a_pull, range(4)))
    runs, kept = Runs(monkeypatch), whole.broker.puller.ahead._kept
    assert len(kept) == 4
    answered(whole, a_pull(0, 40))
    assert len(kept) == 4
    runs.take()
    answered(whole, *(a_pull(queue_id, 40 if queue_id == 0 else 5) for queue_id in range(4)))
    assert runs.take() == [4]


def test_a_table_that_is_full_serves_those_who_are_in_it_and_is_begun_anew_after_many_others(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries_ahead, "KEPT_MAX", 2)
    make_usual(whole, a_pull(0), a_pull(1))
    runs, kept = Runs(monkeypatch), whole.broker.puller.ahead._kept
    before = set(kept)
    for number in range(2 * entries_ahead.PATIENCE - 1):
        assert bodies(answered(whole, a_pull(2, 3 + number))[0]) == of(2, 3 + number, 8 + number)
        assert set(kept) == before or number == 0, "the first is looked at properly"
        runs.take()
        answered(whole, a_pull(0, 5), a_pull(1, 5))
        assert runs.take() == [2]
    for _ in range(3):
        answered(whole, a_pull(2, 5))
    assert len(kept) == 1


def test_pulls_with_a_filter_are_not_tried_together_again_and_again(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    make_usual(whole, a_pull(0, subscription="a"), a_pull(1))
    runs = Runs(monkeypatch)
    answered(whole, *[a_pull(0, number, subscription="a") for number in range(6)])
    assert runs.made == [0]
    runs.take()
    answered(whole, a_pull(0, 1, subscription="a"), a_pull(1, 2), a_pull(1, 3), a_pull(1, 4))
    assert runs.take() == [2], "behind the first without a filter"


def test_entries_that_another_allowed_who_would_not_any_more_are_forgotten(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    make_usual(whole, a_pull(0), a_pull(1))
    runs = Runs(monkeypatch)
    whole.broker.groups.put(GroupConfig("g"))
    answered(whole, *[a_pull(number % 2, 5) for number in range(20)])
    assert runs.made[0] == 20
    assert sum(runs.made[1:]) <= 20, "not made again for each of them"


SPOILED = {
    "empty": (bytes(20), 5), "large": (b"\x01" * 20, 5), "elsewhere": (ENTRY.pack(150, 200, 0), 5),
    "before the log": (ENTRY.pack(-1, 200, 0), 5),
    "beyond the log, and the last of a pull": (ENTRY.pack(1 << 40, 200, 0), 3),
}  # fmt: skip


@pytest.mark.parametrize(("spoiled", "offset"), SPOILED.values(), ids=SPOILED)
def test_entries_of_which_one_is_damaged_are_forgotten_and_read_again_when_it_is_mended(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, spoiled: bytes, offset: int
) -> None:
    whole.tick(2_000)
    make_usual(whole, a_pull(0))
    ahead = whole.broker.puller.ahead
    ahead.clear()
    whole.broker.store.queue("T", 0).segments.file(0).write(7 * ENTRY_SIZE, spoiled)
    runs = Runs(monkeypatch)
    answered(whole, a_pull(0))
    (shape,) = ahead._kept
    damaged = ahead._kept[shape][4]
    assert damaged[7 * ENTRY_SIZE :][:ENTRY_SIZE] == spoiled
    for _ in range(3):
        (answer,) = answered(whole, a_pull(0, offset))
        assert bodies(answer) == of(0, offset, offset + 5)
        assert shape not in ahead._kept or ahead._kept[shape][4] != damaged
    assert runs.take() == [1], "the last of them"


def make_stretches_small(monkeypatch: pytest.MonkeyPatch, kept_max: int) -> None:
    for name, value in (("STRETCH", 2_000), ("BEHIND", 500), ("KEPT_MAX", kept_max), ("PIECE_MAX", 1_500), ("WORTH", 1), ("PAID", 0)):
        monkeypatch.setattr(stretches, name, value)
    monkeypatch.setattr(pull, "STRETCH", 2_000)


@pytest.mark.parametrize("more", [b"", b", and longer than those before"], ids=["as long", "longer"])
def test_entries_and_stretches_from_before_a_cut_of_the_log_are_not_used(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    """A master that was cut off comes back as a slave: its log goes on with other messages, of the same sizes or not."""
    make_stretches_small(monkeypatch, 20)
    store, runs, filtered = whole.broker.store, Runs(monkeypatch), a_pull(3, 50, subscription="a")
    make_usual(whole, *map(a_pull, range(4)), filtered)
    answered(whole, *(a_pull(queue_id, 50) for queue_id in range(4)))
    assert runs.take() == [4]
    entry = store.queue("T", 3).entry(50)
    assert entry is not None
    assert entry[0] // 2_000 in whole.broker.puller.stretches._kept
    assert store.cut_back(entry[0]) == entry[0]
    store.applier.lead()
    parts = [(0, b"3/%d" % (149 - number) + more, b"TAGS\x01a") for number in range(50, COUNT)]
    assert whole.ask(310, send_fields(queue_id=3, m="true"), join_batch(parts)).code == 0
    for _ in range(3):
        got = answered(whole, *(a_pull(queue_id, 50) for queue_id in range(4)), filtered)
        fresh = [b"3/%d" % number + more for number in range(99, 94, -1)]
        assert [bodies(answer) for answer in got] == [*(of(n, 50, 55) for n in range(3)), fresh, fresh]
    assert runs.take()[-1] == 4


def test_entries_are_those_of_the_queue_that_is_there_now(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, queues = Runs(monkeypatch), whole.broker.store.queues
    make_usual(whole, a_pull(0))
    queues["T", 0] = queues["T", 1]
    runs.take()
    for _ in range(2):
        (answer,) = answered(whole, a_pull(0, 5))
        assert bodies(answer) == of(1, 5, 10)
    assert runs.take() == [1]


def test_entries_of_a_queue_that_was_deleted_are_not_used_for_the_one_that_is_made_again(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch)
    make_usual(whole, a_pull(0))
    runs.take()
    whole.broker.topics.delete("T")
    whole.tick(2_000)
    whole.broker.topics.put(Topic("T", 8, 8))
    parts = [(0, b"new %d" % number, b"") for number in range(COUNT)]
    assert whole.ask(310, send_fields(m="true"), join_batch(parts)).code == 0
    for _ in range(3):
        (answer,) = answered(whole, a_pull(0, 3))
        assert bodies(answer) == [b"new %d" % number for number in range(3, 8)]
    assert runs.take() == [1]


def test_stretches_that_go_while_pulls_are_answered_do_not_change_the_answers(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that comes takes the memory of another one, which the answer before may have been made from."""
    make_stretches_small(monkeypatch, 2)
    runs, puller = Runs(monkeypatch), whole.broker.puller
    make_usual(whole, *map(a_pull, range(4)))
    runs.take()
    random, viewed = Random(1), puller.stretches.viewed
    for _ in range(30):
        asked = [(random.randrange(4), random.randrange(COUNT - 5)) for _ in range(40)]
        got = answered(whole, *(a_pull(*one) for one in asked))
        assert [bodies(answer) for answer in got] == [of(queue_id, offset, offset + 5) for queue_id, offset in asked]
        assert set(puller.stretches._kept) == set(puller.stretches._read_at)
    assert sum(runs.take()) > 600
    assert puller.stretches.viewed > viewed


def test_what_runs_see_in_stretches_counts_as_viewed(whole: Whole) -> None:
    log, puller = whole.broker.store.log, whole.broker.puller
    make_usual(whole, *map(a_pull, range(4)))
    shown = puller.stretches = LogStretches(log, LogWindow(log).view)
    data = bytearray(STRETCH)
    blocking(log.read_into, 0, memoryview(data)[: log.written])
    shown.kept()[0], shown._read_at[0] = memoryview(data), 0
    got = answered(whole, *(a_pull(queue_id, 5) for queue_id in range(4)))
    assert shown.viewed == sum(len(answer.body) for answer in got)
    whole.settings.broker_permission = 2
    answered(whole, a_pull(0, 5))
    assert shown.viewed == sum(len(answer.body) for answer in got), "nobody got it"
