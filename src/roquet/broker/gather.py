"""What an ordinary pull gets, for the price of an answer and not of each message in it; `pull_answer` makes it a whole frame.

`gather` takes queue entries that are all as they should be, and records that are all in memory: one read of the log where they stand
near each other, one join. Anything else it leaves to the careful way (`Puller._pick`), which looks at one entry after another, and which
it must equal in all that it answers itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from operator import add, eq, le, sub

from roquet.broker.tag_columns import tagged
from roquet.speedups import native
from roquet.wire.layout import ENTRY, MAGIC_V1, QUEUE_OFFSET_AT, RECORD_FRONT, RECORD_MIN
from roquet.wire.pulled import found_front

FOREIGN_MAX = 128 * 1024
"""Bytes of other queues' messages that one read of the log takes along, rather than making several."""
GAP_MAX = 16 * 1024
"""The same between two records, where that is too much for all of them together."""
SPAN_MAX = 512 * 1024
"""Of one read."""
COMPILED_CODES_MAX = 64
"""Tag hashes up to which the compiled one looks faster: one after another."""
ENTRIES_MAX = 1_024
"""With more of them, which only a changed setting brings, the careful way is as good."""

FEW, ALIKE_MAX = 7, 64
"""Records of one size are compared with their entries at once, if they are more than seven and not more than 64."""
SIZE_AND_MAGIC = struct.Struct(">iI")
"""As a record begins."""

PLACE_MAX = (1 << 63) - 1

View = Callable[[int, int], memoryview]
"""(log offset, size) -> bytes of one file of the log, until the next call (`LogWindow.view`). Raises Cold and LookupError."""

Gathered = tuple[bytes, int, int]
"""(the records one after another, how many, how many entries were judged)."""

Answer = tuple[bytes, int, int, int]
"""(the frame, how many records are in it, how many entries were judged, bytes of the records)."""

BODY_MAX = 1 << 30
"""Bytes of records that `pull_answer` puts into a frame, whose length must fit into 32 bits."""


@lru_cache(maxsize=64)
def places_and_sizes(count: int) -> struct.Struct:
    """Of so many entries, at once."""
    return struct.Struct(">" + "qi8x" * count)


def gather(
    raw: bytes, codes: bytes | None, number: int, count_max: int, size_max: int, start: int, end: int, record_max: int,
    view: View, span_max: int = SPAN_MAX,
) -> Gathered | None:  # fmt: skip
    """`raw`: whole entries, the first of which has this number in its queue; `codes`: tag hashes that are wanted, four
    bytes each as entries end with them, None for all.

    Up to so many messages and bytes of records, the first whatever its size. The log begins at `start` and is written up to `end`;
    `view` shows it, up to `span_max` bytes at once. Raises what that raises.
    None: something is unusual, so look at one entry after another.
    """
    judged = len(raw) // ENTRY.size
    places: Sequence[int]
    sizes: Sequence[int]
    numbers: Sequence[int]
    if codes is None:
        if not 0 < judged <= ENTRIES_MAX:
            return None
        flat = places_and_sizes(judged).unpack_from(raw)
        places, sizes, numbers = flat[::2], flat[1::2], range(number, number + judged)
        least, most = (sizes[0], sizes[0]) if sizes.count(sizes[0]) == judged else (min(sizes), max(sizes))
        if least < RECORD_MIN or most > record_max or places[0] < start or places[-1] + sizes[-1] > PLACE_MAX:
            return None
        in_a_row = least == most and places == tuple(range(places[0], places[0] + judged * most, most))
        if not in_a_row and not all(map(le, map(add, places, sizes), places[1:])):  # they overlap, or do not rise
            return None
        if judged > count_max or sum(sizes) > size_max:
            judged = min(max(1, count_max), fitting(sizes, size_max))
            places, sizes, numbers = places[:judged], sizes[:judged], numbers[:judged]
    else:
        found = tagged(raw, codes, start, end, record_max)
        if found is None:
            return None
        places, sizes, chosen = found
        count = min(max(1, count_max), fitting(sizes, size_max))
        if count < len(chosen):
            judged = chosen[count]
            places, sizes, chosen = places[:count], sizes[:count], chosen[:count]
        if not places:
            return b"", 0, judged
        numbers = [number + one for one in chosen]
    size = sum(sizes)
    if places[-1] + sizes[-1] - places[0] == size <= span_max:  # nothing foreign between them: as they stand
        body = bytes(view(places[0], size))
    else:
        body = b"".join(cut(*runs(places, sizes, size, span_max), size, view, span_max))
    return (body, len(sizes), judged) if are_records(body, sizes, numbers) else None


