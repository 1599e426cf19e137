"""What becomes of messages, by what their handler said of them: told to middleware, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.client.core.verdicts import Outcome, RetryLater, Verdict
from roquet.message import ReceivedMessage

if TYPE_CHECKING:
    from roquet.client.core.events import ConsumeOutcome
    from roquet.client.core.push_consumer import PushConsumerSettings


def failed_of(messages: list[ReceivedMessage], verdict: Verdict) -> list[ReceivedMessage]:
    """Those that the handler is not done with."""
    if verdict is Outcome.SUCCESS or verdict is Outcome.COMMIT:
        return []
    if isinstance(verdict, RetryLater) and verdict.messages is not None:
        return [message for message in messages if message in verdict.messages]
    return messages


def is_dead(message: ReceivedMessage, verdict: Verdict, settings: PushConsumerSettings) -> bool:
    """Whether one that failed becomes a dead letter now, as far as it is known here: where the group's own limit holds (times_max is None)
    only the broker knows which retry is the last, and all of them are retries."""
    is_last = settings.times_max is not None and message.reconsume_times >= settings.times_max
    if settings.orderly:
        return not settings.broadcasting and verdict is not Outcome.ROLLBACK and is_last
    said = isinstance(verdict, RetryLater) and verdict.delay_level < 0
    return not settings.broadcasting and (said or is_last)


def outcome_of(failed: list[ReceivedMessage], verdict: Verdict, settings: PushConsumerSettings) -> ConsumeOutcome:
    """Of a call whose messages failed so far. Of several the mildest: dead letters when all of them are."""
    if not failed:
        return "success"
    if settings.broadcasting and not settings.orderly:
        return "given up"
    if all(is_dead(message, verdict, settings) for message in failed):
        return "dead letter"
    return "suspend" if settings.orderly else "retry"
