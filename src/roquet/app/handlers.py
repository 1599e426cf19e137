"""A handler as a listener of PushConsumer: the payload read, the parameters filled, the result published, and a verdict for what fails.

a body or property that does not fit, Reject   dead letter, with the reason in its properties; of a batch only that message
the handler or a dependency raises             the message comes again (retries); of a batch all that it was given
what it returned cannot be encoded             dead letter: the same code would return the same again
what it returned cannot be sent                the message comes again
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from roquet.app.parameters import EMPTY, Arguments, Call, Reading, Reject, arguments_of
from roquet.app.payloads import CONTENT_TYPE, BadPayload, Decode, Unsendable
from roquet.app.publishing import Publisher, message_of
from roquet.client import Outcome, RetryLater, Suspend, reply_message
from roquet.client.functions import is_async, name_of
from roquet.errors import ClientError, InvalidMessage, RoquetError, error_text
from roquet.message import Property, ReceivedMessage

if TYPE_CHECKING:
    from roquet.app.app import App

log = logging.getLogger(__name__)

VERDICTS = (Outcome, RetryLater, Suspend)
NEVER_AGAIN = -1
REPLY_MS = 3_000
"""Longer than most who ask will wait."""
Listener = Callable[..., Any]
"""What PushConsumer takes: of one message, or of a list."""
When = Callable[[ReceivedMessage], bool]


class ResultUnsendable(ClientError):
    """What a handler returned has no form as a message. The same code would return the same again."""


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
    payload_first: bool
    """It was given with payload=, so the first parameter takes it."""
    arguments: Arguments
    reading: Reading
    decode: Decode | None
    own_decode: bool = False
    """decode= was given: what is in the body is not said by the payload's type."""
    returns: Any = EMPTY
    """The annotation of what it returns."""
    wrap: Callable[[Listener], Listener] | None = None
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
        one = self
        if self.app.dependency_overrides:
            one = replace(self, arguments=arguments_of(self.function, self.reading, takes_payload=True, payload_first=self.payload_first))
        if is_async(self.function):
            made = batch_in_loop(one) if self.batch > 1 else payload_in_loop(one) if self.is_simple else in_loop(one)
        else:
            made = batch_in_thread(one) if self.batch > 1 else in_thread(one)
        made.__name__ = self.name
        return made if self.wrap is None else self.wrap(made)

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
            return self.decode(message.body)
        except (BadPayload, MemoryError):
            raise
        except Exception as error:
            raise unreadable(error) from error

    def misfit(self, message: ReceivedMessage, why: Exception) -> RetryLater:
        """It becomes a dead letter, with the reason in its properties."""
        text = f"rejected by {self.name}: {why}" if isinstance(why, Reject) else f"payload not for {self.name}: {why}"
        if isinstance(why, BadPayload) and CONTENT_TYPE in message.properties:
            text += f" (its {CONTENT_TYPE} is {message.properties[CONTENT_TYPE]})"
        log.error("! group %s: %s; message %r becomes a dead letter", self.group, text, message)
        return RetryLater(NEVER_AGAIN, messages=[message], why=text)

    def failed(self, messages: list[ReceivedMessage], why: Exception) -> RetryLater:
        """The function, or a dependency, raised, and the handler has a retry_level of its own."""
        text = error_text(why)
        again = "becomes a dead letter" if self.retry_level == NEVER_AGAIN else f"comes again after delay level {self.retry_level}"
        for message in messages:
            log.error("! group %s: handler %s failed with %r, which %s: %s", self.group, self.name, message, again, text, exc_info=why)
        return RetryLater(self.retry_level, messages=messages, why=text)

    def unsendable(self, messages: list[ReceivedMessage], why: Exception) -> RetryLater:
        text = f"{self.name} returned what cannot be sent: {why}"
        for message in messages:
            log.error("! group %s: %s; message %r becomes a dead letter", self.group, text, message)
        return RetryLater(NEVER_AGAIN, messages=messages, why=text)

    # -- results

    async def send(self, messages: list[ReceivedMessage], result: Any) -> None:
        """Publish what the function returned, and reply with it. Raises ResultUnsendable, or what sending raises."""
        try:
            for publisher in self.publishers:
                if result is not None:
                    await publisher.publish(result)
            for message in messages if self.reply else ():
                if Property.CORRELATION_ID in message.properties:
                    await self._answer(message, result)
        except (Unsendable, InvalidMessage) as error:
            raise ResultUnsendable(str(error)) from error

    async def _answer(self, message: ReceivedMessage, result: Any) -> None:
        """Whoever asked may be gone, or has stopped waiting: to handle the request again would help nobody."""
        found = message_of(message.topic, b"" if result is None else result)
        answer = reply_message(message, found.body, properties=found.properties)
        try:
            await self.app.producer.send(answer, timeout_ms=REPLY_MS)
        except InvalidMessage:
            raise
        except RoquetError as error:
            log.warning("! group %s: the reply of %s to %r could not be sent, nobody gets it: %s", self.group, self.name, message, error)


