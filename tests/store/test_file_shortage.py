"""No file descriptor is free: the store waits, and goes on by itself. Nothing is failed, nothing counts as safe that is not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from roquet.settings import BrokerSettings
from roquet.store.derived import SYNC_DERIVED_MS
from roquet.store.disk import DiskFile, RealDisk, blocking
from roquet.store.store import Store
from roquet.testing import ManualBackground
from roquet.testing.clock import ManualClock

HOST = bytes(8)


class ShortDisk(RealDisk):
    def __init__(self) -> None:
        self.short = False

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        if self.short:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path, size=size)

    def sync_dir(self, path: str) -> None:
        if self.short:
            raise OSError(errno.EMFILE, "Too many open files", path)
        super().sync_dir(path)


def put(store: Store, body: bytes) -> None:
    store.begin(store.clock.now_ms())
    store.put(store.queue("topic", 0), body, "TAGS\x01t", sys_flag=0, flag=0, born_ms=1, born_host=HOST)
    store.commit()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_store_without_file_descriptors_waits_and_goes_on(flush: str, tmp_path: Path) -> None:
    disk, clock = ShortDisk(), ManualClock(1_800_000_000_000)
    settings = BrokerSettings(
        store_path_root_dir=str(tmp_path / "store"), flush_disk_type=flush, mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=2_000,
        max_hash_slot_num=100, max_index_num=1_000,
    )  # fmt: skip
    store = Store(disk, settings, clock, ManualBackground())
    store.open()
    put(store, b"first")
    disk.short = True
    for _ in range(3):
        store.files._close_some()
        store.files._close_some()
        put(store, b"meanwhile")
        clock.forward(2 * SYNC_DERIVED_MS)
        store.tick(clock.steady_ms())
    assert not store.trouble.refuse_writes()
    assert store.derived.checkpointed < store.log.written
    disk.short = False
    clock.forward(2 * SYNC_DERIVED_MS)
    store.tick(clock.steady_ms())
    assert store.derived.checkpointed == store.log.written == store.log.flushed
    store.close()
    again = Store(disk, settings, clock, ManualBackground())
    again.open()
    assert again.queue("topic", 0).next == 4
    again.close()


def open_files_in(directory: Path) -> list[str]:
    links = Path("/proc/self/fd").iterdir()
    return sorted(os.readlink(link) for link in links if link.is_symlink() and os.path.dirname(str(link.resolve())) == str(directory))


def test_index_files_count_among_the_files_that_may_be_open(tmp_path: Path) -> None:
    clock, root = ManualClock(1_800_000_000_000), tmp_path / "store"
    settings = BrokerSettings(
        store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2_000,
        max_hash_slot_num=10, max_index_num=4,
    )  # fmt: skip
    for _ in range(2):  # as they are made, and as they are opened again
        store = Store(RealDisk(), settings, clock, ManualBackground())
        store.files.limit = 8
        store.open()
        for number in range(60):
            store.begin(clock.now_ms())
            store.put(store.queue("topic", 0), b"", f"KEYS\x01k{number}", sys_flag=0, flag=0, born_ms=1, born_host=HOST)
            store.commit()
            store.derived.settle()
        clock.forward(2 * SYNC_DERIVED_MS)
        store.tick(clock.steady_ms())
        found = [blocking(store.query, "topic", f"k{number}", 10, 0, 1 << 60)[0] for number in range(60)]
        assert len(store.index.files) >= 20
        assert len(open_files_in(root / "index")) <= 9  # the newest is held besides
        store.close()
        assert all(found)
    assert [len(records) for records in found] == [2] * 60
