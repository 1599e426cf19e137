"""The key index against Java's recorded file, against a plain model, and against crashes, truncation and full disks."""

from __future__ import annotations

import errno
import os
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roquet.speedups import native
from roquet.store import derived
from roquet.store import index as index_module
from roquet.store import index as key_index
from roquet.store.disk import Cold, DiskFile, RealDisk, RealFile
from roquet.store.fanout import index_keys, is_indexed
from roquet.store.index import KEY, KeyIndex, TopicHashes, key_hash, key_hashes, next_name
from roquet.store.store import Store
from roquet.testing.clock import ManualClock
from roquet.testing.disk import SimDisk
from roquet.wire.columns import java_hashes
from roquet.wire.hashing import java_hash
from roquet.wire.layout import INDEX_ENTRY, INDEX_HEADER

from .conftest import StoreKit, put

VECTORS = Path(__file__).parents[1] / "vectors"
ALWAYS = 1 << 62


def make(
    where: Path, *, slots: int = 100, entries: int = 400, crashed: bool = False, safe_ms: int = 0, disk: RealDisk | None = None
) -> KeyIndex:
    made = KeyIndex(disk or RealDisk(), str(where / "index"), slots_max=slots, entries_max=entries, clock=ManualClock(1_794_732_520_880))
    made.open(crashed=crashed, safe_ms=safe_ms)
    return made


def only_file(where: Path) -> Path:
    (found,) = (where / "index").iterdir()
    return found


# -- Java's own file -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("recorded")
    with tarfile.open(VECTORS / "store-4.9.7-stopped.tar.gz") as archive:
        archive.extractall(where, filter="data")
    return where / "store"


def records(log: bytes) -> Iterator[tuple[int, int, int, str, str]]:
    """(offset, system flag, store time, topic, properties) of each record, read here by hand: another opinion than the store's."""
    at = 0
    while at + 8 <= len(log):
        size, magic = struct.unpack_from(">iI", log, at)
        if magic != 0xDAA320A7:
            return
        (flag,) = struct.unpack_from(">i", log, at + 36)
        assert flag & 0x30 == 0, "the recorded hosts are IPv4"
        (stored,) = struct.unpack_from(">q", log, at + 56)
        here = at + 84
        here += 4 + struct.unpack_from(">i", log, here)[0]
        topic = log[here + 1 : here + 1 + log[here]].decode()
        here += 1 + log[here]
        properties = log[here + 2 : here + 2 + struct.unpack_from(">h", log, here)[0]].decode()
        yield at, flag, stored, topic, properties
        at += size


def java_keys(flag: int, properties: str) -> list[str]:
    """What upstream indexes of a record. A batch's records carry properties twice; as in Java's map, the last one counts."""
    if flag & 0xC == 0xC:
        return []
    read = dict(one.split("\x01", 1) for one in properties.split("\x02") if one)
    return [key for key in (read.get("UNIQ_KEY", ""), *read.get("KEYS", "").split(" ")) if key]


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_indexing_the_recorded_log_gives_javas_file_byte_for_byte(tmp_path: Path, recorded: Path, at_once: int) -> None:
    index = make(tmp_path)
    for offset, flag, stored, topic, properties in records((recorded / "commitlog" / ("0" * 20)).read_bytes()):
        for key in java_keys(flag, properties):
            index.add(topic, key, offset, stored)
        if len(index.pending) >= at_once:
            index.settle()
    index.close()
    (java,) = (recorded / "index").iterdir()
    assert only_file(tmp_path).read_bytes() == java.read_bytes()


def test_the_fan_out_names_the_keys_that_java_indexed(recorded: Path) -> None:
    for offset, flag, _, _, properties in records((recorded / "commitlog" / ("0" * 20)).read_bytes()):
        assert (index_keys(properties) if is_indexed(flag) else []) == java_keys(flag, properties), f"at {offset}"


def test_every_key_of_the_recorded_log_is_found_in_javas_file(recorded: Path) -> None:
    index = KeyIndex(RealDisk(), str(recorded / "index"), slots_max=100, entries_max=400, clock=ManualClock(1_794_732_520_880))
    index.open(crashed=False, safe_ms=0)
    asked, last = 0, 0
    for offset, flag, _, topic, properties in records((recorded / "commitlog" / ("0" * 20)).read_bytes()):
        for key in java_keys(flag, properties):
            found, _, end_offset = index.query(topic, key, 1000, 0, ALWAYS)
            assert offset in found
            assert offset <= end_offset
            asked, last = asked + 1, offset
    assert asked == 380
    assert index.covered == last + 1


