"""BrokerNode: a simulated machine that runs one member of a broker group."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from roquet.broker.core import Broker
from roquet.settings import BrokerSettings
from roquet.testing.background import SimBackground
from roquet.testing.network import SimCaller, stored_host
from roquet.testing.node import Node
from roquet.testing.promises import LastSeen
from roquet.testing.simulation import SECOND

if TYPE_CHECKING:
    from roquet.testing.broker_group import BrokerGroup

TICK_US = 100_000
STORE = "/data/broker"


class BrokerNode(Node):
    core: Broker | None = None

    def __init__(self, group: BrokerGroup, broker_id: int) -> None:
        super().__init__(group.world, f"{group.name}.{broker_id}", f"10.0.2.{group.number * 10 + broker_id + 1}:10911")
        self.group = group
        self.broker_id = broker_id
        self.disk.make_dir("/data")
        self.disk.sync_dir("/")
        self.disk.cold_ratio = self.random.choice((0.0, 0.0, 0.05, 0.5))
        self.sync_slowest_us = self.random.choice((3_000, 30_000, 400_000))
        self.settings = group.settings | {
            "broker_id": broker_id,
            "broker_role": "SLAVE" if broker_id else "ASYNC_MASTER",
            "store_path_root_dir": STORE,
        }
        self.serving = False
        self.last_seen = LastSeen()
        self._background: SimBackground | None = None
        self._caller: SimCaller | None = None

    @property
    def failed(self) -> bool:
        return self.core is not None and bool(self.core.store.trouble.failed)

    def _begin(self) -> None:
        simulation, world = self.simulation, self.world
        background = self._background = SimBackground(simulation, slowest_us=self.sync_slowest_us)
        caller = self._caller = SimCaller(world.network, self.host)
        core = world.cores.broker(
            BrokerSettings(**self.settings), self.disk, self.clock, background, caller,
            Random(f"{self.name} {simulation.seed} {self.runs}"), 1 << 24,
        )  # fmt: skip
        core.open()
        simulation.note(f"= {self.name} starts, {core.store.recovered_records} records read, log to {core.store.log.end}")
        self.core = core
        core.listening(self.address, stored_host(self.address))
        self.group.started(self, core)
        self.last_seen.power_lost = False
        world.network.listen(self.address, core)
        self.serving = True

        def tick() -> None:
            if self.serving:
                simulation.after(TICK_US, self.while_up(tick))
                core.tick(self.clock.steady_ms())

        tick()

    def power_loss(self) -> None:
        super().power_loss()
        self.last_seen.power_lost = True

    def stop_cleanly(self, then: Callable[[], None]) -> None:
        """As the program stops: nothing more is served, what runs in the background is waited for, everything is saved."""
        core = self.core
        assert core is not None
        self.simulation.note(f"= {self.name} stops")
        self.serving = False
        self.world.network.stop(self.address)

        def wait() -> None:
            if core.saving:
                self.simulation.after(5_000, self.while_up(wait))
                return
            core.close()
            self._end(50_000)
            self.disk.kill()
            then()

        wait()

    def _end(self, slowest_us: int) -> None:
        self.serving = False
        if self._background is not None:
            self._background.kill()
        if self._caller is not None:
            self._caller.kill()
        if self.core is not None:
            self.last_seen.flushed = self.core.store.log.flushed
            self.last_seen.ends = {key: queue.visible for key, queue in self.core.store.queues.items()}
            if self.world.network.core_at(self.address) is self.core:
                # Under ASYNC_FLUSH a receipt that comes after the restart may speak of what is gone: that would tell us nothing.
                self.world.network.stop(self.address, slowest_us=slowest_us if self.group.sync_flush else min(slowest_us, SECOND // 3))
            self.core = None
