"""LedgerGroup: simulated brokers that form a DLedger group, each with a ledger on its own disk.

What must hold is looked at with every tick of every member:

    one leader a term, and no term twice, not even by the same member in another life
    what a member knows to be committed does not become less while it lives
    up to there all logs are the same, byte for byte, for ever
    whoever becomes the master has everything that was acknowledged or shown
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from roquet.broker.core import Broker
from roquet.broker.dledger import GroupDoor
from roquet.broker.roles import is_slave
from roquet.broker.topics import Topic
from roquet.ports import FOREVER, Peer
from roquet.raft.codes import Role
from roquet.store.ledger_segments import LedgerSegments
from roquet.testing.broker_group import QUEUES, BrokerGroup
from roquet.testing.broker_node import BrokerNode
from roquet.testing.names import SHARED_TOPIC
from roquet.testing.promises import LastSeen, Violation
from roquet.testing.simulation import SECOND
from roquet.wire.frame import Frame
from roquet.wire.layout import LEDGER_BLANK, LEDGER_BLANK_MAGIC, LEDGER_UNIT
from roquet.wire.ledger_entry import read_head

if TYPE_CHECKING:
    from roquet.testing.world import World

GROUP_PORT = 40911
SIZE = 3
INDEX_FILE = 64 * LEDGER_UNIT.size
LEAVE_US = SECOND
"""A clean stop waits so long for another leader."""


class MemberDoor:
    """Where other members come in."""

    def __init__(self, node: LedgerNode, door: GroupDoor) -> None:
        self.node = node
        self.door = door

    def receive(self, peer: Peer, frames: list[Frame]) -> list[Frame] | None:
        self.door.receive(peer, frames, FOREVER)
        self.node.group.watch(self.node)
        return None

    def disconnected(self, peer: Peer) -> None:
        self.door.disconnected(peer)


class LedgerNode(BrokerNode):
    group: LedgerGroup

    def __init__(self, group: LedgerGroup, number: int) -> None:
        super().__init__(group, number)
        self.me = f"n{number}"
        peers = ";".join(f"n{each}-{group.host_of(each)}:{GROUP_PORT}" for each in range(SIZE))
        self.settings |= {
            "broker_id": 0, "broker_role": "ASYNC_MASTER", "enable_dleger_commit_log": True, "dleger_peers": peers,
            "dleger_self_id": self.me, "dleger_group": group.name,
        }  # fmt: skip
        self.group_address = f"{self.host}:{GROUP_PORT}"
        self.committed = self.compared = -1
        self.masters = 0
        """How often this process became the master."""
        self.was_master = False
        self._door: MemberDoor | None = None
        self._ticks = 0

    def _made(self, core: Broker) -> None:
        assert core.store.ledger is not None
        core.store.ledger.log.index.segments.size = INDEX_FILE
        self.committed = self.compared = -1
        self.was_master = False

    def _listen(self, core: Broker) -> None:
        super()._listen(core)
        assert core.group is not None
        door = self._door = MemberDoor(self, GroupDoor(core.group))
        self.doors[self.group_address] = door
        self.world.network.listen(self.group_address, door)

    def _tick(self, core: Broker) -> None:
        super()._tick(core)
        if self.core is not core:  # it had handed over, and stopped within this tick
            return
        self.group.watch(self)
        with self.disk.spared():
            self.group.compare(self)
        # The rules look at the time twice as often.
        self.simulation.after(50_000, self.while_up(self._between))

    def _between(self) -> None:
        if self.serving and self.core is not None:
            assert self._door is not None
            self._door.door.tick(self.clock.steady_ms())
            self.group.watch(self)

    @property
    def leads(self) -> bool:
        return self.core is not None and self.core.group is not None and self.core.group.member.role is Role.LEADER

    def stop_cleanly(self, then: Callable[[], None]) -> None:
        core = self.core
        assert core is not None
        assert core.group is not None
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if not stopped and self.core is core and self.serving:
                stopped = True
                super(LedgerNode, self).stop_cleanly(then)

        core.group.leave(stop)
        self.simulation.after(LEAVE_US, self.while_up(stop))

    def power_loss(self) -> None:
        """Under ASYNC_FLUSH members count what is in their memory: then machines do not lose it, only processes."""
        if self.group.sync_flush:
            super().power_loss()
        else:
            self.kill()


class LedgerGroup(BrokerGroup):
    """State: who led which term, and `truth`, all that any member knew to be committed."""

    def __init__(self, world: World, number: int, member_count: int = SIZE) -> None:
        self.leaders: dict[int, tuple[str, int]] = {}
        self.truth = bytearray()
        self.changes = 0
        super().__init__(world, number, SIZE)
        self.promises.sync_flush = True  # nothing may be lost, whatever the flush level: see LedgerNode.power_loss

    def _member(self, number: int) -> BrokerNode:
        return LedgerNode(self, number)

    @property
    def nodes(self) -> list[LedgerNode]:
        return [node for node in self.members if isinstance(node, LedgerNode)]

    @property
    def master(self) -> BrokerNode:
        """Of those that think so the one with the latest term, which is the only one that can do anything."""
        found = [node for node in self.nodes if node.core is not None and not is_slave(node.core.settings)]
        return max(found, key=term_of, default=self.members[0])

    def started(self, node: BrokerNode, core: Broker) -> None:
        """It follows."""

    # With every step

    def watch(self, node: LedgerNode) -> None:
        core = node.core
        if core is None or core.group is None:
            return
        change = core.group.last_change
        if change is not None and change.role is Role.LEADER:
            who = (node.name, node.runs)
            if self.leaders.setdefault(change.term, who) != who:
                raise Violation(f"term {change.term} has two leaders: {self.leaders[change.term]} and {who}")
        committed = core.group.ledger.log.committed
        if committed < node.committed:
            raise Violation(f"{node.name} knew entry {node.committed} to be committed, and now {committed} is the last")
        node.committed = committed
        is_master = not is_slave(core.settings)
        if is_master and not node.was_master:
            self._became_master(node, core)
        node.was_master = is_master

    def _became_master(self, node: LedgerNode, core: Broker) -> None:
        self.changes += 1
        self.world.simulation.note(f"= {node.name} is the master, term {term_of(node)}")
        with node.disk.spared():
            self.compare(node)
        if core.topics.get(SHARED_TOPIC) is None:
            core.topics.put(Topic(SHARED_TOPIC, QUEUES, QUEUES))
        if term_of(node) < max(self.leaders, default=0):
            return  # it stood still meanwhile, and will learn that others have elected another one, who took messages since
        with node.disk.spared():
            self.promises.started(core, LastSeen())

    def compare(self, node: LedgerNode) -> None:
        """What this member has come to know as committed since it was last asked, against what others knew."""
        assert node.core is not None
        assert node.core.group is not None
        entries = node.core.group.ledger.log
        begin, end = max(node.compared, 0), entries.committed_end
        if end <= begin:
            return
        begin = max(begin, entries.segments.first_data)
        data, known = read_range(entries.segments, begin, end), bytes(self.truth[begin:end])
        if data[: len(known)] != known and (where := first_difference(data[: len(known)], known, begin, entries.segments.size)):
            raise Violation(f"{node.name} has {where} as committed; another member has something else there")
        if len(self.truth) < end:
            assert len(self.truth) >= begin, f"{node.name} begins at {begin}, and what was compared ends at {len(self.truth)}"
            self.truth += data[len(known) :]
        node.compared = end

    # At rest

    def unrest(self) -> str:
        down = next((f"{node.name} is down" for node in self.members if not node.serving), "")
        return down or self._not_one() or self._not_registered() or self._pending() or self._not_consumed()

    def _not_one(self) -> str:
        """Is there one master, and do all hold the same, all of it committed?"""
        masters = [node for node in self.nodes if node.core is not None and not is_slave(node.core.settings)]
        if len(masters) != 1:
            return f"{self.name} has {len(masters)} masters"
        logs = [node.core.group.ledger.log for node in self.nodes if node.core is not None and node.core.group is not None]
        ends = {(log.last, log.committed, log.written) for log in logs}
        if len(ends) > 1 or any(log.last != log.committed for log in logs):
            return f"members of {self.name} are not alike: (last, committed, end) are {sorted(ends)}"
        return ""

    def look(self) -> None:
        super().look()
        for node in self.nodes:
            node.compared = -1
            self.compare(node)
            assert node.core is not None
            if node.core.store.applier.following:
                node.core.store.applier.finish()
            self.promises.holds_all(node.core, node.name)


def read_range(segments: LedgerSegments, begin: int, end: int) -> bytes:
    pieces: list[bytes] = []
    while begin < end:
        piece = segments.read(begin, end - begin)
        assert piece, f"{segments.directory} has nothing at {begin}, its log goes to {end}"
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)


def first_difference(data: bytes, known: bytes, begin: int, file_size: int) -> str:
    """The first entry that is not the same, as text. Behind the last one of a file may stand anything."""
    at = 0
    while at < len(data):
        if LEDGER_BLANK.unpack_from(data, at)[0] == LEDGER_BLANK_MAGIC:
            if data[at : at + LEDGER_BLANK.size] != known[at : at + LEDGER_BLANK.size]:
                return f"the end of a file at {begin + at}"
            at += file_size - (begin + at) % file_size
            continue
        head = read_head(data, at)
        if data[at : at + head.size] != known[at : at + head.size]:
            return f"entry {head.index} of term {head.term} at {begin + at}"
        at += head.size
    return ""


def term_of(node: LedgerNode) -> int:
    return -1 if node.core is None or node.core.group is None else node.core.group.member.term
