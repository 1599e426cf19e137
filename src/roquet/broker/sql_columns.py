"""SQL filters over many records at once: properties that an expression names become columns, and each row of them that is new is judged.

Most messages of a topic have the same properties, with values of the same lengths: these are judged by their bytes (`Layout`), and only the
others are taken apart (`property_rows`).

One message after another is the careful way (`Puller._judge`). Both decide the same, and a test holds that: whatever is unusual (blanks,
damage, a first record that is not in memory, long hosts, empty values) goes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from roquet.broker.gather import Gathered, View
from roquet.broker.scans import GAP_MAX, Span, bounded, cut, spans
from roquet.routing.sql92 import Filter
from roquet.speedups import native
from roquet.store.disk import Cold
from roquet.store.log import Log
from roquet.store.stretches import STRETCH
from roquet.store.texts import Texts
from roquet.wire.arrays import layout, np
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import BODY_AT, HOSTS_V6, MAGIC_AT, MAGIC_V1, QUEUE_OFFSET_AT, RECORD_MIN, SYS_FLAG_AT

if TYPE_CHECKING:
    import numpy.typing as npt

MANY = 24
"""Records from which on columns cost less."""
FIRST = 128
"""Records that are judged at first: where most of them match, they are an answer."""
NAMES_MAX = 8
SEPARATOR = b"\x02"
COPIED_MAX = 512 * 1024
"""Bytes of records that are copied to be judged together."""
ALIKE_MIN = 64
"""Records whose properties have one length from which on it costs less to compare their bytes than to take them apart."""
TEXT_MAX = 1_024
"""Bytes of the longest properties that are compared byte by byte."""
FRONT = layout(
    {
        "names": ["size", "magic", "number", "hosts", "body_size"],
        "formats": [">i4", ">u4", ">i8", "u1", ">u4"],
        "offsets": [0, MAGIC_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT + 3, BODY_AT - 4],
        "itemsize": BODY_AT,
    }
)
FRONT_BYTES = f"V{BODY_AT}"

Entries: TypeAlias = "npt.NDArray[np.void]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"
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
    at = size = 0
    try:
        for part in judged(entries, number, filter, count_max, log.segments.size, view):
            for one in part.taken:
                begin, length = int(part.begins[one]), int(sizes[at + one])
                size += length
                if records and size > size_max:
                    return b"".join(records), len(records), at + one
                records.append(bytes(part.data[begin : begin + length]))
                if len(records) >= count_max:
                    return b"".join(records), len(records), at + one + 1
            at += len(part.begins)
    except (Cold, LookupError):
        pass  # what was judged stays judged; the next pull goes on where this one ended
    return (b"".join(records), len(records), at) if at else None


class Part(NamedTuple):
    """Entries that follow each other and were judged."""

    data: memoryview
    """Has their records."""
    begins: Longs
    """Where each of them does there."""
    taken: list[int]
    """Which of them are."""


def judged(entries: Entries, number: int, filter: Filter, count_max: int, file_size: int, view: View) -> Iterator[Part]:
    """These entries part by part, up to the first part with a record that is not what its entry says, or is unusual."""
    places, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    decisions, names = Decisions(filter), tuple([name.encode() for name in filter.names])
    at, parts = 0, list(bounded(reads(places, sizes, file_size)))
    for part in parts:
        data = view(part.start, part.length)
        taken = matching_at_once(entries[at : part.stop].tobytes(), data, part.start, number + at, names, decisions)
        if taken is None:
            return
        yield Part(data, places[at : part.stop] - part.start, taken)
        few = len(taken) * len(entries) < count_max * part.stop  # so the answer will hardly be full before all are judged
        if not at and few and len(parts) > 2 and matching_at_once is matching:
            rest = copied(entries[: parts[-1].stop], parts, view)
            taken = rest and matching(*rest, 0, number + part.stop, names, decisions)
            if rest is not None and taken is not None:
                yield Part(rest[1], np.frombuffer(rest[0], ENTRIES)["offset"], taken)
                return
        at = part.stop


def copied(entries: Entries, parts: list[Span], view: View) -> tuple[bytes, memoryview] | None:
    """The entries of all parts but the first, as if their records stood one after another from 0 on; and these: what numpy does costs most
    of all for each call. None: they are long, or not all in memory."""
    rest = entries[parts[0].stop :].copy()
    places, sizes = rest["offset"].astype(np.int64), rest["size"].astype(np.int64)
    ends = sizes.cumsum()
    if ends[-1] > COPIED_MAX:
        return None
    at, pieces = 0, []
    try:
        for part in parts[1:]:
            stop = part.stop - parts[0].stop
            pieces.append(cut(view(part.start, part.length), places[at:stop] - part.start, sizes[at:stop]))
            at = stop
    except (Cold, LookupError):
        return None
    rest["offset"] = ends - sizes
    return rest.tobytes(), memoryview(b"".join(pieces))


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
    if not len(entries):
        return []
    places, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    if (sizes < RECORD_MIN).any() or (places < start).any() or (places - start > len(data) - sizes).any():
        return None
    texts = property_texts(data, places - start, sizes, number)
    if texts is None:
        return None
    starts, stops = texts
    left: Longs = np.arange(len(starts))
    taken: list[int] = []
    while np.count_nonzero(stops - starts == stops[:1] - starts[:1]) >= ALIKE_MIN:  # as long as the first of those that are left
        first = Layout.of(bytes(data[starts[0] : stops[0]]), names)
        if first is None:
            break
        alike, found = first.judge(data, starts, stops, decisions)
        taken += left[found].tolist()
        others = ~alike
        left, starts, stops = left[others], starts[others], stops[others]
        if len(alike) - len(left) < ALIKE_MIN:
            break
    if len(left):
        rows = property_rows(data, starts, stops, names)
        if rows is None:
            return None
        taken += [one for one, row in zip(left.tolist(), rows, strict=True) if decisions[row]]
    return sorted(taken)


matching_at_once = matching if native is None else native.matching


def property_texts(data: memoryview, begins: Longs, sizes: Longs, number: int) -> tuple[Longs, Longs] | None:
    """Where the properties start and stop of the records that begin there, which have these sizes and numbers from this one on.
    None: a record is not what its entry says, or is unusual."""
    fronts = np.ndarray((len(data) - BODY_AT + 1,), FRONT_BYTES, data, 0, (1,))[begins].view(FRONT)
    if (
        (fronts["size"] != sizes).any()
        or (fronts["magic"] != MAGIC_V1).any()
        or (fronts["number"] != np.arange(number, number + len(begins))).any()
        or (fronts["hosts"] & HOSTS_V6).any()
    ):
        return None
    stops = begins + sizes
    topics = begins + BODY_AT + fronts["body_size"]
    if (topics >= stops).any():
        return None
    starts: Longs = topics + 3 + np.frombuffer(data, np.uint8)[topics]
    return None if (starts > stops).any() else (starts, stops)


class Layout:
    """How the properties of one record stand in their bytes. Those of another are laid out alike if they have the same names and separators
    in the same places, and no separators beside these: then each of its values stands where that of the first does.

    `_pattern` has the names and separators, and separators in place of values; `_fixed` tells of each byte that it is no value; `_columns`
    are the places of the values that are wanted, and `_sizes` has how many of them each name has."""

    __slots__ = ("_columns", "_fixed", "_pattern", "_sizes")

    def __init__(self, pattern: bytes, fixed: bytes, values: list[range]) -> None:
        self._pattern = np.frombuffer(pattern, np.uint8)
        self._fixed = np.frombuffer(fixed, np.bool_)
        self._columns = np.array([place for value in values for place in value], np.int64)
        self._sizes = [len(value) for value in values]

    @classmethod
    def of(cls, text: bytes, names: tuple[bytes, ...]) -> Layout | None:
        """Of these properties, of which those with these names are wanted. None: look in another way."""
        if not 0 < len(text) <= TEXT_MAX:
            return None
        pattern: list[bytes] = []
        fixed: list[bytes] = []
        places: dict[bytes, range] = {}
        at = 0
        for entry in text.split(SEPARATOR):
            name, mark, value = entry.partition(b"\x01")
            front = name + mark
            if mark:
                places[name] = range(at + len(front), at + len(entry))  # of two with one name the last
            pattern.append(front + SEPARATOR * len(value))
            fixed.append(b"\1" * len(front) + b"\0" * len(value))
            at += len(entry) + 1
        if any(name in places and not places[name] for name in names):
            return None  # an empty one does not count, and an earlier one might
        return cls(SEPARATOR.join(pattern), b"\1".join(fixed), [places.get(name, range(0)) for name in names])

    def judge(self, data: memoryview, starts: Longs, stops: Longs, decisions: Mapping[bytes, bool]) -> tuple[Bools, Bools]:
        """Which of the properties that start and stop there are laid out like this, as the first are; and which of these are taken."""
        size = len(self._pattern)
        everywhere = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
        texts = everywhere[np.minimum(starts, len(data) - size)].view(np.uint8).reshape(-1, size)  # those of other sizes are not looked at
        alike = (stops - starts == size) & ~((texts == self._pattern) != self._fixed).any(axis=1)
        cells = texts[:, self._columns]
        differs = (cells != cells[0]).any(axis=1)
        taken = alike & ~differs if decisions[self._row(cells[0].tobytes())] else np.zeros(len(alike), np.bool_)
        others = np.flatnonzero(alike & differs)
        if len(others):
            joined, width = cells[others].tobytes(), len(self._columns)
            values = [joined[at : at + width] for at in range(0, len(joined), width)]
            judged = {value: decisions[self._row(value)] for value in set(values)}
            taken[others] = [judged[value] for value in values]
        return alike, taken

    def _row(self, values: bytes) -> bytes:
        """As `property_rows` has it, of values that stand one after another."""
        stops = accumulate(self._sizes)
        return SEPARATOR.join([values[stop - size : stop] for stop, size in zip(stops, self._sizes, strict=True)])


def property_rows(data: memoryview, starts: Longs, stops: Longs, names: tuple[bytes, ...]) -> list[bytes] | None:
    """The values of these properties in each of the texts that start and stop there: joined with what separates properties, and nothing
    for one that is not there. Of two properties with one name the last counts that is not empty. None: look at one after another."""
    texts = Texts.of([data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])
    columns: list[list[bytes]] = []
    for name in names:
        owners, begins, ends = texts.values(name)
        if (begins >= ends).any():
            return None  # an empty one does not count, and an earlier one might
        raw = texts.raw
        cells = [raw[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        if len(cells) < len(starts):
            some, has = iter(cells), np.zeros(len(starts), np.bool_)
            has[owners] = True
            cells = [next(some) if one else b"" for one in has.tolist()]
        columns.append(cells)
    return list(map(SEPARATOR.join, zip(*columns, strict=True))) if names else [b""] * len(starts)


class Decisions(dict[bytes, bool]):
    """Those of a filter so far, by the values that it saw: most messages have the same few."""

    def __init__(self, filter: Filter) -> None:
        self._filter = filter

    def __missing__(self, row: bytes) -> bool:
        values = [value or None for value in row.split(SEPARATOR)]
        self[row] = found = self._filter.decides(values)
        return found
