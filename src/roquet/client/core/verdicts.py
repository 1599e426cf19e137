"""What a consumer's function may say of its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from roquet.errors import ClientError
from roquet.message import ReceivedMessage


class Outcome(Enum):
    """What a consumer's function may return instead of None; COMMIT and ROLLBACK are for orderly consumers."""

    SUCCESS = "SUCCESS"
    RETRY_LATER = "RETRY_LATER"
    """Concurrent: deliver again, after a time that grows. Orderly: again here, after a moment, and nothing overtakes it."""
    COMMIT = "COMMIT"
    """Orderly without auto commit: finished, with everything since the last commit."""
    ROLLBACK = "ROLLBACK"
    """Orderly without auto commit: again, with everything since the last commit."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Deliver again. `delay_level`: after the broker's level of that number; 0: the broker counts it from the number of
    failures (10 s, 30 s, 1 min...); -1: never, make it a dead letter. `messages`: only these of the batch failed. `why`: a text that
    goes with them: `message.failure`, and what `roquet dead-letters look` shows."""

    delay_level: int = 0
    messages: Sequence[ReceivedMessage] | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if not -1 <= self.delay_level <= 1_000:
            raise ClientError(f"delay_level={self.delay_level}; allowed are -1 (dead letter), 0 (by the number of failures) and levels")


@dataclass(frozen=True, slots=True)
class Suspend:
    """Orderly: the same messages again after so many milliseconds (10 to 30000; None: the consumer's suspend_queue_ms)."""

    ms: int | None = None


Verdict = Outcome | RetryLater | Suspend

RETRY_LATER = Outcome.RETRY_LATER
DEAD_LETTER = RetryLater(-1)
COMMIT = Outcome.COMMIT
ROLLBACK = Outcome.ROLLBACK

Judged = Callable[[Verdict], None]
Listener = Callable[[list[ReceivedMessage], Judged], None]
"""(messages of one queue and one topic, say what became of them). Must call the second exactly once, at any time."""
