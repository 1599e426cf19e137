"""What a sync master wrote last goes to its slaves from memory."""

from __future__ import annotations

import errno

import pytest

from roquet.store.disk import Cold
from roquet.store.segments import OpenFiles, Segments
from roquet.store.synced_log import SyncedLog
from roquet.testing.disk import SimDisk

FILE = 128


def made(disk: SimDisk) -> SyncedLog:
    disk.cold_ratio = 1.0  # whatever is read from a file must be fetched first
    log = SyncedLog(Segments(OpenFiles(disk), "/commitlog", FILE), sync_flush=True, timeout_ms=lambda: 1_000)
    log.start_at(0)
    return log


def append(log: SyncedLog, data: bytes) -> int:
    offset = log.reserve(len(data))
    log.staged.append(data)
    log.commit()
    return offset


def test_what_was_written_last_is_read_without_the_disk() -> None:
    log = made(SimDisk())
    log.reserve(4)
    log.staged.append(b"one ")
    log.reserve(4)
    log.staged.append(b"two ")
    log.commit()
    assert log.read(0, 8) == b"one two "
    for offset, size in ((0, 4), (4, 4), (1, 7)):  # a part of it comes from the file
        with pytest.raises(Cold):
            log.read(offset, size)
    assert log.read(append(log, b"three"), 5) == b"three"
    with pytest.raises(Cold):
        log.read(0, 8)


def test_what_was_taken_back_or_not_written_is_not_read() -> None:
    disk = SimDisk()
    log = made(disk)
    log.slave_counts = lambda: True
    append(log, b"first")
    log.truncate(0)
    with pytest.raises(LookupError):
        log.read(0, 5)
    append(log, b"other")
    assert log.read(0, 5) == b"other"
    disk.fail("write", errno.EIO)
    with pytest.raises(OSError, match="/commitlog"):
        append(log, b"lost")
    with pytest.raises(LookupError):
        log.read(5, 4)
    log.start_at(FILE)
    with pytest.raises(Cold):
        log.read(0, 5)


def test_what_stands_in_two_files_is_read_from_them() -> None:
    log = made(SimDisk())
    for _ in range(2):
        log.reserve(70)
        log.staged.append(b"x" * 70)
    log.commit()
    with pytest.raises(Cold):
        log.read(FILE, 70)
