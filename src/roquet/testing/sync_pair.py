"""SyncPair: a simulated SYNC_MASTER and its slave. When the master is lost, an operator makes the slave the master.

What is promised: whatever was answered with success is on both, and on the one that goes on. Consumers may be shown more than that when no
slave is there to wait for (the answer says so then); so the operator lets a slave take over only if nothing of that kind is missing on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.broker.core import Broker
from roquet.broker.topics import Topic
from roquet.store.synced_log import SyncedLog
from roquet.testing.broker_group import QUEUES, BrokerGroup
from roquet.testing.broker_node import BrokerNode
from roquet.testing.names import SHARED_TOPIC
from roquet.testing.promises import LastSeen, Violation
from roquet.testing.streams import StreamDoor

if TYPE_CHECKING:
    from roquet.testing.world import World

SIZE = 2
HA_PORT = 10912


class PairNode(BrokerNode):
    group: SyncPair
    copies = True

    def __init__(self, group: SyncPair, number: int) -> None:
        super().__init__(group, number)
        self.number = number
        self.ha_address = f"{self.host}:{HA_PORT}"
        self.be("SLAVE" if number else "SYNC_MASTER")

    def be(self, role: str) -> None:
        """From the next start on."""
        slave = role == "SLAVE"
        master = f"{self.group.host_of(1 - self.number)}:{HA_PORT}" if slave and self.group.tells_master else ""
        self.settings |= {"broker_role": role, "broker_id": int(slave), "ha_master_address": master}

    @property
    def is_master(self) -> bool:
        return bool(self.settings["broker_role"] != "SLAVE")

    @property
    def present_id(self) -> int:
        return int(self.settings["broker_id"])

    def _listen(self, core: Broker) -> None:
        super()._listen(core)
        for client in self.world.clients if not self.group.promises.copies_show else ():
            for pair in ((client.host, self.host), (self.host, client.host)):
                if self.is_master:
                    self.world.network.forbidden.discard(pair)
                else:
                    self.world.network.forbidden.add(pair)
        if self.is_master:
            door = StreamDoor(core.slaves)
            self.doors[self.ha_address] = door
            self.world.network.listen(self.ha_address, door, door.accept)

    def power_loss(self) -> None:
        """Under ASYNC_FLUSH both count what is in their memory: then machines do not lose it, only processes."""
        if self.group.sync_flush:
            super().power_loss()
        else:
            self.kill()


class SyncPair(BrokerGroup):
    def __init__(self, world: World, number: int, member_count: int = SIZE) -> None:
        self.tells_master = world.random.random() < 0.7
        """The operator writes haMasterAddress; else name servers tell it."""
        super().__init__(world, number, SIZE)
        self.promises.sync_flush = True  # nothing may be lost, whatever the flush level: see PairNode.power_loss
        self.changes = 0
        self.promises.copies_show = world.random.random() < 0.5
        """Can clients reach the slave? It shows all that it has, also what the master never counted as safe."""

    def _member(self, number: int) -> BrokerNode:
        return PairNode(self, number)

    @property
    def nodes(self) -> list[PairNode]:
        return [node for node in self.members if isinstance(node, PairNode)]

    @property
    def master(self) -> PairNode:
        return next(node for node in self.nodes if node.is_master)

    @property
    def slave(self) -> PairNode:
        return next(node for node in self.nodes if not node.is_master)

    def started(self, node: BrokerNode, core: Broker) -> None:
        if node is not self.master:
            return
        with node.disk.spared():
            self.promises.started(core, LastSeen())
        if core.topics.get(SHARED_TOPIC) is None:
            core.topics.put(Topic(SHARED_TOPIC, QUEUES, QUEUES))

    @property
    def may_change(self) -> bool:
        """Does the slave hold all that any consumer may have been shown?"""
        master, slave = self.master.core, self.slave.core
        if master is None or slave is None or slave.copying.link is None or not isinstance(master.store.log, SyncedLog):
            return False
        return master.store.log._given_up <= slave.store.log.local

    def change_roles(self) -> None:
        """Both are down, or will be at once: the slave is the master from its next start on."""
        self.changes += 1
        master, slave = self.master, self.slave
        self.world.simulation.note(f"= {slave.name} is to be the master, {master.name} its slave")
        master.be("SLAVE")
        slave.be("SYNC_MASTER")

    # At rest

    def unrest(self) -> str:
        down = next((f"{node.name} is down" for node in self.members if not node.serving), "")
        return down or self._not_alike() or self._not_registered() or self._pending() or self._not_consumed()

    @property
    def _for_the_operator(self) -> bool:
        """The master lost all that it ever had, before any of it was safe, and its slave has some of that: who is right, people decide."""
        core = self.slave.core
        return core is not None and any("they were never one" in notice.text for notice in core.notices.list())

    def _not_alike(self) -> str:
        if self._for_the_operator:
            return ""
        cores = [node.core for node in self.nodes if node.core is not None]
        ends = {(core.store.log.written, core.store.log.safe) for core in cores}
        if len(ends) > 1 or any(end[0] != end[1] for end in ends):
            return f"the logs of {self.name} are not alike: (end, safe) are {sorted(ends)}"
        return ""

    def look(self) -> None:
        super().look()
        if self._for_the_operator:
            return
        logs = [log_of(node.core) for node in self.nodes if node.core is not None]
        if logs[0] != logs[1]:
            raise Violation(f"the logs of {self.name} differ")
        assert self.slave.core is not None
        self.slave.core.store.applier.finish()
        self.promises.holds_all(self.slave.core, self.slave.name)


def log_of(core: Broker) -> tuple[int, bytes]:
    """Where the log begins, and its bytes."""
    log = core.store.log
    data = b"".join(log.segments.file(base).read(0, log.segments.size) for base in log.segments.bases)
    return log.start, data[: log.written - log.start]
