"""Gathering: sends that wait at the same time share requests (linger_ms).

    free      no queue is chosen: those of a topic. They go when the turn of the loop is over; while a request is under way, when it is
              answered, or after linger_ms; when they are many, or fill a request, at once.
    ordered   a queue is chosen: those for it, in their order, one request at a time. What may share no request goes alone in its turn.

Only requests are shared. Each send is a `Sending` of its own: it fails, tries again, is withdrawn and runs out of time by itself, and
may find itself among others at its next attempt. A batch that a broker refuses for what is in it is cut in two, and again, until only
the sends at fault are refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from roquet.client.core.batches import ADDED_SIZE, RECORD_SIZE
from roquet.client.core.failures import RETRIED, BadAnswer
from roquet.client.core.receipt import STATUSES, per_message
from roquet.client.core.sending import Outgoing, Sending, read_receipt
from roquet.client.core.tasks import Wait
from roquet.client.core.timers import NEVER, Timer
from roquet.errors import NoRoute, RoquetError
from roquet.message import Message, MessageQueue, Property
from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command

if TYPE_CHECKING:
    from roquet.client.core.instance import ClientCore
    from roquet.client.core.producer import ProducerCore

log = logging.getLogger(__name__)

BATCH_BYTES = 128 * 1024
MANY = 32
"""So many free sends of a topic do not wait for the turn to be over: the broker works on them while others are made. With 64 of them and 64
sends in flight client and broker only take turns."""
CLOSE = 8
"""Attempts whose times differ by more than the eighth part share no request: it gets the shortest of them."""

ALONE = frozenset(
    {
        Property.WAIT, Property.DELAY, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELIVER_MS,
        Property.START_DELIVER_TIME, Property.TRANSACTION_PREPARED, Property.MESSAGE_TYPE, Property.CORRELATION_ID,
        Property.INNER_MULTI_DISPATCH,
    }
)  # fmt: skip
"""Properties of messages that go alone."""

Place = tuple[str, str | None] | MessageQueue
"""(topic, the broker to avoid) of free sends, or the chosen queue."""


class Waiting:
    """The sends of one place, first come first."""

    __slots__ = ("apart", "linger", "ordered", "place", "sends", "size", "soon", "under_way", "watch_ms")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.ordered = isinstance(place, MessageQueue)
        self.sends: deque[Sending] = deque()
        self.size = 0
        self.apart: deque[list[Sending]] = deque()
        """Parts of a refused batch; they go before the others."""
        self.under_way = 0
        self.soon = False
        """They go when this turn of the loop is over."""
        self.linger: Timer | None = None
        self.watch_ms = NEVER
        """When somebody looks for sends that ran out of time."""

    def add(self, send: Sending) -> None:
        self.sends.append(send)
        self.size += send.outgoing.size

    def clear(self) -> Iterator[Sending]:
        """All of them, taken out."""
        parts, sends = self.apart, self.sends
        self.apart, self.sends, self.size = deque(), deque(), 0
        for part in parts:
            yield from part
        yield from sends


class Gathering:
    def __init__(self, linger_ms: int, batch_bytes: int) -> None:
        self.linger_ms = linger_ms
        self.batch_bytes = batch_bytes
        self._places: dict[Place, Waiting] = {}
        self._free: dict[str, Waiting] = {}
        """Of these, by topic, those of sends that avoid no broker: the usual ones."""
        self._soon: list[Waiting] = []
        self._quiet: Wait[None] | None = None
        """Of one who closes: ends when no send for a chosen queue is left."""

    def add(self, send: Sending) -> None:
        """Its next attempt goes from here."""
        waiting = self._free.get(send.outgoing.topic) if send.fixed is None and send.attempts is None else self._place_of(send)
        if waiting is None:
            waiting = self._place_of(send)
        waiting.sends.append(send)
        waiting.size += send.outgoing.size
        if waiting.ordered:
            if send.deadline_ms < waiting.watch_ms:
                self._watch(waiting, send)
            if not waiting.under_way and not waiting.soon:
                self._go_soon(waiting, send.producer)
        elif len(waiting.sends) >= MANY or waiting.size >= self.batch_bytes or send.attempt_ms <= 2 * self.linger_ms:
            self._go(waiting)  # they are many, or this one cannot wait so long
        elif not waiting.soon:
            if not waiting.under_way:
                self._go_soon(waiting, send.producer)
            elif waiting.linger is None:
                waiting.linger = send.producer.client.after(self.linger_ms, partial(self._go, waiting))

    def _place_of(self, send: Sending) -> Waiting:
        place: Place
        if send.fixed is not None:
            place = send.fixed
        else:
            place = (send.outgoing.topic, send.attempts[-1][0] if send.attempts else None)
        waiting = self._places.get(place)
        if waiting is None:
            waiting = self._places[place] = Waiting(place)
            if send.fixed is None and not send.attempts:
                self._free[send.outgoing.topic] = waiting
        return waiting

    def take_back(self, queue: MessageQueue | str) -> list[Sending]:
        """Those that wait here for this queue, taken out: others that came before them are to go first."""
        waiting = None if isinstance(queue, str) else self._places.get(queue)
        return [] if waiting is None else list(waiting.clear())

    async def close(self, client: ClientCore, limit_ms: int) -> None:
        """Nothing lingers any longer: whatever is here goes now. Those for a chosen queue still go one request after another: a broker may
        refuse a batch for what is in it, and its parts have to go before the others. When that takes too long, they all go."""
        self._soon = []
        for waiting in list(self._places.values()):
            waiting.soon = False
            self._go(waiting, all_now=not waiting.ordered)
        if self._is_busy():
            self._quiet = Wait()
            await client.within(self._quiet, limit_ms, None)
            for waiting in list(self._places.values()):
                self._go(waiting, all_now=True)

    def _is_busy(self) -> bool:
        return any(waiting.ordered and (waiting.under_way or waiting.sends or waiting.apart) for waiting in self._places.values())

    # -- when they go

    def _go_soon(self, waiting: Waiting, producer: ProducerCore) -> None:
        if not producer.started:  # it closes; no timer of ours may ring any more
            self._go(waiting, all_now=not waiting.ordered)
            return
        if not self._soon:
            producer.client.after(0, self._turn_over)
        waiting.soon = True
        self._soon.append(waiting)

    def _turn_over(self) -> None:
        over, self._soon = self._soon, []
        for waiting in over:
            waiting.soon = False
            try:
                self._go(waiting)
            except Exception:  # the others go nevertheless
                log.exception("! sends to %s could not go; please report this", waiting.place)

    def _watch(self, waiting: Waiting, send: Sending) -> None:
        """It may wait for the answer to others for longer than it has time."""
        waiting.watch_ms = send.deadline_ms
        client = send.producer.client
        client.after(max(send.deadline_ms - client.clock.steady_ms(), 0), partial(self._look, waiting, send.deadline_ms))

    def _look(self, waiting: Waiting, watch_ms: int) -> None:
        if watch_ms != waiting.watch_ms:
            return  # another one looks, sooner
        waiting.watch_ms = NEVER
        late: list[Sending] = []
        for send in list(waiting.clear()):
            if send.deadline_ms <= watch_ms:
                late.append(send)
                continue
            waiting.add(send)
            if send.deadline_ms < waiting.watch_ms:
                self._watch(waiting, send)
        for send in late:
            send.give_up()

    def _go(self, waiting: Waiting, *, all_now: bool = False) -> None:
        if waiting.linger is not None:
            waiting.linger.cancel()
            waiting.linger = None
        while (waiting.sends or waiting.apart) and (all_now or not (waiting.ordered and waiting.under_way)):
            now = (waiting.apart[0] if waiting.apart else waiting.sends)[0].producer.client.clock.steady_ms()
            together, left = self._next(waiting, now)
            if together:
                self._send(waiting, together, left, now)

    def _next(self, waiting: Waiting, now: int) -> tuple[list[Sending], int]:
        """The sends of the next request, and its time. Those that cannot go (any more) are taken out."""
        if waiting.apart:
            part = [send for send in waiting.apart.popleft() if self._may_go(waiting, send, now)]
            return part, min((send.left_ms(now) for send in part), default=0)
        together: list[Sending] = []
        size, least = 0, 0
        sends = waiting.sends
        checked = waiting.ordered
        while sends:
            send = sends[0]
            own = send.outgoing.size
            left = send.deadline_ms - now
            if left > send.attempt_ms:
                left = send.attempt_ms
            if together and (size + own > self.batch_bytes or not own or (left != least and abs(left - least) * CLOSE > least)):
                break
            sends.popleft()
            waiting.size -= own
            if (checked or left <= 0) and not self._may_go(waiting, send, now):
                sends = waiting.sends  # its end may have taken those behind it out, and put them in again
                continue
            together.append(send)
            size += own
            if left < least or not least:
                least = left
            if not own:
                break
        return together, least

    def _may_go(self, waiting: Waiting, send: Sending, now: int) -> bool:
        if send.left_ms(now) <= 0:
            send.give_up()
            return False
        queue = waiting.place
        return not (isinstance(queue, MessageQueue) and send.producer.lines and send.lines_up(queue))

    # -- a request

    def _send(self, waiting: Waiting, together: list[Sending], left: int, now: int) -> None:
        producer = together[0].producer
        queue = self._queue(waiting.place, together)
        if queue is None:
            return
        try:
            address = producer.address_of(queue)
        except NoRoute as error:
            for send in together:
                send.pause(error)
            return
        outgoing = together[0].outgoing if len(together) == 1 else join(together)
        waiting.under_way += 1
        command = outgoing.command(producer.template(outgoing, queue.broker_name), queue.queue_id)
        producer.client.silence.sent(address, outgoing.topic)
        producer.client.caller.call(address, command, left, partial(self._answered, waiting, together, outgoing, queue, address, now))

    def _queue(self, place: Place, together: list[Sending]) -> MessageQueue | None:
        """None: there is none now; each of them was told."""
        if isinstance(place, MessageQueue):
            return place
        topic, avoid = place
        producer = together[0].producer
        route = producer.known_route(topic)
        if route is None:  # it was forgotten meanwhile
            for send in together:
                send.start()
            return None
        try:
            return producer.next_queue(topic, route, avoid)
        except RoquetError as error:
            for send in together:
                send.end(error)
            return None

    def _answered(
        self,
        waiting: Waiting,
        together: list[Sending],
        outgoing: Outgoing,
        queue: MessageQueue,
        address: str,
        sent_ms: int,
        result: Command | RoquetError,
    ) -> None:
        waiting.under_way -= 1
        producer = together[0].producer
        producer.client.silence.ended(address, result)
        if len(together) == 1 or not isinstance(result, Command) or result.code in RETRIED:
            for send in together:  # as if each had been a request of its own
                send.queue, send.address, send.sent_ms = queue, address, sent_ms
                send.answered(result)
        elif result.code not in STATUSES:
            self._cut(waiting, together)
        else:
            if producer.faults is not None:
                now = producer.client.clock.steady_ms()
                producer.faults.observe(queue.broker_name, now - sent_ms, now)
            try:
                receipt = read_receipt(result, STATUSES[result.code], queue, producer.namespace, outgoing.message_ids[0])
            except BadAnswer as error:
                for send in together:
                    send.end(BadAnswer(f"{address} {error}"))
            else:
                for send, one in zip(together, per_message(receipt, outgoing.message_ids), strict=True):
                    send.stored(one)
        if (waiting.sends or waiting.apart) and not waiting.soon:
            self._go_soon(waiting, producer)
        if self._quiet is not None and not self._is_busy():
            self._quiet.end(None)

    def part(self, together: list[Sending]) -> None:
        """A batch of these, and of some that nobody waits for any more, was refused for what is in it."""
        waiting = self._place_of(together[0])
        self._cut(waiting, together)
        if not waiting.soon:
            self._go_soon(waiting, together[0].producer)

    def _cut(self, waiting: Waiting, together: list[Sending]) -> None:
        middle = len(together) // 2
        waiting.apart.extendleft(part for part in (together[middle:], together[:middle]) if part)


def size_of(message: Message, body: bytes, properties: str) -> int:
    """Not less than what a broker's record of it takes; 0 when it must go alone."""
    if message.properties and not ALONE.isdisjoint(message.properties):
        return 0
    text = len(properties) if properties.isascii() else len(properties.encode())
    return RECORD_SIZE + ADDED_SIZE + len(message.topic) + len(body) + text


def join(together: list[Sending]) -> Outgoing:
    first = together[0].outgoing
    parts = [send.outgoing for send in together]
    body = join_batch([(part.flag, part.body, part.properties.encode()) for part in parts])
    message_ids = [part.message_ids[0] for part in parts]
    return Outgoing(first.topic, body, "", 0, 0, first.born_ms, message_ids, True, int(RequestCode.SEND_BATCH_MESSAGE), None)
