"""Syncing all queues that were written: prepared some a turn, whatever their number."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable

import pytest

from roquet.store import queue_sync
from roquet.store.disk import DiskFile
from roquet.store.queue import ConsumeQueue
from roquet.store.store import Store

from .conftest import RoomyDisk, StoreKit, bodies, put

QUEUES = 70


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of each queue whose sync is prepared."""
    monkeypatch.setattr(queue_sync, "SYNCED_A_TURN", 20)
    seen: list[int] = []
    real = ConsumeQueue.syncer

    def syncer(self: ConsumeQueue, stop: int | None = None) -> tuple[Callable[[], None], Callable[[], None]]:
        seen.append(self.queue_id)
        return real(self, stop)

    monkeypatch.setattr(ConsumeQueue, "syncer", syncer)
    return seen


def step(kit: StoreKit) -> None:
    """What the background has now, and its way back to the loop: one turn."""
    work, done = kit.background.waiting.pop(0)
    done(work())


def test_the_sync_of_many_queues_is_prepared_some_a_turn_and_the_checkpoint_comes_after_all(kit: StoreKit, prepared: list[int]) -> None:
    store = kit.open()
    for n in range(QUEUES):
        put(store, "T", n)
    store.commit()
    kit.background.hold = True
    kit.clock.forward(20_000)
    store.tick(kit.clock.ms)
    turns = []
    while kit.background.waiting:
        before = len(prepared)
        step(kit)
        turns.append(len(prepared) - before)
        assert store.busy == bool(kit.background.waiting)
        assert store.derived.checkpointed < 0 or not kit.background.waiting
    assert max(turns) == 20
    assert prepared == list(range(QUEUES))
    assert store.derived.checkpointed == store.log.written
    assert all(queue.synced == 1 for queue in store.queues.values())


def test_what_is_written_while_the_queues_are_synced_is_vouched_for_by_the_next_sync(kit: StoreKit, prepared: list[int]) -> None:
    store = kit.open()
    for n in range(QUEUES):
        put(store, "T", n)
    store.commit()
    kit.background.hold = True
    kit.clock.forward(20_000)
    store.tick(kit.clock.ms)
    while not prepared:
        step(kit)
    last = store.queues["T", QUEUES - 1]
    put(store, "T", QUEUES - 1)
    store.commit()
    kit.clock.forward(2_000)
    store.tick(kit.clock.ms)
    assert last.tail_start == 2, "in its file, and not flushed in the log yet"
    while QUEUES - 1 not in prepared:
        step(kit)
    assert last.synced == 1
    kit.background.hold = False
    kit.background.release()
    kit.clock.forward(20_000)
    store.tick(kit.clock.ms)
    assert last.synced == 2
    store.close()
    assert bodies(kit.open(), "T", QUEUES - 1) == [b"hello"] * 2


class BadDisk(RoomyDisk):
    """The files of queue 30 cannot be opened again while `error` is set."""

    error = 0

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        if self.error and size is None and "/consumequeue/T/30/" in path:
            raise OSError(self.error, os.strerror(self.error), path)
        return super().open(path, size=size)


def written(kit: StoreKit, disk: BadDisk) -> Store:
    store = kit.open(disk)
    for n in range(QUEUES):
        put(store, "T", n)
    store.commit()
    return store


def test_queues_that_were_not_synced_for_want_of_descriptors_are_synced_before_anybody_vouches_for_them(
    kit: StoreKit, prepared: list[int]
) -> None:
    disk = BadDisk()
    store = written(kit, disk)
    disk.error = errno.EMFILE
    kit.clock.forward(20_000)
    store.tick(kit.clock.ms)
    assert store.derived.checkpointed < 0
    assert [queue.synced for queue in store.queues.values()] == [0] * QUEUES
    disk.error = 0
    prepared.clear()
    kit.clock.forward(20_000)
    store.tick(kit.clock.ms)
    assert prepared == list(range(QUEUES))
    assert store.derived.checkpointed == store.log.written


def test_one_queue_whose_sync_fails_fails_the_store_and_is_not_vouched_for(kit: StoreKit, prepared: list[int]) -> None:
    disk = BadDisk()
    store = written(kit, disk)
    disk.error = errno.EIO
    kit.clock.forward(20_000)
    store.tick(kit.clock.ms)
    assert store.derived.checkpointed < 0
    assert "fsync of queues or index failed" in str(store.trouble.failed)
    assert max(prepared) < 40, "those behind it are left alone"


def test_a_sync_leaves_nothing_behind_that_waits_for_the_garbage_collector(kit: StoreKit) -> None:
    """It would hold every queue of the store until then, and a collection that goes over them is a long turn of the loop."""
    store = kit.open()
    put(store, "T", 0)
    store.commit()
    gc.collect()
    gc.disable()
    try:
        kit.clock.forward(20_000)
        store.tick(kit.clock.ms)
        assert store.derived.checkpointed == store.log.written
        assert gc.collect() == 0
    finally:
        gc.enable()
