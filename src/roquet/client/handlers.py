"""Calling a push consumer's handlers: takes calls from the core, and says what became of each by what its handler returned or raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

from roquet.client.core.consuming import Consumption
from roquet.client.core.hooks import Hooks
from roquet.client.core.namespaces import Namespace
from roquet.client.core.ordered import NO_LIMIT
from roquet.client.core.push_consumer import PushConsumerSettings
from roquet.client.core.send_back import FIRST_DELAY_LEVEL
from roquet.client.core.verdicts import Judged, Outcome, RetryLater, Suspend, Verdict
from roquet.client.functions import CALLS_A_TURN, Functions, being_cancelled, is_async, is_same, name_of
from roquet.client.served import Served
from roquet.client.watched_handler import Watch, watched
from roquet.errors import error_text
from roquet.message import ReceivedMessage

log = logging.getLogger(__name__)

Answer = Outcome | RetryLater | Suspend | bool | None
"""None and True: done. False and RETRY_LATER: again, later."""
Function = (
    Callable[[ReceivedMessage], Answer | Awaitable[Answer]]
    | Callable[[list[ReceivedMessage]], Answer | Awaitable[Answer]]
    | Callable[[ReceivedMessage | list[ReceivedMessage]], Answer | Awaitable[Answer]]
)
"""Takes a ReceivedMessage, or a list of them when batch_size is more than 1. async, or plain (then it runs in a thread)."""

RETRY_DELAYS = "10 s,30 s,1 min,2 min,3 min,4 min,5 min,6 min,7 min,8 min,9 min,10 min,20 min,30 min,1 h,2 h".split(",")
"""As brokers have them unless their messageDelayLevel says otherwise."""


class Handler(NamedTuple):
    """A function, and whether the loop calls it; else a thread does."""

    function: Any
    in_loop: bool


NOBODY = Handler(None, in_loop=False)


class Handlers(Functions):
    """The functions of one consumer, by topic."""

    def __init__(self, member: Served, group: str, settings: PushConsumerSettings, namespace: Namespace, hooks: Hooks | None) -> None:
        """`member`: its `on_exit` is told when a handler calls sys.exit(), in place of the loop."""
        super().__init__(group, settings.concurrency)
        self._member = member
        self._settings = settings
        self.namespace = namespace
        self.hooks = hooks if hooks is not None and hooks.consumes else None
        self._by_topic: dict[str, Handler] = {}
        self._other = NOBODY
        self._consuming: Consumption[Any, Any] | None = None
        self._told_odd: list[Handler] = []

    def set(self, topic: str | None, function: Function) -> None:
        """This function gets the topic's messages; None: of topics that have none of their own."""
        handler = Handler(function, is_async(function))
        if topic is None:
            self._other = handler
        else:
            self._by_topic[topic] = handler

    def of(self, topic: str) -> Function | None:
        """The function that was given for this topic alone."""
        found: Function | None = self._by_topic.get(topic, NOBODY).function
        return found

    @property
    def takes_any(self) -> bool:
        """There is one for topics without their own."""
        return self._other is not NOBODY

    # -- serving

    def serve(self, consuming: Consumption[Any, Any]) -> None:
        """Take its calls from now on."""
        self.open()
        self._consuming, self._settings = consuming, consuming.settings
        consuming.on_ready = self.go_on

    def forked(self) -> None:
        super().forked()
        self._consuming = None

    def close(self) -> None:
        """Calls that do not end still tell the core what became of them; nothing else of it is kept."""
        super().close()
        self._consuming = None

    @property
    def wanted(self) -> bool:
        return bool(self._waiting) or (self._consuming is not None and self._consuming.ready)

    async def _serve(self) -> None:
        consuming = self._consuming
        if self._waiting or consuming is None:
            await super()._serve()
            return
        me = self._begun()
        clean = copy_context()
        for _ in range(CALLS_A_TURN):  # the way of every message, so nothing of it is a function that need not be one
            call = consuming.take()
            if call is None:
                return
            if self._starting is None:
                self.go_on()
            messages = call.messages
            handler = self._by_topic.get(call.process_queue.topic or messages[0].topic, self._other)
            verdict: Verdict = Outcome.RETRY_LATER
            try:
                if handler.in_loop and self.hooks is None and consuming.batch_size == 1:
                    result = await handler.function(messages[0])
                else:
                    result = await self._call(handler, messages)
                verdict = Outcome.SUCCESS if result is None else self._meant(handler, result)
            except BaseException as error:
                verdict = self._failed(handler, messages, error)
                if self._is_passed_on(error):
                    raise
            finally:
                consuming.end(call, verdict)
            if me.cancelling() or not is_same(clean):
                return

    def listen(self, messages: list[ReceivedMessage], judge: Judged) -> None:
        """Serve messages that belong to none of the core's calls: an operator's."""
        self.begin(self._serve_one, (messages, judge), judge)

    async def _serve_one(self, messages: list[ReceivedMessage], judge: Judged) -> None:
        handler = self._by_topic.get(messages[0].topic, self._other)
        verdict: Verdict = Outcome.RETRY_LATER
        try:
            verdict = self._meant(handler, await self._call(handler, messages))
        except BaseException as error:
            verdict = self._failed(handler, messages, error)
            if self._is_passed_on(error):
                raise
        finally:
            judge(verdict)

    async def _call(self, handler: Handler, messages: list[ReceivedMessage]) -> Any:
        function = handler.function
        if function is None:
            message = messages[0]
            log.error("! group %s has no function for topic %s of message %s", self.name, message.topic, message.message_id)
            return Outcome.RETRY_LATER
        if self.hooks is not None:
            function = watched(function, Watch(self.hooks, messages, self._settings, partial(self._meant, handler)))
        given = messages if self._settings.batch_size > 1 else messages[0]
        return await (function(given) if handler.in_loop else self.call(function, given))

    # -- what became of it

    def _meant(self, handler: Handler, result: object) -> Verdict:
        """What a value that a function returned says of its messages."""
        if isinstance(result, (Outcome, RetryLater, Suspend)):
            return result
        if result is False:
            return Outcome.RETRY_LATER
        if result is not None and result is not True:
            self._odd(handler, result)
        return Outcome.SUCCESS

    def _failed(self, handler: Handler, messages: list[ReceivedMessage], error: BaseException) -> Verdict:
        """What an exception says of them: told in the log, unless the consumer ends and takes its calls with it."""
        if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and being_cancelled()):
            return Outcome.RETRY_LATER
        verdict = RetryLater(why=error_text(error))
        for place, message in enumerate(messages):
            log.error(
                "! group %s: handler %s failed with %s: %.500s",
                self.name, name_of(handler.function), self._described(message), verdict.why, exc_info=error if place == 0 else None,
            )  # fmt: skip
        if isinstance(error, (SystemExit, KeyboardInterrupt)) and self._member.on_exit is not None:
            self._member.on_exit(error)
        return verdict

    def _is_passed_on(self, error: BaseException) -> bool:
        """To the loop: it ends the task, or the program."""
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            return self._member.on_exit is None
        return isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and being_cancelled())

    def _described(self, message: ReceivedMessage) -> str:
        """Where a message that failed is from, and what becomes of it."""
        settings, times = self._settings, message.reconsume_times
        keys = f", keys {' '.join(message.keys)}" if message.keys else ""
        most = settings.times_max
        limit = "" if most is None or most == NO_LIMIT else f" of {most + 1}"
        if settings.broadcasting and not settings.orderly:
            again = "it does not come again, as the consumer is broadcasting"
        elif most is not None and times >= most:
            again = "it becomes a dead letter now"
        elif settings.orderly:
            again = f"it comes again in {settings.suspend_queue_ms} ms, and its queue waits"
        else:
            level = FIRST_DELAY_LEVEL + times
            usual = RETRY_DELAYS[min(times, len(RETRY_DELAYS) - 1)]
            again = f"it comes again after delay level {level} ({usual}, unless its broker has other levels)"
            if most is None:
                again += ", or becomes a dead letter if its group has no more retries (roquet group create --retry-max; usually 16)"
        where = f"{message.topic} {message.queue.broker_name}:{message.queue_id} @{message.queue_offset}"
        if message.queue.topic != self.namespace.wrap(message.topic):
            where = f"{message.topic} (in {message.queue.topic} {message.queue.broker_name}:{message.queue_id} @{message.queue_offset})"
        return f"{where}{keys}, id {message.message_id}, attempt {times + 1}{limit}; {again}"

    def _odd(self, handler: Handler, result: object) -> None:
        """Said once for each. The message is done: to have it again would not change what the function returns."""
        if not any(told is handler for told in self._told_odd):  # by what they are: not all functions can be hashed or compared
            self._told_odd.append(handler)
            log.error(
                "! group %s: handler %s returned %.80r, which counts as done; expected is None or True (done), or False, RETRY_LATER,"
                " RetryLater(...), DEAD_LETTER, Suspend(...)",
                self.name, name_of(handler.function), result,
            )  # fmt: skip