def runs(places: Sequence[int], sizes: Sequence[int], size: int, span_max: int) -> tuple[Sequence[int], Sequence[int]]:
    """Places and sizes of the same bytes, together `size`, where those that stand one behind the other are one. The same as they are, if
    that would save little, or if so many might be read together that a read of `span_max` bytes ends between two of them."""
    ends = list(map(add, places, sizes))
    begins = [at for at, (end, place) in enumerate(zip(ends, places[1:], strict=False), 1) if end != place]
    if 2 * len(begins) > len(places) or size + GAP_MAX * len(begins) > span_max:
        return places, sizes
    starts = [places[0], *[places[at] for at in begins]]
    return starts, list(map(sub, [*[ends[at - 1] for at in begins], ends[-1]], starts))


def are_records(body: bytes, sizes: Sequence[int], numbers: Sequence[int]) -> bool:
    """Do these bytes begin as records of these sizes and numbers do, each behind the one before it?"""
    count, size = len(sizes), sizes[0]
    if FEW < count <= ALIKE_MAX and sizes.count(size) == count:
        flat = fronts_of(count, size).unpack(body)
        return flat[::2].count(SIZE_AND_MAGIC.pack(size, MAGIC_V1)) == count and flat[1::2] == tuple(numbers)
    fronts = map(RECORD_FRONT.unpack_from, repeat(body), accumulate(sizes[:-1], initial=0))
    return all(map(eq, fronts, zip(sizes, repeat(MAGIC_V1), numbers)))


@lru_cache(maxsize=64)
def fronts_of(count: int, size: int) -> struct.Struct:
    """Of so many records of this size: of each the size and the magic as they stand, and its number."""
    between = QUEUE_OFFSET_AT - SIZE_AND_MAGIC.size
    return struct.Struct(">" + f"{SIZE_AND_MAGIC.size}s{between}xq{size - QUEUE_OFFSET_AT - 8}x" * count)


def pull_answer(
    raw: bytes, codes: bytes | None, number: int, count_max: int, size_max: int, start: int, end: int, record_max: int,
    view: View, span_max: int, binary: bool, opaque: int, first: int, last: int,
) -> Answer | None:  # fmt: skip
    """The answer to a pull with this opaque from a queue with these first and last offsets, with what `gather` finds.
    None: nothing matches, or as there."""
    return framed(
        gather(raw, codes, number, count_max, size_max, start, end, record_max, view, span_max), number, binary, opaque, first, last
    )


def framed(found: Gathered | None, number: int, binary: bool, opaque: int, first: int, last: int) -> Answer | None:
    if found is None or not found[1] or len(found[0]) > BODY_MAX:
        return None
    body, count, judged = found
    return found_front(opaque, number + judged, first, last, len(body), binary=binary) + body, count, judged, len(body)


def gather_for(codes: bytes | None) -> Callable[..., Gathered | None]:
    """`gather`, compiled where it is."""
    return native.gather if native is not None and (codes is None or len(codes) <= 4 * COMPILED_CODES_MAX) else gather


def fitting(sizes: Sequence[int], size_max: int) -> int:
    """How many of these make up so many bytes at most; the first is one of them in any case."""
    for count, size in enumerate(accumulate(sizes)):
        if size > size_max:
            return max(1, count)
    return len(sizes)


def cut(places: Sequence[int], sizes: Sequence[int], size: int, view: View, span_max: int = SPAN_MAX) -> list[bytes | memoryview]:
    """The records of these sizes, together `size`, at these places of the log; views of what the next read overwrites."""
    first = places[0]
    length = places[-1] + sizes[-1] - first
    if length <= span_max and length - size <= FOREIGN_MAX:
        data = view(first, length)
        return [data[place - first : place - first + size] for place, size in zip(places, sizes, strict=True)]
    records: list[bytes | memoryview] = []
    for begin, stop in near_each_other(places, sizes, span_max):
        first = places[begin]
        data = view(first, places[stop - 1] + sizes[stop - 1] - first)
        some = zip(places[begin:stop], sizes[begin:stop], strict=True)
        records += [bytes(data[place - first : place - first + size]) for place, size in some]
    return records


def near_each_other(places: Sequence[int], sizes: Sequence[int], length_max: int) -> Iterator[tuple[int, int]]:
    """Which of them to read together: (the first, behind the last)."""
    begin = 0
    for at, (before, place) in enumerate(pairwise(places)):
        if place - before - sizes[at] > GAP_MAX or place + sizes[at + 1] - places[begin] > length_max:
            yield begin, at + 1
            begin = at + 1
    yield begin, len(places)
