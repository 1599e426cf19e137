"""No file descriptor is free: the store waits, and goes on by itself. Nothing is failed, nothing counts as safe that is not."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from roquet.settings import BrokerSettings
from roquet.store.derived import SYNC_DERIVED_MS
from roquet.store.disk import DiskFile, RealDisk
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
    assert not store.refuse_writes()
    assert store.checkpointed < store.log.written
    disk.short = False
    clock.forward(2 * SYNC_DERIVED_MS)
    store.tick(clock.steady_ms())
    assert store.checkpointed == store.log.written == store.log.flushed
    store.close()
    again = Store(disk, settings, clock, ManualBackground())
    again.open()
    assert again.queue("topic", 0).next == 4
    again.close()