def unreadable(error: Exception) -> BadPayload:
    """A damaged body, one that is nested too deep, or a mistake in a validator: the next attempt would find the same."""
    return BadPayload(f"it cannot be read: {error_text(error)}")


def payload_in_loop(handler: Handler) -> Listener:
    """The usual case: an async function of a payload."""
    function, decode = handler.function, handler.decode
    assert decode is not None

    async def listen(message: ReceivedMessage) -> Any:
        try:
            payload = decode(message.body)
        except MemoryError:
            raise
        except Exception as error:
            return handler.misfit(message, error if isinstance(error, BadPayload) else unreadable(error))
        try:
            return await function(payload)
        except Reject as error:
            return handler.misfit(message, error)

    return listen


def in_loop(handler: Handler) -> Listener:
    app, called = handler.app, caller_in_loop(handler)

    async def listen(message: ReceivedMessage) -> Any:
        messages = [message]
        try:
            result = await called(Call(app, messages, handler.read(message)))
            if not handler.has_result or isinstance(result, VERDICTS):
                return result
            await handler.send(messages, result)
        except Exception as error:
            return judged(handler, messages, error)

    return listen


def in_thread(handler: Handler) -> Listener:
    app, called = handler.app, caller_in_thread(handler)

    def listen(message: ReceivedMessage) -> Any:
        messages = [message]
        try:
            result = called(Call(app, messages, handler.read(message)))
            if not handler.has_result or isinstance(result, VERDICTS):
                return result
            app.from_thread(handler.send(messages, result))
        except Exception as error:
            return judged(handler, messages, error)

    return listen


def caller_in_loop(handler: Handler) -> Callable[[Call], Awaitable[Any]]:
    arguments, function = handler.arguments, handler.function

    async def called(call: Call) -> Any:
        values, named = arguments.at_hand(call)
        return await function(*values, **named)

    async def called_with_needs(call: Call) -> Any:
        async with AsyncExitStack() as stack:
            try:
                values, named = await arguments.awaited(call, stack)
                return await function(*values, **named)
            except BaseException as error:
                failure = error
                raise
        raise failure  # a dependency caught it at its `yield`, and the handler failed all the same

    return called_with_needs if arguments.needs else called


def caller_in_thread(handler: Handler) -> Callable[[Call], Any]:
    arguments, function = handler.arguments, handler.function

    def called(call: Call) -> Any:
        values, named = arguments.at_hand(call)
        return function(*values, **named)

    def called_with_needs(call: Call) -> Any:
        with ExitStack() as stack:
            try:
                values, named = arguments.in_thread(call, stack)
                return function(*values, **named)
            except BaseException as error:
                failure = error
                raise
        raise failure  # a dependency caught it at its `yield`, and the handler failed all the same

    return called_with_needs if arguments.needs else called


