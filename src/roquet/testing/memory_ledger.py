"""A ledger in memory that can lose power: the rules of `roquet.raft` run on it in the simulation, as they do on the store's own.

It behaves as the ledger on disk does (one suite of tests is for both). In addition:

    begin_flush() -> done       what is written now is on disk when `done` is called
    after_kill()                the ledger as the next process finds it: everything written is there
    after_power_loss(random)    of what was not flushed, a first part of the changes, in their order: a cut may have been forgotten
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from roquet.raft.ledger import HEAD, entries_of, entry_bytes, same
from roquet.wire.layout import LEDGER_MAGIC
from roquet.wire.ledger_entry import Entry, Misplaced

BLANK = 8
"""Bytes that stay free at a file's end."""


class MemoryLedger:
    """State: the entries, and the same as the last flush left it on disk, with what was changed since."""

    def __init__(self, file_size: int = 4_096, entries: Sequence[Entry] = (), committed: int = -1) -> None:
        self.file_size = file_size
        self.entries = list(entries)
        self.committed = min(committed, self.end)
        self.flushed_index = self.end
        self.on_committed: Callable[[int, int], None] = lambda before, after: None
        self._disk = list(self.entries)
        self._disk_committed = self.committed
        self._since: list[Entry | int] = []  # changes since the flush: an entry that was appended, or how many were left
        self._cuts = 0

    @property
    def begin(self) -> int:
        return self.entries[0].index if self.entries else -1

    @property
    def end(self) -> int:
        return self.entries[-1].index if self.entries else -1

    @property
    def end_term(self) -> int:
        return self.entries[-1].term if self.entries else -1

    @property
    def end_pos(self) -> int:
        return self.entries[-1].pos + self.entries[-1].size if self.entries else 0

    @property
    def written_index(self) -> int:
        return self.end

    def _at(self, index: int) -> Entry:
        at = index - self.begin
        if not self.entries or not 0 <= at < len(self.entries):
            raise LookupError(f"entry {index} is not held, only {self.begin} to {self.end}")
        return self.entries[at]

    def term_of(self, index: int) -> int:
        return self._at(index).term

    def place_of(self, index: int) -> tuple[int, int]:
        entry = self._at(index)
        return entry.pos, entry.size

    def read(self, first: int, max_bytes: int, max_entries: int) -> list[Entry]:
        self._at(first)
        at = first - self.begin
        found: list[Entry] = []
        for entry in self.entries[at : at + max_entries]:
            max_bytes -= entry.size
            if found and max_bytes < 0:
                break
            found.append(entry)
        return found

    def read_raw(self, first: int, max_bytes: int, max_entries: int) -> tuple[int, bytes]:
        found = self.read(first, max_bytes, max_entries)
        return len(found), b"".join(map(entry_bytes, found))

    # Changes

    def next_pos(self, size: int) -> int:
        """Where an entry of this size would stand."""
        pos = self.end_pos
        left = self.file_size - pos % self.file_size
        return pos if size + BLANK <= left else pos + left

    def lead(self, term: int, body: bytes) -> Entry:
        """As a leader: append an entry of one's own."""
        size = HEAD + len(body)
        entry = Entry(LEDGER_MAGIC, size, self.end + 1, term, self.next_pos(size), 0, 0, 0, body)
        self._add(entry)
        return entry

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._since.append(entry)

    def append(self, entries: Sequence[Entry]) -> None:
        kept, since = len(self.entries), len(self._since)
        for entry in entries:
            if entry.index != self.end + 1 or entry.term < self.end_term or entry.pos != self.next_pos(entry.size):
                where = f"index {self.end + 1}, position {self.next_pos(entry.size)}, term {self.end_term} or more"
                del self.entries[kept:], self._since[since:]
                raise Misplaced(f"entry {entry.index} of term {entry.term} at position {entry.pos}, expected {where}")
            self._add(entry)

    def append_raw(self, data: bytes | memoryview) -> int:
        self.append(entries_of(data))
        return self.end

    def truncate(self, entry: Entry) -> None:
        at = entry.index - self.begin
        if self.entries and 0 <= at < len(self.entries) and same(self.entries[at], entry):
            if entry.index < self.committed:
                raise Misplaced(f"all behind entry {entry.index} would go, and {self.committed} is committed")
            self._cut(at + 1)
            self.flushed_index = min(self.flushed_index, entry.index)
        else:
            follows = self.entries and 0 < at <= len(self.entries)
            if follows and entry.index <= self.committed:
                raise Misplaced(f"entry {entry.index} would replace another, and {self.committed} is committed")
            self._cut(at if follows else 0)
            self._add(entry)
            self.flushed_index = min(self.flushed_index, entry.index - 1) if follows else -1
        self.committed = min(self.committed, self.end)

    def _cut(self, count: int) -> None:
        self._cuts += 1
        del self.entries[count:]
        self._since.append(count)

    def note_committed(self, index: int) -> None:
        before, self.committed = self.committed, max(self.committed, min(index, self.end))
        if self.committed > before:
            self.on_committed(before, self.committed)

    # The disk

    def begin_flush(self) -> Callable[[], None]:
        entries, since, cuts, index = list(self.entries), len(self._since), self._cuts, self.end
        committed = min(self.committed, index)

        def done() -> None:
            self._disk, self._disk_committed = entries, committed
            del self._since[:since]
            if cuts == self._cuts:
                self.flushed_index = max(self.flushed_index, index)

        return done

    def after_kill(self) -> MemoryLedger:
        return MemoryLedger(self.file_size, self.entries, self._disk_committed)

    def after_power_loss(self, random: Random) -> MemoryLedger:
        entries = list(self._disk)
        for change in self._since[: random.randrange(len(self._since) + 1)]:
            if isinstance(change, int):
                del entries[change:]
            else:
                entries.append(change)
        return MemoryLedger(self.file_size, entries, self._disk_committed)
