"""Brokers that take one name and id from each other.

Upstream's name server gives the route to whoever registered last, without a word. Here it is reported who replaced whom: once for
each pair of addresses, and again at most once a minute while it goes on, for two such brokers register in turns for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

log = logging.getLogger(__name__)

AGAIN_MS = 60_000
KEPT_MAX = 1_000
"""Pairs that are remembered; whoever makes addresses up gets a line for each, and fills no memory."""


class Rivals:
    """State: when each pair was reported last, and how often it was met since."""

    def __init__(self) -> None:
        self._reported: dict[Hashable, tuple[int, int]] = {}  # the longest unreported first

    def met(
        self, broker_name: str, broker_id: int, holder: str, newcomer: str, peer: str, now_ms: int, *, alive: bool, refused: bool
    ) -> None:
        """`newcomer` registers under the name and id that `holder` has; the request came from `peer`."""
        key = (broker_name, broker_id, frozenset((holder, newcomer)))
        reported_ms, count = self._reported.get(key, (now_ms - AGAIN_MS, 0))
        if now_ms - reported_ms < AGAIN_MS:
            self._reported[key] = (reported_ms, count + 1)
            return
        self._reported.pop(key, None)
        self._reported[key] = (now_ms, 0)
        if len(self._reported) > KEPT_MAX:
            del self._reported[next(iter(self._reported))]
        what = "is refused: the other one is alive" if refused else "takes its route"
        if not alive:
            what += ": the other one was silent for too long"
        log.warning(
            "broker %s id %d is registered at %s; a registration from %s names %s, which %s%s. "
            "Two brokers must not have the same name and id",
            broker_name, broker_id, holder, peer, newcomer, what, f" ({count} more times since the last line)" if count else "",
        )  # fmt: skip
