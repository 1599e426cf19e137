"""Writing a message that is not a plain send: the draft, and the features that divert it before it is stored.

A delayed message goes into the schedule topic, a prepared one into the half topic, a timed one onto the timer. Each of
these is a diversion: it looks at a draft, and changes where it goes and what its properties say. Retries, deliveries of
the delayed and commits of transactions are drafts too. The plain send does not come here (`send.take`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from roquet.broker.topics import Topics
from roquet.message import Property
from roquet.store.storable import check_place
from roquet.store.store import Store
from roquet.wire.layout import HOSTS_V6, PROPERTIES_MAX
from roquet.wire.record import Record, decode_properties

MARKS_MAX = 128
"""Bytes of properties that are kept free in a message that waits, for what the broker notes in it meanwhile."""


@dataclass(slots=True)
class Draft:
    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    sys_flag: int = 0
    flag: int = 0
    born_ms: int = 0
    born_host: bytes = bytes(8)
    reconsumed: int = 0
    prepared: int = 0
    store_host: bytes | None = None
    """None: this broker's. What is put again for a record keeps that record's, as upstream does."""
    wait_kept: bool = False
    """Store the property WAIT too: upstream leaves it out of plain messages only, to save bytes."""

    @classmethod
    def of(cls, record: Record) -> Draft:
        """The message of a record, to be put again."""
        return cls(
            record.topic,
            record.queue_id,
            record.body,
            decode_properties(record.properties),
            record.sys_flag & ~0x3C,  # neither the transaction's state nor the width of the hosts is copied
            record.flag,
            record.born_timestamp,
            record.born_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            record.store_host,
        )

    @classmethod
    def again(cls, record: Record) -> Draft:
        """The same for a record that is delivered, or tried, once more. What it was to a transaction is over; all its properties stay."""
        draft = cls.of(record)
        draft.sys_flag, draft.prepared, draft.wait_kept = record.sys_flag & ~HOSTS_V6, 0, True
        return draft

    def divert_to(self, topic: str, queue_id: int = 0) -> None:
        """It goes there for now; where it belongs is in its properties."""
        self.properties[Property.REAL_TOPIC], self.properties[Property.REAL_QUEUE_ID] = self.topic, str(self.queue_id)
        self.topic, self.queue_id = topic, queue_id

    def lacks_room(self, what_for: str) -> str:
        """Why it cannot be diverted: its properties leave no room for where it belongs, and for some marks. "" when they do."""
        properties, kept = self.properties, len(self.topic) + MARKS_MAX
        # Most are so short that nobody need join them: a character has four bytes at most.
        if 4 * (sum(map(len, properties)) + sum(map(len, properties.values())) + 2 * len(properties)) + kept <= PROPERTIES_MAX:
            return ""
        if len(self.text().encode()) + kept <= PROPERTIES_MAX:
            return ""
        return (
            f"maybe msg properties exceed the limit of {PROPERTIES_MAX} bytes, of which {MARKS_MAX} and the topic's name are kept for the "
            f"{what_for}"
        )

    def text(self) -> str:
        kept = self.wait_kept
        return "\x02".join([f"{name}\x01{value}" for name, value in self.properties.items() if value and (kept or name != Property.WAIT)])


class StoredAt(NamedTuple):
    queue_offset: int
    log_offset: int


Diversion = Callable[[Draft], None]
"""Changes the draft in place where it is concerned. Raises Refused; then nothing is stored."""


class Writer:
    """State: the diversions, in the order they look at a draft. Made complete by the core before the first message."""

    def __init__(self, store: Store, topics: Topics) -> None:
        self.store = store
        self.topics = topics
        self.diversions: list[Diversion] = []

    def put(self, draft: Draft) -> StoredAt:
        """Stage it; it happens with the store's next commit. Raises Refused when it cannot be stored."""
        for divert in self.diversions:
            divert(draft)
        return self.put_as_is(draft)

    def put_as_is(self, draft: Draft) -> StoredAt:
        """The same without diversions: the message goes where the draft says."""
        queue = self.topics.reachable(draft.topic, draft.queue_id)
        if queue is None:
            check_place(draft.topic, draft.queue_id)
            self.topics.make_reachable(draft.topic, draft.queue_id)
            queue = self.store.queue(draft.topic, draft.queue_id)
        log_offset, queue_offset = self.store.put(
            queue,
            draft.body,
            draft.text(),
            sys_flag=draft.sys_flag,
            flag=draft.flag,
            born_ms=draft.born_ms,
            born_host=draft.born_host,
            reconsumed=draft.reconsumed,
            prepared=draft.prepared,
            store_host=draft.store_host,
        )
        return StoredAt(queue_offset, log_offset)
