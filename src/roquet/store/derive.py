"""A piece of the log -> its records and their queue and index entries, many at once.

`scan` and `fanout` say what a record is and what is derived from it, one record at a time. Here the same is done with numpy over
millions, for checks and rebuilds of whole stores; a property test holds both to the same answers. Positions count from the
piece's first byte, which stands at `base` in the log.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from roquet.store.fanout import PREPARED, ROLLBACK, TRANSACTION_MASK, queue_tag
from roquet.store.index import TopicHashes, joined_hashes
from roquet.store.scan import TOPIC, parse
from roquet.store.texts import Texts, is_text
from roquet.wire import layout
from roquet.wire.arrays import np
from roquet.wire.names import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    import numpy.typing as npt

Longs: TypeAlias = "npt.NDArray[np.int64]"
Ints: TypeAlias = "npt.NDArray[np.int32]"
Bits: TypeAlias = "npt.NDArray[np.bool_]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"

SIZE_AND_MAGIC = struct.Struct(">iI")


@dataclass(slots=True)
class RecordColumns:
    """Whole records in the order of the log, a column a field."""

    base: int
    starts: Longs
    sizes: Ints
    queue_ids: Ints
    queue_offsets: Longs
    sys_flags: Ints
    store_ms: Longs
    topics: list[str]
    """The distinct ones."""
    topic_of: Ints
    """Which of them a record has."""
    texts: Texts
    """Their properties."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def offsets(self) -> Longs:
        """In the log."""
        return self.starts + self.base

    @property
    def queued(self) -> Bits:
        """fanout.is_queued of each."""
        kind = self.sys_flags & TRANSACTION_MASK
        found: Bits = (kind != PREPARED) & (kind != ROLLBACK)
        return found


def walk(data: bytes, at: int, stop: int) -> tuple[list[int], int]:
    """The starts of what look like records, one behind the other, and where that ends: at `stop` or later, or where nothing begins."""
    starts: list[int] = []
    add, unpack, size_of_data = starts.append, SIZE_AND_MAGIC.unpack_from, len(data)
    stop = min(stop, size_of_data - SIZE_AND_MAGIC.size + 1)
    v1, v2, smallest = layout.MAGIC_V1, layout.MAGIC_V2, layout.RECORD_MIN
    while at < stop:
        size, magic = unpack(data, at)
        if (magic != v1 and magic != v2) or size < smallest or at + size > size_of_data:
            break
        add(at)
        at += size
    return starts, at


def next_record(data: bytes, at: int, base: int) -> int:
    """Where the first whole record at or after this position begins, -1 when none does. It knows itself: it carries its own offset."""
    place = data.find(layout.MAGIC_START, at + 4)
    while place >= 0:
        start = place - 4
        size = int.from_bytes(data[start:place], "big", signed=True)
        if size >= layout.RECORD_MIN and data[place : place + 4] in layout.MAGICS and parse(data[start : start + size], base + start):
            return start
        place = data.find(layout.MAGIC_START, place + 1)
    return -1


