"""Pulls of a shape that was read before are answered as those that are taken apart; whether they are allowed is asked each time."""

from __future__ import annotations

from collections.abc import Iterator
from operator import sub
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from roquet.broker import pull, pull_requests
from roquet.broker.pull import Puller
from roquet.broker.pull_requests import Asked, PullRequests
from roquet.broker.pull_runs import Answers, answer_pulls
from roquet.broker.topics import Topic
from roquet.routing.subscription import subscribe
from roquet.store.disk import Cold, RealFile
from roquet.store.stretches import LogStretches
from roquet.store.window import LogWindow
from roquet.testing import FakePeer
from roquet.wire.batch import join_batch
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import JSON, Frame, Framer
from roquet.wire.pull_shapes import pull_shape
from roquet.wire.record import decode_records

from .whole import Whole, pull_fields, send_fields


@pytest.fixture(params=["as it runs", "without the extension"])
def whole(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Whole]:
    if request.param == "without the extension":
        monkeypatch.setattr(pull_requests, "shape_of", pull_shape)
        monkeypatch.setattr(pull, "answer_run", answer_pulls)
    made = Whole(tmp_path / "store")
    for number in range(50):
        made.ask(310, send_fields(properties=f"UNIQ_KEY\x01U{number}\x02TAGS\x01{'ab'[number % 2]}"), b"%d" % number)
    yield made
    made.close()


def answers_of(whole: Whole, requests: list[Command], at_once: int = 1) -> list[tuple[Any, ...]]:
    """Of these requests, so many a read."""
    peer = FakePeer()
    for begin in range(0, len(requests), at_once):
        whole.give(peer, *requests[begin : begin + at_once])
    return [(one.opaque, one.code, one.remark, one.binary, one.fields, one.body) for one in peer.take()]


