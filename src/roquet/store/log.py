"""The commit log: every message of every topic in the order of arrival, and the only truth of the store.

Records are staged during a tick and reach their file with one write in `commit`; until then nothing has happened and
`rollback` forgets them. Whoever appends first reserves the place, because a record carries its own physical offset.

    reserve(size) -> offset     where the record will stand (a file that cannot hold it is closed with a blank record)
    staged += record            its bytes, in as many pieces as is handy, exactly that size
    commit()                    one write per file touched, normally one
    rollback(to)                forget what was staged from there on

Marks, each an offset that only grows, up to `end`:

    written     in files
    flushed     on this disk
    safe        may be acknowledged and shown: what that takes is the log's own business (written, flushed, on another node)
    durable     flushed and safe: what saved cursors and derived files may speak of, and what lets old files go

`when_safe` and `when_durable` are the ways to wait, and `on_safe` hears each time that `safe` has risen, before those who wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Protocol

from roquet.errors import Unstorable
from roquet.ports import FOREVER
from roquet.store.disk import Cold, DiskFile
from roquet.store.segments import Segments
from roquet.store.watermark import Wake, Watermark
from roquet.wire.layout import BLANK, BLANK_MAGIC


class Log(Protocol):
    """What the store needs of a log. A replicated one moves `safe` by other rules and is the same to everybody else."""

    segments: Segments
    end: int
    written: int
    flushed: int
    staged: list[bytes]
    lead: bytes
    """Stands before every record; the log fills it in."""
    cuts: int
    """How often it was cut back or begun anew: what was read of it before may not be there any more."""
    led_ms: Callable[[], int] | None
    """Until when (steady) this node surely led, where another one can take its place without its knowledge; -1: it does not lead."""

    @property
    def start(self) -> int: ...

    @property
    def safe(self) -> int: ...

    @property
    def durable(self) -> int: ...

    def when_safe(self, target: int, deadline_ms: int, wake: Wake) -> None: ...

    def when_durable(self, target: int, deadline_ms: int, wake: Wake) -> None: ...

    def when_local(self, target: int, deadline_ms: int, wake: Wake) -> None:
        """For who knows that no other node will have it in time."""

    def on_safe(self, risen: Callable[[], None] | None) -> None:
        """From now on call this when `safe` has risen, or nobody any more."""

    def expire(self, now_ms: int) -> None:
        """Wake those whose deadline (steady) has passed."""

    def give_up(self) -> None:
        """Wake everybody: what they wait for will not come."""

    @property
    def local(self) -> int:
        """Up to here this node alone keeps what its flush level asks for: written or flushed."""

    @property
    def alone(self) -> bool:
        """What is put now should be on another node too before it is acknowledged, and there is none that could have it in time."""

    @property
    def wants_flush(self) -> bool:
        """Does somebody wait for `safe` until what is written is flushed?"""

    def note_flushed(self, target: int) -> None:
        """What `syncer` gave to do is done."""

    def syncer(self) -> tuple[int, Callable[[], None]]: ...

    def start_at(self, offset: int) -> None: ...

    def reserve(self, size: int) -> int: ...

    def has_room(self, size: int) -> bool: ...

    @property
    def room(self) -> int: ...

    def commit(self) -> None: ...

    def rollback(self, to: int | None = None) -> None: ...

    def append_raw(self, data: bytes) -> None: ...

    @property
    def appliable(self) -> int:
        """Up to here the bytes of another node may get their queue entries (`store/applier.py`)."""

    def note_applied(self, to: int | None) -> None:
        """The records of another node have their entries up to here. None: this node puts its own records."""

    def truncate(self, to: int) -> None: ...

    def read(self, offset: int, size: int) -> bytes: ...

    def read_into(self, offset: int, room: memoryview) -> None: ...

    def together(self, cold: Cold, places: Iterable[tuple[int, int]]) -> Cold: ...


class MovedOut:
    """What was moved or delivered out of old files must be durable before they go.

    State: below `_below` nothing is needed any more, once the log is durable up to `_target`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._below = self._target = 0

    def is_durable(self, below: int) -> bool:
        """Nothing is needed below this offset, says the caller: may the files up to there go?"""
        if below > self._below:
            self._below, self._target = below, self._log.written
        return self._log.durable >= self._target


class Run:
    """What was staged for one file: pieces that stand one after another from log offset `start` on."""

    __slots__ = ("base", "file", "pieces", "start")

    def __init__(self, file: DiskFile, base: int, start: int, pieces: list[bytes]) -> None:
        self.file = file
        self.base = base
        self.start = start
        self.pieces = pieces


