"""Threads for what may block: fsync, and reads that are not in memory. The result comes back on the loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class ThreadBackground:
    """A few threads and one queue. Plain on purpose: an executor's futures cost more than a group commit's fsync."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 4) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"roquet-background-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self._jobs.put((work, done))

    def close(self) -> None:
        """Finish what is queued; its results are dropped if the loop has ended by then."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while self._do_one():
            pass

    def _do_one(self) -> bool:
        """In a function of its own, so that nothing of a job (an open file) lives on while the next is awaited."""
        job = self._jobs.get()
        if job is None:
            return False
        work, done = job
        try:
            result = work()
        except Exception as error:  # whatever it was, the owner decides
            result = error
        try:
            self._loop.call_soon_threadsafe(done, result)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return False
        return True
