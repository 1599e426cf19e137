"""Faults: what goes wrong in a simulated cluster, when, and on which node. The seed decides all of it.

Connections cut, hosts parted from others, slow hosts, full and failing disks, killed processes, power losses in the middle of
a write, restarts, wall clocks that somebody sets.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from roquet.testing.disk import PowerLost
from roquet.testing.node import Node
from roquet.testing.simulation import SECOND

if TYPE_CHECKING:
    from roquet.testing.world import World

CLOCK_STEPS_MS = (2_000, 60_000, 3_600_000, 86_400_000, 315_360_000_000)
"""Up to ten years."""
DISK_ERRORS = (
    ("open", errno.EMFILE), ("open", errno.EIO), ("open", errno.ENOSPC), ("truncate", errno.EIO), ("write", errno.EIO),
    ("write", errno.ENOSPC), ("rename", errno.EIO),
)  # fmt: skip


class Faults:
    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.simulation = world.simulation
        self.network = world.network
        self.simulation.interrupted = self._interrupted
        self._spoiled: dict[Node, None] = {}
        """Those whose disk has failed an operation, or was about to."""

    def _kinds(self) -> list[tuple[int, Callable[[], None]]]:
        """(how often it is chosen, what happens)."""
        return [
            (5, lambda: self._lose_power(self._server())),
            (1, self._power_loss_everywhere),
            (4, self._power_loss_at_a_write),
            (3, lambda: self._kill(self._server())),
            (2, self._restart_broker),
            (3, lambda: self._kill(self.random.choice(self.world.clients))),
            (4, self._cut),
            (2, self._part),
            (1, self._isolate),
            (1, lambda: self._kill(self.random.choice(self.world.name_servers))),
            (2, self._slow),
            (1, self._full_disk),
            (1, self._failing_sync),
            (4, self._set_a_clock),
            (3, self._disk_errors),
        ]

    def plan(self, until_us: int) -> None:
        """So many faults as there are machines to have them, between now and then."""
        for broker in self.world.brokers:
            if self.random.random() < 0.1:
                broker.disk.power_off_after(self.random.randint(1, 60))  # while it makes its first files
        faults = [fault for weight, fault in self._kinds() for _ in range(weight)]
        for _ in range(self.random.randint(3, 9) + 3 * (len(self.world.brokers) - 1)):
            self.simulation.at(self.random.randint(SECOND, until_us), self.random.choice(faults))

    def end(self) -> None:
        self.simulation.note("= faults end")
        self.world.calm = True
        self.network.heal()
        self.network.still.clear()
        self.network.slowest_us = 5_000
        for node in self.world.nodes:
            disk = node.disk
            disk.full = False
            disk.faults.clear()
            disk.cold_ratio = min(disk.cold_ratio, 0.2)
            disk.stay_on()
            if not node.up:
                node.start_later(longest_us=SECOND)
            elif node.failed:
                self._lose_power(node)
        for node in self._spoiled:  # one may hear of it only now: it stood still, or its sync was under way
            self.simulation.after(SECOND, partial(self._repair, node))

    def _interrupted(self, error: BaseException) -> bool:
        if not isinstance(error, PowerLost):
            return False
        node = next(node for node in self.world.nodes if node.disk is error.disk)
        if self.random.random() < 0.7:
            node.power_loss()
        else:
            node.kill()
        self._come_back(node)
        return True

    # Processes and machines

    def _server(self) -> Node:
        """A broker, mostly."""
        return self.random.choice([*self.world.brokers * 4, *self.world.name_servers])

    def _come_back(self, node: Node) -> None:
        """Soon, or after a time in which the others do without it. Power may fail while it recovers, too."""
        node.start_later(longest_us=(15 if self.random.random() < 0.2 else 3) * SECOND)
        if self.random.random() < 0.1 and not self.world.calm:
            node.disk.power_off_after(self.random.randint(1, 60))

    def _lose_power(self, node: Node) -> None:
        if node.up:
            node.power_loss()
            self._come_back(node)

    def _power_loss_everywhere(self) -> None:
        for node in (*self.world.name_servers, *self.world.brokers):
            self._lose_power(node)

    def _power_loss_at_a_write(self) -> None:
        node = self._server()
        self.simulation.note(f"! {node.name} will lose power in the middle of a write")
        node.disk.power_off_after(self.random.randint(1, 40))

    def _kill(self, node: Node) -> None:
        if node.up:
            node.kill()
            self._come_back(node)

    def _restart_broker(self) -> None:
        broker = self.random.choice(self.world.brokers)

        def stopped() -> None:
            if self.random.random() < 0.5:
                broker.power_loss()  # after a clean stop there is nothing to lose
            self._come_back(broker)

        if broker.serving:
            broker.stop_cleanly(stopped)

    # Network

    def _cut(self) -> None:
        node = self.random.choice(self.world.nodes)
        self.simulation.note(f"! connections of {node.name} are cut")
        for wire in self.network.wires(node.host):
            wire.cut()

    def _part(self) -> None:
        one, other = self.random.sample(self.world.nodes, 2)
        self._keep_apart(one, [other])

    def _isolate(self) -> None:
        node = self.random.choice(self.world.nodes)
        self._keep_apart(node, [other for other in self.world.nodes if other is not node])

    def _keep_apart(self, node: Node, others: list[Node]) -> None:
        self.simulation.note(f"! {node.name} cannot reach {', '.join(other.name for other in others)}")
        for other in others:
            self.network.part(node.host, other.host)

        def over() -> None:
            for other in others:
                self.network.rejoin(node.host, other.host)

        self.simulation.after(self.random.randint(1, 8) * SECOND, over)

    def _slow(self) -> None:
        node = self.random.choice(self.world.nodes)
        self.simulation.note(f"! the network of {node.name} is slow")
        self.network.slow[node.host] = 800_000
        self.simulation.after(self.random.randint(1, 5) * SECOND, lambda: self.network.slow.pop(node.host, None))

    # Disks

    def _full_disk(self) -> None:
        node = self._server()
        self.simulation.note(f"! the disk of {node.name} is full")
        node.disk.full = True
        self.simulation.after(self.random.randint(1, 6) * SECOND, lambda: setattr(node.disk, "full", False))

    def _failing_sync(self) -> None:
        """A broker must stop taking writes; somebody changes the disk and starts the machine again."""
        node = self._server()
        self.simulation.note(f"! a sync of {node.name} will fail")
        self._spoiled[node] = None
        node.disk.fail("sync", errno.EIO, times=self.random.randint(1, 3))
        self.simulation.after(self.random.randint(1, 3) * SECOND, lambda: self._repair(node))

    def _disk_errors(self) -> None:
        """Some operation fails, once or a few times: no descriptor is left, a file cannot be made, a write or a rename meets an error."""
        node = self._server()
        operation, number = self.random.choice(DISK_ERRORS)
        times = self.random.randint(1, 3)
        self.simulation.note(f"! {operation} fails with {errno.errorcode[number]} on {node.name}, {times} times")
        self._spoiled[node] = None
        node.disk.fail(operation, number, times=times, after=self.random.randint(0, 5), part=self.random.random())
        self.simulation.after(self.random.randint(1, 4) * SECOND, lambda: self._repair(node))

    def _repair(self, node: Node) -> None:
        node.disk.faults.clear()
        if node.failed:
            self._lose_power(node)

    # Clocks

    def _set_a_clock(self) -> None:
        """Of any node, a broker's most of all; by hand, or by NTP after a boot. Seconds to years, and often back to what it was."""
        node = self.random.choice([*self.world.brokers * 4, *self.world.name_servers, *self.world.clients])
        clock = node.clock
        by_ms = self.random.choice((1, -1)) * int(self.random.choice(CLOCK_STEPS_MS) * self.random.uniform(0.5, 1.0))
        if clock.skew_ms and self.random.random() < 0.6:
            by_ms = -clock.skew_ms
        self._step(node, by_ms)
        if self.random.random() < 0.4:
            self.simulation.after(self.random.randint(1, 3 * SECOND), lambda: self._put_clock_right(node))

    def _put_clock_right(self, node: Node) -> None:
        if node.clock.skew_ms and not self.world.calm:
            self._step(node, -node.clock.skew_ms)

    def _step(self, node: Node, by_ms: int) -> None:
        self.simulation.note(f"! the clock of {node.name} is set by {by_ms} ms")
        node.clock.skew_ms += by_ms
