"""Queue entries on their way into files: some in every tick, however many queues got messages."""

from __future__ import annotations

import orjson

from roquet.store.store import TAILS_MS, Store
from roquet.testing.clock import ManualClock

from .conftest import StoreKit, bodies, put

QUEUES = 60


class PassingClock(ManualClock):
    """Every look at the steady clock takes a millisecond: so much work is a look."""

    passing = False

    def steady_ms(self) -> int:
        self.ms += self.passing
        return self.ms


def passing(kit: StoreKit) -> PassingClock:
    kit.clock = clock = PassingClock()
    return clock


def waiting(store: Store) -> int:
    return sum(1 for queue in store.queues.values() if queue.tail)


def fill(store: Store, body: bytes = b"hello") -> None:
    for n in range(QUEUES):
        put(store, "T", n, body)
    store.commit()


def test_one_tick_writes_the_entries_of_as_many_queues_as_its_time_allows_and_the_next_goes_on(kit: StoreKit) -> None:
    clock = passing(kit)
    store = kit.open()
    fill(store)
    clock.passing = True
    left = [waiting(store)]
    while left[-1]:
        clock.forward(50)
        store.tick(clock.ms)
        left.append(waiting(store))
        assert left[-2] - left[-1] <= 2 * (TAILS_MS + 1), "a sync of the derived files takes a portion of its own"
        assert left[-2] > left[-1], "each tick gets on"
    assert len(left) > 5


def test_the_queues_that_waited_longest_are_written_first(kit: StoreKit) -> None:
    clock = passing(kit)
    store = kit.open()
    fill(store)
    put(store, "T", 0)  # it waits already, and keeps its place
    put(store, "T", QUEUES)
    store.commit()
    clock.passing = True
    order: list[int] = []
    while waiting(store):
        before = {queue.queue_id for queue in store.queues.values() if queue.tail}
        clock.forward(50)
        store.tick(clock.ms)
        order += sorted(before - {queue.queue_id for queue in store.queues.values() if queue.tail})
    assert order == list(range(QUEUES + 1))


def test_the_checkpoint_rises_while_some_queue_always_waits_and_vouches_for_no_more_than_is_in_files(kit: StoreKit) -> None:
    clock = passing(kit)
    store = kit.open()
    clock.passing = True
    vouched: list[int] = []
    for second in range(400):
        fill(store, b"%d" % second)
        clock.forward(50)
        store.tick(clock.ms)
        assert store._tails, "with this traffic there is always one that waits"
        assert store.checkpointed <= store._covered()[0] < store.log.written
        if store.checkpointed > 0 and store.checkpointed not in vouched:
            vouched.append(store.checkpointed)
            manifest = orjson.loads((kit.root / "config/roquet.json").read_bytes())
            assert manifest["end"] == store.checkpointed
            assert all(count <= store.queues["T", int(key.rpartition("@")[2])].tail_start for key, count in manifest["queues"].items())
    assert len(vouched) >= 2
    kit.crash(store)
    clock.passing = False
    again = kit.open()
    for n in range(QUEUES):
        assert bodies(again, "T", n) == [b"%d" % second for second in range(400)]


def test_a_clean_stop_writes_them_all(kit: StoreKit) -> None:
    clock = passing(kit)
    store = kit.open()
    fill(store)
    clock.passing = True
    store.close()
    clock.passing = False
    again = kit.open()
    assert not again.recovered_records
    assert all(bodies(again, "T", n) == [b"hello"] for n in range(QUEUES))
