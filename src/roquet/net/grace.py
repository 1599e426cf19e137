"""What is due when a loop goes round again after it stood still: a program held it up, or the machine slept.

What was asked before may not have left yet, and what was answered meanwhile lies in the socket unread. So whatever is found due by an alarm
that rings late has a little longer, once.
"""

from __future__ import annotations

LATE_MS = 200
"""An alarm rings in time up to here."""
GRACE_MS = 200


class Grace:
    __slots__ = ("_had_ms",)

    def __init__(self) -> None:
        self._had_ms = -1
        """What was due by then had its grace."""

    def judge(self, due_ms: int, now_ms: int) -> tuple[int, int]:
        """An alarm was due and rings now. What is due by the first of these is over, and the next alarm is not before the second."""
        if now_ms - due_ms <= LATE_MS:
            return now_ms, now_ms
        had_ms, self._had_ms = self._had_ms, now_ms
        return had_ms, now_ms + GRACE_MS
