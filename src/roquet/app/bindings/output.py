"""Output: where a binding's values go. app.output("one-to-one-output").send(value)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from roquet.app.bindings.binding import RP, Binding, P
from roquet.app.bindings.expressions import NoValue
from roquet.app.payloads import Unsendable
from roquet.app.publishing import Publisher, message_of
from roquet.client import Producer, SendReceipt, TransactionProducer, TransactionReceipt
from roquet.errors import ClientError, NotStarted, RoquetError
from roquet.message import Message, Property

if TYPE_CHECKING:
    from roquet.app.app import App
    from roquet.app.bindings.wiring import Bindings

log = logging.getLogger(__name__)

UNDER_WAY_MAX = 10_000
"""Messages sent async that no broker has answered for yet: the next send() waits."""
PREFIXES = ("ROCKET_", "rocketmq_")
"""Before the names of RocketMQ's own properties, in headers of Spring."""
RESERVED = (Property.TAGS, Property.KEYS, Property.DELAY)


class Output(Publisher[Any]):
    """An output binding of a file. As a decorator of a handler it sends what the handler returns."""

    def __init__(self, app: App, bindings: Bindings, binding: Binding) -> None:
        super().__init__(
            app, binding.destination, None, key=None, order_key=None, tags="", delay=None, properties=None, encode=None,
            content_type=binding.content_type, producer=None,
        )  # fmt: skip
        self.binding = binding
        self.name = binding.name
        self.send_type = binding.send_type
        self._bindings = bindings
        self._partition_key = binding.partition_key()
        self._under_way = 0
        self._free = asyncio.Event()

    async def send(
        self,
        value: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        delay: float | timedelta | None = None,
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        argument: Any = None,
    ) -> SendReceipt | TransactionReceipt | None:
        """Send as the file says: wait for the broker's receipt (sync), or not (async, one-way: then None is returned, and what fails is
        logged), or in a transaction (then the listener's execute() gets the message and `argument`).

        `headers` become properties of the message; TAGS, KEYS and DELAY are its tag, keys and delay level, as in Spring. Raises Unsendable
        for a value that cannot be sent, and what Producer.send raises."""
        message, order = self._message(value, headers, key, tags, delay, delay_level, deliver_at)
        producer = self._running()
        if isinstance(producer, TransactionProducer) and self.binding.is_transactional:
            return await producer.send_in_transaction(message, argument)
        if self.send_type == "OneWay":
            await producer.send_oneway(message, **order)
            return None
        if self.send_type == "Async":
            await self._send_async(producer, message, order)
            return None
        return await producer.send(message, **order)

    async def publish(
        self,
        value: Any,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        delay: float | timedelta | None = None,
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        properties: Mapping[str, str] | None = None,
        order_key: object = None,
    ) -> SendReceipt:
        """The same, and wait until a broker has stored it whatever the file says: so results of handlers are sent."""
        message, order = self._message(value, properties, key, tags, delay, delay_level, deliver_at)
        if order_key is not None:
            order["key"] = order_key
        producer = self._running()
        if isinstance(producer, TransactionProducer) and self.binding.is_transactional:
            return (await producer.send_in_transaction(message)).receipt
        return await producer.send(message, **order)

    def _running(self) -> Producer:
        if not self.binding.get(RP, "enabled", True):
            raise ClientError(f"binding {self.name} is disabled (enabled: false), so nothing is sent; take that out of the file to send")
        found = self._bindings.producer_of(self)
        if found is None:
            raise NotStarted(f"the app does not run, so {self.name} sends nothing; send in a handler or a hook, or in `async with app:`")
        return found

    def _message(
        self,
        value: Any,
        headers: Mapping[str, Any] | None,
        key: str | Iterable[str] | None,
        tags: str | None,
        delay: float | timedelta | None,
        delay_level: int,
        deliver_at: datetime | int | None,
    ) -> tuple[Message, dict[str, Any]]:
        properties, own = texts_of(headers or {})
        if own.get(Property.DELAY) and delay is None and not delay_level and deliver_at is None:
            delay_level = level_of(own[Property.DELAY])
        message = message_of(
            self.topic, value, key=own.get(Property.KEYS) if key is None else key,
            tags=own.get(Property.TAGS, "") if tags is None else tags, delay=delay, delay_level=delay_level, deliver_at=deliver_at,
            properties=properties, own_encode=self.binding.encoded, content_type=self.content_type,
        )  # fmt: skip
        return message, self._order(value, headers or {}, message)

    def _order(self, value: Any, headers: Mapping[str, Any], message: Message) -> dict[str, Any]:
        selector = self._bindings.bean_of(self.binding, RP, "message-queue-selector")
        extractor = self._bindings.bean_of(self.binding, P, "partition-key-extractor-name")
        found: Any = None
        try:
            if extractor is not None:
                found = extractor(message)
            elif self._partition_key is not None:
                found = self._partition_key(lambda name: header_of(headers, name), lambda: value)
            else:
                return {} if selector is None else {"selector": selector}
        except NoValue as error:
            raise Unsendable(f"binding {self.name} cannot choose a queue: {error} (partition-key-expression)") from None
        if found is None:
            what = self.binding.get(P, "partition-key-expression") or self.binding.get(P, "partition-key-extractor-name")
            raise Unsendable(f"binding {self.name} cannot choose a queue: {what} is null; give the header or field that it names")
        return {"key": found} if selector is None else {"key": found, "selector": selector}

    # -- async

    async def _send_async(self, producer: Producer, message: Message, order: dict[str, Any]) -> None:
        while self._under_way >= UNDER_WAY_MAX:
            self._free.clear()
            await self._free.wait()

        def done(result: SendReceipt | RoquetError) -> None:
            self._under_way -= 1
            self._free.set()
            if isinstance(result, RoquetError):
                log.error("! %s: %r was not sent, and nobody waits for it: %s; set sync: true to get errors", self.name, message, result)

        self._under_way += 1
        try:
            producer.send_async(message, done, **order)
        except BaseException:
            self._under_way -= 1
            raise

    async def drained(self) -> None:
        """Wait until a broker has answered for all that was sent async, or each has failed."""
        while self._under_way:
            self._free.clear()
            await self._free.wait()

    def __repr__(self) -> str:
        return f"<Output {self.name} to {self.topic}>"


def texts_of(headers: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The user's properties, and RocketMQ's own of which a message has its own form."""
    properties: dict[str, str] = {}
    own: dict[str, str] = {}
    for name, value in headers.items():
        bare = next((name[len(prefix) :] for prefix in PREFIXES if name.startswith(prefix)), name)
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if bare in RESERVED:
                own[bare] = text
            else:
                properties[name] = text
    return properties, own


def level_of(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 5:
        return int(text)
    raise Unsendable(f"the header {Property.DELAY} is {text!r}; expected is the number of a delay level")


def header_of(headers: Mapping[str, Any], name: str) -> Any:
    for spelled in (name, *(f"{prefix}{name}" for prefix in PREFIXES)):
        if spelled in headers:
            return headers[spelled]
    return next((headers.get(name[len(prefix) :]) for prefix in PREFIXES if name.startswith(prefix)), None)
