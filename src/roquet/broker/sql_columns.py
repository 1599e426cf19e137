"""SQL filters over many records at once: properties that an expression names become columns, and each row of them that is new is judged.

One message after another is the careful way (`Puller._judge`). Both decide the same, and a test holds that: whatever is unusual (blanks,
damage, a first record that is not in memory, long hosts, empty values) goes there.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, TypeAlias

from roquet.broker.gather import Gathered, View, fitting
from roquet.broker.scans import bounded, check, spans
from roquet.routing.sql92 import Filter
from roquet.speedups import native
from roquet.store.disk import Cold
from roquet.store.log import Log
from roquet.store.mending import Odd
from roquet.store.texts import Texts
from roquet.wire.arrays import np
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import BODY_AT, HOSTS_V6, MAGIC_V1, RECORD_MIN, SYS_FLAG_AT

if TYPE_CHECKING:
    import numpy.typing as npt

MANY = 24
"""Records from which on columns cost less."""
NAMES_MAX = 8
SEPARATOR = b"\x02"

Longs: TypeAlias = "npt.NDArray[np.int64]"


def judge_at_once(
    log: Log, raw: bytes, filter: Filter, number: int, count_max: int, size_max: int, record_max: int, view: View
) -> Gathered | None:
    """`raw`: queue entries, the first of which has this number. Up to so many records and bytes, the first whatever its size.

    None: look at one entry after another."""
    entries = np.frombuffer(raw, ENTRIES)
    if len(entries) < MANY or len(filter.names) > NAMES_MAX:
        return None
    places, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    if places[0] < log.start or places[-1] > log.written or sizes.min() < RECORD_MIN or sizes.max() > record_max:
        return None
    if (places[1:] - sizes[:-1] < places[:-1]).any():  # they overlap, or do not rise
        return None
    chosen: list[int] = []
    records: list[bytes] = []
    count_max = max(1, count_max)
    decisions, names = Decisions(filter), tuple([name.encode() for name in filter.names])
    at = size = 0
    try:
        for span in bounded(spans(places, sizes, log.segments.size)):
            data = view(span.start, span.length)
            rows = rows_at_once(data, places[at : span.stop] - span.start, sizes[at : span.stop], number + at, names)
            if rows is None:
                break
            found = list(compress(range(at, span.stop), map(decisions.__getitem__, rows)))
            chosen += found
            taken = found[: count_max - len(records)]
            begins = (places[taken] - span.start).tolist()
            records += [bytes(data[begin : begin + length]) for begin, length in zip(begins, sizes[taken].tolist(), strict=True)]
            at, size = span.stop, size + int(sizes[found].sum())
            if len(chosen) >= count_max or size > size_max:
                break
    except (Cold, LookupError):
        pass  # what was judged stays judged; the next pull goes on where this one ended
    if not chosen:
        return (b"", 0, at) if at else None
    wanted = sizes[chosen].tolist()
    count = min(count_max, fitting(wanted, size_max))
    if count < len(chosen):
        at = chosen[count]
    if count == count_max:
        at = chosen[count - 1] + 1
    return b"".join(records[:count]), count, at


def property_rows(data: memoryview, begins: Longs, sizes: Longs, number: int, names: tuple[bytes, ...]) -> list[bytes] | None:
    """The values of these properties in each of the records that begin there, which have numbers from this one on: joined with what
    separates properties, and nothing for one that is not there. Of two properties with one name the last counts that is not empty.
    None: a record is not what its entry says, or is unusual."""
    try:
        check(data, begins, sizes, np.arange(number, number + len(begins)))
    except Odd:
        return None
    stops = begins + sizes
    places = property_places(data, begins, stops)
    if places is None:
        return None
    texts = Texts.of([data[place:stop] for place, stop in zip(places.tolist(), stops.tolist(), strict=True)])
    columns: list[list[bytes]] = []
    for name in names:
        owners, starts, ends = texts.values(name)
        if (starts >= ends).any():
            return None  # an empty one does not count, and an earlier one might
        raw = texts.raw
        cells = [raw[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        if len(cells) < len(begins):
            some, has = iter(cells), np.zeros(len(begins), np.bool_)
            has[owners] = True
            cells = [next(some) if one else b"" for one in has.tolist()]
        columns.append(cells)
    return list(map(SEPARATOR.join, zip(*columns, strict=True))) if names else [b""] * len(begins)


rows_at_once = property_rows if native is None else native.property_rows


def property_places(data: memoryview, starts: Longs, stops: Longs) -> Longs | None:
    """Where the properties begin of the records that begin and end there. None: one of them is unusual."""
    octets = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) - 3,), ">u4", data, 0, (1,))
    if (octets[starts + (SYS_FLAG_AT + 3)] & HOSTS_V6).any() or (octets[starts + 7] != MAGIC_V1 & 0xFF).any():
        return None
    topics = starts + BODY_AT + words[starts + (BODY_AT - 4)].astype(np.int64)
    if (topics >= stops).any():
        return None
    places: Longs = topics + 3 + octets[topics]
    return None if (places > stops).any() else places


class Decisions(dict[bytes, bool]):
    """Those of a filter so far, by the values that it saw: most messages have the same few."""

    def __init__(self, filter: Filter) -> None:
        self._filter = filter

    def __missing__(self, row: bytes) -> bool:
        values = [value or None for value in row.split(SEPARATOR)]
        self[row] = found = self._filter.decides(values)
        return found
