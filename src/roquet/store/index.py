"""The key index: from "topic#key" to where its messages are in the log. Upstream's IndexFile, byte for byte.

    0        8        16          24        32      36    40                 40 + 4s            40 + 4s + 20e
    +--------+--------+-----------+---------+-------+-----+------------------+------------------+
    | begin  | end    | begin     | end     | slots | num | s slots of 4     | e entries of 20  |
    | ms     | ms     | offset    | offset  | used  | ber | newest entry's   | number 0 is      |
    |        |        |           |         |       |     | number, 0: none  | never used       |
    +--------+--------+-----------+---------+-------+-----+------------------+------------------+
    entry:  hash 4 | physical offset 8 | seconds since begin 4 | number of the entry before it in the same slot 4

Adding a key is an append to a list. `settle` turns the list into entries, all keys at once, and writes in an order that a
killed process cannot spoil: slots, entries, header. The number in the header comes last, so it never counts an entry
that is not there; slots and chains can be made again from the entries alone, and are after a crash. A file is full at e - 1
entries, and then the next one begins, named after the local time.

The index is derived from the log. What is lost or in doubt here is cut off and indexed again from `covered`.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from roquet.ports import Clock
from roquet.speedups import native
from roquet.store.disk import Cold, Disk, DiskFile, is_shortage
from roquet.store.segments import OpenFiles
from roquet.wire.arrays import layout, np
from roquet.wire.columns import INDEX_ENTRIES, java_hashes, powers
from roquet.wire.hashing import java_hash
from roquet.wire.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT

if TYPE_CHECKING:
    import numpy.typing as npt

KEYS = layout([("hash", "=i4"), ("offset", "=i8"), ("ms", "=i8")])
"""Keys as the extension gives them: key_hash, physical offset, store time."""
KEY = struct.Struct("=iqq")
"""One of these, without loading numpy."""
Pending = tuple[str, str, int, int]
"""(topic, key, physical offset, store time in ms)."""
Ints: TypeAlias = "npt.NDArray[np.int32]"
Numbers: TypeAlias = "npt.NDArray[np.int64]"
Hashed = tuple[Ints, Numbers, Numbers]
"""(key_hash, physical offset, store time in ms), a column each."""

Alike = tuple[str, bytes, int, Numbers, int]
"""(topic, keys of one size, that size, their physical offsets, store time in ms)."""

BATCH = 8_192
"""Keys hashed together. Bounds the memory that it takes after a long wait for disk space."""
ALIKE_BYTES = 1 << 18
"""The same for keys that are alike."""
PENDING_MAX = 1_000_000
"""Keys kept while the disk takes none; beyond it the oldest are dropped and counted."""
STRETCH = 1 << 20
"""Bytes of the entries area reserved ahead of need: a small disk can still hold an index whose file is 420 MB long."""
CHUNK = 1 << 17
"""Entries read at once when a file is checked and its slots made again."""
STEPS_MAX = 10_000
"""Entries of one chain that a query follows on the loop (about 15 ms); a longer chain is followed in the background."""
REMEMBERED_MAX = 64
"""Chains followed in the background whose result is kept: whoever asked asks again, maybe more than once."""
TIMES_END_MS = 1 << 43
"""No message is stored after this (the year 2248)."""
TOPICS_MAX = 100_000
"""Topics whose hash is kept."""


def columns_of(keys: bytes) -> Hashed:
    rows = np.frombuffer(keys, KEYS)
    return rows["hash"].copy(), rows["offset"].copy(), rows["ms"].copy()


class TopicHashes(dict[str, int]):
    """topic -> hash of "topic#", unsigned. Keys of one topic then only need their own characters hashed."""

    def __missing__(self, topic: str) -> int:
        if len(self) >= TOPICS_MAX:
            self.clear()
        self[topic] = found = java_hash(topic + "#") & 0xFFFFFFFF
        return found


def key_hash(topic: str, key: str) -> int:
    """The hash that an entry carries: the absolute value of Java's, 0 for the one that has none."""
    found = abs(java_hash(f"{topic}#{key}"))
    return 0 if found == 1 << 31 else found


