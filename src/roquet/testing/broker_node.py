"""BrokerNode: a simulated machine that runs one member of a broker group."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from roquet.broker.core import Broker
from roquet.settings import BrokerSettings
from roquet.testing.background import SimBackground
from roquet.testing.network import Core, SimCaller, stored_host
from roquet.testing.node import Node
from roquet.testing.promises import LastSeen
from roquet.testing.simulation import SECOND
from roquet.testing.streams import SimDialer

if TYPE_CHECKING:
    from roquet.testing.broker_group import BrokerGroup

TICK_US = 100_000
STORE = "/data/broker"


class BrokerNode(Node):
    core: Broker | None = None
    copies = False
    """Does it copy a master's log when it is a slave?"""

    def __init__(self, group: BrokerGroup, broker_id: int) -> None:
        super().__init__(group.world, f"{group.name}.{broker_id}", f"{group.host_of(broker_id)}:10911")
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
        self.ha_address = ""
        """Where slaves come in; "" when there are none."""
        self.doors: dict[str, Core] = {}
        """Who listens where, of this process."""
        self._background: SimBackground | None = None
        self._dialer: SimDialer | None = None
        self._caller: SimCaller | None = None

    @property
    def present_id(self) -> int:
        """The broker id that it has now; in a group that depends on who leads."""
        return self.broker_id if self.core is None else self.core.settings.broker_id

    @property
    def failed(self) -> bool:
        return self.core is not None and bool(self.core.store.trouble.failed)

    def _begin(self) -> None:
        simulation, world = self.simulation, self.world
        background = self._background = SimBackground(
            simulation, slowest_us=self.sync_slowest_us, when_awake=lambda act: world.network.when_awake(self.host, act)
        )
        caller = self._caller = SimCaller(world.network, self.host)
        dialer = self._dialer = SimDialer(world.network, self.host) if self.copies else None
        core = world.cores.broker(
            BrokerSettings(**self.settings), self.disk, self.clock, background, caller,
            Random(f"{self.name} {simulation.seed} {self.runs}"), 1 << 24, None, None, (), dialer,
        )  # fmt: skip
        self._made(core)
        core.open()
        simulation.note(f"= {self.name} starts, {core.store.recovered_records} records read, log to {core.store.log.end}")
        self.core = core
        core.listening(self.address, stored_host(self.address), self.ha_address)
        self.group.started(self, core)
        self.last_seen.power_lost = False
        self._listen(core)
        self.serving = True

        def tick() -> None:
            if self.serving:
                simulation.after(TICK_US, self.while_up(tick))
                self._tick(core)

        tick()

    def _made(self, core: Broker) -> None:
        """Before it is opened."""

    def _listen(self, core: Broker) -> None:
        self.doors = {self.address: core}
        self.world.network.listen(self.address, core)

    def _tick(self, core: Broker) -> None:
        core.tick(self.clock.steady_ms())

    def power_loss(self) -> None:
        super().power_loss()
        self.last_seen.power_lost = True

    def stop_cleanly(self, then: Callable[[], None]) -> None:
        """As the program stops: nothing more is served, what runs in the background is waited for, everything is saved."""
        core = self.core
        assert core is not None
        self.simulation.note(f"= {self.name} stops")
        self.serving = False
        self._close_doors(50_000)

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
        if self._dialer is not None:
            self._dialer.kill()
        if self.core is not None:
            self.last_seen.flushed = self.core.store.log.flushed
            self.last_seen.ends = {key: queue.visible for key, queue in self.core.store.queues.items()}
            # Under ASYNC_FLUSH a receipt that comes after the restart may speak of what is gone: that would tell us nothing.
            self._close_doors(slowest_us if self.group.sync_flush else min(slowest_us, SECOND // 3))
            self.core = None

    def _close_doors(self, slowest_us: int) -> None:
        for address, door in self.doors.items():
            if self.world.network.core_at(address) is door:
                self.world.network.stop(address, slowest_us=slowest_us)
