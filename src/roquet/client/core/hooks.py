"""Hooks: the middleware of one member, called at the right moment. A hook that raises is logged and changes nothing.

before_send     in the order in which the middleware was given
after_send      in the reverse order
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from roquet.client.core.events import CallEvent, ConsumeEvent, SendEvent, TransactionEvent, kind_of
from roquet.client.core.namespaces import NO_NAMESPACE, Namespace
from roquet.client.core.receipt import SendReceipt
from roquet.errors import ClientError, InvalidMessage
from roquet.message import Message, MessageQueue, Property, ReceivedMessage
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.record import encode_properties

if TYPE_CHECKING:
    from roquet.client.core.events import ConsumeOutcome, SendKind
    from roquet.client.core.instance import ClientCore
    from roquet.client.core.sending import Sending, Sent
    from roquet.client.middleware import Middleware
    from roquet.errors import RoquetError

log = logging.getLogger(__name__)

QUIET_MS = 60_000
"""A hook that fails all the time is logged so often."""
ROOM = 512
"""Bytes of properties that hooks must leave to what the client itself adds."""

PLAIN_HOOKS = ("before_send", "after_send", "before_consume", "after_consume", "after_transaction", "before_call", "after_call")


class Hook:
    """One function of one middleware."""

    __slots__ = ("_failures", "_function", "_logged_ms", "_name", "_of", "_quiet")

    def __init__(self, of: Hooks, name: str, function: Callable[[Any], None], owner: str) -> None:
        self._of = of
        self._name = f"{owner}.{name}"
        self._function = function
        self._failures = 0
        self._quiet = 0
        self._logged_ms = 0

    def __call__(self, event: Any) -> None:
        try:
            self._function(event)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        self._failures += 1
        self._quiet += 1
        now = self._of.steady_ms()
        if self._failures > 1 and now - self._logged_ms < QUIET_MS:
            return
        self._logged_ms, quiet, self._quiet = now, self._quiet, 0
        log.error(
            "! group %s: middleware %s failed, %d times since the last such line, %d in all: %s: %.500s; messages go on without it,"
            " correct the middleware",
            self._of.group, self._name, quiet, self._failures, type(error).__name__, error, exc_info=error,
        )  # fmt: skip


class Hooks:
    """Made by the member that was given the middleware; it belongs to a client from `join` on."""

    def __init__(self, middleware: Iterable[Middleware], group: str, namespace: Namespace = NO_NAMESPACE) -> None:
        """`group`: in the user's words."""
        self.middleware = tuple(middleware)
        self.group = group
        self.namespace = namespace
        self.client_id = ""
        self._client: ClientCore | None = None
        before, after = self.middleware, tuple(reversed(self.middleware))
        self.before_send = self._those("before_send", before)
        self.after_send = self._those("after_send", after)
        self.before_consume = self._those("before_consume", before)
        self.after_consume = self._those("after_consume", after)
        self.after_transaction = self._those("after_transaction", after)
        self.sends = bool(self.before_send or self.after_send)
        """Whether anybody wants to hear of sends; else they go as without middleware."""
        self.consumes = bool(self.before_consume or self.after_consume)
        self.calls = any(overridden(one, name) for one in before for name in ("before_call", "after_call"))

    def _those(self, name: str, middleware: Iterable[Middleware]) -> list[Hook]:
        return [self.hook(one, name) for one in middleware if overridden(one, name)]

    def hook(self, one: Middleware, name: str) -> Hook:
        return Hook(self, name, getattr(one, name), type(one).__name__)

    def join(self, client: ClientCore) -> None:
        """Its member is part of this client from now on."""
        self.leave()
        self._client, self.client_id = client, client.client_id
        if self.calls:
            client.watch_calls(self)

    def leave(self) -> None:
        """Idempotent."""
        if self._client is not None:
            self._client.forget_watcher(self)

    def steady_ms(self) -> int:
        return 0 if self._client is None else self._client.clock.steady_ms()

    def now_ms(self) -> int:
        return 0 if self._client is None else self._client.clock.now_ms()

    # -- sends

    def begin_send(self, message: Message, queue: MessageQueue | None, *, kind: SendKind | None = None, batch_size: int = 1) -> SendEvent:
        """The event of a send that begins; its message is what goes out."""
        assert self._client is not None
        now = self.now_ms()
        properties = dict(message.properties)
        if not properties.get(Property.UNIQUE_KEY):
            properties[Property.UNIQUE_KEY] = self._client.ids.next(now)
        copy = Message(message.topic, b"")
        copy.body, copy.flag, copy.properties = message.body, message.flag, properties
        event = SendEvent(
            self.group, self.client_id, copy, message.topic, kind or kind_of(message), now,
            queue=queue, batch_size=batch_size, steady_ms=self.steady_ms(),
        )  # fmt: skip
        for hook in self.before_send:
            before = dict(copy.properties)
            hook(event)
            event.message = copy
            if copy.properties != before or copy.topic != message.topic or copy.body is not message.body or copy.flag != message.flag:
                self._check_changes(hook, copy, message, before)
        return event

    def _check_changes(self, hook: Hook, copy: Message, message: Message, before: dict[str, str]) -> None:
        """A hook may add what a message can carry; anything else it did is undone, so that the message does not fail for it."""
        if copy.topic != message.topic or copy.body is not message.body or copy.flag != message.flag:
            copy.topic, copy.body, copy.flag = message.topic, message.body, message.flag
            hook.failed(ClientError("it changed the topic, the body or the flag of a message; it may add properties only"))
        try:
            text = encode_properties(copy.properties)
            if len(text.encode()) > PROPERTIES_MAX - ROOM:
                raise InvalidMessage(f"it made properties of {len(text.encode())} bytes, limit is {PROPERTIES_MAX - ROOM}; add less")
            if any(not isinstance(part, str) for pair in copy.properties.items() for part in pair):
                raise InvalidMessage(f"it made the properties {copy.properties!r}; names and values must be text")
            if copy.properties.get(Property.UNIQUE_KEY) != before.get(Property.UNIQUE_KEY):
                raise InvalidMessage("it changed the message's id (UNIQ_KEY), which is decided already")
        except Exception as error:
            copy.properties = before
            hook.failed(error)

    def end_send(self, event: SendEvent, result: SendReceipt | BaseException | None, queue: MessageQueue | None, address: str) -> None:
        """None: nobody will say what became of it."""
        event.duration_ms = self.steady_ms() - event.steady_ms
        if isinstance(result, SendReceipt):
            event.receipt, queue = result, result.queue
        else:
            event.error = result
        event.queue = queue or event.queue
        event.broker_address = address
        for hook in self.after_send:
            hook(event)

    # -- consuming

    def begin_consume(self, messages: list[ReceivedMessage], *, orderly: bool = False) -> ConsumeEvent:
        first = messages[0]
        event = ConsumeEvent(
            self.group, self.client_id, messages, first.topic, self.namespace.unwrap_queue(first.queue), self.now_ms(),
            first.reconsume_times + 1, orderly=orderly, batch_size=len(messages), steady_ms=self.steady_ms(),
        )  # fmt: skip
        for hook in self.before_consume:
            hook(event)
        return event

    def end_consume(self, event: ConsumeEvent, outcome: ConsumeOutcome, failed: list[ReceivedMessage], error: BaseException | None) -> None:
        event.duration_ms = self.steady_ms() - event.steady_ms
        event.outcome, event.failed, event.error = outcome, failed, error
        for hook in self.after_consume:
            hook(event)

    # -- the rest

    def transaction(self, event: TransactionEvent) -> None:
        for hook in self.after_transaction:
            hook(event)


