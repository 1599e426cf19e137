"""A clock that somebody turns by hand."""

from __future__ import annotations

START_MS = 1_800_000_000_000


class ManualClock:
    """Stands still until `forward`. The real one is `roquet.clock.SystemClock`."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def forward(self, ms: int) -> None:
        self.ms += ms

    def __repr__(self) -> str:
        return f"<ManualClock {self.ms}>"
