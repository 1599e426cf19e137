"""The stretch of the log that was read last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from roquet.store import window
from roquet.store.disk import Cold, RealDisk
from roquet.store.log import CommitLog
from roquet.store.segments import OpenFiles, Segments
from roquet.store.window import LogWindow

FILE = 1_000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    monkeypatch.setattr(window, "AHEAD", 100)
    made = CommitLog(Segments(OpenFiles(RealDisk()), f"{tmp_path}/commitlog", FILE))
    made.start_at(0)
    return made


def append(log: CommitLog, data: bytes) -> None:
    log.append_raw(data)


class Reads:
    """What is asked of the log."""

    def __init__(self, log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, int]] = []
        read: Callable[[int, memoryview], None] = log.read_into

        def counted(offset: int, room: memoryview) -> None:
            self.seen.append((offset, len(room)))
            read(offset, room)

        monkeypatch.setattr(log, "read_into", counted)


def test_reads_that_go_on_are_made_ahead_and_those_inside_not_at_all(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    append(log, data)
    shown, reads = LogWindow(log), Reads(log, monkeypatch)
    assert shown.view(200, 30) == data[200:230]
    assert shown.view(205, 30) == data[205:235], "it goes on where the last one was"
    assert shown.view(290, 15) == data[290:305]
    assert reads.seen == [(200, 30), (205, 100)]
    assert shown.view(310, 40) == data[310:350], "elsewhere"
    assert shown.view(700, 40) == data[700:740]
    assert shown.view(310, 40) == data[310:350]
    assert reads.seen[2:] == [(310, 40), (700, 40), (310, 40)]


def test_a_read_ahead_ends_with_its_file_and_with_what_is_safe(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE + 50)
    append(log, data)
    shown, reads = LogWindow(log), Reads(log, monkeypatch)
    for offset, size in ((940, 10), (945, 10), (FILE, 10), (FILE + 5, 10)):
        assert shown.view(offset, size) == data[offset : offset + size]
    assert reads.seen == [(940, 10), (945, 55), (FILE, 50)]
    append(log, b"more")
    assert shown.view(FILE + 45, 9) == data[FILE + 45 :] + b"more", "what came since is read when it is wanted"


def test_what_another_node_takes_back_is_not_kept(tmp_path: Path) -> None:
    log = CommitLog(Segments(OpenFiles(RealDisk()), f"{tmp_path}/commitlog", FILE), sync_flush=True)
    log.start_at(0)
    append(log, b"a" * 100)
    log.note_flushed(100)
    append(log, b"b" * 50)
    shown = LogWindow(log)
    for offset, size in ((80, 10), (85, 10), (100, 20), (95, 25)):
        shown.view(offset, size)
    log.truncate(100)
    append(log, b"c" * 50)
    assert shown.view(95, 25) == b"a" * 5 + b"c" * 20
    assert shown.view(100, 20) == b"c" * 20


def test_a_log_that_is_cut_back_below_what_was_safe_is_read_again(log: CommitLog) -> None:
    append(log, b"a" * 200)
    shown = LogWindow(log)
    assert shown.view(50, 100) == shown.view(50, 100) == b"a" * 100
    log.start_at(100)
    append(log, b"b" * 100)
    assert shown.view(50, 100) == b"a" * 50 + b"b" * 50


@pytest.mark.parametrize("error", [Cold(lambda: None), LookupError("gone"), OSError("broken")])
def test_after_a_read_that_failed_nothing_of_it_is_shown(log: CommitLog, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    data = Random(1).randbytes(FILE)
    append(log, data)
    shown = LogWindow(log)
    shown.view(0, 50)
    shown.view(10, 50)
    read = log.read_into

    def spoils(offset: int, room: memoryview) -> None:
        room[:] = bytes(len(room))
        raise error

    monkeypatch.setattr(log, "read_into", spoils)
    with pytest.raises(type(error)):
        shown.view(130, 40)
    with pytest.raises(type(error)):
        shown.view(0, 50)
    monkeypatch.setattr(log, "read_into", read)
    assert shown.view(0, 50) == data[:50]


def test_what_is_cold_further_on_holds_up_nobody_before_it(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    append(log, data)
    shown, read = LogWindow(log), log.read_into

    def partly(offset: int, room: memoryview) -> None:
        if offset + len(room) > 300:
            raise Cold(lambda: None)
        read(offset, room)

    monkeypatch.setattr(log, "read_into", partly)
    for offset in range(200, 280, 20):
        assert shown.view(offset, 20) == data[offset : offset + 20]
    with pytest.raises(Cold):
        shown.view(290, 20)


def test_a_record_that_is_longer_than_the_room_is_read_by_itself(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    append(log, data)
    monkeypatch.setattr(window, "ROOM", 100)
    shown = LogWindow(log)
    assert shown.view(0, 50) == data[:50]
    assert shown.view(10, 500) == data[10:510]
    assert shown.view(0, 50) == data[:50]


def test_any_order_of_reads_shows_what_the_log_has(log: CommitLog) -> None:
    random, data = Random(3), b""
    shown = LogWindow(log)
    for _ in range(3_000):
        if random.random() < 0.1 and len(data) < 5 * FILE:
            piece = random.randbytes(random.randrange(1, 120))
            append(log, piece)
            data += piece
        if data:
            offset = random.randrange(len(data))
            size = random.randrange(0, min(90, len(data) - offset) + 1)
            if offset // FILE == (offset + max(size, 1) - 1) // FILE:
                assert shown.view(offset, size) == data[offset : offset + size]


def test_a_stretch_ends_with_its_file_and_with_what_is_safe_and_is_not_longer_than_there_is_room(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Random(3).randbytes(FILE + 300)
    append(log, data)
    shown = LogWindow(log)
    assert bytes(shown.stretch(100, 400) or b"") == data[100:400]
    assert bytes(shown.stretch(900, FILE + 100) or b"") == data[900:FILE]
    assert bytes(shown.stretch(FILE + 200, FILE + 400) or b"") == data[FILE + 200 :]
    assert shown.stretch(FILE + 300, FILE + 400) is None
    assert shown.stretch(-1, 100) is None
    assert shown.stretch(9 * FILE, 9 * FILE + 100) is None
    monkeypatch.setattr(window, "ROOM", 200)
    assert LogWindow(log).stretch(100, 301) is None
    assert bytes(LogWindow(log).stretch(100, 300) or b"") == data[100:300]