class Followed:
    """Who waits for a send that middleware hears of."""

    __slots__ = ("_client", "_done", "_hooks", "event", "sending")

    def __init__(self, hooks: Hooks, client: ClientCore, event: SendEvent, done: Sent) -> None:
        self._hooks = hooks
        self._client = client
        self._done = done
        self.event = event
        self.sending: Sending | None = None

    def __call__(self, result: SendReceipt | RoquetError) -> None:
        self.end(result)
        self._done(result)

    def end(self, result: SendReceipt | BaseException) -> None:
        sending, queue, address = self.sending, None, ""
        if isinstance(result, SendReceipt):
            address = self._client.routes.master(result.queue.broker_name) or ""
        elif sending is not None and sending.queue is not None:
            queue, address = self._hooks.namespace.unwrap_queue(sending.queue), sending.address
        self._hooks.end_send(self.event, result, queue, address)


def overridden(one: Middleware, name: str) -> bool:
    """Whether this middleware does anything there: the methods of the base class are marked."""
    return not getattr(getattr(one, name), "does_nothing", False)


def check_middleware(one: Any, kind: type) -> None:
    """Raises ClientError for what is no middleware."""
    if isinstance(one, type) and issubclass(one, kind):
        raise ClientError(f"middleware holds the class {one.__name__}; expected is an object of it: middleware=[{one.__name__}()]")
    if not isinstance(one, kind):
        raise ClientError(f"middleware holds {one!r}; expected are objects of classes that are derived from roquet.Middleware")
    for name in PLAIN_HOOKS:
        if inspect.iscoroutinefunction(getattr(one, name)):
            raise ClientError(f"{type(one).__name__}.{name} is async; expected is a plain function, as only started and closing may wait")


def distinct(hooks: Iterable[Hooks], name: str) -> list[Hook]:
    """The hooks of this name of all of them; middleware that was given to several is called once."""
    found: dict[int, Hook] = {}
    for one in hooks:
        for middleware in one.middleware:
            if overridden(middleware, name):
                found.setdefault(id(middleware), one.hook(middleware, name))
    return list(found.values())


__all__ = ["CallEvent", "Followed", "Hook", "Hooks", "check_middleware", "distinct"]
