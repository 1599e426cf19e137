"""Stretches of the log that were read last, kept for those who look through the same ones next.

The messages of a topic's queues stand among each other. A consumer that catches up pulls from all of these queues, some of them a little
ahead of others, and so comes to the same megabytes again and again; one with an SQL filter has all of them looked at for each queue. What
is safe does not change, so what was read stays right until the log is cut back to go on as another node's (`Log.cuts`).
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
WORTH = STRETCH // 16
"""Bytes that were wanted of a stretch before it is read whole: whoever looks once at one place does not pay for what stands around it."""
COUNTED_MAX = 256
"""Stretches of which it is known how much was wanted."""


class LogStretches:
    """State: the stretches by their numbers, the one that was read first at the front, all read after `_cuts` of the log's cuts; of others
    how many bytes were wanted."""

    __slots__ = ("_cuts", "_kept", "_log", "_other", "_wanted")

    def __init__(self, log: Log, other: Callable[[int, int], memoryview]) -> None:
        """`other` views what is not worth a stretch, or not in one."""
        self._log = log
        self._other = other
        self._kept: dict[int, memoryview] = {}
        self._wanted: dict[int, int] = {}
        self._cuts = 0

    def view(self, offset: int, size: int) -> memoryview:
        """These bytes of one file of the log; the next call may overwrite them. Raises Cold and LookupError."""
        if self._cuts != self._log.cuts:
            self._kept.clear()
            self._cuts = self._log.cuts
        number, at = divmod(offset, STRETCH)
        kept = self._kept.get(number)
        if kept is None:
            kept = self._read_if_worth(number, size)
        return self._other(offset, size) if kept is None or at + size > len(kept) else kept[at : at + size]

    def _read_if_worth(self, number: int, size: int) -> memoryview | None:
        """So much more is wanted of this stretch."""
        wanted = self._wanted
        wanted[number] = total = wanted.get(number, 0) + size
        if total < WORTH:
            if len(wanted) > COUNTED_MAX:
                wanted.clear()
            return None
        del wanted[number]  # should it not be there, or go, it is not tried again for each of the next
        return self._read(number)

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
