"""Moving pending timers out of log files that are to go: they are appended again, and the file goes when that is durable."""

from __future__ import annotations

import logging
from collections.abc import Callable

from roquet.broker.timed.near import Near
from roquet.broker.timed.properties import MOVES
from roquet.broker.writer import Draft, Writer
from roquet.errors import StoreUnavailable
from roquet.store.disk import Cold
from roquet.store.timers import NO_ROWS, Rows
from roquet.wire.arrays import np

log = logging.getLogger("roquet.broker")

MOVE_MAX = 250
"""Timers moved in a tick."""
MOVE_ROWS = 20_000
"""Timers to move that are in memory at once."""
MOVE_AHEAD_MS = 60_000
"""Timers due within this are not moved; the log file waits until they have fired."""
RETRY_MS = 1_000


class Moving:
    """State: `below` is the log offset below which no timer shall stay, 0 when all may. `_movable` are some that must move, found in
    the files; `_gone_since` were taken back since that search began. `moved` counts."""

    def __init__(self, near: Near, writer: Writer) -> None:
        self._near = near
        self._writer = writer
        self.below = 0
        self.moved = 0
        self._finding = False
        self._movable = NO_ROWS
        self._gone_since: set[int] = set()
        self._finish: Callable[[], None] = lambda: None
        self._retry_ms = 0

    def followed(self, offsets: list[int]) -> None:
        """These were taken back."""
        if self._finding or len(self._movable):
            self._gone_since.update(offsets)

    def move(self, now_ms: int) -> None:
        store = self._near.store
        if not self.below or self._near.reader.busy() or store.steady_ms < self._retry_ms or store.trouble.refuse_own():
            return
        if len(self._movable):
            self._move_some(now_ms)
        elif not self._near.taken_back.moving and not self._finding:
            self._find()

    def _pause(self) -> None:
        self._retry_ms = self._near.store.steady_ms + RETRY_MS

    def _find(self) -> None:
        files, below = self._near.files, self.below
        hour = next((number for number, hour in files.hours.items() if hour.first < below), None)
        if hour is None:
            self.below = 0
            return
        end = self._near.store.log.written
        self._finding = True
        self._gone_since.clear()

        def done(result: tuple[Rows, int] | Exception) -> None:
            self._finding = False
            if isinstance(result, Exception):
                self._pause()
                log.warning("timers to be moved could not be read: %s; trying again", result)
                return
            self._movable, first = result

            def finish() -> None:
                if hour in files.hours:
                    # What was put since the search stands behind the log's end of then.
                    files.hours[hour].first = min(first, end)

            self._finish = finish
            if not len(self._movable):
                finish()

        self._near.after_write(files.mover(hour, below, self._near.done, MOVE_ROWS), done)

    def _move_some(self, now_ms: int) -> None:
        rows = self._movable[:MOVE_MAX]
        pending = np.array([self._is_pending(due, offset) for due, offset, _ in rows.tolist()])
        late = rows[:, 0] > now_ms + MOVE_AHEAD_MS
        if (pending & ~late).any():
            self._pause()  # soon due: it fires first
            self._movable = NO_ROWS
            return
        try:
            found = self._near.reader.read(rows[pending])
        except Cold as cold:
            self._near.reader.start(cold)
            return
        moved: dict[int, tuple[int, int]] = {}
        for (due, offset, _), record in found:
            if record is None:
                log.error("the timed message at log offset %d is gone from the log and cannot be moved", offset)
                continue
            draft = Draft.of(record)
            draft.sys_flag = record.sys_flag & ~0x30
            draft.properties[MOVES] = str(int(draft.properties.get(MOVES, "0")) + 1)
            draft.prepared = ~offset
            moved[offset] = (due, self._writer.put_as_is(draft).log_offset)
        try:
            self._near.store.commit()
        except StoreUnavailable as error:
            self._pause()
            log.warning("timers could not be moved out of an old log file: %s; trying again", error)
            return
        self._near.taken_back.moving |= moved
        self.moved += len(moved)
        self._movable = self._movable[MOVE_MAX:]
        if not len(self._movable):
            self._finish()

    def _is_pending(self, due: int, offset: int) -> bool:
        return not self._near.done.has(due, offset) and offset not in self._gone_since and not self._near.taken_back.has(offset)
