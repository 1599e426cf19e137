"""Many records of another node at once -> their queue entries and keys: what the applier does record by record.

`derive_run` does it as columns. The extension has the same function, which takes 75 us for 128 KiB and not 950: a slave answers its master
between two of these. Nothing happens where anything is unusual: a hole, a number that is not the next one of its queue, a clock that was
set back. Then the applier looks at the records one by one. Tests hold all three to the same entries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from roquet.speedups import native
from roquet.store.derive import SIZE_AND_MAGIC, RecordColumns, key_entries, queue_tags, read, walk
from roquet.store.index import KEYS
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.wire.arrays import np
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import LEDGER_HEAD, LEDGER_MAGIC, MAGIC_V1, MAGIC_V2, RECORD_MIN

if TYPE_CHECKING:
    from roquet.store.store import Store

HEAD_START = struct.Struct(">ii")
"""Magic and size of an entry."""
MANY = 12
"""Fewer are not worth the columns."""

Group = tuple[str, int, int, bytes]
"""(topic, queue id, number of the first, entries) of one queue."""
DerivedRun = tuple[int, int, int, list[Group], bytes]
"""(bytes, records, store time of the last, what each queue gets, index.KEYS)."""


def apply_many(store: Store, data: bytes, base: int, note: Callable[[ConsumeQueue], None]) -> tuple[int, int]:
    """(bytes, records) that were applied from the beginning of this piece of the log, which stands at `base`; (0, 0): do it one by one.
    `note` is told of each queue before it changes."""
    with_heads, last_ms, indexed = bool(store.log.lead), store.timeline.last_ms, store.settings.message_index_enable
    run = None if native is None else native.derive_run(data, base, with_heads, last_ms, indexed)
    if run is None:
        run = derive_run(data, base, with_heads, last_ms, indexed, store.delays_ms)
    if run is None:
        return 0, 0
    end, records, last_ms, groups, keys = run
    for topic, queue_id, first, _ in groups:
        queue = store.find_queue(topic, queue_id)
        if first != (0 if queue is None else queue.next):
            return 0, 0
    for topic, queue_id, _, entries in groups:
        queue = store.queue(topic, queue_id)
        note(queue)
        queue.tail += entries
        queue.next += len(entries) // ENTRY_SIZE
    store.timeline.last_ms = last_ms
    if keys:
        store.index.add_run(keys)
    return end, records


def derive_run(data: bytes, base: int, with_heads: bool, last_ms: int, indexed: bool, delays_ms: Sequence[int]) -> DerivedRun | None:
    """What the records at the beginning of this piece lead to. None: few, or something is unusual. (The extension's knows no delays: to it
    every delayed message is unusual.)"""
    starts, end = walk_entries(data) if with_heads else walk(data, 0, len(data))
    if len(starts) < MANY:
        return None
    records, bad = read(data, base, starts)
    times = records.store_ms
    if bad or not len(records) or int(times[0]) < last_ms or bool((times[1:] < times[:-1]).any()):
        return None
    groups = _groups(records, delays_ms)
    if groups is None:
        return None
    keys = b""
    if indexed:
        owners, hashes = key_entries(records)
        rows = np.empty(len(owners), dtype=KEYS)
        rows["hash"], rows["offset"], rows["ms"] = hashes, records.offsets[owners], times[owners]
        keys = rows.tobytes()
    return end, len(records), int(times[-1]), groups, keys


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


def _groups(records: RecordColumns, delays_ms: Sequence[int]) -> list[Group] | None:
    """What each queue gets. None: something does not follow the one before it in its queue."""
    entries = np.empty(len(records), dtype=ENTRIES)
    entries["offset"], entries["size"], entries["tag"] = records.offsets, records.sizes, queue_tags(records, delays_ms)
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
        groups.append((records.topics[place >> 32], place & 0xFFFFFFFF, first, entries[chosen[begin:stop]].tobytes()))
    return groups
