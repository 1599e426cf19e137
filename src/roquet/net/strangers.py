"""Connections that have not shown who they are, to a server that wants to know: how many one address may have, and how large their frames
and headers may be. What they ask for costs something before it is refused, and they must not take the place of those who are known.
"""

from __future__ import annotations

from collections.abc import Callable

from roquet.ports import Peer

STRANGERS_MAX = 1_000
"""Of one address. Many honest ones may come at once behind one address, after a restart: they are known with their first request."""


HEADER_MAX = 64 * 1024
"""Bytes of a header: it is taken apart before anybody can say who sends it."""


class Strangers:
    """State: by source, those who came and were not known, in that order. Who is known meanwhile is dropped when somebody looks."""

    def __init__(self, knows: Callable[[Peer], bool], source_of: Callable[[str], str], frame_max: int) -> None:
        """`source_of`: of an "ip:port" what counts as one address. `frame_max`: bytes of a frame, until it is known who sends it."""
        self.knows = knows
        self.frame_max = frame_max
        self.header_max = HEADER_MAX
        self._source_of = source_of
        self._of: dict[str, dict[Peer, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def came(self, peer: Peer) -> None:
        source = self._source_of(peer.address)
        those = self._of.setdefault(source, {})
        those[peer] = None
        if len(those) > STRANGERS_MAX and self._left_of(source) > STRANGERS_MAX:
            self._close_oldest(source, f"{len(those)} connections of its address have not shown who they are, limit is {STRANGERS_MAX}")

    def gone(self, peer: Peer) -> None:
        source = self._source_of(peer.address)
        those = self._of.get(source, {})
        those.pop(peer, None)
        if not those:
            self._of.pop(source, None)

    def send_one_away(self) -> bool:
        """Another one needs the room: the oldest goes, of the address that has most. False: all are known."""
        while self._of:
            source = max(self._of, key=lambda one: len(self._of[one]))
            if self._left_of(source):
                self._close_oldest(source, "there is no room for others, and it has not shown who it is")
                return True
        return False

    def _left_of(self, source: str) -> int:
        """How many of them are not known yet; the others are dropped."""
        those = self._of[source]
        for known in [one for one in those if one.closed or self.knows(one)]:
            del those[known]
        if not those:
            del self._of[source]
        return len(those)

    def _close_oldest(self, source: str, why: str) -> None:
        those = self._of[source]
        oldest = next(iter(those))
        del those[oldest]
        if not those:
            del self._of[source]
        oldest.close(why)
