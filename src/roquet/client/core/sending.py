"""One send under way, through all its attempts.

What fails is tried at once on a broker that was not tried yet. When there is none, the send waits: a lost or refused connection and a
broker that takes no writes now are tried again with pauses that grow, until the send's time is over (delivery_timeout_ms). An attempt
without an answer is not repeated, since the message may be stored; nor is an error that would be the same next time.

A send whose queue is chosen (queue, selector, key) waits for the broker of that queue. Others for the queue line up behind it, so
that they keep their order; as long as nobody knows where the topic is, those of the topic that have a selector or a key do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from roquet.client.core.failures import ELSEWHERE, PASSING, RETRIED, BadAnswer, SendTimedOut, rejected
from roquet.client.core.namespaces import Namespace
from roquet.client.core.receipt import STATUSES, SendReceipt, SendStatus
from roquet.client.core.resolver import TopicRoute
from roquet.client.core.send_command import SendCommand, SendTemplate
from roquet.errors import CallTimeout, ConnectFailed, InvalidMessage, NoRoute, Rejected, RoquetError, SendFailed
from roquet.message import MessageQueue, Property
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command

if TYPE_CHECKING:
    from roquet.client.core.producer import ProducerCore

log = logging.getLogger(__name__)

PAUSE_MS = 100
PAUSE_MAX_MS = 2_000
"""Between attempts on brokers that were tried before: the first pause, and the longest. Each is up to half shorter, by chance."""
LAST_MS = 20
"""With less time than this left nothing more is tried."""
ATTEMPTS_SHOWN = 10
CALLBACK_FAILED = "! producer %s: the callback of a send to topic %r failed"

Sent = Callable[[SendReceipt | RoquetError], None]
Place = MessageQueue | str
"""A queue, or the topic of a send whose queue is not chosen yet."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message, or a batch, as it goes out: everything but the queue is decided."""

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    born_ms: int
    message_ids: Sequence[str]
    batch: bool
    code: int
    extra: dict[str, str] | None
    """Fields of the header that an ordinary send does not have."""
    size: int = 0
    """As a broker stores it, of one that may share a request with others (gathering.py); 0: it goes alone."""

    def command(self, template: SendTemplate, queue_id: int) -> SendCommand:
        command = SendCommand(template, queue_id, self.sys_flag, self.born_ms, self.flag, self.properties, self.body)
        if self.extra is not None:
            command.fields = {**command.fields, **self.extra}
        return command


