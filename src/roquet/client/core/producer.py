"""ProducerCore: choose a queue, send, try another broker when that fails.

A send has one deadline for all its attempts. An attempt that gets no answer has used it up, so what is retried in
practice is a refused connection and an error answer, on a broker other than the one that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from roquet.client.core.batches import BATCH_SIZE_MAX, MESSAGE_SIZE_MAX, check_batchable, split_places
from roquet.client.core.failures import RETRIED, BadAnswer, BatchFailed, SendTimedOut, rejected
from roquet.client.core.instance import ClientCore, Finished
from roquet.client.core.receipt import STATUSES, SendReceipt, SendStatus
from roquet.client.core.routes import TopicRoute
from roquet.client.core.send_command import SendCommand, SendTemplate
from roquet.errors import CallTimeout, ClientError, InvalidMessage, NoRoute, NotStarted, Refused, RoquetError, SendFailed
from roquet.message import Message, MessageQueue, Property, encode_properties
from roquet.routing.choose import Faults, QueueChoice
from roquet.wire.batch import join_batch
from roquet.wire.command import Command
from roquet.wire.compression import KINDS, compress
from roquet.wire.names import DEFAULT_TOPIC, check_group, check_send_topic

PROPERTIES_MAX = 32_767
QUEUE_SELECTED_RETRIES = 0

Sent = Callable[[SendReceipt | RoquetError], None]
BatchSent = Callable[[list[SendReceipt] | RoquetError], None]
Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]
"""(the topic's queues, the message, the key given to send) -> the queue to use."""


@dataclass
class ProducerSettings:
    """Upstream's defaults."""

    send_timeout_ms: int = 3_000
    retries: int = 2
    """Attempts after the first one. A send with a chosen queue is never retried, since the queue was the point."""
    retry_when_not_ok: bool = False
    """Also try another broker when one stored the message but not as safely as asked. Makes duplicates."""
    compress_over: int = 4_096
    """Compress bodies of at least this many bytes; 0: never."""
    compression: str = "zlib"
    compression_level: int = 5
    message_size_max: int = MESSAGE_SIZE_MAX
    batch_size_max: int = BATCH_SIZE_MAX
    avoid_slow_brokers: bool = False
    default_queues: int = 4
    """Queues on each broker for a topic that is created by sending to it."""

    def __post_init__(self) -> None:
        if self.compression not in KINDS:
            raise ClientError(f"compression={self.compression!r}; known are {', '.join(KINDS)}")
        for name, low, high in (("send_timeout_ms", 1, 3_600_000), ("retries", 0, 100), ("message_size_max", 1, 15 << 20)):
            if not low <= getattr(self, name) <= high:
                raise ClientError(f"{name}={getattr(self, name)}; allowed are {low} to {high}")


class _Topic:
    """What a producer keeps of a topic it sends to."""

    __slots__ = ("choice", "route", "templates")

    def __init__(self, choice: QueueChoice) -> None:
        self.choice = choice
        self.route: TopicRoute | None = None
        self.templates: dict[tuple[str, bool], SendTemplate] = {}


class ProducerCore:
    def __init__(self, client: ClientCore, group: str, settings: ProducerSettings | None = None) -> None:
        valid(check_group, group)
        self.client = client
        self.group = group
        self.settings = settings or ProducerSettings()
        self.faults = Faults() if self.settings.avoid_slow_brokers else None
        self.started = False
        self._topics: dict[str, _Topic] = {}

    # -- being part of a client

    def start(self) -> None:
        self.client.add_producer(self)
        self.started = True

    def close(self, done: Finished) -> None:
        self.started = False
        self.client.remove_producer(self, done)

    def topics(self) -> list[str]:
        return list(self._topics)

    # -- sending

    def send(
        self,
        message: Message,
        done: Sent,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: object = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send one message. `done` gets the receipt, or the error. Raises at once for what can never be sent."""
        self._check_started()
        if queue is not None and queue.topic != message.topic:
            raise InvalidMessage(f"{message!r} cannot go to a queue of topic {queue.topic!r}")
        attempt = _Send(self, self._seal(message), done, queue, timeout_ms)
        if selector is None:
            attempt.start()
            return

        def go(route: TopicRoute) -> None:
            try:
                chosen = select(selector, route, message, key)
            except RoquetError as error:
                attempt.fail(error)
                return
            attempt.start_at(chosen)

        self._with_route(message.topic, attempt.fail, go)

    def send_oneway(
        self,
        message: Message,
        done: Callable[[str | RoquetError], None],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: object = None,
    ) -> None:
        """Send and forget: no answer, no retry. `done` gets the address it went to, as soon as it was handed over."""
        self._check_started()
        letter = self._seal(message)

        def go(route: TopicRoute) -> None:
            try:
                chosen = queue or (select(selector, route, message, key) if selector else self._next(letter.topic, route, None))
                address = self._address(chosen)
                self.client.caller.oneway(address, letter.command(self._template(letter, chosen.broker_name), chosen.queue_id))
            except RoquetError as error:
                done(error)
                return
            done(address)

        self._with_route(message.topic, done, go)

    def send_batch(
        self, messages: Sequence[Message], done: BatchSent, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> None:
        """Send many messages in as few requests as sizes and topics allow, all at once. `done` gets one receipt per message.

        When a part fails, `done` gets BatchFailed, which says what was stored.
        """
        self._check_started()
        if not messages:
            done([])
            return
        for message in messages:
            self._check(message)
            if len(messages) > 1:
                check_batchable(message)
            if queue is not None and message.topic != queue.topic:
                raise InvalidMessage(f"{message!r} cannot go to a queue of topic {queue.topic!r}; leave the queue out")
        receipts: list[SendReceipt | None] = [None] * len(messages)
        failures: list[RoquetError] = []
        batches = split_places(messages, self.settings.batch_size_max)
        left = len(batches)

        def part_done(places: list[int], letter: Letter, result: SendReceipt | RoquetError) -> None:
            nonlocal left
            if isinstance(result, RoquetError):
                failures.append(result)
            else:
                for place, receipt in zip(places, per_message(result, letter.message_ids), strict=True):
                    receipts[place] = receipt
            left -= 1
            if left == 0:
                done(together(receipts, failures))

        for places in batches:
            part = [messages[place] for place in places]
            letter = self._seal(part[0]) if len(part) == 1 else self._seal_batch(part)
            _Send(self, letter, partial(part_done, places, letter), queue, timeout_ms).start()

    # -- before it goes out

    def _check_started(self) -> None:
        if not self.started:
            raise NotStarted(f"producer {self.group!r} is not started or was closed; use it inside `async with`, or call start()")

    def _check(self, message: Message) -> None:
        if message.topic not in self._topics:  # names are checked once
            valid(check_send_topic, message.topic)
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
        text = encode_properties(message.properties)
        if Property.UNIQUE_KEY not in message.properties:
            text = f"{text}\x02UNIQ_KEY\x01{unique_id}" if text else f"UNIQ_KEY\x01{unique_id}"
        if len(text) * 3 > PROPERTIES_MAX and len(text.encode()) > PROPERTIES_MAX:
            raise InvalidMessage(f"properties of {len(text.encode())} bytes, limit is {PROPERTIES_MAX}; move the large ones into the body")
        return text

    def _unique_id(self, message: Message, now_ms: int) -> str:
        return message.properties.get(Property.UNIQUE_KEY) or self.client.ids.next(now_ms)

    def _seal(self, message: Message) -> Letter:
        self._check(message)
        now = self.client.clock.now_ms()
        unique_id = self._unique_id(message, now)
        settings = self.settings
        body, sys_flag = message.body, 0
        if settings.compress_over and len(body) >= settings.compress_over:
            smaller = compress(body, settings.compression, settings.compression_level)
            if len(smaller) < len(body):  # what does not shrink goes as it is
                body, sys_flag = smaller, KINDS[settings.compression]
        return Letter(message.topic, body, self._properties(message, unique_id), sys_flag, message.flag, now, (unique_id,), False)

    def _seal_batch(self, messages: Sequence[Message]) -> Letter:
        now = self.client.clock.now_ms()
        unique_ids = tuple(self._unique_id(message, now) for message in messages)
        parts = [
            (message.flag, message.body, self._properties(message, unique_id).encode())
            for message, unique_id in zip(messages, unique_ids, strict=True)
        ]
        waits = messages[0].wait_store_ok
        return Letter(messages[0].topic, join_batch(parts), "" if waits else "WAIT\x01false", 0, 0, now, unique_ids, True)

    # -- where it goes

    def _topic(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic(QueueChoice(self.client.random.randrange(1 << 16), self.faults))
        return known

    def _with_route(self, topic: str, failed: Callable[[RoquetError], None], go: Callable[[TopicRoute], None]) -> None:
        route = self.client.routes.topics.get(topic)
        if route is not None and route.write_queues:
            self._topic(topic)
            go(route)
        else:
            self.fetch_route(topic, failed, go)

    def fetch_route(self, topic: str, failed: Callable[[RoquetError], None], go: Callable[[TopicRoute], None]) -> None:
        def fetched(result: TopicRoute | RoquetError) -> None:
            if isinstance(result, RoquetError):
                failed(result)
            elif not result.write_queues:
                failed(NoRoute(f"topic {topic!r} has no queue that takes writes now: no permission, or no master; look at its brokers"))
            else:
                self._topic(topic)
                go(result)

        self.client.routes.fetch(topic, fetched, fallback=True, default_queues=self.settings.default_queues)

    def _next(self, topic: str, route: TopicRoute, avoid: str | None) -> MessageQueue:
        now = 0 if self.faults is None else self.client.clock.now_ms()
        return self._topic(topic).choice.next(route.write_queues, now, avoid)

    def _address(self, queue: MessageQueue) -> str:
        address = self.client.routes.master(queue.broker_name)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name!r} has no master that is known; queue {queue} cannot be written now")
        return address

    def _template(self, letter: Letter, broker_name: str) -> SendTemplate:
        templates = self._topic(letter.topic).templates
        template = templates.get((broker_name, letter.batch))
        if template is None:
            template = templates[broker_name, letter.batch] = SendTemplate(
                self.group, letter.topic, broker_name,
                default_topic=DEFAULT_TOPIC, default_queues=self.settings.default_queues, batch=letter.batch,
            )  # fmt: skip
        return template


class Letter:
    """A message, or a batch, as it goes out: everything but the queue is decided."""

    __slots__ = ("batch", "body", "born_ms", "flag", "message_ids", "properties", "sys_flag", "topic")

    def __init__(
        self, topic: str, body: bytes, properties: str, sys_flag: int, flag: int, born_ms: int, message_ids: tuple[str, ...], batch: bool
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.sys_flag = sys_flag
        self.flag = flag
        self.born_ms = born_ms
        self.message_ids = message_ids
        self.batch = batch

    def command(self, template: SendTemplate, queue_id: int) -> SendCommand:
        return SendCommand(template, queue_id, self.sys_flag, self.born_ms, self.flag, self.properties, self.body)


class _Send:
    """One send under way, through all its attempts."""

    __slots__ = ("address", "attempts", "deadline_ms", "done", "fixed", "letter", "producer", "queue", "sent_ms", "timed_out")

    def __init__(self, producer: ProducerCore, letter: Letter, done: Sent, queue: MessageQueue | None, timeout_ms: int | None) -> None:
        self.producer = producer
        self.letter = letter
        self.done = done
        self.fixed = queue
        self.queue = queue
        self.deadline_ms = letter.born_ms + (timeout_ms or producer.settings.send_timeout_ms)
        self.attempts: list[tuple[str, str]] | None = None
        self.address = ""
        self.sent_ms = 0
        self.timed_out = False

    def start(self) -> None:
        self.producer._with_route(self.letter.topic, self.fail, self._go)

    def start_at(self, queue: MessageQueue) -> None:
        self.fixed = queue
        self.start()

    def fail(self, error: RoquetError) -> None:
        self.done(error)

    def _go(self, route: TopicRoute) -> None:
        producer = self.producer
        letter = self.letter
        try:
            queue = self.queue = self.fixed or producer._next(letter.topic, route, self.attempts[-1][0] if self.attempts else None)
            address = self.address = producer._address(queue)
        except RoquetError as error:
            self.fail(error)
            return
        now = self.sent_ms = producer.client.clock.now_ms()
        left = self.deadline_ms - now
        if left <= 0:
            self.timed_out = True
            self._give_up()
            return
        command = letter.command(producer._template(letter, queue.broker_name), queue.queue_id)
        producer.client.caller.call(address, command, left, self._answered)

    def _answered(self, result: Command | RoquetError) -> None:
        producer = self.producer
        queue = self.queue
        assert queue is not None
        if isinstance(result, Command):
            status = STATUSES.get(result.code)
            if status is not None:
                if producer.faults is not None:
                    now = producer.client.clock.now_ms()
                    producer.faults.observe(queue.broker_name, now - self.sent_ms, now)
                if status is SendStatus.SEND_OK or not (producer.settings.retry_when_not_ok and self._may_retry()):
                    self._stored(result, status, queue)
                    return
                self._again(queue, status.name)
                return
            failure: RoquetError = rejected(result, self.address)
            if result.code not in RETRIED:
                self.fail(failure)
                return
        else:
            failure = result
            self.timed_out = self.timed_out or isinstance(result, CallTimeout)
            producer.client.refresh(self.letter.topic)
        if producer.faults is not None:
            now = producer.client.clock.now_ms()
            producer.faults.observe(queue.broker_name, now - self.sent_ms, now, failed=True)
        if isinstance(result, Command) and not self._may_retry() and not self.attempts:
            self.fail(failure)  # the only attempt there was: its own words say it best
            return
        self._again(queue, str(failure))

    def _may_retry(self) -> bool:
        limit = QUEUE_SELECTED_RETRIES if self.fixed is not None else self.producer.settings.retries
        return len(self.attempts or ()) < limit and self.producer.client.clock.now_ms() < self.deadline_ms

    def _again(self, queue: MessageQueue, reason: str) -> None:
        may_retry = self._may_retry()
        if self.attempts is None:
            self.attempts = []
        self.attempts.append((queue.broker_name, reason))
        if may_retry and self.producer.started:
            self.start()
        else:
            self._give_up()

    def _give_up(self) -> None:
        attempts = self.attempts or []
        tried = "; ".join(f"{broker}: {reason}" for broker, reason in attempts)
        took = self.producer.client.clock.now_ms() - self.letter.born_ms
        text = f"message to {self.letter.topic!r} not confirmed after {len(attempts)} attempts in {took} ms ({tried or 'no time was left'})"
        if self.timed_out:
            self.fail(SendTimedOut(text + "; it may be stored nevertheless", attempts))
        else:
            self.fail(SendFailed(text + "; look at these brokers, then send it again", attempts))

    def _stored(self, answer: Command, status: SendStatus, queue: MessageQueue) -> None:
        fields = answer.fields
        try:
            queue_id = int(fields["queueId"])
            if queue_id != queue.queue_id:
                queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
            ids = self.letter.message_ids
            receipt = SendReceipt(
                status, ids[0] if len(ids) == 1 else ",".join(ids), fields["msgId"], queue, int(fields["queueOffset"]),
                fields.get("transactionId"), fields.get("MSG_REGION"),
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            self.fail(BadAnswer(f"{self.address} confirmed a send without a usable {error}; the message is stored"))
            return
        self.done(receipt)


def select(selector: Selector, route: TopicRoute, message: Message, key: object) -> MessageQueue:
    """Ask the user's function; whatever it does wrong becomes a ClientError."""
    try:
        chosen = selector(route.write_queues, message, key)
    except Exception as error:
        raise ClientError(f"the queue selector failed for {message!r} with key {key!r}: {error!r}") from error
    if not isinstance(chosen, MessageQueue) or chosen.topic != message.topic:
        raise ClientError(f"the queue selector returned {chosen!r}; it must return one of the queues of topic {message.topic!r}")
    return chosen


def valid(check: Callable[[str], None], name: str) -> None:
    """The same rules as the broker's, as the client's error."""
    if not isinstance(name, str):
        raise InvalidMessage(f"the name {name!r} is no text")
    try:
        check(name)
    except Refused as refusal:
        raise InvalidMessage(refusal.remark) from None


def per_message(receipt: SendReceipt, message_ids: tuple[str, ...]) -> list[SendReceipt]:
    """A batch's receipt as one for each message: their queue offsets follow each other."""
    if len(message_ids) == 1:
        return [receipt]
    offset_ids = receipt.offset_message_id.split(",")
    if len(offset_ids) != len(message_ids):  # 5.x brokers may store a batch as one record
        offset_ids = [receipt.offset_message_id] * len(message_ids)
    return [
        receipt._replace(message_id=message_id, offset_message_id=offset_id, queue_offset=receipt.queue_offset + step)
        for step, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    ]


def together(receipts: list[SendReceipt | None], failures: list[RoquetError]) -> list[SendReceipt] | RoquetError:
    stored = [receipt for receipt in receipts if receipt is not None]
    if len(stored) == len(receipts):
        return stored
    if not stored and len(failures) == 1:
        return failures[0]
    attempts = [attempt for failure in failures if isinstance(failure, SendFailed) for attempt in failure.attempts]
    text = f"{len(stored)} of {len(receipts)} messages were stored; the first failure: {failures[0]}"
    return BatchFailed(text, attempts, list(receipts))
