"""GroupFaults: what goes wrong in a cluster whose groups have copies, besides all that goes wrong elsewhere. Leaders have most of it."""

from __future__ import annotations

from collections.abc import Callable

from roquet.testing.broker_node import BrokerNode
from roquet.testing.faults import Faults
from roquet.testing.ledger_group import LedgerGroup, LedgerNode
from roquet.testing.node import Node
from roquet.testing.simulation import SECOND
from roquet.testing.sync_pair import SyncPair


class GroupFaults(Faults):
    def _kinds(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            *super()._kinds(),
            (5, self._part_members),
            (4, self._one_way),
            (4, self._stand_still),
            (2, self._lose_packets),
            (3, self._hand_over),
            (8, self._take_over),
        ]

    def _server(self) -> Node:
        """The one that leads, in half of the cases."""
        if self.random.random() < 0.5:
            return self.random.choice(self.world.groups).master
        return super()._server()

    def _member(self) -> BrokerNode:
        group = self.random.choice(self.world.groups)
        return group.master if self.random.random() < 0.5 else self.random.choice(group.members)

    # Network

    def _part_members(self) -> None:
        """One member cannot reach the others of its group; clients and name servers reach it as before."""
        node = self._member()
        others: list[Node] = [other for other in node.group.members if other is not node]
        self._keep_apart(node, others)

    def _one_way(self) -> None:
        node = self._member()
        among: list[Node] = list(node.group.members) if self.random.random() < 0.6 else self.world.nodes
        others = [other for other in among if other is not node]
        others = self.random.sample(others, self.random.randint(1, len(others)))
        speaks = self.random.random() < 0.5
        pairs = [(node.host, other.host) if speaks else (other.host, node.host) for other in others]
        names = ", ".join(other.name for other in others)
        self.simulation.note(f"! {node.name} {'is not heard by' if speaks else 'does not hear'} {names}")
        for pair in pairs:
            self.network.deafen(*pair)

        def over() -> None:
            for pair in pairs:
                self.network.undeafen(*pair)

        self.simulation.after(self.random.randint(SECOND // 2, 6 * SECOND), over)

    def _lose_packets(self) -> None:
        self.network.loss = self.random.choice((0.02, 0.1, 0.3))
        self.simulation.note(f"! {self.network.loss:.0%} of the packets are lost")
        self.simulation.after(self.random.randint(1, 5) * SECOND, lambda: setattr(self.network, "loss", 0.0))

    # Processes

    def _stand_still(self) -> None:
        node = self._member() if self.random.random() < 0.8 else self.random.choice(self.world.nodes)
        node.stand_still(self.simulation.between(100_000, 5 * SECOND))

    def _hand_over(self) -> None:
        """Somebody asks the leader to let another member lead."""
        leaders = [node for node in self.world.brokers if isinstance(node, LedgerNode) and node.leads]
        if leaders:
            node = self.random.choice(leaders)
            core = node.core
            assert core is not None
            assert core.group is not None
            other = self.random.choice(core.group.options.others)
            self.simulation.note(f"! {node.name} is to hand over to {other}")
            now_ms = node.clock.steady_ms()
            node.while_up(lambda: core.group.step(lambda member: member.handing.start(other, None, now_ms)) if core.group else None)()

    def _take_over(self) -> None:
        """A pair loses its master, and the operator goes on with the slave."""
        pairs = [group for group in self.world.groups if isinstance(group, SyncPair) and group.may_change]
        if not pairs:
            return
        pair = self.random.choice(pairs)
        master, slave = pair.master, pair.slave
        if self.random.random() < 0.5:
            master.power_loss()
        else:
            master.kill()
        slave.kill()
        pair.change_roles()
        slave.start_later(longest_us=SECOND)
        self._come_back(master)


def changes_of(group: object) -> int:
    """How often somebody else became the master."""
    return group.changes if isinstance(group, LedgerGroup | SyncPair) else 0
