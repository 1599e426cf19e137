"""The log of a SYNC_MASTER: safe is what a slave holds too.

    safe = what this node keeps (`local`), as far as a slave has acknowledged it

A slave may be away, or hang. Sends are answered then all the same, with SLAVE_NOT_AVAILABLE at once or FLUSH_SLAVE_TIMEOUT after
slaveTimeout, and both mean that the message is stored here. What was answered so must be seen by consumers, so it counts as safe too:

- no slave counts, and nobody waits: `safe` is `local`;
- what has been here for slaveTimeout is given up waiting for. It never takes longer until consumers see a message.

What still waits when the last slave goes keeps waiting, until a slave is back or the time is over: an answer of success always means
that a slave has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from roquet.store.log import CommitLog
from roquet.store.segments import Segments
from roquet.store.watermark import Watermark

NOTHING = (-1, b"")


class SyncedLog(CommitLog):
    """State: `acked` is what some slave holds; below `_given_up` nobody waits for one any more. `_marks` has where the log ended at some
    moments, and when the time of what was written until then is over."""

    def __init__(self, segments: Segments, *, sync_flush: bool, timeout_ms: Callable[[], int]) -> None:
        super().__init__(segments, sync_flush=sync_flush)
        self._timeout_ms = timeout_ms
        self.slave_counts: Callable[[], bool] = lambda: False
        """Is there a slave that could have what is put now in time?"""
        self.on_written: Callable[[], None] = lambda: None
        self._local = Watermark()
        self.when_local = self._local.when_reached
        self.acked = 0
        self._given_up = 0
        self._marked = 0
        self._marks: deque[tuple[int, int]] = deque()
        self._newest: tuple[int, bytes] = NOTHING

    def start_at(self, offset: int) -> None:
        super().start_at(offset)
        self._newest = NOTHING
        self.acked = self._given_up = self._marked = self._local.value = offset
        self._marks.clear()

    @property
    def alone(self) -> bool:  # type: ignore[override]  # a plain False there, which costs a send nothing
        return not self.slave_counts()

    def note_acked(self, offset: int) -> None:
        """A slave holds the log up to here."""
        if offset > self.acked:
            self.acked = offset
            self._rise()

    def commit(self) -> None:
        before = self.written
        super().commit()
        if self.written > before:
            self.on_written()

    def _write_runs(self) -> None:
        """What is written last is kept: slaves are sent it next, and need not wait until it is read back."""
        self._newest = NOTHING
        if len(self._runs) > 1:
            return super()._write_runs()
        [run] = self._runs
        data = b"".join(run.pieces)
        run.file.write(run.start - run.base, data)
        self._newest = run.start, data

    def truncate(self, to: int) -> None:
        self._newest = NOTHING
        super().truncate(to)

    def read(self, offset: int, size: int) -> bytes:
        start, data = self._newest
        return data if offset == start and size == len(data) else super().read(offset, size)

    def give_up(self) -> None:
        super().give_up()
        self._local.give_up()

    def expire(self, now_ms: int) -> None:
        super().expire(now_ms)
        self._local.expire(now_ms)
        marks = self._marks
        while marks and marks[0][1] <= now_ms:
            self._given_up = max(self._given_up, marks.popleft()[0])
            self._safe.disappoint(self._given_up)  # whoever waits still, for its fsync maybe, was not confirmed by a slave
        if self.written > max(self._marked, self.acked):
            self._marked = self.written
            marks.append((self.written, now_ms + self._timeout_ms()))
        self._rise()

    def _rise(self) -> None:
        local = self.local
        self._local.advance(local)
        if local > self._given_up and not len(self._safe) and self.alone:
            self._given_up = local
        safe = min(local, max(self.acked, self._given_up))
        self._safe.advance(safe)
        self._durable.advance(min(self.flushed, safe))
