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
    if isinstance(verdict, RetryLater):
        return [message for message, _, _ in verdict.failed(messages)]
    return messages


def is_never_again(message: ReceivedMessage, verdict: Verdict) -> bool:
    """Whether the handler will not have this one again."""
    return isinstance(verdict, RetryLater) and any(level < 0 for _, level, _ in verdict.failed([message]))


def is_dead(message: ReceivedMessage, verdict: Verdict, settings: PushConsumerSettings) -> bool:
    """Whether one that failed becomes a dead letter now, as far as this consumer knows: where it has no limit of its own, the group's is
    its broker's to know."""
    if settings.broadcasting or (settings.orderly and verdict is Outcome.ROLLBACK):
        return False
    return is_never_again(message, verdict) or (settings.times_max is not None and message.reconsume_times >= settings.times_max)


def outcome_of(failed: list[ReceivedMessage], verdict: Verdict, settings: PushConsumerSettings) -> ConsumeOutcome:
    """Of a call whose messages failed so far. Of several the mildest: dead letters when all of them are."""
    if not failed:
        return "success"
    if settings.broadcasting and (not settings.orderly or all(is_never_again(message, verdict) for message in failed)):
        return "given up"
    if all(is_dead(message, verdict, settings) for message in failed):
        return "dead letter"
    return "suspend" if settings.orderly else "retry"
