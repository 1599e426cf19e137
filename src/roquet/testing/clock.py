"""A clock that somebody turns by hand."""

from __future__ import annotations

START_MS = 1_800_000_000_000


class ManualClock:
    """Stands still until `forward`. The real one is `roquet.clock.SystemClock`.

    Time that passes is `ms`, and both clocks show it. `step` sets the wall clock alone, as an operator or NTP does.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self.ms = now_ms
        self.stepped_ms = 0

    def now_ms(self) -> int:
        return self.ms + self.stepped_ms

    def steady_ms(self) -> int:
        return self.ms

    def forward(self, ms: int) -> None:
        self.ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock by so much, back when it is negative. No time passes."""
        self.stepped_ms += ms

    def __repr__(self) -> str:
        return f"<ManualClock {self.now_ms()}>"
