"""The stretch of the log that was read last, kept for those who want it next.

Consumers that catch up pull from one queue after another, and the messages of these queues stand among each other in the log: each wants
nearly the bytes that the one before it got. What is safe does not change, so what was read stays right until the log is cut back to go
on as another node's (`Log.cuts`).
"""

from __future__ import annotations

import contextlib

from roquet.store.disk import Cold
from roquet.store.log import Log

ROOM = 512 * 1024
"""Bytes of the longest stretch that is kept: small enough to stay in the processor's cache."""
AHEAD = 256 * 1024
"""Bytes that are read when one read goes on where the last one was."""


class LogWindow:
    """State: `_room` holds the bytes of the log from `_start` to `_stop`, read after `_cuts` of its cuts. Each owner has its own: owners
    may run in several threads."""

    __slots__ = ("_cuts", "_log", "_room", "_start", "_stop")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._room = memoryview(b"")  # made at the first read: many a broker has none
        self._start = self._stop = self._cuts = 0

    def view(self, offset: int, size: int) -> memoryview:
        """These bytes of one file of the log; the next call may overwrite them. Raises Cold and LookupError."""
        if self._cuts != self._log.cuts:
            self._start, self._stop, self._cuts = 0, 0, self._log.cuts
        at = offset - self._start
        if at >= 0 and offset + size <= self._stop:
            return self._room[at : at + size]
        if size > ROOM:
            own = memoryview(bytearray(size))
            self._log.read_into(offset, own)
            return own
        if not self._room:
            self._room = memoryview(bytearray(ROOM))
        goes_on, self._start, self._stop = at >= 0 and offset <= self._stop, 0, 0
        room = self._room[:size]
        if not goes_on or not self._read(offset, self._ahead(offset, size)):
            self._log.read_into(offset, room)
            self._start, self._stop = offset, min(offset + size, self._log.safe)
        return room

    def stretch(self, first: int, stop: int) -> memoryview | None:
        """What stands between these two, as far as it is safe and of one file. None: nothing, or too much, or it is not in memory."""
        base = self._log.segments.base_of(first)
        if base is None:
            return None
        size = min(stop, self._log.safe, base + self._log.segments.size) - first
        with contextlib.suppress(Cold, LookupError):
            return self.view(first, size) if 0 < size <= ROOM else None
        return None

    def _ahead(self, offset: int, size: int) -> int:
        """How much to read from here on, where so much is wanted: not what may still be taken back, nor beyond the file."""
        log = self._log
        base = log.segments.base_of(offset)
        return 0 if base is None else max(size, min(AHEAD, log.safe - offset, base + log.segments.size - offset))

    def _read(self, offset: int, size: int) -> bool:
        try:
            self._log.read_into(offset, self._room[:size])
        except (Cold, LookupError):
            return False
        self._start, self._stop = offset, offset + size
        return True