class Sending:
    """One send under way, through all its attempts."""

    # Most sends are answered at their first attempt and never need another value of these.
    select: Callable[[TopicRoute], MessageQueue] | None = None
    """Chooses the queue when the route is known."""
    attempts: list[tuple[str, str]] | None = None
    pauses = 0
    address = ""
    sent_ms = 0
    timed_out = False
    retries: int | None = None
    """None: the producer's."""

    def __init__(self, producer: ProducerCore, outgoing: Outgoing, done: Sent, queue: MessageQueue | None, timeout_ms: int | None) -> None:
        self.producer = producer
        self.outgoing = outgoing
        self.done = done
        self.fixed = self.queue = queue
        settings = producer.settings
        begun = self.begun_ms = producer.client.clock.steady_ms()
        if timeout_ms:
            if timeout_ms < 0:
                raise InvalidMessage(f"timeout_ms is {timeout_ms}; expected is a number of ms above 0")
            self.deadline_ms = begun + timeout_ms
            self.attempt_ms = timeout_ms
        else:
            self.deadline_ms = begun + settings.delivery_timeout_ms
            self.attempt_ms = settings.send_timeout_ms

    def start(self) -> None:
        producer = self.producer
        topic = self.outgoing.topic
        if self.select is not None and producer.lines and self.lines_up(topic):
            return
        route = producer.known_route(topic)
        if route is not None:
            self._go(route)
        else:
            if self.select is not None:
                producer.lines.setdefault(topic, {}).setdefault(self)
            left = max(self.deadline_ms - producer.client.clock.steady_ms(), 0)
            self._wait(left, partial(self.give_up, "no name server told in time where the topic is"))
            producer.client.tasks.start(producer.fetch_route(topic), self._found)

    def _found(self, route: TopicRoute | RoquetError) -> None:
        timer = self.producer.waiting.pop(self, None)
        if timer is None:
            return  # it ended meanwhile
        timer.cancel()
        if isinstance(route, TopicRoute):
            self._go(route)
        elif isinstance(route, ConnectFailed) or (isinstance(route, NoRoute) and self.outgoing.topic in self.producer.topics()):
            self.pause(route)  # no name server answers, or the topic's brokers are away
        else:
            self.end(route)

    def _go(self, route: TopicRoute) -> None:
        if self.select is None:
            self._attempt(route)
            return
        try:
            self.fixed, self.select = self.select(route), None
        except RoquetError as error:
            self.end(error)
            return
        line = self.producer.lines.pop(self.outgoing.topic, {}) if self.producer.lines else {}
        line.pop(self, None)
        self._attempt(route)
        for send in line:  # they waited for the route too
            send._goes_on()
            send.start()

    def _attempt(self, route: TopicRoute) -> None:
        producer = self.producer
        outgoing = self.outgoing
        try:
            if producer.gathering is not None and (self.fixed is not None or outgoing.size):
                producer.gathering.add(self)
                return
            if self.fixed is not None and producer.lines and self.lines_up(self.fixed):
                return
            queue = self.queue = self.fixed or producer.next_queue(outgoing.topic, route, self.attempts[-1][0] if self.attempts else None)
        except RoquetError as error:
            self.end(error)
            return
        try:
            address = self.address = producer.address_of(queue)
        except NoRoute as error:
            self.pause(error)
            return
        now = self.sent_ms = producer.client.clock.steady_ms()
        left = self.left_ms(now)
        if left <= 0:
            self.give_up()
            return
        command = outgoing.command(producer.template(outgoing, queue.broker_name), queue.queue_id)
        client = producer.client
        client.silence.sent(address, outgoing.topic)
        client.caller.call(address, command, left, self._came)

    def left_ms(self, now_ms: int) -> int:
        """How long an attempt that begins now may take."""
        return min(self.deadline_ms - now_ms, self.attempt_ms)

    def _came(self, result: Command | RoquetError) -> None:
        self.producer.client.silence.ended(self.address, result)
        self.answered(result)

    def answered(self, result: Command | RoquetError) -> None:
        producer = self.producer
        queue = self.queue
        assert queue is not None
        if isinstance(result, Command):
            status = STATUSES.get(result.code)
            if status is not None:
                if producer.faults is not None:
                    now = producer.client.clock.steady_ms()
                    producer.faults.observe(queue.broker_name, now - self.sent_ms, now)
                self._confirmed(result, status, queue)
                return
            refusal = rejected(result, self.address)
            if result.code not in RETRIED or refusal.of_keys:
                self.end(refusal)
                return
            failure: RoquetError = refusal
            if result.code == ResponseCode.SERVICE_NOT_AVAILABLE:  # maybe it is a slave now, and another one the master
                producer.client.refresh(self.outgoing.topic)
        else:
            failure = result
            self.timed_out = self.timed_out or isinstance(result, CallTimeout)
            producer.client.refresh(self.outgoing.topic)
        if producer.faults is not None:
            now = producer.client.clock.steady_ms()
            producer.faults.observe(queue.broker_name, now - self.sent_ms, now, failed=True)
        self._again(queue, failure)

    # -- again, here or elsewhere, or not

    def _may_retry(self) -> bool:
        """On another broker, or after an error. A chosen queue is the point, so not with one."""
        return self.fixed is None and self._may_wait() and len(self.attempts or ()) < self._retries_max()

    def _may_wait(self) -> bool:
        left = self.deadline_ms - self.producer.client.clock.steady_ms()
        return left >= LAST_MS and self.producer.started and self._retries_max() > 0

    def _retries_max(self) -> int:
        return self.producer.settings.retries if self.retries is None else self.retries

    def _again(self, queue: MessageQueue, failure: RoquetError) -> None:
        code = failure.code if isinstance(failure, Rejected) else None
        passes = isinstance(failure, ConnectFailed) if code is None else code in PASSING
        retry = self._may_retry() and not self.timed_out
        if code is not None and not self.attempts and not retry and not (passes and self._may_wait()):
            self.end(failure)  # the only attempt there was: its own words say it best
            return
        self._note(queue, str(failure))
        if retry and self._has_fresh_broker():
            self.start()
        elif passes or (retry and code not in ELSEWHERE and not self.timed_out):
            self.pause(failure)
        else:
            self.give_up()

    def _has_fresh_broker(self) -> bool:
        route = self.producer.known_route(self.outgoing.topic)
        tried = {broker for broker, _ in self.attempts or ()}
        return route is not None and any(queue.broker_name not in tried for queue in route.write_queues)

    def _note(self, queue: MessageQueue, reason: str) -> None:
        if self.attempts is None:
            self.attempts = []
        self.attempts.append((queue.broker_name, reason))

    def pause(self, failure: RoquetError) -> None:
        """Wait, longer each time, and try again. Less at the end, so that the last attempt is made in time."""
        if not self._may_wait():
            if self.attempts:
                self.give_up()
            else:
                self.end(failure)
            return
        client = self.producer.client
        longest = min(PAUSE_MS << min(self.pauses, 16), PAUSE_MAX_MS)
        self.pauses += 1
        pause_ms = longest - client.random.randrange(longest // 2 + 1)
        left = self.deadline_ms - client.clock.steady_ms()
        place = self._place()
        if place is not None:
            line = self.producer.lines.setdefault(place, {})
            line.setdefault(self)
            if next(iter(line)) is not self:
                self._wait(left, self.give_up)
                return
        self._wait(min(pause_ms, left // 2), self.start)

    def _wait(self, delay_ms: int, then: Callable[[], None]) -> None:
        def over() -> None:
            self.producer.waiting.pop(self, None)
            then()

        self.producer.waiting[self] = self.producer.client.after(delay_ms, over)

    def _place(self) -> Place | None:
        """Where it has to keep its order."""
        return self.outgoing.topic if self.select is not None else self.fixed

    def lines_up(self, place: Place) -> bool:
        """True: others for this queue wait for its broker (for this topic: for its route), and this one waits behind them."""
        line = self.producer.lines.get(place)
        if not line or next(iter(line)) is self:
            return False
        line.setdefault(self)
        self._wait(max(self.deadline_ms - self.producer.client.clock.steady_ms(), 0), self.give_up)
        return True

    def wait_for_room(self, limit: int) -> None:
        left = max(self.deadline_ms - self.producer.client.clock.steady_ms(), 0)
        self._wait(left, partial(self.give_up, f"{limit} messages were under way, which is sends_in_flight_max"))

    def go_on(self) -> None:
        """There is room now."""
        self._goes_on()
        self.start()

    def end(self, result: SendReceipt | RoquetError) -> None:
        """It is through. Those who waited behind the first of a line go now, in their order; when it failed, the next one first."""
        producer = self.producer
        self._goes_on()
        producer.in_flight.leave(self)
        place = self._place()
        line = producer.lines.get(place) if place is not None and producer.lines else None
        self._count(result)
        try:
            self.done(result)
        except Exception:  # the user's callback; the others must hear, and go on, nevertheless
            self._callback_failed()
        if place is None or line is None or self not in line:
            return
        first = next(iter(line)) is self
        del line[self]
        if first:
            if isinstance(result, SendReceipt) or not line:
                producer.lines.pop(place, None)
                gathered = [] if producer.gathering is None else producer.gathering.take_back(place)  # these came later
                for send in [*line, *gathered]:
                    send._goes_on()
                    send.start()
            else:  # the broker may still be away: the next one finds out, for all of them
                head = next(iter(line))
                head._goes_on()
                head._wait(0, head.start)

    def _goes_on(self) -> None:
        timer = self.producer.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def give_up(self, why: str = "no time was left") -> None:
        attempts = self.attempts or []
        tried = "; ".join(f"{broker}: {reason}" for broker, reason in attempts[-ATTEMPTS_SHOWN:])
        if len(attempts) > ATTEMPTS_SHOWN:
            tried = f"the last {ATTEMPTS_SHOWN}: {tried}"
        took = self.producer.client.clock.steady_ms() - self.begun_ms
        text = f"message to {self.outgoing.topic!r} not confirmed after {len(attempts)} attempts in {took} ms ({tried or why})"
        if self.timed_out:
            self.end(SendTimedOut(text + "; it may be stored nevertheless", attempts))
        else:
            self.end(SendFailed(text + "; look at these brokers, then send it again", attempts))

    def withdraw(self) -> None:
        """Nobody waits for it any more: it is not sent later. What a broker was given already may be stored nevertheless."""
        self.deadline_ms = self.begun_ms - 1  # so that nothing more is tried
        if self in self.producer.waiting:
            self.give_up("it was cancelled")

    def _confirmed(self, answer: Command, status: SendStatus, queue: MessageQueue) -> None:
        try:
            self.stored(read_receipt(answer, status, queue, self.producer.namespace, self.outgoing.message_ids[0]))
        except BadAnswer as error:
            self.end(BadAnswer(f"{self.address} {error}"))

    def stored(self, receipt: SendReceipt) -> None:
        producer = self.producer
        if receipt.status is not SendStatus.SEND_OK and producer.settings.retry_when_not_ok and self._may_retry():
            self._note(receipt.queue, receipt.status.name)
            self.start()
        elif self.fixed is None or not producer.lines:
            in_flight = producer.in_flight
            in_flight.room += len(self.outgoing.message_ids)
            if in_flight.crowded:
                in_flight.let_in()
            self._count(receipt)
            try:
                self.done(receipt)
            except Exception:
                self._callback_failed()
        else:
            self.end(receipt)

    def _count(self, result: SendReceipt | RoquetError) -> None:
        producer, outgoing = self.producer, self.outgoing
        counted = producer.stats.topics.get(outgoing.topic) or producer.counted(outgoing.topic)
        count = len(outgoing.message_ids)
        if type(result) is SendReceipt:
            counted.sent += count
            counted.durations.add(producer.client.clock.steady_ms() - self.begun_ms, count)
        else:
            counted.failed += count

    def _callback_failed(self) -> None:
        log.exception(CALLBACK_FAILED, self.producer.group, self.outgoing.topic)


def read_receipt(answer: Command, status: SendStatus, queue: MessageQueue, namespace: Namespace, message_id: str) -> SendReceipt:
    """What a broker that stored a message, or a batch, says of it. `message_id`: of a batch its first one's. Raises BadAnswer."""
    fields = answer.fields
    try:
        queue_id = int(fields["queueId"])
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        if namespace:
            queue = namespace.unwrap_queue(queue)
        return SendReceipt(
            status, message_id, fields["msgId"], queue, int(fields["queueOffset"]),
            fields.get("transactionId"), fields.get(Property.MSG_REGION), fields.get("recallHandle"),
            fields.get(Property.TRACE_ON) != "false",
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise BadAnswer(f"confirmed a send without a usable {error}; the message is stored") from None
