"""A power loss whose writes overtook each other: what is whole counts, once, and what is new comes behind it."""

from __future__ import annotations

from roquet.settings import BrokerSettings
from roquet.store.disk import blocking
from roquet.store.store import Store
from roquet.testing import ManualClock, SimBackground, SimDisk, Simulation

SIZE = 65_536


def open_store(disk: SimDisk) -> Store:
    settings = BrokerSettings(
        store_path_root_dir="/store", flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=SIZE, max_hash_slot_num=10, max_index_num=20
    )
    store = Store(disk, settings, ManualClock(), SimBackground(Simulation(0)))
    store.open()
    return store


def put(store: Store, letter: bytes, queue_id: int) -> int:
    offset, _ = store.put(store.queue("T", queue_id), letter * 1_000, "", sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))
    store.commit()
    return offset


def bodies(store: Store) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for (_, queue_id), queue in sorted(store.queues.items()):
        entries = [queue.entry(offset) for offset in range(queue.first, queue.next)]
        found[queue_id] = [blocking(store.record_at, entry[0])[88:89] for entry in entries if entry]
    return found


def test_a_record_behind_a_lost_one_counts_and_keeps_its_place_in_log_and_queue() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put(store, b"a", 0)
    second = put(store, b"b", 1)
    put(store, b"c", 0)
    # Power fails: the sectors of the second record never reached the disk, those of the third did.
    disk.kill()
    disk.open("/store/commitlog/00000000000000000000").write(second, bytes(1_000))
    store = open_store(disk)
    assert bodies(store) == {0: [b"a", b"c"]}
    put(store, b"d", 0)
    put(store, b"e", 1)
    disk.kill()
    store = open_store(disk)
    assert bodies(store) == {0: [b"a", b"c", b"d"], 1: [b"e"]}


def test_a_torn_record_behind_the_end_is_kept_aside_and_never_counts_again() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put(store, b"a", 0)
    second = put(store, b"b", 1)
    third = put(store, b"c", 0)
    disk.kill()
    log = disk.open("/store/commitlog/00000000000000000000")
    torn = log.read(third, 600)
    log.write(second, bytes(1_000))
    log.write(third + 600, bytes(1_000))
    store = open_store(disk)
    assert bodies(store) == {0: [b"a"]}
    (kept,) = disk.list("/store/lost")
    assert kept.startswith(f"{second:020d}.")
    assert torn in disk.open(f"/store/lost/{kept}").read(0, 10_000)
    # An acknowledged message takes the place of "b" in the log and of "c" in its queue, and the broker dies again.
    put(store, b"d", 0)
    disk.kill()
    store = open_store(disk)
    assert bodies(store) == {0: [b"a", b"d"]}
    assert disk.list("/store/lost") == [kept]
