"""Which member of a group reads which queue.

Every member computes this alone, from the same two lists, and they must agree without talking: Java, Go and Python
members of one group alike. So both lists are brought into Java's order here, and nothing else (clock, hash seed, order
of arrival) has a say.

A strategy is called as `strategy(group, me, queues, members)` and returns the queues of `me`. A member that is not in
the list gets nothing, which is also what an empty list of members gives: a caller that could not learn the members must
keep what it has instead of asking.
"""

from __future__ import annotations

import bisect
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from roquet.message import MessageQueue

Strategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

VIRTUAL_NODES = 10


def java_order(text: str) -> bytes:
    """Sort key with which Python sorts text as Java does: by UTF-16 units. Differs from ours only beyond U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def name_of(strategy: Strategy) -> str:
    """Upstream's name of the strategy; a plain function's own name for one that a user wrote."""
    name = getattr(strategy, "name", None) or getattr(strategy, "__name__", type(strategy).__name__)
    return str(name)


class Shared(ABC):
    """The strategies that divide queues among members: `share` gets both in Java's order."""

    def __call__(self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if me not in members:
            return []
        ordered = sorted(queues, key=lambda queue: (java_order(queue.topic), java_order(queue.broker_name), queue.queue_id))
        # A client id that is there twice stays there twice, as in Java: both hold the first one's share and the second
        # share is nobody's. Mending that on our side alone would give queues to two members.
        return self.share(group, me, ordered, sorted(members, key=java_order))

    @abstractmethod
    def share(self, group: str, me: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]: ...


@dataclass(frozen=True, slots=True)
class Average(Shared):
    """Contiguous runs, one per member, the longer runs first.

    5 queues, members a b c  ->  a: 0 1   b: 2 3   c: 4
    """

    name: ClassVar[str] = "AVG"

    def share(self, group: str, me: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        share, extra = divmod(len(queues), len(members))
        place = members.index(me)
        start = place * share + min(place, extra)
        return queues[start : start + share + (place < extra)]


@dataclass(frozen=True, slots=True)
class AverageByCircle(Shared):
    """One queue each, in turns.

    5 queues, members a b c  ->  a: 0 3   b: 1 4   c: 2
    """

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def share(self, group: str, me: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        return queues[members.index(me) :: len(members)]


@dataclass(frozen=True, slots=True)
class Configured:
    """The queues that this member was told to read, whatever the others do. Leaving none out is up to who configures."""

    queues: tuple[MessageQueue, ...]

    name: ClassVar[str] = "CONFIG"

    def __call__(self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        return list(self.queues)


@dataclass(frozen=True, slots=True)
class MachineRoom(Shared):
    """Only the queues of brokers named "<room>@<name>" whose room is one of `rooms`; each member a run, the rest one each.

    5 queues, members a b c  ->  a: 0 3   b: 1 4   c: 2
    8 queues, members a b c  ->  a: 0 1 6   b: 2 3 7   c: 4 5
    """

    rooms: frozenset[str]

    name: ClassVar[str] = "MACHINE_ROOM"

    def share(self, group: str, me: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        ours = [queue for queue in queues if self._is_ours(queue.broker_name)]
        place, count = members.index(me), len(members)
        share, extra = divmod(len(ours), count)
        mine = ours[place * share : (place + 1) * share]
        if place < extra:
            mine.append(ours[share * count + place])
        return mine

    def _is_ours(self, broker_name: str) -> bool:
        # Java's split drops empty pieces at the end, so "room@name@" counts as two pieces and "room@" as one.
        pieces = broker_name.rstrip("@").split("@")
        return len(pieces) == 2 and pieces[0] in self.rooms


@dataclass(frozen=True, slots=True)
class MachineRoomNearby(Shared):
    """Queues go to members in their own room; those of a room without members are shared by all. `inner` divides each part.

    The two functions say in which room a queue's broker and a client id are. They must answer the same in every member
    and may not answer "".
    """

    inner: Strategy
    room_of_queue: Callable[[MessageQueue], str]
    room_of_member: Callable[[str], str]

    @property
    def name(self) -> str:
        return "MACHINE_ROOM_NEARBY-" + name_of(self.inner)

    def share(self, group: str, me: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_in.setdefault(known(self.room_of_queue(queue), queue), []).append(queue)
        members_in: dict[str, list[str]] = {}
        for member in members:
            members_in.setdefault(known(self.room_of_member(member), member), []).append(member)
        here = self.room_of_member(me)
        near = queues_in.pop(here, [])
        mine = self.inner(group, me, near, members_in[here]) if near else []
        for room in sorted(queues_in, key=java_order):
            if room not in members_in:
                mine = mine + self.inner(group, me, queues_in[room], members)
        return mine


def known(room: str, of: object) -> str:
    if not room:
        raise ValueError(f"no machine room is known for {of}; the room functions must name one for every queue and member")
    return room


@dataclass(frozen=True, slots=True)
class ConsistentHash(Shared):
    """A ring of members, each at `virtual_nodes` points; a queue belongs to the first point at or after its own hash.

    When a member comes or goes, few queues move. The points are the first four bytes of MD5 over "<client id>-<n>", a
    queue's is that over the text by which Java shows it. (The Go client hashes otherwise: do not mix it into such a group.)
    """

    virtual_nodes: int = VIRTUAL_NODES

    def __post_init__(self) -> None:
        if not 0 <= self.virtual_nodes <= 100_000:
            raise ValueError(f"virtual_nodes={self.virtual_nodes}, allowed are 0 to 100000")

    name: ClassVar[str] = "CONSISTENT_HASH"

    def share(self, group: str, me: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        ring: dict[int, str] = {}
        for member in members:
            # A client id that is listed twice continues its own numbers, and a later one takes a point over: as Java's ring.
            have = sum(1 for owner in ring.values() if owner == member) if members.count(member) > 1 else 0
            for number in range(have, have + self.virtual_nodes):
                ring[ring_point(f"{member}-{number}")] = member
        points = sorted(ring)

        def owner_of(queue: MessageQueue) -> str:
            point = ring_point(f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]")
            return ring[points[bisect.bisect_left(points, point) % len(points)]]

        return [queue for queue in queues if points and owner_of(queue) == me]


def ring_point(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


AVERAGE = Average()
AVERAGE_BY_CIRCLE = AverageByCircle()
CONSISTENT_HASH = ConsistentHash()

STRATEGIES: dict[str, Strategy] = {"AVG": AVERAGE, "AVG_BY_CIRCLE": AVERAGE_BY_CIRCLE, "CONSISTENT_HASH": CONSISTENT_HASH}
"""Those that need nothing told, by upstream's name. CONFIG, MACHINE_ROOM and MACHINE_ROOM_NEARBY are built with what they need."""
