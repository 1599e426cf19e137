"""Simulation: one queue of things to do, in the order of their times. One seed decides everything.

Time is a number that jumps from one event to the next, so a minute of a cluster's life takes a fraction of a second. What
happens is written into a trace; two runs of one seed have the same trace, and its hash is how that is tested.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable
from random import Random

from roquet.testing.clock import START_MS

Action = Callable[[], object]

SECOND = 1_000_000
"""In microseconds, as all times of a simulation."""
KEPT_LINES = 400
"""Lines of the trace that a failure shows."""
EVENTS_MAX = 2_000_000
"""More events than any run needs: something calls itself for ever."""


class SimClock:
    """The simulation's time as a core sees it. `skew_ms` makes one host's wall clock differ, and may change at any moment.
    Steady clocks count from a moment of their own, and begin again when the machine does."""

    def __init__(self, simulation: Simulation, skew_ms: int = 0, steady_from_ms: int = START_MS) -> None:
        self._simulation = simulation
        self.skew_ms = skew_ms
        self._steady_from_ms = steady_from_ms

    def now_ms(self) -> int:
        return START_MS + self._simulation.now_us // 1_000 + self.skew_ms

    def steady_ms(self) -> int:
        return self._steady_from_ms + self._simulation.now_us // 1_000

    def boot(self, steady_ms: int) -> None:
        """The machine has started; the steady clock shows so much."""
        self._steady_from_ms = steady_ms - self._simulation.now_us // 1_000


class Simulation:
    """State: the queue of (time in microseconds, number, action), `random` for everything that chance decides."""

    def __init__(self, seed: int, *, show: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.random = Random(f"simulation {seed}")
        self.now_us = 0
        self.events = 0
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.interrupted: Callable[[BaseException], bool] = lambda error: False
        """Asked when an action raises: True when the simulation goes on (a machine lost its power)."""
        self._show = show
        self._hash = hashlib.blake2b(digest_size=16)
        self._queue: list[tuple[int, int, Action]] = []
        self._count = 0

    def at(self, time_us: int, action: Action) -> None:
        """Do this then; what is due at the same time is done in the order of the calls."""
        self._count += 1
        heapq.heappush(self._queue, (max(time_us, self.now_us), self._count, action))

    def after(self, delay_us: int, action: Action) -> None:
        self.at(self.now_us + delay_us, action)

    def between(self, low_us: int, high_us: int) -> int:
        """A length of time, mostly near the lower end, as delays are."""
        chance = self.random.random()
        return low_us + int((high_us - low_us) * chance * chance * chance)

    def run(self, until_us: int, stop: Callable[[], bool] | None = None) -> bool:
        """Go on to this time, or until `stop` (asked ten times a simulated second) says so. Whether it did."""
        look_us = self.now_us
        while self._queue and self._queue[0][0] <= until_us:
            time_us = self.now_us = self._queue[0][0]
            if stop is not None and time_us >= look_us:
                look_us = time_us + 100_000
                if stop():
                    return True  # what is due now stays in the queue: whoever goes on must not miss it
            action = heapq.heappop(self._queue)[2]
            self.events += 1
            assert self.events < EVENTS_MAX, f"{self.events} events; something never ends"
            try:
                action()
            except BaseException as error:
                if not self.interrupted(error):
                    raise
        self.now_us = max(self.now_us, until_us)
        return stop is not None and stop()

    def note(self, text: str) -> None:
        line = f"{self.now_us / 1_000_000:10.6f} {text}"
        self._hash.update(line.encode())
        self.lines.append(line)
        if self._show is not None:
            self._show(line)

    def trace_hash(self) -> str:
        return self._hash.hexdigest()
