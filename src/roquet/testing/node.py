"""Node: a simulated machine."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from roquet.errors import Damaged
from roquet.testing.disk import SimDisk
from roquet.testing.network import host_of
from roquet.testing.simulation import SECOND, SimClock

if TYPE_CHECKING:
    from roquet.testing.world import World

SKEWS_MS = (0, 0, 0, 40, -3_000, 3_600_000)
"""How wrong a wall clock is from the beginning."""


class Node:
    """Its address, its clock and its disk stay; processes come and go on it. What a process is, the kind of node says:
    `_begin` starts one, `_end` ends it without a word to it, `core` is the one that is there."""

    core: object | None = None

    def __init__(self, world: World, name: str, address: str) -> None:
        simulation = world.simulation
        self.world = world
        self.simulation = simulation
        self.name = name
        self.address = address
        self.host = host_of(address)
        self.random = Random(f"{name} {simulation.seed}")
        self.clock = SimClock(simulation, skew_ms=self.random.choice(SKEWS_MS), steady_from_ms=self.random.randrange(1 << 32))
        self.disk = SimDisk(self.clock, f"{name} {simulation.seed}")
        self.runs = 0
        """Processes so far."""
        self._starts = 0

    @property
    def up(self) -> bool:
        return self.core is not None

    @property
    def failed(self) -> bool:
        """Whether the process is there and only a new one will work again."""
        return False

    def start(self) -> None:
        if self.up:
            return
        self.runs += 1
        failing = self.disk.full or len(self.disk.faults) > 0
        try:
            self._begin()
        except (OSError, Damaged) as error:
            if not failing:
                raise
            self.simulation.note(f"! {self.name} cannot start: {error}")
            self._end(0)
            self.disk.kill()
            self.start_later()

    def start_later(self, *, longest_us: int = 3 * SECOND) -> None:
        """A call of this takes the place of an earlier one."""
        self._starts += 1
        number = self._starts
        delay_us = self.world.random.randint(SECOND // 2, longest_us)
        self.simulation.after(delay_us, lambda: self.start() if number == self._starts else None)

    def kill(self) -> None:
        self.simulation.note(f"! {self.name} is killed")
        self.world.network.still.pop(self.host, None)
        self._end(50_000)
        self.disk.kill()

    def power_loss(self) -> None:
        self.simulation.note(f"! {self.name} loses power")
        self.world.network.still.pop(self.host, None)
        self._end(3 * SECOND)
        self.disk.crash()
        self.clock.boot(self.random.randrange(60_000))

    def while_up(self, action: Callable[[], None]) -> Callable[[], None]:
        """For things to do later: nothing when this process is gone by then."""
        run = self.runs
        still, simulation = self.world.network.still, self.simulation

        def act() -> None:
            if self.up and self.runs == run:
                if still and still.get(self.host, 0) > simulation.now_us:
                    simulation.at(still[self.host], act)
                else:
                    action()

        return act

    def stand_still(self, us: int) -> None:
        """The process is stopped for so long; its connections stay, and its clocks go on."""
        if self.up:
            self.simulation.note(f"! {self.name} stands still for {us // 1_000} ms")
            self.world.network.still[self.host] = self.simulation.now_us + us

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self, slowest_us: int) -> None:
        """Whoever is connected learns of it within this time."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.address}{' up' if self.up else ''}>"
