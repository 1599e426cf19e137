"""The sync of all queues that were written: tens of thousands of files, and nobody waits for them.

What a queue says about its files is asked on the owner's thread, for some queues a turn; their syncs are done in the background.
"""

from __future__ import annotations

from collections.abc import Callable

from roquet.ports import Background
from roquet.store.queue import ConsumeQueue

SYNCED_A_TURN = 500
"""Queues whose sync is prepared in one turn of the loop: a few microseconds each."""

Undo = Callable[[], None]


class QueueSync:
    """One round over these queues. `done` is called on the owner's thread, with what went wrong or None."""

    def __init__(
        self, stops: dict[ConsumeQueue, int], not_done: list[Undo], background: Background, done: Callable[[Exception | None], None]
    ) -> None:
        """`stops`: of each queue, the first entry that does not count as safe by this. `not_done` gets what to call if it fails."""
        self._stops = stops
        self._not_done = not_done
        self._background = background
        self._done = done
        self._queues: list[ConsumeQueue] = []
        self._at = 0

    def begin(self) -> None:
        self._background.run(self._put_in_order, self._go_on)

    def _put_in_order(self) -> None:
        self._queues = sorted(self._stops, key=lambda queue: (queue.topic, queue.queue_id))

    def _go_on(self, error: Exception | None) -> None:
        some = self._queues[self._at : self._at + SYNCED_A_TURN]
        self._at += len(some)
        if error is not None or not some:
            self._done(error)
            return
        works = [queue.syncer(self._stops[queue]) for queue in some]
        self._not_done += [undo for _, undo in works]

        def work() -> None:
            for one, _ in works:
                one()

        self._background.run(work, self._go_on)
