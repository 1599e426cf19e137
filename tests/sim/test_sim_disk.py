"""SimDisk: what only a simulated disk can do."""

from __future__ import annotations

import errno
from random import Random

import pytest

from roquet.store.disk import Cold
from roquet.testing import PowerLost, SimDisk
from roquet.testing.disk import StaleHandle

SEEDS = range(60)


def fresh(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed=seed)
    disk.make_dir("/d")
    disk.sync_dir("/")
    return disk


def read(disk: SimDisk, path: str) -> bytes | None:
    return disk.open(path).read(0, 1 << 20) if disk.exists(path) else None


def test_what_was_synced_survives_every_crash() -> None:
    for seed in SEEDS:
        disk = fresh(seed)
        file = disk.open("/d/file", size=10_000)
        file.write(0, b"safe" * 2_000)
        file.sync()
        disk.sync_dir("/d")
        file.write(8_000, b"lost?")
        disk.crash()
        data = read(disk, "/d/file")
        assert data is not None
        assert len(data) == 10_000
        assert data[:8_000] == b"safe" * 2_000
        assert data[8_000:8_005] in (b"lost?", bytes(5))


def test_unsynced_writes_are_kept_lost_and_torn() -> None:
    seen = set()
    for seed in SEEDS:
        disk = fresh(seed)
        file = disk.open("/d/file", size=4_096)
        file.sync()
        disk.sync_dir("/d")
        file.write(0, b"x" * 2_048)
        disk.crash()
        data = read(disk, "/d/file")
        assert data is not None
        seen.add({2_048: "kept", 0: "lost"}.get(data.count(b"x"), "torn"))
        assert all(data[at : at + 512] in (b"x" * 512, bytes(512)) for at in range(0, 2_048, 512))
    assert seen == {"kept", "lost", "torn"}


def test_within_a_sector_a_later_write_never_survives_without_the_earlier() -> None:
    for seed in SEEDS:
        disk = fresh(seed)
        file = disk.open("/d/file", size=512)
        file.sync()
        disk.sync_dir("/d")
        file.write(0, b"1")
        file.write(1, b"2")
        file.write(2, b"3")
        disk.crash()
        data = read(disk, "/d/file")
        assert data is not None
        assert data[:3] in (b"\0\0\0", b"1\0\0", b"12\0", b"123")


def test_names_are_not_safe_before_their_directory_is_synced() -> None:
    seen = set()
    for seed in SEEDS:
        disk = fresh(seed)
        file = disk.open("/d/file", size=0)
        file.write(0, b"x")
        file.sync()
        disk.crash()
        seen.add(read(disk, "/d/file"))
    assert seen == {b"x", None}


def test_the_length_of_an_unsynced_file_may_be_lost() -> None:
    seen = set()
    for seed in SEEDS:
        disk = fresh(seed)
        disk.open("/d/file", size=100)
        disk.sync_dir("/d")
        disk.crash()
        seen.add(disk.size("/d/file"))
    assert seen == {0, 100}


def test_renames_happen_whole_and_in_order() -> None:
    seen = set()
    for seed in SEEDS:
        disk = fresh(seed)
        for name, data in (("main", b"one"), ("tmp", b"two")):
            file = disk.open(f"/d/{name}", size=0)
            file.write(0, data)
            file.sync()
        disk.sync_dir("/d")
        disk.rename("/d/main", "/d/bak")
        disk.rename("/d/tmp", "/d/main")
        disk.crash()
        seen.add((read(disk, "/d/main"), read(disk, "/d/bak"), read(disk, "/d/tmp")))
    assert seen == {(b"one", None, b"two"), (None, b"one", b"two"), (b"two", b"one", None)}


def test_a_removed_file_may_come_back() -> None:
    seen = set()
    for seed in SEEDS:
        disk = fresh(seed)
        disk.open("/d/file", size=0).sync()
        disk.sync_dir("/d")
        disk.remove("/d/file")
        disk.crash()
        seen.add(disk.exists("/d/file"))
    assert seen == {True, False}


def test_mapped_bytes_are_kept_or_lost_like_others() -> None:
    seen = set()
    for seed in SEEDS:
        disk = fresh(seed)
        file = disk.open("/d/file", size=512)
        disk.sync_dir("/d")
        view = file.map(0, 512)
        view[0:1] = b"1"
        file.sync()
        view[1:2] = b"2"
        disk.crash()
        data = read(disk, "/d/file")
        assert data is not None
        seen.add(data[:2])
    assert seen == {b"1\0", b"12"}


