"""What is known about the store times along the log."""

from __future__ import annotations

SET_BACKS_MAX = 64
"""Places in the log that are kept where the clock was set back; with more than that, searches by time know the newest only."""


class Timeline:
    """State: `last_ms` is the store time of the last message that is written."""

    def __init__(self) -> None:
        self.last_ms = 0
        self.set_backs: list[int] = []
        """Log offsets where the wall clock had been set back: between two of them store times rise."""
        self.overtaken: list[tuple[int, int]] = []
        """(start, end) of stretches of the log in which a record may have outlived one that was written before it."""

    def recovered(self, last_ms: int, set_backs: list[int], overtaken: list[tuple[int, int]]) -> None:
        self.last_ms = last_ms
        self.set_backs = set_backs[-SET_BACKS_MAX:]
        self.overtaken = overtaken[-SET_BACKS_MAX:]

    def note_set_back(self, written: int) -> None:
        """The wall clock was set back, and the log is written up to here."""
        if not self.set_backs or self.set_backs[-1] < written:
            self.set_backs = [*self.set_backs, written][-SET_BACKS_MAX:]
