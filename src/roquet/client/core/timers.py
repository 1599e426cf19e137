"""What is to happen later, in a core that has no clock of its own: a heap that `tick` empties. Times are steady."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

NEVER = 1 << 62


class Timer:
    """One thing to do. `cancel` makes it nothing."""

    __slots__ = ("due_ms", "work")

    def __init__(self, due_ms: int, work: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.work: Callable[[], None] | None = work

    def cancel(self) -> None:
        self.work = None


class Timers:
    """Work by due time; equal times keep the order in which they were set."""

    def __init__(self) -> None:
        self.on_sooner: Callable[[int], None] | None = None
        """Told the due time whenever the next one comes sooner, so that a shell can move its alarm."""
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0

    def at(self, due_ms: int, work: Callable[[], None]) -> Timer:
        timer = Timer(due_ms, work)
        sooner = not self._heap or due_ms < self._heap[0][0]
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, timer))
        if sooner and self.on_sooner is not None:
            self.on_sooner(due_ms)
        return timer

    @property
    def next_due_ms(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def after(self, due_ms: int) -> list[Timer]:
        """Those that are due after this time."""
        return [timer for due, _, timer in self._heap if due > due_ms and timer.work is not None]

    def run(self, now_ms: int) -> None:
        """Do everything that is due. What is set meanwhile waits for the next run, even when due: a timer cannot starve the rest."""
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap)[2])
        for timer in due:
            work, timer.work = timer.work, None
            if work is not None:
                try:
                    work()
                except Exception:
                    log.exception("timed work failed")

    def clear(self) -> None:
        self._heap.clear()
