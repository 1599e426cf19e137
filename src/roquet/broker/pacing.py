"""How much of the log readers that catch up are given while others send.

An answer to a scan costs the broker little. But who reads that fast is often on the same machine, and what it does with the
bytes takes processors away from the broker and from those who send to it. The broker notices: its thread is ready to run
and waits for a processor. While it waits too long, scans get fewer bytes from tick to tick, and as soon as it does not,
more again. A reader on another machine is never held back, nor is one when nobody sends, nor who reads about as much as is
sent: that is no catching up, and maybe what is sent is what it read.
"""

from __future__ import annotations

import math

AWAITED_MAX = 0.15
"""Share of the time in which the loop had work and no processor: more of it, and those who send feel it."""
SMOOTHING = 0.3
"""Weight of the last tick in that share, and in how much was sent."""
DOWN, UP = 0.75, 1.1
FLOOR = 1024 * 1024
"""Bytes a tick that scans always get: catching up becomes slower, it does not end."""
KEEPING_UP = 3
"""So many times what is sent they always get, too: enough for a few who follow what is sent."""
CEILING = 64 * 1024 * 1024
"""Beyond it there is nothing to limit."""
SENT_BYTES = 32 * 1024
"""That a tick's messages take in the log if it counts as one in which others send. Fewer need no processor of their own."""
QUIET_TICKS = 20
"""So long after the last of them nothing is limited."""


class Pace:
    """State: `limit` bytes a tick, of which `spent` are gone."""

    def __init__(self) -> None:
        self.limit = math.inf
        self.spent = 0
        self._awaited = self._sent = 0.0
        self._log_end = -1
        self._quiet = QUIET_TICKS

    @property
    def open(self) -> bool:
        return self.spent < self.limit

    def processor_awaited(self, share: float) -> None:
        """The shell measured it over the last tick."""
        self._awaited += (share - self._awaited) * SMOOTHING

    def tick(self, log_end: int) -> None:
        sent = log_end - self._log_end if self._log_end >= 0 else 0
        self._log_end = log_end
        self._sent += (sent - self._sent) * SMOOTHING
        self._quiet = 0 if sent >= SENT_BYTES else self._quiet + 1
        if self._quiet >= QUIET_TICKS:
            self.limit = math.inf
        elif self._awaited > AWAITED_MAX:
            self.limit = max(FLOOR, KEEPING_UP * self._sent, min(self.limit, self.spent) * DOWN) if self.spent else self.limit
        else:
            self.limit = self.limit * UP if self.limit < CEILING else math.inf
        self.spent = 0