def test_javas_file_rebuilt_from_its_entries_is_the_same_file(tmp_path: Path, recorded: Path) -> None:
    (java,) = (recorded / "index").iterdir()
    whole = java.read_bytes()
    here = tmp_path / "index" / java.name
    here.parent.mkdir()
    here.write_bytes(whole[:40] + bytes(400) + whole[440:])  # no slots
    index = make(tmp_path)
    file = index.files[-1]
    assert index._rebuild(file, file.number)
    index.close()
    assert here.read_bytes() == whole


# -- hashing and names -----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=20)), min_size=1, max_size=20))
def test_keys_hashed_together_hash_as_one_by_one(pairs: list[tuple[str, str]]) -> None:
    topics, keys = [one for one, _ in pairs], [two for _, two in pairs]
    assert key_hashes(topics, keys, TopicHashes()).tolist() == [key_hash(topic, key) for topic, key in pairs]


def test_a_key_longer_than_the_table_of_powers_is_hashed_too() -> None:
    assert key_hashes(["t", "t"], ["x" * 70_000, "y"], TopicHashes()).tolist() == [key_hash("t", "x" * 70_000), key_hash("t", "y")]


def test_the_hash_without_an_absolute_value_counts_as_zero() -> None:
    text = "polygenelubricants"  # known to hash to -2^31
    assert java_hash(text) == -(1 << 31)
    topic, key = "polygene", "lubricants"
    assert key_hash(topic, key) == key_hashes([topic], [key], TopicHashes())[0]  # "#" between: some ordinary hash
    hashes = TopicHashes()
    hashes["topic"] = java_hash("polygene") & 0xFFFFFFFF
    assert key_hashes(["topic"], ["lubricants"], hashes).tolist() == [0]


def test_names_rise_when_the_clock_does_not() -> None:
    first = next_name(1_794_732_520_880, "")
    assert len(first) == 17
    assert first.endswith("880")
    second = next_name(1_794_732_520_880, first)
    assert second.endswith("881")
    assert next_name(0, "20261231235959999") == "20270101000000000"
    assert next_name(0, "99999999999999999999") == "100000000000000000000"


# -- asking ----------------------------------------------------------------------------------------------------------


def test_the_newest_message_of_a_key_comes_first_and_the_count_is_kept(tmp_path: Path) -> None:
    index = make(tmp_path, entries=5)
    for number in range(10):
        index.add("t", "k", number * 100, 1_000_000 + number)
    assert index.query("t", "k", 100, 0, ALWAYS) == ([900, 800, 700, 600, 500, 400, 300, 200, 100, 0], 1_000_009, 900)
    assert index.query("t", "k", 6, 0, ALWAYS)[0] == [900, 800, 700, 600, 500, 400]
    assert index.query("t", "other", 6, 0, ALWAYS)[0] == []
    assert index.query("t", "k", 0, 0, ALWAYS)[0] == []
    assert [file.number for file in index.files] == [5, 5, 3]


def test_the_window_counts_whole_seconds_since_the_file_began_as_upstreams(tmp_path: Path) -> None:
    index = make(tmp_path)
    for number, stored in enumerate([10_500, 11_600, 12_700, 13_800]):
        index.add("t", "k", number, stored)
    assert index.query("t", "k", 9, 11_500, 12_500)[0] == [2, 1]
    assert index.query("t", "k", 9, 11_501, 12_499)[0] == []
    assert index.query("t", "k", 9, 20_000, 30_000)[0] == []
    assert index.query("t", "k", 9, 12_500, 11_500)[0] == []
    assert index.query("t", "k", 9, 0, 10_500)[0] == [0]


def test_an_index_without_a_key_answers_nothing(tmp_path: Path) -> None:
    assert make(tmp_path).query("t", "k", 9, 0, ALWAYS) == ([], 0, 0)


