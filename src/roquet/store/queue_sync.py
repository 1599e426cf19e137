"""The sync of all queues that were written: tens of thousands of files, and nobody waits for them.

What a queue says about its files is asked on the owner's thread, for some queues a turn; their syncs are done in the background.
"""

from __future__ import annotations

from collections.abc import Callable

from roquet.ports import Background
from roquet.store.queue import ConsumeQueue

SYNCED_A_TURN = 1_000
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

    def begin(self) -> None:
        self._background.run(self._in_order, self._go_on)

    def _in_order(self) -> list[ConsumeQueue]:
        return sorted(self._stops, key=lambda queue: (queue.topic, queue.queue_id))

    def _go_on(self, left: list[ConsumeQueue] | Exception) -> None:
        if isinstance(left, Exception):
            self._done(left)
            return
        if not left:
            self._done(None)
            return
        works = [queue.syncer(self._stops[queue]) for queue in left[:SYNCED_A_TURN]]
        self._not_done += [undo for _, undo in works]

        def work() -> list[ConsumeQueue]:
            for one, _ in works:
                one()
            return left[SYNCED_A_TURN:]

        self._background.run(work, self._go_on)
