"""Logs that went apart are recognised before anything is copied, and never merged in silence."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest

from roquet.ha.compare import BLOCK, BeginAt, CutBack, GoOn, Own, Piece, Refuse, Told, Verdict, compare
from roquet.ports import Answered
from roquet.store import rejoining
from roquet.store.scan import Found, read_records
from roquet.store.segments import Segments
from roquet.testing import WholeBroker
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

from .pairs import CallMaster, Pair
from .test_roles import SEND, log_of, send
from .test_slave import entries

# The comparison, as a function of two logs

FILE = 3 * BLOCK + 1_000


def verdict(
    own: bytes,
    master: bytes,
    own_start: int = 0,
    master_start: int = 0,
    doubtful: Sequence[tuple[int, int]] = (),
    record: int = 0,
    master_doubts: Sequence[tuple[int, int]] = (),
) -> tuple[Verdict, int]:
    """What comes of the comparison, and how often the master was asked."""

    def read(offset: int, size: int) -> bytes:
        assert 0 <= size <= BLOCK
        assert own_start <= offset
        assert offset // FILE == (offset + size - 1) // FILE
        data = own[offset - own_start : offset - own_start + size]
        assert len(data) == size
        return data

    def told(piece: Piece) -> Told:
        data = master[piece.offset - master_start : piece.offset - master_start + piece.size] if piece.offset >= master_start else b""
        whole = len(data) == piece.size
        return Told(
            master_start,
            master_start + len(master),
            FILE,
            crc32(data) if whole else -1,
            data if whole and piece.with_bytes else b"",
            master_doubts,
        )

    def records(begin: int, end: int) -> list[tuple[int, int]]:
        return [(at, record) for at in range(begin, end, record) if any(own[at - own_start : at - own_start + record])] if record else []

    asking = compare(Own(own_start, own_start + len(own), FILE, read, doubtful, records))
    asked = 0
    try:
        piece = next(asking)
        while True:
            asked += 1
            piece = asking.send(told(piece))
    except StopIteration as stop:
        return stop.value, asked


@pytest.mark.parametrize("seed", range(40))
def test_the_first_byte_that_differs_is_found_wherever_it_is(seed: int) -> None:
    chance = random.Random(seed)
    common = chance.randbytes(chance.randrange(1, 12 * BLOCK))
    own = common + chance.choice([b"", b"\0" + chance.randbytes(chance.randrange(4 * BLOCK))])
    master = common + chance.choice([b"", b"\1" + chance.randbytes(chance.randrange(4 * BLOCK))])
    found, asked = verdict(own, master)
    assert asked < 12
    if len(own) == len(common):
        assert found == GoOn(len(master))
    else:
        assert isinstance(found, CutBack)
        assert found.offset == len(common)


def test_what_a_crash_may_have_spoiled_is_compared_though_the_end_is_the_same() -> None:
    """Found by the simulation of groups (seed 503): a hole before a sound end stayed, and the slave became the master with it."""
    master = random.Random(3).randbytes(9 * BLOCK)
    own = bytearray(master)
    own[5 * BLOCK + 7] ^= 1
    assert verdict(bytes(own), master)[0] == GoOn(len(master))  # nobody doubts it
    found, asked = verdict(bytes(own), master, doubtful=[(100, 200), (5 * BLOCK, 6 * BLOCK)])
    assert found == CutBack(5 * BLOCK + 7, len(master))
    assert asked < 10
    # Also where the master's crash spoiled its own log (seed 3978).
    assert verdict(bytes(own), master, master_doubts=[(5 * BLOCK, 6 * BLOCK)])[0] == CutBack(5 * BLOCK + 7, len(master))
    own[BLOCK + 3] ^= 1
    assert verdict(bytes(own), master, doubtful=[(BLOCK, 9 * BLOCK)])[0] == CutBack(BLOCK + 3, len(master))
    assert verdict(master, master, doubtful=[(0, 9 * BLOCK)])[0] == GoOn(len(master))


def test_logs_whose_first_record_was_spoiled_and_that_share_a_later_one_were_once_one() -> None:
    """Found by the simulation of groups (seeds 1390, 1469): the slave copied nothing for ever."""
    master = random.Random(4).randbytes(1_000)
    spoiled = bytes(300) + master[300:800]
    found, _ = verdict(spoiled, master, record=100)
    assert found == BeginAt(0, len(master), master)
    found, _ = verdict(master[:800], bytes(300) + master[300:], record=100)  # here the master lost it
    assert isinstance(found, BeginAt)
    assert isinstance(verdict(random.Random(5).randbytes(800), master, record=100)[0], CutBack)  # which nobody does: they were never one


def test_a_log_that_begins_later_than_the_other_is_compared_where_both_are() -> None:
    data = random.Random(1).randbytes(3 * FILE)
    assert verdict(data[FILE:], data, own_start=FILE)[0] == GoOn(len(data))
    assert verdict(data[: 2 * FILE], data[FILE:], master_start=FILE)[0] == GoOn(len(data))
    assert verdict(data[:FILE], data[FILE:], master_start=FILE)[0] == GoOn(len(data))


def test_a_log_that_ends_before_the_master_s_begins_is_begun_anew() -> None:
    data = random.Random(1).randbytes(3 * FILE)
    assert verdict(data[:100], data[FILE:], master_start=FILE)[0] == BeginAt(FILE, len(data))


def test_an_empty_log_begins_at_the_oldest_with_a_piece_where_that_is_0() -> None:
    data = random.Random(1).randbytes(FILE)
    assert verdict(b"", data)[0] == BeginAt(0, FILE, data[:BLOCK])
    assert verdict(b"", b"")[0] == BeginAt(0, 0)
    assert verdict(b"", data, master_start=FILE)[0] == BeginAt(FILE, 2 * FILE)


def test_logs_without_a_common_stretch_are_refused() -> None:
    data = random.Random(1).randbytes(3 * FILE)
    found, _ = verdict(data[FILE:], data[:50], own_start=FILE)
    assert isinstance(found, Refuse)
    assert "share nothing" in found.why


# Whole brokers


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def swap(pair: Pair) -> None:
    """The slave's directory becomes the master's, as an operator promotes it; the old master's becomes the slave's."""
    pair.start_master("s")
    pair.start_slave("m")


def test_e11_an_old_master_with_a_tail_that_the_new_one_never_had_is_cut_back_and_the_tail_kept(pair: Pair) -> None:
    for number in range(30):
        send(pair.master, b"%d" % number * 60)
    pair.settle()
    assert pair.same
    pair.kill(pair.slave)
    for _ in range(3):
        send(pair.master, b"only here")
    pair.kill(pair.master)
    swap(pair)
    for number in range(40):
        send(pair.master, b"new %d" % number * 60)
    pair.settle()
    assert pair.same
    assert entries(pair.slave) == entries(pair.master)
    kept = b"".join(path.read_bytes() for path in (pair.root / "m" / "lost").iterdir())
    assert kept.count(b"only here") == 3
    assert any("cut back" in notice.text for notice in pair.slave.broker.notices.list())
    pair.kill(pair.slave)  # and a crash right after it finds the same
    pair.start_slave("m")
    pair.settle()
    assert pair.same
    assert entries(pair.slave) == entries(pair.master)


def test_e11_a_slave_ahead_of_a_master_that_was_restored_from_a_backup_is_cut_back_and_says_so(pair: Pair) -> None:
    for number in range(30):
        send(pair.master, b"%d" % number * 60)
    pair.settle()
    pair.stop(pair.master)
    shutil.copytree(pair.root / "m", pair.root / "backup")
    pair.wire.up = True
    pair.start_master()
    for number in range(20):
        send(pair.master, b"more %d" % number * 60)
    pair.settle()
    assert pair.same
    pair.kill(pair.master)
    pair.start_master("backup")
    pair.settle()
    assert pair.same
    assert (pair.root / "s" / "lost").exists()
    assert send(pair.master).code == 0
    pair.settle()
    assert pair.same
    assert entries(pair.slave) == entries(pair.master)


def test_e11_a_slave_of_a_master_that_lost_its_store_copies_nothing_and_keeps_what_it_has(pair: Pair) -> None:
    for number in range(30):
        send(pair.master, b"%d" % number * 60)
    pair.settle()
    before = log_of(pair.slave)
    pair.kill(pair.master)
    pair.start_master("empty")
    pair.settle(400)
    assert log_of(pair.slave) == before
    assert pair.slave.broker.copying.doing == "away"
    assert any("share nothing" in notice.text for notice in pair.slave.broker.notices.list())


def test_e12_a_slave_that_was_away_for_longer_than_the_master_keeps_messages_begins_anew(pair: Pair) -> None:
    send(pair.master)
    pair.settle()
    pair.stop(pair.slave)
    for number in range(300):
        send(pair.master, b"%d" % number * 60)
    pair.master.broker.store.log.segments.drop_first()
    pair.start_slave()
    pair.settle()
    assert pair.same
    assert pair.slave.broker.store.log.start == 16_384
    assert any((pair.root / "s" / "lost").iterdir())
    pair.kill(pair.slave)
    pair.start_slave()
    pair.settle()
    assert pair.same


def test_two_stores_that_were_never_one_are_not_merged(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    other = Pair(tmp_path / "other")
    for _ in range(5):
        send(other.master, b"another")
        send(pair.master, b"mine")
    other.close()
    before = log_of(other.master)
    pair.stop(pair.slave)
    pair.start_slave("other/m")
    pair.settle(300)
    assert log_of(pair.slave) == before
    assert pair.slave.broker.copying.doing == "away"
    pair.close()


def test_what_was_compared_counts_for_this_connection_alone(pair: Pair) -> None:
    """The master may be restarted between the comparison and the copy, and have another log then."""
    for number in range(30):
        send(pair.master, b"%d" % number * 60)
    pair.settle()
    pair.wire.cut()
    pair.slave.tick(50)
    copying = pair.slave.broker.copying
    assert copying.doing == "comparing"
    pair.caller.run_one()
    assert pair.caller.asked[-2:] == [RequestCode.LOG_PIECE] * 2  # the checksum of the end is asked for, and that of before is answered
    pair.kill(pair.master)
    pair.start_master("other")
    for number in range(60):
        send(pair.master, b"other %d" % number * 60)
    pair.caller.run()  # the answers of before
    assert copying.link is None
    before = log_of(pair.slave)
    pair.settle(300)
    assert log_of(pair.slave) == before


def test_what_was_not_flushed_when_the_logs_were_compared_is_not_kept(tmp_path: Path) -> None:
    """The master loses its tail by a power failure. The slave has it in memory, and its flush ends while the logs are compared."""
    pair = Pair(tmp_path, broker_role="SYNC_MASTER")
    pair.stop(pair.slave)
    pair.start_slave("s2", flush_disk_type="SYNC_FLUSH")
    for number in range(30):
        send(pair.master, b"%d" % number * 60)
    pair.settle()
    assert pair.same
    pair.stop(pair.master)
    shutil.copytree(pair.root / "m", pair.root / "before")
    pair.wire.up = True
    pair.start_master()
    pair.settle()
    pair.slave.background.hold = True
    pair.master.frames(Command(RequestCode.SEND_MESSAGE_V2, dict(SEND), b"the lost tail", opaque=1))
    pair.wire.carry()
    pair.kill(pair.master)
    pair.start_master("before")
    for number in range(30):
        send(pair.master, b"new %d" % number * 60)
    pair.slave.tick(50)
    assert pair.slave.broker.copying.doing == "comparing"
    pair.slave.background.hold = False
    pair.slave.background.release()
    pair.settle()
    assert pair.same
    assert entries(pair.slave) == entries(pair.master)
    pair.close()


def test_damage_in_the_slave_s_own_tail_is_found_and_copied_again(pair: Pair) -> None:
    for number in range(30):
        send(pair.master, b"%d" % number * 60)
    pair.settle()
    pair.stop(pair.slave)
    last = sorted((pair.root / "s" / "commitlog").iterdir())[-1]
    data = bytearray(last.read_bytes())
    filled = len(bytes(data).rstrip(b"\0"))
    data[filled - 150] ^= 0xFF
    last.write_bytes(bytes(data))
    pair.start_slave()
    pair.settle()
    assert pair.same
    assert entries(pair.slave) == entries(pair.master)


# A Java master


class CallJava(CallMaster):
    """Answers as Apache's 4.9.7 does, for what a slave asks before it copies."""

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        if command.code == RequestCode.LOG_PIECE:
            self.asked.append(command.code)
            self._waiting.append(lambda: done(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 30001 not supported")))
        else:
            super().call(address, command, timeout_ms, done)


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    caller = CallJava()
    caller.master = made.master.broker
    made.caller = caller
    made.slave.broker.copying._caller = caller
    yield made
    made.close()


def test_a_java_master_is_followed_from_its_last_file_on(java: Pair) -> None:
    for number in range(300):
        send(java.master, b"%d" % number * 60)
    java.settle()
    assert java.slave.broker.copying.master_is_java
    start = java.slave.broker.store.log.start
    assert start == java.master.broker.store.log.segments.bases[-1]
    assert log_of(java.slave) == log_of(java.master)[start:]
    send(java.master)
    java.settle()
    assert log_of(java.slave) == log_of(java.master)[start:]


def test_e12_a_java_master_with_another_record_at_this_slave_s_end_is_not_continued(java: Pair) -> None:
    for number in range(10):
        send(java.master, b"%d" % number * 60)
    java.settle()
    before = log_of(java.slave)
    java.kill(java.slave)
    java.kill(java.master)
    shutil.rmtree(java.root / "m")
    java.start_master()
    for number in range(20):
        send(java.master, b"other %d" % number * 60)
    java.start_slave()
    java.settle(300)
    assert log_of(java.slave) == before
    assert any("another record" in notice.text for notice in java.slave.broker.notices.list())


def test_e11_a_java_master_that_is_behind_is_not_continued(java: Pair) -> None:
    for number in range(10):
        send(java.master, b"%d" % number * 60)
    java.settle()
    before = log_of(java.slave)
    java.kill(java.master)
    java.start_master("empty")
    send(java.master)
    java.settle(300)
    assert log_of(java.slave) == before
    assert any("lost messages" in notice.text for notice in java.slave.broker.notices.list())


def test_the_last_whole_record_is_found_without_reading_a_file_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have a gigabyte, and a slave that reads one stands still."""
    broker = WholeBroker(tmp_path)
    for number in range(200):
        send(broker, b"%d" % number, queue_id=number % 4)
    records = list(read_records(broker.broker.store.log.segments, 0, broker.broker.store.log.written))
    read: list[int] = []

    def counted(segments: Segments, start: int, stop: int) -> Iterator[Found]:
        for found in read_records(segments, start, stop):
            read.append(found.offset)
            yield found

    monkeypatch.setattr(rejoining, "read_records", counted)
    for place in (records[150].offset, records[150].offset + 1, records[151].offset - 1):
        assert broker.broker.store.rejoining.last_whole(place) == records[150].offset
    assert broker.broker.store.rejoining.last_whole(0) == 0
    assert len(read) <= 6
    broker.close()
