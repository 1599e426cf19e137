"""The store as a whole: what it promises after a stop, a crash and damage, and what it refuses to promise."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roquet.errors import Damaged, StoreUnavailable, Unstorable
from roquet.store.disk import Cold, RealDisk, RealFile
from roquet.store.store import Store
from roquet.testing import ManualBackground
from roquet.testing.clock import ManualClock
from roquet.wire.record import decode_records

from .conftest import VECTORS, StoreKit, bodies, put

APACHE = {
    "mapped_file_size_commit_log": 65_536,
    "mapped_file_size_consume_queue": 600,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def apache_kit(root: Path) -> StoreKit:
    kit = StoreKit(root)
    kit.settings = dict(APACHE)
    return kit


def recorded_offsets() -> dict[tuple[str, int], tuple[int, int]]:
    """What mqadmin said of the recorded store: (topic, queue) -> (min, max)."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    topic = ""
    for line in (VECTORS / "store-4.9.7-offsets.txt").read_text().splitlines():
        if line.startswith("## "):
            topic = line[3:]
        else:
            _, queue_id, low, high = line.split()
            found[topic, int(queue_id)] = (int(low), int(high))
    return found


class TestAStoreOfApache:
    def test_opens_with_every_offset_that_apache_reported(self, apache_store: Path) -> None:
        store = apache_kit(apache_store).open()
        for (topic, queue_id), (low, high) in recorded_offsets().items():
            queue = store.find_queue(topic, queue_id)
            assert (queue.first, queue.visible) == (low, high) if queue else high == 0, (topic, queue_id)
        store.close()

    def test_has_every_record_readable_through_its_queues(self, apache_store: Path) -> None:
        store = apache_kit(apache_store).open()
        seen = 0
        for queue in store.queues.values():
            for offset in range(queue.first, queue.visible):
                entry = queue.entry(offset)
                assert entry is not None
                (record,) = decode_records(store.record_at(entry[0]))
                assert (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, offset)
                seen += 1
        assert seen == 135
        store.close()

    def test_answers_queries_by_key(self, apache_store: Path) -> None:
        store = apache_kit(apache_store).open()
        records, _, _ = store.query("VecTopic", "key1", 32, 0, 1 << 60)
        assert len(records) == 4
        assert all(b"KEYS\x01key1\x02" in raw for raw in records)
        store.close()

    def test_has_its_queue_files_built_again_to_the_same_bytes(self, apache_store: Path, tmp_path: Path) -> None:
        original = tmp_path / "original"
        shutil.copytree(apache_store, original)
        shutil.rmtree(apache_store / "consumequeue")
        apache_kit(apache_store).open().close()
        for path in sorted((original / "consumequeue").rglob("0*")):
            if path.is_file():
                assert (apache_store / path.relative_to(original)).read_bytes() == path.read_bytes(), path


