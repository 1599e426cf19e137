"""Promises: what one broker group told its clients, against what its broker holds.

After every start of a broker, and at the end:

    an acknowledged message stands where its receipt says, byte for byte
    every record of a queue is a message that somebody sent, unchanged; offsets are dense; no record is damaged
    nothing that a consumer was shown is gone
    a message that was acknowledged at its first attempt is there once
    a group's progress is not beyond the end of its queue; topics of acknowledged messages are known; keys are found

How much a power loss may take depends on the flush level: nothing of this under SYNC_FLUSH; under ASYNC_FLUSH only what
the broker itself did not count as flushed yet. A killed process loses nothing under either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from roquet.broker.core import Broker
from roquet.client.core.receipt import SendReceipt
from roquet.errors import RoquetError
from roquet.message import Message, Property, ReceivedMessage
from roquet.store.disk import blocking
from roquet.store.store import Store
from roquet.testing.decisions import Decisions
from roquet.wire.ids import parse_offset_message_id
from roquet.wire.layout import BLANK_LENGTH, OFFSET_AT
from roquet.wire.record import Record

QueuePosition = tuple[str, int, int]
"""(topic, queue, queue offset)."""

ADDED = frozenset((Property.UNIQUE_KEY, Property.CLUSTER))
"""Properties that a message gets on its way."""
ADDED_BY_TRANSACTIONS = frozenset(
    (
        Property.TRANSACTION_PREPARED, Property.PRODUCER_GROUP, Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.WAIT,
        Property.TRANSACTION_CHECK_TIMES, Property.TRANSACTION_PREPARED_QUEUE_OFFSET, Property.TRANSACTION_ID,
    )
)  # fmt: skip
QUERIES = 25
"""Messages looked up by key at each check."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Held:
    """A message that a group said it has."""

    name: bytes
    log_offset: int
    unique_key: str = field(default="", compare=False)


@dataclass(slots=True)
class LastSeen:
    """What a broker's process had when it ended: its log counted as safe up to `flushed`, its queues were shown up to `ends`."""

    flushed: int = 0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    power_lost: bool = False


