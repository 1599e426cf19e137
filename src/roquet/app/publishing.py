"""Values as messages: what app.publish() and publishers send."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from roquet.app.payloads import CONTENT_TYPE, Encode, Unsendable, encoded
from roquet.client import Outcome, Producer, RetryLater, SendReceipt, Suspend
from roquet.errors import ClientError, error_text
from roquet.message import Message

if TYPE_CHECKING:
    from roquet.app.app import App

T = TypeVar("T")
P = ParamSpec("P")
Verdict = Outcome | RetryLater | Suspend | None
"""What a handler may return in place of a value: then nothing is published."""


def message_of(
    topic: str,
    value: Any,
    *,
    key: str | Iterable[str] | None = None,
    tags: str = "",
    delay: float | timedelta | None = None,
    delay_level: int = 0,
    deliver_at: datetime | int | None = None,
    properties: Mapping[str, str] | None = None,
    own_encode: Encode | None = None,
    content_type: str | None = None,
) -> Message:
    """The message that carries this value. Raises Unsendable for a value that cannot be sent, InvalidMessage for the rest."""
    body, kind = encoded(value, own_encode)
    if delay is not None:
        delay = delay.total_seconds() if isinstance(delay, timedelta) else delay
    return Message(
        topic,
        body,
        tags=tags,
        keys=() if key is None else key,
        properties={**properties, CONTENT_TYPE: content_type or kind} if properties else {CONTENT_TYPE: content_type or kind},
        delay_level=delay_level,
        deliver_at=deliver_at,
        deliver_after=delay,
    )


class Publisher(Generic[T]):
    """Where values of one type go: made by app.publisher(). `await publisher.publish(value)` sends one. As a decorator of a handler, beside
    @app.consumer, it sends what the handler returns; not None, nor a verdict (RETRY_LATER, RetryLater(...), DEAD_LETTER ...)."""

    def __init__(
        self,
        app: App,
        topic: str,
        payload: Any,
        *,
        key: Callable[[T], object] | None,
        order_key: Callable[[T], object] | None,
        tags: str | Callable[[T], str],
        delay: float | timedelta | None,
        properties: Mapping[str, str] | None,
        encode: Encode | None,
        content_type: str | None,
        producer: Producer | None,
    ) -> None:
        self.app = app
        self.topic = topic
        self.payload = payload
        self.key = key
        self.order_key = order_key
        self.tags = tags
        self.delay = delay
        self.properties = properties
        self.encode = encode
        self.content_type = content_type
        self.producer = producer

    async def publish(
        self,
        value: T,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        delay: float | timedelta | None = None,
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        properties: Mapping[str, str] | None = None,
        order_key: object = None,
    ) -> SendReceipt:
        """Send it and wait until a broker has stored it. What is given here overrides what the publisher has. Raises as app.publish."""
        if key is None and self.key is not None:
            key = str(self._of(self.key, value))
        if order_key is None and self.order_key is not None:
            order_key = self._of(self.order_key, value)
        if tags is None:
            tags = self.tags if isinstance(self.tags, str) else str(self._of(self.tags, value))
        if delay is None and not delay_level and deliver_at is None:
            delay = self.delay
        if self.properties:
            properties = {**self.properties, **(properties or {})}
        message = message_of(
            self.topic, value, key=key, tags=tags, delay=delay, delay_level=delay_level, deliver_at=deliver_at, properties=properties,
            own_encode=self.encode, content_type=self.content_type,
        )  # fmt: skip
        return await (self.producer or self.app.producer).send(message, key=order_key)

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T | Verdict]], /) -> Callable[P, Coroutine[Any, Any, T | Verdict]]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, T]: ...

    @overload
    def __call__(self, function: Callable[P, T | Verdict], /) -> Callable[P, T | Verdict]: ...

    def __call__(self, function: Any, /) -> Any:
        """Decorator: what this handler returns is published."""
        self.app._publish_results(function, self)
        return function

    def _of(self, function: Callable[[T], object], value: T) -> object:
        try:
            return function(value)
        except Exception as error:
            raise Unsendable(f"{self!r} cannot make the key or the tag of {value!r}: {error_text(error)}") from error

    def __repr__(self) -> str:
        return f"<Publisher {self.topic}>"


def check_topic(topic: object) -> None:
    if not isinstance(topic, str) or not topic:
        raise ClientError(f"the topic is {topic!r}; expected is a text, the name of a topic")
