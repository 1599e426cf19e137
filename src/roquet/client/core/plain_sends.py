"""Plain sends that gather (linger_ms): those of one topic as columns, since an object of ours for each would cost more than the rest.

Plain is what programs send all day: a body that goes as it is, properties that any batch may hold, no chosen queue, no time of its own.
When something goes wrong with a request, each of its sends becomes a `Sending` like any other: that one is tried again, withdrawn and
given up.

They go when the turn of the loop is over; while a request is under way, when it is answered, or after linger_ms; when they are many, or
fill a request, at once. What is many rises with the requests that are under way: a thousand that wait make a few large requests.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from roquet.client.core.batches import ADDED_SIZE, RECORD_SIZE
from roquet.client.core.failures import RETRIED, BadAnswer
from roquet.client.core.gathering import ALONE, MANY, Gathering
from roquet.client.core.namespaces import NO_NAMESPACE
from roquet.client.core.receipt import STATUSES, SendReceipt, SendStatus, per_message
from roquet.client.core.sending import CALLBACK_FAILED, Outgoing, Sending, Sent, read_receipt
from roquet.client.core.timers import Timer
from roquet.errors import NoRoute, RoquetError, SendFailed
from roquet.message import Message, MessageQueue, Property
from roquet.wire.batch import join_columns
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.names import RETRY_PREFIX
from roquet.wire.record import encode_properties

if TYPE_CHECKING:
    from roquet.client.core.producer import ProducerCore

log = logging.getLogger(__name__)

SEND, SEND_BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)
NOT_PLAIN = ALONE | {Property.UNIQUE_KEY}
TEXT_MAX = (PROPERTIES_MAX - ADDED_SIZE) // 3
"""Characters of properties, of which each may be three bytes; longer ones are measured on the general way."""
PART_OF_TIME = 20
"""The time of all sends of a request begins with that of its first one. So it may linger for this part of the time, or nothing is plain."""


class Awaited(Protocol):
    """Who waits for a send. A future of asyncio is one; it is done before its time when it was cancelled."""

    def done(self) -> bool: ...

    def set_result(self, receipt: SendReceipt, /) -> None: ...

    def set_exception(self, error: RoquetError, /) -> None: ...


class Told:
    """One who waits with a function."""

    __slots__ = ("_done", "_over", "_sends", "retries", "sending", "withdrawn")

    def __init__(self, sends: PlainSends, done: Sent, retries: int | None = None) -> None:
        self._sends = sends
        self.retries = retries
        self._done = done
        self._over = False
        self.withdrawn = False
        self.sending: Sending | None = None
        """What it became when something had gone wrong."""

    @property
    def attempts(self) -> list[tuple[str, str]] | None:
        return None if self.sending is None else self.sending.attempts

    def done(self) -> bool:
        return self._over

    def set_result(self, result: SendReceipt | RoquetError, /) -> None:
        self._over = True
        try:
            self._done(result)
        except Exception:  # the user's callback; the others must hear nevertheless
            log.exception(CALLBACK_FAILED, self._sends.producer.group, self._sends.topic)

    set_exception = set_result

    def withdraw(self) -> None:
        self.withdrawn = True
        self._sends.withdraw(self)


class Group:
    """The sends of one request, as columns."""

    __slots__ = ("address", "begun_ms", "bodies", "born_ms", "message_ids", "queue", "sent_ms", "size", "texts", "waiters")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.texts: list[str] = []
        """Properties as a record has them, without the message id."""
        self.waiters: list[Awaited] = []
        self.size = 0
        self.begun_ms = self.born_ms = self.sent_ms = 0
        self.message_ids: list[str] = []
        self.queue: MessageQueue | None = None
        self.address = ""


class PlainSends:
    """Of one topic."""

    def __init__(self, producer: ProducerCore, gathering: Gathering, topic: str) -> None:
        settings = producer.settings
        self.producer = producer
        self.topic = topic
        self._counted = producer.stats.of(topic)
        self._gathering = gathering
        self._in_flight = producer.in_flight
        self._size_max = gathering.batch_bytes
        self._record_size = RECORD_SIZE + ADDED_SIZE + len(topic)
        self._body_max = settings.message_size_max
        if settings.compress_over:
            self._body_max = min(self._body_max, settings.compress_over - 1)
        self._group = Group()
        self._many = MANY
        self._under_way = 0
        self._soon = False
        """They go when this turn of the loop is over."""
        self._linger: Timer | None = None
        self._in_trouble: dict[Awaited, Sending] = {}

    def add(self, message: Message, waiter: Awaited) -> bool:
        """False: it is not plain, or has to wait until there is room. Raises InvalidMessage."""
        in_flight, body = self._in_flight, message.body
        room = in_flight.room
        if room <= 0 or type(body) is not bytes or message.flag:
            return False
        length = len(body)
        if not 0 < length <= self._body_max:
            return False
        size = self._record_size + length
        text = ""
        if message.properties:
            plain = plain_text(message.properties)
            if plain is None:
                return False
            text = plain
            size += len(text) if text.isascii() else len(text.encode())
        group = self._group
        if group.size + size > self._size_max and group.waiters:
            self.go()
            group, room = self._group, in_flight.room
        in_flight.room = room - 1
        group.bodies.append(body)
        group.texts.append(text)
        waiters = group.waiters
        waiters.append(waiter)
        group.size = size = group.size + size
        count = len(waiters)
        if count == 1:
            clock = self.producer.client.clock
            group.begun_ms, group.born_ms = clock.steady_ms(), clock.now_ms()
            if size < self._size_max and not self._soon:
                self._go_later()
        if count >= self._many or size >= self._size_max:
            self.go()
        return True

    def withdraw(self, waiter: Awaited) -> None:
        """Nobody waits for it any more: it is not sent later."""
        sending = self._in_trouble.get(waiter)
        group = self._group
        if sending is not None:
            sending.withdraw()
        elif waiter in group.waiters:
            place = group.waiters.index(waiter)
            for column in (group.bodies, group.texts, group.waiters):
                del column[place]  # its size stays counted: the request is smaller than it might be
            self._counted.failed += 1
            self._in_flight.free(1)
            if not waiter.done():
                waiter.set_exception(SendFailed(f"message to {self.topic!r} was not sent: it was cancelled", []))

    # -- when they go

    def _go_later(self) -> None:
        if not self._under_way:
            self._go_soon()
        elif self._linger is None:
            self._linger = self.producer.client.after(self._gathering.linger_ms, self._lingered)

    def _lingered(self) -> None:
        """The timer of some that may have gone long since: while many go, one group after another has the same."""
        self._linger = None
        group = self._group
        if group.waiters:
            client = self.producer.client
            left = group.begun_ms + self._gathering.linger_ms - client.clock.steady_ms()
            if left > 0:
                self._linger = client.after(left, self._lingered)
            else:
                self.go()

    def close(self) -> None:
        """They go now, and nothing rings any more."""
        self.go()
        if self._linger is not None:
            self._linger.cancel()

    def _go_soon(self) -> None:
        self._soon = True
        self.producer.client.after(0, self._turn_over)

    def _turn_over(self) -> None:
        if self._soon:
            self.go()

    def go(self) -> None:
        """They go now."""
        self._soon = False
        group, self._group = self._group, Group()
        if not group.waiters:
            return
        producer = self.producer
        group.message_ids = producer.client.ids.many(group.born_ms, len(group.waiters))
        route = producer.known_route(self.topic)
        if route is None:  # it was forgotten meanwhile
            for send in self._one_by_one(group):
                send.start()
            return
        try:
            queue = group.queue = producer.next_queue(self.topic, route, None)
        except RoquetError as error:
            self._in_flight.free(len(group.waiters))
            self._fail(group, [error] * len(group.waiters))
            return
        try:
            group.address = producer.address_of(queue)
        except NoRoute as error:
            for send in self._one_by_one(group):
                send.pause(error)
            return
        self._send(group, queue)

    def _send(self, group: Group, queue: MessageQueue) -> None:
        producer = self.producer
        settings = producer.settings
        now = group.sent_ms = producer.client.clock.steady_ms()
        left = min(group.begun_ms + settings.delivery_timeout_ms - now, settings.send_timeout_ms)
        if left <= 0:
            for send in self._one_by_one(group):
                send.give_up()
            return
        outgoing = self._alone(group, 0) if len(group.waiters) == 1 else self._together(group)
        self._count_under_way(1)
        command = outgoing.command(producer.template(outgoing, queue.broker_name), queue.queue_id)
        producer.client.silence.sent(group.address, self.topic)
        producer.client.caller.call(group.address, command, left, partial(self._answered, group, queue))

    def _count_under_way(self, step: int) -> None:
        self._under_way += step
        self._many = MANY * max(self._under_way, 1)

    def _together(self, group: Group) -> Outgoing:
        body = join_columns(group.bodies, group.texts, group.message_ids, Property.UNIQUE_KEY)
        return Outgoing(self.topic, body, "", 0, 0, group.born_ms, (), True, SEND_BATCH, None)

    def _alone(self, group: Group, place: int) -> Outgoing:
        body, text, message_id = group.bodies[place], group.texts[place], group.message_ids[place]
        own = f"{Property.UNIQUE_KEY}\x01{message_id}"
        properties = f"{text}\x02{own}" if text else own
        size = self._record_size + len(body) + len(properties.encode())
        return Outgoing(self.topic, body, properties, 0, 0, group.born_ms, (message_id,), False, SEND, None, size)

    # -- what comes of it

    def _answered(self, group: Group, queue: MessageQueue, result: Command | RoquetError) -> None:
        self._count_under_way(-1)
        self.producer.client.silence.ended(group.address, result)
        status = STATUSES.get(result.code) if isinstance(result, Command) else None
        if status is None or (status is not SendStatus.SEND_OK and self.producer.settings.retry_when_not_ok):
            self._trouble(group, queue, result)
        else:
            assert isinstance(result, Command)
            self._stored(group, queue, result, status)
        if self._group.waiters and not self._soon:
            self._go_soon()

    def _stored(self, group: Group, queue: MessageQueue, answer: Command, status: SendStatus) -> None:
        self._in_flight.free(len(group.waiters))
        faults = self.producer.faults
        if faults is not None:
            now = self.producer.client.clock.steady_ms()
            faults.observe(queue.broker_name, now - group.sent_ms, now)
        try:
            receipts = receipts_of(answer, status, queue, group.message_ids)
        except BadAnswer as error:
            self._fail(group, [BadAnswer(f"{group.address} {error}") for _ in group.waiters])
            return
        count = len(receipts)
        self._counted.sent += count
        self._counted.durations.add(self.producer.client.clock.steady_ms() - group.begun_ms, count)
        for waiter, receipt in zip(group.waiters, receipts, strict=True):
            if not waiter.done():
                waiter.set_result(receipt)

    def _fail(self, group: Group, errors: Sequence[RoquetError]) -> None:
        self._counted.failed += len(errors)
        for waiter, error in zip(group.waiters, errors, strict=True):
            self._tell(waiter, error)

    def _trouble(self, group: Group, queue: MessageQueue, result: Command | RoquetError) -> None:
        sends = self._one_by_one(group)
        for send in sends:
            send.queue, send.address, send.sent_ms = queue, group.address, group.sent_ms
        alone = len(group.waiters) == 1
        if isinstance(result, Command) and not alone and result.code in STATUSES:  # it is stored, but not as safely as it was asked for
            self._stored_unsafely(group, queue, result, sends)
        elif isinstance(result, Command) and not alone and result.code not in RETRIED:
            if sends:  # one that is left goes alone: who was cancelled may have been at fault
                self._gathering.part(sends)
        else:
            for send in sends:  # as if each had been a request of its own
                send.answered(result)

    def _stored_unsafely(self, group: Group, queue: MessageQueue, answer: Command, sends: list[Sending]) -> None:
        try:
            receipts = receipts_of(answer, STATUSES[answer.code], queue, group.message_ids)
        except BadAnswer as error:
            for send in sends:
                send.end(BadAnswer(f"{group.address} {error}"))
            return
        for waiter, receipt in zip(group.waiters, receipts, strict=True):
            in_trouble = self._in_trouble.get(waiter)
            if in_trouble is not None:
                in_trouble.stored(receipt)

    def _one_by_one(self, group: Group) -> list[Sending]:
        """Each as a send of its own, those that somebody still waits for. They are under way as before."""
        sends: list[Sending] = []
        for place, waiter in enumerate(group.waiters):
            if waiter.done():
                continue
            send = Sending(self.producer, self._alone(group, place), partial(self._tell, waiter), None, None)
            send.deadline_ms += group.begun_ms - send.begun_ms
            send.begun_ms = group.begun_ms
            self._in_trouble[waiter] = send
            if isinstance(waiter, Told):
                waiter.sending, send.retries = send, waiter.retries
                if waiter.withdrawn:
                    send.withdraw()
            sends.append(send)
        self._in_flight.free(len(group.waiters) - len(sends))
        return sends

    def _tell(self, waiter: Awaited, result: SendReceipt | RoquetError) -> None:
        self._in_trouble.pop(waiter, None)
        if waiter.done():
            return
        if isinstance(result, SendReceipt):
            waiter.set_result(result)
        else:
            waiter.set_exception(result)


def receipts_of(answer: Command, status: SendStatus, queue: MessageQueue, message_ids: list[str]) -> list[SendReceipt]:
    """Raises BadAnswer."""
    return per_message(read_receipt(answer, status, queue, NO_NAMESPACE, message_ids[0]), message_ids)


def plain_text(properties: dict[str, str]) -> str | None:
    """Properties as a record has them; None when a message with these is not plain. Raises InvalidMessage."""
    if not NOT_PLAIN.isdisjoint(properties):
        return None
    text = encode_properties(properties)
    return text if len(text) <= TEXT_MAX else None


def plain_batch(topic: str, messages: Sequence[Message], body_max: int, size_max: int) -> tuple[list[bytes], list[str]] | None:
    """Bodies and properties of messages that make one batch. None: they do not, or it takes a closer look to see. Raises InvalidMessage."""
    bodies: list[bytes] = []
    texts = [""] * len(messages)
    size = 0
    for message in messages:
        if not isinstance(message, Message) or message.topic != topic or message.flag:
            return None
        body = message.body
        if type(body) is not bytes or not body or len(body) > body_max:
            return None
        if message.properties:
            text = plain_text(message.properties)
            if text is None:
                return None
            texts[len(bodies)] = text
            size += len(text) if text.isascii() else len(text.encode())
        bodies.append(body)
    size += sum(map(len, bodies))
    return (bodies, texts) if size + (RECORD_SIZE + ADDED_SIZE + len(topic)) * len(bodies) <= size_max else None


def may_be_plain(producer: ProducerCore, topic: str) -> bool:
    """Whether sends to this topic can be."""
    gathering, settings = producer.gathering, producer.settings
    if gathering is None or settings.namespace or topic.startswith(RETRY_PREFIX) or producer.send_hooks is not None:
        return False
    return gathering.linger_ms * PART_OF_TIME <= settings.delivery_timeout_ms and gathering.linger_ms * 2 < settings.send_timeout_ms