def test_a_chain_that_runs_in_a_circle_ends(tmp_path: Path) -> None:
    index = make(tmp_path, slots=1)
    for number in range(4):
        index.add("t", "k", number, 1_000)
    index.settle()
    file = index.files[-1]
    index._open(file).write(index.entries_at + 2 * INDEX_ENTRY.size + 16, struct.pack(">i", 3))  # 2 -> 3 -> 2 -> ...
    assert index.query("t", "k", 100, 0, ALWAYS)[0] == [3, 2, 1]
    index._open(file).write(index.entries_at + 4 * INDEX_ENTRY.size + 16, struct.pack(">i", 1_000_000))
    assert index.query("t", "k", 100, 0, ALWAYS)[0] == [3]
    index._open(file).write(INDEX_HEADER.size, struct.pack(">i", 99))
    assert index.query("t", "k", 100, 0, ALWAYS)[0] == []


def test_a_very_long_chain_is_followed_in_the_background_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "STEPS_MAX", 5)
    index = make(tmp_path, slots=1)
    for number in range(20):
        index.add("t", "a" if number < 2 else "b", number, 1_000)
    with pytest.raises(Cold) as cold:
        index.query("t", "a", 9, 0, ALWAYS)
    cold.value.fetch()
    index.add("t", "a", 20, 1_000)  # the chain grew meanwhile: its front is walked, the rest is known
    assert index.query("t", "a", 9, 0, ALWAYS)[0] == [20, 1, 0]
    assert index.query("t", "a", 9, 0, ALWAYS)[0] == [20, 1, 0]


class ColdOnce(RealFile):
    """Cold until somebody read the bytes with `read`."""

    def __init__(self, path: str, fd: int) -> None:
        super().__init__(path, fd)
        self.warm: set[int] = set()

    def read(self, offset: int, size: int) -> bytes:
        self.warm.add(offset)
        return super().read(offset, size)

    def read_now(self, offset: int, size: int) -> bytes:
        if offset not in self.warm:
            raise Cold(lambda: self.read(offset, size))
        return super().read_now(offset, size)


def test_a_cold_chain_is_fetched_whole_not_entry_by_entry(tmp_path: Path) -> None:
    index = make(tmp_path)
    for number in range(50):
        index.add("t", "k", number, 1_000)
    index.settle()
    file = index._open(index.files[-1])
    assert isinstance(file, RealFile)
    index.files[-1].held = ColdOnce(file.path, os.dup(file.fd))
    fetched = 0
    while True:
        try:
            found, _, _ = index.query("t", "k", 50, 0, ALWAYS)
            break
        except Cold as cold:
            cold.fetch()
            fetched += 1
    assert found == list(range(49, -1, -1))
    assert fetched == 2  # the slot, then the chain


# -- crashes ---------------------------------------------------------------------------------------------------------


