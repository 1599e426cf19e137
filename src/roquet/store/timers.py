"""Timer files: which timed messages are pending, by the hour they are due in. Derived from the log, like queues and index.

    timers/
      0000500123          one file for every hour of due time (hours since 1970), rows appended as they become known
      checkpoint.json     what of these files is on disk, and which part of the log they were derived from

    row, 24 bytes little-endian:   due ms 8 | offset of its record in the log 8 | size of that record 8
                                   size -1: the one at this offset is pending no longer (cancelled, moved, delivered before a crash)

A row and the row that takes it back carry the same due time, so they lie in one file. Rows are pending when they come
after the `Mark`: all up to it, in the order of (due, offset), have been fired. (When the clock is set back so is the mark,
and `Fired` remembers what it was.) Memory holds the rows of the next hour (`Window`), never the rest.

Files are never read where the owner's thread would wait: it hands out work for the background, one piece at a time.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import orjson

from roquet.message import Property
from roquet.store.disk import Disk
from roquet.store.fanout import property_of
from roquet.store.retention import HOUR_MS
from roquet.store.scan import Hole, Walk
from roquet.store.segments import Segments
from roquet.wire.arrays import no_rows, np
from roquet.wire.layout import FRONTS, HOSTS_V6, PREPARED_BEFORE_BODY
from roquet.wire.names import TIMER_TOPIC

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger("roquet.store")

Rows: TypeAlias = "npt.NDArray[np.int64]"
"""Shape (n, 3): due, offset, size."""
Mark = tuple[int, int]
"""(due, offset): rows up to and including it are fired. (due, -1): all that are due before."""

TIMER_OUT_MARK = Property.TIMER_OUT_MS + "\x01"
ROW_SIZE = 24
GONE = -1
"""In place of a size: takes back the row of the same due time and offset."""
NOTHING = 1 << 62
"""Larger than every log offset."""
CHUNK_ROWS = 1 << 16
PAST_MAX = 64
"""Times that the clock was set back and has not caught up again."""
WINDOW_ROWS = 1 << 18
"""Rows that a window may hold: 6 MiB. An hour with more than that is taken in several windows."""


def rows_of(values: list[tuple[int, int, int]]) -> Rows:
    return np.array(values, np.int64).reshape(-1, 3)


NO_ROWS = no_rows(3)

Described = tuple[int, int, int | None]
"""(length, first, checksum) of an hour's file. Checkpoints of before have no checksum."""
FileRows = tuple[int, bytes]
"""(position in the file, rows)."""


def after(rows: Rows, mark: Mark) -> npt.NDArray[np.bool_]:
    due, offset = mark
    return np.asarray((rows[:, 0] > due) | ((rows[:, 0] == due) & (rows[:, 1] > offset)))


@dataclass(slots=True)
class Hour:
    length: int = 0
    """Bytes, with what is not written yet."""
    first: int = NOTHING
    """No pending row of this hour points below this log offset."""
    checksum: int = 0
    """CRC-32 of these bytes."""


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """What the files hold. Saved after the syncs that it speaks of, of these files and of the log up to `log_end`."""

    log_end: int
    """Deliveries recorded below this log offset are covered by `mark`."""
    followed: int
    """Entries of the timer queue below this offset are in the files."""
    mark: Mark
    hours: dict[int, Described]
    past: tuple[tuple[int, Mark], ...] = ()
    """As in `Fired`."""

    def encode(self) -> bytes:
        hours = {str(hour): list(values) for hour, values in self.hours.items()}
        past = [[end, *mark] for end, mark in self.past]
        return orjson.dumps({"logEnd": self.log_end, "followed": self.followed, "mark": list(self.mark), "past": past, "hours": hours})

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint:
        value = orjson.loads(data)
        hours: dict[int, Described] = {
            int(hour): (int(length), int(first), int(sums[0]) if sums else None) for hour, (length, first, *sums) in value["hours"].items()
        }
        past = tuple((int(end), (int(due), int(offset))) for end, due, offset in value.get("past", ()))
        return cls(int(value["logEnd"]), int(value["followed"]), (int(value["mark"][0]), int(value["mark"][1])), hours, past)


