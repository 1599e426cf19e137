"""Many entries at once: what a leader reads for its followers, and what these check before they write it.

Nothing is decided where anything about them is unusual: then they are looked at one by one (`DiskLedger`). A test holds both to the same
outcome.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from roquet.store.ledger_heads import fill
from roquet.wire.arrays import layout, np
from roquet.wire.layout import LEDGER_HEAD, LEDGER_MAGIC, MAGIC_V1, MAGIC_V2, OFFSET_AT, RECORD_MIN

MANY = 12
"""Fewer are not worth the columns."""
UNITS = layout([("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")])
FRONTS = layout([
    ("magic", ">i4"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8"), ("pos", ">i8"), ("unused", "V12"), ("body_size", ">i4"),
    ("record_size", ">i4"), ("record_magic", ">u4"), ("between", f"V{OFFSET_AT - 8}"), ("record_offset", ">i8"),
])  # fmt: skip
"""An entry's head, and its record up to the offset in it."""
HEAD = LEDGER_HEAD.size
FRONT = HEAD + OFFSET_AT + 8
SMALLEST = HEAD + RECORD_MIN
UNIT_SIZE = struct.Struct(">12xi16x")
RECORD_PLACE = struct.Struct(f">4xI{OFFSET_AT - 8}xq")
"""Magic and offset of a record."""


def units_of_run(data: bytes, index: int, pos: int, term: int) -> bytes | None:
    """The units of the entries in `data`, which is to stand at `pos` and to begin with the entry of this index; all are of one term, which
    is not lower than `term`. Nobody fills in channel and checksums of a head, so heads that are made again are the same bytes.
    None: look at them one by one."""
    if len(data) < FRONT:
        return None
    first_term = LEDGER_HEAD.unpack_from(data)[3]
    try:
        made, units = fill(data, pos, index, first_term)
    except ValueError:
        return None
    if made != data or first_term < max(term, 0):
        return None
    at, place_of = 0, RECORD_PLACE.unpack_from
    for (size,) in UNIT_SIZE.iter_unpack(units):
        magic, offset = place_of(data, at + HEAD)
        if offset != pos + at + HEAD or magic not in (MAGIC_V1, MAGIC_V2):
            return None
        at += size
    return units if at == len(data) else None


def run_behind(units: bytes, first: int, start: int, stop: int, max_bytes: int) -> list[int] | None:
    """Sizes of the entries that stand one behind the other from `stop` on, by what the index says from the entry behind `first` on, which
    begins at `start`. Together they have at most so many bytes. None: look at them one by one."""
    if len(units) < MANY * UNITS.itemsize:
        return None
    columns = np.frombuffer(units, dtype=UNITS, count=len(units) // UNITS.itemsize)
    sizes = columns["size"].astype(np.int64)
    ends = stop + np.cumsum(sizes)
    good = (columns["pos"] == ends - sizes) & (columns["index"] == np.arange(first + 1, first + 1 + len(sizes)))
    good &= (ends - start <= max_bytes) & (sizes >= SMALLEST)
    count = len(good) if bool(good.all()) else int(good.argmin())
    found: list[int] = sizes[:count].tolist()
    return found


def holds_run(data: bytes, sizes: Sequence[int], first: int, start: int) -> bool:
    """Are these entries of these sizes, from this index and place on?"""
    starts = [0, *np.cumsum(sizes[:-1]).tolist()] if len(sizes) > 1 else [0]
    return len(starts) >= MANY and _sound(data, starts, first, start) is not None


def _sound(data: bytes, starts: list[int], index: int, pos: int) -> Any:
    """The fronts of these entries, if each is what DLedger's rules and its place say."""
    begins = np.array(starts, dtype=np.int64)
    rows = np.frombuffer(data, dtype=np.uint8)[begins[:, None] + np.arange(FRONT)]
    fronts = rows.view(FRONTS)[:, 0]
    sizes = np.diff(begins, append=len(data))
    magics = fronts["record_magic"]
    sound = (fronts["magic"] == LEDGER_MAGIC) & (fronts["size"] == sizes) & (fronts["body_size"] == sizes - HEAD) & (fronts["term"] >= 0)
    sound &= (fronts["pos"] == begins + pos) & (fronts["index"] == np.arange(index, index + len(starts)))
    sound &= (fronts["record_size"] == sizes - HEAD) & (fronts["record_offset"] == begins + (pos + HEAD))
    sound &= (magics == MAGIC_V1) | (magics == MAGIC_V2)
    return fronts if bool(sound.all()) else None
