"""File systems without RWF_NOWAIT (overlayfs, NFS, FUSE): what is in memory is read at once, all else in the background."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from roquet.store import disk as disks
from roquet.store.disk import Cold, RealDisk, RealFile, how_reads_wait
from roquet.store.resident import Resident

MIB = 1 << 20
DATA = bytes(range(256)) * (4 * MIB // 256)


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RealFile:
    """A file of 4 MiB on a file system that knows no RWF_NOWAIT."""
    preadv = os.preadv

    def without(fd: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr("roquet.store.disk.preadv", without)
    made = RealDisk().open(str(tmp_path / "file"), size=len(DATA))
    assert isinstance(made, RealFile)
    made.write(0, DATA)
    return made


def drop(file: RealFile) -> None:
    os.fsync(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if Resident(file.fd, len(DATA)).holds(MIB, MIB):
        pytest.skip("this file system keeps its pages: nothing can be cold here")


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From then on a read that may block, on this thread, is a failure."""
    owner = threading.current_thread()

    def begin() -> None:
        read = RealFile.read

        def checked(self: RealFile, offset: int, size: int) -> bytes:
            assert threading.current_thread() is not owner or Resident(self.fd, len(DATA)).holds(offset, size), (
                "the loop waits for the disk"
            )
            return read(self, offset, size)

        monkeypatch.setattr(RealFile, "read", checked)

    return begin


def elsewhere(cold: Cold) -> None:
    thread = threading.Thread(target=cold.fetch)
    thread.start()
    thread.join()


def test_what_was_just_written_is_read_at_once(file: RealFile) -> None:
    assert file.read_now(MIB, 1_000) == DATA[MIB : MIB + 1_000]
    room = memoryview(bytearray(5_000))
    file.read_into(100, room)
    assert bytes(room) == DATA[100:5_100]
    assert file.read_now(len(DATA) - 10, 100) == DATA[-10:]
    assert file.read_now(len(DATA) + 10, 100) == b""


def test_what_is_not_in_memory_is_read_elsewhere_and_then_there(file: RealFile, blocked: Callable[[], None]) -> None:
    drop(file)
    blocked()
    with pytest.raises(Cold) as cold:
        file.read_now(MIB, 300_000)
    elsewhere(cold.value)
    assert file.read_now(MIB, 300_000) == DATA[MIB : MIB + 300_000]
    room = memoryview(bytearray(5_000))
    with pytest.raises(Cold) as cold:
        file.read_into(3 * MIB, room)
    elsewhere(cold.value)
    file.read_into(3 * MIB, room)
    assert bytes(room) == DATA[3 * MIB : 3 * MIB + 5_000]


def test_pages_that_go_again_before_the_second_try_cost_no_third(file: RealFile) -> None:
    drop(file)
    with pytest.raises(Cold) as cold:
        file.read_now(MIB, 5_000)
    elsewhere(cold.value)
    drop(file)
    assert file.read_now(MIB, 5_000) == DATA[MIB : MIB + 5_000]


def test_where_nobody_knows_what_is_in_memory_every_read_goes_elsewhere(
    file: RealFile, blocked: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Resident, "holds", lambda self, offset, size: False)
    blocked()
    for offset in (0, 10, MIB):
        with pytest.raises(Cold) as cold:
            file.read_now(offset, 100)
        elsewhere(cold.value)
        assert file.read_now(offset, 100) == DATA[offset : offset + 100]


def test_a_write_makes_what_was_fetched_before_it_worthless(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Resident, "holds", lambda self, offset, size: False)
    with pytest.raises(Cold) as cold:
        file.read_now(0, 5)
    elsewhere(cold.value)
    file.write(0, b"other")
    with pytest.raises(Cold) as cold:
        file.read_now(0, 5)
    elsewhere(cold.value)
    assert file.read_now(0, 5) == b"other"


def test_what_is_fetched_and_never_asked_for_is_bounded(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks.FETCHED, "LIMIT", MIB)
    monkeypatch.setattr(Resident, "holds", lambda self, offset, size: False)
    for number in range(100):
        with pytest.raises(Cold) as cold:
            file.read_now(number * 1_000, 100_000)
        elsewhere(cold.value)
    assert disks.FETCHED._size <= MIB
    disks.FETCHED.forget(file.path)
    assert disks.FETCHED._size == 0


def test_a_file_that_grows_is_mapped_again(file: RealFile) -> None:
    file.read_now(0, 10)
    file.truncate(len(DATA) + MIB)
    file.write(len(DATA), b"more")
    assert file.read_now(len(DATA), 4) == b"more"
    file.close()
    file.close()


def test_the_way_is_named(file: RealFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mincore" in how_reads_wait(file.path)
    monkeypatch.setattr(Resident, "works", False)
    assert "every read" in how_reads_wait(file.path)
    monkeypatch.undo()
    assert how_reads_wait(file.path).startswith("reads that would wait for the disk are left to a thread; the system tells which")


def test_overlayfs_has_no_nowait_and_is_read_without_waiting(tmp_path: Path) -> None:
    """The real thing, in a mount name space of its own; for root only."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 77:
            pytest.skip("this machine lets nobody mount an overlay")
        assert status == 0, {1: "an exception", 2: "wrong way", 3: "written, and not read at once", 4: "not cold", 5: "wrong bytes"}[status]
        return
    code = 1
    try:
        code = overlay(libc, tmp_path)
    finally:
        os._exit(code)


def overlay(libc: ctypes.CDLL, root: Path) -> int:
    for name in ("lower", "upper", "work", "merged"):
        (root / name).mkdir()
    options = f"lowerdir={root}/lower,upperdir={root}/upper,workdir={root}/work".encode()
    if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 1 << 14 | 1 << 18, None):
        return 77
    if libc.mount(b"overlay", f"{root}/merged".encode(), b"overlay", 0, options):
        return 77
    file = RealDisk().open(f"{root}/merged/file", size=len(DATA))
    assert isinstance(file, RealFile)
    file.write(0, DATA)
    if "mincore" not in how_reads_wait(file.path):
        return 2
    if file.read_now(MIB, 100) != DATA[MIB : MIB + 100]:
        return 3
    file.sync()
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if Resident(file.fd, len(DATA)).holds(MIB, MIB):
        return 77
    try:
        file.read_now(MIB, 100_000)
        return 4
    except Cold as cold:
        cold.fetch()
    return 0 if file.read_now(MIB, 100_000) == DATA[MIB : MIB + 100_000] else 5
