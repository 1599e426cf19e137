"""Parked pulls: those that found nothing and wait for a message, a deadline, or the end of their connection."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from roquet.ports import Peer

if TYPE_CHECKING:
    from roquet.broker.pull import Pull

PARKED_MAX = 100_000
PARKED_BY_PEER_MAX = 10_000
"""One connection of a client that reads every queue of a large cluster stays far below this."""

Key = tuple[str, int]
"""Topic and queue."""


class Parking:
    """State: every parked pull stands under its queue and under its peer; `_ticket` of a pull is the number of its place in
    the heap of deadlines, where places of pulls that left stay until they come up or are swept."""

    def __init__(self) -> None:
        self._by_queue: dict[Key, dict[Pull, None]] = {}
        self._by_peer: dict[Peer, dict[Pull, None]] = {}
        self._tickets: dict[Pull, int] = {}
        self._deadlines: list[tuple[int, int, Pull]] = []
        self._next = itertools.count()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, pull: Pull) -> bool:
        """False: no room, answer it now."""
        mine = self._by_peer.setdefault(pull.peer, {})
        if len(self._tickets) >= PARKED_MAX or len(mine) >= PARKED_BY_PEER_MAX:
            return False
        ticket = self._tickets[pull] = next(self._next)
        mine[pull] = None
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        heapq.heappush(self._deadlines, (pull.deadline_ms, ticket, pull))
        if len(self._deadlines) > 2 * len(self._tickets) + 1_000:
            self._deadlines = [place for place in self._deadlines if self._tickets.get(place[2]) == place[1]]
            heapq.heapify(self._deadlines)
        return True

    def waits_on(self, key: Key) -> bool:
        return key in self._by_queue

    def take_queue(self, key: Key) -> list[Pull]:
        """Those that wait on this queue, in the order they came; they are parked no more."""
        pulls = list(self._by_queue.get(key, ()))
        for pull in pulls:
            self._leave(pull)
        return pulls

    def take_due(self, now_ms: int, count_max: int) -> list[Pull]:
        """Those whose time is up, the oldest first; not more than so many."""
        due: list[Pull] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(due) < count_max:
            _, ticket, pull = heapq.heappop(self._deadlines)
            if self._tickets.get(pull) == ticket:
                self._leave(pull)
                due.append(pull)
        return due

    def drop_peer(self, peer: Peer) -> list[Pull]:
        """Forget what a lost connection asked for."""
        pulls = list(self._by_peer.get(peer, ()))
        for pull in pulls:
            self._leave(pull)
        self._by_peer.pop(peer, None)
        return pulls

    def _leave(self, pull: Pull) -> None:
        del self._tickets[pull]
        key = (pull.topic, pull.queue_id)
        at_queue, of_peer = self._by_queue[key], self._by_peer[pull.peer]
        del at_queue[pull], of_peer[pull]
        if not at_queue:
            del self._by_queue[key]
        if not of_peer:
            del self._by_peer[pull.peer]