def test_a_clean_stop_covers_everything_and_adding_goes_on(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.add("t", "k", 100, 5_000)
    index.add("t", "k", 250, 5_001)
    index.close()
    index = make(tmp_path)
    assert index.covered == 251
    assert index.intact
    index.add("t", "k", 100, 5_000)  # recovery dispatches it again
    index.add("t", "k", 250, 5_001)
    index.add("t", "k", 400, 6_500)
    assert index.query("t", "k", 9, 0, ALWAYS) == ([400, 250, 100], 6_500, 400)
    assert not index.pending


def test_after_a_crash_only_what_the_checkpoint_vouches_for_stays(tmp_path: Path) -> None:
    index = make(tmp_path)
    for number in range(10):
        index.add("t", "a", number * 100, 10_000 + number * 1_000)
        index.add("t", "b", number * 100, 10_000 + number * 1_000)
    index.close()
    # 15 000 is vouched for; with its rounding the entry of 14 000 is the last that surely is older, and its keys may be torn.
    index = make(tmp_path, crashed=True, safe_ms=15_000)
    assert index.covered == 400
    assert not index.intact
    assert index.query("t", "a", 99, 0, ALWAYS) == ([300, 200, 100, 0], 13_000, 300)
    for number in range(3, 10):
        index.add("t", "a", number * 100, 10_000 + number * 1_000)
        index.add("t", "b", number * 100, 10_000 + number * 1_000)
    assert index.query("t", "b", 99, 0, ALWAYS)[0] == list(range(900, -1, -100))
    assert index.query("t", "a", 99, 0, ALWAYS)[0] == list(range(900, -1, -100))


def test_a_crash_before_the_first_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.add("t", "a", 100, 10_000)
    index.close()
    index = make(tmp_path, crashed=True, safe_ms=0)
    assert (index.covered, index.files) == (0, [])


def test_a_message_whose_keys_reach_into_a_lost_file_is_indexed_again_whole(tmp_path: Path) -> None:
    index = make(tmp_path, entries=5)
    for offset in (0, 100, 200):
        for key in "ab":
            index.add("t", key, offset, 10_000)
    index.add("t", "c", 200, 10_000)
    index.close()
    first, second = sorted((tmp_path / "index").iterdir())
    second.write_bytes(b"short")
    index = make(tmp_path, entries=5)
    assert "5 bytes" in index.warnings[0]
    assert [file.name for file in index.files] == [first.name]
    assert index.covered == 100  # it filled the first file; whether it had more keys nobody can say
    for key in "ab":
        index.add("t", key, 100, 10_000)
    for key in "abc":
        index.add("t", key, 200, 10_000)
    assert index.query("t", "b", 9, 0, ALWAYS)[0] == [200, 100, 0]
    assert index.query("t", "c", 9, 0, ALWAYS)[0] == [200]


@pytest.mark.parametrize(
    ("at", "bytes_"),
    [
        (36, struct.pack(">i", 1 << 30)),
        (36, struct.pack(">i", -5)),
        (32, struct.pack(">i", 1 << 30)),
        (24, struct.pack(">q", -1)),
        (0, struct.pack(">q", -7)),
    ],
)
def test_a_nonsense_header_drops_the_file_and_those_after_it(tmp_path: Path, at: int, bytes_: bytes) -> None:
    index = make(tmp_path, entries=5)
    for number in range(12):
        index.add("t", "k", number * 100, 10_000)
    index.close()
    damaged = sorted((tmp_path / "index").iterdir())[1]
    raw = bytearray(damaged.read_bytes())
    raw[at : at + len(bytes_)] = bytes_
    damaged.write_bytes(raw)
    index = make(tmp_path, entries=5)
    assert len(index.warnings) == 1
    assert damaged.name in index.warnings[0]
    assert index.query("t", "k", 99, 0, ALWAYS)[0] == [200, 100, 0]
    assert index.covered == 300
    assert not index.intact
    assert len(list((tmp_path / "index").iterdir())) == 1


def test_entries_that_do_not_fit_together_end_what_a_crash_leaves(tmp_path: Path) -> None:
    """A power failure may keep the header and lose a page of entries, whatever the checkpoint says."""
    index = make(tmp_path, slots=3)
    for number in range(20):
        index.add("t", f"k{number % 4}", number * 100, 10_000)
    index.close()
    file = only_file(tmp_path)
    raw = file.read_bytes()
    at = 40 + 3 * 4 + 8 * 20
    for spoilt in (bytes(20), raw[at : at + 16] + struct.pack(">i", 2), struct.pack(">i", -1) + raw[at + 4 : at + 20]):
        file.write_bytes(raw[:at] + spoilt + raw[at + 20 :])
        index = make(tmp_path, slots=3, crashed=True, safe_ms=ALWAYS)
        assert index.covered == 600
        assert index.query("t", "k1", 9, 0, ALWAYS)[0] == [500, 100]
        index.close()


def test_a_full_file_that_says_it_is_not_ends_what_a_crash_leaves(tmp_path: Path) -> None:
    index = make(tmp_path, entries=5)
    for number in range(12):
        index.add("t", "k", number * 100, 10_000 + number)
    index.close()
    first, _, _ = sorted((tmp_path / "index").iterdir())
    raw = bytearray(first.read_bytes())
    raw[32:40] = struct.pack(">ii", 1, 4)  # as it was one entry earlier
    first.write_bytes(raw)
    index = make(tmp_path, entries=5, crashed=True, safe_ms=ALWAYS)
    assert index.covered == 200
    assert index.query("t", "k", 9, 0, ALWAYS)[0] == [100, 0]


def test_slots_written_by_a_killed_settle_do_not_hide_older_keys(tmp_path: Path) -> None:
    """Killed between slots and header: the slots point past what the header counts."""
    index = make(tmp_path, slots=2)
    for number in range(6):
        index.add("t", "k", number * 100, 10_000)
    index.settle()
    before = only_file(tmp_path).read_bytes()[:40]
    index.add("t", "k", 600, 10_000)
    index.close()
    file = only_file(tmp_path)
    file.write_bytes(before + file.read_bytes()[40:])
    index = make(tmp_path, slots=2, crashed=True, safe_ms=ALWAYS)
    index.add("t", "k", 500, 10_000)
    index.add("t", "k", 600, 10_000)
    assert index.query("t", "k", 9, 0, ALWAYS)[0] == [600, 500, 400, 300, 200, 100, 0]


def test_truncating_forgets_what_the_log_lost(tmp_path: Path) -> None:
    index = make(tmp_path, entries=5)
    for number in range(12):
        index.add("t", "k", number * 100, 10_000)
    index.settle()
    index.add("t", "k", 1_200, 10_000)
    assert index.truncate_after(650) == 650
    assert index.query("t", "k", 99, 0, ALWAYS)[0] == [600, 500, 400, 300, 200, 100, 0]
    index.add("t", "k", 650, 10_000)
    assert index.query("t", "k", 2, 0, ALWAYS)[0] == [650, 600]
    index.truncate_after(0)
    assert index.query("t", "k", 99, 0, ALWAYS) == ([], 0, 0)
    assert list((tmp_path / "index").iterdir()) == []


def test_a_file_that_goes_while_it_is_synced_is_no_failed_sync(tmp_path: Path) -> None:
    """A slave's log was cut back just then, and its store failed for it. Found by the simulation of whole groups."""
    index = make(tmp_path, entries=5)
    for number in range(12):
        index.add("t", "k", number * 100, 10_000)
    index.settle()
    work = index.begin_sync()
    index.truncate_after(0)
    work()
    index.add("t", "k", 0, 10_000)
    assert index.sync() == 10_000


def test_truncating_a_damaged_file_gives_it_up_and_says_from_where_to_index_again(tmp_path: Path) -> None:
    index = make(tmp_path, entries=5)
    for number in range(7):
        index.add("t", "k", number * 100, 10_000)
    index.settle()
    newest = index._open(index.files[-1])
    newest.write(index.entries_at + INDEX_ENTRY.size, struct.pack(">i", -1))
    assert index.truncate_after(600) == 300
    assert index.covered == 300
    assert not index.intact
    assert index.query("t", "k", 99, 0, ALWAYS)[0] == [200, 100, 0]


# -- syncing, expiring, a full disk ------------------------------------------------------------------------------------


def test_a_sync_vouches_for_what_was_settled_when_it_began(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.add("t", "k", 0, 5_000)
    index.settle()
    work = index.begin_sync()
    index.add("t", "k", 1, 6_000)
    index.settle()
    assert index.begin_sync()() == 0  # one is under way; nothing new is known
    assert work() == 5_000
    assert index.begin_sync()() == 6_000
    assert index.sync() == 6_000


def test_after_a_failed_sync_the_safe_time_never_rises_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make(tmp_path)
    index.add("t", "k", 0, 5_000)
    assert index.sync() == 5_000

    def fail(self: RealFile) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(RealFile, "sync", fail)
        index.add("t", "k", 1, 6_000)
        with pytest.raises(OSError, match="no"):
            index.sync()
    index.add("t", "k", 2, 7_000)
    assert index.sync() == 5_000
    assert index.query("t", "k", 9, 0, ALWAYS)[0] == [2, 1, 0]
    with pytest.raises(OSError, match="earlier sync"):
        index.close()


def test_files_below_the_logs_start_expire_but_the_newest_stays(tmp_path: Path) -> None:
    index = make(tmp_path, entries=5)
    for number in range(12):
        index.add("t", "k", number * 100, 10_000)
    index.sync()
    index.expire(300)
    assert len(index.files) == 3
    index.expire(301)
    assert index.query("t", "k", 99, 0, ALWAYS)[0] == [1100, 1000, 900, 800, 700, 600, 500, 400]
    index.expire(1 << 40)
    assert len(list((tmp_path / "index").iterdir())) == 1


class Full(RealDisk):
    """Takes no more while `full`."""

    full = False

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        disk = self

        class File(RealFile):
            def allocate(self, offset: int, size: int) -> None:
                if disk.full:
                    raise OSError(errno.ENOSPC, "No space left on device", self.path)
                super().allocate(offset, size)

            def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
                if disk.full:
                    raise OSError(errno.ENOSPC, "No space left on device", self.path)
                super().write(offset, data)

        plain = super().open(path, size=size)
        assert isinstance(plain, RealFile)
        return File(path, os.dup(plain.fd))


def test_a_full_disk_loses_no_pending_key(tmp_path: Path) -> None:
    disk = Full()
    index = make(tmp_path, entries=5, disk=disk)
    disk.full = True
    index.add("t", "k", 0, 1_000)
    with pytest.raises(OSError, match="No space"):
        index.settle()
    assert list((tmp_path / "index").iterdir()) == []
    disk.full = False
    for number in range(1, 4):
        index.add("t", "k", number, 1_000)
    index.settle()
    disk.full = True
    for number in range(4, 8):
        index.add("t", "k", number, 1_000)
    with pytest.raises(OSError, match="No space"):
        index.settle()
    assert index.query("t", "k", 9, 0, ALWAYS)[0] == [3, 2, 1, 0]
    disk.full = False
    assert index.query("t", "k", 9, 0, ALWAYS)[0] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert index.dropped == 0


def test_pending_keys_are_bounded_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "PENDING_MAX", 10)
    disk = Full()
    index = make(tmp_path, disk=disk)
    disk.full = True
    held = index.pending
    for number in range(25):
        index.add("t", "k", number, 1_000)
    with pytest.raises(OSError, match="No space"):
        index.settle()
    assert index.pending is held
    assert (index.waiting, index.dropped) == (10, 15)
    disk.full = False
    assert index.query("t", "k", 99, 0, ALWAYS)[0] == list(range(24, 14, -1))


# -- keys in columns ----------------------------------------------------------------------------------------------------


def add_many(index: KeyIndex, topic: str, keys: list[str], offsets: list[int], store_ms: int) -> None:
    units = np.array([len(key.encode("utf-16-le")) // 2 for key in keys])
    index.add_many(topic, java_hashes(keys).view(np.uint32), units, np.array(offsets), store_ms)


def test_keys_in_columns_and_single_ones_make_the_same_file_in_the_order_of_the_log(tmp_path: Path) -> None:
    single, mixed = make(tmp_path / "single", entries=40), make(tmp_path / "mixed", entries=40)
    keys = [f"key-{number % 7}" if number % 3 else f"鍵{number % 5}" for number in range(200)]
    for number, key in enumerate(keys):
        single.add("t", key, number, 1_000 + number // 50)
    for start in range(0, 200, 25):
        store_ms = 1_000 + start // 50
        if start % 2:
            add_many(mixed, "t", keys[start : start + 25], list(range(start, start + 25)), store_ms)
        else:
            for number in range(start, start + 25):
                mixed.add("t", keys[number], number, store_ms)
        assert mixed.waiting == start % 100 + 25
        if start % 100 == 75:
            mixed.settle()
            assert mixed.waiting == 0
    single.settle()
    contents = []
    for index, where in ((single, "single"), (mixed, "mixed")):
        index.close()
        contents.append([path.read_bytes() for path in sorted((tmp_path / where / "index").iterdir())])
    assert len(contents[0]) > 5
    assert contents[0] == contents[1]


def add_alike(index: KeyIndex, topic: str, keys: list[str], offsets: list[int], store_ms: int) -> None:
    index.add_alike(topic, "".join(keys).encode(), len(keys[0]), np.array(offsets), store_ms)


def add_run(index: KeyIndex, topic: str, keys: list[str], offsets: list[int], store_ms: int) -> None:
    index.add_run(b"".join([KEY.pack(key_hash(topic, key), offset, store_ms) for key, offset in zip(keys, offsets, strict=True)]))


def add_each(index: KeyIndex, topic: str, keys: list[str], offsets: list[int], store_ms: int) -> None:
    for key, offset in zip(keys, offsets, strict=True):
        index.add(topic, key, offset, store_ms)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([add_alike, add_alike, add_many, add_run, add_each]), st.sampled_from("tu"), st.integers(1, 4),
            st.integers(1, 9), st.sampled_from(["", "", "settle", "forget"]),
        ),
        max_size=12,
    ),
    st.sampled_from([1, 20, 1 << 18]),
)  # fmt: skip
def test_keys_that_are_alike_stand_in_the_order_of_the_log_among_all_others(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, str, int, int, str]], most: int
) -> None:
    contents = []
    for mixed in (True, False):
        root, at = tmp_path_factory.mktemp("alike"), 0
        index = make(root, entries=40)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_module, "ALIKE_BYTES", most)
            for number, (add, topic, size, count, then) in enumerate(steps):
                keys = [f"{at + n:04}"[-size:] for n in range(count)]
                before = index.waiting
                (add if mixed else add_each)(index, topic, keys, list(range(at, at + count)), 1_000 * number)
                assert index.waiting == before + count
                at += count
                if then == "settle":
                    index.settle()
                    assert index.waiting == 0
                elif then == "forget":
                    index.take_back(index.forget_from(at - 5))
                    index.forget_from(at - 2)
        index.settle()
        index.close()
        contents.append([path.read_bytes() for path in sorted((root / "index").iterdir())])
    assert contents[0] == contents[1]


