"""Settings that change at run time go to their file one change after another, in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from roquet.errors import Refused
from roquet.ports import Background, Keep
from roquet.wire.codes import ResponseCode

WAITING_MAX = 1_000

Done = Callable[[str], None]
"""Called with "" when the change is in the file, else with what went wrong."""


class ConfigKeeper:
    """State: `_waiting` are the changes that are not in the file yet; the first of them is being written."""

    def __init__(self, keep: Keep, background: Background) -> None:
        self._keep = keep
        self._background = background
        self._waiting: deque[tuple[Mapping[str, str], Done]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def check(self) -> None:
        """Raises Refused when too many changes wait already."""
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} changes of settings wait to be written, try again")

    def put(self, pairs: Mapping[str, str], done: Done) -> None:
        self._waiting.append((pairs, done))
        if len(self._waiting) == 1:
            self._next()

    def _next(self) -> None:
        pairs, done = self._waiting[0]

        def finished(result: Exception | None) -> None:
            self._waiting.popleft()
            if self._waiting:
                self._next()
            done("" if result is None else f"{type(result).__name__}: {result}")

        self._background.run(lambda: self._keep(pairs), finished)
