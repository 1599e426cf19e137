"""The heads of entries, filled in when the log is written: until then nobody knows an entry's index.

What was staged is `room for a head | record | room for a head | record ...`, maybe with a blank behind it.
"""

from __future__ import annotations

import struct

from roquet.speedups import native
from roquet.wire.layout import LEDGER_HEAD, LEDGER_MAGIC, LEDGER_UNIT, RECORD_MIN

HEAD = LEDGER_HEAD.size
SIZE = struct.Struct(">i")


def fill_heads(data: bytes, pos: int, index: int, term: int) -> tuple[bytes, bytes]:
    """Give each record in `data`, whose first byte will stand at `pos`, its head, the first of them with this index. Returns the data with
    its heads, and their units for the ledger's index. Raises ValueError for anything but records, and a blank behind them."""
    filled, units = bytearray(data), bytearray()
    at, stop, smallest = 0, len(data), HEAD + RECORD_MIN
    size_of, put_head, unit = SIZE.unpack_from, LEDGER_HEAD.pack_into, LEDGER_UNIT.pack
    while at < stop and not data[at]:  # a blank begins with 0xFF
        size = size_of(data, at + HEAD)[0] if stop - at >= smallest else 0
        if not RECORD_MIN <= size <= stop - at - HEAD:
            raise ValueError(f"no record stands behind the head at byte {at} of {stop}")
        put_head(filled, at, LEDGER_MAGIC, size + HEAD, index, term, pos + at, 0, 0, 0, size)
        units += unit(LEDGER_MAGIC, pos + at, size + HEAD, index, term)
        at += HEAD + size
        index += 1
    return bytes(filled), bytes(units)


fill = fill_heads if native is None else native.fill_heads
