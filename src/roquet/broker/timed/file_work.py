"""Work on the timer files, in the background and one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roquet.broker.one_by_one import OneByOne
from roquet.ports import Background
from roquet.store.timers import TimerFiles


class FileWork(OneByOne):
    def __init__(self, background: Background, files: TimerFiles) -> None:
        super().__init__(background)
        self._files = files

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