class Taken:
    """How many pulls were taken the short way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        take = Puller.take

        def counted(puller: Puller, *args: Any) -> tuple[int, bool]:
            taken = take(puller, *args)
            self.count += taken[0]
            return taken

        monkeypatch.setattr(Puller, "take", counted)


@pytest.mark.parametrize("at_once", [1, 7])
def test_the_answers_are_those_of_requests_that_are_taken_apart(whole: Whole, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    random, taken = Random(5), Taken(monkeypatch)
    requests = []
    for opaque in range(300):
        fields = pull_fields(
            offset=random.choice((0, 7, 40, 50, 51, 99)),
            commitOffset=str(random.choice((0, 3, 60))),
            sysFlag=random.choice(("4", "5")),
            subscription=random.choice(("*", "a", "a || b", "c")),
            maxMsgNums=random.choice(("0", "1", "32", "-1")),
            topic=random.choice(("T", "T", "T", "nowhere")),
            queueId=random.choice(("0", "0", "99")),
        )
        if random.random() < 0.2:
            fields |= {"maxMsgBytes": random.choice(("100", "0"))}
        if random.random() < 0.1:
            fields.pop(random.choice(sorted(fields)), None)
        requests.append(Command(11, fields, opaque=opaque, binary=random.random() < 0.5, flag=random.choice((0, 0, 0, 2))))
    answers_of(whole, requests)
    short = answers_of(whole, requests, at_once)
    assert taken.count > 40 // at_once
    assert len(whole.broker.puller.requests._known) > 20
    whole.broker.admission.guards.append(lambda peer, command: None)  # who sees every request taken apart
    assert answers_of(whole, requests) == short
    assert {code for _, code, _, _, _, _ in short} >= {0, ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST}


def test_a_guard_sees_every_field(whole: Whole) -> None:
    seen: list[Command] = []
    whole.ask(11, pull_fields())
    whole.broker.admission.guards.append(lambda peer, command: seen.append(command))
    whole.ask(11, pull_fields(offset=3))
    assert [(type(one), one.fields["queueOffset"]) for one in seen] == [(Command, "3")]


@pytest.mark.parametrize("binary", [False, True])
def test_what_is_not_allowed_any_more_is_refused(whole: Whole, binary: bool) -> None:
    def code() -> int:
        return whole.ask(11, pull_fields(), binary=binary).code

    assert code() == 0
    whole.broker.groups.put(GroupConfig("g", consume_enable=False))
    assert code() == ResponseCode.NO_PERMISSION
    whole.broker.groups.put(GroupConfig("g"))
    whole.broker.topics.put(Topic("T", 8, 8, perm=2))
    assert code() == ResponseCode.NO_PERMISSION
    whole.broker.topics.put(Topic("T", 8, 8))
    assert code() == code() == 0
    whole.settings.broker_permission = 2
    assert code() == ResponseCode.NO_PERMISSION
    whole.settings.broker_permission = 6
    assert code() == 0
    whole.broker.topics.delete("T")
    assert code() == ResponseCode.TOPIC_NOT_EXIST
    whole.broker.topics.put(Topic("T", 8, 8))
    assert code() == ResponseCode.PULL_NOT_FOUND


def heartbeat(whole: Whole, topic: str = "T", tags: str = "*", model: str = "CLUSTERING", version: int = 1) -> None:
    found = subscribe(topic, tags)
    subscription = {
        "topic": topic,
        "subString": tags,
        "tagsSet": sorted(found.tags_set),
        "codeSet": sorted(found.code_set),
        "subVersion": version,
    }
    data = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": model, "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription], "unitMode": False,
    }  # fmt: skip
    assert whole.ask(34, body=orjson.dumps({"clientID": "c", "consumerDataSet": [data], "producerDataSet": []})).code == 0


def test_members_that_change_their_mind_are_heard(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)

    def pull(version: int = 1) -> tuple[int, int]:
        answer = whole.ask(11, pull_fields(sysFlag="0", subscription="", subVersion=str(version)))
        return answer.code, len(decode_records(answer.body))

    assert pull() == (ResponseCode.SUBSCRIPTION_NOT_EXIST, 0)
    heartbeat(whole)
    assert pull() == pull() == pull() == (0, 32)
    assert taken.count == 2
    heartbeat(whole, tags="a", version=2)
    assert pull(2) == pull(2) == pull() == pull() == (0, 25)
    assert taken.count == 4
    assert pull(3) == (ResponseCode.SUBSCRIPTION_NOT_LATEST, 0)
    heartbeat(whole, topic="U", version=3)
    assert pull() == (ResponseCode.SUBSCRIPTION_NOT_EXIST, 0)
    heartbeat(whole, version=4)
    assert pull() == pull() == (0, 32)
    whole.broker.groups.put(GroupConfig("g", consume_broadcast_enable=False))
    assert pull() == pull() == (0, 32)
    heartbeat(whole, version=4, model="BROADCASTING")
    assert pull() == (ResponseCode.NO_PERMISSION, 0)
    heartbeat(whole, version=4)
    assert pull() == (0, 32)
    whole.broker.disconnected(whole.peer)
    assert pull() == (ResponseCode.SUBSCRIPTION_NOT_EXIST, 0)


def test_pulls_that_catch_up_read_entries_and_log_ahead_and_get_everything(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    for number in range(50, 900):
        whole.ask(310, send_fields(), b"%d" % number)
        if number % 300 == 0:
            whole.tick(2_000)  # the entries are in their files
    at, bodies = 0, []
    while at < 900:
        answer = whole.ask(11, pull_fields(offset=at))
        assert answer.fields["maxOffset"] == "900"
        bodies += [record.body for record in decode_records(answer.body)]
        at = int(answer.fields["nextBeginOffset"])
    assert bodies == [b"%d" % number for number in range(900)]
    assert taken.count >= 28
    for number in range(900, 940):
        whole.ask(310, send_fields(), b"%d" % number)
        assert [record.body for record in decode_records(whole.ask(11, pull_fields(offset=number)).body)] == [b"%d" % number]


@pytest.mark.parametrize("size", ["-5", "0", "", "300", "100000"])
def test_a_limit_of_bytes_means_the_same_to_the_first_pull_and_to_those_like_it(whole: Whole, size: str) -> None:
    """One that is not above 0 is none."""
    first, second = (whole.ask(11, pull_fields(maxMsgBytes=size)) for _ in range(2))
    assert first.body == second.body
    assert len(decode_records(first.body)) == (2 if size == "300" else 32)


def test_pulls_of_several_groups_in_one_read_are_counted_for_each(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = zip("ggghg", "12345", strict=True)
    requests = [Command(11, pull_fields(consumerGroup=group, maxMsgNums=count)) for group, count in asked]
    answers_of(whole, requests)
    stats, taken = whole.broker.stats, Taken(monkeypatch)
    rows = {group: stats._gets[f"T@{group}"] for group in "gh"} | {"all": stats.gets}
    before = {name: row.reading() for name, row in rows.items()}
    answers_of(whole, [*requests, Command(11, pull_fields(topic="nowhere"))], len(requests) + 1)
    assert taken.count == 5
    risen = {name: tuple(map(sub, row.reading(), before[name])) for name, row in rows.items()}
    assert {name: numbers[:2] for name, numbers in risen.items()} == {"g": (11, 4), "h": (4, 1), "all": (15, 5)}
    assert risen["g"][2] + risen["h"][2] == risen["all"][2]
    assert risen["h"][2] == before["h"][2]
    assert "nowhere@g" not in stats._gets


def test_a_pull_that_may_not_be_answered_ends_the_run_in_its_read(whole: Whole) -> None:
    """Two groups in one read: what one of them may says nothing about the other."""
    requests = [Command(11, pull_fields(consumerGroup=group), opaque=number) for number, group in enumerate("ghgh")]
    assert [code for _, code, *_ in answers_of(whole, requests, 4)] == [0] * 4
    whole.broker.groups.put(GroupConfig("h", consume_enable=False))
    assert [code for _, code, *_ in answers_of(whole, requests, 4)] == [0, ResponseCode.NO_PERMISSION] * 2


@pytest.mark.parametrize("spoiled", [bytes(20), b"\x01" * 20])
def test_an_entry_that_is_damaged_is_mended_whoever_read_it_ahead(whole: Whole, spoiled: bytes) -> None:
    whole.tick(2_000)
    queue = whole.broker.store.queue("T", 0)
    assert len(decode_records(whole.ask(11, pull_fields(maxMsgNums="5")).body)) == 5
    whole.broker.puller.ahead.clear()
    queue.segments.file(0).write(7 * 20, spoiled)
    for offset in (0, 5, 5, 10):
        answer = whole.ask(11, pull_fields(offset=offset, maxMsgNums="5"))
        assert [record.body for record in decode_records(answer.body)] == [b"%d" % number for number in range(offset, offset + 5)]


def test_a_message_that_is_not_in_memory_is_fetched_as_ever(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.ask(11, pull_fields())
    log = whole.broker.store.log
    whole.broker.puller.stretches = LogStretches(log, LogWindow(log).view)
    cold, read_into, read_now = [True], RealFile.read_into, RealFile.read_now

    def fetch() -> None:
        cold.clear()

    def into(self: RealFile, offset: int, room: memoryview) -> None:
        if cold and "commitlog" in self.path:
            raise Cold(fetch)
        read_into(self, offset, room)

    def now(self: RealFile, offset: int, size: int) -> bytes:
        if cold and "commitlog" in self.path:
            raise Cold(fetch)
        return read_now(self, offset, size)

    monkeypatch.setattr(RealFile, "read_into", into)
    monkeypatch.setattr(RealFile, "read_now", now)
    assert len(decode_records(whole.ask(11, pull_fields(offset=3)).body)) == 32
    assert not cold


def test_the_progress_that_comes_along_is_that_of_each_request(whole: Whole) -> None:
    for offset in (3, 17, 20):
        whole.ask(11, pull_fields(offset=offset, commitOffset=str(offset), sysFlag="5"))
        assert whole.broker.offsets.find("g", "T", 0) == offset


@pytest.mark.parametrize("at_once", [1, 5])
def test_a_mistake_in_one_is_the_answer_to_it_and_to_no_other(whole: Whole, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    find, answer = PullRequests.find, vars(pull)["answer_run"]
    mistakes: list[str] = []

    def fails(self: PullRequests, frame: Any) -> Asked | None:
        if b'"opaque":2,' in frame[1]:
            mistakes.append("alone")
            raise RuntimeError("a mistake of ours")
        return find(self, frame)

    def fails_together(frames: list[Frame], at: int, *rest: Any) -> Answers:
        found: Answers = answer(frames, at, *rest)
        if any(b'"opaque":2,' in header for _, header, _ in frames[at : at + max(1, len(found[0]))]):
            mistakes.append("together")
            raise RuntimeError("a mistake of ours")
        return found

    monkeypatch.setattr(PullRequests, "find", fails)
    requests = [Command(11, pull_fields(maxMsgNums="5", commitOffset=str(number), sysFlag="5"), opaque=number) for number in range(5)]
    for usual in (requests[0], requests[0]):  # read and allowed; then its entries are at hand
        answers_of(whole, [usual])
    monkeypatch.setattr(pull, "answer_run", fails_together)
    codes = [(answer[0], answer[1]) for answer in answers_of(whole, requests, at_once)]
    assert codes == [(0, 0), (1, 0), (2, ResponseCode.SYSTEM_ERROR), (3, 0), (4, 0)]
    assert mistakes == ["together", "alone"]
    assert whole.broker.offsets.find("g", "T", 0) == 4


def test_a_name_that_is_spelled_with_an_escape_is_not_remembered(whole: Whole) -> None:
    """Its numbers are those of other fields: the next request of the same shape has others there."""
    ((_, header, _),) = Framer().feed(Command(11, pull_fields(offset=5), opaque=1).encode())
    odd = header.replace(b'"queueOffset":"5"', b'"queue\\u004fffset":"5"').replace(b'{"code":11,', b'{"code":11,"queueOffset":"5",')
    requests = PullRequests()
    assert requests.read((JSON, odd, b"")) is None
    assert requests.read((JSON, odd, b"")) is None
    assert requests.read((JSON, header, b"")) is not None


def test_shapes_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_requests, "SHAPES_MAX", 10)
    requests = PullRequests()
    for number in range(100):
        ((form, header, body),) = Framer().feed(Command(11, pull_fields(topic=f"T{number}"), opaque=1).encode())
        for _ in range(2):
            request = requests.read((form, header, body))
            assert request is not None
            assert request.known is not None
            assert request.known.header.topic == f"T{number}"
        assert len(requests._known) <= 10
    ((form, header, body),) = Framer().feed(Command(11, pull_fields(subscription="x" * 2_000), opaque=1).encode())
    assert requests.read((form, header, body)) is None
    assert len(requests._known) <= 10


def test_a_reader_of_large_answers_is_read_properly(whole: Whole) -> None:
    for _ in range(2):
        answer = whole.ask(11, pull_fields(scanBytes="100000"))
        assert (answer.code, answer.fields["scanCount"]) == (0, "50")


def test_what_another_nodes_log_replaced_is_not_shown_any_more(whole: Whole) -> None:
    """A master that was cut off comes back as a slave: its log ends earlier then, and goes on with other messages of the same sizes."""
    store, at = whole.broker.store, 20

    def bodies(offset: int) -> list[bytes]:
        return [record.body for record in decode_records(whole.ask(11, pull_fields(offset=offset)).body)]

    for _ in range(2):
        assert bodies(at) == [b"%d" % number for number in range(at, 50)]
        assert bodies(0) == [b"%d" % number for number in range(32)]
    entry = store.queue("T", 0).entry(at)
    assert entry is not None
    assert store.cut_back(entry[0]) == entry[0]
    store.applier.lead()
    for number in range(at, 50):
        assert whole.ask(310, send_fields(properties=f"UNIQ_KEY\x01U{number}\x02TAGS\x01a"), b"%d" % (99 - number)).code == 0
    assert bodies(0) == [b"%d" % number for number in range(at)] + [b"%d" % (99 - number) for number in range(at, 32)]
    assert bodies(at) == [b"%d" % (99 - number) for number in range(at, 50)]


def test_queues_that_are_read_a_little_ahead_of_each_other_share_reads_of_the_log(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of its own for each place would be lost with every change of the queue."""
    count, queues = 3_200, 8  # a batch of 32 for each queue in turn, some megabytes in all
    whole.broker.topics.put(Topic("T", queues, queues))
    for batch in range(count // 32):
        for queue in range(queues):
            parts = [(0, b"%d" % (batch * 32 + number) + b"x" * 200, b"") for number in range(32)]
            assert whole.ask(310, send_fields(queue_id=queue, m="true"), join_batch(parts)).code == 0
    reads: list[int] = []
    read_into = RealFile.read_into

    def counted(self: RealFile, offset: int, room: memoryview) -> None:
        reads.append(len(room))
        read_into(self, offset, room)

    monkeypatch.setattr(RealFile, "read_into", counted)
    first = {queue: 50 if queue == 0 else 0 for queue in range(queues)}  # what the fixture sent
    pulls = 0
    for at in range(0, count - 640, 32):
        for queue in range(queues):
            offset = at + queue * 64  # each two pulls behind the next
            answer = whole.ask(11, pull_fields(queue_id=queue, offset=first[queue] + offset))
            bodies = [record.body.rstrip(b"x") for record in decode_records(answer.body)]
            assert bodies == [b"%d" % number for number in range(offset, offset + 32)]
            pulls += 1
    assert len(reads) < pulls / 3
    assert sum(reads) < 3 * count * queues * 330
