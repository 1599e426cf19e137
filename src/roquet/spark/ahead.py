"""Make the next item while the last one is used.

Spark moves rows in one thread a task: it waits for a batch of the source, turns it into rows, hands them to the sink, and takes the next
one only then. The Pythons at both ends would wait just as long. Here a thread of each does what comes next meanwhile: it pulls and decodes
the next batch of the source, or receives the next batch for the sink. All of that is done in C without the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


def ahead(items: Iterable[T], count: int = 1) -> Iterator[T]:
    """The same items, and the same error at their end. `count`: how many are made before they are asked for.

    Who stops early waits for nothing: the thread ends when the item that it works on is made, and closes `items` itself.
    """
    making = _Making(items, count)
    try:
        while True:
            item, error = making.next()
            if error is not None:
                raise error
            if item is None:
                return
            yield item[0]
            del item  # not kept until the next one is there
    finally:
        making.stop()


class _Making(Generic[T]):
    def __init__(self, items: Iterable[T], count: int) -> None:
        self._items = items
        self._made: SimpleQueue[tuple[tuple[T] | None, BaseException | None]] = SimpleQueue()
        self._room = threading.Semaphore(count)
        self._stopped = False
        # A daemon: a worker that Spark ends must not wait for what nobody wants any more.
        threading.Thread(target=self._run, name="ahead", daemon=True).start()

    def next(self) -> tuple[tuple[T] | None, BaseException | None]:
        """The next item, or the error that ended them, or neither: it was the last."""
        found = self._made.get()
        self._room.release()
        return found

    def stop(self) -> None:
        self._stopped = True
        self._room.release()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._room.acquire()
            for item in self._items:
                self._made.put(((item,), None))
                del item
                self._room.acquire()
                if self._stopped:
                    break
            if isinstance(self._items, Generator):
                self._items.close()
        except BaseException as raised:
            error = raised
        self._made.put((None, error))
