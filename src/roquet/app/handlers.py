"""A handler as a listener of PushConsumer: the payload read, the parameters filled, the result published, and a verdict for what fails.

a body or property that does not fit, Reject   dead letter, with the reason in its properties; of a batch only that message
the handler or a dependency raises             the message comes again (retries); of a batch all that it was given
what it returned cannot be encoded             dead letter: the same code would return the same again
what it returned cannot be sent                the message comes again
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roquet.app.parameters import EMPTY, Arguments, Call, Reject
from roquet.app.payloads import CONTENT_TYPE, BadPayload, Decode
from roquet.app.publishing import Publisher, Unsendable, message_of
from roquet.client import Outcome, RetryLater, Suspend, reply_message
from roquet.client.functions import is_async, name_of
from roquet.errors import InvalidMessage
from roquet.message import Property, ReceivedMessage

if TYPE_CHECKING:
    from roquet.app.app import App

log = logging.getLogger(__name__)

VERDICTS = (Outcome, RetryLater, Suspend)
NEVER_AGAIN = -1
Listener = Callable[..., Any]
"""What PushConsumer takes: of one message, or of a list."""
When = Callable[[ReceivedMessage], bool]


@dataclass(slots=True, eq=False)
class Handler:
    """One decorated function."""

    app: App
    function: Callable[..., Any]
    topic: str
    group: str
    tags: str
    sql: str | None
    when: When | None
    batch: int
    retry_level: int
    reply: bool
    payload: Any
    """The type of the payload, of one message; EMPTY: it takes none."""
    arguments: Arguments
    decode: Decode | None
    publishers: list[Publisher[Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def has_result(self) -> bool:
        """What it returns goes somewhere."""
        return self.reply or bool(self.publishers)

    def listener(self) -> Listener:
        """Made when the app starts, once all decorators were seen."""
        if self.batch > 1:
            made = batch_in_loop(self) if is_async(self.function) else batch_in_thread(self)
        elif is_async(self.function):
            made = payload_in_loop(self) if self.is_simple else in_loop(self)
        else:
            made = in_thread(self)
        made.__name__ = self.name
        return made

    @property
    def is_simple(self) -> bool:
        """Nothing but a payload goes in, and nothing comes out."""
        return self.arguments.only_payload and not self.has_result and not self.retry_level

    # -- verdicts

    def read(self, message: ReceivedMessage) -> Any:
        """The payload. Raises BadPayload."""
        if self.decode is None:
            return None
        try:
            body = message.body
        except InvalidMessage as error:
            raise BadPayload(f"its body cannot be read: {error}") from None
        return self.decode(body)

    def misfit(self, message: ReceivedMessage, why: Exception) -> RetryLater:
        """It becomes a dead letter, with the reason in its properties."""
        text = f"rejected by {self.name}: {why}" if isinstance(why, Reject) else f"payload not for {self.name}: {why}"
        if isinstance(why, BadPayload) and CONTENT_TYPE in message.properties:
            text += f" (its {CONTENT_TYPE} is {message.properties[CONTENT_TYPE]})"
        log.error("! group %s: %s; message %r becomes a dead letter", self.group, text, message)
        return RetryLater(NEVER_AGAIN, messages=[message], why=text)

    def failed(self, messages: list[ReceivedMessage], why: Exception) -> RetryLater:
        """The function, or a dependency, raised, and the handler has a retry_level of its own."""
        text = f"{type(why).__name__}: {why}"
        again = "becomes a dead letter" if self.retry_level == NEVER_AGAIN else f"comes again after delay level {self.retry_level}"
        for message in messages:
            log.error("! group %s: handler %s failed with %r, which %s: %s", self.group, self.name, message, again, text, exc_info=why)
        return RetryLater(self.retry_level, messages=messages, why=text)

    def unsendable(self, messages: list[ReceivedMessage], why: Exception) -> RetryLater:
        text = f"{self.name} returned what cannot be sent: {why}"
        log.error("! group %s: %s; %s become dead letters", self.group, text, messages)
        return RetryLater(NEVER_AGAIN, messages=messages, why=text)

    # -- results

    async def send(self, messages: list[ReceivedMessage], result: Any) -> None:
        """Publish what the function returned, and reply with it. Raises Unsendable, or what sending raises."""
        for publisher in self.publishers:
            if result is not None:
                await publisher.publish(result)
        if self.reply:
            for message in messages:
                if Property.CORRELATION_ID in message.properties:
                    await self.app.producer.send(self._reply(message, result))

    def _reply(self, message: ReceivedMessage, result: Any) -> Any:
        answer = message_of(message.topic, b"" if result is None else result)
        return reply_message(message, answer.body, properties=answer.properties)


def payload_in_loop(handler: Handler) -> Listener:
    """The usual case: an async function of a payload."""
    function, read = handler.function, handler.read if handler.decode is None else handler.decode

    async def listen(message: ReceivedMessage) -> Any:
        try:
            payload = read(message.body)
        except (BadPayload, InvalidMessage) as error:
            return handler.misfit(message, error)
        try:
            return await function(payload)
        except Reject as error:
            return handler.misfit(message, error)

    return listen


def in_loop(handler: Handler) -> Listener:
    many = batch_in_loop(handler)

    async def listen(message: ReceivedMessage) -> Any:
        return one_verdict(await many([message]))

    return listen


def in_thread(handler: Handler) -> Listener:
    many = batch_in_thread(handler)

    def listen(message: ReceivedMessage) -> Any:
        return one_verdict(many([message]))

    return listen


def one_verdict(result: Any) -> Any:
    return result[0] if isinstance(result, list) and len(result) == 1 and isinstance(result[0], RetryLater) else result


class Sorted:
    """Messages of one call: those with a payload that fits, and verdicts for the others."""

    __slots__ = ("bad", "good", "payloads")

    def __init__(self, handler: Handler, messages: list[ReceivedMessage]) -> None:
        self.good: list[ReceivedMessage] = []
        self.payloads: list[Any] = []
        self.bad: list[RetryLater] = []
        for message in messages:
            try:
                payload = handler.read(message)
            except BadPayload as error:
                self.bad.append(handler.misfit(message, error))
            else:
                self.good.append(message)
                self.payloads.append(payload)

    def with_bad(self, verdict: Any) -> Any:
        """What the function said, of the good ones, and dead letters for the bad ones."""
        if not self.bad:
            return verdict
        if isinstance(verdict, RetryLater):
            chosen = self.good if verdict.messages is None else verdict.messages
            return [*self.bad, RetryLater(verdict.delay_level, chosen, verdict.why)]
        if verdict is False or verdict is Outcome.RETRY_LATER:
            return [*self.bad, RetryLater(messages=self.good)]
        return self.bad


def batch_in_loop(handler: Handler) -> Listener:
    app, arguments, function, is_batch = handler.app, handler.arguments, handler.function, handler.batch > 1
    needs = bool(arguments.needs)

    async def called(call: Call) -> Any:
        if not needs:
            values, named = arguments.at_hand(call)
            return await function(*values, **named)
        async with AsyncExitStack() as stack:
            values, named = await arguments.awaited(call, stack)
            return await function(*values, **named)

    async def listen(messages: list[ReceivedMessage]) -> Any:
        found = Sorted(handler, messages)
        good = found.good
        if not good:
            return found.bad
        try:
            result = await called(Call(app, good, found.payloads if is_batch else found.payloads[0]))
            if handler.has_result and not isinstance(result, VERDICTS):
                await handler.send(good, result)
                result = None
        except Exception as error:
            return found.with_bad(judged(handler, good, error, is_alone=not found.bad))
        return found.with_bad(result)

    return listen


def batch_in_thread(handler: Handler) -> Listener:
    app, arguments, function, is_batch = handler.app, handler.arguments, handler.function, handler.batch > 1
    needs = bool(arguments.needs)

    def called(call: Call) -> Any:
        if not needs:
            values, named = arguments.at_hand(call)
            return function(*values, **named)
        with ExitStack() as stack:
            values, named = arguments.in_thread(call, stack)
            return function(*values, **named)

    def listen(messages: list[ReceivedMessage]) -> Any:
        found = Sorted(handler, messages)
        good = found.good
        if not good:
            return found.bad
        try:
            result = called(Call(app, good, found.payloads if is_batch else found.payloads[0]))
            if handler.has_result and not isinstance(result, VERDICTS):
                app.from_thread(handler.send(good, result))
                result = None
        except Exception as error:
            return found.with_bad(judged(handler, good, error, is_alone=not found.bad))
        return found.with_bad(result)

    return listen


def judged(handler: Handler, messages: list[ReceivedMessage], error: Exception, *, is_alone: bool) -> RetryLater:
    """What becomes of messages whose call failed. An ordinary failure is raised again: the consumer logs it, and gives them back."""
    if isinstance(error, (Reject, BadPayload)):
        verdicts = [handler.misfit(message, error) for message in messages]
        return RetryLater(NEVER_AGAIN, messages, verdicts[0].why)
    if isinstance(error, Unsendable):
        return handler.unsendable(messages, error)
    if is_alone and not handler.retry_level:
        raise error
    return handler.failed(messages, error)


def by_condition(handlers: list[Handler]) -> Listener:
    """Several handlers of one topic in one group: each message goes to the first whose tags and condition fit."""
    asked = [(handler, words(handler.tags), handler.listener()) for handler in handlers]

    def choose(message: ReceivedMessage) -> Any:
        for handler, tags, listener in asked:
            if (tags is None or message.tags in tags) and (handler.when is None or handler.when(message)):
                return listener
        log.warning("! group %s: no handler takes message %r; it counts as done", handlers[0].group, message)
        return None

    if any(is_async(handler.function) for handler in handlers):

        async def listen(message: ReceivedMessage) -> Any:
            listener = choose(message)
            return None if listener is None else await listener(message)
    else:

        def listen(message: ReceivedMessage) -> Any:  # type: ignore[misc]
            listener = choose(message)
            return None if listener is None else listener(message)

    return listen


def words(tags: str) -> frozenset[str] | None:
    """None: every tag."""
    found = frozenset(word.strip() for word in tags.split("||"))
    return None if "*" in found else found


__all__ = ["EMPTY", "Handler", "by_condition", "words"]
