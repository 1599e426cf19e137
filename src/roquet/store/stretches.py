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
"""Stretches that are kept, 6.2 MiB, and room for one more: those that one pull looks through, and some for queues that are ahead."""
PIECE_MAX = STRETCH // 4
"""Bytes of the largest piece that is not half a stretch itself and still worth one: larger ones cross its end too often."""
WORTH = STRETCH // 16
"""Bytes that were wanted of a stretch before it is read whole: whoever looks once at one place does not pay for what stands around it."""
PAID = KEPT_MAX * STRETCH // 2
"""Bytes that must have been seen in all of them since one was read before another takes its place: half a stretch for each. Where more
readers are at different places than stretches are kept, the next would come too late for each of them."""
AGE = 8
"""One that has not paid goes after so many times the bytes were refused."""
COUNTED_MAX = 256
"""Stretches of which it is known how much was wanted."""


class LogStretches:
    """State: the stretches by their numbers, the one that was read first at the front, all read after `_cuts` of the log's cuts; how many
    bytes were `viewed` in them, and how many when each was read; of others how many bytes were wanted; and the memory of one that is
    gone."""

    __slots__ = ("_cuts", "_kept", "_log", "_other", "_read_at", "_spare", "_wanted", "viewed")

    def __init__(self, log: Log, other: Callable[[int, int], memoryview]) -> None:
        """`other` views what is not worth a stretch, or not in one."""
        self._log = log
        self._other = other
        self._kept: dict[int, memoryview] = {}
        self._read_at: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        self._spare: bytearray | None = None
        self._cuts = 0
        self.viewed = 0
        """Whoever looks into `kept` adds to it."""

    def kept(self) -> dict[int, memoryview]:
        """Those that may be looked at now, until the next call of `view`."""
        if self._cuts != self._log.cuts:
            self._kept.clear()
            self._read_at.clear()
            self._wanted.clear()
            self._cuts = self._log.cuts
        return self._kept

    def view(self, offset: int, size: int) -> memoryview:
        """These bytes of one file of the log; the next call may overwrite them. Raises Cold and LookupError."""
        number, at = divmod(offset, STRETCH)
        stop = at + size
        kept = self.kept().get(number)
        if kept is None and stop <= STRETCH + BEHIND and (size <= PIECE_MAX or size >= STRETCH // 2):
            kept = self._read_if_worth(number, size)
        if kept is None or stop > len(kept):
            return self._other(offset, size)
        self.viewed += size
        return kept[at:stop]

    def _read_if_worth(self, number: int, size: int) -> memoryview | None:
        """So much more is wanted of this stretch."""
        wanted = self._wanted
        wanted[number] = total = wanted.get(number, 0) + size
        if total < WORTH:
            if len(wanted) > COUNTED_MAX:
                wanted.clear()
            return None
        del wanted[number]  # should it not be there, or go, it is not tried again for each of the next
        if len(self._kept) >= KEPT_MAX:
            first = next(iter(self._kept))
            if self.viewed - self._read_at[first] < PAID:
                self._read_at[first] -= KEPT_MAX * total // AGE
                return None
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
        room, self._spare = self._spare or bytearray(STRETCH + BEHIND), None
        read = memoryview(room)[:size]
        try:
            log.read_into(start, read)
        except (Cold, LookupError, OSError):  # what is wanted of it may be readable
            self._spare = room
            return None
        if len(kept) >= KEPT_MAX:
            first = next(iter(kept))
            gone = kept.pop(first).obj
            del self._read_at[first]
            assert isinstance(gone, bytearray)
            self._spare = gone
        kept[number] = read
        self._read_at[number] = self.viewed
        return read
