"""Tracing: what became of each message, written into the trace topic in RocketMQ's own format.

    Producer("orders-service", trace=True)                       # the same as middleware=[Tracing()]
    PushConsumer("billing", middleware=[Tracing(topic="my_traces")])

Records wait in a queue of 2,048 and go out together, half a second after the first of them or when there are a hundred. A producer of its
own sends them. Nothing of it can slow or fail a send or a handler: what finds no room, or cannot be sent, is dropped and counted.

    handler or send ── hook ── Feed.waiting (any thread) ── Feed task (the loop) ── inner producer ── the trace topic
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roquet.client.core.checks import valid
from roquet.client.core.traces import messages_of, of_beginning, of_end, of_send, of_transaction
from roquet.client.middleware import Middleware
from roquet.errors import ClientError, RoquetError
from roquet.wire.names import TRACE_TOPIC, check_topic

if TYPE_CHECKING:
    from roquet.client.core.events import ConsumeEvent, SendEvent, TransactionEvent
    from roquet.client.member import Member
    from roquet.client.producer import Producer
    from roquet.client.shared import ClientOptions
    from roquet.wire.trace import TraceRecord

log = logging.getLogger(__name__)

GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
GROUP_SHOWN_MAX = 80
"""Characters of a member's group in that of its traces, which may not be too long."""
WAITING_MAX = 2_048
"""Records that wait to be sent; upstream's queue."""
BATCH = 100
"""So many go out at once, without waiting for more."""
LINGER_S = 0.5
"""The first record waits so long for others."""
SEND_MS = 5_000
CLOSE_S = 8.0
"""How long close() waits for what is left to be sent."""
QUIET_S = 60.0
"""What is dropped is logged so often."""
CONSUME_TIMEOUT_MS = 15 * 60_000
"""From which on upstream calls consuming timed out, unless the consumer has another limit."""
REQUEST = "roquet.trace"
"""In `event.data`: the id that joins the beginning of consuming with its end."""

_numbers = itertools.count(1)


class Tracing(Middleware):
    """Writes traces of sends, of consuming and of ends of transactions, as Apache's clients with enableMsgTrace do.

    `roquet trace ID` and mqadmin's queryMsgTraceById show them. `topic`: where to; brokers with traceTopicEnable=true have the default
    one. One object may be given to several members of one cluster.
    """

    def __init__(self, topic: str = TRACE_TOPIC) -> None:
        if not isinstance(topic, str):
            raise ClientError(f"Tracing was given the topic {topic!r}; expected is the name of the topic that traces go to")
        valid(check_topic, topic)
        self.topic = topic
        self.written = 0
        """Records that a broker has stored."""
        self.dropped = 0
        """Records that found no room, or could not be sent."""
        self._feeds: dict[tuple[str, str], Feed] = {}
        """By group and client id, which events tell."""
        self._members: dict[Member[Any], tuple[str, str]] = {}
        self._requests = itertools.count()
        self._request_prefix = uuid.uuid4().hex[:24].upper()

    @property
    def waiting(self) -> int:
        """Records that are not sent yet."""
        return sum(feed.unsent for feed in self._feeds.values())

    async def started(self, member: Member[Any]) -> None:
        """Start the producer of the traces of this member."""
        key, options = (member.group, member.client_id), member.options
        feed = self._feeds.get(key)
        if feed is not None and feed.options != options:
            raise ClientError(
                f"this Tracing was given to two members of group {member.group!r} that connect differently;"
                " give each a Tracing() of its own"
            )
        if feed is None:
            feed = self._feeds[key] = Feed(self, member, options)
            await feed.start()
        feed.users += 1
        self._members[member] = key

    async def closing(self, member: Member[Any]) -> None:
        """Send what is left."""
        key = self._members.pop(member, None)
        if key is None:
            return
        feed = self._feeds[key]
        feed.users -= 1
        if not feed.users:
            del self._feeds[key]
            await feed.close()

    def after_send(self, event: SendEvent) -> None:
        """A message was stored, or was not."""
        if event.topic != self.topic and event.topic != TRACE_TOPIC:
            feed = self._feeds.get((event.group, event.client_id))
            record = None if feed is None else of_send(event)
            if feed is not None and record is not None:
                feed.add((record,))

    def before_consume(self, event: ConsumeEvent) -> None:
        """A handler gets messages."""
        feed = self._feeds.get((event.group, event.client_id))
        if feed is not None and event.topic not in (self.topic, TRACE_TOPIC):
            request_id = event.data[REQUEST] = f"{self._request_prefix}{next(self._requests) & 0xFFFFFFFF:08X}"
            feed.add(of_beginning(event, request_id))

    def after_consume(self, event: ConsumeEvent) -> None:
        """A handler is done with them."""
        feed = self._feeds.get((event.group, event.client_id))
        if feed is not None and REQUEST in event.data:
            feed.add(of_end(event, event.data[REQUEST], feed.consume_timeout_ms))

    def after_transaction(self, event: TransactionEvent) -> None:
        """A broker was told how a transaction ends."""
        feed = self._feeds.get((event.group, event.client_id))
        record = None if feed is None or event.topic in (self.topic, TRACE_TOPIC) else of_transaction(event)
        if feed is not None and record is not None:
            feed.add((record,))


