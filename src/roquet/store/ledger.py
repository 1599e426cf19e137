"""The log by index, as the rules of Raft want it: `EntryLog` counts bytes, this counts entries. `raft/ledger.py` says what each must do."""

from __future__ import annotations

from collections.abc import Sequence

from roquet.store.disk import blocking
from roquet.store.entry_log import EntryLog
from roquet.store.ledger_columns import holds_run, run_behind
from roquet.store.ledger_index import UNIT
from roquet.wire.layout import LEDGER_HEAD
from roquet.wire.ledger_entry import Entry, Head, Misplaced, Unit, holds_its_record, read_entry, read_head, read_unit


class DiskLedger:
    """State: what was read last, since several followers mostly lack the same."""

    def __init__(self, log: EntryLog) -> None:
        self.log = log
        self._last_read: tuple[tuple[int, ...], tuple[int, bytes]] = (), (0, b"")

    @property
    def begin(self) -> int:
        return self.log.begin

    @property
    def end(self) -> int:
        return self.log.last

    @property
    def end_term(self) -> int:
        return self.log.last_term

    @property
    def end_pos(self) -> int:
        return self.log.written

    @property
    def written_index(self) -> int:
        return self.log.last

    @property
    def flushed_index(self) -> int:
        return self.log.flushed_index

    @property
    def committed(self) -> int:
        return self.log.committed

    def term_of(self, index: int) -> int:
        return self._unit(index).term

    def place_of(self, index: int) -> tuple[int, int]:
        unit = self._unit(index)
        return unit.pos, unit.size

    def _unit(self, index: int) -> Unit:
        if not 0 <= self.begin <= index <= self.end:
            raise LookupError(f"the ledger holds entries {self.begin} to {self.end}, and not {index}")
        unit = self.log.index.unit(index)
        if unit is None:
            raise LookupError(f"the ledger's index is damaged at entry {index}: a restart makes it again from the data")
        return unit

    # Reading

    def read(self, first: int, max_bytes: int, max_entries: int) -> Sequence[Entry]:
        count, data = self.read_raw(first, max_bytes, max_entries)
        found: list[Entry] = []
        at = 0
        for _ in range(count):
            found.append(read_entry(data, at))
            at += found[-1].size
        return found

    def read_raw(self, first: int, max_bytes: int, max_entries: int) -> tuple[int, bytes]:
        """As many as stand in one data file. What stands there is what the index says, or LookupError is raised."""
        question = (first, max_bytes, max_entries, self.begin, self.end, self.log.cuts)
        if self._last_read[0] != question:
            self._last_read = question, self._read_raw(first, max_bytes, max_entries)
        return self._last_read[1]

    def _read_raw(self, first: int, max_bytes: int, max_entries: int) -> tuple[int, bytes]:
        newest = self.log.newest
        if newest is not None and newest[0] == first and newest[1] <= max_entries and len(newest[2]) <= max_bytes:
            return newest[1:]
        start, size = self.place_of(first)
        units = self.log.index.units(first + 1, min(max_entries - 1, self.end - first)) if max_entries > 1 else b""
        sizes = run_behind(units, first, start, start + size, max_bytes)
        if sizes is not None:
            data = self.log.read(start, size + sum(sizes))
            if holds_run(data, [size, *sizes], first, start):
                return 1 + len(sizes), data
        return self._read_one_by_one(first, start, size, max_bytes, units)

    def _read_one_by_one(self, first: int, start: int, size: int, max_bytes: int, units: bytes) -> tuple[int, bytes]:
        count, stop = 1, start + size
        for at in range(0, len(units) - UNIT + 1, UNIT):
            unit = read_unit(units, at)
            if unit.pos != stop or unit.index != first + count or stop + unit.size - start > max_bytes:
                break
            stop += unit.size
            count += 1
        data = self.log.read(start, stop - start)
        at = 0
        for index in range(first, first + count):
            head = read_head(data, at) if len(data) - at >= LEDGER_HEAD.size else None
            if head is None or not head.adds_up or (head.index, head.pos) != (index, start + at) or head.end > stop:
                if index > first:
                    return index - first, data[:at]
                why = f"its head says {head}" if head is not None else f"the index says that it has {len(data) - at} bytes"
                raise LookupError(f"entry {index} at {start + at} is damaged: {why}")
            at += head.size
        return count, data

    # Appending

    def append(self, entries: Sequence[Entry]) -> None:
        self.log.append_entries([(_checked(entry), _bytes_of(entry)) for entry in entries])

    def append_raw(self, data: bytes | memoryview) -> int:
        if self.log.append_run(data):
            return self.end
        entries: list[tuple[Head, bytes]] = []
        at = 0
        while at < len(data):
            head = read_head(data, at) if len(data) - at >= LEDGER_HEAD.size else None
            if head is None or not head.adds_up or at + head.size > len(data):
                raise Misplaced(f"no whole entry stands at byte {at} of {len(data)}")
            piece = bytes(data[at : at + head.size])
            if not holds_its_record(memoryview(piece)[LEDGER_HEAD.size :], head.pos):
                raise Misplaced(f"entry {head.index} holds no record of its place {head.pos}")
            entries.append((head, piece))
            at += head.size
        self.log.append_entries(entries)
        return self.end

    def note_committed(self, index: int) -> None:
        self.log.note_committed(index)

    # Taking back

    def truncate(self, entry: Entry) -> None:
        head = _checked(entry)
        log, last = self.log, head.index
        before = self._end_before(head)
        if before is None:
            log.begin_anew(last, head.pos)
        elif last <= log.last:
            if self._holds(entry):
                self._cut_behind(last, head.term, head.end)
                return
            self._cut_behind(last - 1, blocking(self.term_of, last - 1) if last > log.begin else -1, before)
        log.append_entries([(head, _bytes_of(entry))])

    def _cut_behind(self, last: int, last_term: int, end: int) -> None:
        if last < self.committed:
            raise Misplaced(f"entry {last} cannot become the last one: {self.committed} is committed here")
        if last < self.end:
            self.log.cut_behind(last, last_term, end)

    def _end_before(self, head: Head) -> int | None:
        """Where the log is cut, so that this entry goes behind it. None: it follows nothing that is held. Raises Misplaced where it should
        and does not."""
        log, index = self.log, head.index
        if log.last < 0:
            return log.written if index == 0 and head.pos == log.written else None
        if not log.begin <= index <= log.last + 1:
            return None
        if index > log.begin:
            end = sum(blocking(self.place_of, index - 1))
            if head.term >= blocking(self.term_of, index - 1) and head.pos == log.place_behind(end, head.size):
                return end
        if index <= log.last and head.pos == blocking(self.place_of, index)[0]:
            return head.pos  # the first, or one that is shorter and would fit into the file before
        if log.committed >= log.begin:
            raise Misplaced(
                f"entry {index} of term {head.term} stands at {head.pos} in the leader's log, and cannot stand there in this one, of which "
                f"{log.committed} is committed. Is mappedFileSizeCommitLog the same on all members?"
            )
        return None

    def _holds(self, entry: Entry) -> bool:
        """Everything is compared but the checksums, as DLedger does."""
        held = blocking(self.read, entry.index, 0, 1)[0]
        return held[:6] == entry[:6] and held.body == entry.body


def _checked(entry: Entry) -> Head:
    head = entry.head
    if not head.adds_up or not holds_its_record(entry.body, entry.pos):
        raise Misplaced(f"entry {entry.index} at {entry.pos} of {entry.size} bytes holds no record of its place")
    return head


def _bytes_of(entry: Entry) -> bytes:
    return LEDGER_HEAD.pack(*entry.head) + entry.body
