"""The commit log: every message of every topic in the order of arrival, and the only truth of the store.

Records are staged during a tick and reach their file with one write in `commit`; until then nothing has happened and
`rollback` forgets them. Whoever appends first reserves the place, because a record carries its own physical offset.

    reserve(size) -> offset     where the record will stand (a file that cannot hold it is closed with a blank record)
    staged += record            its bytes, in as many pieces as is handy, exactly that size
    commit()                    one write per file touched, normally one
    rollback(to)                forget what was staged from there on

Marks, each a number that only rises:  flushed <= written <= end,  and  safe = what consumers may see.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from roquet.errors import Unstorable
from roquet.store.disk import Cold, DiskFile
from roquet.store.segments import Segments
from roquet.store.watermark import Watermark
from roquet.wire.record import BLANK_MAGIC

#  0        4        8
#  +--------+--------+
#  | left   | magic  |   the blank record: `left` bytes up to the end of this file hold nothing
#  +--------+--------+
BLANK = struct.Struct(">iI")
BLANK_SIZE = BLANK.size


class Run(NamedTuple):
    """What was staged for one file: pieces that stand one after another from log offset `start` on."""

    file: DiskFile
    base: int
    start: int
    pieces: list[bytes]


class CommitLog:
    """State: `_runs` is what this tick staged, `staged` the pieces of the last of them; everything before `written` is in files.
    The first run's file is the one that `written` stands in, and stays open: going back needs no disk."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.end = 0
        self.written = 0
        self.flushed = Watermark()
        self.safe = Watermark()
        self._segment_end = 0
        self._runs: list[Run] = []
        self.staged: list[bytes] = []
        self.soiled: list[tuple[DiskFile, int, int]] = []
        """(file, position, size) behind the end where a failed write may have left something."""

    def start_at(self, offset: int) -> None:
        """Recovery found the end: go on writing here. What stands here was read back, so it counts as written and safe."""
        self.end = self.written = offset
        self.flushed.value = self.safe.value = offset
        if not self.segments.bases:
            self.segments.create(offset - offset % self.segments.size)
        base = self.segments.base_of(offset)
        self._segment_end = offset if base is None else base + self.segments.size
        if base is not None:
            self._go_on(self.segments.file(base), base)

    @property
    def start(self) -> int:
        """The oldest offset that is still there."""
        return self.segments.start

    def reserve(self, size: int) -> int:
        offset = self.end
        if offset + size + BLANK_SIZE > self._segment_end:
            offset = self._roll(size)
        self.end = offset + size
        return offset

    def has_room(self, size: int) -> bool:
        """Would this many bytes stand together in the present file?"""
        return self.end + size + BLANK_SIZE <= self._segment_end

    def commit(self) -> None:
        """Write what was staged. On OSError nothing was appended, and the caller must tell whoever waits."""
        if self.end == self.written:
            return
        try:
            if self.soiled:
                self._wipe()
            for run in self._runs:
                run.file.write(run.start - run.base, b"".join(run.pieces))
        except OSError:
            self.soiled += [(run.file, run.start - run.base, sum(map(len, run.pieces))) for run in self._runs]
            self.rollback(self.written)
            with contextlib.suppress(OSError):
                self._wipe()
            raise
        self.written = self.end
        last = self._runs[-1]
        self._go_on(last.file, last.base)

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

        def fetch() -> None:
            for one in fetches:
                one()

        return Cold(fetch)

    def _find(self, offset: int, size: int) -> tuple[DiskFile, int]:
        if size < 0 or offset < self.segments.start or offset + size > self.written:
            raise LookupError(f"offset {offset} with {size} bytes is not in the log, which holds {self.start} to {self.written}")
        base = self.segments.base_of(offset)
        if base is None or offset + size > base + self.segments.size:
            raise LookupError(f"{size} bytes at offset {offset} are not inside one file")
        return self.segments.file(base), offset - base

    def syncer(self) -> tuple[int, Callable[[], None]]:
        """What a flush must do now, as (the mark it reaches, work that may block)."""
        size, flushed = self.segments.size, self.flushed.value
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
        if size + BLANK_SIZE > self.segments.size:
            limit = self.segments.size - BLANK_SIZE
            raise Unstorable(f"its record has {size} bytes, a log file holds {limit}; raise mappedFileSizeCommitLog")
        base = self._segment_end
        file = self.segments.create(base)
        left = base - self.end
        if left:
            # Only 8 bytes are written, and they always fit: every record leaves that much room behind it.
            self.staged.append(BLANK.pack(left, BLANK_MAGIC))
        self.end = base
        self._segment_end += self.segments.size
        self.staged = []
        self._runs.append(Run(file, base, base, self.staged))
        return base

    def _go_on(self, file: DiskFile, base: int) -> None:
        """Nothing is staged, and what comes next goes into this file."""
        self.staged = []
        self._runs = [Run(file, base, self.end, self.staged)]

    def __repr__(self) -> str:
        return f"<CommitLog {self.start}..{self.end} written {self.written} flushed {self.flushed.value} safe {self.safe.value}>"