class CommitLog:
    """The log of a broker that stands alone: safe is what is written, or flushed if `sync_flush`.

    State: `_runs` is what this tick staged, `staged` the pieces of the last of them; everything before `written` is in files.
    The first run's file is the one that `written` stands in, and stays open: going back needs no disk."""

    def __init__(self, segments: Segments, *, sync_flush: bool = False, lead: bytes = b"") -> None:
        self.segments = segments
        self.lead = lead
        self.cuts = 0
        self.led_ms: Callable[[], int] | None = None
        self.end = 0
        self.written = 0
        self.flushed = 0
        self._sync_flush = sync_flush
        self._safe = Watermark()
        self._durable = Watermark()
        self.when_safe, self.when_durable = self._safe.when_reached, self._durable.when_reached
        self.when_local = self.when_safe
        self._applied: int | None = None
        self._taken_back: int | None = None
        """While a flush is under way: from here on it does not count, since that was taken back meanwhile."""
        self._segment_end = 0
        self._runs: list[Run] = []
        self.staged: list[bytes] = []
        self.soiled: list[tuple[DiskFile, int, int]] = []
        """(file, position, size) behind the end where a failed write may have left something."""

    def start_at(self, offset: int) -> None:
        """Recovery found the end: go on writing here. What stands here was read back, so it counts as written and safe."""
        self.cuts += 1
        self._forget_flush_from(offset)
        self.end = self.written = self.flushed = offset
        self._safe.value = self._durable.value = offset
        self._stand_at(offset)

    @property
    def start(self) -> int:
        """The oldest offset that is still there."""
        return self.segments.start

    # Marks

    safe = property(attrgetter("_safe.value"))  # asked twice for each read with sends: a function of ours would cost more
    durable = property(attrgetter("_durable.value"))
    alone = False

    def on_safe(self, risen: Callable[[], None] | None) -> None:
        self._safe.on_rise = risen

    def expire(self, now_ms: int) -> None:
        self._safe.expire(now_ms)
        self._durable.expire(now_ms)

    def give_up(self) -> None:
        self._safe.give_up()
        self._durable.give_up()

    @property
    def wants_flush(self) -> bool:
        return self._sync_flush and self.written > self.flushed

    def note_flushed(self, target: int) -> None:
        self.flushed = max(self.flushed, target if self._taken_back is None else min(target, self._taken_back))
        self._taken_back = None
        self._rise()

    @property
    def local(self) -> int:
        return self.flushed if self._sync_flush else self.written

    @property
    def appliable(self) -> int:
        return self.local

    def note_applied(self, to: int | None) -> None:
        """Of another node's bytes only whole records are safe: what is half may be taken back."""
        self._applied = to
        self._rise()

    def _rise(self) -> None:
        safe = self.flushed if self._sync_flush else self.written  # which is `local`, at each write
        if self._applied is not None:
            safe = min(safe, self._applied)
        self._safe.advance(safe)
        durable = self.flushed
        if durable > self._durable.value:
            self._durable.advance(durable if durable < safe else safe)

    # Writing

    def reserve(self, size: int) -> int:
        offset = self.end
        if offset + size + BLANK.size > self._segment_end:
            offset = self._roll(size)
        self.end = offset + size
        return offset

    def has_room(self, size: int) -> bool:
        """Would this many bytes stand together in the present file?"""
        return size <= self.room

    @property
    def room(self) -> int:
        """Bytes of records that the present file still holds."""
        return self._segment_end - self.end - BLANK.size

    def commit(self) -> None:
        """Write what was staged. On OSError nothing was appended, and the caller must tell whoever waits."""
        if self.end == self.written:
            return
        try:
            if self.soiled:
                self._wipe()
            self._write_runs()
        except OSError:
            self.soiled += [(run.file, run.start - run.base, sum(map(len, run.pieces))) for run in self._runs]
            self.rollback(self.written)
            with contextlib.suppress(OSError):
                self._wipe()
            raise
        self.written = self.end
        del self._runs[:-1]
        [run] = self._runs  # what comes next goes into its file
        run.start, run.pieces = self.end, []
        self.staged = run.pieces
        self._rise()

    def _write_runs(self) -> None:
        for run in self._runs:
            run.file.write(run.start - run.base, b"".join(run.pieces))

    def append_raw(self, data: bytes) -> None:
        """Bytes as the log of another node has them from `end` on; written at once. They may end anywhere, also behind a file's end."""
        if self.end != self.written:
            raise ValueError(f"bytes of another node at {self.end}, where messages of this one are staged since {self.written}")
        left = memoryview(data)
        try:
            while left:
                if self.end == self._segment_end:
                    self._begin_file(self.segments.create(self.end))
                piece = left[: self._segment_end - self.end]
                self.staged.append(bytes(piece))
                self.end += len(piece)
                left = left[len(piece) :]
        except OSError:
            self.rollback()
            raise
        self.commit()

    def truncate(self, to: int) -> None:
        """Take back what is written behind this: another node's log goes on otherwise. What is safe is never taken back."""
        if not self.safe <= to <= self.written:
            raise ValueError(f"the log cannot end at {to}: it is safe up to {self.safe} and written up to {self.written}")
        self.rollback()
        self.cuts += 1
        self.segments.drop_from(to)
        base = self.segments.base_of(to)
        if base is not None:
            self.segments.file(base).write(to - base, bytes(min(self.written, base + self.segments.size) - to))
        self.end = self.written = to
        self.flushed = min(self.flushed, to)
        self._forget_flush_from(to)
        self._safe.forget_behind(to)
        self._durable.forget_behind(to)
        self._stand_at(to)

    def _forget_flush_from(self, offset: int) -> None:
        if self._taken_back is not None:
            self._taken_back = min(self._taken_back, offset)

    def _wipe(self) -> None:
        """Of a write that failed a part may stand in the file: whole records that were refused, which would count again once a new
        one ends where one of them begins. As long as they cannot be overwritten nothing else is written."""
        while self.soiled:
            file, position, size = self.soiled[-1]
            file.write(position, bytes(size))
            self.soiled.pop()

    def rollback(self, to: int | None = None) -> None:
        """Forget what was staged at or behind this offset, where a record begins; by default since the last commit."""
        to = self.written if to is None else max(to, self.written)
        if to == self.end or not self._runs:
            return
        while len(self._runs) > 1 and self._runs[-1].start > to:
            self._runs.pop()
        last = self._runs[-1]
        at = kept = 0
        while at < len(last.pieces) and last.start + kept < to:
            kept += len(last.pieces[at])
            at += 1
        del last.pieces[at:]
        self.end, self.staged = to, last.pieces
        self._segment_end = last.base + self.segments.size

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes of one file. Raises Cold when they are not in memory, and LookupError when they are not in the log."""
        file, place = self._find(offset, size)
        return file.read_now(place, size)

    def read_into(self, offset: int, room: memoryview) -> None:
        """The same into this memory."""
        file, place = self._find(offset, len(room))
        file.read_into(place, room)

    def together(self, cold: Cold, places: Iterable[tuple[int, int]]) -> Cold:
        """One trip to the disk for a read that was cold and for those of these (offset, size) that are, as they are wanted next."""
        fetches = [cold.fetch]
        for offset, size in places:
            try:
                self.read(offset, size)
            except Cold as another:
                fetches.append(another.fetch)
            except LookupError:
                continue
        return Cold(lambda: [fetch() for fetch in fetches])

    def _find(self, offset: int, size: int) -> tuple[DiskFile, int]:
        if size < 0 or offset < self.segments.start or offset + size > self.written:
            raise LookupError(f"offset {offset} with {size} bytes is not in the log, which holds {self.start} to {self.written}")
        base = self.segments.base_of(offset)
        if base is None or offset + size > base + self.segments.size:
            raise LookupError(f"{size} bytes at offset {offset} are not inside one file")
        return self.segments.file(base), offset - base

    def syncer(self) -> tuple[int, Callable[[], None]]:
        """What a flush must do now, as (the mark it reaches, work that may block)."""
        size, flushed = self.segments.size, self.flushed
        self._taken_back = FOREVER
        # One that is new and empty too: a clean stop vouches for its length.
        files = [self.segments.file(base) for base in self.segments.bases if flushed < base + size and base <= self.written]
        disk, directory = self.segments.files.disk, self.segments.directory if self.segments.new_since_sync else None
        self.segments.new_since_sync = False

        def work() -> None:
            for file in files:
                file.sync()
            if directory is not None:
                disk.sync_dir(directory)

        return self.written, work

    def _roll(self, size: int) -> int:
        """Close the file with a blank record and go on in the next. Returns where a record of this size stands.

        On OSError nothing has changed: the file is made before anything else happens.
        """
        if size + BLANK.size > self.segments.size:
            limit = self.segments.size - BLANK.size
            raise Unstorable(f"its record has {size} bytes, a log file holds {limit}; raise mappedFileSizeCommitLog")
        base = self._segment_end
        file = self.segments.create(base)
        left = base - self.end
        if left:
            # Only 8 bytes are written, and they always fit: every record leaves that much room behind it.
            self.staged.append(self._blank(left))
        self.end = base
        self._begin_file(file)
        return base

    def _blank(self, left: int) -> bytes:
        """What tells that the rest of a file is empty."""
        return BLANK.pack(left, BLANK_MAGIC)

    def _begin_file(self, file: DiskFile) -> None:
        """What is staged next goes into this one, which begins where the present one ends."""
        base = self._segment_end
        self._segment_end += self.segments.size
        self.staged = []
        self._runs.append(Run(file, base, base, self.staged))

    def _stand_at(self, offset: int) -> None:
        if not self.segments.bases:
            self.segments.create(offset - offset % self.segments.size)
        base = self.segments.base_of(offset)
        self._segment_end = offset if base is None else base + self.segments.size
        if base is None:  # the last file is full
            self._runs, self.staged = [], []
        else:
            self.staged = []
            self._runs = [Run(self.segments.file(base), base, offset, self.staged)]

    def __repr__(self) -> str:
        return f"<CommitLog {self.start}..{self.end} written {self.written} flushed {self.flushed} safe {self.safe}>"
