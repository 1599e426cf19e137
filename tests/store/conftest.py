"""A store on a temporary directory, with background work under the test's control."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.settings import BrokerSettings
from roquet.store.disk import Disk, RealDisk, blocking
from roquet.store.store import Store
from roquet.testing import ManualBackground, ManualClock
from roquet.wire.layout import BLANK_LENGTH

VECTORS = Path(__file__).parent.parent / "vectors"


class RoomyDisk(RealDisk):
    """However full the disk of this machine is, files do not go because of it."""

    def used_ratio(self, path: str) -> float:
        return 0.1


class StoreKit:
    """Opens, crashes and reopens one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.background = ManualBackground()
        self.settings: dict[str, Any] = {
            "mapped_file_size_commit_log": 16_384,
            "mapped_file_size_consume_queue": 600,
            "max_hash_slot_num": 100,
            "max_index_num": 400,
            "flush_disk_type": "ASYNC_FLUSH",
        }
        self.opened: list[Store] = []

    def open(self, disk: Disk | None = None, **settings: Any) -> Store:
        self.settings.update(settings)
        made = BrokerSettings(store_path_root_dir=str(self.root), **self.settings)
        store = Store(disk or RoomyDisk(), made, self.clock, self.background)
        store.open()
        self.opened.append(store)
        return store

    def crash(self, store: Store) -> None:
        """As SIGKILL leaves it: what was written stays, what was only in memory is gone."""
        assert store.is_open
        store.locks.close()


def put(store: Store, topic: str = "T", queue_id: int = 0, body: bytes = b"hello", properties: str = "TAGS\x01a") -> tuple[int, int]:
    return store.put(store.queue(topic, queue_id), body, properties, sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))


def bodies(store: Store, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """What a consumer would see, in order."""
    queue = store.queue(topic, queue_id)
    found = []
    for offset in range(queue.first, queue.visible):
        entry = blocking(queue.entry, offset)
        assert entry is not None
        if entry[1] == BLANK_LENGTH:
            continue
        raw = blocking(store.record_at, entry[0])
        size = int.from_bytes(raw[84:88], "big")
        found.append(raw[88 : 88 + size])
    return found


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[StoreKit]:
    made = StoreKit(tmp_path / "store")
    yield made
    for store in made.opened:
        store.close()


@pytest.fixture(params=["killed", "stopped"])
def apache_store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store directory written by Apache RocketMQ 4.9.7."""
    with tarfile.open(VECTORS / f"store-4.9.7-{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"
