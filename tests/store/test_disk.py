"""RealDisk: what the store relies on and a fake could only pretend."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from roquet.store.disk import Cold, DiskFile, RealDisk, RealFile, used_share

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[RealFile]:
    made = RealDisk().open(str(tmp_path / "file"), size=MIB)
    assert isinstance(made, RealFile)
    yield made
    made.close()


def drop_from_memory(file: RealFile) -> None:
    """Push the file out of the page cache; skips where the file system answers no NOWAIT reads or holds its pages."""
    file.sync()
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        os.preadv(file.fd, [bytearray(1)], 512 * 1024, os.RWF_NOWAIT)
    except BlockingIOError:
        return
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip("this file system has no RWF_NOWAIT")
        raise
    pytest.skip("this file system keeps its pages in memory (tmpfs?)")


def test_a_read_of_dropped_pages_is_cold_and_warm_after_its_fetch(file: RealFile) -> None:
    file.write(0, b"abcd" * (MIB // 4))
    assert file.read_now(8, 4) == b"abcd"
    drop_from_memory(file)
    with pytest.raises(Cold) as cold:
        file.read_now(8, 4)
    cold.value.fetch()
    assert file.read_now(8, 4) == b"abcd"


def test_a_read_that_begins_warm_and_ends_cold_is_cold(file: RealFile) -> None:
    file.write(0, bytes(MIB))
    drop_from_memory(file)
    file.write(0, b"w" * 4096)  # this page is in memory now, the next is not
    with pytest.raises(Cold) as cold:
        file.read_now(0, 8192)
    assert cold.value.fetch() == b"w" * 4096 + bytes(4096)
    assert file.read_now(0, 8192) == b"w" * 4096 + bytes(4096)


def test_reads_end_where_the_file_ends(file: RealFile) -> None:
    file.write(MIB - 4, b"last")
    for read in (file.read, file.read_now):
        assert read(MIB - 4, 100) == b"last"
        assert read(MIB, 100) == b""
        assert read(MIB + 50, 100) == b""


def test_a_write_in_pieces_is_finished(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr("roquet.store.disk.pwrite", lambda fd, data, at: whole(fd, bytes(data)[:3], at))
    file.write(10, b"0123456789")
    assert file.read(10, 10) == b"0123456789"


def test_a_full_disk_is_an_oserror_even_in_the_middle_of_a_write(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [5]

    def almost_full(fd: int, data: bytes, at: int) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return left.pop()

    monkeypatch.setattr("roquet.store.disk.pwrite", almost_full)
    with pytest.raises(OSError, match="No space") as full:
        file.write(0, b"0123456789")
    assert full.value.errno == errno.ENOSPC


def test_a_disk_that_takes_nothing_and_says_nothing_is_full(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.store.disk.pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="wrote nothing") as full:
        file.write(0, b"0123456789")
    assert full.value.errno == errno.ENOSPC


def test_a_map_and_plain_reads_see_the_same_bytes(file: RealFile) -> None:
    file.allocate(0, 10_000)
    view = file.map(40, 9_000)
    assert len(view) == 9_000
    view[0:4] = b"slot"
    assert file.read(40, 4) == file.read_now(40, 4) == b"slot"
    file.write(5_000, b"entry")
    assert bytes(view[4_960:4_965]) == b"entry"
    late = file.map(8_192 + 3, 10)
    late[:] = b"0123456789"
    assert file.read(8_195, 10) == b"0123456789"


def test_closing_a_mapped_file_that_somebody_still_looks_at_is_no_error(tmp_path: Path) -> None:
    made = RealDisk().open(str(tmp_path / "file"), size=4096)
    made.allocate(0, 4096)
    view = made.map(0, 4096)
    look = memoryview(view)
    made.close()
    made.close()
    look[0:1] = b"x"
    assert (tmp_path / "file").read_bytes()[:1] == b"x"


def test_opening_with_a_size_creates_and_lengthens_but_never_shortens(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        disk.open(path)

    def size(opened: DiskFile) -> int:
        found = opened.size()
        opened.close()
        return found

    assert size(disk.open(path, size=100)) == 100
    assert size(disk.open(path, size=50)) == 100
    assert size(disk.open(path, size=150)) == 150
    assert size(disk.open(path)) == 150


def test_what_is_missing_is_no_error_where_that_is_promised(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.remove(str(tmp_path / "none"))
    disk.remove_tree(str(tmp_path / "none"))
    assert disk.list(str(tmp_path / "none")) == []
    disk.make_dir(str(tmp_path / "a" / "b"))
    disk.make_dir(str(tmp_path / "a" / "b"))
    assert disk.list(str(tmp_path)) == ["a"]
    disk.sync_dir(str(tmp_path / "a"))
    total, free = disk.total_bytes(str(tmp_path))
    assert 0 <= free <= total
    assert 0.0 <= disk.used_ratio(str(tmp_path)) <= 1.0


TRY_LOCK = """
import sys
from roquet.store.disk import RealDisk
try:
    RealDisk().lock(sys.argv[1])
except OSError:
    print("refused")
else:
    print("taken")
"""


def test_the_lock_excludes_another_process_and_is_free_again_after_release(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")

    def another() -> str:
        return subprocess.run([sys.executable, "-c", TRY_LOCK, path], capture_output=True, text=True, check=True, timeout=90).stdout.strip()

    release = RealDisk().lock(path)
    assert another() == "refused"
    assert (tmp_path / "lock").read_bytes() == b"lock"
    release()
    assert another() == "taken"


@pytest.mark.parametrize(
    ("blocks", "free", "available", "share"), [(100, 40, 40, 0.6), (100, 93, 20, 7 / 27), (100, 0, 0, 1.0), (0, 0, 0, 0.0)]
)
def test_blocks_that_are_reserved_for_others_do_not_make_a_disk_look_full(blocks: int, free: int, available: int, share: float) -> None:
    assert used_share(blocks, free, available) == pytest.approx(share)


def test_brokers_in_two_threads_read_what_is_theirs(tmp_path: Path) -> None:
    """Two `embedded()` of one program: a read lets the other thread go on, which must not read into the same memory."""
    size, wrong = 1 << 16, []

    def read(letter: bytes) -> None:
        (tmp_path / letter.decode()).write_bytes(letter * size)
        with closing(RealDisk().open(str(tmp_path / letter.decode()))) as file:
            for _ in range(3_000):
                if file.read_now(0, size) != letter * size:
                    wrong.append(letter)
                    return

    threads = [threading.Thread(target=read, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