class Promises:
    """State: what was acknowledged and shown by place. `sent` is everything that any client sent, by name."""

    def __init__(self, sent: dict[bytes, Message], decisions: Decisions, *, sync_flush: bool) -> None:
        self.sync_flush = sync_flush
        self.sent = sent
        self.decisions = decisions
        self.acked: dict[QueuePosition, Held] = {}
        self.shown: dict[QueuePosition, Held] = {}
        self.ends: dict[tuple[str, int], int] = {}
        """Queue -> the largest end that a consumer was told."""
        self.taken: dict[tuple[str, int], int] = {}
        """Queue -> the offset before which a power loss took messages (ASYNC_FLUSH only): consumers may have passed it."""
        self.lossy = False
        """Power was lost under ASYNC_FLUSH: what consumers hold from before may be gone."""
        self.once: set[bytes] = set()
        """Names of messages that were sent, and acknowledged, at their first attempt."""
        self.copies_show = False
        """Consumers may be shown what a slave has: more than is promised."""
        self.checks = 0

    # What happens

    def acknowledged(self, message: Message, receipt: SendReceipt, *, once: bool = False) -> None:
        """A receipt came. Only SEND_OK of a message that waited for the flush is a promise. `once`: it was sent once only."""
        if once:
            self.once.add(name_of(message.body))
        if not receipt.ok or not message.wait_store_ok:
            return
        place = (receipt.queue.topic, receipt.queue.queue_id, receipt.queue_offset)
        _, log_offset = parse_offset_message_id(receipt.offset_message_id)
        held = Held(name_of(message.body), log_offset, receipt.message_id)
        self._same(self.acked.setdefault(place, held), held, place, "acknowledged")
        shown = self.shown.get(place)
        if shown is not None and not self.lossy:
            self._same(shown, held, place, "shown")

    def showed(self, message: ReceivedMessage) -> None:
        place = (message.queue.topic, message.queue_id, message.queue_offset)
        if not self._is_ours(place[0]):
            self._repeated(message, place)
            return
        held = self._unchanged(message, place)
        if self.copies_show:
            return
        if self.lossy:
            # It may have been pulled before a power loss took it, and another one may have its place by now.
            self.shown.pop(place, None)
            return
        self._same(self.shown.setdefault(place, held), held, place, "shown")
        acked = self.acked.get(place)
        if acked is not None:
            self._same(acked, held, place, "acknowledged")

    def saw_end(self, topic: str, queue_id: int, end: int) -> None:
        if self.copies_show:
            return
        key = (topic, queue_id)
        self.ends[key] = max(end, self.ends.get(key, 0))

    def sent_back(self, topic: str, queue_id: int, offset: int, to: int) -> None:
        """A consumer asked for an offset and was told that the queue ends before it."""
        if (
            self.sync_flush
            and not self.copies_show
            and (to < offset or any((topic, queue_id, one) in self.acked for one in range(offset, to)))
        ):
            raise Violation(f"{topic}/{queue_id}: a consumer at offset {offset} was sent back to {to}")

    def _same(self, before: Held, now: Held, place: QueuePosition, what: str) -> None:
        if before != now:
            raise Violation(f"{show(place)} was {what} as {show_held(before)} and is now {show_held(now)}")

    # Looking

    def started(self, broker: Broker, before: LastSeen) -> None:
        store = broker.store
        if store.log.end < before.flushed:
            raise Violation(f"the log ends at {store.log.end} and was flushed to {before.flushed}")
        contents = self._read(store)
        may_lose = before.power_lost and not self.sync_flush
        self.lossy = self.lossy or may_lose
        for what, table in (("acknowledged", self.acked), ("shown", self.shown)):
            for place, held in list(table.items()):
                found = contents.get(place)
                if found == held:
                    continue
                if not may_lose or held.log_offset < before.flushed:
                    raise Violation(f"{show_held(held)} was {what} at {show(place)}, which holds {show_held(found)}")
                self._took(place[:2], place[2] + 1)
                del table[place]
        for key, end in before.ends.items():
            queue = store.find_queue(*key)
            visible = 0 if queue is None else queue.visible
            if visible < end and self._is_ours(key[0]):
                if not may_lose and key in self.ends and visible < self.ends[key]:
                    raise Violation(f"{key[0]}/{key[1]} ends at {visible}, and a consumer was told {self.ends[key]}")
                if may_lose:
                    self.ends.pop(key, None)
                    self._took(key, end)
        self.look(broker, contents)

    def _took(self, queue: tuple[str, int], end: int) -> None:
        self.taken[queue] = max(self.taken.get(queue, 0), end)

    def look(self, broker: Broker, contents: dict[QueuePosition, Held] | None = None) -> None:
        """What must hold at any time."""
        self.checks += 1
        store = broker.store
        contents = contents or self._read(store)
        for place, held in self.acked.items():
            found = contents.get(place)
            if found != held:
                raise Violation(f"{show_held(held)} was acknowledged at {show(place)}, which holds {show_held(found)}")
            topic = broker.topics.get(place[0])
            if topic is None or topic.read_queue_nums <= place[1]:
                raise Violation(f"{show_held(held)} was acknowledged at {show(place)}, but the broker has {topic or 'no such topic'}")
        copies = Counter(held.name for held in contents.values())
        doubled = [name for name, count in copies.items() if count > 1 and (name in self.once or name in self.decisions.begun)]
        if doubled:
            raise Violation(f"{doubled[0].decode(errors='replace')} was sent once, and is there {copies[doubled[0]]} times")
        self._offsets(broker)
        if store.index.waiting:
            return  # the disk is full; the index catches up later
        step = max(1, len(self.acked) // QUERIES)
        for place, held in list(self.acked.items())[::step]:
            self._query(store, place, held)

    def holds_all(self, broker: Broker, name: str) -> None:
        """At rest a copy has everything, too."""
        contents = self._read(broker.store)
        for what, table in (("acknowledged", self.acked), ("shown", self.shown)):
            for place, held in table.items():
                if contents.get(place) != held:
                    raise Violation(f"{show_held(held)} was {what} at {show(place)}; {name} holds {show_held(contents.get(place))} there")

    def _read(self, store: Store) -> dict[QueuePosition, Held]:
        """Every queue from its first to its last visible message."""
        contents: dict[QueuePosition, Held] = {}
        for (topic, queue_id), queue in sorted(store.queues.items()):
            if not self._is_ours(topic):
                continue
            before = -1
            for offset in range(queue.first, queue.visible):
                place = (topic, queue_id, offset)
                entry = blocking(queue.entry, offset)
                if entry is None:
                    raise Violation(f"{show(place)} has no entry, the queue ends at {queue.visible}")
                position, size, _ = entry
                if size == BLANK_LENGTH:
                    continue  # the log lost it; whether it may is looked at below
                try:
                    raw = blocking(store.record_at, position)
                    record = Record.decode(raw)
                except (LookupError, RoquetError) as error:
                    raise Violation(f"{show(place)} leads to log offset {position}, where no record is: {error}") from None
                if len(raw) != size:
                    raise Violation(f"{show(place)} says {size} bytes, the record at {position} has {len(raw)}")
                message = ReceivedMessage(record, "")
                if (record.topic, record.queue_id, record.queue_offset, record.physical_offset) != (*place, position):
                    raise Violation(f"{show(place)} leads to log offset {position}, whose record says {message!r}")
                if position <= before:
                    raise Violation(f"{show(place)} leads to log offset {position}, and the message before it stands at {before}")
                before = position
                contents[place] = self._unchanged(message, place)
        return contents

    def _is_ours(self, topic: str) -> bool:
        return topic.startswith("sim-")

    def _unchanged(self, message: ReceivedMessage, place: QueuePosition) -> Held:
        name = name_of(message.body)
        sent = self.sent.get(name)
        if sent is None:
            raise Violation(f"{show(place)} holds a message that nobody sent: {message.body[:60]!r}")
        if message.body != sent.body or message.topic != sent.topic or message.flag != sent.flag:
            raise Violation(f"{show(place)} does not hold {name!r} as it was sent: {message.body[:60]!r}")
        added = ADDED
        if name in self.decisions.begun:
            if why := self.decisions.forbids(name):
                raise Violation(f"{show(place)} holds {name!r}, and {why}")
            added = ADDED | ADDED_BY_TRANSACTIONS
        expected = {key: value for key, value in sent.properties.items() if key != Property.WAIT}
        stored = {key: value for key, value in message.properties.items() if key not in added}
        if stored != expected:
            raise Violation(f"{show(place)} holds {name!r} with properties {stored}, sent were {expected}")
        return Held(name, message.physical_offset, message.properties.get(Property.UNIQUE_KEY, ""))

    def _repeated(self, message: ReceivedMessage, place: QueuePosition) -> None:
        """Of a retry queue: the message that failed, with a few properties more."""
        sent = self.sent.get(name_of(message.body))
        if sent is None or message.body != sent.body or message.topic != sent.topic:
            raise Violation(f"{show(place)} repeats a message that nobody sent: {message!r} {message.body[:60]!r}")
        lacking = {key: value for key, value in sent.properties.items() if key != Property.WAIT and message.properties.get(key) != value}
        if lacking:
            raise Violation(f"{show(place)} repeats {name_of(message.body)!r} without its properties {lacking}")

    def _offsets(self, broker: Broker) -> None:
        if self.lossy or self.copies_show:
            return  # a client may still commit progress from before the loss
        for group, topics in broker.offsets.topics_by_group().items():
            for topic in topics:
                for queue_id, offset in broker.offsets.queues_of(group, topic).items():
                    queue = broker.store.find_queue(topic, queue_id)
                    visible = 0 if queue is None else queue.visible
                    if offset > visible:
                        raise Violation(f"group {group} is at {offset} of {topic}/{queue_id}, which ends at {visible}")

    def _query(self, store: Store, place: QueuePosition, held: Held) -> None:
        records, _, _ = blocking(store.query, place[0], held.unique_key, 64, 0, 1 << 62)
        if not any(int.from_bytes(raw[OFFSET_AT : OFFSET_AT + 8], "big") == held.log_offset for raw in records):
            raise Violation(f"{show_held(held)} at {show(place)} is not found by its unique key {held.unique_key}")

    # The end

    def missing(self, consumed: Collection[bytes]) -> list[bytes]:
        """Acknowledged messages that are not among these."""
        return [held.name for place, held in self.acked.items() if held.name not in consumed and place[2] >= self.taken.get(place[:2], 0)]


def name_of(body: bytes) -> bytes:
    return body.partition(b"|")[0]


def show(place: QueuePosition) -> str:
    return f"{place[0]}/{place[1]}@{place[2]}"


def show_held(held: Held | None) -> str:
    return "nothing" if held is None else f"{held.name.decode(errors='replace')} (log offset {held.log_offset})"
