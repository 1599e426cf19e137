"""NameServerNode: a simulated machine that runs a name server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.nameserver.core import NameServer
from roquet.settings import NameServerSettings
from roquet.testing.node import Node
from roquet.testing.simulation import SECOND

if TYPE_CHECKING:
    from roquet.testing.world import World


class NameServerNode(Node):
    core: NameServer | None = None

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"name server {number}", f"10.0.1.{number + 1}:9876")

    def _begin(self) -> None:
        self.simulation.note(f"= {self.name} starts")
        core = self.core = self.world.cores.name_server(NameServerSettings(), self.clock, self.disk, "/data")
        self.world.network.listen(self.address, core)

        def tick() -> None:
            core.tick(self.clock.steady_ms())
            self.simulation.after(SECOND, self.while_up(tick))

        tick()

    def _end(self, slowest_us: int) -> None:
        if self.core is not None:
            self.core = None
            self.world.network.stop(self.address, slowest_us=slowest_us)
