"""Messages read from a broker's store directory, without the broker: a Place over `store/reader.py`.

The directory may be in use, stopped, killed, a copy, or Apache RocketMQ's own. Records go from the mapped log files into Arrow
without a copy in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roquet.errors import Damaged, NoRoute
from roquet.message import MessageQueue
from roquet.routing.sql92 import Filter, compiled
from roquet.routing.subscription import TagFilter, subscribe
from roquet.spark.columns import arrow_schema
from roquet.spark.decode import Decoder, raw_properties
from roquet.spark.places import Chunk, DataGone, Wanted
from roquet.store.reader import Entries, Gone, StoreReader
from roquet.wire.layout import BLANK_LENGTH
from roquet.wire.names import SCHEDULE_TOPIC, TIMER_TOPIC

CHUNK_ROWS = 32 * 1024
CHUNK_BYTES = 8 * 1024 * 1024

TAGS = arrow_schema(["tags"])


class FilePlace:
    """`broker` names the broker whose files they are; else the files tell it, if a broker of ours wrote them."""

    def __init__(self, path: str, broker: str | None = None) -> None:
        """Raises Damaged when there is no store at this path."""
        self.reader = StoreReader(str(store_at(Path(path))))
        self.broker = broker or self.reader.broker or None

    def topics(self) -> list[str]:
        self.reader.refresh()
        return self.reader.topics()

    def queues(self, topic: str) -> list[MessageQueue]:
        found = [self._queue(topic, queue_id) for queue_id in self.reader.queues(topic)]
        if not found:
            known = self.topics()
            some = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
            raise NoRoute(f"{self.reader.root} has no topic {topic!r}; it has {some or 'none'}")
        return found

    def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        self.reader.refresh()
        found = {}
        for queue in queues:
            with contextlib.suppress(NoRoute):  # it has no messages, or is gone
                found[queue] = self.reader.bounds(queue.topic, queue.queue_id)
        return found

    def offsets_at(self, queues: Sequence[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        self.reader.refresh()
        found = {}
        for queue in queues:
            with contextlib.suppress(NoRoute):
                found[queue] = self.reader.offset_at(queue.topic, queue.queue_id, time_ms)
        return found

    def chunks(self, queue: MessageQueue, start: int, stop: int, wanted: Wanted) -> Iterator[Chunk]:
        take = Choice(queue.topic, wanted)
        while start < stop:
            entries = self._entries(queue, start, min(start + CHUNK_ROWS, stop))
            for first, count in self._runs(queue, start, entries):
                chunk = self._chunk(queue, start + first, take.by_hash(entries[first : first + count]))
                if chunk is not None:
                    chunk = take.by_record(chunk)
                    if len(chunk.positions):
                        yield chunk
            start += len(entries)

    def close(self) -> None:
        self.reader.close()

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self.broker or "", queue_id)

    def _entries(self, queue: MessageQueue, start: int, stop: int) -> Entries:
        for last in (False, True):
            try:
                return self.reader.entries(queue.topic, queue.queue_id, start, stop)
            except Gone as gone:
                if last:
                    raise DataGone(queue, gone.start, gone.available) from None
            except NoRoute:
                if last:
                    raise DataGone(queue, start, 0) from None
            self.reader.refresh()
        raise AssertionError

    def _runs(self, queue: MessageQueue, start: int, entries: Entries) -> Iterator[tuple[int, int]]:
        """(first, count) of entries whose records lie in one log file and are not more than a chunk holds."""
        sizes = entries["size"].astype(np.int64)
        wrong = np.flatnonzero(sizes <= 0)
        if len(wrong):
            raise Damaged(f"{queue.topic}/{queue.queue_id} offset {start + int(wrong[0])} has an empty entry in the queue's files")
        sizes[sizes == BLANK_LENGTH] = 0
        offsets = entries["offset"].astype(np.int64)
        # A blank entry has no place: it goes with the one before it.
        offsets = np.maximum.accumulate(np.where(sizes > 0, offsets, -1))
        files = offsets // self.reader.log.size
        parts = np.cumsum(sizes) // CHUNK_BYTES
        edges = np.flatnonzero((files[1:] != files[:-1]) | (parts[1:] != parts[:-1])) + 1
        places = [0, *edges.tolist(), len(entries)]
        for first, after in pairwise(places):
            yield first, after - first

    def _chunk(self, queue: MessageQueue, start: int, entries: Entries) -> Chunk | None:
        entries = entries[entries["size"] != BLANK_LENGTH]
        if not len(entries):
            return None
        offsets = entries["offset"].astype(np.int64)
        base = self.reader.log.base_of(int(offsets[0]))
        try:
            if base is None:
                raise FileNotFoundError
            view = self.reader.log_view(base, int(offsets[-1]) - base + int(entries["size"][-1]))
        except FileNotFoundError:
            self.reader.refresh()
            first, end = self.reader.bounds(queue.topic, queue.queue_id)
            raise DataGone(queue, start, max(min(first, end), start + 1)) from None
        return Chunk(view, offsets - base, entries["size"].astype(np.int32))


class Choice:
    """Which messages are wanted: first by the tag hash of their entries, then by the records themselves."""

    def __init__(self, topic: str, wanted: Wanted) -> None:
        """Raises BadExpression or BadSql."""
        self.tags: TagFilter | None = TagFilter.of(subscribe(topic, wanted.tags)) if wanted.tags else None
        if self.tags is not None and self.tags.takes_all:
            self.tags = None
        self.sql: Filter | None = compiled(wanted.sql) if wanted.sql else None
        # Entries of these topics say when a message is due, where others have the hash.
        self.hashed = topic not in (SCHEDULE_TOPIC, TIMER_TOPIC)

    def by_hash(self, entries: Entries) -> Entries:
        if self.tags is None or not self.hashed:
            return entries
        hashes = entries["tag"].astype(np.int64)
        codes = np.array(sorted(self.tags.codes), np.int64)
        # Below an int: not a hash, but a place in the extension files of RocketMQ. The record will tell.
        return entries[np.isin(hashes, codes) | (hashes < -(2**31))]

    def by_record(self, chunk: Chunk) -> Chunk:
        if self.tags is not None and len(chunk.positions):
            wanted = pa.array(sorted(self.tags.tags), pa.string())
            found = [pc.is_in(batch["tags"], value_set=wanted) for batch in Decoder(TAGS, None).batches(chunk, CHUNK_ROWS)]
            chunk = keep(chunk, pa.concat_arrays(found).to_numpy(zero_copy_only=False))
        if self.sql is not None and len(chunk.positions):
            takes = self.sql.takes
            chunk = keep(chunk, np.array([takes(raw, 0, len(raw)) for raw in raw_properties(chunk)], np.bool_))
        return chunk


def keep(chunk: Chunk, which: npt.NDArray[Any]) -> Chunk:
    return chunk if which.all() else Chunk(chunk.data, chunk.positions[which], chunk.sizes[which])


def store_at(path: Path) -> Path:
    """The store directory that a path means: itself, or the one directory in it that is one. Raises Damaged with what was found."""
    if is_store(path):
        return path
    if not path.is_dir():
        raise Damaged(f"{path} is not a directory; give the store directory of a broker, the one that holds commitlog")
    inside = sorted(path.iterdir())
    stores = [one for one in inside if is_store(one)]
    if len(stores) == 1:
        return stores[0]
    if stores:
        raise Damaged(f"{path} holds the stores of {len(stores)} brokers: {', '.join(one.name for one in stores[:20])}; give one of them")
    names = ", ".join(one.name for one in inside[:20]) or "nothing"
    raise Damaged(f"{path} is not the store of a broker, which holds a directory commitlog; found there: {names}")


def is_store(path: Path) -> bool:
    return (path / "commitlog").is_dir() or any(path.glob("dledger-*/data"))
