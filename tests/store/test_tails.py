"""Queue entries on their way into files: some in every tick, however many queues got messages."""

from __future__ import annotations

import os

import orjson

from roquet.store.derived import TAILS_MS
from roquet.store.old_files import EXPIRE_MS
from roquet.store.store import Store

from .conftest import RoomyDisk, StoreKit, bodies, put

QUEUES = 60


def waiting(store: Store) -> int:
    return sum(1 for queue in store.queues.values() if queue.tail)


def fill(store: Store, body: bytes = b"hello") -> None:
    for n in range(QUEUES):
        put(store, "T", n, body)
    store.commit()


def test_one_tick_writes_the_entries_of_as_many_queues_as_its_time_allows_and_the_next_goes_on(kit: StoreKit) -> None:
    clock = kit.clock
    store = kit.open()
    fill(store)
    clock.look_ms = 1
    left = [waiting(store)]
    while left[-1]:
        clock.forward(50)
        store.tick(clock.ms)
        left.append(waiting(store))
        assert left[-2] - left[-1] <= 2 * (TAILS_MS + 1), "a sync of the derived files takes a portion of its own"
        assert left[-2] > left[-1], "each tick gets on"
    assert len(left) > 5


def test_the_queues_that_waited_longest_are_written_first(kit: StoreKit) -> None:
    clock = kit.clock
    store = kit.open()
    fill(store)
    put(store, "T", 0)  # it waits already, and keeps its place
    put(store, "T", QUEUES)
    store.commit()
    clock.look_ms = 1
    order: list[int] = []
    while waiting(store):
        before = {queue.queue_id for queue in store.queues.values() if queue.tail}
        clock.forward(50)
        store.tick(clock.ms)
        order += sorted(before - {queue.queue_id for queue in store.queues.values() if queue.tail})
    assert order == list(range(QUEUES + 1))


def test_the_checkpoint_rises_while_some_queue_always_waits_and_vouches_for_no_more_than_is_in_files(kit: StoreKit) -> None:
    clock = kit.clock
    store = kit.open()
    clock.look_ms = 1
    vouched: list[int] = []
    for second in range(400):
        fill(store, b"%d" % second)
        clock.forward(50)
        store.tick(clock.ms)
        assert store.tails.waiting, "with this traffic there is always one that waits"
        assert store.derived.checkpointed <= store.tails.covered()[0] < store.log.written
        if store.derived.checkpointed > 0 and store.derived.checkpointed not in vouched:
            vouched.append(store.derived.checkpointed)
            manifest = orjson.loads((kit.root / "config/roquet.json").read_bytes())
            assert manifest["end"] == store.derived.checkpointed
            assert all(count <= store.queues["T", int(key.rpartition("@")[2])].tail_start for key, count in manifest["queues"].items())
    assert len(vouched) >= 2
    kit.crash(store)
    clock.look_ms = 0
    again = kit.open()
    for n in range(QUEUES):
        assert bodies(again, "T", n) == [b"%d" % second for second in range(400)]


def test_the_checkpoint_waits_for_the_flush_behind_sends_that_wait_for_it(kit: StoreKit) -> None:
    clock = kit.clock
    store = kit.open(flush_disk_type="SYNC_FLUSH")
    kit.background.hold = True
    put(store, "T", QUEUES)
    store.commit()
    fill(store)
    told: list[bool] = []
    store.log.when_durable(store.log.written, clock.ms + 5_000, told.append)
    clock.look_ms = 1
    clock.forward(50)
    store.tick(clock.ms)
    assert 0 < store.tails.covered()[0] < store.log.written, "some queues are written, and some not"
    kit.background.hold = False
    kit.background.release()
    assert told == [True]
    clock.look_ms = 0


def test_a_clean_stop_writes_them_all(kit: StoreKit) -> None:
    clock = kit.clock
    store = kit.open()
    fill(store)
    clock.look_ms = 1
    store.close()
    clock.look_ms = 0
    again = kit.open()
    assert not again.recovered_records
    assert all(bodies(again, "T", n) == [b"hello"] for n in range(QUEUES))


# ---- files that go ---------------------------------------------------------------------------------------------------


def test_expired_log_files_are_unlinked_in_the_background_one_at_a_time_oldest_first(kit: StoreKit) -> None:
    removed: list[str] = []

    class WatchedDisk(RoomyDisk):
        def remove(self, path: str) -> None:
            removed.append(path)
            super().remove(path)

    disk = WatchedDisk()
    store = kit.open(disk, file_reserved_time=1, delete_when="00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23")
    while len(store.log.segments.bases) < 6:
        put(store, body=bytes(1_000))
        store.commit()
    names = [store.log.segments.path(base) for base in store.log.segments.bases]
    for name in names[:-1]:
        os.utime(name, (1, 1))
    removed.clear()
    kit.background.hold = True
    store.old_files.look_soon()
    store.tick(kit.clock.ms)
    assert store.log.start == store.log.segments.bases[0] > 0, "they are not part of the log any more"
    assert not removed, "and nothing was unlinked on the loop"
    assert store.busy, "a clean stop waits for it"
    gone = store.log.segments.bases[0] // store.log.segments.size
    for n in range(gone):
        waiting = kit.background.waiting
        (at,) = [at for at, (_, done) in enumerate(waiting) if "unlink" in done.__qualname__]
        work, done = waiting.pop(at)
        work()
        assert removed == names[: n + 1]
        store.old_files.look_soon()
        store.tick(kit.clock.ms)
        assert len(store.log.segments.bases) == 6 - gone, "no more is given up before those are gone"
        done(None)
    kit.background.hold = False
    kit.background.release()
    assert gone == 5


def test_queues_let_go_of_expired_entries_some_a_tick(kit: StoreKit) -> None:
    clock = kit.clock
    store = kit.open()
    for _ in range(12):
        for n in range(QUEUES):
            put(store, "T", n, bytes(300))
            store.commit()
    while store.tails.waiting:
        clock.forward(2_000)
        store.tick(clock.ms)
    for queue in store.queues.values():
        store.old_files.expired.found.append((queue, 9))
    clock.look_ms = 1
    ticks, left = 0, len(store.old_files.expired.found)
    while store.old_files.expired.found:
        clock.forward(50)
        store.tick(clock.ms)
        assert 0 < left - len(store.old_files.expired.found) <= EXPIRE_MS + 1
        ticks, left = ticks + 1, len(store.old_files.expired.found)
    assert ticks > 5
    assert {queue.first for queue in store.queues.values()} == {9}