def test_keys_in_columns_wait_while_the_disk_is_full_and_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "PENDING_MAX", 10)
    disk = Full()
    index = make(tmp_path, disk=disk)
    index.settle()
    disk.full = True
    add_many(index, "t", ["k"] * 8, list(range(8)), 1_000)
    add_many(index, "t", ["k"] * 3, [8, 9, 10], 1_000)
    index.add("t", "k", 11, 1_000)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            index.settle()
        assert (index.waiting, index.dropped) == (10, 2)
    disk.full = False
    assert index.query("t", "k", 99, 0, ALWAYS)[0] == list(range(11, 1, -1))


def test_keys_of_what_was_not_written_are_forgotten_from_the_middle_of_a_column_on(tmp_path: Path) -> None:
    index = make(tmp_path)
    for number in range(3):
        index.add("t", "k", number, 1_000)
    add_many(index, "t", ["k"] * 4, [3, 3, 4, 5], 1_000)
    index.add("t", "k", 6, 1_000)
    index.forget_from(4)
    assert index.query("t", "k", 99, 0, ALWAYS)[0] == [3, 3, 2, 1, 0]


# -- the model ---------------------------------------------------------------------------------------------------------

KEYS = [f"key{number}" for number in range(8)]
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True), st.integers(0, 3_000)),
    st.tuples(st.just("settle"), st.just([""]), st.just(0)),
    st.tuples(st.just("sync"), st.just([""]), st.just(0)),
    st.tuples(st.just("stop"), st.just([""]), st.just(0)),
    st.tuples(st.just("crash"), st.just([""]), st.integers(0, 100)),
    st.tuples(st.just("cut"), st.just([""]), st.integers(0, 100)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=60), st.integers(1, 5), st.integers(2, 9))
