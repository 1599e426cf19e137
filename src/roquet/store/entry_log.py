"""DLedger's log: before each record stands a head with the entry's index and term, and an index of its own tells where each entry is.

To the store it is a log as any other (`Log`): records are staged behind room for their heads, `commit` fills these in and writes data and
units, one write each. Safe is what a majority holds: `note_committed` says how far, whoever counts. Files and bytes are DLedger's 0.3.1.2.

    <storePathDLedgerCommitLog, or the store's root>/dledger-<id>/data    entries; a blank of `-1, left` closes a file
                                                             /index   32 bytes an entry
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from roquet.errors import Unstorable
from roquet.store.ledger_columns import units_of_run
from roquet.store.ledger_heads import fill
from roquet.store.ledger_index import UNIT, LedgerIndex
from roquet.store.ledger_segments import LedgerSegments
from roquet.store.log import CommitLog
from roquet.wire.layout import BLANK, BLANK_MAGIC, LEDGER_BLANK, LEDGER_BLANK_MAGIC, LEDGER_ENTRY_MAX, LEDGER_HEAD
from roquet.wire.ledger_entry import Head, Misplaced, unit_of


class EntryLog(CommitLog):
    """State: `begin`, `last`, `committed`, `flushed_index` are indexes of entries, -1 when there is none. `term` is of what is staged."""

    segments: LedgerSegments

    def __init__(self, segments: LedgerSegments, index: LedgerIndex, *, sync_flush: bool = False) -> None:
        super().__init__(segments, sync_flush=sync_flush, lead=bytes(LEDGER_HEAD.size))
        self.index = index
        self.term = 0
        self.begin = self.last = self.last_term = self.committed = self.flushed_index = -1
        self.committed_end = 0
        """Where the last committed entry ends."""
        self.on_cut: Callable[[int], None] = lambda to: None
        """Told before what stands at or behind this offset goes: whatever was derived from it must go first."""
        self.on_anew: Callable[[int], None] = lambda pos: None
        """Told before the first entry of a ledger that begins anew here is written: an opening must know that nothing is missing before
        it. May block, and raise OSError."""
        self.on_grown: Callable[[], None] = lambda: None
        """Told when more is written, or flushed."""
        self.newest: tuple[int, int, bytes] | None = None
        """(index of the first, how many, their bytes) of the entries that this member wrote last as a leader: followers get them next, and
        nobody has to read them. None: they are not known, or stand in two files."""
        self._given: bytes | None = None
        """What is staged has its heads already, and these are its units."""
        self._syncs: deque[tuple[int, int]] = deque()
        """(where the log ended, its last entry then) of each flush that was begun."""

    # Opening

    def found(self, begin: int, last: int, last_term: int, committed: int, committed_end: int) -> None:
        """What recovery found; `start_at` follows, with the end of the last entry."""
        self.begin, self.last, self.last_term = begin, last, last_term
        self.committed, self.committed_end = committed, committed_end
        self.flushed_index = last
        self.index.start_at(last + 1)

    def start_at(self, offset: int) -> None:
        super().start_at(offset)
        self._safe.value = self._durable.value = min(self.committed_end, offset)

    def begin_behind_old(self, end: int) -> int:
        """A plain log ends here, whose last file counts as full from now on. Returns where the ledger begins. May block."""
        segments = self.segments
        stop = segments.divided
        left = stop - end
        if left:
            file = segments.file(stop - segments.size)
            file.write(end - (stop - segments.size), BLANK.pack(left, BLANK_MAGIC))
            file.sync()
        self.found(-1, -1, -1, -1, stop)
        self.index.begin_anew(0)
        segments.begin_pos = stop
        return stop

    # Marks

    def note_committed(self, index: int) -> None:
        """A majority holds this entry. As much of it as is true here, and never less than before."""
        index = min(index, self.last)
        if index <= self.committed or index < self.begin:
            return
        unit = self.index.recent_unit(index) or self.index.unit_now(index)
        if unit is None:
            raise LookupError(f"the ledger's index has no entry {index}, it holds {self.begin} to {self.last}")
        self.committed, self.committed_end = index, unit.pos + unit.size
        self._rise()

    @property
    def appliable(self) -> int:
        return min(self.committed_end, self.written)

    def note_flushed(self, target: int) -> None:
        while self._syncs and self._syncs[0][0] <= target:
            self.flushed_index = max(self.flushed_index, min(self._syncs.popleft()[1], self.last))
        super().note_flushed(target)
        self.on_grown()

    def forget_waiting(self) -> None:
        """This member leads no more: whoever waits for what it wrote is told so now. Another leader may put other entries there."""
        self._safe.forget_behind(self.safe)

    def _rise(self) -> None:
        safe = self.appliable
        if self._applied is not None:
            safe = min(safe, self._applied)
        self._safe.advance(safe)
        self._durable.advance(min(self.flushed, safe))

    def syncer(self) -> tuple[int, Callable[[], None]]:
        index = self.index
        sync_index = index.syncer(self.flushed_index)
        target, sync_data = super().syncer()
        self._syncs.append((target, self.last))

        def work() -> None:
            try:
                sync_data()
                sync_index()
            except BaseException:
                index.segments.new_since_sync = True
                raise

        return target, work

    # Writing

    def commit(self) -> None:
        before = self.written
        super().commit()
        if self.written > before:
            self.on_grown()

    @property
    def room(self) -> int:
        return min(super().room, LEDGER_ENTRY_MAX)

    def reserve(self, size: int) -> int:
        offset = self.end
        if offset + size + LEDGER_BLANK.size > self._segment_end or size > LEDGER_ENTRY_MAX:
            offset = self._roll(size)
        self.end = offset + size
        return offset

    def _roll(self, size: int) -> int:
        if size > LEDGER_ENTRY_MAX:
            raise Unstorable(f"its entry has {size} bytes, a member of a DLedger group takes {LEDGER_ENTRY_MAX}")
        return super()._roll(size)

    def _blank(self, left: int) -> bytes:
        return LEDGER_BLANK.pack(LEDGER_BLANK_MAGIC, left)

    def _write_runs(self) -> None:
        first, given = self.index.next, self._given
        units = given or b""
        datas: list[bytes] = []
        for run in self._runs:
            data = b"".join(run.pieces)
            if given is None:
                data, new = fill(data, run.start, first + len(units) // UNIT, self.term)
                units = units + new if units else new
            datas.append(data)
        count = len(units) // UNIT
        self.newest = None
        self.index.make_room(count)
        for run, data in zip(self._runs, datas, strict=True):
            if data:
                run.file.write(run.start - run.base, data)
        self.index.add(units)
        if count:
            self.last = first + count - 1
            self.last_term = int.from_bytes(units[-8:], "big")
            if self.begin < 0:
                self.begin = first
            if given is None and len(datas) == 1:
                self.newest = first, count, datas[0]

    def append_entries(self, entries: Sequence[tuple[Head, bytes]]) -> None:
        """Entries of a leader, byte for byte (head and record), all or none; written when this returns. Raises Misplaced."""
        if self.end != self.written:
            raise ValueError(f"entries of another member at {self.end}, where messages of this one are staged since {self.written}")
        self._check(entries)
        try:
            for head, data in entries:
                self.reserve(head.size)
                self.staged.append(data)
        except OSError:
            self.rollback()
            raise
        self._commit_given(b"".join(unit_of(head) for head, _ in entries))

    def append_run(self, data: bytes | memoryview) -> bool:
        """The same for many entries that stand in one file. False: nothing was done, since something about them is unusual."""
        size = len(data)
        if self.end != self.written or size > LEDGER_ENTRY_MAX or self.end + size + LEDGER_BLANK.size > self._segment_end:
            return False
        data = bytes(data)
        units = units_of_run(data, self.index.next, self.end, self.last_term)
        if units is None:
            return False
        self.reserve(size)
        self.staged.append(data)
        self._commit_given(units)
        return True

    def _commit_given(self, units: bytes) -> None:
        self._given = units
        try:
            self.commit()
        finally:
            self._given = None

    def _check(self, entries: Sequence[tuple[Head, bytes]]) -> None:
        at, segment_end, index, term = self.end, self._segment_end, self.index.next, self.last_term
        for head, _ in entries:
            if not head.adds_up or head.size > LEDGER_ENTRY_MAX:
                raise Misplaced(f"{head} is not the head of an entry")
            if at + head.size + LEDGER_BLANK.size > segment_end:
                at = segment_end
                segment_end += self.segments.size
            if (head.index, head.pos) != (index, at) or head.term < term:
                raise Misplaced(
                    f"entry {head.index} of term {head.term} at {head.pos} does not follow: next is {index} of term {term} or later at {at}"
                )
            if at + head.size + LEDGER_BLANK.size > segment_end:
                raise Misplaced(f"entry {head.index} has {head.size} bytes, a file holds {self.segments.size - LEDGER_BLANK.size}")
            at, index, term = at + head.size, index + 1, head.term

    def place_behind(self, end: int, size: int) -> int:
        """Where an entry of this size stands behind one that ends here."""
        segment_end = -(-end // self.segments.size) * self.segments.size
        return end if end + size + LEDGER_BLANK.size <= segment_end else segment_end

    # Taking back

    def cut_behind(self, last: int, last_term: int, end: int) -> None:
        """This entry is the last one again, and it ends here. What is committed stays: raises ValueError."""
        if last < self.committed:
            raise ValueError(f"entry {last} cannot be the last: {self.committed} is committed")
        self.newest = None
        self.on_cut(end)
        super().truncate(end)
        self.last, self.last_term = last, last_term
        self.flushed_index = min(self.flushed_index, last)
        if last < self.begin:
            self.begin = -1
        # One whose end nobody hears of (the opening's own, or one that found no descriptor) must not stand in the way of those to come.
        self._syncs = deque((min(target, end), min(index, last)) for target, index in self._syncs)
        self.index.cut(last + 1)

    def begin_anew(self, index: int, pos: int) -> None:
        """Nothing that is here counts any more: the next entry has this index and stands at this place. Files of a plain log stay."""
        self.newest = None
        self.rollback()
        self.on_cut(min(pos, self.segments.first_data))
        self.on_anew(pos)
        segments = self.segments
        base = pos - pos % segments.size
        segments.drop_from(segments.first_data)
        self.index.begin_anew(index)
        self._syncs.clear()
        segments.divided = base
        if not segments.bases or base >= segments.stop:
            segments.create(base)
        self.begin = self.last = self.last_term = self.committed = self.flushed_index = -1
        self.committed_end = pos
        for mark in (self._safe, self._durable):
            mark.forget_behind(pos if mark.value <= pos else -1)
        super().start_at(pos)
        self._forget_flush_from(pos)
        self._applied = None if self._applied is None else pos

    def truncate(self, to: int) -> None:
        raise NotImplementedError("entries are taken back by their index: cut_behind")

    def append_raw(self, data: bytes) -> None:
        raise NotImplementedError("entries are taken over whole: append_entries")

    def __repr__(self) -> str:
        return f"<EntryLog {self.begin}..{self.last} committed {self.committed}, {self.start}..{self.end} written {self.written}>"
