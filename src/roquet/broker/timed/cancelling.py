"""Cancelling a timed message: by request 370, or by a message with TIMER_DEL_UNIQKEY. A cancellation is a record itself."""

from __future__ import annotations

from collections.abc import Callable

from roquet.broker.timed.near import Near
from roquet.broker.timed.properties import CANCEL, DUE, REAL_QUEUE, REAL_TOPIC
from roquet.broker.writer import Draft, Writer
from roquet.errors import Refused
from roquet.message import Property
from roquet.settings import BrokerSettings
from roquet.store.timers import NOTHING
from roquet.wire.codes import ResponseCode
from roquet.wire.ids import parse_offset_message_id
from roquet.wire.names import TIMER_TOPIC
from roquet.wire.record import Record, decode_properties

SAME_KEY_MAX = 64
"""Timers with one unique key that a cancellation looks at: a producer that tries again may store a message twice."""

Found = tuple[int, int, Record]
"""(due, offset, record) of a pending timer."""


class Cancelling:
    def __init__(self, near: Near, writer: Writer, settings: BrokerSettings) -> None:
        self._near = near
        self._writer = writer
        self._settings = settings
        self.cancelled = 0

    def cancel_by_id(self, key: str, topic: str, check: Callable[[str], None] | None = None) -> None:
        """Of this topic, or "" for whichever. `check`: raises Refused for a topic whose messages may not be cancelled. Raises Refused when
        none is pending, Cold while it must be looked up on disk."""
        found = self._pending(key, topic)
        if check is not None:
            for _, _, record in found:
                check(decode_properties(record.properties).get(REAL_TOPIC, ""))
        self._cancel(found, key)

    def divert(self, draft: Draft, text: str, *, own_topic_only: bool) -> None:
        """A message with TIMER_DEL_UNIQKEY cancels, and is stored as a cancellation itself. 5.3 writes topic_key. `own_topic_only`: who may
        send to one topic must not cancel what was sent to another."""
        topic, _, key = text.rpartition("_")
        own = draft.topic if own_topic_only else ""
        try:
            found = self._pending(text, own)
        except Refused:
            if not topic or own not in ("", topic):
                raise
            found = self._pending(key, topic)
        self._cancel(found, text)
        other = self._cancellation(found[0], text)
        draft.topic, draft.queue_id, draft.prepared, draft.properties = other.topic, other.queue_id, other.prepared, other.properties

    def _pending(self, key: str, topic: str) -> list[Found]:
        """The pending timers with this id. Raises Refused when there is none, Cold while it must be looked up on disk."""
        records, _, _ = self._near.store.query(TIMER_TOPIC, key, SAME_KEY_MAX, 0, NOTHING)
        decoded = [(record, decode_properties(record.properties)) for record in map(Record.decode, records)]
        decoded = [(record, names) for record, names in decoded if names.get(Property.UNIQUE_KEY) == key]  # the index knows hashes only
        if not decoded:
            record = self._at_offset_of(key)
            if record is not None:
                names = decode_properties(record.properties)
                if names.get(Property.UNIQUE_KEY, key) != key:
                    return self._pending(names[Property.UNIQUE_KEY], topic)
                decoded = [(record, names)]
        gone = {~record.prepared_transaction_offset: CANCEL in names for record, names in decoded if record.prepared_transaction_offset < 0}
        found: list[Found] = []
        state = "not known"
        for record, names in decoded:
            offset, due = record.physical_offset, int(names.get(DUE, "0"))
            if CANCEL in names or (topic and names.get(REAL_TOPIC) != topic):
                continue
            if gone.get(offset) or self._near.taken_back.is_asked(offset):
                state = "cancelled already"
            elif due <= self._near.store.staging.now_ms or self._near.done.has(due, offset):
                # The first, too: the mark may be behind, after a crash it does not know all that was delivered.
                state = "delivered already"
            elif offset not in gone:
                found.append((due, offset, record))
        if not found:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"no timed message with id {key[:80]!r} is pending on {self._settings.broker_name}: it is {state}. "
                "Give the id that its send was answered with; one that has fired cannot be cancelled",
            )
        return found

    def _at_offset_of(self, text: str) -> Record | None:
        """The timer that stands where an offset id of this broker says."""
        try:
            host, offset = parse_offset_message_id(text)
            if host != self._near.store.staging.store_host:
                return None
            record = Record.decode(self._near.store.record_at(offset), check_crc=False)
        except (Refused, LookupError):
            return None
        return record if record.topic == TIMER_TOPIC else None

    def _cancel(self, found: list[Found], key: str) -> None:
        """Put a cancellation for each. They count from now on, if they are stored."""
        asked, moving = self._near.taken_back.asked, self._near.taken_back.moving
        for one in found:
            asked[one[1]] = self._writer.put_as_is(self._cancellation(one, key)).log_offset
            self.cancelled += 1
            due, moved = moving.get(one[1], (0, -1))
            if moved >= 0:
                asked[moved] = self._writer.put_as_is(self._cancellation((due, moved, one[2]), key)).log_offset

    def _cancellation(self, found: Found, key: str) -> Draft:
        due, offset, record = found
        names = decode_properties(record.properties)
        properties = {name: names[name] for name in (Property.UNIQUE_KEY, REAL_TOPIC, REAL_QUEUE) if name in names}
        properties |= {CANCEL: names.get(Property.UNIQUE_KEY, key), DUE: str(due)}
        return Draft(TIMER_TOPIC, 0, b"", properties, born_ms=self._near.store.staging.now_ms, born_host=record.born_host, prepared=~offset)