def test_the_index_agrees_with_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[str], int]], slots: int, entries: int
) -> None:
    where = tmp_path_factory.mktemp("model")
    index = make(where, slots=slots, entries=entries)
    log: list[tuple[int, int, list[str]]] = []  # the log: offset, store time, keys
    now, end, safe_ms = 1_000_000, 0, 0

    def dispatch_again() -> None:
        for offset, stored, keys in log:
            for key in keys:
                index.add("topic", key, offset, stored)

    for what, keys, number in steps:
        if what == "add":
            now += number
            log.append((end, now, keys))
            for key in keys:
                index.add("topic", key, end, now)
            end += 100
        elif what == "settle":
            index.settle()
        elif what == "sync":
            safe_ms = max(safe_ms, index.sync())
        elif what == "stop":
            index.close()
            index = make(where, slots=slots, entries=entries)
            dispatch_again()
        elif what == "crash":
            # The process is killed: what is pending is gone, the files stay as they are.
            index.pending.clear()
            for file in index.files:
                file.let_go()
            index = make(where, slots=slots, entries=entries, crashed=True, safe_ms=safe_ms)
            assert index.covered in [0, *(offset for offset, _, _ in log)], "recovery starts at a record"
            dispatch_again()
        else:
            end = end * number // 100
            log = [one for one in log if one[0] < end]
            index.truncate_after(end)
    for key in KEYS:
        hashed = key_hash("topic", key)
        same = [other for other in KEYS if key_hash("topic", other) == hashed]
        expected = [offset for offset, _, keys in reversed(log) for one in reversed(keys) if one in same]
        assert index.query("topic", key, 1_000, 0, ALWAYS)[0] == expected
    index.close()


