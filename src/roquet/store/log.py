"""The commit log: every message of every topic in the order of arrival, and the only truth of the store.

Records are staged during a tick and reach their file with one write in `commit`; until then nothing has happened and
`rollback` forgets them. Whoever appends first reserves the place, because a record carries its own physical offset.

    reserve(size) -> offset     where the record will stand (a file that cannot hold it is closed with a blank record)
    staged += record            its bytes, in as many pieces as is handy, exactly that size
    commit()                    one write per file touched, normally one

Marks, each a number that only rises:  flushed <= written <= end,  and  safe = what consumers may see.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from roquet.errors import Refused
from roquet.store.disk import Cold, DiskFile
from roquet.store.segments import Segments
from roquet.store.watermark import Watermark
from roquet.wire.codes import ResponseCode
from roquet.wire.record import BLANK_MAGIC

#  0        4        8
#  +--------+--------+
#  | left   | magic  |   the blank record: `left` bytes up to the end of this file hold nothing
#  +--------+--------+
BLANK = struct.Struct(">iI")
BLANK_SIZE = BLANK.size


class CommitLog:
    """State: `_runs` is what this tick staged, as (file, position in it, pieces), `staged` the pieces of the last of them;
    everything before `written` is in files."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.end = 0
        self.written = 0
        self.flushed = Watermark()
        self.safe = Watermark()
        self._segment_end = 0
        self._runs: list[tuple[DiskFile, int, list[bytes]]] = []
        self.staged: list[bytes] = []

    def start_at(self, offset: int) -> None:
        """Recovery found the end: go on writing here. What stands here was read back, so it counts as written and safe."""
        self.end = self.written = offset
        self.flushed.value = self.safe.value = offset
        if not self.segments.bases:
            self.segments.create(offset - offset % self.segments.size)
        base = self.segments.base_of(offset)
        self._segment_end = offset if base is None else base + self.segments.size
        self._open_run()

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
            for file, position, records in self._runs:
                file.write(position, b"".join(records))
        except OSError:
            self.rollback()
            raise
        self.written = self.end
        if len(self._runs) == 1:
            file, position, records = self._runs[0]
            # The same run goes on behind what was just written.
            self.staged = []
            self._runs[0] = (file, self.end - (self._segment_end - self.segments.size), self.staged)
        else:
            self._open_run()

    def rollback(self) -> None:
        """Forget what was staged since the last commit."""
        self.end = self.written
        base = self.segments.base_of(self.end)
        self._segment_end = self.end if base is None else base + self.segments.size
        self._open_run()

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
        """Close the file with a blank record and go on in the next. Returns where a record of this size stands."""
        if size + BLANK_SIZE > self.segments.size:
            what = f"a record of {size} bytes does not fit into a log file of {self.segments.size}; raise mappedFileSizeCommitLog"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {what}")
        left = self._segment_end - self.end
        if left:
            # Only 8 bytes are written, and they always fit: every record leaves that much room behind it.
            self.staged.append(BLANK.pack(left, BLANK_MAGIC))
        self.end = self._segment_end
        self.segments.create(self.end)
        self._segment_end += self.segments.size
        self.staged = []
        self._runs.append((self.segments.file(self.end), 0, self.staged))
        return self.end

    def _open_run(self) -> None:
        self.staged = []
        base = self.segments.base_of(self.end)
        self._runs = [] if base is None else [(self.segments.file(base), self.end - base, self.staged)]

    def __repr__(self) -> str:
        return f"<CommitLog {self.start}..{self.end} written {self.written} flushed {self.flushed.value} safe {self.safe.value}>"
