"""Entries of queues that wait in memory for their file: a queue costs one write whatever it got, so it is written now and then.

Queues stand in the order of the log, so the first one tells up to where all queue files are complete.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from roquet.ports import FOREVER
from roquet.store.disk import is_shortage
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.wire.arrays import np
from roquet.wire.columns import ENTRIES

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")


class Tails:
    """State: `waiting` has the queues with entries that are not in their file yet: where the log ended before the oldest of them, and
    the store time then. `dirty` are those whose file was written since its last sync."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queues = store.all_queues
        self.waiting: OrderedDict[ConsumeQueue, tuple[int, int]] = OrderedDict()
        self.dirty: set[ConsumeQueue] = set()

    def recovered(self) -> None:
        """Any queue may have been given entries."""
        queues = self._queues.table.values()
        self.dirty = set(queues)
        self.waiting = OrderedDict((queue, (0, 0)) for queue in queues if queue.tail)

    def forget(self, queue: ConsumeQueue) -> None:
        self.waiting.pop(queue, None)
        self.dirty.discard(queue)

    def covered(self) -> tuple[int, int]:
        """Below this log offset all entries are in the queues' files, and the store time there."""
        first = next(iter(self.waiting.values()), None)
        return (self._store.applier.reach, self._store.timeline.last_ms) if first is None else first

    def write(self, until_ms: int = FOREVER) -> None:
        """Those that have waited longest first, and entries of committed messages alone: what is only staged may be undone yet.
        `until_ms`: steady time after which the others wait for the next tick."""
        waiting, steady_ms, trouble = self.waiting, self._store.clock.steady_ms, self._store.trouble
        staged: dict[ConsumeQueue, int] = {}
        for queue, before, _, _ in self._store.staging.staged:
            staged.setdefault(queue, before)
        while waiting:
            queue = next(iter(waiting))
            if not self._queues.has(queue):
                del waiting[queue]  # its topic was deleted in the tick that wrote it: the file is another queue's now
                continue
            stop = staged.get(queue, queue.next)
            sizes = np.frombuffer(bytes(queue.tail[: (stop - queue.tail_start) * ENTRY_SIZE]), dtype=ENTRIES)["size"]
            try:
                queue.write_tail(stop)
            except OSError as error:
                if is_shortage(error):
                    trouble.short_of_files(error)
                    return
                log.warning("queue %s/%d could not be written: %s", queue.topic, queue.queue_id, error)
                trouble.full = trouble.full or f"the disk is full: {error}"
                return
            del waiting[queue]
            self.dirty.add(queue)
            self._store.on_counted(queue.topic, len(sizes), int(sizes.sum()))
            if steady_ms() >= until_ms:
                return
