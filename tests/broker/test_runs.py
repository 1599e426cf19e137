"""Requests of one kind in one read, taken together (`broker/runs.py`). That runs do what handlers do, byte for byte, the fuzzed reads show
(`fuzzed_sends.py`); here is what they are for, and when there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.broker.runs import RUN_MAX, requests_of
from roquet.broker.topics import Topic
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from roquet.wire.names import HALF_TOPIC, OP_HALF_TOPIC
from roquet.wire.record import Record, decode_properties

from .whole import Whole, send_fields

HALF = "UNIQ_KEY\x01U%d\x02WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01g"


@pytest.fixture(params=["compiled", "python"])
def whole(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Whole]:
    made = Whole(tmp_path, mapped_file_size_commit_log=1 << 16)
    if request.param == "python":
        made.broker.sender.plain.native = made.broker.store.staging.native = None
    for name in ("T", "%RETRY%g"):
        made.broker.topics.put(Topic(name, 2, 2))
    assert made.broker.groups.find("g") is not None
    yield made
    made.close()


class Counted:
    """How many requests of this code are taken in runs."""

    def __init__(self, whole: Whole, code: int) -> None:
        self.count, self._take = 0, whole.broker.runs[code]
        whole.broker.runs[code] = self

    def __call__(self, requests: list[Command]) -> int:
        taken = self._take(requests)
        self.count += taken
        return taken


def prepare(whole: Whole, count: int) -> list[Command]:
    """Half messages, and the ends that commit them."""
    whole.frames(*(Command(310, send_fields(queue_id=n % 2, properties=HALF % n, f="4"), b"%d" % n, opaque=n) for n in range(count)))
    return [end(int(answer.fields["queueOffset"]), int(answer.fields["msgId"][-16:], 16)) for answer in whole.peer.take()]


def end(half: int, place: int, kind: str = "8", **more: Any) -> Command:
    fields = {
        "producerGroup": "g",
        "tranStateTableOffset": str(half),
        "commitLogOffset": str(place),
        "commitOrRollback": kind,
        "msgId": "U",
    }
    return Command(37, fields, opaque=half + 1, **more)


def back(place: int, opaque: int = 1) -> Command:
    fields = {"group": "g", "offset": str(place), "delayLevel": "0", "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": "16"}
    return Command(36, fields, opaque=opaque)


def records(whole: Whole, topic: str, queue_id: int = 0) -> list[Record]:
    store = whole.broker.store
    queue = store.queue(topic, queue_id)
    entries = [queue.entry(at) for at in range(queue.first, queue.visible)]
    return [Record.decode(store.record_at(entry[0])) for entry in entries if entry is not None]


def sent(whole: Whole, count: int) -> list[int]:
    """Messages of T, where they stand in the log."""
    whole.frames(*(Command(310, send_fields(properties=f"UNIQ_KEY\x01U{n}"), b"%d" % n, opaque=n) for n in range(count)))
    return [int(answer.fields["msgId"][-16:], 16) for answer in whole.peer.take()]


def test_transactions_that_end_in_one_read_are_committed_in_its_order_each_with_its_op_record(whole: Whole) -> None:
    ends = prepare(whole, 100)
    counted = Counted(whole, 37)
    whole.frames(*ends)
    assert counted.count == 100
    assert [answer.code for answer in whole.peer.take()] == [0] * 100
    assert [int(record.body) for record in records(whole, "T")] == list(range(0, 100, 2))
    assert [int(record.body) for record in records(whole, "T", 1)] == list(range(1, 100, 2))
    assert [int(record.body) for record in records(whole, OP_HALF_TOPIC)] == list(range(100))
    whole.tick()
    assert whole.broker.transactions.pending == 0


def test_a_run_goes_on_over_the_end_of_a_log_file(whole: Whole) -> None:
    ends = prepare(whole, 400)
    counted = Counted(whole, 37)
    whole.frames(*ends)
    assert counted.count == 400
    assert len(whole.broker.store.log.segments.bases) > 2
    assert len(records(whole, "T")) + len(records(whole, "T", 1)) == 400


def test_an_end_that_stands_twice_in_a_read_counts_once_and_what_rolls_back_is_not_shown(whole: Whole) -> None:
    ends = prepare(whole, 3)
    ends[1].fields["commitOrRollback"] = "12"
    whole.frames(ends[0], ends[0], ends[1], ends[2], ends[2])
    assert [answer.code for answer in whole.peer.take()].count(ResponseCode.SYSTEM_ERROR) == 2
    assert [record.body for queue_id in (0, 1) for record in records(whole, "T", queue_id)] == [b"0", b"2"]
    assert [int(record.body) for record in records(whole, OP_HALF_TOPIC)] == [0, 1, 2]
    whole.tick()
    assert whole.broker.transactions.pending == 0


def test_an_odd_end_is_refused_and_those_around_it_are_taken(whole: Whole) -> None:
    ends = prepare(whole, 5)
    ends[2].fields["producerGroup"] = "another"
    whole.frames(*ends)
    refused = [answer for answer in whole.peer.take() if answer.code]
    assert [(answer.opaque, answer.remark) for answer in refused] == [(3, "The producer group wrong")]
    assert [int(record.body) for record in records(whole, OP_HALF_TOPIC)] == [0, 1, 3, 4]
    assert whole.broker.transactions.pending == 5  # until the op records are looked at
    whole.tick()
    assert whole.broker.transactions.pending == 1


def test_op_records_of_a_broker_with_a_long_address_have_it(whole: Whole) -> None:
    ends = prepare(whole, 2)
    address = bytes(range(20))
    whole.broker.listening("[::1]:10911", address)
    whole.frames(*ends)
    assert [(int(record.body), record.born_host, record.store_host) for record in records(whole, OP_HALF_TOPIC)] == [
        (half, address, address) for half in range(2)
    ]
    assert len(records(whole, "T")) + len(records(whole, "T", 1)) == 2


def test_messages_that_are_sent_back_in_one_read_come_again_in_its_order(whole: Whole) -> None:
    places = sent(whole, 70)
    counted = Counted(whole, 36)
    whole.frames(*(back(place, opaque) for opaque, place in enumerate(places)))
    assert counted.count == 70
    assert [(answer.opaque, answer.code) for answer in whole.peer.take()] == [(opaque, 0) for opaque in range(70)]
    waiting = records(whole, "SCHEDULE_TOPIC_XXXX", 2)
    assert [int(record.body) for record in waiting] == list(range(70))
    assert {record.reconsume_times for record in waiting} == {1}
    first = decode_properties(waiting[0].properties)
    assert (first["RETRY_TOPIC"], first["REAL_TOPIC"], first["DELAY"], first["WAIT"]) == ("T", "%RETRY%g", "3", "false")


def test_nothing_is_taken_in_runs_while_somebody_guards_requests(whole: Whole) -> None:
    places = sent(whole, 2)

    def guard(peer: Peer, command: Command) -> None:
        if command.fields.get("offset") == str(places[1]):
            raise Refused(ResponseCode.NO_PERMISSION, "not this one")

    counted = Counted(whole, 36)
    whole.broker.admission.guards.append(guard)
    whole.frames(back(places[0], 1), back(places[1], 2))
    assert counted.count == 0
    assert sorted((answer.opaque, answer.code) for answer in whole.peer.take()) == [(1, 0), (2, ResponseCode.NO_PERMISSION)]


def test_a_mistake_in_a_run_leaves_nothing_staged_and_each_request_to_its_handler(whole: Whole, caplog: pytest.LogCaptureFixture) -> None:
    places = sent(whole, 3)
    take = whole.broker.runs[36]

    def mistaken(requests: list[Command]) -> int:
        take(requests)
        raise ZeroDivisionError

    whole.broker.runs[36] = mistaken
    whole.frames(*(back(place, opaque) for opaque, place in enumerate(places)))
    assert "taken together, failed: they are looked at one by one" in caplog.text
    assert {(answer.opaque, answer.code) for answer in whole.peer.take()} == {(0, 0), (1, 0), (2, 0)}
    assert [record.body for record in records(whole, "SCHEDULE_TOPIC_XXXX", 2)] == [b"0", b"1", b"2"]


def test_a_turn_that_is_over_ends_between_two_runs(whole: Whole) -> None:
    places = sent(whole, 2 * RUN_MAX)
    frames = Framer().feed(b"".join(back(place, opaque).encode() for opaque, place in enumerate(places)))
    take = whole.broker.runs[36]

    def slow(requests: list[Command]) -> int:
        whole.clock.ms += 10
        return take(requests)

    whole.broker.runs[36] = slow
    rest = whole.broker.receive(whole.peer, frames, whole.clock.ms + 5)
    assert rest is not None
    assert len(rest) == RUN_MAX
    assert whole.broker.receive(whole.peer, rest) is None
    assert len(whole.peer.take()) == 2 * RUN_MAX


@pytest.mark.parametrize(
    "head",
    [b"[]", b"{", b'{"code":36}', b'{"code":36.0,"opaque":1,"flag":0,"version":1,"extFields":{}}',
     b'{"code":36,"opaque":true,"flag":0,"version":1,"extFields":{}}', b'{"code":36,"opaque":1,"flag":1,"version":1,"extFields":{}}',
     b'{"code":36,"opaque":4294967296,"flag":0,"version":1,"extFields":{}}', b'{"code":36,"opaque":1,"flag":0,"version":1,"extFields":[]}'],
)  # fmt: skip
def test_a_header_that_is_not_ordinary_ends_a_run(head: bytes) -> None:
    good = b'{"code":36,"opaque":1,"flag":0,"version":1,"extFields":{}}'
    assert [len(requests_of(36, [(0, good, b""), (0, one, b"")], 0)) for one in (good, head)] == [2, 1]


def test_half_messages_go_where_the_compiled_step_would_put_them_too(whole: Whole) -> None:
    prepare(whole, 4)
    assert [decode_properties(record.properties)["REAL_QID"] for record in records(whole, HALF_TOPIC)] == ["0", "1", "0", "1"]


ODD_BACKS: list[dict[str, Any]] = [
    {"failure": "it broke"}, {"failure": ""}, {"failure": ["it broke"]}, {"delayLevel": "2"}, {"delayLevel": "99"}, {"delayLevel": "-1"},
    {"delayLevel": 1}, {"delayLevel": [1]}, {"maxReconsumeTimes": "0"}, {"maxReconsumeTimes": "x"}, {"maxReconsumeTimes": None},
    {"unitMode": "true"}, {"unitMode": False}, {"group": "nobody"}, {"group": {}}, {"offset": "-1"}, {"offset": "9" * 19}, {"offset": "1"},
]  # fmt: skip


def test_whatever_is_sent_back_becomes_what_its_handler_makes_of_it(tmp_path: Path) -> None:
    """Usual and odd words among each other, for messages that stand near each other, far away and over the end of a file, short and long,
    for the first time and again."""
    outcomes: list[object] = []
    for name in ("runs", "handlers"):
        whole = Whole(tmp_path / name, mapped_file_size_commit_log=1 << 20, max_message_size=1 << 18)
        for topic in ("T", "%RETRY%g"):
            whole.broker.topics.put(Topic(topic, 2, 2))
        config = whole.broker.groups.find("g")
        assert config is not None
        config.retry_queue_nums = 2
        if name == "handlers":
            whole.broker.runs.clear()
        bodies = [b"%d" % n * (1 + n % 3 * 700) for n in range(60)]
        bodies[20:20] = bodies[40:40] = [bytes(200_000)] * 2
        sends = [Command(310, send_fields(properties=f"UNIQ_KEY\x01U{n}"), body, opaque=n) for n, body in enumerate(bodies)]
        sends[5].fields["i"] = ""
        whole.frames(*sends)
        places = [int(answer.fields["msgId"][-16:], 16) for answer in whole.peer.take()]
        assert len(places) == 64
        answers: list[object] = []
        for turn in range(3):
            backs = [back(place, opaque) for opaque, place in enumerate(places[::-1] if turn == 1 else places)]
            for number, odd in enumerate(ODD_BACKS):
                backs[3 * number + turn].fields.update(odd)
            whole.frames(*backs)
            answers += [(answer.opaque, answer.code, answer.remark) for answer in whole.peer.take()]
            for _ in range(70):
                whole.tick(1_000)
            found = [record for queue_id in (0, 1) for record in records(whole, "%RETRY%g", queue_id)]
            assert len(found) > 40 * (turn + 1), "most came again"
            places = sorted(record.physical_offset for record in found)[-64:]
        rows = whole.broker.stats._backs
        answers.append({key: row.count for key, row in rows.items()})
        whole.close()
        files = [path.read_bytes() for part in ("commitlog", "consumequeue") for path in sorted((whole.root / part).rglob("0000*"))]
        outcomes.append((sorted(answers[:-1], key=repr), answers[-1], files))
    assert outcomes[0] == outcomes[1]
