"""Marks in the memory of this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from roquet.errors import ClientError
from roquet.idempotence.store import DONE, MINE, Claim, Mark, Standing, State

KEEP_S = 3 * 86_400
"""As long as brokers keep messages by default: what is older does not come again."""
COUNT_MAX = 100_000
RUNNING = Standing(State.RUNNING)


class MemoryStore:
    """Guarantee: in one process no two handlers run for one key at the same time, and a key that is done does not run again while it is
    kept; other processes know nothing of it, and a restart forgets.

    It is kept for `keep_s`, or until `count_max` others were done since. A running mark needs no lease here: it is gone with the process.
    100,000 marks take about 20 MB. Any thread may use it.
    """

    blocks = False
    has_session = False

    def __init__(self, *, keep_s: float = KEEP_S, count_max: int = COUNT_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        if keep_s <= 0 or count_max < 1:
            raise ClientError(f"keep_s={keep_s} and count_max={count_max}; expected are more than 0 seconds and at least 1 mark")
        self.keep_s = keep_s
        self.count_max = count_max
        self._clock = clock
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._done: OrderedDict[str, float] = OrderedDict()  # a dict finds its first entry slowly after many were taken out
        """Until when it is kept; the oldest first."""

    def __len__(self) -> int:
        """Marks that are done and kept."""
        with self._lock:
            self._forget()
            return len(self._done)

    def claim(self, claim: Claim) -> Sequence[Standing]:
        """All of them at once."""
        with self._lock:
            self._forget()
            return [self._claimed(mark.digest) for mark in claim.marks]

    def _claimed(self, digest: str) -> Standing:
        if digest in self._done:
            return DONE
        if digest in self._running:
            return RUNNING
        self._running.add(digest)
        return MINE

    def begin(self, claim: Claim) -> None:
        """Nothing is to be done."""

    def finish(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None:
        """A mark that failed is as if it had never been there."""
        with self._lock:
            until = self._clock() + self.keep_s
            for mark in done:
                self._done[mark.digest] = until
            self._running.difference_update(mark.digest for mark in claim.marks)
            self._forget()

    def fail(self, claim: Claim) -> None:
        """A mark that failed is as if it had never been there."""
        with self._lock:
            self._running.difference_update(mark.digest for mark in claim.marks)

    def _forget(self) -> None:
        now, done = self._clock(), self._done
        while done:
            oldest = next(iter(done))
            if len(done) <= self.count_max and done[oldest] > now:
                return
            del done[oldest]
