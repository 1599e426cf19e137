"""Removing a topic's queues: their directory is put aside at once, so that the topic can be made again, and goes in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from roquet.store.deletions import Deletion

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

PUT_AWAY = "deleted"
"""Directory of what is being removed."""


class TopicRemoval:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._disk, self._queues, self._deletions = store.disk, store.all_queues, store.deletions
        self._place = f"{store.root}/{PUT_AWAY}"

    def delete_topic(self, topic: str, topics_version: int = 0, done: Callable[[Exception | None], None] = lambda error: None) -> None:
        """Remove the topic's queues. Its records stay in the log until their file goes, and nothing leads to them any more.

        `done` is called when that is on disk: with it a crash cannot bring the topic back. Nothing of the topic may be staged.
        """
        mark = self._store.log.written
        aside = f"{self._place}/{topic}.{mark}"
        self._put_aside(f"{self._queues.directory}/{topic}", aside)
        held: list[object] = []  # open files and the queues: tens of thousands, which are closed and freed elsewhere
        used = False
        for queue in self._queues.forget(topic):
            self._store.tails.forget(queue)
            held += (queue, *queue.segments.forget_all())
            used = used or queue.next > 0
            if queue.on_visible is not None:
                queue.on_visible(queue)

        def remove() -> None:
            while held:
                held.pop()
            self._disk.remove_tree(aside)

        def removed(result: Exception | None) -> None:
            if isinstance(result, Exception):
                log.warning("%s could not be removed: %s. The next start tries again", aside, result)

        def noted(error: Exception | None) -> None:
            if error is None:
                self._store.background.run(remove, removed)
            done(error)

        if used:
            self._deletions.note(topic, Deletion(mark, topics_version), noted)
        else:
            noted(None)  # the log holds nothing of it

    def _put_aside(self, directory: str, aside: str) -> None:
        try:
            self._disk.make_dir(self._place)
            if self._disk.is_dir(directory):
                self._disk.rename(directory, aside)
        except OSError as error:
            log.warning("%s could not be moved aside, it is removed here: %s", directory, error)
            self._disk.remove_tree(directory)

    def tidy(self) -> None:
        """At the start: finish deletions that a crash cut off, and take back those that were not on disk yet."""
        for name in self._disk.list(self._place):
            topic, _, mark = name.rpartition(".")
            directory = f"{self._queues.directory}/{topic}"
            if mark.isdigit() and topic and not self._deletions.stale(topic, int(mark) - 1) and not self._disk.is_dir(directory):
                log.warning("topic %s was being deleted when the broker was killed: it is kept", topic)
                self._disk.rename(f"{self._place}/{name}", directory)
        self._disk.remove_tree(self._place)
