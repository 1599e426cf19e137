"""The heads of entries, filled in when the log is written: until then nobody knows an entry's index.

What was staged is `room for a head | record | room for a head | record ...`, maybe with a blank behind it.
"""

from __future__ import annotations

import functools
import struct

from roquet.wire.arrays import np
from roquet.wire.layout import LEDGER_HEAD, LEDGER_MAGIC, LEDGER_UNIT
from roquet.wire.ledger_entry import read_head, unit_of

HEAD = LEDGER_HEAD.size
SIZE = struct.Struct(">i")
FEW = 12
"""Below this a loop is faster than columns."""

HEADS = [("magic", ">i4"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8"), ("pos", ">i8"), ("unused", ">i4", 3), ("body_size", ">i4")]
UNITS = [("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]


@functools.cache
def _kinds() -> tuple[np.dtype[np.void], np.dtype[np.void]]:
    """Of heads and of units. Not before they are needed: a server loads numpy late."""
    return np.dtype(HEADS), np.dtype(UNITS)


def fill(data: bytearray, pos: int, index: int, term: int) -> bytes:
    """Give each record in `data`, whose first byte will stand at `pos`, its head, the first of them with this index. Returns their
    units for the ledger's index."""
    places: list[int] = []
    sizes: list[int] = []
    at, stop, size_of = 0, len(data), SIZE.unpack_from
    while at < stop and not data[at]:  # a blank begins with 0xFF
        size = size_of(data, at + HEAD)[0]
        places.append(at)
        sizes.append(size)
        at += HEAD + size
    return _fill_few(data, pos, index, term, places, sizes) if len(places) < FEW else _fill_many(data, pos, index, term, places, sizes)


def _fill_few(data: bytearray, pos: int, index: int, term: int, places: list[int], sizes: list[int]) -> bytes:
    units: list[bytes] = []
    put_head, unit = LEDGER_HEAD.pack_into, LEDGER_UNIT.pack
    for place, size in zip(places, sizes, strict=True):
        put_head(data, place, LEDGER_MAGIC, size + HEAD, index, term, pos + place, 0, 0, 0, size)
        units.append(unit(LEDGER_MAGIC, pos + place, size + HEAD, index, term))
        index += 1
    return b"".join(units)


def _fill_many(data: bytearray, pos: int, index: int, term: int, places: list[int], sizes: list[int]) -> bytes:
    count = len(places)
    at, body_sizes = np.array(places, dtype=np.int64), np.array(sizes, dtype=np.int64)
    head_kind, unit_kind = _kinds()
    heads, units = np.zeros(count, head_kind), np.empty(count, unit_kind)
    heads["body_size"] = body_sizes
    units["magic"] = heads["magic"] = LEDGER_MAGIC
    units["size"] = heads["size"] = body_sizes + HEAD
    units["index"] = heads["index"] = np.arange(index, index + count)
    units["term"] = heads["term"] = term
    units["pos"] = heads["pos"] = at + pos
    every: np.ndarray[tuple[int], np.dtype[np.void]] = np.ndarray((len(data) - HEAD + 1,), f"V{HEAD}", buffer=data, strides=(1,))
    every[at] = heads.view(f"V{HEAD}")
    return units.tobytes()


def units_of(data: bytes | bytearray | memoryview) -> bytes:
    """Of entries that have their heads, as another member sent them."""
    units: list[bytes] = []
    at, stop = 0, len(data)
    while at < stop and not data[at]:
        head = read_head(data, at)
        units.append(unit_of(head))
        at += head.size
    return b"".join(units)
