"""Log files that are to go and still hold something promised: delayed, timed and prepared messages outlive them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roquet.testing.clock import ManualClock
from roquet.testing.disk import SimDisk
from roquet.wire.calls.brokers import KvTable
from roquet.wire.codes import RequestCode
from roquet.wire.record import Record, decode_properties

from .test_delay import bodies, delayed, stored
from .whole import Whole, send_fields

HOUR = 3_600_000
LEVELS = "1s 100h 366d"
ROOT = Path("/store")


class TwoDisks(SimDisk):
    """The log may have a file system of its own; how full each is, the test says."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.used = {"/": 0.1}

    def used_ratio(self, path: str) -> float:
        return self.used[max((root for root in self.used if path.startswith(root)), key=len)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk(clock: ManualClock) -> TwoDisks:
    return TwoDisks(clock)


def started(disk: TwoDisks, clock: ManualClock, **settings: Any) -> Whole:
    values: dict[str, Any] = {
        "mapped_file_size_commit_log": 8_192, "file_reserved_time": 1, "delete_when": "", "message_delay_level": LEVELS,
    }  # fmt: skip
    return Whole(ROOT, disk, clock, **(values | settings))


def fill(whole: Whole, count: int = 40) -> None:
    for _ in range(count):
        assert whole.ask(310, send_fields("Filler"), b"." * 500).code == 0


def age(whole: Whole, hours: float = 2) -> None:
    """Files become old and are asked to go; time enough for what is in them to be moved."""
    for _ in range(int(hours * 60)):
        whole.tick(60_000)
    whole.broker.store.delete_expired_now()
    for _ in range(200):
        whole.tick(1_000)


def test_a_delay_longer_than_retention_outlives_its_log_file_and_comes_at_its_time(disk: TwoDisks, clock: ManualClock) -> None:
    whole = started(disk, clock)
    for number in range(5):
        assert delayed(whole, 2, b"%d" % number).code == 0
    sent = clock.ms
    fill(whole)
    age(whole)
    assert whole.broker.store.log.start > 0, "the file goes"
    whole.close()
    whole = started(disk, clock)
    clock.ms = sent + 100 * HOUR - 1_000
    for _ in range(10):
        whole.tick(50)
    assert bodies(whole) == []
    for _ in range(100):
        whole.tick(50)
    assert bodies(whole) == [b"%d" % number for number in range(5)]
    (first, *_) = stored(whole)
    assert decode_properties(first.properties)["DELAY"] == "2"
    whole.close()


def test_a_delayed_message_of_a_year_is_moved_from_file_to_file(disk: TwoDisks, clock: ManualClock) -> None:
    whole = started(disk, clock)
    delayed(whole, 3, b"in a year")
    sent = clock.ms
    starts = []
    for _ in range(3):
        fill(whole)
        age(whole)
        starts.append(whole.broker.store.log.start)
    assert 0 < starts[0] < starts[1] < starts[2]
    clock.ms = sent + 366 * 24 * HOUR
    for _ in range(200):
        whole.tick(100)
    assert bodies(whole) == [b"in a year"]
    whole.close()


def test_a_prepared_message_keeps_its_log_file_until_it_was_put_again(disk: TwoDisks, clock: ManualClock) -> None:
    """A full disk takes files of any age: also the one that holds a half message whose producer was not asked yet."""
    whole = started(disk, clock)
    answer = whole.ask(310, send_fields(properties="UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01g", g=str(clock.ms)), b"half")
    assert answer.code == 0
    fill(whole)
    disk.used["/"] = 0.88
    for _ in range(11):
        whole.tick(1_000)
    assert whole.broker.store.log.start == 0
    for _ in range(200):
        whole.tick(1_000)
    assert whole.broker.transactions.pending == 1
    assert whole.broker.store.log.start > 0
    (half, *_) = [record for record in stored(whole, "RMQ_SYS_TRANS_HALF_TOPIC") if record.body == b"half"][-1:]
    assert isinstance(half, Record)
    assert half.physical_offset >= whole.broker.store.log.start
    whole.close()


@pytest.mark.parametrize("kind", ["timer", "delay", "half"])
def test_above_90_percent_what_is_pending_is_moved_and_files_are_freed(kind: str, disk: TwoDisks, clock: ManualClock) -> None:
    whole = started(disk, clock)
    if kind == "timer":
        assert whole.ask(310, send_fields(properties="UNIQ_KEY\x01U1\x02TIMER_DELAY_SEC\x01100000"), b"later").code == 0
    elif kind == "delay":
        delayed(whole, 2, b"later")
    else:
        assert (
            whole.ask(310, send_fields(properties="UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01g", g=str(clock.ms)), b"later").code == 0
        )
    fill(whole)
    whole.tick(1_000)
    disk.used["/"] = 0.93
    for _ in range(15):
        whole.tick(1_000)
    assert whole.ask(310, send_fields("Filler"), b".").code == 14, "clients are refused"
    for _ in range(200):
        whole.tick(1_000)
    assert whole.broker.store.log.start > 0, "files were freed"
    disk.used["/"] = 0.5
    for _ in range(15):
        whole.tick(1_000)
    assert whole.ask(310, send_fields("Filler"), b".").code == 0
    if kind == "half":
        assert whole.broker.transactions.pending == 1
    else:
        clock.ms += 101 * HOUR
        for _ in range(100):
            whole.tick(1_000)
        assert bodies(whole) == [b"later"]
    whole.close()


def test_above_98_percent_nothing_is_moved(disk: TwoDisks, clock: ManualClock) -> None:
    whole = started(disk, clock)
    whole.ask(310, send_fields(properties="UNIQ_KEY\x01U1\x02TIMER_DELAY_SEC\x01100000"), b"later")
    fill(whole)
    whole.tick(1_000)
    disk.used["/"] = 0.99
    whole.tick(15_000)
    written = whole.broker.store.log.written
    for _ in range(100):
        whole.tick(1_000)
    assert whole.broker.store.log.written == written
    whole.close()


def test_a_full_disk_of_the_log_alone_refuses_and_frees_and_is_named(disk: TwoDisks, clock: ManualClock) -> None:
    disk.used["/log"] = 0.1
    whole = started(disk, clock, store_path_commit_log="/log/commitlog")
    fill(whole)
    disk.used["/log"] = 0.93
    for _ in range(15):
        whole.tick(1_000)
    answer = whole.ask(310, send_fields("Filler"), b".")
    assert answer.code == 14
    assert "/log/commitlog" in (answer.remark or "")
    assert "93%" in (answer.remark or "")
    assert whole.broker.store.log.start > 0, "old files go, whatever their age"
    table = KvTable.decode(whole.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert (table["commitLogDiskRatio"], table["consumeQueueDiskRatio"]) == ("0.93", "0.1")
    disk.used["/log"] = 0.5
    for _ in range(15):
        whole.tick(1_000)
    assert whole.ask(310, send_fields("Filler"), b".").code == 0
    whole.close()


def test_a_full_disk_of_the_queues_alone_refuses_and_takes_no_young_messages(disk: TwoDisks, clock: ManualClock) -> None:
    """Removing log files frees little of that disk: what is not expired stays."""
    disk.used["/log"] = 0.1
    whole = started(disk, clock, store_path_commit_log="/log/commitlog")
    fill(whole)
    disk.used["/"] = 0.93
    for _ in range(15):
        whole.tick(1_000)
    answer = whole.ask(310, send_fields("Filler"), b".")
    assert answer.code == 14
    assert "/store" in (answer.remark or "")
    assert whole.broker.store.log.start == 0
    for _ in range(90):
        whole.tick(60_000)
    assert whole.broker.store.log.start > 0, "what is expired goes"
    whole.close()


def test_a_disk_that_has_room_again_takes_writes_within_two_seconds(disk: TwoDisks, clock: ManualClock) -> None:
    whole = started(disk, clock)
    whole.tick(1_000)
    disk.used["/"] = 0.99
    for _ in range(15):
        whole.tick(1_000)
    assert whole.ask(310, send_fields("Filler"), b".").code == 14
    disk.used["/"] = 0.5
    for _ in range(2):
        whole.tick(1_000)
    assert whole.ask(310, send_fields("Filler"), b".").code == 0
    whole.close()


def test_while_a_disk_stays_full_files_go_no_faster_than_rounds_come(disk: TwoDisks, clock: ManualClock) -> None:
    whole = started(disk, clock, clean_resource_interval=10_000)
    fill(whole, 400)
    whole.tick(10_000)
    disk.used["/"] = 0.93
    starts = set()
    for _ in range(30):
        whole.tick(1_000)
        starts.add(whole.broker.store.log.start)
    assert 2 <= len(starts) <= 4, "a round every ten seconds"
    whole.close()
