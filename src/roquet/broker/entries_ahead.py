"""Queue entries that the next pulls will ask for, read along with those of the last one."""

from __future__ import annotations

from roquet.store.disk import Cold
from roquet.store.log import Log
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue

AHEAD = 256
"""Entries that are read at once: eight answers of the usual size."""
QUEUES_MAX = 512
"""Queues that something is kept of: 2.5 MiB in all."""


class EntriesAhead:
    """State: by queue the number of the first entry that is kept, and the entries, read after `_cuts` of the log's cuts. They are visible
    ones, which change only with such a cut, or when one that is damaged is mended: whoever meets something odd forgets them and looks at
    the queue itself."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._cuts = 0
        self._kept: dict[ConsumeQueue, tuple[int, bytes]] = {}

    def read(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """As `ConsumeQueue.read`, of those that are visible. May raise Cold."""
        if self._cuts != self._log.cuts:
            self._kept.clear()
            self._cuts = self._log.cuts
        count = min(count, queue.visible - offset)
        kept = self._kept.get(queue)
        if kept is not None:
            start, raw = kept
            at = (offset - start) * ENTRY_SIZE
            if at >= 0 and at + count * ENTRY_SIZE <= len(raw) and offset >= queue.first:
                return raw[at : at + count * ENTRY_SIZE]
        more = min(AHEAD, queue.visible - offset)
        if more <= count:
            return queue.read(offset, count)
        try:
            raw = queue.read(offset, more)
        except Cold:
            return queue.read(offset, count)
        if len(self._kept) >= QUEUES_MAX:
            self._kept.clear()
        self._kept[queue] = offset, raw
        return raw[: count * ENTRY_SIZE]

    def forget(self, queue: ConsumeQueue) -> None:
        self._kept.pop(queue, None)

    def clear(self) -> None:
        self._kept.clear()
