"""SimBackground: work that blocks, done at a time that the seed chooses. As with threads, results come back in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from roquet.testing.simulation import Simulation

T = TypeVar("T")


class SimBackground:
    """Jobs begin in the order of the calls. A job's work happens at one instant, and its result is told some time after:
    a crash between the two leaves work that was done and that nobody heard of."""

    def __init__(self, simulation: Simulation, *, slowest_us: int = 20_000) -> None:
        self.simulation = simulation
        self.slowest_us = slowest_us
        self.dead = False
        self._begun_us = 0

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        simulation = self.simulation
        self._begun_us = max(self._begun_us, simulation.now_us + simulation.between(10, self.slowest_us))

        def begin() -> None:
            if self.dead:
                return
            result = attempt(work)
            simulation.after(simulation.between(10, self.slowest_us), lambda: None if self.dead else done(result))

        simulation.at(self._begun_us, begin)

    def kill(self) -> None:
        """The process is gone: what has not begun never will, and nobody is told of the rest."""
        self.dead = True


def attempt(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:
        return error
