"""The same layouts for numpy: many records, entries, hashes or messages of a batch at once. Clients do without: numpy loads slowly."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from roquet.wire.arrays import layout, np
from roquet.wire.batch import FRONT as BATCH_FRONT
from roquet.wire.batch import MESSAGES_MAX, SMALLEST
from roquet.wire.hashing import java_hash
from roquet.wire.layout import FIELDS, FRONTS, host_size

if TYPE_CHECKING:
    import numpy.typing as npt

CODES: Final = {"i": ">i4", "I": ">u4", "q": ">i8"}


def record_columns(hosts: int) -> np.dtype[np.void]:
    return layout([(name, f"V{host_size(name, hosts)}" if code == "h" else CODES[code]) for name, code in FIELDS])


COLUMNS: Final = {hosts: record_columns(hosts) for hosts in FRONTS}
"""The front of a record, by the two bits of the sys flag."""
ENTRIES: Final = layout([("offset", ">i8"), ("size", ">i4"), ("tag", ">i8")])
"""Of a queue."""
INDEX_ENTRIES: Final = layout([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
BATCH_FRONTS: Final = layout([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
SIZE: Final = struct.Struct(">i")

Longs: TypeAlias = "npt.NDArray[np.int64]"


@functools.cache
def powers() -> npt.NDArray[np.uint32]:
    """31^n; it wraps at 32 bits, as Java's int does."""
    return np.cumprod([1] + [31] * 0xFFFF, dtype=np.uint32)


def java_hashes(texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """java_hash of each text, in order."""
    count = len(texts)
    if not count:
        return np.empty(0, dtype=np.int32)
    joined = "".join(texts)
    if joined.isascii():
        units = np.frombuffer(joined.encode(), dtype=np.uint8).astype(np.uint32)
        sizes = np.fromiter(map(len, texts), dtype=np.int64, count=count)
    else:
        # Texts apart: joined, two lone surrogates could merge into one pair, which has the same units but the length differs.
        encoded = [text.encode("utf-16-be", "surrogatepass") for text in texts]
        units = np.frombuffer(b"".join(encoded), dtype=">u2").astype(np.uint32)
        sizes = np.fromiter((len(one) // 2 for one in encoded), dtype=np.int64, count=count)
    if not len(units):
        return np.zeros(count, dtype=np.int32)
    if sizes.max() > len(powers()):
        return np.array([java_hash(text) for text in texts], dtype=np.int32)
    ends = np.cumsum(sizes)
    # A unit's power is its distance from the end of its own text.
    distance = np.repeat(ends, sizes) - 1 - np.arange(len(units))
    products = units * powers()[distance]
    filled = sizes > 0  # reduceat gives the element itself for an empty run
    hashes = np.zeros(count, dtype=np.uint32)
    hashes[filled] = np.add.reduceat(products, (ends - sizes)[filled], dtype=np.uint32)
    return hashes.view(np.int32)


@dataclass(slots=True)
class Columns:
    """The messages of a batch, a column a field."""

    starts: Longs
    """Where each begins in the body."""
    flags: npt.NDArray[np.int32]
    bodies: list[bytes]
    properties: list[bytes]
    body_sizes: Longs
    property_sizes: Longs

    def __len__(self) -> int:
        return len(self.bodies)


def batch_columns(body: bytes) -> Columns | None:
    """The same as columns, for a batch of many: a tenth of the cost a message. None: `split_batch` refuses it, and says why."""
    starts = _starts(body)
    if starts is None or not 0 < len(starts) <= MESSAGES_MAX:
        return None
    fronts = np.ndarray((len(body) - BATCH_FRONT.size + 1,), BATCH_FRONTS, body, strides=(1,))[starts]
    sizes, body_sizes = fronts["size"].astype(np.int64), fronts["body"].astype(np.int64)
    ends, middles = starts + sizes, starts + BATCH_FRONT.size + body_sizes
    if not ((body_sizes >= 0) & (middles + 2 <= ends)).all():
        return None
    property_sizes = np.ndarray((len(body) - 1,), ">i2", body, strides=(1,))[middles].astype(np.int64)
    if (middles + 2 + property_sizes != ends).any():
        return None
    bodies = [body[start:stop] for start, stop in zip((starts + BATCH_FRONT.size).tolist(), middles.tolist(), strict=True)]
    properties = [body[start:stop] for start, stop in zip((middles + 2).tolist(), ends.tolist(), strict=True)]
    return Columns(starts, fronts["flag"].astype(np.int32), bodies, properties, body_sizes, property_sizes)


def _starts(body: bytes) -> Longs | None:
    """Where the messages begin, None when their sizes do not lead to the end."""
    end = len(body)
    size = int.from_bytes(body[:4], "big", signed=True)
    if size >= SMALLEST and end % size == 0 and (np.ndarray((end // size,), ">i4", body, strides=(size,)) == size).all():
        return np.arange(0, end, size)  # all of one size, as many are
    starts: list[int] = []
    add, unpack, at, last = starts.append, SIZE.unpack_from, 0, end - SMALLEST
    while at <= last:
        add(at)
        (size,) = unpack(body, at)
        if size < SMALLEST:
            return None
        at += size
    return np.array(starts, dtype=np.int64) if at == end else None
