"""A log that is to go on as another node's: it is cut back to where both agree, or begun anew. What goes is kept in lost/.

Both wait for the disk. They come before anything is copied, once, and only where two nodes went apart.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from roquet.store import lost
from roquet.store.disk import blocking
from roquet.store.recovery import first_at_or_after
from roquet.store.scan import read_records
from roquet.store.segments import file_name
from roquet.wire.layout import BLANK_LENGTH

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")


class Rejoining:
    def __init__(self, store: Store) -> None:
        self._store = store

    def begin_at(self, offset: int) -> None:
        """Begin the log anew at this offset, where a file begins. Raises ValueError when none does, and OSError."""
        store, segments = self._store, self._store.log.segments
        if offset % segments.size:
            raise ValueError(
                f"the other log begins at {offset}, and none of this store's files of {segments.size} bytes does: set "
                "mappedFileSizeCommitLog as the master has it"
            )
        self._need_rest()
        store.derived.cut_back(store.log.start)  # a sync that still waits vouches for nothing any more
        if store.log.written > store.log.start:
            start, end = store.log.start, store.log.written
            log.error("the log from %d to %d is older than all that the master has: it is moved to lost/", start, end)
            directory = f"{store.root}/lost"
            store.disk.make_dir(directory)
            store.applier.cut_back(store.log.start)
            for base in list(segments.bases):
                segments.move(base, f"{directory}/{file_name(base)}.{store.clock.now_ms()}")
        segments.drop_from(0)
        self._end_at(offset, offset)

    def cut_back(self, offset: int) -> int:
        """Let the log end with the last whole record before this offset. Returns where that is. Raises OSError."""
        self._need_rest()
        store, segments, end = self._store, self._store.log.segments, self.last_whole(offset)
        applied = store.applier.cut_back(end)
        # Before the log: should a crash come between, the log has more than the manifest speaks of, and not less.
        store.derived.save_manifest(clean=False)
        lost.cut(store.disk, segments, store.root, end, store.clock.now_ms(), "and the master's log goes on otherwise there")
        self._end_at(end, applied)
        return end

    def _need_rest(self) -> None:
        """The manifest must not be written meanwhile: it would vouch for what is about to go."""
        if self._store.derived.busy:
            raise BlockingIOError(errno.EAGAIN, "queues and index are being synced; it is tried again")

    def last_whole(self, offset: int) -> int:
        """Where the last whole record before this offset ends."""
        segments = self._store.log.segments
        base = segments.base_of(offset)
        if base is None or offset == base:
            return offset
        end = self._last_in_queues(base, offset)
        for found in read_records(segments, end, offset):
            if found.offset + found.size > offset:
                break
            end = found.offset + found.size
        return end

    def _last_in_queues(self, base: int, offset: int) -> int:
        """Where the last record of a queue ends that is whole before this offset, in this file: from there on the log itself is read, and
        not from the file's beginning, which may be a gigabyte before."""
        end = base
        for queue in self._store.queues.values():
            number = first_at_or_after(queue, offset)
            entry = blocking(queue.entry, number - 1) if number > queue.first else None
            if entry is not None and entry[1] != BLANK_LENGTH and base <= entry[0] and entry[0] + entry[1] <= offset:
                end = max(end, entry[0] + entry[1])
        return end

    def _end_at(self, offset: int, applied: int) -> None:
        store = self._store
        store.log.start_at(offset)
        _, sync = store.log.syncer()
        sync()
        store.applier.follow(applied)
        store.derived.checkpointed = -1
        store.derived.save_manifest(clean=False)