def test_a_killed_process_loses_nothing_and_makes_nothing_safe() -> None:
    lost = 0
    for seed in SEEDS:
        disk = fresh(seed)
        file = disk.open("/d/file", size=10)
        file.sync()
        disk.sync_dir("/d")
        file.write(0, b"x")
        disk.kill()
        assert read(disk, "/d/file") == b"x" + bytes(9)
        disk.crash()
        lost += read(disk, "/d/file") == bytes(10)
    assert lost


def test_a_crash_ends_the_use_of_open_files_and_locks() -> None:
    disk = fresh()
    file = disk.open("/d/file", size=10)
    release = disk.lock("/d/lock")
    disk.crash()
    with pytest.raises(StaleHandle):
        file.write(0, b"x")
    file.close()
    disk.lock("/d/lock")
    release()  # of the dead process: it does not free the lock of the living
    with pytest.raises(OSError):
        disk.lock("/d/lock")


def test_a_failed_sync_makes_nothing_safe_and_the_next_one_does_not_make_up_for_it() -> None:
    disk = fresh()
    file = disk.open("/d/file", size=10)
    file.sync()
    disk.sync_dir("/d")
    file.write(0, b"x")
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError) as failed:
        file.sync()
    assert failed.value.errno == errno.EIO
    file.sync()
    assert file.read(0, 1) == b"x"
    disk.crash()
    assert read(disk, "/d/file") == bytes(10)


def test_a_full_disk_takes_what_is_allocated_and_nothing_more() -> None:
    disk = fresh()
    file = disk.open("/d/file", size=100_000)
    file.allocate(0, 4_096)
    disk.full = True
    assert disk.used_ratio("/") == 1.0
    file.write(0, b"x" * 4_096)
    with pytest.raises(OSError) as full:
        file.write(4_090, b"0123456789")
    assert full.value.errno == errno.ENOSPC
    assert file.read(4_090, 10) == b"012345\0\0\0\0"
    with pytest.raises(OSError):
        file.allocate(8_192, 1)
    disk.full = False
    file.write(4_090, b"0123456789")


def test_a_small_disk_fills_up() -> None:
    disk = SimDisk(capacity=3 * 4_096)
    file = disk.open("/file", size=0)
    file.write(0, bytes(2 * 4_096))
    assert disk.total_bytes("/") == (3 * 4_096, 4_096)
    with pytest.raises(OSError):
        file.write(2 * 4_096, bytes(2 * 4_096))
    assert file.size() == 3 * 4_096


def test_power_fails_in_the_middle_of_a_change() -> None:
    done = set()
    for seed in SEEDS:
        disk = fresh(seed)
        file = disk.open("/d/file", size=10)
        disk.power_off_after(2)
        file.write(0, b"1")
        with pytest.raises(PowerLost):
            file.write(1, b"2")
        done.add(file.read(0, 2))
        disk.crash()
        disk.open("/d/other", size=1)  # and is back
    assert done == {b"1\0", b"12"}


def test_cold_reads_are_warm_after_their_fetch() -> None:
    disk = fresh()
    disk.cold_ratio = 1.0
    file = disk.open("/d/file", size=10)
    file.write(0, b"abc")
    with pytest.raises(Cold) as cold:
        file.read_now(0, 3)
    assert cold.value.fetch() == b"abc"
    assert file.read_now(0, 3) == b"abc"


def test_one_seed_crashes_one_way() -> None:
    def story(seed: int) -> list[bytes | None]:
        disk = fresh(seed)
        for number in range(5):
            disk.open(f"/d/{number}", size=0).write(0, b"x" * 3_000)
            if number % 2:
                disk.sync_dir("/d")
        disk.crash()
        return [read(disk, f"/d/{number}") for number in range(5)]

    assert story(1) == story(1)
    assert len({str(story(seed)) for seed in range(10)}) > 5


def test_a_power_loss_spoils_bits_of_what_was_being_written_and_of_nothing_else() -> None:
    spoiled = 0
    for seed in range(40):
        disk = SimDisk(seed=seed)
        disk.rot = Random(seed)
        disk.make_dir("/data")
        disk.sync_dir("/")
        file = disk.open("/data/file", size=2 * 4_096)
        file.write(0, b"a" * 4_096)
        file.sync()
        disk.sync_dir("/data")
        file.write(4_096, b"b" * 100)
        disk.crash()
        data = disk.open("/data/file").read(0, 2 * 4_096)
        assert data[:4_096] == b"a" * 4_096
        spoiled += any(byte not in b"b\0" for byte in data[4_096:])
    assert 3 < spoiled < 30
