"""The timers that are due soon, in memory: the window, which ends at the horizon, and what of it is fired."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from roquet.broker.one_by_one import OneByOne
from roquet.broker.timed.reading import TimerReader
from roquet.broker.timed.taken_back import TakenBack
from roquet.ports import FOREVER
from roquet.store.disk import Cold
from roquet.store.retention import HOUR_MS
from roquet.store.store import Store
from roquet.store.timers import GONE, NOTHING, ROW_SIZE, WINDOW_ROWS, Fired, Mark, Rows, TimerFiles, Window

log = logging.getLogger("roquet.broker")

AHEAD_MS = 10_000
"""Windows are loaded this long before they are due."""
WARM_MS = 2_000
"""Records are read into memory (the system's, not ours) this long before they are due."""
WARM_ROWS = 10_000
PURGE_MS = 1_000
RETRY_MS = 1_000


class Near:
    """State: `window` has the timers due before `horizon`, less those taken back; `done` says which are fired."""

    def __init__(self, store: Store, files: TimerFiles, work: OneByOne, reader: TimerReader, taken_back: TakenBack) -> None:
        """All of these serve those too that are given the window: firing, following, cancelling, moving, saving."""
        self.store = store
        self.files = files
        self.work = work
        self.reader = reader
        self.taken_back = taken_back
        self.window = Window()
        self.horizon = 0
        self.done = Fired((0, -1))
        self.warmed = 0
        self.retry_ms = 0
        """Before this (steady) time nothing is loaded and nothing fired."""
        self._loading: list[Rows] | None = None  # rows that came while a window is loaded
        self._purge_ms = 0

    def after_write(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Rows that are not in the files yet are written first; if that fails, or the work does, they are fresh again."""
        write, failed = self.files.writer()

        def write_and_work() -> Any:
            write()
            return work()

        def written(result: Any) -> None:
            if isinstance(result, Exception):
                failed()
            done(result)

        self.work.do(write_and_work, written)

    @property
    def mark(self) -> Mark:
        return self.done.mark

    @property
    def waiting(self) -> int:
        """Timers that are not fired yet, at most so many: those in files may have been taken back."""
        later = sum(hour.length for number, hour in self.files.hours.items() if number * HOUR_MS >= self.horizon)
        return len(self.window) + later // ROW_SIZE

    def pause(self) -> None:
        self.retry_ms = self.store.steady_ms + RETRY_MS

    def add(self, rows: Rows) -> None:
        """These became known. The files get all of them."""
        self.files.add(rows)
        near = rows[:, 0] < self.horizon
        self._hold(rows[near])
        if self._loading is not None and not near.all():
            self._loading.append(rows[~near])

    def _hold(self, rows: Rows) -> None:
        """These are due before the horizon: keep them in memory."""
        gone = rows[:, 2] == GONE
        for due, offset, _ in rows[gone].tolist():
            self.taken_back.dead[offset] = due
        self.window.add(rows[~gone])

    def load(self, now_ms: int) -> None:
        """Keep the horizon ahead of now."""
        soon = now_ms + AHEAD_MS
        if self._loading is not None or self.horizon >= soon or self.store.steady_ms < self.retry_ms:
            return
        hour = self.files.next_hour(self.horizon)
        if hour is None or hour * HOUR_MS > soon:
            self.horizon = soon
            return
        self._loading = []

        def done(result: tuple[Rows, int] | Exception) -> None:
            came, self._loading = self._loading or [], None
            if isinstance(result, Exception):
                self.pause()
                log.error("timers due from %d on could not be read: %s; trying again", self.horizon, result)
                return
            rows, self.horizon = result
            self.window.add(rows)
            for more in came:
                self._hold(more[more[:, 0] < self.horizon])

        self.after_write(self.files.loader(hour, self.horizon, self.done), done)

    def next_due_ms(self) -> int:
        """No timer is due before this wall time; FOREVER when none is pending."""
        if self._loading is not None:
            return 0
        hour = self.files.next_hour(self.horizon)
        later = FOREVER if hour is None else max(self.horizon, hour * HOUR_MS)
        return min(self.window.due_of(0), later) if len(self.window) else later

    def warm(self, now_ms: int) -> None:
        """Ask the disk for records before their time, so that firing finds them in memory."""
        start, stop = max(self.warmed, now_ms), min(now_ms + WARM_MS, self.horizon)
        if self.reader.busy() or stop - start < WARM_MS // 4:
            return
        self.warmed = stop
        rows = self.window.look(start, stop)[:WARM_ROWS]
        try:
            self.reader.read(rows, decode=False)
        except Cold as cold:
            self.reader.start(cold)

    def tidy(self, now_ms: int) -> None:
        steady_ms = self.store.steady_ms
        if steady_ms < self._purge_ms:
            return
        self._purge_ms = steady_ms + PURGE_MS
        if self.taken_back.dead:
            self.taken_back.keep_dead(self.mark[0], NOTHING)
        if len(self.window) > 2 * WINDOW_ROWS and self._loading is None:
            self._shorten(now_ms)

    def _shorten(self, now_ms: int) -> None:
        """More timers than expected were sent for the hour in memory: its later part stays in its file for now."""
        stop = self.window.due_of(WINDOW_ROWS) // 1_000 * 1_000
        if stop > now_ms + 2 * AHEAD_MS:
            self.window.drop_from(stop)
            self.horizon = stop
            self.taken_back.keep_dead(0, stop)
