"""One suite for RealDisk and SimDisk: the fake ships only because it passes what the real thing passes."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.store.disk import Cold, Disk, DiskFile, RealDisk
from roquet.testing import SimDisk


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk and an empty directory on it."""
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = SimDisk()
    disk.make_dir("/tmp/test")
    return disk, "/tmp/test"


@pytest.fixture
def disk(place: tuple[Disk, str]) -> Disk:
    return place[0]


@pytest.fixture
def root(place: tuple[Disk, str]) -> str:
    return place[1]


@pytest.fixture
def file(disk: Disk, root: str) -> Iterator[DiskFile]:
    made = disk.open(f"{root}/file", size=10_000)
    yield made
    made.close()


def put(disk: Disk, path: str, data: bytes) -> None:
    made = disk.open(path, size=0)
    made.write(0, data)
    made.close()


def get(disk: Disk, path: str) -> bytes:
    found = disk.open(path)
    data = found.read(0, 1 << 20)
    found.close()
    return data


def test_a_new_file_is_zeros_of_its_size(file: DiskFile) -> None:
    assert file.size() == 10_000
    assert file.read(0, 10_000) == bytes(10_000)


def test_what_is_written_is_read(file: DiskFile) -> None:
    file.write(100, b"hello")
    file.write(102, bytearray(b"LL"))
    file.write(200, memoryview(b"xyz")[1:])
    assert file.read(98, 10) == b"\0\0heLLo\0\0\0"
    assert file.read_now(200, 3) == b"yz\0"


def test_reads_end_where_the_file_ends(file: DiskFile) -> None:
    file.write(9_996, b"last")
    for read in (file.read, file.read_now):
        assert read(9_996, 100) == b"last"
        assert read(10_000, 100) == b""
        assert read(20_000, 100) == b""


def test_a_read_into_memory_fills_it_or_says_that_it_is_not_there(file: DiskFile) -> None:
    file.write(9_990, b"0123456789")
    room = bytearray(b"........")
    file.read_into(9_992, memoryview(room)[2:6])
    assert room == b"..2345.."
    with pytest.raises(Cold):
        file.read_into(9_996, memoryview(room))


def test_a_write_behind_the_end_lengthens_the_file(file: DiskFile) -> None:
    file.write(10_010, b"far")
    assert file.size() == 10_013
    assert file.read(9_999, 100) == bytes(11) + b"far"


def test_an_empty_write_changes_nothing(file: DiskFile) -> None:
    file.write(5, b"")
    assert file.size() == 10_000


def test_truncating_shortens_and_what_comes_again_is_zeros(file: DiskFile) -> None:
    file.write(0, b"abcdef")
    file.truncate(3)
    assert file.size() == 3
    assert file.read(0, 100) == b"abc"
    file.truncate(6)
    assert file.read(0, 100) == b"abc\0\0\0"


def test_a_map_and_plain_reads_and_writes_see_the_same_bytes(file: DiskFile) -> None:
    file.allocate(0, 10_000)
    view = file.map(40, 9_000)
    assert len(view) == 9_000
    view[0:4] = b"slot"
    assert file.read(40, 4) == file.read_now(40, 4) == b"slot"
    file.write(5_000, b"entry")
    assert bytes(view[4_960:4_965]) == b"entry"
    other = file.map(40, 10)
    other[1:2] = b"L"
    assert bytes(view[0:4]) == b"sLot"
    file.sync()


def test_a_map_behind_the_end_is_refused(file: DiskFile) -> None:
    with pytest.raises(ValueError):
        file.map(0, 100_000)


def test_allocating_behind_the_end_lengthens_the_file(file: DiskFile) -> None:
    file.allocate(9_000, 3_000)
    assert file.size() == 12_000
    file.allocate(0, 100)
    assert file.size() == 12_000


def test_a_closed_file_cannot_be_used_and_closing_again_is_fine(disk: Disk, root: str) -> None:
    made = disk.open(f"{root}/closed", size=10)
    made.close()
    made.close()
    with pytest.raises(OSError) as refused:
        made.read(0, 1)
    assert refused.value.errno == errno.EBADF


def test_two_handles_see_one_file(disk: Disk, root: str, file: DiskFile) -> None:
    again = disk.open(f"{root}/file")
    file.write(0, b"one")
    again.write(3, b"two")
    assert file.read(0, 6) == again.read(0, 6) == b"onetwo"
    again.close()


def test_opening_with_a_size_creates_and_lengthens_but_never_shortens(disk: Disk, root: str) -> None:
    path = f"{root}/sized"
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    for asked, size in ((100, 100), (50, 100), (150, 150), (None, 150)):
        made = disk.open(path, size=asked)
        assert made.size() == size == disk.size(path)
        made.close()


