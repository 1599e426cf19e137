"""Many records of another node at once -> their queue entries and keys: what the applier does record by record, as columns.

Nothing happens where anything about them is unusual: a hole, a number that is not the next one of its queue, a clock that was set back.
Then the applier looks at them one by one. A test holds both to the same entries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from roquet.store.derive import SIZE_AND_MAGIC, RecordColumns, key_entries, queue_tags, read, walk
from roquet.store.index import KEYS
from roquet.store.queue import ConsumeQueue
from roquet.wire.arrays import np
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import LEDGER_HEAD, LEDGER_MAGIC, MAGIC_V1, MAGIC_V2, RECORD_MIN

if TYPE_CHECKING:
    from roquet.store.store import Store

HEAD_START = struct.Struct(">ii")
"""Magic and size of an entry."""
MANY = 12
"""Fewer are not worth the columns."""

Group = tuple[str, int, bytes]
"""(topic, queue id, entries) of one queue."""


def apply_many(store: Store, data: bytes, base: int, note: Callable[[ConsumeQueue], None]) -> tuple[int, int]:
    """(bytes, records) that were applied from the beginning of this piece of the log, which stands at `base`; (0, 0): do it one by one.
    `note` is told of each queue before it changes."""
    starts, end = walk_entries(data) if store.log.lead else walk(data, 0, len(data))
    if len(starts) < MANY:
        return 0, 0
    records, bad = read(data, base, starts)
    times = records.store_ms
    if bad or not len(records) or int(times[0]) < store.timeline.last_ms or bool((times[1:] < times[:-1]).any()):
        return 0, 0
    groups = _groups(store, records)
    if groups is None:
        return 0, 0
    for topic, queue_id, entries in groups:
        queue = store.queue(topic, queue_id)
        note(queue)
        queue.tail += entries
        queue.next += len(entries) // ENTRIES.itemsize
    store.timeline.last_ms = int(times[-1])
    if store.settings.message_index_enable:
        owners, hashes = key_entries(records)
        keys = np.empty(len(owners), dtype=KEYS)
        keys["hash"], keys["offset"], keys["ms"] = hashes, records.offsets[owners], times[owners]
        store.index.add_run(keys.tobytes())
    return end, len(records)


def walk_entries(data: bytes) -> tuple[list[int], int]:
    """Of a log with heads before its records: the starts of the records, and where the last of them ends. A blank, and a record of a log
    that had no heads, are no entries."""
    starts: list[int] = []
    at, head_of, record_of, head = 0, HEAD_START.unpack_from, SIZE_AND_MAGIC.unpack_from, LEDGER_HEAD.size
    stop = len(data) - head - RECORD_MIN + 1
    while at < stop:
        magic, size = head_of(data, at)
        record_size, record_magic = record_of(data, at + head)
        whole = magic == LEDGER_MAGIC and size == record_size + head and record_size >= RECORD_MIN and at + size <= len(data)
        if not whole or record_magic not in (MAGIC_V1, MAGIC_V2):
            break
        starts.append(at + head)
        at += size
    return starts, at


def _groups(store: Store, records: RecordColumns) -> list[Group] | None:
    """What each queue gets. None: something does not follow the last entry of its queue."""
    entries = np.empty(len(records), dtype=ENTRIES)
    entries["offset"], entries["size"], entries["tag"] = records.offsets, records.sizes, queue_tags(records, store.delays_ms)
    chosen = np.flatnonzero(records.queued)
    if not len(chosen):
        return []
    places = records.topic_of[chosen].astype(np.int64) << 32 | records.queue_ids[chosen]
    order = np.argsort(places, kind="stable")
    chosen, places = chosen[order], places[order]
    numbers = records.queue_offsets[chosen]
    begins = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
    follows = numbers[1:] == numbers[:-1] + 1
    follows[begins[1:] - 1] = True
    if not bool(follows.all()):
        return None
    groups: list[Group] = []
    for begin, stop in zip(begins.tolist(), [*begins[1:].tolist(), len(chosen)], strict=True):
        place, first = int(places[begin]), int(numbers[begin])
        topic, queue_id = records.topics[place >> 32], place & 0xFFFFFFFF
        queue = store.find_queue(topic, queue_id)
        if first != (0 if queue is None else queue.next):
            return None
        groups.append((topic, queue_id, entries[chosen[begin:stop]].tobytes()))
    return groups
