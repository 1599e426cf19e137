"""Where messages are read from, be it brokers or files: the one interface that the source and every pipeline use.

A Place is made where it is used (in the driver, in each task) from plain options, never pickled with its connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from roquet.errors import ClientError
from roquet.message import MessageQueue

Positions = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int32]


class DataGone(ClientError):
    """Messages that were to be read are not there any more: retention removed them, or the queue was made anew.

    `queue` offsets `start` to `available` are missing (`available` is the first that can be read, or the end when all is gone).
    """

    def __init__(self, queue: MessageQueue, start: int, available: int) -> None:
        where = f"{queue.topic}/{queue.queue_id} on {queue.broker_name}"
        super().__init__(f"{where}: offset {start} was asked for, the first that is still there is {available}")
        self.queue, self.start, self.available = queue, start, available

    def __reduce__(self) -> tuple[type[DataGone], tuple[MessageQueue, int, int]]:
        return DataGone, (self.queue, self.start, self.available)


@dataclass(slots=True)
class Chunk:
    """Whole records of one queue, in the order of their offsets, somewhere in one stretch of bytes.

    `data` is a buffer (bytes, memoryview, a mapped file); record n is data[positions[n] : positions[n] + sizes[n]].
    Positions rise. All lie inside `data`; what the records say of themselves is not checked yet.
    """

    data: memoryview
    positions: Positions
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants to see. Both None: everything."""

    tags: str | None = None
    """Upstream's tag expression, "paid || shipped"."""
    sql: str | None = None
    """An SQL92 expression over properties."""


class Place(Protocol):
    """Blocking; used by one thread. Raises RoquetError with a sentence when something is not there."""

    def topics(self) -> list[str]:
        """Every topic that can be read, system topics included, sorted."""
        ...

    def queues(self, topic: str) -> list[MessageQueue]:
        """Every readable queue, sorted. Raises NoRoute for an unknown topic."""
        ...

    def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """(first, end) of each: the offsets that can be read now are first <= offset < end.

        A queue whose broker does not answer now is left out: the caller decides what that means.
        """
        ...

    def offsets_at(self, queues: Sequence[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """The first offset whose message was stored at or after this time; the end when there is none."""
        ...

    def chunks(self, queue: MessageQueue, start: int, stop: int, wanted: Wanted) -> Iterator[Chunk]:
        """The messages with start <= offset < stop that are wanted, in order. The same every time it is asked.

        Raises DataGone (places.py) when some of them are not there any more.
        """
        ...

    def close(self) -> None: ...
