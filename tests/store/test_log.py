"""The log by itself: its marks, who waits for them, and bytes that come from another node."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.store.disk import RealDisk
from roquet.store.log import CommitLog, MovedOut
from roquet.store.segments import OpenFiles, Segments
from roquet.testing.disk import SimDisk

FILE = 128


def made(root: str, *, sync_flush: bool = False, disk: RealDisk | SimDisk | None = None) -> CommitLog:
    log = CommitLog(Segments(OpenFiles(disk or RealDisk()), f"{root}/commitlog", FILE), sync_flush=sync_flush)
    log.start_at(0)
    return log


def append(log: CommitLog, data: bytes) -> int:
    offset = log.reserve(len(data))
    log.staged.append(data)
    return offset


def content(log: CommitLog) -> bytes:
    """All of it, as another node would be sent it."""
    found = b""
    while len(found) < log.written:
        found += log.read(len(found), min(FILE - len(found) % FILE, log.written - len(found)))
    return found


class TestMarks:
    def test_without_sync_flush_what_is_written_is_safe_and_what_is_flushed_is_durable(self, tmp_path: Path) -> None:
        log = made(str(tmp_path))
        append(log, b"12345")
        assert (log.end, log.written, log.safe) == (5, 0, 0)
        log.commit()
        assert (log.written, log.flushed, log.safe, log.durable) == (5, 0, 5, 0)
        assert not log.wants_flush
        log.note_flushed(log.syncer()[0])
        assert (log.flushed, log.safe, log.durable) == (5, 5, 5)

    def test_with_sync_flush_nothing_is_safe_before_it_is_flushed(self, tmp_path: Path) -> None:
        log = made(str(tmp_path), sync_flush=True)
        append(log, b"12345")
        log.commit()
        assert (log.written, log.safe, log.durable) == (5, 0, 0)
        assert log.wants_flush
        log.note_flushed(5)
        assert (log.safe, log.durable) == (5, 5)
        assert not log.wants_flush

    def test_a_rise_is_heard_before_those_who_wait_are_woken(self, tmp_path: Path) -> None:
        log = made(str(tmp_path), sync_flush=True)
        heard: list[object] = []
        log.on_safe(lambda: heard.append(log.safe))
        append(log, b"12345")
        log.commit()
        log.when_safe(5, 1_000, heard.append)
        log.when_durable(5, 1_000, lambda reached: heard.append(f"durable {reached}"))
        assert heard == []
        log.note_flushed(5)
        assert heard == [5, True, "durable True"]

    def test_who_waits_hears_of_the_deadline_or_that_it_will_not_come(self, tmp_path: Path) -> None:
        log = made(str(tmp_path), sync_flush=True)
        append(log, b"12345")
        log.commit()
        heard: list[tuple[str, bool]] = []
        log.when_safe(5, 1_000, lambda reached: heard.append(("first", reached)))
        log.when_safe(5, 2_000, lambda reached: heard.append(("second", reached)))
        log.expire(999)
        assert not heard
        log.expire(1_000)
        assert heard == [("first", False)]
        log.give_up()
        assert heard == [("first", False), ("second", False)]

    def test_a_file_goes_once_what_was_moved_out_of_it_is_durable(self, tmp_path: Path) -> None:
        log = made(str(tmp_path))
        append(log, b"moved")
        log.commit()
        moved = MovedOut(log)
        assert not moved.is_durable(3)
        append(log, b"later")
        log.commit()
        log.note_flushed(5)
        assert moved.is_durable(3), "what came since does not count"
        assert not moved.is_durable(4)


class TestBytesOfAnotherNode:
    @given(sizes=st.lists(st.integers(1, 100), max_size=12), chunks=st.lists(st.integers(1, 300), min_size=1, max_size=8))
    def test_are_the_same_log_however_they_are_cut(self, sizes: list[int], chunks: list[int]) -> None:
        theirs, mine = made("/a", disk=SimDisk()), made("/b", disk=SimDisk())
        for number, size in enumerate(sizes):
            append(theirs, bytes([number + 1]) * size)
            theirs.commit()
        data, turn = content(theirs), 0
        while mine.written < len(data):
            size = chunks[turn % len(chunks)]
            mine.append_raw(data[mine.written : mine.written + size])
            turn += 1
        assert content(mine) == data
        assert mine.segments.bases == theirs.segments.bases[: len(mine.segments.bases)]
        # both go on alike
        assert append(mine, b"next") == append(theirs, b"next")

    def test_are_not_mixed_with_what_is_staged_here(self, tmp_path: Path) -> None:
        log = made(str(tmp_path))
        append(log, b"mine")
        with pytest.raises(ValueError, match="staged since 0"):
            log.append_raw(b"theirs")

    @given(first=st.integers(0, 400), second=st.integers(0, 400), to=st.integers(0, 400))
    def test_are_taken_back_down_to_what_is_safe(self, first: int, second: int, to: int) -> None:
        log = made("/a", sync_flush=True, disk=SimDisk())
        log.append_raw(b"a" * first)
        log.note_flushed(first)
        log.append_raw(b"b" * second)
        woken: list[bool] = []
        log.when_safe(first + second, 1_000, woken.append)
        if not first <= to <= first + second:
            with pytest.raises(ValueError, match=f"cannot end at {to}"):
                log.truncate(to)
            assert log.written == first + second
            return
        log.truncate(to)
        assert (log.end, log.written, log.safe) == (to, to, first)
        assert content(log) == b"a" * first + b"b" * (to - first)
        assert woken == ([False] if to < first + second else [True] if not second else [])
        log.append_raw(b"c" * 300)
        assert content(log) == b"a" * first + b"b" * (to - first) + b"c" * 300
        log.note_flushed(log.written)
        assert log.safe == log.durable == to + 300

    def test_what_is_taken_back_during_a_flush_is_not_flushed_by_it(self, tmp_path: Path) -> None:
        log = made(str(tmp_path), sync_flush=True)
        log.append_raw(b"x" * 100)
        target, work = log.syncer()
        work()
        log.truncate(40)
        log.append_raw(b"y" * 60)
        log.note_flushed(target)
        assert (log.flushed, log.safe) == (40, 40)
        target, work = log.syncer()
        log.note_flushed(target)
        assert (log.flushed, log.safe) == (100, 100)

    def test_what_was_taken_back_is_not_in_the_files(self, tmp_path: Path) -> None:
        log = made(str(tmp_path), sync_flush=True)
        log.append_raw(b"x" * 300)
        log.truncate(100)
        assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == ["0" * 20]
        assert (tmp_path / "commitlog" / ("0" * 20)).read_bytes() == b"x" * 100 + bytes(28)
