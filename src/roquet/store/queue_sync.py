"""The sync of all queues that were written: tens of thousands of files, and nobody waits for them.

What a queue says about its files is asked on the owner's thread, for some queues a turn; their syncs are done in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from roquet.ports import Background
from roquet.store.queue import ConsumeQueue

SYNCED_A_TURN = 500
"""Queues whose sync is prepared in one turn of the loop: a few microseconds each."""

Undo = Callable[[], None]


def sync_queues(
    stops: dict[ConsumeQueue, int], not_done: list[Undo], background: Background, done: Callable[[Exception | None], None]
) -> None:
    """One round over these queues. `stops`: of each, the first entry that does not count as safe by this. `not_done` gets what to call
    if it fails. `done` is called on the owner's thread, with what went wrong or None."""
    left: list[ConsumeQueue] = []

    def put_in_order() -> None:
        left.extend(sorted(stops, key=lambda queue: (queue.topic, queue.queue_id)))

    background.run(put_in_order, partial(_go_on, left, stops, not_done, background, done))


def _go_on(
    left: list[ConsumeQueue], stops: dict[ConsumeQueue, int], not_done: list[Undo], background: Background,
    done: Callable[[Exception | None], None], error: Exception | None,
) -> None:  # fmt: skip
    """Not a function inside of the other that names itself: that would be a cycle, and hold all queues until the collector comes."""
    some = left[:SYNCED_A_TURN]
    del left[:SYNCED_A_TURN]
    if error is not None or not some:
        done(error)
        return
    works = [queue.syncer(stops[queue]) for queue in some]
    not_done.extend(undo for _, undo in works)

    def work() -> None:
        for one, _ in works:
            one()

    background.run(work, partial(_go_on, left, stops, not_done, background, done))