@dataclass(frozen=True, slots=True)
class Fired:
    """Which rows are fired: those up to the mark, and what was when the mark, with the clock, had been ahead and was put back."""

    mark: Mark
    past: tuple[tuple[int, Mark], ...] = ()
    """(log offset, mark): rows of records below that offset are fired up to that mark, too."""

    def pending(self, rows: Rows) -> npt.NDArray[np.bool_]:
        found = after(rows, self.mark)
        for end, mark in self.past:
            found &= (rows[:, 1] >= end) | after(rows, mark)
        return found

    def has(self, due: int, offset: int) -> bool:
        return (due, offset) <= self.mark or any(offset < end and (due, offset) <= mark for end, mark in self.past)

    def put_back(self, now_ms: int, end: int) -> Fired:
        """The clock was set back to this time. All rows there are stand for records below the log offset `end`."""
        past = [(end, self.mark), *((one, mark) for one, mark in self.past if mark > self.mark)]
        return Fired((now_ms, -1), tuple(past[:PAST_MAX]))

    def risen(self, mark: Mark) -> Fired:
        return Fired(mark, tuple(one for one in self.past if one[1] > mark))


class TimerFiles:
    """State: `hours` is what should be in the files, `_fresh` the part of it that is not written yet. Methods that return
    work take their part of the state at once; the work may block, and only one at a time may be under way."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.disk = disk
        self.directory = directory
        self.hours: dict[int, Hour] = {}
        self.fresh_bytes = 0
        self._fresh: dict[int, list[FileRows]] = {}
        self._dirty: set[int] = set()  # written since their last sync
        self._new_names = False

    def path(self, hour: int) -> str:
        return f"{self.directory}/{hour:010d}"

    # The owner's side

    def add(self, rows: Rows) -> None:
        """Take note of these rows; they reach the files with the next write."""
        if not len(rows):
            return
        hours = rows[:, 0] // HOUR_MS
        order = np.argsort(hours, kind="stable")
        rows, hours = rows[order], hours[order]
        cuts = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), len(rows)]
        firsts = np.minimum.reduceat(np.where(rows[:, 2] == GONE, NOTHING, rows[:, 1]), cuts[:-1]).tolist()
        data = rows.astype("<i8").tobytes()
        for number, start, stop, first in zip(hours[cuts[:-1]].tolist(), cuts, cuts[1:], firsts, strict=False):
            hour = self.hours.get(number)
            if hour is None:
                hour = self.hours[number] = Hour()
            hour.first = min(hour.first, first)
            piece = data[start * ROW_SIZE : stop * ROW_SIZE]
            self._fresh.setdefault(number, []).append((hour.length, piece))
            hour.length += len(piece)
            hour.checksum = zlib.crc32(piece, hour.checksum)
        self.fresh_bytes += len(data)

    def forget_before(self, due_ms: int) -> list[int]:
        """Hours that lie wholly before this time are done with. Their files may be removed once a checkpoint without them is saved."""
        gone = [hour for hour in self.hours if (hour + 1) * HOUR_MS <= due_ms]
        for hour in gone:
            del self.hours[hour]
            self.fresh_bytes -= sum(len(data) for _, data in self._fresh.pop(hour, ()))
            self._dirty.discard(hour)
        return gone

    def next_hour(self, due_ms: int) -> int | None:
        """The earliest hour that may hold rows due at this time or later."""
        return min((hour for hour in self.hours if (hour + 1) * HOUR_MS > due_ms), default=None)

    def oldest(self) -> int:
        """No pending row points below this log offset."""
        return min((hour.first for hour in self.hours.values()), default=NOTHING)

    # Work for the background

    def writer(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """(work that writes what is fresh, what to call here when it failed)."""
        fresh, self._fresh = self._fresh, {}
        size, self.fresh_bytes = self.fresh_bytes, 0
        self._dirty.update(fresh)

        def work() -> None:
            if fresh:
                self.disk.make_dir(self.directory)
            for hour, pieces in fresh.items():
                path = self.path(hour)
                self._new_names = self._new_names or not self.disk.exists(path)
                with closing(self.disk.open(path, size=0)) as file:
                    for at, data in joined(pieces):
                        file.write(at, data)

        def failed() -> None:
            for hour, pieces in fresh.items():
                if hour in self.hours:
                    self._fresh[hour] = pieces + self._fresh.get(hour, [])
            self.fresh_bytes += size

        return work, failed

    def syncer(self) -> Callable[[], None]:
        """Work that makes everything safe that was written before it."""
        dirty, self._dirty = sorted(self._dirty), set()

        def work() -> None:
            for hour in dirty:
                path = self.path(hour)
                if self.disk.exists(path):
                    with closing(self.disk.open(path)) as file:
                        file.sync()
            if self._new_names:
                self.disk.sync_dir(self.directory)
                self._new_names = False

        return work

    def loader(self, number: int, start: int, fired: Fired) -> Callable[[], tuple[Rows, int]]:
        """Work that finds the rows of an hour due from `start` on and not fired: (rows, up to which due time they are all).

        They are all of that hour when they are not too many for a window.
        """
        length, path, end = self.hours[number].length, self.path(number), (number + 1) * HOUR_MS

        def work() -> tuple[Rows, int]:
            stop = end
            if length > WINDOW_ROWS * ROW_SIZE:
                stop = self._fit(path, length, number, start, fired)
            kept: list[Rows] = []
            gone: list[npt.NDArray[np.int64]] = []
            for rows in self._read(path, length):
                inside = (rows[:, 0] >= start) & (rows[:, 0] < stop)
                gone.append(rows[inside & (rows[:, 2] == GONE), 1])
                kept.append(rows[inside & (rows[:, 2] != GONE) & fired.pending(rows)])
            rows = np.concatenate(kept) if kept else NO_ROWS
            return without(rows, gone), stop

        return work

    def _fit(self, path: str, length: int, number: int, start: int, fired: Fired) -> int:
        """A due time, whole seconds into the hour, up to which the rows fit a window (or are those of a single second)."""
        counts = np.zeros(HOUR_MS // 1_000, np.int64)
        for rows in self._read(path, length):
            due = rows[(rows[:, 2] != GONE) & (rows[:, 0] >= start) & fired.pending(rows), 0]
            counts += np.bincount((due - number * HOUR_MS) // 1_000, minlength=len(counts))
        seconds = int(np.searchsorted(np.cumsum(counts), WINDOW_ROWS, "right"))
        first = max(0, start // 1_000 - number * (HOUR_MS // 1_000))
        return number * HOUR_MS + max(seconds, first + 1) * 1_000

    def mover(self, number: int, limit: int, fired: Fired, count_max: int) -> Callable[[], tuple[Rows, int]]:
        """Work that finds pending rows of an hour whose records stand below `limit`: (some of them, the first offset not among them)."""
        length, path = self.hours[number].length, self.path(number)

        def work() -> tuple[Rows, int]:
            kept: list[Rows] = []
            gone: list[npt.NDArray[np.int64]] = []
            first = NOTHING
            for rows in self._read(path, length):
                gone.append(rows[(rows[:, 2] == GONE) & (rows[:, 1] < limit), 1])
                live = rows[(rows[:, 2] != GONE) & fired.pending(rows)]
                first = min(first, int(live[live[:, 1] >= limit, 1].min(initial=NOTHING)))
                kept.append(live[live[:, 1] < limit])
            rows = without(np.concatenate(kept) if kept else NO_ROWS, gone)
            rows = rows[np.argsort(rows[:, 1], kind="stable")]
            if len(rows) > count_max:
                return rows[:count_max], int(rows[count_max, 1])
            return rows, first

        return work

    def _read(self, path: str, length: int) -> Iterator[Rows]:
        if not length:
            return
        with closing(self.disk.open(path)) as file:
            at = 0
            while at < length:
                data = file.read(at, min(CHUNK_ROWS * ROW_SIZE, length - at))
                if len(data) < ROW_SIZE:
                    raise OSError(f"{path} ends at {at + len(data)}, expected {length} bytes")
                data = data[: len(data) - len(data) % ROW_SIZE]
                yield np.frombuffer(data, "<i8").reshape(-1, 3).astype(np.int64)
                at += len(data)

    def remover(self, hours: list[int]) -> Callable[[], None]:
        """Work that removes the files of hours that are done with. One that was set up anew since, after the clock was set back, stays."""

        def work() -> None:
            for hour in hours:
                if hour not in self.hours:
                    self.disk.remove(self.path(hour))

        return work

    # Opening

    def describe(self) -> dict[int, Described]:
        return {number: (hour.length, hour.first, hour.checksum) for number, hour in self.hours.items()}

    def restore(self, hours: dict[int, Described]) -> bool:
        """Take the files as a checkpoint describes them, and drop what it does not know of. False: something is missing or damaged."""
        names = {name: int(name) for name in self.disk.list(self.directory) if name.isdigit()}
        for name, number in names.items():
            if number not in hours:
                self.disk.remove(f"{self.directory}/{name}")
        for number, (length, first, expected) in hours.items():
            path = self.path(number)
            size = self.disk.size(path) if self.disk.exists(path) else 0
            if size < length:
                log.warning("%s has %d bytes, %d were on disk at the last checkpoint", path, size, length)
                return False
            checksum = 0
            for rows in self._read(path, length):
                checksum = zlib.crc32(rows.astype("<i8").tobytes(), checksum)
            if expected is not None and checksum != expected:
                log.error("%s is damaged: its checksum is not that of the last checkpoint", path)
                return False
            if size > length:
                with closing(self.disk.open(path)) as file:
                    file.truncate(length)
            self.hours[number] = Hour(length, first, checksum)
        return True

    def clear(self) -> None:
        self.hours.clear()
        self._fresh.clear()
        self._dirty.clear()
        self.fresh_bytes = 0
        for name in self.disk.list(self.directory):
            self.disk.remove(f"{self.directory}/{name}")


def joined(pieces: list[FileRows]) -> Iterator[FileRows]:
    """Pieces that follow each other as one. (After a failed write they may have gaps, where others were written since.)"""
    start, run = pieces[0][0], [pieces[0][1]]
    end = start + len(pieces[0][1])
    for at, data in pieces[1:]:
        if at != end:
            yield start, b"".join(run)
            start, run = at, []
        run.append(data)
        end = at + len(data)
    yield start, b"".join(run)


def without(rows: Rows, gone: list[npt.NDArray[np.int64]]) -> Rows:
    offsets = np.concatenate(gone) if gone else np.zeros(0, np.int64)
    return rows[~np.isin(rows[:, 1], offsets)] if len(offsets) and len(rows) else rows


class Window:
    """Rows in memory in the order of (due, offset), as a few sorted runs: adding is cheap, and so is taking the first."""

    def __init__(self) -> None:
        self._runs: list[Rows] = []  # of shape (3, n): columns lie together

    def __len__(self) -> int:
        return sum(run.shape[1] for run in self._runs)

    def add(self, rows: Rows) -> None:
        if not len(rows):
            return
        runs = self._runs
        runs.append(ordered(rows.T))
        # A run is at least twice as long as the next, so there are few, and each row is sorted again only now and then.
        while len(runs) > 1 and runs[-2].shape[1] < 2 * runs[-1].shape[1]:
            last = runs.pop()
            runs[-1] = ordered(np.concatenate((runs[-1], last), axis=1))

    def take(self, before_ms: int, count_max: int) -> Rows:
        """Remove and return the first rows due before this time."""
        parts: list[Rows] = []
        sources: list[npt.NDArray[np.int64]] = []
        for number, run in enumerate(self._runs):
            count = min(int(np.searchsorted(run[0], before_ms)), count_max)
            if count:
                parts.append(run[:, :count])
                sources.append(np.full(count, number))
        if not parts:
            return NO_ROWS
        columns, source = np.concatenate(parts, axis=1), np.concatenate(sources)
        order = np.lexsort((columns[1], columns[0]))[:count_max]
        taken = np.bincount(source[order], minlength=len(self._runs)).tolist()
        # Copied, so that a long run's memory goes with its rows and not only with the last of them.
        runs = [run[:, count:] if count * 2 < run.shape[1] else run[:, count:].copy() for run, count in zip(self._runs, taken, strict=True)]
        self._runs = [run for run in runs if run.shape[1]]
        return np.ascontiguousarray(columns[:, order].T)

    def due_of(self, number: int) -> int:
        """When the row of this number, counted in order, is due."""
        return int(np.partition(np.concatenate([run[0] for run in self._runs]), number)[number])

    def drop_from(self, due_ms: int) -> None:
        """Forget the rows due at this time or later."""
        runs = [run[:, : int(np.searchsorted(run[0], due_ms))].copy() for run in self._runs]
        self._runs = [run for run in runs if run.shape[1]]

    def look(self, from_ms: int, before_ms: int) -> Rows:
        """Rows due in this span; they stay."""
        parts = [run[:, slice(*np.searchsorted(run[0], (from_ms, before_ms)))] for run in self._runs]
        return np.concatenate(parts, axis=1).T if parts else NO_ROWS


def ordered(columns: Rows) -> Rows:
    return np.ascontiguousarray(columns[:, np.lexsort((columns[1], columns[0]))])


@dataclass
class Deliveries:
    """The deliveries of timed messages that the log records from an offset on, found by reading it forward. Blocking."""

    segments: Segments
    at: int
    """So far it is read."""
    stop: int

    def __iter__(self) -> Iterator[tuple[int, int] | None]:
        """For each record: (due, offset of the timer's record) of a delivery, None of all others."""
        walk = Walk(self.segments, self.at, check_crc=False, stop=self.stop)
        for found in walk:
            self.at = walk.end
            if isinstance(found, Hole) or found.topic == TIMER_TOPIC or TIMER_OUT_MARK not in found.properties:
                yield None
                continue
            at = FRONTS[found.sys_flag & HOSTS_V6].size - PREPARED_BEFORE_BODY
            prepared = int.from_bytes(self.segments.read(found.offset + at, 8), "big", signed=True)
            due = property_of(found.properties, Property.TIMER_OUT_MS)
            if prepared < 0 and due.isdigit():
                yield int(due), ~prepared
