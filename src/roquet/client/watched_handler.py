"""A handler with middleware around it, in the context and the thread in which it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from roquet.client.core.outcomes import failed_of, outcome_of
from roquet.client.core.verdicts import RetryLater
from roquet.client.functions import is_async, name_of

if TYPE_CHECKING:
    from roquet.client.core.events import ConsumeEvent
    from roquet.client.core.hooks import Hooks
    from roquet.client.core.push_consumer import PushConsumerSettings
    from roquet.client.core.verdicts import Verdict
    from roquet.message import ReceivedMessage

Function = Callable[..., Any]


class Watch:
    """What middleware hears of one call."""

    def __init__(
        self, hooks: Hooks, messages: list[ReceivedMessage], settings: PushConsumerSettings, meant: Callable[[Any], Verdict]
    ) -> None:
        """`meant`: what a value that the handler returns says of the messages."""
        self.hooks = hooks
        self.messages = messages
        self.settings = settings
        self.meant = meant

    def begin(self) -> ConsumeEvent:
        return self.hooks.begin_consume(self.messages, orderly=self.settings.orderly)

    def returned(self, event: ConsumeEvent, result: Any) -> None:
        self._end(event, self.meant(result), None)

    def raised(self, event: ConsumeEvent, error: BaseException) -> None:
        self._end(event, RetryLater(), error)

    def _end(self, event: ConsumeEvent, verdict: Verdict, error: BaseException | None) -> None:
        failed = failed_of(self.messages, verdict)
        self.hooks.end_consume(event, outcome_of(failed, verdict, self.settings), failed, error)


def watched(function: Function, watch: Watch) -> Function:
    """The same function, async or plain as it was, that tells of its call."""

    async def in_the_loop(given: Any) -> Any:
        return await finished(watch.begin(), function(given), watch)

    if is_async(function):
        return in_the_loop
    in_a_thread = partial(_in_a_thread, function, watch, copy_context())
    in_a_thread.__name__ = name_of(function)  # type: ignore[attr-defined] # as errors show it
    return in_a_thread


def _in_a_thread(function: Function, watch: Watch, context: Any, given: Any) -> Any:
    return context.run(_plainly, function, watch, context, given)


def _plainly(function: Function, watch: Watch, context: Any, given: Any) -> Any:
    event = watch.begin()
    try:
        result = function(given)
    except BaseException as error:
        watch.raised(event, error)
        raise
    if isinstance(result, Awaitable):  # a lambda or partial around an async function: the loop runs it
        return _in_context(finished(event, result, watch), context)
    watch.returned(event, result)
    return result


async def _in_context(work: Any, context: Any) -> Any:
    return await asyncio.get_running_loop().create_task(work, context=context)


async def finished(event: ConsumeEvent, work: Awaitable[Any], watch: Watch) -> Any:
    try:
        result = await work
    except BaseException as error:
        watch.raised(event, error)
        raise
    watch.returned(event, result)
    return result
