"""RecordLookup looked up by their place, by store time and by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from roquet.store.disk import Cold
from roquet.store.queue import ConsumeQueue
from roquet.store.scan import parse
from roquet.store.times import Times
from roquet.wire.layout import BLANK_LENGTH, RECORD_MIN, TIMED, store_time_of

if TYPE_CHECKING:
    from roquet.store.store import Store

Data = TypeVar("Data", bytes, memoryview)

TIMES_LOOKED_AT = 256
"""Messages among which one is looked for whose time can be told."""

LIKELY_SIZE = 1_024
"""Bytes of a record that are read before its size is known."""

QUERY_SIZE_MAX = 15 * 1024 * 1024
"""Bytes of one query's records: they must fit a frame."""


class RecordLookup:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._log = store.log

    def record_at(self, offset: int) -> bytes:
        """The whole record that begins here. Raises LookupError when none does, Cold when it is not in memory."""
        raw = self.raw_at(offset)
        if parse(raw, offset, check_crc=False) is None:
            raise LookupError(f"no message begins at log offset {offset}")
        return raw

    def raw_at(self, offset: int) -> bytes:
        """As many bytes as those that stand here say. The caller must see that they are a record. Raises as `record_at`."""
        return self.raw_by(self._log.read, offset)

    def raw_by(self, read: Callable[[int, int], Data], offset: int) -> Data:
        """The same with another way to read (offset, size), `LogWindow.view`: then the next call may overwrite them."""
        segments, safe = self._log.segments, self._log.safe
        base = segments.base_of(offset)
        # Most records are short: then one read is enough.
        seen = 0 if base is None else min(LIKELY_SIZE, safe - offset, base + segments.size - offset)
        if seen >= 4:
            head = read(offset, seen)
            size = int.from_bytes(head[:4], "big", signed=True)
            if size >= RECORD_MIN and offset + size <= safe:
                return head[:size] if size <= seen else read(offset, size)
        raise LookupError(f"no message begins at log offset {offset}")

    def store_time_at(self, offset: int) -> int:
        """Store time of the record that begins here (its place is trusted). -1 when it is gone."""
        try:
            return store_time_of(self._log.read(offset, TIMED))
        except LookupError:
            return -1

    def offset_by_time(self, queue: ConsumeQueue, time_ms: int) -> int:
        """Upstream's rule: the message stored at that time, else the nearer neighbour (the earlier on a tie)."""
        at = self.times(queue).first_from(time_ms)
        if at == queue.first:
            return at
        if at == queue.visible:
            return at - 1  # all are older: the last
        before_ms, after_ms = self._time_of(queue, at - 1), self._time_of(queue, at)
        return at if after_ms == time_ms or before_ms < 0 or after_ms - time_ms < time_ms - before_ms else at - 1

    def times(self, queue: ConsumeQueue) -> Times:
        """For a search by store time, which may raise Cold."""

        def place_of(offset: int) -> int:
            entry = queue.entry(offset)
            return -1 if entry is None else entry[0]

        return Times(queue.first, queue.visible, self._store.timeline.set_backs, place_of, lambda offset: self._time_of(queue, offset))

    def first_store_time(self, queue: ConsumeQueue) -> int:
        return self._time_of(queue, queue.first)

    def _time_of(self, queue: ConsumeQueue, offset: int) -> int:
        """Store time of the message with this number; where it cannot be read, of the next that can. -1 when there is none near."""
        for number in range(offset, min(offset + TIMES_LOOKED_AT, queue.visible)):
            entry = queue.entry(number)
            if entry is not None and RECORD_MIN <= entry[1] < BLANK_LENGTH:
                stored = self.store_time_at(entry[0])
                if stored >= 0:
                    return stored
        return -1

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> tuple[list[bytes], int, int]:
        """RecordLookup under a key, oldest first as upstream sends them, at most QUERY_SIZE_MAX bytes, with the index's last update."""
        self._store.derived.settle()
        offsets, last_ms, last_offset = self._store.index.query(topic, key, count_max, begin_ms, end_ms)
        records: list[bytes] = []
        fetches: list[Callable[[], object]] = []
        size = 0
        for offset in sorted(offsets):
            try:
                record = self.record_at(offset)
            except LookupError:
                continue  # expired since
            except Cold as cold:
                fetches.append(cold.fetch)
                continue
            size += len(record)
            if records and size > QUERY_SIZE_MAX:
                break
            records.append(record)
        if fetches:
            raise Cold(lambda: [fetch() for fetch in fetches])
        return records, last_ms, last_offset