def test_the_size_of_a_key_is_the_one_of_its_columns() -> None:
    assert key_index.KEYS.itemsize == KEY.size


KEY_ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1 << 60), st.integers(-5_000, 10**13)), min_size=1, max_size=60)


@pytest.mark.skipif(native is None, reason="the extension is not here")
@given(
    runs=st.lists(KEY_ROWS, min_size=1, max_size=4),
    slots=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 80), min_size=1, max_size=30),
    number=st.integers(1, 70),
    begin_ms=st.integers(0, 10**13),
)
def test_the_extension_makes_the_entries_and_slots_that_python_makes(
    runs: list[list[tuple[int, int, int]]], slots: list[int], number: int, begin_ms: int
) -> None:
    """Slots hold numbers of entries before these, numbers that were never counted, and anything."""
    assert native is not None
    before = bytearray(struct.pack(f">{len(slots)}i", *slots))
    areas = before[:], before[:]
    for rows in runs:
        keys = b"".join(KEY.pack(*row) for row in rows)
        made = native.index_entries(keys, memoryview(areas[0]), number, begin_ms)
        assert made == key_index.entries_of(keys, memoryview(areas[1]), number, begin_ms)
        assert areas[0] == areas[1]
        number += len(rows)


@pytest.mark.skipif(native is None, reason="the extension is not here")
@pytest.mark.parametrize(("keys", "slots", "number"), [(bytes(19), 4, 1), (bytes(20), 0, 1), (bytes(20), 4, 0), (bytes(40), 4, 2**31 - 2)])
def test_the_extension_refuses_keys_that_cannot_be_numbered(keys: bytes, slots: int, number: int) -> None:
    assert native is not None
    with pytest.raises(ValueError, match="bytes of keys from number"):
        native.index_entries(keys, memoryview(bytearray(slots)), number, 0)


