"""Work that blocks: ManualBackground does it when a test says so, SimBackground at a time that the seed chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from roquet.testing.simulation import Simulation

T = TypeVar("T")


class ManualBackground:
    """Does work at once, or with `hold` keeps it in `waiting` until `release`. The real one is `roquet.net.background.ThreadBackground`,
    which never calls `done` from within `run`."""

    def __init__(self, *, hold: bool = False) -> None:
        self.hold = hold
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self.waiting.append((work, done))
        if not self.hold:
            self.release()

    def release(self) -> None:
        while self.waiting:
            self.release_one()

    def release_one(self) -> None:
        work, done = self.waiting.pop(0)
        done(attempt(work))


class SimBackground:
    """Jobs begin in the order of the calls; as with threads, results come back in any order. A job's work happens at one instant, and
    its result is told some time after: a crash between the two leaves work that was done and that nobody heard of."""

    def __init__(
        self, simulation: Simulation, *, slowest_us: int = 20_000, when_awake: Callable[[Callable[[], None]], None] = lambda act: act()
    ) -> None:
        """`when_awake`: acts at once, or when the process that stands still goes on."""
        self.simulation = simulation
        self.slowest_us = slowest_us
        self.when_awake = when_awake
        self.dead = False
        self._begun_us = 0

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        simulation = self.simulation
        self._begun_us = max(self._begun_us, simulation.now_us + simulation.between(10, self.slowest_us))

        def begin() -> None:
            if self.dead:
                return
            result = attempt(work)
            simulation.after(simulation.between(10, self.slowest_us), lambda: self.when_awake(lambda: None if self.dead else done(result)))

        simulation.at(self._begun_us, lambda: self.when_awake(begin))

    def kill(self) -> None:
        """The process is gone: what has not begun never will, and nobody is told of the rest."""
        self.dead = True


def attempt(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:
        return error
