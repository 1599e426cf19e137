"""The files of a store directory as checks and rebuilds read them: log pieces, queue entries, index entries. Nothing is written.

A piece is a range of one log file. Whoever reads one takes the records that begin in it, so pieces can be cut anywhere: a record
carries its own offset, and so its beginning is found without knowing the one before it (`derive.next_record`). That a piece
began where the one before it ended is checked afterwards (`misfits`).
"""

from __future__ import annotations

import bisect
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from roquet.errors import Damaged
from roquet.settings import BrokerSettings, delay_levels_ms
from roquet.store import derive, queue
from roquet.store.deletions import DELETED, decode
from roquet.store.disk import ReadOnlyDisk
from roquet.store.documents import Document
from roquet.store.ledger_files import ledger_home
from roquet.store.scan import parse
from roquet.store.segments import file_name
from roquet.wire.columns import ENTRIES, INDEX_ENTRIES
from roquet.wire.layout import BLANK, BLANK_MAGIC, INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, MAGICS
from roquet.wire.names import is_system_topic

PIECE = 32 << 20
"""Bytes of log of one task: about a quarter of a second of work."""
MARGIN = 8 << 20
"""Read behind a piece, for the record that begins in it and ends behind it. A longer one is read when it is met."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a store directory is like; small, because every task gets it."""

    root: str
    log: str
    bases: tuple[int, ...]
    """Where the log's files begin."""
    segment: int
    """Bytes of a log file, of a queue file; slots and entries of an index file."""
    queue_file: int
    slots: int
    entries: int
    delays_ms: tuple[int, ...]
    finished: bool
    """Its broker stopped cleanly. Else it runs or was killed, and derived files may lag behind the log."""
    topics: frozenset[str] | None
    """Those of config/topics.json; None when nobody knows."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Topic -> where the log ended when it was deleted: what it may have been made again with stands behind that."""

    @property
    def start(self) -> int:
        return self.bases[0] if self.bases else 0

    @property
    def gaps(self) -> list[int]:
        """Where log files are missing in the row."""
        return [one + self.segment for one, after in pairwise(self.bases) if one + self.segment != after]

    def is_deleted(self, topic: str) -> bool:
        """Its records stay in the log until their file goes, and nothing leads to them."""
        return self.topics is not None and topic not in self.topics and not is_system_topic(topic)


def layout_of(store: str, settings: BrokerSettings | None = None) -> Layout:
    """Sizes are those of the files that are there; where there is none, those of the settings. Raises Damaged with what to do."""
    settings = settings or BrokerSettings()
    root = os.path.abspath(store)
    if home := ledger_home(ReadOnlyDisk(), root):
        raise Damaged(f"{home} holds the log of a DLedger group's member: the broker checks and mends it when it starts, this does not")
    log = settings.store_path_commit_log or f"{root}/commitlog"
    names = _rows(log)
    if not os.path.isdir(log):
        raise Damaged(f"{store} holds no commitlog directory; name the store's directory (storePathRootDir), which has one in it")
    sizes = {os.path.getsize(f"{log}/{name}") for name in names} - {0}
    if len(sizes) > 1:
        found = ", ".join(map(str, sorted(sizes)))
        raise Damaged(f"the files in {log} have {found} bytes; they must all be as long as mappedFileSizeCommitLog: restore the others")
    slots, entries = _index_shape(f"{root}/index", settings)
    return Layout(
        root,
        log,
        tuple(int(name) for name in names if os.path.getsize(f"{log}/{name}")),
        sizes.pop() if sizes else settings.mapped_file_size_commit_log,
        _queue_size(f"{root}/consumequeue") or settings.mapped_file_size_consume_queue,
        slots,
        entries,
        tuple(delay_levels_ms(settings.message_delay_level)),
        not os.path.exists(f"{root}/abort"),
        _topics(Path(root, "config")),
        {topic: one.log_offset for topic, one in (Document(ReadOnlyDisk(), f"{root}/config/{DELETED}").load(decode) or {}).items()},
    )


def _rows(directory: str) -> list[str]:
    """The names of a row of files."""
    return sorted(name for name in os.listdir(directory) if len(name) == 20 and name.isdigit()) if os.path.isdir(directory) else []


def _queue_size(directory: str) -> int:
    for topic, queue_id in queues_in(directory):
        for name in _rows(f"{directory}/{topic}/{queue_id}"):
            size = os.path.getsize(f"{directory}/{topic}/{queue_id}/{name}")
            if size and size % queue.ENTRY_SIZE == 0:
                return size
    return 0


