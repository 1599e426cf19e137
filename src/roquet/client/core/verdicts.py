"""What a consumer's function may say of its messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

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
    goes with them: `message.failure`, and what `roquet dead-letters look` shows. `also`: the same for other messages of the batch, with
    a level and a reason of their own. An orderly consumer knows of the levels -1 alone: others come again here."""

    delay_level: int = 0
    messages: Sequence[ReceivedMessage] | None = None
    why: str = ""
    also: Sequence[RetryLater] = ()

    def __post_init__(self) -> None:
        """What is wrong is said where it is made, in the handler: so it fails, and its messages come again with that as the reason."""
        level, messages = self.delay_level, self.messages
        if not is_whole(level) or not -1 <= level <= 1_000:
            raise ClientError(f"delay_level={level!r}; allowed are -1 (dead letter), 0 (by the number of failures) and levels")
        if messages is not None and not is_all(messages, ReceivedMessage):
            raise ClientError(f"RetryLater(messages={messages!r:.80}); expected is a list of messages, as in messages=[message]")
        if not isinstance(self.why, str):
            raise ClientError(f"RetryLater(why={self.why!r:.80}); expected is a text, as in why=str(error)")
        if not is_all(self.also, RetryLater):
            raise ClientError(f"RetryLater(also={self.also!r:.80}); expected is a list, as in also=[RetryLater(...)]")

    def failed(self, messages: Sequence[ReceivedMessage]) -> list[tuple[ReceivedMessage, int, str]]:
        """Those of a call's messages that failed, each with its level and reason. The others are done."""
        if self.messages is None and not self.also:
            return [(message, self.delay_level, self.why) for message in messages]
        found = []
        for message in messages:
            part = next((part for part in (self, *self.also) if part.messages is None or message in part.messages), None)
            if part is not None:
                found.append((message, part.delay_level, part.why))
        return found


@dataclass(frozen=True, slots=True)
class Suspend:
    """Orderly: the same messages again after so many milliseconds (10 to 30000; None: the consumer's suspend_queue_ms)."""

    ms: int | None = None

    def __post_init__(self) -> None:
        if self.ms is not None and not is_whole(self.ms):
            raise ClientError(f"Suspend({self.ms!r}); expected is a whole number of milliseconds, as in Suspend(5_000)")


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_all(values: object, kind: type) -> bool:
    """Whether these are several, each of this kind."""
    return isinstance(values, Collection) and all(isinstance(value, kind) for value in values)


Verdict = Outcome | RetryLater | Suspend

RETRY_LATER = Outcome.RETRY_LATER
DEAD_LETTER = RetryLater(-1)
COMMIT = Outcome.COMMIT
ROLLBACK = Outcome.ROLLBACK


class Judged(Protocol):
    """Say what became of messages; without a verdict they have failed."""

    def __call__(self, verdict: Verdict = ..., /) -> None: ...


Listener = Callable[[list[ReceivedMessage], Judged], None]
"""(messages of one queue and one topic, say what became of them). Must call the second exactly once, at any time."""
