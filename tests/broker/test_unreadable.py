"""Damaged entries, records and bodies: the queue goes on behind them, and what the log has is found again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from roquet.store.queue import ENTRY_SIZE
from roquet.testing.disk import SimDisk
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.layout import ENTRY
from roquet.wire.record import BadRecord, Record, decode_readable, decode_records

from .whole import Whole, pull_fields, send_fields

COUNT = 120
V2 = RequestCode.SEND_MESSAGE_V2


def started(disk: SimDisk, **more: Any) -> Whole:
    return Whole(Path("/store"), disk, mapped_file_size_commit_log=65_536, enable_property_filter=True, **more)


def filled(disk: SimDisk, **more: Any) -> Whole:
    """Messages of T among those of another topic, over several log and queue files; their entries are in files."""
    whole = started(disk, mapped_file_size_consume_queue=20 * 50, **more)
    for number in range(COUNT):
        properties = f"TAGS\x01{'even' if number % 2 == 0 else 'odd'}\x02n\x01{number}"
        assert whole.ask(V2, send_fields("T", properties=properties), b"%d " % number + b"x" * 700).code == 0
        assert whole.ask(V2, send_fields("Other"), b"y" * 300).code == 0
    for _ in range(15):
        whole.tick(1_000)
    queue = whole.broker.store.queue("T", 0)
    assert queue.tail_start == COUNT
    return whole


def spoil_entries(disk: SimDisk, numbers: range, entry: bytes = bytes(ENTRY_SIZE), topic: str = "T") -> None:
    for number in numbers:
        base = number * ENTRY_SIZE // 1_000 * 1_000
        disk.open(f"/store/consumequeue/{topic}/0/{base:020d}").write(number * ENTRY_SIZE - base, entry)


def spoil_log(disk: SimDisk, whole: Whole, number: int, place: int, data: bytes) -> None:
    entry = whole.broker.store.queue("T", 0).entry(number)
    assert entry is not None
    base = entry[0] // 65_536 * 65_536
    disk.open(f"/store/commitlog/{base:020d}").write(entry[0] - base + place, data)


def pulled(whole: Whole, way: str = "plain", decode: Callable[[bytes], list[Record]] = decode_records) -> list[int]:
    """The numbers of the messages that a consumer gets, which goes where it is sent."""
    found: list[int] = []
    offset = 0
    for _ in range(4 * COUNT):
        answer = whole.ask(RequestCode.PULL_MESSAGE, pull_fields("T", 0, offset, suspendTimeoutMillis="0", **WAYS[way]))
        assert answer.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND), answer
        if answer.code == ResponseCode.PULL_NOT_FOUND and int(answer.fields["nextBeginOffset"]) <= offset:
            return found
        body = answer.body
        if answer.code == 0 and "scanCount" in answer.fields:
            body = body[: len(body) - 4 * int(answer.fields["scanCount"])]
        found += [int(record.body.split()[0]) for record in decode(body)]
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])
    raise AssertionError("it does not come to an end")


WAYS: dict[str, dict[str, str]] = {
    "plain": {},
    "tag": {"subscription": "even || odd"},
    "sql": {"subscription": "n >= 0", "expressionType": "SQL92"},
    "scan": {"scanBytes": "1000000"},
    "scan with a tag": {"scanBytes": "1000000", "subscription": "even || odd"},
    "scan with sql": {"scanBytes": "1000000", "subscription": "n >= 0", "expressionType": "SQL92"},
}
DAMAGE: dict[str, bytes] = {
    "zeros": bytes(ENTRY_SIZE),
    "a negative size": ENTRY.pack(100, -5, 0),
    "a huge size": ENTRY.pack(100, 0x7FFFFFF0, 0),
    "a size too large": ENTRY.pack(100, 30_000, 1),
    "another place": ENTRY.pack(4_711, 900, 1),
    "the first record": ENTRY.pack(0, 1_000, 1),
    "beyond the end": ENTRY.pack(1 << 40, 900, 1),
    "a negative place": ENTRY.pack(-8, 900, 1),
    "all ones": b"\xff" * ENTRY_SIZE,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("cold", [False, True])
def test_damaged_entries_are_made_again_from_the_log(way: str, damage: str, cold: bool, caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(seed=5)
    if cold:
        disk.cold_ratio = 0.05
    whole = filled(disk)
    spoil_entries(disk, range(40, 60), DAMAGE[damage])
    assert pulled(whole, way) == list(range(COUNT))
    assert whole.broker.store.mender.mended >= 20
    assert whole.broker.store.mender.unreadable == 0
    assert "entry 40 of queue T/0 was damaged" in caplog.text
    whole.tick(12_000)
    before = len(caplog.records)
    assert pulled(whole) == list(range(COUNT))
    assert len([one for one in caplog.records[before:] if one.levelno >= logging.ERROR]) == 0
    runtime = orjson.loads(whole.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)
    assert int(runtime["table"]["queueEntriesMended"]) >= 20


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("place", "data"), [(0, b"\0\0\x01\x01"), (0, b"\x7f\xff\xff\xf0"), (4, b"\0\0\0\0"), (0, bytes(60)), (20, b"\xff" * 8)],
    ids=["a wrong length", "a huge length", "no magic", "zeros", "another number"],
)  # fmt: skip
def test_a_damaged_record_is_stepped_over_and_said_once(way: str, place: int, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    whole = filled(disk)
    spoil_log(disk, whole, 50, place, data)
    expected = [number for number in range(COUNT) if number != 50]
    for _ in range(3):
        assert pulled(whole, way) == expected
    said = [one for one in caplog.records if one.name == "roquet.store" and "message 50 of queue T/0 cannot be read" in one.getMessage()]
    assert len(said) == 1
    assert whole.broker.store.mender.unreadable == 1
    assert not [one for one in caplog.records if one.exc_info]


def test_all_entries_and_records_damaged_end_somewhere() -> None:
    disk = SimDisk()
    whole = filled(disk)
    spoil_entries(disk, range(COUNT))
    assert pulled(whole) == list(range(COUNT))
    for number in range(COUNT):
        spoil_log(disk, whole, number, 0, bytes(30))
    assert pulled(whole) == []


def test_times_are_found_around_damaged_entries() -> None:
    disk = SimDisk()
    whole = started(disk, mapped_file_size_consume_queue=20 * 50)
    times = []
    for number in range(COUNT):
        whole.tick(1_000)
        times.append(whole.clock.ms)
        assert whole.ask(V2, send_fields("T"), b"%d" % number).code == 0
    for _ in range(15):
        whole.tick(1_000)
    spoil_entries(disk, range(50, 70))
    for number in (0, 10, 49, 75, 119):
        found = whole.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": str(times[number])})
        assert int(found.fields["offset"]) == number
    spoil_entries(disk, range(5))
    found = whole.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": "0"})
    assert int(found.fields["timestamp"]) == times[5]


def test_delayed_messages_behind_a_damaged_entry_are_delivered_and_its_own_too() -> None:
    disk = SimDisk()
    whole = started(disk, mapped_file_size_consume_queue=20 * 50)
    for number in range(10):
        assert whole.ask(V2, send_fields("T", properties="DELAY\x012"), b"%d x" % number).code == 0
    for _ in range(3):
        whole.tick(1_000)
    path = "/store/consumequeue/SCHEDULE_TOPIC_XXXX/1/00000000000000000000"
    disk.open(path).write(3 * ENTRY_SIZE, bytes(2 * ENTRY_SIZE))
    for _ in range(60):
        whole.tick(200)
    assert sorted(pulled(whole)) == list(range(10))


def test_timed_messages_behind_a_damaged_entry_are_delivered_and_its_own_too() -> None:
    disk = SimDisk()
    whole = started(disk, mapped_file_size_consume_queue=20 * 50)
    for number in range(10):
        assert whole.ask(V2, send_fields("T", properties=f"TIMER_DELAY_SEC\x0130\x02UNIQ_KEY\x01u{number}"), b"%d x" % number).code == 0
    whole.broker.store.tails.write()
    path = "/store/consumequeue/rmq_sys_wheel_timer/0/00000000000000000000"
    disk.open(path).write(3 * ENTRY_SIZE, bytes(2 * ENTRY_SIZE))
    for _ in range(400):
        whole.tick(100)
    assert sorted(pulled(whole)) == list(range(10))


def test_a_prepared_message_with_a_damaged_entry_is_asked_about() -> None:
    disk = SimDisk()
    whole = started(disk, mapped_file_size_consume_queue=20 * 50)
    assert whole.ask(V2, send_fields("T", properties="TRAN_MSG\x01true\x02PGROUP\x01g", g=str(whole.clock.ms)), b"1 x").code == 0
    for _ in range(3):
        whole.tick(1_000)
    disk.open("/store/consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0/00000000000000000000").write(0, bytes(ENTRY_SIZE))
    for _ in range(130):
        whole.tick(1_000)
    assert whole.broker.transactions.pending == 1
    halves = whole.broker.store.find_queue("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert halves is not None
    assert halves.next > 1  # put again when its producer was to be asked


# The client's side


def test_one_falsified_body_costs_one_message() -> None:
    disk = SimDisk()
    whole = filled(disk)
    spoil_log(disk, whole, 50, 92, b"####")
    assert pulled(whole, decode=lambda data: decode_readable(data)[0]) == [number for number in range(COUNT) if number != 50]


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("place", [0, 1, 4, 8, 84, 88, 93])
def test_the_other_records_of_an_answer_are_read(bad: int, place: int) -> None:
    raws = [bytearray(Record("T", 0, b"body %d" % number, b"a\x01b", queue_offset=number).encode()) for number in range(3)]
    raws[bad][place] ^= 0x55
    data = b"".join(raws)
    with pytest.raises(BadRecord):
        decode_records(data)
    records, troubles = decode_readable(data)
    assert [record.queue_offset for record in records] == [number for number in range(3) if number != bad]
    assert len(troubles) == 1
    assert f"queue offset {bad}" in troubles[0]


def test_what_an_answer_holds_is_checked_without_a_look_at_every_entry() -> None:
    """The careful look is for damage alone."""
    disk = SimDisk()
    whole = filled(disk)
    whole.broker.store.mender.clean = lambda *given: pytest.fail("looked carefully")  # type: ignore[method-assign]
    for way in WAYS:
        assert pulled(whole, way) == list(range(COUNT))