class Feed:
    """Records of one member on their way. `waiting` is filled by any thread and emptied by the loop's task."""

    def __init__(self, tracing: Tracing, member: Member[Any], options: ClientOptions) -> None:
        self.tracing = tracing
        self.options = options
        self.group = member.group
        self.users = 0
        self.consume_timeout_ms = int(getattr(member.settings, "consume_timeout_ms", CONSUME_TIMEOUT_MS))
        self.waiting: deque[TraceRecord] = deque()
        self.producer = inner_producer(member, options)
        self._sending = 0
        self._loop = asyncio.get_running_loop()
        self._some, self._many = asyncio.Event(), asyncio.Event()
        self._awake = self._hurried = self._ending = False
        self._task: asyncio.Task[None] | None = None
        self._logged_s = -QUIET_S
        self._logged = 0

    @property
    def unsent(self) -> int:
        return len(self.waiting) + self._sending

    async def start(self) -> None:
        await self.producer.start()
        self._task = self._loop.create_task(self._run(), name=f"traces of {self.group}")

    def add(self, records: Iterable[TraceRecord]) -> None:
        """From any thread. Costs a few microseconds and never waits."""
        waiting = self.waiting
        for record in records:
            if len(waiting) >= WAITING_MAX or self._ending:
                self.dropped(1, "they come faster than they can be sent" if not self._ending else "they came after the end")
            else:
                waiting.append(record)
        if waiting and not self._awake:
            self._awake = True
            self._wake(self._some)
        if len(waiting) >= BATCH and not self._hurried:
            self._hurried = True
            self._wake(self._many)

    def _wake(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop has ended, and so have all traces
            self._loop.call_soon_threadsafe(event.set)

    async def _run(self) -> None:
        while not (self._ending and not self.waiting):
            await self._some.wait()
            if not self._ending:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await self._many.wait()
            self._some.clear()
            self._many.clear()
            self._awake = self._hurried = False  # before the queue is emptied: what comes from now on wakes us again
            await self._send(self._taken())

    def _taken(self) -> list[TraceRecord]:
        waiting = self.waiting
        return [waiting.popleft() for _ in range(len(waiting))]

    async def _send(self, records: list[TraceRecord]) -> None:
        self._sending = len(records)
        try:
            for message, count in messages_of(records, self.tracing.topic):
                try:
                    await self.producer.send(message, timeout_ms=SEND_MS)
                    self.tracing.written += count
                except RoquetError as error:
                    self.dropped(count, str(error))
                self._sending -= count
        except Exception:
            log.exception("! group %s: traces could not be made; messages are not affected, but please report this", self.group)
        finally:
            self.tracing.dropped += self._sending
            self._sending = 0

    def dropped(self, count: int, why: str) -> None:
        self.tracing.dropped += count
        self._logged += count
        now, topic = time.monotonic(), self.tracing.topic
        if now - self._logged_s >= QUIET_S:
            log.warning(
                "! group %s: %d records of traces were not written to %s: %.300s; messages are not affected. The topic must exist: %s",
                self.group, self._logged, topic, why,
                "set traceTopicEnable=true on a broker" if topic == TRACE_TOPIC else f"roquet topic create {topic}",
            )  # fmt: skip
            self._logged_s, self._logged = now, 0

    async def close(self) -> None:
        """Send what waits, for some seconds at most, and end."""
        self._ending = True
        self._some.set()
        self._many.set()
        try:
            if self._task is not None:
                async with asyncio.timeout(CLOSE_S):
                    await self._task
        except TimeoutError:
            self.dropped(len(self.waiting), "the end did not wait any longer")
            self.waiting.clear()
        finally:
            await self.producer.close()


def inner_producer(member: Member[Any], options: ClientOptions) -> Producer:
    """A producer that shares the connections of this member, without middleware."""
    from roquet.client.producer import Producer

    kind = "PRODUCE" if isinstance(member, Producer) else "CONSUME"
    return Producer(
        f"{GROUP_PREFIX}-{member.group[:GROUP_SHOWN_MAX]}-{kind}-{next(_numbers)}",
        options.lookup or options.name_servers,
        instance_name=options.instance_name,
        unit_name=options.unit_name,
        connection=options.connection,
        start_timeout_ms=0,
    )
