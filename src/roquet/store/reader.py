"""Looking into a store directory without being its broker: live, stopped, killed, or written by Apache RocketMQ.

Never writes, takes no lock, trusts nothing. `refresh` forgets what may have changed; everything else is found when asked for.

Which messages a queue has:  first <= offset < end.
1. Its files say most of it. They may end in entries that the log does not confirm; those do not count.
2. A broker of ours keeps entries in memory for up to a second, and a killed one never wrote the last. These are derived from
   the log, as recovery would: read forward from a place below which every entry is in its file. Our manifest names such a
   place. Without one that fits, it is a bit before the newest record that any queue knows: RocketMQ derives in log order.
3. Of two records that claim one offset (a topic was deleted and made again) the newer counts.
4. Of a DLedger group's log only what its checkpoint says is committed: the rest may be taken back yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import orjson

from roquet.errors import Damaged, NoRoute, RoquetError
from roquet.settings import DELAY_LEVELS, delay_levels_ms
from roquet.store.checkpoint import Checkpoint
from roquet.store.disk import ReadOnlyDisk
from roquet.store.documents import Document
from roquet.store.fanout import is_queued
from roquet.store.ledger_files import committed_end, ledger_home
from roquet.store.ledger_segments import LedgerSegments
from roquet.store.queue import BLANK_ENTRY, ENTRY_SIZE, entries_end, stored_entry, unpack_entry
from roquet.store.recovery import Manifest, times_of
from roquet.store.scan import Found, Hole, Walk, parse, read_records, record_at
from roquet.store.segments import OpenFiles, Segments
from roquet.store.times import Times, first_true
from roquet.wire.arrays import np
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import BLANK_LENGTH, ENTRY, QUEUES_MAX, TIMED, store_time_of

if TYPE_CHECKING:
    import numpy.typing as npt

Entries: TypeAlias = "npt.NDArray[np.void]"

MARGIN = 64 * 1024 * 1024
"""Bytes of log that are read again when nothing vouches for the queue files."""
TAILS_MAX = 64 * 1024 * 1024
"""Bytes of derived entries in memory; above, what has come into files meanwhile is forgotten."""
HOLE_MAX = 10_000_000
"""Entries that may be missing in the middle of a queue and are shown as blanks."""
OPEN_MAX = 256
VIEWS_MAX = 8
READABLE = 4
"""Bit of a topic's permissions."""
LIGHT_QUEUE = "%LMQ%"
"""Queues of these hold records of other topics, so the records do not say that they belong here."""


class Gone(RoquetError):
    """Entries that are not there any more, or not yet; `available` is the first that is, or the end."""

    def __init__(self, topic: str, queue_id: int, start: int, available: int) -> None:
        super().__init__(f"{topic}/{queue_id}: offset {start} is not in the files, the first that is there is {available}")
        self.topic, self.queue_id, self.start, self.available = topic, queue_id, start, available


@dataclass(slots=True, eq=False)
class Row:
    """One queue as its files and the log show it."""

    topic: str
    queue_id: int
    segments: Segments
    first: int = 0
    next: int = 0
    """Entries before it are in files, and the log confirms them."""
    last: int = -1
    """Log offset of the last of them, -1 when there is none."""
    last_end: int = 0
    tail_start: int = 0
    tail: bytearray = field(default_factory=bytearray)
    """Entries derived from the log, which the files lack."""
    filled: int = 0
    """Entries before it are in files, confirmed or not."""
    measured: int = -1
    """The reader's round in which its files were looked at."""
    log_start: int = -1
    """Where the log began then."""

    @property
    def end(self) -> int:
        return self.tail_start + len(self.tail) // ENTRY_SIZE if self.tail else self.next