def read(data: bytes, base: int, starts: Sequence[int], *, check_crc: bool = True) -> tuple[RecordColumns, list[tuple[int, str]]]:
    """The records that begin at these positions, and those that are none, each with what is wrong: scan.parse of each."""
    at = np.array(starts, dtype=np.int64)
    sizes, magic, crcs = _field(data, at, ">i4"), _field(data, at + layout.MAGIC_AT, ">u4"), _field(data, at + layout.CRC_AT, ">i4")
    queue_ids, queue_offsets = _field(data, at + layout.QUEUE_ID_AT, ">i4"), _field(data, at + layout.QUEUE_OFFSET_AT, ">i8")
    physical, flags = _field(data, at + layout.OFFSET_AT, ">i8"), _field(data, at + layout.SYS_FLAG_AT, ">i4")
    ends = at + sizes
    store_at = at + layout.STORE_TIME_AT + layout.LONGER_V6 * ((flags & layout.BORN_HOST_V6) != 0)
    body_at = store_at + layout.BODY_AT - layout.STORE_TIME_AT + layout.LONGER_V6 * ((flags & layout.STORE_HOST_V6) != 0)
    body_size = _field(data, body_at - 4, ">i4").astype(np.int64)
    body_end = body_at + body_size
    fits = (body_size >= 0) & (body_end + 3 <= ends)
    wide = magic == layout.MAGIC_V2
    topic_at = body_end + 1 + wide
    topic_size = np.where(wide, _field(data, body_end, ">u2"), _field(data, body_end, ">u1")).astype(np.int64)
    topic_end = topic_at + topic_size
    text_at = topic_end + 2
    fits &= (text_at <= ends) & (topic_size > 0)
    text_size = _field(data, topic_end, ">u2").astype(np.int64)
    fits &= text_at + text_size == ends
    bad = [(int(at[n]), "its lengths do not add up") for n in np.flatnonzero(~fits)]
    itself = (physical == at + base) & (queue_offsets >= 0) & (queue_ids >= 0) & (queue_ids <= layout.QUEUE_ID_MAX)
    bad += [(int(at[n]), "it is not the record of this place") for n in np.flatnonzero(fits & ~itself)]
    good = fits & itself
    if check_crc:
        view, checksum = memoryview(data), zlib.crc32
        kept = np.flatnonzero(good & (body_size > 0))  # upstream stores 0 for an empty body
        sums = [checksum(view[a:b]) for a, b in zip(body_at[kept].tolist(), body_end[kept].tolist(), strict=True)]
        wrong = kept[(np.array(sums, dtype=np.int64) & 0x7FFFFFFF) != crcs[kept]]
        bad += [(int(at[n]), "the checksum of its body is wrong") for n in wrong]
        good[wrong] = False
    chosen = np.flatnonzero(good)
    ids: dict[bytes, int] = {}
    names = [data[a:b] for a, b in zip(topic_at[chosen].tolist(), topic_end[chosen].tolist(), strict=True)]
    topic_of = np.array([ids.setdefault(name, len(ids)) for name in names], dtype=np.int32)
    texts = [data[a:b] for a, b in zip(text_at[chosen].tolist(), ends[chosen].tolist(), strict=True)]
    odd = _not_text(list(ids), texts, topic_of)
    pieces = {n: data[int(at[chosen[n]]) : int(ends[chosen[n]])] for n in odd}
    torn = [n for n, piece in pieces.items() if parse(piece, base + int(at[chosen[n]]), check_crc=False) is None]
    for n in set(odd).difference(torn):
        texts[n] = texts[n].decode(errors="replace").encode()
    if torn:
        bad += [(int(at[chosen[n]]), "its topic or properties are no text, or cut off") for n in torn]
        kept = np.setdiff1d(np.arange(len(chosen)), torn)
        chosen, topic_of, texts = chosen[kept], topic_of[kept], [texts[n] for n in kept.tolist()]
    found = RecordColumns(
        base,
        at[chosen],
        sizes[chosen],
        queue_ids[chosen],
        queue_offsets[chosen],
        flags[chosen],
        _field(data, store_at[chosen], ">i8"),
        [name.decode(errors="replace") for name in ids],
        topic_of,
        Texts.of(texts),
    )
    return found, sorted(bad)


def _field(data: bytes, positions: Longs, kind: str) -> npt.NDArray[Any]:
    """The number at each position. One outside the data gives any number: whoever asks there finds out by other fields."""
    dtype = np.dtype(kind)
    if len(data) < dtype.itemsize:
        return np.zeros(len(positions), dtype=dtype.newbyteorder("="))
    every = np.ndarray((len(data) - dtype.itemsize + 1,), dtype, buffer=data, strides=(1,))
    return every[np.clip(positions, 0, len(every) - 1)].astype(dtype.newbyteorder("="))


def _not_text(topics: list[bytes], texts: list[bytes], topic_of: Ints) -> list[int]:
    """The records whose topic is no name, or whose properties hold a zero or are not UTF-8: they want a closer look."""
    spoiled = [number for number, name in enumerate(topics) if not TOPIC.fullmatch(name)]
    odd = set(np.flatnonzero(np.isin(topic_of, spoiled)).tolist()) if spoiled else set()
    if not is_text(b"\x02".join(texts)):
        odd |= {number for number, text in enumerate(texts) if not is_text(text)}
    return sorted(odd)


# What is derived


def queue_tags(records: RecordColumns, delays_ms: Sequence[int]) -> Longs:
    """fanout.queue_tag of each record."""
    tags = records.texts.tags()
    # The broker's own two topics carry times in place of tags.
    own = [number for number, topic in enumerate(records.topics) if topic in (SCHEDULE_TOPIC, TIMER_TOPIC)]
    for number in np.flatnonzero(np.isin(records.topic_of, own)).tolist() if own else ():
        topic = records.topics[records.topic_of[number]]
        tags[number] = queue_tag(topic, records.texts[number], int(records.store_ms[number]), delays_ms)
    return tags


def key_entries(records: RecordColumns) -> tuple[Longs, Ints]:
    """(the record's number, index.key_hash) of every key that is indexed, in the order of the index."""
    owners, hashes, units = records.texts.keys()
    kept = ((records.sys_flags & TRANSACTION_MASK) != ROLLBACK)[owners]
    owners = owners[kept]
    known = TopicHashes()
    heads = np.array([known[topic] for topic in records.topics], dtype=np.uint32)
    return owners, joined_hashes(heads[records.topic_of[owners]], hashes[kept], units[kept])
