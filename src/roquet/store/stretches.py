"""Stretches of the log that were read last, kept for those who look through the same ones next.

A consumer with an SQL filter has every message of its queues looked at, and the messages of a topic's queues stand among each other:
pulls from eight queues look through the same megabytes one after another. What is safe does not change, so what was read stays right until
the log is cut back to go on as another node's (`Log.cuts`).
"""

from __future__ import annotations

from collections.abc import Callable

from roquet.store.disk import Cold
from roquet.store.log import Log

STRETCH = 512 * 1024
"""Bytes of one, which begins at a multiple of it."""
BEHIND = 16 * 1024
"""Bytes behind it that are kept along: the last record that begins in it may end there."""
KEPT_MAX = 12
"""Stretches that are kept, 6.2 MiB: those that one pull looks through, and some more for queues that are a little ahead of others."""


class LogStretches:
    """State: the stretches by their numbers, the one that was read first at the front, all read after `_cuts` of the log's cuts."""

    __slots__ = ("_cuts", "_kept", "_log", "_other")

    def __init__(self, log: Log, other: Callable[[int, int], memoryview]) -> None:
        """`other` views what is not worth a stretch, or not in one."""
        self._log = log
        self._other = other
        self._kept: dict[int, memoryview] = {}
        self._cuts = 0

    def view(self, offset: int, size: int) -> memoryview:
        """These bytes of one file of the log; the next call may overwrite them. Raises Cold and LookupError."""
        if self._cuts != self._log.cuts:
            self._kept.clear()
            self._cuts = self._log.cuts
        number, at = divmod(offset, STRETCH)
        kept = self._kept.get(number)
        if kept is None and STRETCH // 2 <= size <= STRETCH + BEHIND - at:
            kept = self._read(number)
        return self._other(offset, size) if kept is None or at + size > len(kept) else kept[at : at + size]

    def _read(self, number: int) -> memoryview | None:
        """None: it is not all in memory and in one file, or some of it may still be taken back."""
        log, kept, start = self._log, self._kept, number * STRETCH
        base = log.segments.base_of(start)
        if base is None:
            return None
        size = min(STRETCH + BEHIND, base + log.segments.size - start)
        if size < STRETCH or start + size > log.safe:
            return None
        room = kept.pop(next(iter(kept))).obj if len(kept) >= KEPT_MAX else bytearray(STRETCH + BEHIND)
        read = memoryview(room)[:size]
        try:
            log.read_into(start, read)
        except (Cold, LookupError):
            return None
        kept[number] = read
        return read
