"""Many messages for queues of one topic -> their records and entries, a column a field. What `Store.put_derived` does for one.

Headers are one numpy array, bodies and properties stay the slices they are, and one join makes the piece of log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zlib import crc32

from roquet.store.queue import ConsumeQueue
from roquet.store.texts import Hashes, Texts
from roquet.wire.arrays import np
from roquet.wire.columns import COLUMNS, ENTRIES, Columns
from roquet.wire.layout import FRONT, MAGIC_V1

if TYPE_CHECKING:
    import numpy.typing as npt

    from roquet.store.index import KeyIndex

Longs: TypeAlias = "npt.NDArray[np.int64]"

FRONT_BYTES = f"V{FRONT.size}"


class Portion(NamedTuple):
    """So many messages of them, behind those of the portion before, came in one request for one queue."""

    queue: ConsumeQueue
    messages: int
    sys_flag: int
    born_ms: int


@dataclass(slots=True)
class Batch:
    """Messages, checked and ready to store."""

    columns: Columns
    suffix: bytes
    """What is stored behind the properties of each."""
    tags: Longs
    keys: tuple[Longs, Hashes, Longs]
    """Texts.keys of all of them."""

    @classmethod
    def of(cls, columns: Columns, texts: Texts, suffix: bytes) -> Batch:
        return cls(columns, suffix, texts.tags(), texts.keys())

    def __len__(self) -> int:
        return len(self.columns)

    def places(self, topic_field: bytes, start: int, lead: int) -> tuple[Longs, Longs]:
        """Where each record begins and ends in the log, if the lead of the first stands at `start`."""
        fixed = FRONT.size + len(topic_field) + 2 + len(self.suffix)
        sizes: Longs = self.columns.body_sizes + self.columns.property_sizes + fixed
        ends: Longs = np.cumsum(sizes + lead) + start
        return ends - sizes, ends

    def records(
        self, offsets: Longs, ends: Longs, portions: Sequence[Portion], firsts: Sequence[int],
        born_host: bytes, store_ms: int, store_host: bytes, lead: bytes = b"",
    ) -> bytes:  # fmt: skip
        """One after another, as the log holds them, each behind its `lead`; they begin and end there. `firsts`: the first queue offset of
        each portion."""
        columns, count = self.columns, len(self)
        topic_field = portions[0].queue.topic_field
        fronts = np.empty(count, dtype=COLUMNS[0])
        start = 0
        for portion, first in zip(portions, firsts, strict=True):
            queue_id, born_ms, stop = portion.queue.queue_id, portion.born_ms, start + portion.messages
            same = (0, MAGIC_V1, 0, queue_id, 0, 0, 0, portion.sys_flag, born_ms, born_host, store_ms, store_host, 0, 0, 0)
            fronts[start:stop] = np.array(same, COLUMNS[0])
            fronts["queue_offset"][start:stop] = np.arange(first, first + portion.messages)
            start = stop
        fronts["size"], fronts["flag"], fronts["physical_offset"], fronts["body_size"] = (
            ends - offsets, columns.flags, offsets, columns.body_sizes,
        )  # fmt: skip
        fronts["crc"] = np.fromiter(map(crc32, columns.bodies), dtype=np.int64, count=count) & 0x7FFFFFFF
        middles = np.empty((count, len(topic_field) + 2), dtype=np.uint8)
        middles[:, :-2] = np.frombuffer(topic_field, dtype=np.uint8)
        middles[:, -2:] = (columns.property_sizes + len(self.suffix)).astype(">u2").view(np.uint8).reshape(count, 2)
        pieces = [self.suffix] * (5 * count)
        heads = fronts.view(FRONT_BYTES).tolist()
        pieces[0::5] = [lead + head for head in heads] if lead else heads
        pieces[1::5] = columns.bodies
        pieces[2::5] = middles.view(f"V{middles.shape[1]}").ravel().tolist()
        pieces[3::5] = columns.properties
        return b"".join(pieces)

    def entries(self, offsets: Longs, ends: Longs) -> bytes:
        """Of the queue."""
        entries = np.empty(len(self), dtype=ENTRIES)
        entries["offset"], entries["size"], entries["tag"] = offsets, ends - offsets, self.tags
        return entries.tobytes()

    def add_keys(self, index: KeyIndex, topic: str, offsets: Longs, store_ms: int) -> None:
        """Of the records that stand there."""
        owners, hashes, units = self.keys
        if len(owners):
            index.add_many(topic, hashes, units, offsets[owners], store_ms)
