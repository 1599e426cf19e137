"""Small pieces of the log, each read for itself."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from roquet.store import pieces
from roquet.store.disk import Cold, RealDisk, RealFile
from roquet.store.log import CommitLog
from roquet.store.pieces import LogPieces
from roquet.store.segments import OpenFiles, Segments

FILE = 1_000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    monkeypatch.setattr(pieces, "ROOM", 50)
    made = CommitLog(Segments(OpenFiles(RealDisk()), f"{tmp_path}/commitlog", FILE))
    made.start_at(0)
    return made


class Other:
    """Whom everything is left to that is no small piece of the file."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.seen: list[tuple[int, int]] = []

    def view(self, offset: int, size: int) -> memoryview:
        self.seen.append((offset, size))
        return memoryview(self.log.read(offset, size))


def test_pieces_are_what_the_log_has(log: CommitLog) -> None:
    data = Random(1).randbytes(2 * FILE + 500)
    for at in range(0, len(data), FILE):
        log.append_raw(data[at : at + FILE])
    other, random = Other(log), Random(2)
    shown = LogPieces(log, other.view)
    for _ in range(1_000):
        view, offset, size = shown.near(random.randrange(len(data))), random.randrange(len(data)), random.choice((1, 20, 50, 51, 200))
        if offset % FILE + size <= FILE and offset + size <= len(data):
            assert view(offset, size) == data[offset : offset + size]
    assert any(size <= 50 for _, size in other.seen), "of another file"
    assert {(size > 50) for _, size in other.seen} == {True, False}
    other.seen.clear()
    view = shown.near(FILE)
    assert view(FILE, 50) == data[FILE : FILE + 50]
    assert view(2 * FILE - 50, 50) == data[2 * FILE - 50 : 2 * FILE]
    assert not other.seen


def test_what_is_not_in_the_log_is_not_shown(log: CommitLog) -> None:
    log.append_raw(b"a" * 100)
    other = Other(log)
    shown = LogPieces(log, other.view)
    for offset in (0, 5_000, -1, 1 << 63):
        view = shown.near(offset)
        for wrong in ((90, 11), (100, 1), (-5, 10), (FILE, 10)):
            with pytest.raises(LookupError):
                view(*wrong)
    assert shown.near(0)(90, 10) == b"a" * 10


def test_what_is_not_in_memory_is_cold(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append_raw(b"a" * 100)

    def into(self: RealFile, offset: int, room: memoryview) -> None:
        raise Cold(lambda: None)

    monkeypatch.setattr(RealFile, "read_into", into)
    with pytest.raises(Cold):
        LogPieces(log, Other(log).view).near(0)(10, 10)
