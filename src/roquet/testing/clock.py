"""A clock that somebody turns by hand."""

from __future__ import annotations

START_MS = 1_800_000_000_000


class ManualClock:
    """Stands still until `forward`. The real one is `roquet.clock.SystemClock`.

    Time that passes is `ms`, and both clocks show it. `step` sets the wall clock alone, as an operator or NTP does.
    """

    def __init__(self, now_ms: int = START_MS, *, look_ms: int = 0, wall_look_ms: int = 0) -> None:
        self.ms = now_ms
        self.stepped_ms = 0
        self.look_ms = look_ms
        """So long takes what is done before each look at the steady clock."""
        self.wall_look_ms = wall_look_ms
        """And before each look at the wall clock: the process may be stopped between two looks."""

    def now_ms(self) -> int:
        self.ms += self.wall_look_ms
        return self.ms + self.stepped_ms

    def steady_ms(self) -> int:
        self.ms += self.look_ms
        return self.ms

    def forward(self, ms: int) -> None:
        self.ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock by so much, back when it is negative. No time passes."""
        self.stepped_ms += ms