def test_slots_are_as_before_when_their_entries_could_not_be_written() -> None:
    disk = SimDisk()
    disk.make_dir("/index")
    index = KeyIndex(disk, "/index", slots_max=3, entries_max=100, clock=ManualClock())
    index.open(crashed=False, safe_ms=0)
    for n in range(5):
        index.add("topic", f"k{n}", 100 * n, 1_000)
    index.settle()
    slots = index.files[-1].slots
    assert slots is not None
    before = bytes(slots)
    for n in range(5, 12):
        index.add("topic", f"k{n}", 100 * n, 1_000)
    disk.fail("write", errno.ENOSPC, "/index")
    with pytest.raises(OSError, match="No space"):
        index.settle()
    assert bytes(slots) == before
    assert [index.query("topic", f"k{n}", 10, 0, ALWAYS)[0] for n in range(12)] == [[100 * n] for n in range(12)]


def pending_keys(store: Store, count: int) -> None:
    """As the extension leaves them."""
    store.index.add_run(KEY.pack(7, 0, store.clock.now_ms()) * count)


def test_keys_go_into_the_index_with_a_tick_when_they_are_many_and_at_once_when_they_are_very_many(kit: StoreKit) -> None:
    store = kit.open(max_index_num=100_000)
    for most, ticks in ((derived.SETTLE_AT - 10, False), (derived.SETTLE_AT, True), (derived.SETTLE_MOST, True)):
        pending_keys(store, most)
        put(store)
        store.commit()
        assert store.index.waiting >= most, "they wait for a tick"
        store.derived.tails_due_ms = store.derived.sync_due_ms = 1 << 60
        store.tick(kit.clock.steady_ms())
        assert bool(store.index.waiting) != ticks
        store.derived.settle()
    pending_keys(store, derived.SETTLE_MOST + 1)
    put(store)
    store.commit()
    assert not store.index.waiting
    for number in range(derived.SETTLE_MOST + 1):
        store.index.add("T", f"key {number}", 1, store.clock.now_ms())
    put(store)
    store.commit()
    assert not store.index.waiting, "those that Python made, too"


def test_an_index_that_cannot_be_written_is_tried_again_a_second_later(kit: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kit.open()
    tried: list[int] = []

    def full(*args: object) -> None:
        tried.append(kit.clock.ms)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(store.index, "settle", full)
    store.derived.tails_due_ms = store.derived.sync_due_ms = 1 << 60
    began = kit.clock.ms
    pending_keys(store, 2 * derived.SETTLE_MOST)
    for _ in range(40):
        put(store)
        store.begin(kit.clock.now_ms())
        store.commit()
        store.tick(kit.clock.steady_ms())
        kit.clock.forward(50)
    assert [at - began for at in tried] == [0, 1_000]
