"""Is a slave's log the beginning of its master's? Asked before anything is copied: what went on differently must not be merged in silence.

A log that went on otherwise differs from some place on to its end: every record carries its own offset and time. So it is enough to compare
the last bytes that both have. Where these differ, the first difference is looked for by halves. A crash may also have spoiled something
before a sound end: what it may have touched, and holes, are compared block by block.

`compare` is a generator: it yields what to ask the master for (a `Piece`), is sent what the master has there (`Told`), and returns what
to do. It reads this node's own log through the function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

BLOCK = 64 * 1024
"""Bytes that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A question: what stands in the master's log here?"""

    offset: int
    size: int
    with_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """The answer: where the master's log begins and ends, the size of its files, the checksum of the piece (-1: not all is there). The
    first one has what is doubtful in it."""

    start: int
    end: int
    file_size: int
    checksum: int = -1
    data: bytes = b""
    doubtful: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Own:
    """This node's log: its first offset, its end, the size of its files, and how to read it. A piece is never longer than BLOCK and never
    crosses the end of a file."""

    start: int
    end: int
    file_size: int
    read: Callable[[int, int], bytes]
    doubtful: Sequence[tuple[int, int]] = ()
    """(begin, end) of stretches, in order, that may not be what was once written there."""
    records: Callable[[int, int], Iterable[tuple[int, int]]] = lambda begin, end: ()
    """(offset, size) of the whole records between two offsets."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """The logs agree: copy from this node's end on. `data`: append these bytes of the master's first."""

    master_end: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class BeginAt:
    """This node's log is empty, or all of it is older than the master's: begin anew at this offset."""

    offset: int
    master_end: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class CutBack:
    """The logs agree up to here and not behind; the record that holds this offset is the first that differs."""

    offset: int
    master_end: int


@dataclass(frozen=True, slots=True)
class Refuse:
    why: str


Verdict = GoOn | BeginAt | CutBack | Refuse


def compare(own: Own) -> Generator[Piece, Told, Verdict]:
    master = yield Piece(0, 0)
    if master.file_size != own.file_size:
        return Refuse(
            f"files of the master's log have {master.file_size} bytes, of this slave's {own.file_size}: records would stand elsewhere. Set "
            f"mappedFileSizeCommitLog={master.file_size} here, with an empty store"
        )
    if own.end == own.start:
        return (yield from _begin(master))
    low, high = max(own.start, master.start), min(own.end, master.end)
    if own.end < master.start:
        return (yield from _begin(master))
    if low >= high:
        if own.end == master.start:
            return GoOn(master.end)
        return Refuse(
            f"this slave's log reaches from {own.start} to {own.end}, the master's from {master.start} to {master.end}: they share "
            "nothing. This slave copied another master, or the master lost its store. Empty the store of the one that is wrong"
        )
    last = (yield from _first_doubt(own, master, low, high)) or _block(own, high - 1, low, high)
    if not (yield from _same(own, last)):
        return (yield from _first_difference(own, low, last.offset, high, master))
    return GoOn(master.end) if own.end <= master.end else CutBack(master.end, master.end)


def _begin(master: Told) -> Generator[Piece, Told, Verdict]:
    """From the oldest record on. A report of 0 would mean the master's last file, so a log that begins at 0 is begun with a piece."""
    if master.start or not master.end:
        return BeginAt(master.start, master.end)
    size = min(BLOCK, master.end, master.file_size)
    told = yield Piece(0, size, with_bytes=True)
    if told.checksum < 0 or len(told.data) != size or crc32(told.data) != told.checksum:
        return Refuse("the beginning of the master's log could not be read; it is tried again")
    return BeginAt(0, told.end, told.data)


def _block(own: Own, offset: int, low: int, high: int) -> Piece:
    """The block that holds this offset, as far as both have it. Blocks do not cross files."""
    base = offset - offset % own.file_size
    start = base + (offset - base) // BLOCK * BLOCK
    stop = min(start + BLOCK, base + own.file_size, high)
    start = max(start, low)
    return Piece(start, stop - start)


def _first_doubt(own: Own, master: Told, low: int, high: int) -> Generator[Piece, Told, Piece | None]:
    """The first block of what is doubtful, here or there, that is not the same."""
    at = low
    for begin, end in sorted((*own.doubtful, *master.doubtful)):
        at = max(at, begin)
        while at < min(end, high):
            block = _block(own, at, low, high)
            if not (yield from _same(own, block)):
                return block
            at = block.offset + block.size
    return None


def _same(own: Own, piece: Piece) -> Generator[Piece, Told, bool]:
    told = yield piece
    return told.checksum == crc32(own.read(piece.offset, piece.size))


def _first_difference(own: Own, low: int, last: int, high: int, master: Told) -> Generator[Piece, Told, Verdict]:
    """By halves, then byte by byte: all before `same` is the same, and the block that begins at `other` is not. Where the first record is
    already another one, and a later one is the same, the logs were once one and the beginning was spoiled: all is copied anew."""
    same, other = low, last
    while same < other:
        block = _block(own, (same + other) // 2, low, high)
        if (yield from _same(own, block)):
            same = block.offset + block.size
        else:
            other = block.offset
    block = _block(own, other, low, high)
    told = yield Piece(block.offset, block.size, with_bytes=True)
    here = own.read(block.offset, block.size)
    if len(told.data) != len(here):
        return Refuse("a piece of the master's log could not be read; it is tried again")
    differs = next((number for number, (one, theirs) in enumerate(zip(here, told.data, strict=True)) if one != theirs), len(here))
    if block.offset == own.start:
        whole = [(offset - own.start, offset - own.start + size) for offset, size in own.records(block.offset, block.offset + block.size)]
        is_first = not any(end <= differs for _, end in whole)
        if is_first and any(here[begin:end] == told.data[begin:end] for begin, end in whole if end <= len(here)):
            return (yield from _begin(master))
    return CutBack(block.offset + differs, master.end)
