"""Middleware: functions of yours around sends, handlers, transactions and requests.

class Slow(Middleware):
    def after_consume(self, event: ConsumeEvent) -> None:
        if event.duration_ms > 1_000:
            log.warning("%s took %d ms", event.messages[0].message_id, event.duration_ms)

consumer = PushConsumer("billing", middleware=[Slow()])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from roquet.client.core.events import CallEvent, ConsumeEvent, ConsumeOutcome, SendEvent, SendKind, TransactionEvent

if TYPE_CHECKING:
    from roquet.client.member import Member

__all__ = ["CallEvent", "ConsumeEvent", "ConsumeOutcome", "Middleware", "SendEvent", "SendKind", "TransactionEvent"]

F = TypeVar("F", bound=Callable[..., Any])


def nothing(function: F) -> F:
    """Marks a method that does nothing, so that it is not called."""
    function.does_nothing = True  # type: ignore[attr-defined] # functions take any attribute
    return function


class Middleware:
    """Override what you need, and give objects of your class to producers and consumers: `Producer("g", middleware=[Mine()])`.

    before_... hooks are called in the order in which the middleware was given, after_... hooks in the reverse order. They are plain
    functions and must not wait: those of sends and calls run in the event loop. A hook that raises is logged, at most once a minute, and
    changes nothing else. One object may be given to several members.
    """

    @nothing
    def before_send(self, event: SendEvent) -> None:
        """A message is about to go out; `event.message.properties` may still be added to."""

    @nothing
    def after_send(self, event: SendEvent) -> None:
        """A message was stored (`event.receipt`), or was not (`event.error`); both are None for one that was sent oneway. Called once
        for each message, also of a batch, however often it was tried."""

    @nothing
    def before_consume(self, event: ConsumeEvent) -> None:
        """A handler is about to be called, in the context (contextvars) and the thread in which it runs."""

    @nothing
    def after_consume(self, event: ConsumeEvent) -> None:
        """The handler has returned or raised: `event.outcome`, `event.error`, `event.duration_ms`. In the same context and thread."""

    @nothing
    def after_transaction(self, event: TransactionEvent) -> None:
        """A broker was told how a transaction ended, or could not be told."""

    @nothing
    def before_call(self, event: CallEvent) -> None:
        """A request is about to go to a server. Members of a program with the same options share their connections: this hears of the
        calls of all of them."""

    @nothing
    def after_call(self, event: CallEvent) -> None:
        """The server has answered (`event.answer_code`), or has not (`event.error`); of a oneway request: it was handed over."""

    @nothing
    def started(self, member: Member[Any]) -> Awaitable[None] | None:
        """The producer or consumer that it was given to is part of its client now, and is about to send and consume. May be async."""

    @nothing
    def closing(self, member: Member[Any]) -> Awaitable[None] | None:
        """The producer or consumer is about to end: its handlers have ended, it sends nothing more, its connections are still open.
        May be async, for ten seconds at most: write out here what you have gathered."""