class StoreReader:
    """Blocking; used by one thread."""

    def __init__(self, root: str, disk: ReadOnlyDisk | None = None) -> None:
        """Raises Damaged when this is no store."""
        self.disk = disk or ReadOnlyDisk()
        self.root = root.rstrip("/") or "/"
        self._home = ledger_home(self.disk, self.root)
        if not self.disk.is_dir(f"{self.root}/commitlog") and not self._home:
            raise Damaged(f"{root} holds no directory commitlog: it is not the store of a broker")
        self.files = OpenFiles(self.disk, OPEN_MAX)
        self._plain = Segments(self.files, f"{self.root}/commitlog", 0)
        self._ledger = LedgerSegments(self.files, f"{self._home}/data", 0, self._plain.directory)
        self.log = self._ledger if self._home else self._plain
        self._limit: int | None = None
        """Of a ledger: behind this nothing is known to be committed."""
        self.delays_ms = delay_levels_ms(DELAY_LEVELS)
        self.round = 0
        self._rows: dict[tuple[str, int], Row] = {}
        self._views: dict[int, memoryview] = {}
        self._scanned = -1
        """Up to here the log was read; -1 before the first time."""
        self._seen: Found | None = None
        """The last record that was read there."""
        self._scanned_round = -1
        self._known_manifest: Manifest | None = None
        self._manifest_version: tuple[int, int] | None = None
        self._configured_round = -1
        self._configured: dict[str, int] = {}
        self._configured_ms = 0
        self._load_log()

    @property
    def broker(self) -> str:
        """The broker's name, "" when the files do not tell it."""
        found = self._manifest()
        return found.broker if found else ""

    def refresh(self) -> None:
        """Look again at what is asked for next: the broker may have written and removed."""
        self.round += 1
        self._load_log()

    def close(self) -> None:
        self.files.close()
        self._views.clear()

    # What there is

    def topics(self) -> list[str]:
        """Those with messages and those that the broker only knows of, sorted."""
        self._scan()
        stored = {name for name in self.disk.list(f"{self.root}/consumequeue") if self._numbers(name)}
        return sorted(stored | set(self._topics()) | {row.topic for row in self._derived_only()})

    def queues(self, topic: str) -> list[int]:
        """Sorted; empty for an unknown topic."""
        self._scan()
        derived = {row.queue_id for row in self._derived_only() if row.topic == topic}
        return sorted(self._numbers(topic) | set(range(self._topics().get(topic, 0))) | derived)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(first, end). Raises NoRoute for a queue that is not there."""
        row = self._complete(topic, queue_id)
        return row.first, row.end

    def offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The first offset whose message was stored at or after this time; the end when there is none."""
        row = self._complete(topic, queue_id)
        manifest = self._manifest()
        set_backs = manifest.set_backs if manifest is not None else ()
        place_of, stored_ms = (lambda offset: self._entry(row, offset)[0]), partial(self._store_ms, row)
        return Times(row.first, row.end, set_backs, place_of, stored_ms).first_from(time_ms)

    def entries(self, topic: str, queue_id: int, start: int, stop: int) -> Entries:
        """The entries start <= offset < stop. Blank ones (size 0x7FFFFFFF) stand for messages that the log lost. Raises Gone."""
        row = self._find(topic, queue_id)
        if row is None or not self._reaches(row, stop):
            row = self._complete(topic, queue_id)
        if start < row.first:
            raise Gone(topic, queue_id, start, row.first)
        if stop > row.end:
            raise Gone(topic, queue_id, max(start, row.end), row.end)
        try:
            return self._read(row, start, stop)
        except FileNotFoundError:
            self.refresh()  # retention was here
            first, end = self.bounds(topic, queue_id)
            raise Gone(topic, queue_id, start, min(max(first, start + 1), end)) from None

    # The log

    def log_view(self, base: int, size: int = 0) -> memoryview:
        """The log file that starts here, mapped, `size` bytes of it at least if it has them. Raises FileNotFoundError when it is gone."""
        view = self._views.get(base)
        if view is None or len(view) < size:
            view = self.disk.view(self.log.path(base))
            while len(self._views) >= VIEWS_MAX:
                del self._views[next(iter(self._views))]
            self._views[base] = view
        return view

    def _load_log(self) -> None:
        bases, size = self._files_in(self._plain.directory)
        if self._home:
            entries, size_of_data = self._files_in(self._ledger.directory)
            size = size_of_data or size
            self._ledger.divided = entries[0] if entries else bases[-1] + size if bases else 0
            bases += entries
            manifest = self._manifest()
            vouched = manifest.end if manifest is not None and self._fits(manifest) else 0
            self._limit = max(committed_end(self.disk, self._home), vouched, self._ledger.divided)
        if bases != self.log.bases:
            for base in set(self.log.bases) - set(bases):
                self.files.forget(self.log.directory_of(base), base)
        self.log.bases, self.log.size = bases, size

    def _files_in(self, directory: str) -> tuple[list[int], int]:
        """Where the files of a row start, those alone that follow each other up to the newest, and the size they have."""
        bases = [int(name) for name in self.disk.list(directory) if len(name) == 20 and name.isdigit()]
        size = 0
        for base in bases:
            with contextlib.suppress(FileNotFoundError):
                size = self.disk.size(f"{directory}/{base:020d}")
            if size:
                break
        start = len(bases) - 1
        while start > 0 and bases[start - 1] + size == bases[start]:
            start -= 1
        return bases[max(start, 0) :] if size else [], size

    # Queues

    def _numbers(self, topic: str) -> set[int]:
        return {int(name) for name in self.disk.list(f"{self.root}/consumequeue/{topic}") if name.isascii() and name.isdigit()}

    def _complete(self, topic: str, queue_id: int) -> Row:
        """The queue with all that the log has of it. First the log, then its files: they only grow."""
        self._scan()
        row = self._find(topic, queue_id)
        if row is None:
            if queue_id < self._topics().get(topic, 0):
                return Row(topic, queue_id, Segments(self.files, self._directory(topic, queue_id), 0))
            raise NoRoute(f"{self.root} has no queue {topic}/{queue_id}: is the name right, and was anything sent to it?")
        if row.tail and row.tail_start > row.next:
            self._fill(row)
        return row

    def _directory(self, topic: str, queue_id: int) -> str:
        return f"{self.root}/consumequeue/{topic}/{queue_id}"

    def _topics(self) -> dict[str, int]:
        """What config/topics.json says: the readable queues of each topic. Empty when it cannot be read."""
        if self._configured_round != self.round:
            self._configured_round = self.round
            document = Document(self.disk, f"{self.root}/config/topics.json")
            with contextlib.suppress(OSError):
                self._configured_ms = 0
                self._configured_ms = self.disk.mtime_ms(document.path)
            self._configured = document.load(_read_queues) or {}
        return self._configured

    def _is_deleted(self, row: Row) -> bool:
        """Messages in the log, but no files: the queue is new, or its topic was deleted after the last of them."""
        return row.topic not in self._topics() and self._store_ms(row, row.end - 1) < self._configured_ms

    def _derived_only(self) -> list[Row]:
        found = [row for row in self._rows.values() if row.tail and not self.disk.is_dir(row.segments.directory)]
        return [row for row in found if not self._is_deleted(row)]

    def _find(self, topic: str, queue_id: int) -> Row | None:
        """The queue, its files looked at in this round. None when there is none."""
        row = self._rows.get((topic, queue_id))
        if row is not None and row.measured == self.round:
            return row
        directory = self._directory(topic, queue_id)
        if not self.disk.is_dir(directory) and (row is None or not row.tail or self._is_deleted(row)):
            self._rows.pop((topic, queue_id), None)
            return None
        if row is None:
            row = self._rows[topic, queue_id] = Row(topic, queue_id, Segments(self.files, directory, 0))
        self._measure(row)
        return row

    def _measure(self, row: Row) -> None:
        """Where its files end, and where the messages begin that the log still has."""
        row.measured = self.round
        segments = row.segments
        bases, size = self._files_in(segments.directory)
        try:
            if segments.bases and not self.disk.is_current(segments.file(segments.bases[-1])):
                for base in segments.bases:
                    self.files.forget(segments.directory, base)  # the topic was made anew, and so were they
            if bases == segments.bases and size == segments.size and row.log_start == self.log.start and self._is_unchanged(row):
                return
            segments.bases, segments.size, row.log_start = bases, size, self.log.start
            self._measure_files(row)
        except FileNotFoundError:  # it goes while we look
            segments.bases = []
            self._measure_files(row)
        self._join(row)

    def _is_unchanged(self, row: Row) -> bool:
        if row.tail or row.next != row.filled or self._file_entry(row, row.filled)[1] > 0:
            return False
        return row.last < 0 or self._file_entry(row, row.next - 1)[0] == row.last

    def _measure_files(self, row: Row) -> None:
        segments = row.segments
        row.first = row.next = row.filled = row.last_end = 0
        row.last = -1
        if not segments.bases:
            return
        start, end = segments.start // ENTRY_SIZE, entries_end(segments)
        row.filled = end
        if end > start and not self._confirmed(row, end - 1):
            end = first_true(start, end, lambda offset: not self._confirmed(row, offset))
        row.next = end
        if self._limit is not None:
            row.next = end = self._first_from(row, self._limit)
        row.first = self._first_from(row, self.log.start)
        if end > row.first:
            position, size, _ = self._file_entry(row, end - 1)
            row.last, row.last_end = position, position + size

    def _confirmed(self, row: Row, offset: int) -> bool:
        position, size, _ = self._file_entry(row, offset)
        if size == BLANK_LENGTH or position < self.log.start:
            return True
        try:
            found = record_at(self.log, position, size)
        except FileNotFoundError:
            return True  # old enough to go, so it was there
        if found is None or row.topic.startswith(LIGHT_QUEUE):
            return found is not None
        return (found.topic, found.queue_id, found.queue_offset) == (row.topic, row.queue_id, offset)

    def _entry(self, row: Row, offset: int) -> tuple[int, int, int]:
        """(log offset, size, tag hash); zeros where there is nothing."""
        if row.tail and offset >= row.tail_start:
            at = (offset - row.tail_start) * ENTRY_SIZE
            return unpack_entry(bytes(row.tail[at : at + ENTRY_SIZE])) or (0, 0, 0)
        return self._file_entry(row, offset)

    def _file_entry(self, row: Row, offset: int) -> tuple[int, int, int]:
        return stored_entry(row.segments, offset) or (0, 0, 0)

    def _read(self, row: Row, start: int, stop: int) -> Entries:
        pieces: list[bytes] = []
        at, in_files = start, min(stop, row.next if not row.tail else row.tail_start)
        size = row.segments.size
        while at < in_files:
            position = at * ENTRY_SIZE
            base = row.segments.base_of(position)
            if base is None:
                raise FileNotFoundError(f"{row.segments.directory} has no file for offset {at}")
            count = min(in_files - at, (base + size - position) // ENTRY_SIZE)
            raw = row.segments.file(base).read(position - base, count * ENTRY_SIZE)
            if len(raw) != count * ENTRY_SIZE:
                raise Damaged(f"{row.segments.path(base)} is shorter than the files before it: it was not copied whole")
            pieces.append(raw)
            at += count
        if at < stop:
            pieces.append(bytes(row.tail[(at - row.tail_start) * ENTRY_SIZE : (stop - row.tail_start) * ENTRY_SIZE]))
        return np.frombuffer(b"".join(pieces), ENTRIES)

    def _store_ms(self, row: Row, offset: int) -> int:
        """-1 when the record is gone."""
        position, size, _ = self._entry(row, offset)
        with contextlib.suppress(FileNotFoundError):
            if size != BLANK_LENGTH and (head := self.log.read(position, TIMED)):
                return store_time_of(head)
        return -1

    # What the files lack

    def _scan(self) -> None:
        """Once in a round: read the log to its end and keep the entries of what it has. `_find` drops those that files have too."""
        if self._scanned_round == self.round:
            return
        self._scanned_round = self.round
        if self._seen is not None and not self._still_there(self._seen):
            self._rows.clear()  # another store was put in its place
            self._views.clear()
            self._scanned = -1
        start = self._start()
        if start > self._scanned:
            for row in self._rows.values():
                row.tail.clear()  # in files by now
            self._scanned = start
        for row in self._rows.values():
            row.measured = -1
        for found in self._records(self._scanned):
            self._seen = found
            self._scanned = found.offset + found.size
            if is_queued(found.sys_flag):
                self._add(found)
        if sum(len(row.tail) for row in self._rows.values()) > TAILS_MAX:
            for topic, queue_id in list(self._rows):
                self._find(topic, queue_id)

    def _records(self, start: int) -> Iterator[Found]:
        """Up to the first that is not whole, or to where files vanish under us: the oldest do, and next time they are left out."""
        with contextlib.suppress(FileNotFoundError):
            if self._limit is not None and start >= self._limit:
                return
            if self.log.size and any(self.log.read(start, 8)):  # most looks at a log find nothing new; they should cost nothing
                yield from read_records(self.log, start, self._limit)

    def _still_there(self, seen: Found) -> bool:
        base = self.log.base_of(seen.offset)
        if base is None:
            return seen.offset < self.log.start  # gone with an old file, as it should be
        try:
            file = self.log.file(base)
            if self.disk.is_current(file):
                return parse(file.read(seen.offset - base, seen.size), seen.offset, check_crc=False) == seen
            self.files.close()
            return False
        except FileNotFoundError:
            return True

    def _start(self) -> int:
        """A record boundary below which every entry is in a file. It is found before the files are looked at: they only grow."""
        manifest = self._manifest()
        if manifest is not None and self._fits(manifest) and self.log.start <= manifest.end <= self.log.stop:
            if self._scanned >= 0 or self._has_all(manifest):
                return manifest.end
            return self.log.start  # queue files were lost, or never copied
        if self._scanned >= self.log.start:
            return self._scanned
        found = [self._find(topic, queue_id) for topic in self.disk.list(f"{self.root}/consumequeue") for queue_id in self._numbers(topic)]
        rows = [row for row in found if row is not None]
        newest = max((row.last_end for row in rows), default=0)
        place = newest if newest - self.log.start > MARGIN else self.log.start
        for row in rows if place == newest else ():
            at = self._first_from(row, newest - MARGIN)
            if at < row.next:
                place = min(place, self._file_entry(row, at)[0])
        return place

    def _first_from(self, row: Row, log_offset: int) -> int:
        """The first entry in files whose record stands at or after this log offset."""

        def is_from(offset: int) -> bool:
            position, size, _ = self._file_entry(row, offset)
            return size != BLANK_LENGTH and position >= log_offset

        return first_true(row.segments.start // ENTRY_SIZE, row.next, is_from)

    def _has_all(self, manifest: Manifest) -> bool:
        """Is everything there that the broker vouched for? Queues of topics that were deleted since are not missed."""
        for key, count in manifest.queues.items():
            topic, _, queue_id = key.rpartition("@")
            if count and topic in (self._topics() or (topic,)):
                row = self._find(topic, int(queue_id))
                if row is None or row.next < count:
                    return False
        return True

    def _add(self, found: Found) -> None:
        key = (found.topic, found.queue_id)
        row = self._rows.get(key)
        if row is None:
            row = self._find(*key)
        if row is None:
            row = self._rows[key] = Row(*key, Segments(self.files, self._directory(*key), 0))
        if found.offset <= row.last:
            return
        at = found.queue_offset
        if row.tail and (at < row.tail_start or at > row.end + HOLE_MAX):
            row.tail.clear()
        if not row.tail:
            row.tail_start = at
        elif at > row.end:
            row.tail += BLANK_ENTRY * (at - row.end)  # the log lost some in its middle; the others keep their numbers
        else:
            del row.tail[(at - row.tail_start) * ENTRY_SIZE :]
        row.tail += ENTRY.pack(*found.entry(self.delays_ms))
        if len(row.tail) == ENTRY_SIZE and row.measured == self.round:
            self._join(row)

    def _reaches(self, row: Row, stop: int) -> bool:
        """Are all entries before `stop` known? Who wants one queue alone, as a task does, need read the log only from its last entry on."""
        if not row.tail and stop <= row.next:
            return True
        if self._scanned >= 0 or row.last < 0:
            return False
        position, size, _ = self._entry(row, row.end - 1)
        for found in self._records(position + size) if row.end < stop else ():
            if (found.topic, found.queue_id) != (row.topic, row.queue_id) or not is_queued(found.sys_flag):
                continue
            if found.queue_offset != row.end:
                row.tail.clear()
                return False
            row.tail_start = row.tail_start if row.tail else row.next
            row.tail += ENTRY.pack(*found.entry(self.delays_ms))
            if row.end == stop:
                break
        return stop <= row.end

    def _join(self, row: Row) -> None:
        """Files and tail: what is in a file is forgotten here, and of two incarnations the newer counts."""
        if not row.tail:
            return
        positions = np.maximum.accumulate(np.frombuffer(bytes(row.tail), ENTRIES)["offset"])
        # In a file, or gone with its log file since it was derived.
        needless = int(np.searchsorted(positions, max(row.last, self.log.start - 1), side="right"))
        if needless:
            del row.tail[: needless * ENTRY_SIZE]
            row.tail_start += needless
        if row.tail and (row.last < 0 or row.tail_start < row.next):
            # Nothing in the files counts, or the queue was made anew: what is there is of the old one.
            row.next = row.tail_start
            row.first = min(row.first, row.next) if row.last >= 0 else row.next

    def _fill(self, row: Row) -> None:
        """Its files lack entries before the tail. They are derived; what the log has not is shown as blanks, as recovery would."""
        missing = row.tail_start - row.next
        if missing > HOLE_MAX:
            raise Damaged(
                f"{row.topic}/{row.queue_id}: {missing} entries are missing in the queue's files from {row.next} on; "
                "start a broker on this store once, it derives them from the log again"
            )
        filled = bytearray(BLANK_ENTRY * missing)
        stop = self._entry(row, row.tail_start)[0]
        for found in Walk(self.log, row.last_end):  # not the end of the log, so what is damaged here was not just being written
            if found.offset >= stop:
                break
            if isinstance(found, Hole):
                continue
            place = found.queue_offset - row.next
            if (found.topic, found.queue_id) == (row.topic, row.queue_id) and is_queued(found.sys_flag) and 0 <= place < missing:
                filled[place * ENTRY_SIZE : (place + 1) * ENTRY_SIZE] = ENTRY.pack(*found.entry(self.delays_ms))
        row.tail[:0] = filled
        row.tail_start = row.next

    def _manifest(self) -> Manifest | None:
        """Read again only when it was written again: it lists every queue."""
        document = Document(self.disk, f"{self.root}/config/roquet.json")
        try:
            version = self.disk.mtime_ms(document.path), self.disk.size(document.path)
        except FileNotFoundError:
            version = None
        if version is None or self._manifest_version != version:
            self._known_manifest, self._manifest_version = document.load(Manifest.decode), version
        return self._known_manifest

    def _fits(self, manifest: Manifest) -> bool:
        checkpoint = Checkpoint(self.disk, f"{self.root}/checkpoint")
        with contextlib.suppress(FileNotFoundError):
            checkpoint.load()
        return manifest.checkpoint == times_of(checkpoint)


def _read_queues(data: bytes) -> dict[str, int]:
    table = orjson.loads(data)["topicConfigTable"]
    return {topic: min(int(one["readQueueNums"]), QUEUES_MAX) for topic, one in table.items() if int(one["perm"]) & READABLE}
