"""Small pieces of the log that stand far from each other, as those of few messages among many do: each is read, and none is kept."""

from __future__ import annotations

from collections.abc import Callable

from roquet.store.log import Log

ROOM = 16 * 1024
"""Bytes of the largest."""

View = Callable[[int, int], memoryview]


class LogPieces:
    """State: the memory that pieces are read into."""

    __slots__ = ("_log", "_other", "_room")

    def __init__(self, log: Log, other: View) -> None:
        """`other` views what is no small piece of the file that somebody is busy with."""
        self._log = log
        self._other = other
        self._room = memoryview(b"")  # made when it is needed

    def near(self, offset: int) -> View:
        """(log offset, size) -> bytes, until the next call, where most are in the file that holds this offset. The file stays open with
        what is returned, so use it at once. It raises Cold and LookupError."""
        log, other = self._log, self._other
        base = log.segments.base_of(offset)
        if base is None:
            return other
        if not self._room:
            self._room = memoryview(bytearray(ROOM))
        room, stop, read = self._room, min(log.written, base + log.segments.size), log.segments.file(base).read_into

        def view(offset: int, size: int) -> memoryview:
            if not (base <= offset <= stop - size and size <= ROOM):
                return other(offset, size)
            piece = room[:size]
            read(offset - base, piece)
            return piece

        return view
