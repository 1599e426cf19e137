"""Work in the background that must not overtake itself: one piece after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from roquet.ports import Background


class OneByOne:
    """State: the work that was given, each with whom to tell; the first is under way. Its length is how much there is."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def do(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """`done` gets what it returned, or the exception."""
        self._waiting.append((work, done))
        if len(self._waiting) == 1:
            self._next()

    def _next(self) -> None:
        work, done = self._waiting[0]

        def finished(result: Any) -> None:
            self._waiting.popleft()
            if self._waiting:
                self._next()
            done(result)

        self._background.run(work, finished)