def _index_shape(directory: str, settings: BrokerSettings) -> tuple[int, int]:
    """A file does not say how many slots it has. The settings do, else four entries a slot, which nobody changes alone."""
    slots, entries = settings.max_hash_slot_num, settings.max_index_num
    for name in index_names(directory):
        size = os.path.getsize(f"{directory}/{name}")
        if size and size != INDEX_HEADER.size + slots * INDEX_SLOT + entries * INDEX_ENTRY.size:
            unit = INDEX_SLOT + 4 * INDEX_ENTRY.size
            if (size - INDEX_HEADER.size) % unit:
                raise Damaged(
                    f"{directory}/{name} has {size} bytes, which {slots} slots and {entries} entries do not make: "
                    "give the broker's configuration (--config), with its maxHashSlotNum and maxIndexNum"
                )
            slots = (size - INDEX_HEADER.size) // unit
            return slots, 4 * slots
    return slots, entries


def _topics(config: Path) -> frozenset[str] | None:
    for name in ("topics.json", "topics.json.bak"):
        try:
            return frozenset(orjson.loads((config / name).read_bytes())["topicConfigTable"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


# The log


class Piece(NamedTuple):
    """Records that begin in [start, stop), log offsets, of the file that begins at `base`. `exact`: a record begins at start."""

    base: int
    start: int
    stop: int
    exact: bool


def pieces_of(layout: Layout, size: int = PIECE) -> list[Piece]:
    return [
        Piece(base, at, min(at + size, base + layout.segment), at == base)
        for base in layout.bases
        for at in range(base, base + layout.segment, size)
    ]


@dataclass(slots=True)
class Scan:
    """What stands in a piece. Ends and gaps are log offsets."""

    piece: Piece
    records: derive.RecordColumns
    bad: list[tuple[int, str]]
    """(offset, why): what looks like a record and is none."""
    gaps: list[tuple[int, int]]
    """Between two runs of records, bytes that are none."""
    first: int
    """Where the first record begins, -1: there is none."""
    end: int
    """Where the last one ends; without one, where the piece starts. Behind the piece when a record reaches out of it."""
    after: str
    """What stands there: "record" (the next piece goes on), "blank", "zeros", "damage"."""

    @property
    def bytes(self) -> int:
        return max(0, self.end - max(self.first, 0)) if self.first >= 0 else 0


def scan(layout: Layout, piece: Piece, *, check_crc: bool = True) -> Scan:
    segment_end = piece.base + layout.segment
    with open(f"{layout.log}/{file_name(piece.base)}", "rb") as file:
        if _is_hole(file.fileno(), piece.start - piece.base, piece.stop - piece.base):
            return Scan(piece, derive.read(b"", piece.start, [])[0], [], [], -1, piece.start, "zeros")
        file.seek(piece.start - piece.base)
        data = file.read(max(0, min(piece.stop + MARGIN, segment_end) - piece.start))
        stop, base = piece.stop - piece.start, piece.start
        starts: list[int] = []
        gaps: list[tuple[int, int]] = []
        at = 0 if piece.exact else derive.next_record(data, 0, base)
        after = "record"
        if not piece.exact and not 0 <= at < stop:
            at, after = 0, _zeros_or_damage(data, 0, stop)
        while after == "record":
            found, at = derive.walk(data, at, stop)
            starts += found
            if at >= stop:
                break
            after, longer = _after(data, at, base, stop, segment_end)
            if longer:
                size = len(data)
                data += file.read(longer)
                after = "record" if len(data) > size else "damage"
            if after == "damage":
                while starts and parse(data[starts[-1] : at], base + starts[-1]) is None:
                    at = starts.pop()  # its size is what led us astray
                behind = derive.next_record(data, at + 1, base)
                if 0 <= behind < stop:
                    gaps.append((base + at, base + behind))
                    at, after = behind, "record"
    records, bad = derive.read(data, base, starts, check_crc=check_crc)
    first = base + starts[0] if starts else -1
    return Scan(piece, records, [(base + place, why) for place, why in bad], gaps, first, base + at, after)


def _after(data: bytes, at: int, base: int, stop: int, segment_end: int) -> tuple[str, int]:
    """What stands where no record begins, and how many bytes more are needed when one does that is longer than the data."""
    left = segment_end - base - at
    if len(data) - at >= BLANK.size:
        size, magic = BLANK.unpack_from(data, at)
        if magic == BLANK_MAGIC and size == left:
            return "blank", 0
        if data[at + 4 : at + 8] in MAGICS and len(data) - at < size <= left:
            return "record", at + size - len(data)
    return _zeros_or_damage(data, at, stop), 0


def _zeros_or_damage(data: bytes, at: int, stop: int) -> str:
    return "zeros" if data.startswith(bytes(min(stop, len(data)) - at), at) else "damage"


def _is_hole(descriptor: int, start: int, stop: int) -> bool:
    """Nothing was ever written there: the empty end of a file that has its full length from the beginning."""
    if start >= stop:
        return False
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA) >= stop
    except OSError as error:
        return error.errno == errno.ENXIO  # only a hole up to the end; else the file system cannot tell


def misfits(scans: Sequence[Any]) -> list[Piece]:
    """Pieces that did not begin where the one before them ended; to be read again from there. Takes Scans or what has their ends."""
    return [
        one.piece._replace(start=before.end, exact=True)
        for before, one in pairwise(scans)
        # Only a piece that ended in records knows where the next one begins, and only in its own file.
        if before.piece.base == one.piece.base
        and before.after == "record"
        and one.first != before.end
        and not (one.piece.exact and one.piece.start == before.end)
    ]


# Queues and index


def queues_in(directory: str) -> list[tuple[str, int]]:
    if not os.path.isdir(directory):
        return []
    return sorted(
        (topic, int(name))
        for topic in os.listdir(directory)
        if os.path.isdir(f"{directory}/{topic}")
        for name in os.listdir(f"{directory}/{topic}")
        if name.isdigit()
    )


class QueueFiles:
    """The entries of one queue, mapped."""

    def __init__(self, directory: str, topic: str, queue_id: int, size: int) -> None:
        self.path = f"{directory}/{topic}/{queue_id}"
        self.count = size // queue.ENTRY_SIZE
        self.size = size
        self.odd = [name for name in _rows(self.path) if os.path.getsize(f"{self.path}/{name}") != size]
        self.bases = [int(name) // queue.ENTRY_SIZE for name in _rows(self.path) if name not in self.odd]
        """Offsets in entries."""
        self._maps: dict[int, npt.NDArray[Any]] = {}
        self.first = self.bases[0] if self.bases else 0
        self.next = self.bases[-1] + _filled(self.entries(self.bases[-1])) if self.bases else 0

    def entries(self, base: int) -> npt.NDArray[Any]:
        found = self._maps.get(base)
        if found is None:
            path = f"{self.path}/{file_name(base * queue.ENTRY_SIZE)}"
            found = self._maps[base] = np.memmap(path, dtype=ENTRIES, mode="r", shape=(self.count,))
        return found

    def at(self, offsets: derive.Longs) -> npt.NDArray[Any]:
        """The entries with these offsets; zeros where there is none."""
        found = np.zeros(len(offsets), dtype=ENTRIES)
        bases = offsets - offsets % self.count
        for base in np.unique(bases).tolist():
            if base in self.bases:
                chosen = bases == base
                found[chosen] = self.entries(base)[offsets[chosen] - base]
        return found

    @property
    def last_position(self) -> int:
        """Of the newest entry's record, -1 without entries."""
        return int(self.entries(self.bases[-1])["offset"][self.next - 1 - self.bases[-1]]) if self.next > self.first else -1


def _filled(entries: npt.NDArray[Any]) -> int:
    """How many entries are written: behind them the file is zeros."""
    written = np.flatnonzero(entries["size"] != 0)
    return int(written[-1]) + 1 if len(written) else 0


def index_names(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.isdigit()) if os.path.isdir(directory) else []


@dataclass(slots=True)
class IndexTable:
    """One index file, mapped. `number` is that of the next entry."""

    name: str
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    number: int
    slots: npt.NDArray[Any] = field(repr=False)
    entries: npt.NDArray[Any] = field(repr=False)

    def between(self, start: int, stop: int) -> tuple[int, int]:
        """The numbers of the entries whose records lie there: offsets rise along a file."""
        numbers = range(1, self.number)
        low = bisect.bisect_left(numbers, start, key=lambda number: int(self.entries["offset"][number]))
        high = bisect.bisect_left(numbers, stop, key=lambda number: int(self.entries["offset"][number]))
        return low + 1, high + 1


def index_tables(layout: Layout, directory: str | None = None) -> list[IndexTable]:
    """Files of another length are left out; `checks.index_file` reports them."""
    directory = directory or f"{layout.root}/index"
    size = INDEX_HEADER.size + layout.slots * INDEX_SLOT + layout.entries * INDEX_ENTRY.size
    found = []
    for name in index_names(directory):
        if os.path.getsize(f"{directory}/{name}") == size:
            raw = np.memmap(f"{directory}/{name}", dtype=np.uint8, mode="r")
            header = INDEX_HEADER.unpack(raw[: INDEX_HEADER.size].tobytes())
            at = INDEX_HEADER.size + layout.slots * INDEX_SLOT
            slots = raw[INDEX_HEADER.size : at].view(">i4")
            number = max(1, min(header[5], layout.entries))
            begin_ms, end_ms, begin, end, used, _ = header
            found.append(IndexTable(name, begin_ms, end_ms, begin, end, used, number, slots, raw[at:].view(INDEX_ENTRIES)))
    return found
