"""The body of a batch send: messages one after another.

    size 4 | magic 4 | crc 4 | flag 4 | body 4+n | properties 2+n        size counts itself

Magic and crc are 0 on the wire; the broker computes its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roquet.errors import Refused
from roquet.wire.codes import ResponseCode
from roquet.wire.layout import PROPERTIES_MAX

FRONT = struct.Struct(">iiiii")
FRONTS = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
"""The same for numpy."""
SIZE = struct.Struct(">i")
SMALLEST = FRONT.size + 2
MESSAGES_MAX = 65_536
"""Of one batch. Clients are bounded by its size long before; a body of empty messages would hold up everybody else."""

InnerMessage = tuple[int, bytes, bytes]
"""(flag, body, properties as encoded)."""
Longs = npt.NDArray[np.int64]


@dataclass(slots=True)
class Columns:
    """The messages of a batch, a column a field."""

    flags: npt.NDArray[np.int32]
    bodies: list[bytes]
    properties: list[bytes]
    body_sizes: Longs
    property_sizes: Longs

    def __len__(self) -> int:
        return len(self.bodies)


def split_batch(body: bytes) -> list[InnerMessage]:
    """The messages of a batch. Every length is checked against what is left; raises Refused(13) at the first that lies."""
    parts: list[InnerMessage] = []
    at, end = 0, len(body)
    unpack = FRONT.unpack_from
    while at < end:
        if end - at < 22:
            raise bad(f"message {len(parts)} has {end - at} bytes left, at least 22 expected")
        size, _, _, flag, body_size = unpack(body, at)
        stop = at + size
        if size < 22 or stop > end:
            raise bad(f"message {len(parts)} says {size} bytes, {end - at} are left")
        start = at + 20
        middle = start + body_size
        if body_size < 0 or middle + 2 > stop:
            raise bad(f"message {len(parts)} of {size} bytes says a body of {body_size}")
        if middle + 2 + int.from_bytes(body[middle : middle + 2], "big", signed=True) != stop:
            raise bad(f"message {len(parts)} of {size} bytes has properties that do not end where it ends")
        parts.append((flag, body[start:middle], body[middle + 2 : stop]))
        if len(parts) > MESSAGES_MAX:
            raise bad(f"it has more than {MESSAGES_MAX} messages")
        at = stop
    if not parts:
        raise bad("it is empty")
    return parts


def batch_columns(body: bytes) -> Columns | None:
    """The same as columns, for a batch of many: a tenth of the cost a message. None: `split_batch` refuses it, and says why."""
    starts = _starts(body)
    if starts is None or not 0 < len(starts) <= MESSAGES_MAX:
        return None
    fronts = np.ndarray((len(body) - FRONT.size + 1,), FRONTS, body, strides=(1,))[starts]
    sizes, body_sizes = fronts["size"].astype(np.int64), fronts["body"].astype(np.int64)
    ends, middles = starts + sizes, starts + FRONT.size + body_sizes
    if not ((body_sizes >= 0) & (middles + 2 <= ends)).all():
        return None
    property_sizes = np.ndarray((len(body) - 1,), ">i2", body, strides=(1,))[middles].astype(np.int64)
    if (middles + 2 + property_sizes != ends).any():
        return None
    bodies = [body[start:stop] for start, stop in zip((starts + FRONT.size).tolist(), middles.tolist(), strict=True)]
    properties = [body[start:stop] for start, stop in zip((middles + 2).tolist(), ends.tolist(), strict=True)]
    return Columns(fronts["flag"].astype(np.int32), bodies, properties, body_sizes, property_sizes)


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


def join_batch(parts: Iterable[InnerMessage]) -> bytes:
    """The body of a batch send. Properties are limited to 32767 bytes a message."""
    pieces: list[bytes] = []
    for flag, body, properties in parts:
        if len(properties) > PROPERTIES_MAX:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"properties of {len(properties)} bytes, limit is {PROPERTIES_MAX}")
        pieces += (
            FRONT.pack(22 + len(body) + len(properties), 0, 0, flag, len(body)),
            body,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    return b"".join(pieces)


def bad(what: str) -> Refused:
    return Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is illegal: {what}")
