"""SQL filters over many records at once: properties that an expression names become columns, and each row of them that is new is judged.

One message after another is the careful way (`Puller._judge`). Both decide the same, and a test holds that: whatever is unusual (blanks,
damage, a first record that is not in memory, long hosts, empty values) goes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from roquet.broker.gather import Gathered, View
from roquet.broker.scans import GAP_MAX, Span, bounded, check, spans
from roquet.routing.sql92 import Filter
from roquet.speedups import native
from roquet.store.disk import Cold
from roquet.store.log import Log
from roquet.store.mending import Odd
from roquet.store.stretches import STRETCH
from roquet.store.texts import Texts
from roquet.wire.arrays import np
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import BODY_AT, ENTRY, HOSTS_V6, MAGIC_V1, RECORD_MIN, SYS_FLAG_AT

if TYPE_CHECKING:
    import numpy.typing as npt

MANY = 24
"""Records from which on columns cost less."""
FIRST = 128
"""Records that are judged at first: where most of them match, they are an answer."""
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
    records: list[bytes] = []
    decisions, names = Decisions(filter), tuple([name.encode() for name in filter.names])
    at = size = 0
    try:
        for span in bounded(reads(places, sizes, log.segments.size)):
            data = view(span.start, span.length)
            found = matching_at_once(raw[at * ENTRY.size : span.stop * ENTRY.size], data, span.start, number + at, names, decisions)
            if found is None:
                break
            for one in found:
                begin, length = int(places[at + one]) - span.start, int(sizes[at + one])
                size += length
                if records and size > size_max:
                    return b"".join(records), len(records), at + one
                records.append(bytes(data[begin : begin + length]))
                if len(records) >= count_max:
                    return b"".join(records), len(records), at + one + 1
            at = span.stop
    except (Cold, LookupError):
        pass  # what was judged stays judged; the next pull goes on where this one ended
    return (b"".join(records), len(records), at) if at else None


def reads(places: Longs, sizes: Longs, file_size: int) -> Iterator[Span]:
    """What to read together. Where records stand near each other, as many as begin in one of the log's stretches, which are kept."""
    first, last = int(places[0]), int(places[-1])
    if file_size % STRETCH or last - first > len(places) * GAP_MAX:
        yield from spans(places, sizes, file_size)
        return
    cuts = places.searchsorted(np.arange(first // STRETCH + 1, last // STRETCH + 1) * STRETCH).tolist()
    for at, stop in pairwise(sorted({0, min(FIRST, len(places)), *cuts, len(places)})):
        start, end = int(places[at]), int(places[stop - 1] + sizes[stop - 1])
        yield Span(stop, start, end - start, end - start)


def matching(
    raw: bytes, data: memoryview, start: int, number: int, names: tuple[bytes, ...], decisions: Mapping[bytes, bool]
) -> list[int] | None:
    """Which of these entries have records that are taken, by what `decisions` has for a row of the values of these properties. The first
    has this number in its queue, `data` is the log from `start` on. None: a record is not what its entry says, or is unusual."""
    entries = np.frombuffer(raw, ENTRIES)
    places, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    if (sizes < RECORD_MIN).any() or (places < start).any() or (places - start > len(data) - sizes).any():
        return None
    rows = property_rows(data, places - start, sizes, number, names)
    return None if rows is None else [one for one, row in enumerate(rows) if decisions[row]]


matching_at_once = matching if native is None else native.matching


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
