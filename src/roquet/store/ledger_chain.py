"""Opening DLedger's log: which entries there are. Each must follow the one before in index, term and place; the log ends where none does.

Below what is known to be on disk (`sure`) a damaged head is made again from the ledger's own index, or from its neighbours: it is not the
end. Behind that, what a power loss tore is the end, though whole entries follow: another member has what is missing, and a log with a wrong
entry in its middle would differ from all others for ever.

The index is made again from the data where the two differ.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from roquet.errors import Damaged
from roquet.store.ledger_documents import Told
from roquet.store.ledger_index import UNIT, LedgerIndex
from roquet.store.ledger_segments import LedgerSegments
from roquet.store.scan import CHUNK, Found, next_record, read_one
from roquet.wire.layout import HEAD, LEDGER_BLANK, LEDGER_BLANK_MAGIC, LEDGER_HEAD, LEDGER_MAGIC, MAGICS, RECORD_MIN
from roquet.wire.ledger_entry import Head, read_head, unit_of

log = logging.getLogger("roquet.store")

FILES_READ = 3
"""Files that are read after a clean stop when nothing tells where to begin, as upstream does."""
UNITS_TOGETHER = 65_536


class Chain(NamedTuple):
    """What was found: indexes of entries, -1 when there is none, and where they stand."""

    begin: int
    begin_pos: int
    last: int
    last_term: int
    end: int
    committed: int
    committed_end: int
    checked_from: int
    """Here the reading began."""
    lost: str = ""
    """What is missing that was there once; "" when nothing is."""


class ChainReader:
    """One opening. `told`: what the ledger's checkpoint says. `vouched`: below this offset our last run had everything on disk and
    committed. `tidy`: the log was left by a clean stop, so nothing in it is torn."""

    def __init__(self, segments: LedgerSegments, index: LedgerIndex, told: Told, *, vouched: int, tidy: bool, check_crc: bool) -> None:
        self.segments = segments
        self.index = index
        self.anew_at = told.anew_at
        self.tidy = tidy
        self.check_crc = check_crc
        self._told = told.committed
        self._vouched = vouched
        self._window_at = 0
        self._window = b""
        self._units = bytearray()
        self._units_from = 0

    def read(self, *, crashed: bool) -> Chain:
        self._load_index(crashed)
        begin = self._begin()
        if begin is None:
            at = self.segments.divided if self.segments.old.bases else 0
            self.index.begin_anew(0)
            return Chain(-1, at, -1, -1, at, -1, at, at, self._missing(at))
        start = self._start(begin)
        sure = self._vouched
        if start.index == self._told:
            sure = max(sure, start.end)
        chain = self._walk(begin, start, sure)
        self._write_units()
        self.index.cut(chain.last + 1)
        return chain

    def _load_index(self, crashed: bool) -> None:
        try:
            self.index.segments.load(crashed=crashed)
        except Damaged as error:
            log.warning("%s: dropped, the ledger's index is made again from its data", error)
            for name in self.index.segments.files.disk.list(self.index.segments.directory):
                self.index.segments.files.disk.remove(f"{self.index.segments.directory}/{name}")
        # All of it is in files, and none in memory, until the end is found.
        self.index.start_at(1 << 58)

    # Where to begin

    def _begin(self) -> Head | None:
        """The first entry that is held. One that is not the first of all must be known to have lost those before it on purpose: by
        retention, or because the ledger began anew, maybe in the middle of a file."""
        if not self.segments.has_entries:
            return None
        base = self.segments.first_data
        anew_base = self.anew_at - self.anew_at % self.segments.size
        head = self._head_at(self.anew_at if anew_base == base else base)
        if head is not None and (head.index == 0 or head.pos == self.anew_at or self._is_sure(head)):
            return head
        if not self.tidy and base >= self._vouched:
            return None
        place = next_record(self.segments, base + LEDGER_HEAD.size)
        while place is not None:
            head = self._head_at(place - LEDGER_HEAD.size)
            if head is not None:
                return head if self._is_sure(head) else None
            place = next_record(self.segments, place + 1)
        return None

    def _is_sure(self, head: Head) -> bool:
        return self.tidy or head.index <= self._told + 1 or head.pos <= self._vouched

    def _start(self, begin: Head) -> Head:
        """Where to begin reading: at the last entry that is known to be committed and on disk, else at a file of which that is known. After
        a clean stop nothing is torn, and some files before the end are enough."""
        if not self._agrees(begin):
            return begin  # the index is to be made again, all of it
        unit = self.index.unit_now(self._told) if self._told >= begin.index else None
        told = self._head_at(unit.pos) if unit is not None else None
        if told is not None and self._agrees(told) and told.index == self._told:
            return told
        bases = [base for base in self.segments.bases if base >= self.segments.first_data]
        known = bases[: 1 - FILES_READ] if self.tidy else [base for base in bases if base <= self._vouched]
        for base in reversed(known):
            head = self._head_at(base)
            if head is not None and self._agrees(head):
                return head
        return begin

    def _agrees(self, head: Head) -> bool:
        unit = self.index.unit_now(head.index)
        return unit is not None and (unit.pos, unit.size, unit.term) == (head.pos, head.size, head.term)

    # Reading forward

    def _walk(self, begin: Head, start: Head, sure: int) -> Chain:
        self._units_from = start.index
        at = end = start.pos
        last, term = start.index - 1, start.term
        committed, committed_end = -1, begin.pos
        while (base := self.segments.base_of(at)) is not None:
            left = base + self.segments.size - at
            if self._is_blank(at, left):
                at += left
                continue
            head = self._head_at(at)
            if head is None or head.index != last + 1 or head.term < term or self._outruns_its_term(head, term):
                head = self._made_again(at, last + 1, term) if at < sure or self.tidy else None
            elif at >= sure and not self.tidy and not self._is_whole(head):
                head = None
            if head is None:
                break
            self._add(head)
            at, last, term = head.end, head.index, head.term
            end = at
            if last <= self._told or at <= self._vouched:
                committed, committed_end = last, at
        if committed < 0 <= start.index - 1 and start.index > begin.index:
            before = self.index.unit_now(start.index - 1)
            if before is not None and (before.index <= self._told or before.pos + before.size <= self._vouched):
                committed, committed_end = before.index, before.pos + before.size
        if at > end:
            self._take_back_blank(end)
            at = end
        if last < begin.index:  # not even the first is whole
            return Chain(-1, begin.pos, -1, -1, begin.pos, -1, begin.pos, start.pos, self._missing(begin.pos))
        return Chain(begin.index, begin.pos, last, term, at, committed, committed_end, start.pos, self._missing(at, last))

    def _take_back_blank(self, at: int) -> None:
        """Nothing stands behind it: what comes next may be shorter, and stand before it, as it does in the logs of the others."""
        base = self.segments.base_of(at)
        assert base is not None
        self.segments.file(base).write(at - base, bytes(LEDGER_BLANK.size))
        self._window = b""

    def _missing(self, end: int, last: int = -1) -> str:
        if self._told > last or self._vouched > end:
            return (
                f"the ledger ends with entry {last} at offset {end}, and entry {max(self._told, -1)} was committed, the log on disk up to "
                f"{self._vouched}: the others of the group bring the rest. If there are none, bring the files back from a backup"
            )
        return ""

    def _outruns_its_term(self, head: Head, term: int) -> bool:
        """Its term is larger than that of the entry behind it: one of the two is damaged, and this one if that one fits what was before."""
        follows = self._head_behind(head.end) if head.term > term else None
        return follows is not None and follows.index == head.index + 1 and term <= follows.term < head.term

    def _is_whole(self, head: Head) -> bool:
        at = head.pos + LEDGER_HEAD.size
        return isinstance(read_one(self._get(at, head.body_size), at, check_crc=self.check_crc), Found)

    def _made_again(self, at: int, index: int, term: int) -> Head | None:
        """A head that is damaged, as the index and its neighbours tell it. It is written again."""
        unit = self.index.unit_now(index)
        size = 0
        if unit is not None and unit.pos == at and unit.term >= term:
            size, term = unit.size, unit.term
        else:
            size = LEDGER_HEAD.size + self._size_of_record(at + LEDGER_HEAD.size)
        base = self.segments.base_of(at)
        if base is None or size < LEDGER_HEAD.size + RECORD_MIN or at + size + LEDGER_BLANK.size > base + self.segments.size:
            return None
        follows = self._head_behind(at + size)
        known = self._size_of_record(at + LEDGER_HEAD.size) == size - LEDGER_HEAD.size
        if unit is None and (follows is None or follows.index != index + 1 or follows.term != term):
            return None
        if not known and (follows is None or follows.index != index + 1 or follows.term < term):
            return None
        head = Head(LEDGER_MAGIC, size, index, term, at, 0, 0, 0, size - LEDGER_HEAD.size)
        log.error("the head of entry %d at offset %d is damaged: it is made again from the ledger's index and its neighbours", index, at)
        self.segments.file(base).write(at - base, LEDGER_HEAD.pack(*head))
        self._window = b""
        return head

    def _head_behind(self, end: int) -> Head | None:
        """The head that follows an entry which ends here, maybe in the next file."""
        base = self.segments.base_of(end)
        left = 0 if base is None else base + self.segments.size - end
        return self._head_at(end + left if self._is_blank(end, left) else end)

    def _is_blank(self, at: int, left: int) -> bool:
        return self._get(at, LEDGER_BLANK.size) == LEDGER_BLANK.pack(LEDGER_BLANK_MAGIC, left)

    def _size_of_record(self, at: int) -> int:
        raw = self._get(at, HEAD.size)
        if len(raw) < HEAD.size:
            return 0
        size, _, _, _, _, _, physical, _, _ = HEAD.unpack(raw)
        return size if raw[4:8] in MAGICS and physical == at and size >= RECORD_MIN else 0

    def _head_at(self, at: int) -> Head | None:
        """The head that stands here and says so itself."""
        base = self.segments.base_of(at)
        raw = self._get(at, LEDGER_HEAD.size)
        if base is None or base < self.segments.divided or len(raw) < LEDGER_HEAD.size:
            return None
        head = read_head(raw)
        return head if head.adds_up and head.pos == at and head.end + LEDGER_BLANK.size <= base + self.segments.size else None

    def _get(self, at: int, size: int) -> bytes:
        """These bytes, as many of them as their file has; files are read in large pieces: the walk goes forward."""
        place = at - self._window_at
        if place < 0 or place + size > len(self._window):
            base = self.segments.base_of(at)
            if base is None:
                return b""
            self._window_at, place = at, 0
            self._window = self.segments.file(base).read(at - base, max(size, min(CHUNK, base + self.segments.size - at)))
        return self._window[place : place + size]

    # The index

    def _add(self, head: Head) -> None:
        self._units += unit_of(head)
        if len(self._units) >= UNITS_TOGETHER * UNIT:
            self._write_units()

    def _write_units(self) -> None:
        """Where they differ from what stands there."""
        first, units = self._units_from, bytes(self._units)
        self._units_from += len(units) // UNIT
        self._units.clear()
        if not units:
            return
        segments = self.index.segments
        size = segments.size
        if not segments.bases or first * UNIT < segments.start or first * UNIT > segments.stop:
            self.index.begin_anew(first)
            self.index.start_at(1 << 58)
            segments.create(first * UNIT // size * size)
        while segments.stop < first * UNIT + len(units):
            segments.create(segments.stop)
        at = 0
        while at < len(units):
            held = segments.read(first * UNIT + at, min(len(units) - at, size - (first * UNIT + at) % size))
            piece = units[at : at + len(held)]
            if held != piece:
                self.index.write(first + at // UNIT, piece)
            at += len(held)