def test_a_file_needs_its_directory(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/none/file", size=1)
    put(disk, f"{root}/plain", b"x")
    with pytest.raises(NotADirectoryError):
        disk.open(f"{root}/plain/file", size=1)
    with pytest.raises(IsADirectoryError):
        disk.open(root)
    with pytest.raises(FileExistsError):
        disk.make_dir(f"{root}/plain")


def test_directories_are_made_with_parents_and_listed_sorted(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/b/c/d")
    disk.make_dir(f"{root}/b/c")
    put(disk, f"{root}/a", b"")
    put(disk, f"{root}/c", b"")
    assert disk.list(root) == ["a", "b", "c"]
    assert disk.list(f"{root}/b/c") == ["d"]
    assert disk.list(f"{root}/a") == disk.list(f"{root}/none") == []
    assert disk.is_dir(f"{root}/b")
    assert not disk.is_dir(f"{root}/a")
    assert not disk.is_dir(f"{root}/none")
    assert disk.exists(f"{root}/b/c")
    assert disk.exists(f"{root}/a")
    assert not disk.exists(f"{root}/b/none")


def test_renaming_replaces_and_open_handles_follow_their_file(disk: Disk, root: str) -> None:
    put(disk, f"{root}/old", b"old")
    put(disk, f"{root}/new", b"new")
    handle, replaced = disk.open(f"{root}/old"), disk.open(f"{root}/new")
    disk.rename(f"{root}/old", f"{root}/new")
    assert not disk.exists(f"{root}/old")
    assert get(disk, f"{root}/new") == b"old"
    handle.write(3, b"er")
    assert get(disk, f"{root}/new") == b"older"
    assert replaced.read(0, 10) == b"new"
    handle.close()
    replaced.close()
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/none", f"{root}/x")


def test_renaming_from_one_directory_to_another(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/a")
    disk.make_dir(f"{root}/b")
    put(disk, f"{root}/a/file", b"moved")
    disk.rename(f"{root}/a/file", f"{root}/b/file")
    assert disk.list(f"{root}/a") == []
    assert get(disk, f"{root}/b/file") == b"moved"


def test_a_removed_file_lives_on_for_who_has_it_open(disk: Disk, root: str, file: DiskFile) -> None:
    disk.remove(f"{root}/file")
    disk.remove(f"{root}/file")
    disk.remove(f"{root}/none/file")
    assert not disk.exists(f"{root}/file")
    file.write(0, b"still")
    assert file.read(0, 5) == b"still"
    with pytest.raises(OSError):
        disk.remove(root)


def test_removing_a_tree(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/tree/branch")
    put(disk, f"{root}/tree/branch/leaf", b"x")
    put(disk, f"{root}/tree/nest", b"x")
    disk.remove_tree(f"{root}/tree")
    disk.remove_tree(f"{root}/tree")
    assert disk.list(root) == []
    put(disk, f"{root}/stone", b"x")
    disk.remove_tree(f"{root}/stone")
    assert disk.exists(f"{root}/stone")


def test_syncing_a_directory_that_is_there_and_one_that_is_not(disk: Disk, root: str) -> None:
    disk.sync_dir(root)
    with pytest.raises(FileNotFoundError):
        disk.sync_dir(f"{root}/none")


def test_sizes_and_times_of_what_is_missing(disk: Disk, root: str, file: DiskFile) -> None:
    assert disk.size(f"{root}/file") == 10_000
    before = disk.mtime_ms(f"{root}/file")
    file.write(0, b"x")
    assert disk.mtime_ms(f"{root}/file") >= before > 0
    with pytest.raises(FileNotFoundError):
        disk.size(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        disk.mtime_ms(f"{root}/none")


def test_space_is_a_total_and_what_is_free_of_it(disk: Disk, root: str) -> None:
    total, free = disk.total_bytes(root)
    assert 0 <= free <= total
    if isinstance(disk, RealDisk):
        # What is reserved for others is neither used nor free.
        asked = shutil.disk_usage(root)
        assert disk.used_ratio(root) == pytest.approx(asked.used / (asked.used + asked.free), abs=0.01)
    else:
        assert disk.used_ratio(root) == pytest.approx(1 - free / total, abs=0.01)


def test_a_lock_is_held_until_it_is_released(disk: Disk, root: str) -> None:
    release = disk.lock(f"{root}/lock")
    assert get(disk, f"{root}/lock") == b"lock"
    with pytest.raises(OSError):
        disk.lock(f"{root}/lock")
    release()
    disk.lock(f"{root}/lock")()
