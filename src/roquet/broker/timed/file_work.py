"""Work on the timer files, in the background and one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from roquet.ports import Background
from roquet.store.timers import TimerFiles


class FileWork:
    """State: the work that waits, each with whom to tell, and whether some is under way."""

    def __init__(self, files: TimerFiles, background: Background) -> None:
        self._files = files
        self._background = background
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.busy = False

    def do(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._waiting.append((work, done))
        self._next()

    def after_write(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Rows that are not in the files yet are written first; if that fails, or the work does, they are fresh again."""
        write, failed = self._files.writer()

        def write_and_work() -> Any:
            write()
            return work()

        def written(result: Any) -> None:
            if isinstance(result, Exception):
                failed()
            done(result)

        self.do(write_and_work, written)

    def _next(self) -> None:
        if self.busy or not self._waiting:
            return
        self.busy = True
        work, done = self._waiting.popleft()

        def finished(result: Any) -> None:
            self.busy = False
            done(result)
            self._next()

        self._background.run(work, finished)
