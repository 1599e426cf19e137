"""ProducerCore: check a message, choose a queue, send. What a send does when it fails: see sending.py.

A request is a send that waits for a reply: see replies.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from roquet.client.core.batches import BATCH_SIZE_MAX, MESSAGE_SIZE_MAX, check_batchable, split_places
from roquet.client.core.checks import check_queue, check_ranges, valid
from roquet.client.core.failures import BatchFailed, TooManySends
from roquet.client.core.gathering import BATCH_BYTES, Gathering, size_of
from roquet.client.core.hooks import Followed, Hooks
from roquet.client.core.in_flight import CLOSED, IN_FLIGHT_MAX, InFlight
from roquet.client.core.instance import ClientCore
from roquet.client.core.namespaces import NO_NAMESPACE, Namespace
from roquet.client.core.plain_sends import PlainSends, Told, may_be_plain, plain_batch
from roquet.client.core.receipt import Receipts, SendReceipt, per_message
from roquet.client.core.replies import REPLY, RequestTimedOut
from roquet.client.core.resolver import TopicRoute, writable
from roquet.client.core.rhythm import ClientPauses
from roquet.client.core.send_command import SendTemplate
from roquet.client.core.sending import Outgoing, Place, Sending, Sent
from roquet.client.core.stats import ProducerStats, TopicSends
from roquet.client.core.tasks import Wait
from roquet.client.core.timers import Timer
from roquet.errors import ClientError, InvalidMessage, NoRoute, NotStarted, RoquetError, SendFailed
from roquet.message import Message, MessageQueue, Property, ReceivedMessage
from roquet.routing.choose import Faults, QueueChoice
from roquet.wire.batch import join_batch, join_columns
from roquet.wire.calls.sends import RECALL_MESSAGE, RecallMessageHeader
from roquet.wire.codes import RequestCode, SysFlag
from roquet.wire.command import Command
from roquet.wire.compression import KINDS, compress
from roquet.wire.hashing import java_hash
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.names import DEFAULT_TOPIC, RETRY_PREFIX, check_group, check_send_topic
from roquet.wire.record import encode_properties

log = logging.getLogger(__name__)

LINGER_MAX_MS = 10_000
SEND_MESSAGE, SEND_REPLY = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_REPLY_MESSAGE_V2)
UNIQUE_KEY_FRONT = f"{Property.UNIQUE_KEY}\x01"

Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]
"""(the topic's queues, the message, the key given to send) -> the queue to use."""


@dataclass
class ProducerSettings(ClientPauses):
    """Upstream's defaults."""

    send_timeout_ms: int = 3_000
    """How long an attempt waits for its answer."""
    delivery_timeout_ms: int = 30_000
    """How long a send may take in all, with the pauses in which it waits for a broker that is away. `timeout_ms` of a send bounds both."""
    retries: int = 2
    """Attempts after the first one on other brokers, and after an error of a broker. 0: nothing is ever tried again."""
    async_retries: int = 2
    """The same for send_async."""
    sends_in_flight_max: int = IN_FLIGHT_MAX
    """Messages under way, that is given to send and without an answer. At so many send waits, and send_async raises TooManySends."""
    retry_when_not_ok: bool = False
    """Also try another broker when one stored the message but not as safely as asked. Makes duplicates."""
    compress_over: int = 4_096
    """Compress bodies of at least this many bytes; 0: never."""
    compression: str = "zlib"
    compression_level: int = 5
    message_size_max: int = MESSAGE_SIZE_MAX
    batch_size_max: int = BATCH_SIZE_MAX
    linger_ms: int | None = None
    """None or 0: each send is a request of its own. Otherwise sends that wait at the same time share requests: while one request of
    a topic is under way, those that come meanwhile wait for its answer, at most so many ms, and go together. Sends whose queue is chosen
    (queue, selector, key) share with others for that queue, one request at a time, so that they keep their order."""
    batch_bytes: int | None = None
    """With linger_ms: bytes of messages, as they are stored, that one request holds at most. None: 128 KiB."""
    avoid_slow_brokers: bool = False
    default_queues: int = 4
    """Queues on each broker for a topic that is created by sending to it."""
    namespace: Namespace = NO_NAMESPACE

    def __post_init__(self) -> None:
        if self.compression not in KINDS:
            raise ClientError(f"compression={self.compression!r}; known are {', '.join(KINDS)}")
        self._check_gathering()
        self.check_pauses()
        check_ranges(
            self, send_timeout_ms=(1, 3_600_000), delivery_timeout_ms=(1, 86_400_000), retries=(0, 100), async_retries=(0, 100),
            sends_in_flight_max=(1, 10_000_000), message_size_max=(1, 15 << 20),
        )  # fmt: skip

    def _check_gathering(self) -> None:
        for name in ("linger_ms", "batch_bytes"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
                raise ClientError(f"{name}={given!r}; expected is a whole number, as in linger_ms=5")
        if self.linger_ms is not None:
            check_ranges(self, linger_ms=(0, LINGER_MAX_MS))
        if self.batch_bytes is not None:
            if not self.linger_ms:
                raise ClientError(f"batch_bytes={self.batch_bytes} has no use without linger_ms; give that too (linger_ms=5), or neither")
            check_ranges(self, batch_bytes=(1, self.batch_size_max))


@dataclass(slots=True, eq=False)
class _Topic:
    """What a producer keeps of a topic it sends to."""

    choice: QueueChoice
    templates: dict[tuple[str, int], SendTemplate] = field(default_factory=dict)


class ProducerCore:
    def __init__(
        self,
        client: ClientCore,
        group: str,
        settings: ProducerSettings | None = None,
        *,
        hooks: Hooks | None = None,
        stats: ProducerStats | None = None,
    ) -> None:
        self.settings = settings or ProducerSettings()
        self.stats = stats or ProducerStats(group)
        self.hooks = hooks
        self.send_hooks = hooks if hooks is not None and hooks.sends else None
        """None: nobody wants to hear of sends."""
        self.namespace = self.settings.namespace
        valid(check_group, group)
        self.client = client
        self.group = self.namespace.wrap(group)
        self.gathering: Gathering | None = None
        if self.settings.linger_ms:
            batch_bytes = self.settings.batch_bytes or min(BATCH_BYTES, self.settings.batch_size_max)
            self.gathering = Gathering(self.settings.linger_ms, batch_bytes)
        self.faults = Faults() if self.settings.avoid_slow_brokers else None
        self.started = False
        self._topics: dict[str, _Topic] = {}
        self.plain: dict[str, PlainSends] = {}
        """By topic, where sends gather of which nothing is said but the message. Empty when nothing may be sent."""
        self._requested: set[str] = set()  # topics whose brokers know that replies come here
        self.waiting: dict[Sending, Timer] = {}  # sends that wait for their next attempt
        self.in_flight = InFlight(self.settings.sends_in_flight_max)
        self.lines: dict[Place, dict[Sending, None]] = {}  # those that keep their order, by queue or topic; the first waits for a broker

    # -- being part of a client

    def start(self) -> None:
        self.client.add_producer(self)
        self.started = True

    async def close(self) -> None:
        self.started = False
        for plain in self.plain.values():
            plain.close()
        self.plain.clear()
        try:
            if self.gathering is not None:
                await self.gathering.close(self.client, self.settings.send_timeout_ms)
        finally:  # closing may be cancelled, and no timer wakes those that wait any more
            self.lines.clear()  # nobody goes after another any more
            self.in_flight.close(NotStarted(f"producer {self.group!r} was closed"))  # first, or the end of one lets in another
            for send in list(self.waiting):
                if send in self.waiting:  # and nobody withdrew it meanwhile
                    send.give_up(CLOSED)
        await self.client.remove_producer(self)

    def topics(self) -> list[str]:
        return list(self._topics)

    # -- sending

    def _plain_sends(self, topic: str) -> PlainSends | None:
        plain = self.plain.get(topic)
        if plain is None and self.gathering is not None and topic in self._topics and may_be_plain(self, topic):
            plain = self.plain[topic] = PlainSends(self, self.gathering, topic)  # its name was checked before, since it is in use
        return plain

    def send(
        self,
        message: Message,
        done: Sent,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: object = None,
        timeout_ms: int | None = None,
        retries: int | None = None,
    ) -> Sending | Told:
        """Send one message, as soon as there is room. `done` gets the receipt, or the error. Raises at once for what can never be sent.

        `queue`, or `selector`, or the hash of `key` decides where it goes; a key's messages share a queue. `retries`: in place of the
        settings'.
        """
        if not self.started or not isinstance(message, Message):
            self._check_started()
            check_message(message, "send")
        if self.gathering is not None and queue is None and selector is None and key is None and not timeout_ms:
            plain = self._plain_sends(message.topic)
            if plain is not None and plain.add(message, told := Told(plain, done, retries)):
                return told
        if queue is not None:
            check_queue(queue, message.topic)
        if self.send_hooks is not None and type(done) is not Followed:
            how = {"selector": selector, "key": key, "timeout_ms": timeout_ms, "retries": retries}
            return self._send_followed(self.send_hooks, message, done, queue, **how)
        if self.namespace:
            message, queue = self._inside(message, queue)
        if queue is not None and queue.topic != message.topic:
            raise InvalidMessage(f"{message!r} cannot go to a queue of topic {queue.topic!r}")
        outgoing = self._outgoing(message)
        sending = Sending(self, outgoing, done, queue, timeout_ms)
        if retries is not None:
            sending.retries = retries
        if queue is None:
            if selector is not None or key is not None:
                sending.select = partial(self._select, selector or by_hash, message, key)
            elif outgoing.size and self.gathering is not None and self.in_flight.room > 0 and self.known_route(outgoing.topic) is not None:
                self.in_flight.room -= 1
                self.gathering.add(sending)  # what start() comes to
                return sending
        in_flight = self.in_flight
        if in_flight.room <= 0 or in_flight.crowded:
            in_flight.begin(sending)
        else:
            in_flight.room -= 1
            sending.start()
        return sending

    def _send_followed(self, hooks: Hooks, message: Message, done: Sent, queue: MessageQueue | None, **how: Any) -> Sending:
        """The same, while middleware looks on."""
        followed = Followed(hooks, self.client, hooks.begin_send(message, queue), done)
        try:
            sending = self.send(followed.event.message, followed, queue=queue, **how)
        except BaseException as error:
            followed.end(error)
            raise
        assert isinstance(sending, Sending)  # none is plain with middleware
        followed.sending = sending
        return sending

    def send_async(
        self,
        message: Message,
        done: Sent,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: object = None,
        timeout_ms: int | None = None,
    ) -> None:
        """`send` for who does not wait: it raises TooManySends where there is no room, and has retries of its own."""
        if self.in_flight.room <= 0:
            raise TooManySends(
                f"send_async() was called while {self.in_flight.limit} messages are under way, which is sends_in_flight_max;"
                " await producer.room() before it, or use send(), which waits"
            )
        self.send(message, done, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms, retries=self.settings.async_retries)

    async def until_room(self) -> None:
        """Returns when another message may go."""
        self._check_started()
        await self.in_flight.until_room()

    async def sent(self, message: Message, *, timeout_ms: int | None = None, hooks: Hooks | None = None) -> SendReceipt:
        """`send` for a task: the receipt when a broker has stored it. Raises what `send` gives. `hooks`: of the one it is sent for."""
        receipt: Wait[SendReceipt] = Wait()
        if hooks is not None and hooks.sends:
            self._check_started()
            self._send_followed(hooks, message, receipt.end, None, timeout_ms=timeout_ms)
        else:
            self.send(message, receipt.end, timeout_ms=timeout_ms)
        return await receipt

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None, key: object = None
    ) -> str:
        """Send and forget: no answer, no retry. The address it went to, as soon as it was handed over."""
        self._check_started()
        check_message(message, "send_oneway")
        check_queue(queue, message.topic)
        hooks = self.send_hooks
        if hooks is None:
            return (await self._hand_over(message, queue, selector, key))[0]
        event = hooks.begin_send(message, queue, kind="oneway")
        try:
            address, chosen = await self._hand_over(event.message, queue, selector, key)
        except BaseException as error:
            hooks.end_send(event, error, None, "")
            raise
        hooks.end_send(event, None, self.namespace.unwrap_queue(chosen), address)
        return address

    async def _hand_over(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None, key: object
    ) -> tuple[str, MessageQueue]:
        if self.namespace:
            message, queue = self._inside(message, queue)
        outgoing = self._outgoing(message)
        route = self.known_route(message.topic) or await self.fetch_route(message.topic)
        if queue is None and (selector is not None or key is not None):
            queue = self._select(selector or by_hash, message, key, route)
        chosen = queue or self.next_queue(message.topic, route, None)
        address = self.address_of(chosen)
        self.client.caller.oneway(address, outgoing.command(self.template(outgoing, chosen.broker_name), chosen.queue_id))
        self.counted(outgoing.topic).oneway += 1
        return address, chosen

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> Sequence[SendReceipt]:
        """Send many messages in as few requests as sizes and topics allow, all at once. One receipt per message.

        When a part fails, it raises BatchFailed, which says what was stored.
        """
        self._check_started()
        if not messages:
            return []
        plain = self.plain_batch(messages) if queue is None else None
        if plain is not None:
            receipt: Wait[SendReceipt] = Wait()
            sending = self.send_plain(plain, receipt.end, timeout_ms)
            try:
                return Receipts(await receipt, plain.message_ids)
            finally:
                sending.withdraw()
        for message in messages:
            if not isinstance(message, Message):
                check_message(message, "send_batch")
        check_queue(queue, messages[0].topic)
        if self.send_hooks is not None:
            return await self._send_batch_followed(self.send_hooks, messages, queue, timeout_ms)
        return await self._send_batch(messages, queue, timeout_ms)

    async def _send_batch_followed(
        self, hooks: Hooks, messages: Sequence[Message], queue: MessageQueue | None, timeout_ms: int | None
    ) -> Sequence[SendReceipt]:
        events = [hooks.begin_send(message, queue, batch_size=len(messages)) for message in messages]
        results: Sequence[SendReceipt | BaseException] = []
        try:
            receipts = await self._send_batch([event.message for event in events], queue, timeout_ms)
            results = receipts
            return receipts
        except BatchFailed as failure:
            results = [cast(SendReceipt, receipt) if receipt is not None else failure for receipt in failure.receipts]
            raise
        except BaseException as error:
            results = [error] * len(events)
            raise
        finally:
            for event, result in zip(events, results, strict=True):
                address = self.client.routes.master(result.queue.broker_name) if isinstance(result, SendReceipt) else None
                hooks.end_send(event, result, None, address or "")

    async def _send_batch(self, messages: Sequence[Message], queue: MessageQueue | None, timeout_ms: int | None) -> Sequence[SendReceipt]:
        if self.namespace:
            messages = [self._inside(message, None)[0] for message in messages]
            queue = queue and self.namespace.wrap_queue(queue)
        for message in messages:
            self._check(message)
            if len(messages) > 1:
                check_batchable(message)
            if queue is not None and message.topic != queue.topic:
                raise InvalidMessage(f"{message!r} cannot go to a queue of topic {queue.topic!r}; leave the queue out")
        batches = split_places(messages, self.settings.batch_size_max)
        outgoing = [self._outgoing_batch([messages[place] for place in places]) for places in batches]
        under_way: list[Sending] = []
        try:
            results = await self.client.tasks.each(self._send_one(one, queue, timeout_ms, under_way) for one in outgoing)
        finally:
            for sending in under_way:
                sending.withdraw()
        receipts: list[SendReceipt | None] = [None] * len(messages)
        failures: list[RoquetError] = []
        for places, one, result in zip(batches, outgoing, results, strict=True):
            if isinstance(result, RoquetError):
                failures.append(result)
            else:
                for place, receipt in zip(places, per_message(result, one.message_ids), strict=True):
                    receipts[place] = receipt
        return together(receipts, failures)

    def plain_batch(self, messages: Sequence[Message]) -> Outgoing | None:
        """One request with all of them, where they are what programs send all day."""
        if len(messages) < 2 or self.send_hooks is not None or not self.started:
            return None
        settings, first = self.settings, messages[0]
        if self.namespace or not isinstance(first, Message) or first.topic not in self._topics or first.topic.startswith(RETRY_PREFIX):
            return None
        columns = plain_batch(first.topic, messages, settings.message_size_max, settings.batch_size_max)
        if columns is None:
            return None
        now = self.client.clock.now_ms()
        message_ids = self.client.ids.many(now, len(messages))
        body = join_columns(*columns, message_ids, Property.UNIQUE_KEY)
        return Outgoing(first.topic, body, "", 0, 0, now, message_ids, True, int(RequestCode.SEND_BATCH_MESSAGE), None)

    def send_plain(self, outgoing: Outgoing, done: Sent, timeout_ms: int | None) -> Sending:
        """Send what `plain_batch` made. `done` gets its receipt, or what went wrong."""
        sending = Sending(self, outgoing, done, None, timeout_ms)
        self.in_flight.begin(sending)
        return sending

    async def _send_one(
        self, outgoing: Outgoing, queue: MessageQueue | None, timeout_ms: int | None, under_way: list[Sending]
    ) -> SendReceipt:
        receipt: Wait[SendReceipt] = Wait()
        sending = Sending(self, outgoing, receipt.end, queue, timeout_ms)
        under_way.append(sending)
        self.in_flight.begin(sending)
        return await receipt

    async def request(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: object = None,
    ) -> ReceivedMessage:
        """Send a message and wait until whoever consumes it replies. Raises RequestTimedOut when nobody does in time."""
        self._check_started()
        check_message(message, "request")
        timeout_ms = timeout_ms or self.settings.send_timeout_ms
        correlation_id = self.client.ids.next(self.client.clock.now_ms())
        asked = with_properties(message, {
            Property.CORRELATION_ID: correlation_id, Property.REPLY_TO_CLIENT: self.client.client_id, Property.TTL: str(timeout_ms),
        })  # fmt: skip
        self._check(asked)
        late = RequestTimedOut(f"no reply to a request to {message.topic!r} within {timeout_ms} ms; is a consumer there that replies?")
        reply = self.client.replies.expect(correlation_id)
        send = partial(self.send, asked, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms)
        self.client.tasks.start(self._ask(self.namespace.wrap(message.topic), send, reply))
        try:
            return await self.client.within(reply, timeout_ms, late)
        finally:
            self.client.replies.forget(correlation_id)

    async def _ask(self, topic: str, send: Callable[[Sent], object], reply: Wait[ReceivedMessage]) -> None:
        """The time for the reply runs meanwhile. An error here is the answer; otherwise a broker pushes it."""
        try:
            if self.known_route(topic) is None:
                await self.fetch_route(topic)
            # A reply is pushed over the connection that this producer's heartbeat came from, so that must be there first.
            if topic not in self._requested:
                await self.client.heartbeat_all()
                self._requested.add(topic)
            if not reply.over:  # there is time left
                receipt: Wait[SendReceipt] = Wait()
                send(receipt.end)
                await receipt
        except RoquetError as error:
            reply.end(error)

    async def recall(self, receipt: SendReceipt) -> str:
        """Cancel a timed message that was not delivered yet. Its message id."""
        self._check_started()
        handle = receipt.recall_handle
        if not handle:
            raise ClientError(
                f"message {receipt.message_id} has no recall handle: it is not timed (deliver_at, deliver_after),"
                " or its broker cannot recall messages"
            )
        queue = self.namespace.wrap_queue(receipt.queue)
        header = RecallMessageHeader(self.group, queue.topic, handle, queue.broker_name)
        if self.known_route(queue.topic) is None:
            await self.fetch_route(queue.topic)
        timeout_ms = self.settings.send_timeout_ms
        answer = await self.client.call(self.address_of(queue), RECALL_MESSAGE, header, timeout_ms=timeout_ms)
        return answer.command.fields.get("msgId") or receipt.message_id

    def check_transaction(self, address: str, message: ReceivedMessage, command: Command) -> None:
        """A broker asks how a transaction ended; only a TransactionCore knows any."""
        log.warning("! %s asks for the transaction of %s, but producer %s has none", address, message.message_id, self.group)

    # -- before it goes out

    def _inside(self, message: Message, queue: MessageQueue | None) -> tuple[Message, MessageQueue | None]:
        """The same in this producer's namespace. Replies go to a topic of the cluster, which has none."""
        if message.properties.get(Property.MESSAGE_TYPE) == REPLY:
            return message, queue
        inside = with_properties(message, {Property.INSTANCE_ID: self.namespace.name})
        inside.topic = self.namespace.wrap(message.topic)
        return inside, None if queue is None else self.namespace.wrap_queue(queue)

    def _select(self, selector: Selector, message: Message, key: object, route: TopicRoute) -> MessageQueue:
        """Ask the user's function, in the user's names; whatever it does wrong becomes a ClientError."""
        namespace = self.namespace
        if not namespace:
            return select(selector, route.write_queues, message, key)
        shown = with_properties(message, {})
        shown.topic = namespace.unwrap(message.topic)
        return namespace.wrap_queue(select(selector, [namespace.unwrap_queue(queue) for queue in route.write_queues], shown, key))

    def _check_started(self) -> None:
        if not self.started:
            raise NotStarted(f"producer {self.group!r} is not started or was closed; call start() first")

    def _check(self, message: Message) -> None:
        if message.topic not in self._topics:  # names are checked once
            valid(check_send_topic, message.topic)
        if not isinstance(message.body, bytes):  # set after it was made
            raise InvalidMessage(f"body is a {type(message.body).__name__}, expected bytes; encode text first: text.encode()")
        size = len(message.body)
        if not 0 < size <= self.settings.message_size_max:
            if not size:
                raise InvalidMessage(f"the body of a message to {message.topic!r} is empty; put at least one byte into it")
            raise InvalidMessage(
                f"body of {size} bytes, limit is {self.settings.message_size_max}; send less, or raise message_size_max here"
                " and maxMessageSize at the broker"
            )
        if not -0x80000000 <= message.flag <= 0x7FFFFFFF:
            raise InvalidMessage(f"flag {message.flag} does not fit 32 bits; use a property instead")

    def _properties(self, message: Message, unique_id: str) -> str:
        if not message.properties:
            return UNIQUE_KEY_FRONT + unique_id
        text = encode_properties(message.properties)
        if Property.UNIQUE_KEY not in message.properties:
            own = UNIQUE_KEY_FRONT + unique_id
            text = f"{text}\x02{own}" if text else own
        if len(text) * 3 > PROPERTIES_MAX and len(text.encode()) > PROPERTIES_MAX:
            raise InvalidMessage(f"properties of {len(text.encode())} bytes, limit is {PROPERTIES_MAX}; move the large ones into the body")
        return text

    def _unique_id(self, message: Message, now_ms: int) -> str:
        return message.properties.get(Property.UNIQUE_KEY) or self.client.ids.next(now_ms)

    def _outgoing(self, message: Message) -> Outgoing:
        body, topic, properties = message.body, message.topic, message.properties
        settings = self.settings
        if topic not in self._topics or type(body) is not bytes or not 0 < len(body) <= settings.message_size_max or message.flag:
            self._check(message)
        now = self.client.clock.now_ms()
        sys_flag, code, extra = 0, SEND_MESSAGE, None
        if settings.compress_over and len(body) >= settings.compress_over:
            body, sys_flag = self._smaller(body)
        if not properties:
            unique_id = self.client.ids.next(now)
        else:
            unique_id = self._unique_id(message, now)
            if Property.TRANSACTION_PREPARED in properties and properties[Property.TRANSACTION_PREPARED].lower() == "true":
                sys_flag |= SysFlag.TRANSACTION_PREPARED
            if Property.MESSAGE_TYPE in properties and properties[Property.MESSAGE_TYPE] == REPLY:
                code = SEND_REPLY
            if topic.startswith(RETRY_PREFIX):
                message, extra = counted(message)
        text = self._properties(message, unique_id)
        size = 0
        if self.gathering is not None and not sys_flag and not topic.startswith(RETRY_PREFIX):
            size = size_of(message, body, text)
        return Outgoing(topic, body, text, sys_flag, message.flag, now, (unique_id,), False, code, extra, size)

    def _smaller(self, body: bytes) -> tuple[bytes, int]:
        """Compressed, and how; what does not shrink goes as it is."""
        smaller = compress(body, self.settings.compression, self.settings.compression_level)
        return (smaller, KINDS[self.settings.compression]) if len(smaller) < len(body) else (body, 0)

    def _outgoing_batch(self, messages: Sequence[Message]) -> Outgoing:
        if len(messages) == 1:
            return self._outgoing(messages[0])
        now = self.client.clock.now_ms()
        unique_ids = [self._unique_id(message, now) for message in messages]
        parts = [
            (message.flag, message.body, self._properties(message, unique_id).encode())
            for message, unique_id in zip(messages, unique_ids, strict=True)
        ]
        waits = messages[0].wait_store_ok
        properties = "" if waits else f"{Property.WAIT}\x01false"
        code = int(RequestCode.SEND_BATCH_MESSAGE)
        return Outgoing(messages[0].topic, join_batch(parts), properties, 0, 0, now, unique_ids, True, code, None)

    # -- where it goes

    def _topic(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic(QueueChoice(self.client.random.randrange(1 << 16), self.faults))
        return known

    def counted(self, topic: str) -> TopicSends:
        """Where sends to this topic are counted."""
        return self.stats.of(self.namespace.unwrap(topic))

    def known_route(self, topic: str) -> TopicRoute | None:
        route = self.client.routes.topics.get(topic)
        if route is None or not route.write_queues:
            return None
        if topic not in self._topics:
            self._topic(topic)
        return route

    async def fetch_route(self, topic: str) -> TopicRoute:
        route = writable(await self.client.routes.fetch(topic, self.settings.default_queues))
        self._topic(topic)
        return route

    def next_queue(self, topic: str, route: TopicRoute, avoid: str | None) -> MessageQueue:
        now = 0 if self.faults is None else self.client.clock.steady_ms()
        return self._topic(topic).choice.next(route.write_queues, now, avoid)

    def address_of(self, queue: MessageQueue) -> str:
        address = self.client.routes.master(queue.broker_name)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name!r} has no master that is known; queue {queue} cannot be written now")
        return address

    def template(self, outgoing: Outgoing, broker_name: str) -> SendTemplate:
        templates = self._topic(outgoing.topic).templates
        template = templates.get((broker_name, outgoing.code))
        if template is None:
            template = templates[broker_name, outgoing.code] = SendTemplate(
                self.group, outgoing.topic, broker_name,
                default_topic=DEFAULT_TOPIC, default_queues=self.settings.default_queues, batch=outgoing.batch, code=outgoing.code,
            )  # fmt: skip
        return template


def check_message(message: object, call: str) -> None:
    if not isinstance(message, Message):
        raise InvalidMessage(
            f'{call}() was given {shorten(repr(message))}, a {type(message).__name__}; expected is a Message: Message("topic", b"hello")'
        )


def shorten(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def by_hash(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
    """The same key, the same queue, as long as the topic keeps its queues; the one that Java's SelectMessageQueueByHash gives."""
    return queues[java_remainder(java_object_hash(key), len(queues))]


def java_object_hash(key: object) -> int:
    """Object.hashCode of a String, an Integer or (beyond 32 bits) a Long; of anything else, that of its text."""
    if isinstance(key, int) and not isinstance(key, bool) and -(1 << 63) <= key < 1 << 63:
        if -(1 << 31) <= key < 1 << 31:
            return key
        folded = (key ^ (key & 0xFFFFFFFFFFFFFFFF) >> 32) & 0xFFFFFFFF
        return folded - (1 << 32) if folded >= 1 << 31 else folded
    return java_hash(key if isinstance(key, str) else str(key))


def java_remainder(value: int, count: int) -> int:
    """|value % count| with the sign of Java's %, which is that of the value."""
    return abs(value) % count


def with_properties(message: Message, properties: dict[str, str]) -> Message:
    """A copy with these set: what we add does not show in the user's message."""
    return Message(message.topic, message.body, properties={**message.properties, **properties}, flag=message.flag)


def counted(message: Message) -> tuple[Message, dict[str, str] | None]:
    """A message to a retry topic tells how often it failed in the header, not in its properties: the broker counts with it."""
    rest = dict(message.properties)
    times, times_max = rest.pop(Property.RECONSUME_TIME, None), rest.pop(Property.MAX_RECONSUME_TIMES, None)
    extra = {name: value for name, value in (("j", times), ("l", times_max)) if value is not None}
    return Message(message.topic, message.body, properties=rest, flag=message.flag), extra or None


def select(selector: Selector, queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
    """Ask the user's function; whatever it does wrong becomes a ClientError."""
    try:
        chosen = selector(queues, message, key)
    except Exception as error:
        raise ClientError(f"the queue selector failed for {message!r} with key {key!r}: {error!r}") from error
    if not isinstance(chosen, MessageQueue) or chosen.topic != message.topic:
        raise ClientError(f"the queue selector returned {chosen!r}; it must return one of the queues of topic {message.topic!r}")
    return chosen


def together(receipts: list[SendReceipt | None], failures: list[RoquetError]) -> Sequence[SendReceipt]:
    """All of them, or the error that says which are missing."""
    stored = [receipt for receipt in receipts if receipt is not None]
    if len(stored) == len(receipts):
        return stored
    if not stored and len(failures) == 1:
        raise failures[0]
    attempts = [attempt for failure in failures if isinstance(failure, SendFailed) for attempt in failure.attempts]
    text = f"{len(stored)} of {len(receipts)} messages were stored; the first failure: {failures[0]}"
    raise BatchFailed(text, attempts, list(receipts))
