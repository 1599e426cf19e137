"""Steps of the wall clock: somebody, or NTP after a boot, sets it forward or back while the process runs.

Only the difference between the two clocks of a host tells a step from time that passed. (A machine that slept looks like a
step forward: steady time stands still meanwhile.)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from roquet.ports import Clock

STEP_MS = 1_000
"""A smaller change from one look to the next is a clock that is being adjusted."""
UNSURE_MS = 200
"""When reading the two clocks takes this long they cannot be compared: the process was stopped in between."""


class WallWatch:
    """State: wall minus steady time, as it was when the process began and at the last look."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._first_ms = self._last_ms = clock.now_ms() - clock.steady_ms()

    def look(self) -> int:
        """By how much the wall clock was set since the last look, negative for back; 0 for not at all. Called at every tick."""
        before_ms = self.clock.steady_ms()
        now_ms = self.clock.now_ms()
        if self.clock.steady_ms() - before_ms > UNSURE_MS:
            return 0
        ahead_ms = now_ms - before_ms
        stepped_ms, self._last_ms = ahead_ms - self._last_ms, ahead_ms
        return stepped_ms if abs(stepped_ms) > STEP_MS else 0

    def slept(self, ms: int) -> None:
        """The steady clock stood still for so long, and the wall clock was right to go on: time passed, and nobody set anything."""
        self._first_ms += ms
        self._last_ms += ms

    def ages_ms(self, times_ms: Sequence[int]) -> list[int]:
        """How old things are that were marked with the wall time, the oldest first: never more than is sure.

        What was marked before a step has its age by the clock of then, what was marked since by the clock of now, so the smaller
        of the two counts. Neither fits a mark from a time when the clock was ahead: such a thing is as old as the next one.
        """
        now_ms = self.clock.now_ms()
        then_ms = self.clock.steady_ms() + self._first_ms  # the wall clock, had nobody set it
        ages: list[int] = []
        next_age = 0
        for time_ms in reversed(times_ms):
            next_age = min([now - time_ms for now in (now_ms, then_ms) if now >= time_ms], default=next_age)
            ages.append(next_age)
        return ages[::-1]

    def age_ms(self, time_ms: int) -> int:
        """The same for one; negative when it is from the future by both clocks."""
        ahead_ms = time_ms - self.clock.now_ms()
        return self.ages_ms([time_ms])[0] or -max(ahead_ms, 0)


def step_text(stepped_ms: int, now_ms: int) -> str:
    """A step in words, for people."""
    way = "forward" if stepped_ms > 0 else "back"
    return f"set {way} by {span_text(abs(stepped_ms))}, to {time_text(now_ms)}"


def span_text(ms: int) -> str:
    for unit, size in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if ms >= 2 * size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms / 1_000:.1f} seconds"


def time_text(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1_000).isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms since 1970"