class TestRecovery:
    def test_after_a_clean_stop_reads_nothing_again(self, kit: StoreKit) -> None:
        store = kit.open()
        for n in range(300):
            put(store, queue_id=n % 3, body=b"%d" % n)
            store.commit()
        store.close()
        store = kit.open()
        assert store.recovered_records == 0
        assert bodies(store, queue_id=1) == [b"%d" % n for n in range(300) if n % 3 == 1]

    def test_after_a_crash_finds_what_was_only_in_the_log(self, kit: StoreKit) -> None:
        store = kit.open()
        for n in range(300):
            put(store, queue_id=n % 3, body=b"%d" % n, properties=f"UNIQ_KEY\x01K{n}")
            store.commit()
        kit.crash(store)
        store = kit.open()
        assert store.recovered_records == 300
        assert bodies(store, queue_id=2) == [b"%d" % n for n in range(300) if n % 3 == 2]
        assert len(store.query("T", "K123", 8, 0, 1 << 60)[0]) == 1

    def test_after_a_crash_reads_only_from_the_last_checkpoint(self, kit: StoreKit) -> None:
        store = kit.open()
        for n in range(100):
            store.begin(kit.clock.ms + n * 100)
            put(store, body=b"%d" % n, properties=f"UNIQ_KEY\x01K{n}")
        store.commit()
        kit.clock.ms += 20_000
        store.begin(kit.clock.ms)
        store.tick(kit.clock.ms)  # everything derived is synced, the checkpoint says so
        for n in range(100, 110):
            put(store, body=b"%d" % n, properties=f"UNIQ_KEY\x01K{n}")
        store.commit()
        kit.crash(store)
        store = kit.open()
        assert 10 <= store.recovered_records < 40  # the index vouches for whole seconds
        assert bodies(store) == [b"%d" % n for n in range(110)]
        assert [len(store.query("T", f"K{n}", 8, 0, 1 << 60)[0]) for n in range(110)] == [1] * 110

    @pytest.mark.parametrize("cut", [1, 7, 50, 93])
    def test_drops_a_torn_last_record_and_nothing_else(self, kit: StoreKit, cut: int) -> None:
        store = kit.open()
        for n in range(5):
            put(store, body=b"message %d" % n)
        store.commit()
        end = store.log.end
        kit.crash(store)
        with open(kit.root / "commitlog" / f"{0:020d}", "r+b") as file:
            file.seek(end - cut)
            file.write(bytes(cut))  # as a page that never reached the disk
        store = kit.open()
        assert bodies(store) == [b"message %d" % n for n in range(4)]
        put(store, body=b"next")
        store.commit()
        assert bodies(store)[-1] == b"next"
        assert store.queue("T", 0).next == 5

    def test_drops_a_record_whose_body_does_not_match_its_checksum(self, kit: StoreKit) -> None:
        store = kit.open()
        for _ in range(3):
            put(store, body=b"x" * 50)
        store.commit()
        last = store.queue("T", 0).entry(2)
        kit.crash(store)
        assert last is not None
        with open(kit.root / "commitlog" / f"{0:020d}", "r+b") as file:
            file.seek(last[0] + 100)
            file.write(b"y")
        assert len(bodies(kit.open())) == 2

    @pytest.mark.parametrize("clean", [True, False])
    def test_derives_queue_files_again_that_somebody_removed(self, kit: StoreKit, clean: bool) -> None:
        store = kit.open()
        for n in range(200):
            put(store, topic="T" if n % 2 else "U", body=b"%d" % n)
        store.commit()
        kit.clock.ms += 20_000
        store.tick(kit.clock.ms)
        store.close() if clean else kit.crash(store)
        shutil.rmtree(kit.root / "consumequeue" / "T")
        store = kit.open()
        assert bodies(store) == [b"%d" % n for n in range(200) if n % 2]
        assert bodies(store, topic="U") == [b"%d" % n for n in range(200) if n % 2 == 0]

    def test_derives_queue_files_again_that_came_from_an_old_backup(self, kit: StoreKit, tmp_path: Path) -> None:
        store = kit.open()
        put(store, body=b"first")
        store.close()
        shutil.copytree(kit.root / "consumequeue", tmp_path / "backup")
        store = kit.open()
        for n in range(50):
            put(store, body=b"%d" % n)
        store.close()
        shutil.rmtree(kit.root / "consumequeue")
        shutil.copytree(tmp_path / "backup", kit.root / "consumequeue")
        assert bodies(kit.open()) == [b"first"] + [b"%d" % n for n in range(50)]

    @pytest.mark.parametrize("clean", [True, False])
    def test_builds_the_index_again_that_somebody_removed(self, kit: StoreKit, clean: bool) -> None:
        store = kit.open()
        for n in range(30):
            put(store, properties=f"KEYS\x01k{n}")
        store.commit()
        store.close() if clean else kit.crash(store)
        shutil.rmtree(kit.root / "index")
        assert len(kit.open().query("T", "k17", 8, 0, 1 << 60)[0]) == 1

    @pytest.mark.parametrize("clean", [True, False])
    def test_survives_a_checkpoint_that_is_older_than_the_log_or_gone(self, kit: StoreKit, clean: bool) -> None:
        store = kit.open()
        for n in range(400):
            put(store, body=b"%d" % n)
        store.commit()
        store.close() if clean else kit.crash(store)
        (kit.root / "checkpoint").unlink(missing_ok=True)
        assert bodies(kit.open()) == [b"%d" % n for n in range(400)]

    def test_forgets_queue_entries_that_point_behind_the_log(self, kit: StoreKit) -> None:
        store = kit.open()
        for n in range(10):
            put(store, body=b"%d" % n)
        store.commit()
        store.tails.write()  # nothing is synced, and nobody vouches for it
        sixth = store.queue("T", 0).entry(6)
        kit.crash(store)
        assert sixth is not None
        with open(kit.root / "commitlog" / f"{0:020d}", "r+b") as file:
            file.seek(sixth[0])
            file.write(bytes(4_000))
        store = kit.open()
        assert bodies(store) == [b"%d" % n for n in range(6)]
        assert put(store)[1] == 6

    def test_keeps_a_queue_s_numbering_when_all_its_messages_expired(self, kit: StoreKit) -> None:
        store = kit.open()
        for _ in range(5):
            put(store, topic="Old")
        for _ in range(400):
            put(store, topic="New")
        store.commit()
        kit.clock.ms += 100 * 3_600_000
        for base in store.log.segments.bases:
            os.utime(store.log.segments.path(base), (1, 1))
        store.delete_expired_now()
        store.tick(kit.clock.ms)
        assert store.queue("Old", 0).first == 5
        store.close()
        store = kit.open()
        assert put(store, topic="Old")[1] == 5

    def test_shows_progress_when_there_is_much_to_read(self, kit: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("roquet.store.recovery.STEP", 1_000)
        store = kit.open()
        for _ in range(100):
            put(store)
        store.commit()
        kit.crash(store)
        shown: list[tuple[str, int, int]] = []
        again = Store(RealDisk(), store.settings, kit.clock, kit.background)
        again.open(lambda what, done, total: shown.append((what, done, total)))
        again.close()
        assert len(shown) >= 5
        assert all(0 < done <= total for _, done, total in shown)

    def test_refuses_a_directory_that_another_broker_holds(self, kit: StoreKit) -> None:
        kit.open()
        code = f"import fcntl, os; fcntl.lockf(os.open({str(kit.root / 'lock')!r}, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
        import subprocess
        import sys

        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode != 0

    def test_says_what_to_do_when_file_sizes_do_not_match_the_settings(self, kit: StoreKit) -> None:
        kit.open().close()
        with pytest.raises(Damaged, match="mappedFileSizeCommitLog"):
            kit.open(mapped_file_size_commit_log=32_768)
        kit.opened.clear()


class TestFlushing:
    def test_shows_nothing_under_sync_flush_before_it_is_on_disk(self, kit: StoreKit) -> None:
        store = kit.open(flush_disk_type="SYNC_FLUSH")
        kit.background.hold = True
        put(store)
        store.commit()
        assert bodies(store) == []
        kit.background.release()
        assert bodies(store) == [b"hello"]

    def test_shares_one_fsync_among_all_who_wait(self, kit: StoreKit) -> None:
        store = kit.open(flush_disk_type="SYNC_FLUSH")
        kit.background.hold = True
        woken: list[int] = []
        for n in range(10):
            put(store)
            store.commit()
            store.log.when_durable(store.log.written, 1 << 60, lambda reached, n=n: woken.append(n))  # type: ignore[misc]
        assert len(kit.background.waiting) == 1
        kit.background.release()
        assert woken == list(range(10))

    def test_a_failed_fsync_stops_writes_and_counts_as_nothing(self, kit: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
        store = kit.open(flush_disk_type="SYNC_FLUSH")
        told: list[bool] = []
        flushed = store.log.flushed

        def fail(self: RealFile) -> None:
            raise OSError(errno.EIO, "input/output error")

        monkeypatch.setattr(RealFile, "sync", fail)
        kit.background.hold = True
        put(store)
        store.commit()
        store.log.when_durable(store.log.written, 1 << 60, told.append)
        kit.background.release()
        assert told == [False]
        assert store.log.flushed == flushed
        assert "fsync" in store.trouble.refuse_writes()
        assert bodies(store) == []
        monkeypatch.undo()
        kit.clock.ms += 60_000
        store.tick(kit.clock.ms)  # a later fsync that works must not make it good: the kernel forgot what it could not write
        assert store.log.flushed == flushed

    def test_a_waiting_send_is_told_when_its_time_is_up(self, kit: StoreKit) -> None:
        store = kit.open(flush_disk_type="SYNC_FLUSH")
        kit.background.hold = True
        told: list[bool] = []
        put(store)
        store.commit()
        store.log.when_durable(store.log.written, kit.clock.ms + 5_000, told.append)
        store.tick(kit.clock.ms + 5_000)
        assert told == [False]
        kit.background.release()

    def test_the_checkpoint_moves_only_after_the_sync_that_it_describes(self, kit: StoreKit) -> None:
        store = kit.open()
        kit.background.hold = True
        store.begin(kit.clock.ms + 1)
        put(store)
        store.commit()
        before = (store.checkpoint.log_ms, store.checkpoint.queues_ms)
        store.tick(kit.clock.ms + 20_000)
        assert (store.checkpoint.log_ms, store.checkpoint.queues_ms) == before
        kit.background.hold = False
        kit.background.release()
        assert store.checkpoint.log_ms == store.checkpoint.queues_ms == kit.clock.ms + 1


class TestAFullDisk:
    def test_is_an_error_and_not_a_crash(self, kit: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
        store = kit.open()
        put(store, body=b"before", properties="KEYS\x01before")
        store.commit()
        whole = os.pwrite

        def full(fd: int, data: Any, offset: int) -> int:
            raise OSError(errno.ENOSPC, "no space left on device")

        monkeypatch.setattr("roquet.store.disk.pwrite", full)
        put(store, body=b"lost", properties="KEYS\x01lost")
        put(store, queue_id=1)
        with pytest.raises(StoreUnavailable, match="full"):
            store.commit()
        assert store.trouble.refuse_writes()
        monkeypatch.setattr("roquet.store.disk.pwrite", whole)
        assert bodies(store) == [b"before"]
        store.tick(kit.clock.ms)  # the look at the disk finds room
        assert not store.trouble.refuse_writes()
        assert put(store, body=b"after")[1] == 1
        store.commit()
        assert bodies(store) == [b"before", b"after"]
        assert store.query("T", "lost", 8, 0, 1 << 60)[0] == []
        kit.crash(store)
        assert bodies(kit.open()) == [b"before", b"after"]


class TestColdReads:
    def test_raise_instead_of_waiting_for_the_disk(self, kit: StoreKit) -> None:
        store = kit.open(mapped_file_size_commit_log=1 << 20)
        for _ in range(100):
            put(store, body=bytes(8_000))
        store.commit()
        store.tick(kit.clock.ms)
        path = store.log.segments.path(0)
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        entry = store.queue("T", 0).entry(50)
        assert entry is not None
        try:
            store.log.read(entry[0], entry[1])
        except Cold as cold:
            cold.fetch()
            assert len(store.log.read(entry[0], entry[1])) == entry[1]
        else:
            pytest.skip("this file system keeps pages that it was told to drop")


class TestFiles:
    def test_end_with_a_blank_record_when_the_next_message_does_not_fit(self, kit: StoreKit) -> None:
        store = kit.open(mapped_file_size_commit_log=4_096)
        sizes = [put(store, body=bytes(700))[0] for _ in range(12)]
        store.commit()
        assert all(offset // 4_096 == (offset + 700) // 4_096 for offset in sizes)
        first = (kit.root / "commitlog" / f"{0:020d}").read_bytes()
        end = sizes[4] + (sizes[1] - sizes[0])
        assert first[end : end + 8] == (4_096 - end).to_bytes(4, "big") + bytes.fromhex("CBD43194")
        assert len(bodies(store)) == 12
        kit.crash(store)
        assert len(bodies(kit.open())) == 12

    def test_refuses_a_record_that_no_file_could_hold(self, kit: StoreKit) -> None:
        store = kit.open(mapped_file_size_commit_log=4_096)
        with pytest.raises(Unstorable, match="4088"):
            put(store, body=bytes(5_000))

    def test_a_queue_that_starts_mid_file_is_blank_before_its_first_entry(self, kit: StoreKit) -> None:
        store = kit.open()
        queue = store.queue("T", 0)
        queue.start_at(7)
        put(store)
        store.close()
        raw = (kit.root / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes()
        assert raw[:20] == bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
        assert raw[140:148] == bytes(8)
        assert int.from_bytes(raw[148:152], "big") > 91


class TestTime:
    def test_finds_the_message_of_a_moment_or_its_nearer_neighbour(self, kit: StoreKit) -> None:
        store = kit.open()
        start = kit.clock.ms
        for n in range(10):
            store.begin(start + n * 1_000)
            put(store)
            store.commit()
        queue = store.queue("T", 0)
        assert store.offset_by_time(queue, start - 99_999) == 0
        assert store.offset_by_time(queue, start + 3_000) == 3
        assert store.offset_by_time(queue, start + 3_400) == 3
        assert store.offset_by_time(queue, start + 3_500) == 3  # a tie goes to the earlier
        assert store.offset_by_time(queue, start + 3_600) == 4
        assert store.offset_by_time(queue, start + 99_999) == 9

    def test_never_goes_back_in_the_log(self, kit: StoreKit) -> None:
        store = kit.open()
        store.begin(kit.clock.ms + 500)
        first, _ = put(store)
        store.begin(kit.clock.ms)
        second, _ = put(store)
        store.commit()
        assert store.store_time_at(second) == store.store_time_at(first)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), st.integers(0, 900)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
        st.tuples(st.just("tick"), st.integers(0, 30_000), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations)
def test_the_store_is_a_dictionary_of_lists(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens, each queue holds what was committed to it, in order; only the uncommitted is lost in a crash."""
    kit = StoreKit(tmp_path_factory.mktemp("model"))
    kit.clock, kit.background = ManualClock(), ManualBackground()
    kit.settings["mapped_file_size_commit_log"] = 4_096
    store = kit.open()
    model: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    staged: list[tuple[int, bytes]] = []
    count = 0
    for what, a, b in steps:
        if what == "put":
            count += 1
            body = b"%d." % count + bytes(b)
            put(store, queue_id=a, body=body, properties=f"UNIQ_KEY\x01U{count}")
            staged.append((a, body))
        elif what == "tick":
            kit.clock.ms += a
            store.begin(kit.clock.ms)
            store.tick(kit.clock.ms)
        else:
            if what != "crash":
                store.commit()
                for queue_id, body in staged:
                    model[queue_id].append(body)
            staged.clear()
            if what == "restart":
                store.close()
            if what == "crash":
                kit.crash(store)
            if what != "commit":
                store = kit.open()
        if not staged:
            for queue_id, expected in model.items():
                assert bodies(store, queue_id=queue_id) == expected
    store.close()


def test_a_number_that_no_record_can_hold_leaves_no_hole_in_the_log(kit: StoreKit) -> None:
    store = kit.open(mapped_file_size_commit_log=1 << 20)
    put(store, body=b"before")
    with pytest.raises(struct.error):
        store.put(store.queue("T", 0), b"x", "a\x01b", sys_flag=0, flag=1 << 40, born_ms=1, born_host=bytes(8))
    with pytest.raises(Unstorable, match="70002"):
        put(store, properties="a\x01" + "x" * 70_000)
    put(store, body=b"after")
    store.commit()
    kit.crash(store)
    assert bodies(kit.open()) == [b"before", b"after"]


@pytest.mark.parametrize("ahead_ms", [3_600_000, 365 * 86_400_000])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_crash_after_the_clock_was_set_back_loses_no_entry_and_no_key(kit: StoreKit, ahead_ms: int, with_manifest: bool) -> None:
    store = kit.open()

    def fill(count: int) -> None:
        for _ in range(count):
            kit.clock.forward(1_000)
            store.begin(kit.clock.now_ms())
            put(store, body=bytes(1_000), properties="KEYS\x01k")
            store.commit()

    fill(20)
    kit.clock.step(ahead_ms)
    fill(20)
    kit.clock.forward(10_000)
    store.tick(kit.clock.steady_ms())  # a checkpoint with times of that clock
    kit.clock.step(-ahead_ms)
    fill(40)
    kit.crash(store)
    if not with_manifest:  # as when the crash came between the two files
        (kit.root / "config" / "roquet.json").unlink()
        (kit.root / "config" / "roquet.json.bak").unlink(missing_ok=True)
    again = kit.open()
    assert again.queue("T", 0).visible == 80
    offsets, _, _ = again.index.query("T", "k", 100, 0, 1 << 62)
    assert len(set(offsets)) == 80
    again.close()
