"""Waiting is a number that rises.

The log has two of these, and there is no other way to wait for it: bytes that are safe, which sends wait for, and bytes that are
durable, which cursors and derived files wait for. No futures, no timers: deadlines are checked in `expire`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Wake = Callable[[bool], None]
"""Called once: True when the mark was reached, False when the deadline passed or waiting was given up."""


class Watermark:
    """An offset that only grows, and its waiters, in the order of their targets."""

    __slots__ = ("_waiting", "given_up", "on_rise", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.given_up = False
        self.on_rise: Callable[[], None] | None = None
        self._waiting: deque[tuple[int, int, Wake]] = deque()

    def when_reached(self, target: int, deadline_ms: int, wake: Wake) -> None:
        """Targets must come in rising order, which they do where one owner appends."""
        if self.value >= target or self.given_up:
            wake(self.value >= target)
            return
        assert not self._waiting or self._waiting[-1][0] <= target
        self._waiting.append((target, deadline_ms, wake))

    def advance(self, value: int) -> None:
        if value <= self.value:
            return
        self.value = value
        if self.on_rise is not None:
            self.on_rise()
        waiting = self._waiting
        while waiting and waiting[0][0] <= value:
            waiting.popleft()[2](True)

    def expire(self, now_ms: int) -> None:
        """Deadlines rise with targets (one timeout for all), so only the front can be late."""
        waiting = self._waiting
        while waiting and waiting[0][1] <= now_ms:
            waiting.popleft()[2](False)

    def disappoint(self, value: int) -> None:
        """Wake those with False who wait for no more than this: it is about to rise for another reason than what they wait for."""
        while self._waiting and self._waiting[0][0] <= value:
            self._waiting.popleft()[2](False)

    def forget_behind(self, value: int) -> None:
        """Wake those with False who wait for more than this: what they wait for was taken back."""
        while self._waiting and self._waiting[-1][0] > value:
            self._waiting.pop()[2](False)

    def give_up(self) -> None:
        """Wake everybody with False, now and from now on: what they wait for will not come."""
        self.given_up = True
        waiting, self._waiting = self._waiting, deque()
        for _, _, wake in waiting:
            wake(False)

    def __len__(self) -> int:
        return len(self._waiting)
