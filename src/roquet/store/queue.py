"""A consume queue: for one queue of one topic, where each of its messages stands in the log.

    0               8       12              20
    +---------------+-------+---------------+
    | log offset    | size  | tag hash      |   fixed width, so entry n starts at n * 20 of the row of files
    +---------------+-------+---------------+

New entries live in `tail` and are written in batches; a read looks into the tail, then into the file. All of it can be
derived from the log again (`store/recovery.py`), so nothing here needs to be synced before a message is acknowledged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from roquet.store.segments import Segments
from roquet.store.times import first_true
from roquet.wire.layout import BLANK_LENGTH, ENTRY

ENTRY_SIZE = ENTRY.size
BLANK_ENTRY = ENTRY.pack(0, BLANK_LENGTH, 0)
"""Fills a file before the first entry of a queue that starts in its middle, as upstream does; and stands for a message that the
log lost, so that the others keep their numbers."""


def unpack_entry(raw: bytes) -> tuple[int, int, int] | None:
    """(log offset, size, tag hash), None when it is not there."""
    if len(raw) < ENTRY_SIZE:
        return None
    position, size, tag_hash = ENTRY.unpack(raw)
    return position, size, tag_hash


def stored_entry(segments: Segments, offset: int) -> tuple[int, int, int] | None:
    """As its file has it, None when there is none. May block."""
    return unpack_entry(segments.read(offset * ENTRY_SIZE, ENTRY_SIZE))


def entries_end(segments: Segments) -> int:
    """Where the entries in its files end: at the first of the newest file that was never written. May block."""
    if not segments.bases:
        return 0
    newest = segments.bases[-1] // ENTRY_SIZE
    return first_true(newest, newest + segments.size // ENTRY_SIZE, lambda offset: (stored_entry(segments, offset) or (0, 0, 0))[1] <= 0)


class ConsumeQueue:
    """Offsets count entries:  first <= visible <= next.  `first` is the oldest whose message is still in the log, `visible`
    ends what consumers may see, `next` is the offset that the next message gets."""

    __slots__ = ("first", "next", "on_visible", "queue_id", "segments", "synced", "tail", "tail_start", "topic", "topic_field", "visible")

    def __init__(self, topic: str, queue_id: int, segments: Segments) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        name = topic.encode()
        # As the stored record has it (V1); longer names than V1 can hold are refused before they get here.
        self.topic_field = bytes((len(name),)) + name
        self.first = self.visible = self.next = 0
        self.tail = bytearray()
        self.tail_start = 0
        self.synced = 0  # entries before this one are in files that were synced since they were written
        self.on_visible: Callable[[ConsumeQueue], None] | None = None
        """Set while somebody waits for new messages; called when `visible` has risen."""

    # The live append is spelled out in store.staging: tail += ENTRY.pack(...); next += 1.

    def append(self, log_offset: int, size: int, tag_hash: int) -> None:
        self.tail += ENTRY.pack(log_offset, size, tag_hash)
        self.next += 1

    def append_blanks(self, count: int) -> None:
        self.tail += BLANK_ENTRY * count
        self.next += count

    def read(self, offset: int, count_max: int) -> bytes:
        """Entries from this offset, as many as lie together in one file and the tail; empty outside first..next. May raise Cold."""
        if offset < self.first or offset >= self.next or count_max <= 0:
            return b""
        if offset >= self.tail_start:
            at = (offset - self.tail_start) * ENTRY_SIZE
            return bytes(self.tail[at : at + count_max * ENTRY_SIZE])
        position = offset * ENTRY_SIZE
        base = self.segments.base_of(position)
        if base is None:
            return b""
        count = min(count_max, self.tail_start - offset, (base + self.segments.size - position) // ENTRY_SIZE)
        found = self.segments.file(base).read_now(position - base, count * ENTRY_SIZE)
        if offset + count == self.tail_start and count < count_max and self.tail:
            found += self.tail[: (count_max - count) * ENTRY_SIZE]
        return found

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        return unpack_entry(self.read(offset, 1))

    def write_tail(self, stop: int | None = None) -> None:
        """Move the tail into its file(s), its entries before `stop` (None: all). On OSError the tail stays and is tried again."""
        size = self.segments.size
        tail = self.tail if stop is None else self.tail[: max(0, stop - self.tail_start) * ENTRY_SIZE]
        done = 0
        while done < len(tail):
            position = self.tail_start * ENTRY_SIZE + done
            base = position - position % size
            if base >= self.segments.stop or not self.segments.bases:
                fresh = not self.segments.bases
                file = self.segments.create(base)
                if fresh and position > base:
                    file.write(0, BLANK_ENTRY * ((position - base) // ENTRY_SIZE))
            else:
                file = self.segments.file(base)
            piece = tail[done : done + base + size - position]
            file.write(position - base, piece)
            done += len(piece)
        self.tail_start += len(tail) // ENTRY_SIZE
        self.tail = self.tail[len(tail) :]

    def replace(self, offset: int, entry: bytes) -> None:
        """Put this entry in the place of the one of that number."""
        if offset >= self.tail_start:
            at = (offset - self.tail_start) * ENTRY_SIZE
            self.tail[at : at + ENTRY_SIZE] = entry
            return
        position = offset * ENTRY_SIZE
        base = self.segments.base_of(position)
        if base is not None:
            self.segments.file(base).write(position - base, entry)
            self.synced = min(self.synced, offset)

    def syncer(self, stop: int | None = None) -> tuple[Callable[[], None], Callable[[], None]]:
        """(work that makes the written entries safe and may block, what to call when it was not done). Files are opened for it one
        after the other: of ten thousand queues not all can be open at once. `stop`: no entry from here on counts as safe by it."""
        segments, before, named = self.segments, self.synced, self.segments.new_since_sync
        bases = [base for base in segments.bases if base + segments.size > before * ENTRY_SIZE]
        self.synced = self.tail_start if stop is None else max(before, min(stop, self.tail_start))
        segments.new_since_sync = False
        disk, directory = segments.files.disk, segments.directory

        def work() -> None:
            for base in bases:
                try:
                    file = disk.open(segments.path(base))
                except FileNotFoundError:
                    if base in segments.bases:
                        raise  # nobody removed it who may
                    continue
                with contextlib.closing(file):
                    file.sync()
            if named:
                with contextlib.suppress(FileNotFoundError):  # its topic was deleted meanwhile: there is nothing left to keep
                    disk.sync_dir(directory)
                    # The directory may be new itself, and its topic's too: their names must be as safe.
                    topic = directory.rpartition("/")[0]
                    disk.sync_dir(topic)
                    disk.sync_dir(topic.rpartition("/")[0])

        def not_done() -> None:
            self.synced = min(self.synced, before)
            segments.new_since_sync |= named

        return work, not_done

    def start_at(self, offset: int) -> None:
        """An empty queue whose first entry will be this one. `keep_number` writes that into its files."""
        self.segments.drop_all()
        self.first = self.visible = self.next = self.tail_start = self.synced = offset
        self.tail = bytearray()

    def keep_number(self) -> None:
        """An empty queue with no file would begin at 0 again after the next restart. May block; raises OSError."""
        if self.next and not self.segments.bases and not self.tail:
            position = self.next * ENTRY_SIZE
            base = position - position % self.segments.size
            self.segments.create(base).write(0, BLANK_ENTRY * ((position - base) // ENTRY_SIZE))

    def truncate(self, offset: int) -> None:
        """Forget this entry and all behind it, on disk too: a stale entry must not come back after a restart. On OSError it may, and
        is forgotten in memory all the same."""
        if offset >= self.next:
            return
        end, in_files = self.next, offset < self.tail_start
        self.next = offset
        self.visible = min(self.visible, offset)
        self.first = min(self.first, offset)
        if not in_files:
            del self.tail[(offset - self.tail_start) * ENTRY_SIZE :]
            return
        self.tail, self.tail_start = bytearray(), offset
        self.synced = min(self.synced, offset)
        position = offset * ENTRY_SIZE
        self.segments.drop_from(position)
        base = self.segments.base_of(position)
        if base is not None:
            stop = min(end * ENTRY_SIZE, base + self.segments.size)
            self.segments.file(base).write(position - base, bytes(stop - position))

    def __repr__(self) -> str:
        tail = len(self.tail) // ENTRY_SIZE
        return f"<ConsumeQueue {self.topic}/{self.queue_id} {self.first}..{self.visible}..{self.next}, {tail} in the tail>"
