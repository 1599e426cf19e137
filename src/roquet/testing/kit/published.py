"""Published: what is in the topics of a test's broker. Read from its store, so nothing is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from roquet.errors import ClientError
from roquet.message import Property, ReceivedMessage
from roquet.store.disk import blocking
from roquet.store.queue import ConsumeQueue
from roquet.wire.layout import BLANK_LENGTH, ENTRY
from roquet.wire.names import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, TIMER_TOPIC
from roquet.wire.record import Record

if TYPE_CHECKING:
    from roquet.broker.core import Broker
    from roquet.testing.kit.driver import Driver


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that waits for its time (deliver_at, deliver_after, delay_level)."""

    topic: str
    """Where it will be delivered."""
    due: datetime
    """When, by the broker's wall clock; in UTC."""
    message: ReceivedMessage
    """As it is stored meanwhile: body, keys, tags and properties are the producer's."""

    @property
    def body(self) -> bytes:
        """The message's."""
        return self.message.body


class Published:
    """What was published, by topic: messages that consumers can see now, in the order in which the broker stored them.

    A transaction's message is here once it is committed, a delayed or timed one once it is delivered; until then it is `scheduled`. Looking
    at it waits for nothing, and changes nothing.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._from = 0

    def to(self, topic: str) -> list[ReceivedMessage]:
        """The messages of this topic, whatever its name: `%DLQ%billing` and `%RETRY%billing` are topics too."""
        return self._driver.look(lambda: self._seen(self._broker(), [topic]))

    def bodies(self, topic: str) -> list[bytes]:
        """The bodies of the topic's messages."""
        return [message.body for message in self.to(topic)]

    def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """What this consumer group failed to consume, and will not get again."""
        return self.to(f"{DLQ_PREFIX}{group}")

    def scheduled(self, topic: str | None = None) -> list[Scheduled]:
        """What waits for its time, the first that is due first; of this topic, or of all but those of retries."""
        waiting = self._driver.look(lambda: [*self._delayed(self._broker()), *self._timed(self._broker())])
        if topic is None:
            found = [one for one in waiting if not one.topic.startswith(RETRY_PREFIX)]
        else:
            found = [one for one in waiting if one.topic == topic]
        return sorted(found, key=lambda one: (one.due, one.message.physical_offset))

    @property
    def topics(self) -> list[str]:
        """The topics that messages were published to, without those of the system, of retries and of dead letters."""
        return sorted({message.topic for message in self})

    def clear(self) -> None:
        """Leave out, from now on, what is there now. The broker keeps it, and consumers get it."""
        self._driver.look(self._clear)

    def _clear(self) -> None:
        self._from = self._broker().store.log.end

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """All of them, of all `topics`."""
        return iter(self._driver.look(self._all))

    def __len__(self) -> int:
        return len(self._driver.look(self._all))

    def __repr__(self) -> str:
        return f"<Published {', '.join(f'{topic}: {len(self.to(topic))}' for topic in self.topics) or 'nothing'}>"

    # Reading

    def _broker(self) -> Broker:
        broker = self._driver.broker
        if broker is None:
            raise ClientError("the test broker is stopped, so nobody can look into its store; start it first: await broker.start()")
        self._driver.wires.deliver()
        return broker

    def _all(self) -> list[ReceivedMessage]:
        broker = self._broker()
        return self._seen(broker, {topic for topic, _ in broker.store.queues if is_users(topic)})

    def _seen(self, broker: Broker, topics: set[str] | list[str]) -> list[ReceivedMessage]:
        queues = [queue for topic in topics for queue in broker.store.queues_of(topic)]
        found = [record for queue in queues for record in records_of(broker, queue) if record.physical_offset >= self._from]
        found.sort(key=lambda record: record.physical_offset)
        return [ReceivedMessage(record, broker.settings.broker_name) for record in found]

    def _delayed(self, broker: Broker) -> Iterator[Scheduled]:
        for queue in broker.delays.queues():
            for record in records_of(broker, queue, broker.delays.next_of(queue)):
                due_ms = record.store_timestamp + broker.delays.delays_ms[queue.queue_id]
                yield self._scheduled(broker, record, due_ms)

    def _timed(self, broker: Broker) -> Iterator[Scheduled]:
        """A cancellation and a delivery name the place of the timer that they end."""
        queue = broker.store.find_queue(TIMER_TOPIC, 0)
        timers = [] if queue is None else records_of(broker, queue)
        others = [one for other in broker.store.queues.values() if other.topic != TIMER_TOPIC for one in records_of(broker, other)]
        ended = {~one.prepared_transaction_offset for one in [*timers, *others] if one.prepared_transaction_offset < 0}
        for record in timers:
            found = self._scheduled(broker, record, 0)
            properties = found.message.properties
            if record.physical_offset not in ended and Property.TIMER_CANCELLED_KEY not in properties:
                yield self._scheduled(broker, record, int(properties[Property.TIMER_OUT_MS]))

    def _scheduled(self, broker: Broker, record: Record, due_ms: int) -> Scheduled:
        message = ReceivedMessage(record, broker.settings.broker_name)
        return Scheduled(message.properties.get(Property.REAL_TOPIC, ""), datetime.fromtimestamp(due_ms / 1000, UTC), message)


def records_of(broker: Broker, queue: ConsumeQueue, first: int = 0) -> list[Record]:
    """The records of the queue's messages from this one on."""
    first = max(first, queue.first)
    raw = blocking(queue.read, first, queue.visible - first) if queue.visible > first else b""
    return [Record.decode(blocking(broker.store.record_at, place)) for place, size, _ in ENTRY.iter_unpack(raw) if size != BLANK_LENGTH]


def is_users(topic: str) -> bool:
    if topic in SYSTEM_TOPICS or topic == SCHEDULE_TOPIC or topic.endswith(REPLY_SUFFIX):
        return False
    return not topic.startswith((SYSTEM_TOPIC_PREFIX, RETRY_PREFIX, DLQ_PREFIX))