def key_hashes(topics: Sequence[str], keys: Sequence[str], topic_hashes: TopicHashes) -> Ints:
    """key_hash of each pair, all at once: h(topic# + key) = h(topic#) * 31^len(key) + h(key)."""
    sizes = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    if not all(map(str.isascii, keys)):  # Java counts UTF-16 units
        sizes = np.fromiter((len(key.encode("utf-16-le", "surrogatepass")) // 2 for key in keys), dtype=np.int64, count=len(keys))
    if sizes.max() >= len(powers()):
        return absolute(java_hashes([f"{topic}#{key}" for topic, key in zip(topics, keys, strict=True)]))
    heads = np.fromiter(map(topic_hashes.__getitem__, topics), dtype=np.uint32, count=len(topics))
    return joined_hashes(heads, java_hashes(keys).view(np.uint32), sizes)


def joined_hashes(heads: npt.NDArray[np.uint32], hashes: npt.NDArray[np.uint32], units: Numbers) -> Ints:
    """key_hash where the topic's part and the key's own hash, with the key's length in UTF-16 units, are known."""
    return absolute((heads * powers()[units] + hashes).view(np.int32))


def absolute(hashes: Ints) -> Ints:
    found = np.abs(hashes)
    found[found < 0] = 0  # the absolute value of -2^31 is itself
    return found


def chain(table: npt.NDArray[np.int32], slots: Ints, number: int) -> tuple[Ints, Ints, Numbers, int]:
    """Put entries number, number + 1... into these slots, in order; `table` is read, not changed.

    Returns for each entry the one before it in its slot (0: none), then the distinct slots with the newest entry of each,
    and how many slots were empty before.
    """
    order = slots.argsort(kind="stable")
    ranked = slots[order]
    numbers: Numbers = order + number
    first = np.empty(len(slots), dtype=np.bool_)
    first[0] = True
    np.not_equal(ranked[1:], ranked[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    known = table[ranked[heads]].astype(np.int32)
    known[(known < 0) | (known >= number)] = 0  # left by a write that was never counted
    before = np.empty(len(slots), dtype=np.int32)
    before[1:] = numbers[:-1]
    before[heads] = known
    unranked = np.empty_like(before)
    unranked[order] = before
    tails = np.append(heads[1:], len(slots)) - 1
    return unranked, ranked[tails], numbers[tails], len(known) - int(np.count_nonzero(known))


def entries_of(keys: bytes, slots: memoryview, number: int, begin_ms: int) -> tuple[bytes, int, int]:
    """The entries of these KEYS, which get numbers from this one on, for a file that began then: (entries, how many slots were empty, the
    newest time). The file's slots have them afterwards."""
    rows, table = np.frombuffer(keys, KEYS), np.frombuffer(slots, dtype=">i4")
    before, changed, newest, fresh = chain(table, rows["hash"] % np.int32(len(table)), number)
    entries = np.empty(len(rows), dtype=INDEX_ENTRIES)
    entries["hash"] = rows["hash"]
    entries["offset"] = rows["offset"]
    # Java divides toward zero and then keeps it within 0 and 2^31 - 1, so a clock that went back counts as no time.
    entries["seconds"] = ((rows["ms"] - begin_ms) // 1000).clip(0, 0x7FFFFFFF)
    entries["before"] = before
    table[changed] = newest
    return entries.tobytes(), fresh, int(rows["ms"].max())


make_entries = entries_of if native is None else native.index_entries


def take_out(entries: bytes, slots: memoryview) -> None:
    """Entries that `entries_of` made are not written: the slots are as they were before."""
    rows, table = np.frombuffer(entries, INDEX_ENTRIES)[::-1], np.frombuffer(slots, dtype=">i4")
    table[rows["hash"] % np.int32(len(table))] = rows["before"]  # of those in one slot the first, which comes last here


class IndexFile:
    """One file. `number` is that of the next entry, so 1 means none; the fields are the header's."""

    __slots__ = (
        "allocated", "area", "begin_ms", "begin_offset", "end_ms", "end_offset", "held", "name", "number", "slots", "slots_used",
    )  # fmt: skip

    def __init__(self, name: str, held: DiskFile | None = None) -> None:
        self.name = name
        self.held = held  # open as long as this is the one that is written
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = self.slots_used = 0
        self.number = 1
        self.allocated = 0
        self.area: memoryview | None = None  # header and slots, mapped while this file is written
        self.slots: memoryview | None = None  # of these the slots

    def header(self) -> tuple[int, int, int, int, int, int]:
        return self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.number

    def let_go(self) -> None:
        """It is only read from now on. The map lives as long as the open file."""
        self.slots = self.area = None
        held, self.held = self.held, None
        if held is not None:
            held.close()


class KeyIndex:
    """All index files of one store. One owner, one thread; only what `begin_sync` returns and Cold.fetch run elsewhere.

    `pending` may be appended to directly, in the order of the log; it stays the same list for ever. `_hashed` holds keys that
    came in columns or could not be written, and all of them stand before those in `pending`. Between the two are `_alike`, keys that came
    in columns and are hashed with others, and then `runs`, which is KEYS.
    """

    def __init__(
        self, disk: Disk, directory: str, *, slots_max: int, entries_max: int, clock: Clock, open_files: OpenFiles | None = None
    ) -> None:
        """`open_files`: those of the store, of which there are not too many."""
        if slots_max < 1 or entries_max < 2:
            raise ValueError(f"an index of {slots_max} slots and {entries_max} entries; at least 1 and 2 are needed")
        self.disk = disk
        self.open_files = open_files or OpenFiles(disk)
        self.directory = directory
        self.slots_max = slots_max
        self.entries_max = entries_max
        self.clock = clock
        self.entries_at = INDEX_HEADER.size + slots_max * INDEX_SLOT
        self.file_size = self.entries_at + entries_max * INDEX_ENTRY.size

        # State of the owner's thread.
        self.pending: list[Pending] = []
        self._hashed: list[Hashed] = []
        self._alike: list[Alike] = []
        self._alike_bytes = 0
        self.runs = bytearray()
        self.covered = 0
        """Records from this physical offset on must be dispatched again after `open`; keys below it are ignored. The start of
        a record, unless the index is intact: then one more than the offset of the last record in it. Does not move as keys
        are added."""
        self.intact = True
        """The last stop was clean and `open` dropped nothing: whatever was ever added is here."""
        self.dropped = 0
        """Keys given up because the disk took none for too long."""
        self.warnings: list[str] = []
        self.files: list[IndexFile] = []
        self._topic_hashes = TopicHashes()
        self._last_ms = 0
        self._dirty: dict[str, IndexFile] = {}
        self._named = False  # a file was created or removed since the directory was synced
        self._remembered: dict[tuple[int, str, int, int, int, int], tuple[int, list[int]]] = {}
        self._generation = 0  # part of what is remembered: a truncated chain may grow differently

        # Written by the background too.
        self._syncing = False
        self._safe_ms = 0
        self._sync_failed = ""

    # -- adding ------------------------------------------------------------------------------------------------------

    def add(self, topic: str, key: str, physical_offset: int, store_ms: int) -> None:
        """Keys come in the order of the log. They are found by queries at once and written by `settle`."""
        self.pending.append((topic, key, physical_offset, store_ms))

    def add_many(self, topic: str, hashes: npt.NDArray[np.uint32], units: Numbers, physical_offsets: Numbers, store_ms: int) -> None:
        """The same for many keys of one topic, of which only Java's hash and the length in UTF-16 units are needed."""
        self._hash_pending()  # what came before stays before
        head = np.array([self._topic_hashes[topic]], dtype=np.uint32)
        times = np.full(len(hashes), store_ms, dtype=np.int64)
        self._hashed.append((joined_hashes(head, hashes, units), physical_offsets, times))

    def add_alike(self, topic: str, keys: bytes, size: int, physical_offsets: Numbers, store_ms: int) -> None:
        """The same for many keys of one topic that are ASCII and all of this size, one behind the other."""
        if self.pending or self.runs:
            self._hash_pending()
        self._alike.append((topic, keys, size, physical_offsets, store_ms))
        self._alike_bytes += len(keys)
        if self._alike_bytes >= ALIKE_BYTES:
            self._open_runs()

    def add_run(self, keys: bytes) -> None:
        """The same for KEYS, of any topics."""
        if self.pending:
            self._hash_pending()
        self.runs += keys

    @property
    def waiting(self) -> int:
        """Keys that are not in a file yet."""
        count = len(self.pending) + len(self.runs) // KEY.size
        for hashes, _, _ in self._hashed:
            count += len(hashes)
        for _, _, _, offsets, _ in self._alike:
            count += len(offsets)
        return count

    def forget_from(self, physical_offset: int) -> tuple[list[Hashed], list[Pending]]:
        """Keys from this log offset on that are not in a file yet: what they lead to was not written. Returns them for `take_back`."""
        if self.runs and not self.pending and KEY.unpack_from(self.runs, len(self.runs) - KEY.size)[1] < physical_offset:
            return [], []
        self._open_runs()
        pending, hashed = self.pending, self._hashed
        forgotten: tuple[list[Hashed], list[Pending]] = [], []
        while pending and pending[-1][2] >= physical_offset:
            forgotten[1].append(pending.pop())
        while hashed and hashed[-1][1][-1] >= physical_offset:
            kept = int(hashed[-1][1].searchsorted(physical_offset))
            hashes, offsets, times = hashed.pop()
            forgotten[0].append((hashes[kept:], offsets[kept:], times[kept:]))
            if kept:
                hashed.append((hashes[:kept], offsets[:kept], times[:kept]))
        return forgotten

    def take_back(self, forgotten: tuple[list[Hashed], list[Pending]]) -> None:
        """What `forget_from` returned counts after all; nothing was added since."""
        hashed, pending = forgotten
        self._hashed += reversed(hashed)
        self.pending += reversed(pending)

    def fill(self, hashes: Ints, offsets: Numbers, times: Numbers) -> None:
        """Write keys that are hashed already, in the order of the log: whoever builds a whole index again hashed them elsewhere."""
        self._hashed.append((hashes, offsets, times))
        self.settle()

    def settle(self) -> None:
        """Write what is pending. On OSError (disk full) the rest stays pending, up to PENDING_MAX, and can be tried again."""
        keys = self._take_keys()
        at, stop = 0, len(keys)
        try:
            while at < stop:
                file = self._writable()
                size = min(self.entries_max - file.number, CHUNK) * KEY.size
                self._append(file, keys[at : at + size])
                at += size
        except BaseException:
            excess = max(0, (stop - at) // KEY.size - PENDING_MAX)
            self.dropped += excess
            self._hashed.append(columns_of(keys[at + excess * KEY.size :]))
            raise

    def _take_keys(self) -> bytes:
        """All that is pending, as KEYS."""
        if self.runs and not self.pending and not self._hashed and not self._alike and KEY.unpack_from(self.runs)[1] >= self.covered:
            keys, self.runs = bytes(self.runs), bytearray()
            return keys
        self._hash_pending()
        if not self._hashed:
            return b""
        rows = np.empty(sum(len(hashes) for hashes, _, _ in self._hashed), dtype=KEYS)
        for name, columns in zip(("hash", "offset", "ms"), zip(*self._hashed, strict=True), strict=True):
            np.concatenate(columns, out=rows[name])
        self._hashed.clear()
        return rows.tobytes()

    def _hash_pending(self) -> None:
        """`pending` is empty then. Recovery dispatches from further back than we need: what is below `covered` is left out."""
        self._open_runs()
        first = bisect.bisect_left(self.pending, self.covered, key=lambda one: one[2])
        for at in range(first, len(self.pending), BATCH):
            topics, keys, offsets, times = zip(*self.pending[at : at + BATCH], strict=True)
            hashes = key_hashes(topics, keys, self._topic_hashes)
            self._hashed.append((hashes, np.array(offsets, dtype=np.int64), np.array(times, dtype=np.int64)))
        self.pending.clear()

    def _open_runs(self) -> None:
        """Their keys become columns, after those that stand before them."""
        if self._alike:
            self._open_alike()
        if self.runs:
            hashes, offsets, times = columns_of(bytes(self.runs))
            self.runs.clear()
            kept = offsets >= self.covered
            if kept.any():
                self._hashed.append((hashes[kept], offsets[kept], times[kept]))

    def _open_alike(self) -> None:
        for (topic, size), some in groupby(self._alike, key=lambda one: (one[0], one[2])):
            _, keys, _, offsets, times = zip(*some, strict=True)
            rows = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, size).astype(np.uint32)
            head = np.array([self._topic_hashes[topic]], dtype=np.uint32)
            hashes = joined_hashes(head, rows @ powers()[:size][::-1], np.array([size]))
            self._hashed.append((hashes, np.concatenate(offsets), np.repeat(times, [len(one) for one in offsets])))
        self._alike.clear()
        self._alike_bytes = 0

    def _append(self, file: IndexFile, keys: bytes) -> None:
        """Keys for whose entries this file has room."""
        slots, area, held = file.slots, file.area, file.held
        assert slots is not None
        assert area is not None
        assert held is not None
        count = len(keys) // KEY.size
        (_, first, first_ms), (_, last, last_ms) = KEY.unpack_from(keys), KEY.unpack_from(keys, len(keys) - KEY.size)
        at = self.entries_at + file.number * INDEX_ENTRY.size
        stop = at + count * INDEX_ENTRY.size
        while file.allocated < stop:
            size = min(STRETCH, self.file_size - file.allocated)
            held.allocate(file.allocated, size)
            file.allocated += size
        entries, fresh, newest_ms = make_entries(keys, slots, file.number, file.begin_ms if file.number > 1 else first_ms)
        try:
            held.write(at, entries)
        except OSError:
            take_out(entries, slots)
            raise
        # From here on nothing can fail: the header is allocated and mapped.
        if file.number == 1:
            file.begin_ms, file.begin_offset = first_ms, first
        # The newest time in it, also where the clock was set back: queries look here whether a file can hold what they want.
        file.end_ms, file.end_offset = max(file.end_ms, newest_ms), last
        file.slots_used += fresh
        file.number += count
        INDEX_HEADER.pack_into(area, 0, *file.header())
        self._last_ms = last_ms
        self._dirty[file.name] = file

    def _writable(self) -> IndexFile:
        """The newest file, mapped, with room for an entry."""
        if not self.files or self.files[-1].number >= self.entries_max:
            self._create()
        file = self.files[-1]
        if file.slots is None:
            # Java leaves its files sparse; a store to a page that the full disk cannot back would kill the process.
            held = file.held = file.held or self.disk.open(self._path(file.name))
            held.allocate(0, self.entries_at)
            file.area = held.map(0, self.entries_at)
            file.slots = file.area[INDEX_HEADER.size :]
            file.allocated = self.entries_at + file.number * INDEX_ENTRY.size
        return file

    def _create(self) -> None:
        name = next_name(self.clock.now_ms(), self.files[-1].name if self.files else "")
        path = self._path(name)
        made = self.disk.open(path, size=self.file_size)
        try:
            made.allocate(0, self.entries_at)
        except OSError:
            made.close()
            self.disk.remove(path)
            raise
        if self.files:
            self.files[-1].let_go()
        self.files.append(IndexFile(name, made))
        self._named = True

    # -- asking ------------------------------------------------------------------------------------------------------

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> tuple[list[int], int, int]:
        """(physical offsets, newest first; end time and end offset of the newest file).

        Times count to the second, from the second the file began in, as upstream's. Other keys of the same hash are found
        too; whoever asks compares the keys. Raises Cold when the disk must be asked or a chain is very long.
        """
        with contextlib.suppress(OSError):  # a full disk hides the newest keys, but old ones can still be asked for
            self.settle()
        if not self.files:
            return [], 0, 0
        hashed = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files):
            if len(found) >= count_max:
                break
            # Upstream's test. An inverted window (begin after end) matches nothing.
            if file.number > 1 and begin_ms <= file.end_ms and end_ms >= file.begin_ms and begin_ms <= end_ms:
                found += self._search(file, hashed, count_max - len(found), begin_ms, end_ms)
        return found, self.files[-1].end_ms, self.files[-1].end_offset

    def _search(self, file: IndexFile, hashed: int, wanted: int, begin_ms: int, end_ms: int) -> list[int]:
        what = (self._generation, file.name, hashed, wanted, begin_ms, end_ms)
        met, rest = self._remembered.get(what, (0, []))
        slot_at = INDEX_HEADER.size + hashed % self.slots_max * INDEX_SLOT
        window = (hashed, begin_ms - file.begin_ms, end_ms - file.begin_ms)
        handle, entries_at, limit = self._open(file), self.entries_at, file.number
        at = int.from_bytes(handle.read_now(slot_at, INDEX_SLOT), "big", signed=True)
        if at >= limit:
            return []  # a slot that points past the end; upstream takes it for empty
        start, found = at, list[int]()

        def follow() -> None:
            """The whole chain with reads that may block. Entries never change, so what it finds stays true."""
            at, offsets = start, list[int]()
            while at > 0 and len(offsets) < wanted:
                at = step(handle.read, entries_at, at, window, offsets)
            while len(self._remembered) >= REMEMBERED_MAX:
                with contextlib.suppress(KeyError, RuntimeError, StopIteration):
                    del self._remembered[next(iter(self._remembered))]
            self._remembered[what] = start, offsets

        steps = 0
        while at > 0 and len(found) < wanted:
            if at == met:  # followed before, from here on
                found += rest
                break
            if steps == STEPS_MAX:
                raise Cold(follow)
            try:
                at = step(handle.read_now, entries_at, at, window, found)
            except Cold:
                raise Cold(follow) from None
            steps += 1
        return found[:wanted]

    # -- syncing -----------------------------------------------------------------------------------------------------

    def begin_sync(self) -> Callable[[], int]:
        """Note what is written by now. The function returned makes it safe; it may block and runs in the background, once.

        It returns the store time that the checkpoint may vouch for. Once it has raised OSError that time does not rise any
        more: after a failed fsync nobody knows what the disk holds, and the next start indexes again from there.
        """
        if self._syncing or self._sync_failed:
            return lambda: self._safe_ms
        files = list(self._dirty.values())
        named, upto = self._named, self._last_ms
        if not files and not named:
            return lambda: self._safe_ms
        self._dirty.clear()
        self._named = False
        self._syncing = True

        def work() -> int:
            try:
                for file in files:
                    self._sync_file(file)
                if named:
                    self.disk.sync_dir(self.directory)
                self._safe_ms = upto
            except OSError as error:
                if is_shortage(error):  # nothing is wrong with them: it is tried again
                    self._named = self._named or named
                    self._dirty |= {file.name: file for file in files}
                else:
                    self._sync_failed = str(error)
                raise
            finally:
                self._syncing = False
            return self._safe_ms

        return work

    def _sync_file(self, file: IndexFile) -> None:
        try:
            opened = self.disk.open(self._path(file.name))
        except FileNotFoundError:
            if file in self.files:
                raise
            return  # the log was cut back meanwhile, and what it spoke of is gone
        with contextlib.closing(opened):
            opened.sync()

    def sync(self) -> int:
        """Settle and make safe. May block."""
        self.settle()
        return self.begin_sync()()

    def expire(self, min_physical_offset: int) -> None:
        """Remove the files that only speak of what the log no longer holds; the newest stays."""
        while len(self.files) > 1 and self.files[0].end_offset < min_physical_offset and not self._syncing:
            self._drop(0)

    def close(self) -> None:
        """Settle, sync, close. OSError: something is not on disk; keep the mark of an unclean stop, so the next start repairs it."""
        try:
            self.sync()
            if self._sync_failed:
                raise OSError(errno.EIO, f"an earlier sync of the index failed ({self._sync_failed})", self.directory)
        finally:
            for file in self.files:
                self._close(file)
            self.files.clear()
            self._dirty.clear()
            self._remembered.clear()

    # -- opening and repairing -----------------------------------------------------------------------------------------

    def open(self, *, crashed: bool, safe_ms: int, known: Iterable[str] = ()) -> None:
        """Load the files and say in `covered` from where records must be indexed again.

        `known`: files that were there when the store was last written; after a crash the oldest of them may have expired since.

        After a crash only entries older than `safe_ms` (the checkpoint's index time) stay, as far as they fit together, less
        those of the last message among them: the rest of its keys may be lost. A file that is not what it should be goes,
        with every file after it; `warnings` says why.
        """
        self.disk.make_dir(self.directory)
        names = {name for name in self.disk.list(self.directory) if name.isdigit()}
        oldest = min(names, default="") if crashed else ""
        for name in sorted(names.union(one for one in known if one.isdigit() and one > oldest)):
            trouble = self._load(name, crashed) if self.intact else "follows a damaged one"
            if trouble:
                if self.intact:
                    self.warnings.append(f"{self._path(name)}: {trouble}; it and every later index file are built again from the log")
                self.disk.remove(self._path(name))
                self._named = True
                self.intact = False
        self.intact = self.intact and not crashed
        if crashed and self.files:
            # A file that another one follows was full. If it says otherwise, its last writes never reached the disk.
            doubtful = (at for at, file in enumerate(self.files) if file.number < self.entries_max or file.end_ms >= safe_ms)
            frontier = next(doubtful, len(self.files) - 1)
            while len(self.files) > frontier + 1:
                self._drop(-1)
            self._cut_torn(safe_ms)
        elif not self.intact:
            self._cut_torn()
        else:
            # An empty file that follows another carries that one's end.
            self.covered = self.files[-1].end_offset + 1 if self.files and self.files[-1].end_ms else 0
        if self.files:
            self._open(self.files[-1]).read(0, self.entries_at)  # so that the first settle finds the slots in memory
            self._last_ms = self.files[-1].end_ms

    def keep_first(self, count: int) -> None:
        """All but the first files are to be built again."""
        self.intact = False
        while len(self.files) > count:
            self._drop(-1)
        self._cut_torn()
        self._last_ms = self.files[-1].end_ms if self.files else 0

    def truncate_after(self, physical_end: int) -> int:
        """Forget what lies at or beyond this log offset: the log lost its tail. Returns from which offset on keys are missing now: that
        one, or an earlier one, where a file that is damaged takes with it what it should still hold."""
        self.forget_from(physical_end)
        self.covered = min(self.covered, physical_end)
        missing = physical_end
        while self.files and self.files[-1].end_offset >= physical_end:
            file = self.files[-1]
            try:
                cut = bisect.bisect_left(range(1, file.number), physical_end, key=lambda number: self._entry(file, number)[1]) + 1
            except OSError as error:
                self.warnings.append(f"{self._path(file.name)}: cannot be read ({error}); it is built again from the log")
                cut = file.number
            if cut > 1 and self._rebuild(file, cut) is not None and file.number == cut:
                break
            self._drop(-1)
            if cut > 1:
                self.intact = False
                self._cut_torn()
                missing = min(missing, self.covered)
        self._last_ms = self.files[-1].end_ms if self.files else 0
        return missing

    def _cut_torn(self, safe_ms: int | None = None) -> None:
        """Take away the newest message, whose other keys may be lost, and start again from it."""
        self.covered = 0
        while self.files:
            whole = self._rebuild(self.files[-1], self.files[-1].number, safe_ms=safe_ms, trim=True)
            if whole is not None:
                self.covered = whole
                if self.files[-1].number > 1:
                    return
            self._drop(-1)
            safe_ms = None  # the files before were full and synced

    def _load(self, name: str, crashed: bool) -> str:
        """Take this file in, or say what is wrong with it."""
        try:
            opened = self.open_files.get(self.directory, name)
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            if is_shortage(error):
                raise  # nothing is wrong with the file
            return f"cannot be opened ({error})"
        file = IndexFile(name)
        trouble = ""
        try:
            size = opened.size()
            if size != self.file_size:
                trouble = f"is {size} bytes long, {self.file_size} fit {self.slots_max} slots and {self.entries_max} entries"
            else:
                header = INDEX_HEADER.unpack(opened.read(0, INDEX_HEADER.size))
                file.begin_ms, file.end_ms, file.begin_offset, file.end_offset, file.slots_used, file.number = header
                file.number = file.number or 1  # a file that never got an entry is all zeros
                # Java counts slots differently in its oldest versions, but never more than entries.
                if not (1 <= file.number <= self.entries_max and 0 <= file.slots_used < file.number):
                    trouble = f"has a header of {header[5]} entries in {header[4]} slots"
                elif not 0 <= file.begin_ms < TIMES_END_MS or file.begin_offset < 0 or file.end_offset < file.begin_offset:
                    trouble = f"has a header from offset {file.begin_offset} to {file.end_offset}, from time {file.begin_ms}"
                elif not crashed:  # else what was written last is looked at entry by entry
                    trouble = self._odd(file)
        except OSError as error:
            trouble = f"cannot be read ({error})"
        if trouble:
            self._close(file)
        else:
            self.files.append(file)
        return trouble

    def _odd(self, file: IndexFile) -> str:
        """What shows that this file is not as a clean stop left it, or "". Its header speaks of its first and its last entry."""
        if self.files and self.files[-1].number < self.entries_max:
            return f"follows one that is not full: {self.files[-1].name} has {self.files[-1].number - 1} entries"
        if file.number == 1:
            return "" if file.end_ms else "holds nothing"
        _, first, _, _ = self._entry(file, 1)
        _, last, seconds, _ = self._entry(file, file.number - 1)
        if (first, last) != (file.begin_offset, file.end_offset):
            return f"has a header from offset {file.begin_offset} to {file.end_offset}, and entries from {first} to {last}"
        lasted_ms = file.end_ms - file.begin_ms
        if file.end_ms >= TIMES_END_MS or (0 < seconds < 0x7FFFFFFF and not 0 <= lasted_ms - seconds * 1000 < 1000):
            return f"has a header from time {file.begin_ms} to {file.end_ms}, and its last entry is {seconds} s after the first"
        return ""

    def _rebuild(self, file: IndexFile, limit: int, *, safe_ms: int | None = None, trim: bool = False) -> int | None:
        """Keep of the entries below number `limit` those that fit together, and make slots and header from them.

        `trim` (or an entry that does not fit) takes away the entries of the last message too. Returns the offset from which
        the log must be indexed again, which is that message's; None when the file holds nothing to go by or cannot be mended.
        The caller drops a file that is left without entries.
        """
        file.let_go()
        self._generation += 1
        table = np.zeros(self.slots_max, dtype=np.int32)
        number, last = 1, file.begin_offset
        try:
            while number < limit:
                size = min(limit - number, CHUNK) * INDEX_ENTRY.size
                data = self._open(file).read(self.entries_at + number * INDEX_ENTRY.size, size)
                entries = np.frombuffer(data, dtype=INDEX_ENTRIES, count=len(data) // INDEX_ENTRY.size)
                good = self._fitting(entries, last, None if safe_ms is None else safe_ms - file.begin_ms)
                if good:
                    slots = entries["hash"][:good].astype(np.int32) % np.int32(self.slots_max)
                    fits = chain(table, slots, number)[0] == entries["before"][:good]
                    good = good if fits.all() else int(np.argmin(fits))
                    table[slots[:good]] = np.arange(number, number + good)  # of those in one slot the last stays
                if good:
                    number += good
                    last = int(entries["offset"][good - 1])
                if good < len(entries):
                    trim = True
                    break
            if number == 1:
                return None
            while trim and number > 1:
                hashed, offset, _, before_it = self._entry(file, number - 1)
                if offset != last:
                    break
                table[hashed % self.slots_max] = before_it
                number -= 1
            if number == 1:
                file.number = 1
                return last
            _, file.begin_offset, _, _ = self._entry(file, 1)
            _, file.end_offset, seconds, _ = self._entry(file, number - 1)
            if number != file.number:  # else the header knows it to the millisecond
                file.end_ms = file.begin_ms + seconds * 1000
            file.number = number
            file.slots_used = int(np.count_nonzero(table))
            opened = self._open(file)
            opened.write(INDEX_HEADER.size, table.astype(">i4").tobytes())
            opened.write(0, INDEX_HEADER.pack(*file.header()))
        except OSError as error:
            self.warnings.append(f"{self._path(file.name)}: cannot be repaired ({error}); it is built again from the log")
            return None
        self._dirty[file.name] = file
        return last

    def _fitting(self, entries: npt.NDArray[np.void], last: int, safe_after_ms: int | None) -> int:
        """How many of these entries, from the first, can be true: offsets never fall, hashes and times are not negative."""
        offsets = entries["offset"].astype(np.int64)
        seconds = entries["seconds"].astype(np.int64)
        fits = (entries["hash"] >= 0) & (seconds >= 0) & (np.diff(offsets, prepend=last) >= 0)
        if safe_after_ms is not None:
            fits &= seconds * 1000 + 999 < safe_after_ms  # the entry may be younger by its rounding
        return len(entries) if fits.all() else int(np.argmin(fits))

    def _entry(self, file: IndexFile, number: int) -> tuple[int, int, int, int]:
        raw = self._open(file).read(self.entries_at + number * INDEX_ENTRY.size, INDEX_ENTRY.size)
        hashed, offset, seconds, before = INDEX_ENTRY.unpack(raw)
        return hashed, offset, seconds, before

    def _open(self, file: IndexFile) -> DiskFile:
        return file.held or self.open_files.get(self.directory, file.name)

    def _close(self, file: IndexFile) -> None:
        file.let_go()
        self.open_files.forget(self.directory, file.name)

    def _drop(self, at: int) -> None:
        file = self.files.pop(at)
        self._close(file)
        self.disk.remove(self._path(file.name))
        self._dirty.pop(file.name, None)
        self._named = True
        self._generation += 1

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"


def step(read: Callable[[int, int], bytes], entries_at: int, at: int, window: tuple[int, int, int], found: list[int]) -> int:
    """Look at entry `at`, note its offset if it matches, and return the next one of its chain; 0 at the end."""
    hashed, offset, seconds, before = INDEX_ENTRY.unpack(read(entries_at + at * INDEX_ENTRY.size, INDEX_ENTRY.size))
    wanted, since, until = window
    passed = seconds * 1000
    if seconds < 0:
        return 0
    if hashed == wanted and since <= passed <= until:
        found.append(offset)
    # Numbers fall along a chain, so a damaged one ends too. Times need not: an entry older than the window may stand behind one
    # in it, from before the clock was set back, so this does not stop there, as upstream does.
    return before if 0 < before < at else 0


def next_name(now_ms: int, last: str) -> str:
    """yyyyMMddHHmmssSSS of the local time, or a millisecond after the last name when the clock or daylight saving went back."""
    moment = datetime.fromtimestamp(now_ms // 1000) + timedelta(milliseconds=now_ms % 1000)
    name = f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
    if name > last:
        return name
    try:
        moment = datetime.strptime(last[:14], "%Y%m%d%H%M%S") + timedelta(milliseconds=int(last[14:]) + 1)
        return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
    except ValueError:  # named by somebody else
        return f"{int(last) + 1:0{len(last)}d}"
