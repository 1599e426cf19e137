"""Warnings that stay up until somebody mends their cause.

A log line scrolls away. What an operator must know (two members of a group that disagree, a disk that fills) is kept
here too: `roquet status` shows it, and the console will.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from roquet.ports import Clock

log = logging.getLogger("roquet.broker")

NOTICES_MAX = 1_000
"""Notices kept at once; beyond it the one that was seen longest ago goes."""
TEXT_MAX = 2_000
"""Characters of one text: names in it come from clients."""


@dataclass(slots=True)
class Notice:
    key: str
    text: str
    first_ms: int
    last_ms: int
    count: int


class Notices:
    """Keyed, so that a warning repeated by every heartbeat is one notice and one log line."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._notices: dict[str, Notice] = {}  # the longest unseen first

    def warn(self, key: str, text: str) -> None:
        """Put up a notice, or say that it still holds. It is logged when it is new or says something else than before."""
        now_ms = self.clock.now_ms()
        text = text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."
        found = self._notices.pop(key, None)
        if found is None:
            found = Notice(key, text, now_ms, now_ms, 0)
            log.warning("%s", text)
            if len(self._notices) >= NOTICES_MAX:
                del self._notices[next(iter(self._notices))]
        elif found.text != text:
            log.warning("%s", text)
        found.text, found.last_ms = text, now_ms
        found.count += 1
        self._notices[key] = found

    def clear(self, key: str) -> None:
        """The cause is gone. Clearing what is not there is fine."""
        found = self._notices.pop(key, None)
        if found is not None:
            log.info("resolved: %s", found.text)

    def list(self) -> list[Notice]:
        """Oldest first."""
        return sorted(self._notices.values(), key=lambda notice: (notice.first_ms, notice.key))

    def __len__(self) -> int:
        return len(self._notices)