def judged(handler: Handler, messages: list[ReceivedMessage], error: Exception, *, is_alone: bool = True) -> RetryLater:
    """What becomes of messages whose call failed. An ordinary failure is raised again: the consumer logs it, and gives them back."""
    if isinstance(error, (Reject, BadPayload)):
        return joined([handler.misfit(message, error) for message in messages])
    if isinstance(error, ResultUnsendable):
        return handler.unsendable(messages, error)
    if is_alone and not handler.retry_level:
        raise error
    return handler.failed(messages, error)


def joined(verdicts: list[RetryLater]) -> RetryLater:
    first, *others = verdicts
    return RetryLater(first.delay_level, first.messages, first.why, others)


# -- batches


class Batch:
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

    def verdict(self, result: Any) -> Any:
        """What the function said, of the good ones; and that the bad ones become dead letters."""
        if not self.bad or isinstance(result, Suspend) or result is Outcome.ROLLBACK:
            return result  # all of them come again, and the bad ones are judged then
        if isinstance(result, RetryLater):
            chosen = self.good if result.messages is None else result.messages
            return RetryLater(result.delay_level, chosen, result.why, [*result.also, *self.bad])
        if result is False or result is Outcome.RETRY_LATER:
            return RetryLater(messages=self.good, also=self.bad)
        return joined(self.bad)


def batch_in_loop(handler: Handler) -> Listener:
    app, called = handler.app, caller_in_loop(handler)

    async def listen(messages: list[ReceivedMessage]) -> Any:
        batch = Batch(handler, messages)
        result = None
        if batch.good:
            try:
                result = await called(Call(app, batch.good, batch.payloads))
                if handler.has_result and not isinstance(result, VERDICTS):
                    await handler.send(batch.good, result)
                    result = None
            except Exception as error:
                result = judged(handler, batch.good, error, is_alone=not batch.bad)
        return batch.verdict(result)

    return listen


def batch_in_thread(handler: Handler) -> Listener:
    app, called = handler.app, caller_in_thread(handler)

    def listen(messages: list[ReceivedMessage]) -> Any:
        batch = Batch(handler, messages)
        result = None
        if batch.good:
            try:
                result = called(Call(app, batch.good, batch.payloads))
                if handler.has_result and not isinstance(result, VERDICTS):
                    app.from_thread(handler.send(batch.good, result))
                    result = None
            except Exception as error:
                result = judged(handler, batch.good, error, is_alone=not batch.bad)
        return batch.verdict(result)

    return listen


# -- several handlers of one topic


def by_condition(handlers: list[Handler]) -> Listener:
    """Each message goes to the first whose tags and condition fit."""
    asked = [(handler.when, words(handler.tags), handler.listener()) for handler in handlers]
    told: set[str] = set()

    def choose(message: ReceivedMessage) -> Any:
        for when, tags, listener in asked:
            if (tags is None or message.tags in tags) and (when is None or when(message)):
                return listener
        if not told:
            told.add(message.topic)
            log.warning(
                "! group %s: no handler takes %r; it counts as done, and so do others, which are not told", handlers[0].group, message
            )
        return None

    async def listen(message: ReceivedMessage) -> Any:
        listener = choose(message)
        return None if listener is None else await listener(message)

    def listen_in_thread(message: ReceivedMessage) -> Any:
        """In a thread of the consumer, which counts it and does not wait for it at the end. It awaits what an async one gives."""
        listener = choose(message)
        return None if listener is None else listener(message)

    made: Listener = listen if all(is_async(listener) for _, _, listener in asked) else listen_in_thread
    made.__name__ = " or ".join(handler.name for handler in handlers)
    return made


def words(tags: str) -> frozenset[str] | None:
    """None: every tag."""
    found = frozenset(word.strip() for word in tags.split("||"))
    return None if "*" in found else found
