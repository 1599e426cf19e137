"""Who was refused and why, a line each; and who asks wrongly so often that it is not worth an answer any more."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from roquet.hosts import source_of
from roquet.ports import Clock

log = logging.getLogger("roquet.audit")

KEPT = 256
"""Refused calls that can be asked for."""
LINES_AT_ONCE = 20
LINES_PER_S = 1
"""Log lines for one address: so many at once, and then one a second. What is left out is counted."""
WRONG_AT_ONCE = 20
WRONG_PER_S = 2
"""Wrong signatures from one address that are answered; beyond that the connection that sends one is closed. One with a large body counts
for more: each megabyte of it as one."""
KEYLESS_AT_ONCE = 200
KEYLESS_PER_S = 20
"""Requests without a key from one address that are answered; beyond that the same."""
SOURCES_MAX = 4_096
"""Addresses that are remembered. Beyond that the one that has been silent longest is forgotten."""


@dataclass(frozen=True, slots=True)
class RefusedCall:
    time_ms: int
    """Wall time."""
    address: str
    access_key: str
    code: int
    resource: str
    why: str


class Allowance:
    """So many at once, and so many a second after that, for each source."""

    def __init__(self, clock: Clock, at_once: int, per_s: int) -> None:
        self._clock = clock
        self._at_once = at_once
        self._per_s = per_s
        self._left: dict[str, tuple[float, int]] = {}  # source -> what is left, and when that was reckoned

    def take(self, source: str, cost: int = 1) -> bool:
        """Whether there was any left. One that costs more is paid for afterwards."""
        now_ms = self._clock.steady_ms()
        left = self._left_of(source, now_ms)
        self._left.pop(source, None)
        if len(self._left) >= SOURCES_MAX:
            del self._left[next(iter(self._left))]
        self._left[source] = (left - cost if left >= 1 else left, now_ms)
        return left >= 1

    def is_over(self, source: str) -> bool:
        return self._left_of(source, self._clock.steady_ms()) < 1

    def _left_of(self, source: str, now_ms: int) -> float:
        left, then_ms = self._left.get(source, (float(self._at_once), now_ms))
        return min(self._at_once, left + (now_ms - then_ms) * self._per_s / 1000)


class Audit:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._lines = Allowance(clock, LINES_AT_ONCE, LINES_PER_S)
        self._wrong = Allowance(clock, WRONG_AT_ONCE, WRONG_PER_S)
        self._keyless = Allowance(clock, KEYLESS_AT_ONCE, KEYLESS_PER_S)
        self._silent = 0
        self.calls: deque[RefusedCall] = deque(maxlen=KEPT)
        self.refused = 0
        """Since the start."""

    def note(self, address: str, access_key: str, code: int, resource: str, why: str) -> None:
        """Whatever a peer sent is shortened and escaped before it is kept."""
        call = RefusedCall(self.clock.now_ms(), address, shown(access_key), code, shown(resource), shown(why, 400))
        self.refused += 1
        self.calls.append(call)
        if not self._lines.take(source_of(address)):
            self._silent += 1
            return
        more = f" ({self._silent} more refused calls have no line)" if self._silent else ""
        self._silent = 0
        log.warning(
            "refused: key %s from %s, request %d, %s: %s%s", call.access_key or "-", address, code, call.resource or "-", call.why, more
        )

    def too_many_wrong(self, address: str, body_size: int) -> bool:
        """One more wrong signature came from there."""
        return not self._wrong.take(source_of(address), 1 + (body_size >> 20))

    def guesses(self, address: str) -> bool:
        """So many wrong signatures came from there that another one would not be answered."""
        return self._wrong.is_over(source_of(address))

    def too_many_keyless(self, address: str) -> bool:
        """One more request without a key came from there."""
        return not self._keyless.take(source_of(address))


def shown(text: str, limit: int = 128) -> str:
    """Safe to print: one line, nothing that a terminal obeys."""
    return "".join(one if one.isprintable() else "?" for one in text[:limit])
