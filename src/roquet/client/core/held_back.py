"""HeldBack: how often a limit of the client made a queue wait, and a line in the log about it.

messages   more than count_max of the queue are held here
bytes      they have more than size_max bytes
span       the oldest of them is more than span_max behind the newest: one message that does not end
lock       orderly: another member has the queue, or its broker does not confirm that it is ours
all        LitePullConsumer: more than count_all_max of all queues are held here
"""

from __future__ import annotations

import logging
from typing import Literal

from roquet.message import MessageQueue

log = logging.getLogger(__name__)

QUIET_MS = 60_000

Limit = Literal["messages", "bytes", "span", "lock", "all"]

SLOW = "handlers are slower than messages come: make them faster, raise concurrency, or start another member"
ADVICE: dict[Limit, str] = {
    "messages": SLOW,
    "bytes": SLOW,
    "span": "a handler that has one of its oldest messages does not end: look what it waits for",
    "lock": "this is usual for some seconds after members came or went",
    "all": "poll is called too rarely",
}


class HeldBack:
    """Each count grows by one when a queue begins to wait; while it goes on waiting for the same reason it is not counted again."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.messages = 0
        self.bytes = 0
        self.span = 0
        self.lock = 0
        self.all = 0
        self._told: dict[tuple[MessageQueue, Limit], int] = {}

    def count(self, limit: Limit) -> None:
        """A queue begins to wait."""
        setattr(self, limit, getattr(self, limit) + 1)

    def say(self, limit: Limit, queue: MessageQueue, why: str, now_ms: int, *, advice: str = "") -> None:
        """It waits: one line in the log, at most once a minute for each queue and limit."""
        told_ms = self._told.get((queue, limit))
        if told_ms is None or now_ms - told_ms >= QUIET_MS:
            self._told[queue, limit] = now_ms
            level = logging.INFO if advice or limit == "lock" else logging.WARNING  # what is usual for this kind of consumer
            log.log(level, "! group %s: %s waits: %s; %s", self.group, queue, why, advice or ADVICE[limit])

    def as_dict(self) -> dict[str, int]:
        """As JSON takes it."""
        return {limit: getattr(self, limit) for limit in ADVICE}
