"""What the rules need of a log on disk: entries by index. `store` writes the real one, `roquet.testing.memory_ledger` a simulated one.

An entry is a record with 48 bytes before it. Its index counts entries from 0, its `pos` is the log offset of those 48 bytes. All members
of a group hold the same entry at the same `pos`: a member that would put it elsewhere must not take it.

Marks, each an index, -1 when there is none:

    begin         the first entry that is still held
    end           the last entry that was taken (as a leader: by the broker's own sends, also those that wait for their write)
    written       the last entry that is in files; what a node under ASYNC_FLUSH counts as held
    flushed       the last entry that is on this disk; what a node under SYNC_FLUSH counts as held
    committed     the last entry that a majority holds, as far as is known here; only grows, and never beyond `end`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roquet.wire.layout import LEDGER_HEAD, LEDGER_MAGIC
from roquet.wire.ledger_entry import Entry, Misplaced

HEAD = LEDGER_HEAD.size


def entry_bytes(entry: Entry) -> bytes:
    return LEDGER_HEAD.pack(*entry[:8], len(entry.body)) + entry.body


def entries_of(data: bytes | memoryview) -> list[Entry]:
    """Entries that stand one after another. Raises Misplaced when these are no whole entries, or their indexes have gaps."""
    found: list[Entry] = []
    start, size = 0, len(data)
    while start < size:
        if start + HEAD > size:
            raise Misplaced(f"{size - start} bytes are left for an entry, expected at least {HEAD}")
        *head, length = LEDGER_HEAD.unpack_from(data, start)
        entry = Entry._make((*head, bytes(data[start + HEAD : start + HEAD + length])))
        if length < 0 or entry.magic != LEDGER_MAGIC or entry.size != HEAD + length or len(entry.body) != length:
            raise Misplaced(f"an entry with magic {entry.magic}, size {entry.size} and a body of {length} bytes in {size - start} bytes")
        if found and entry.index != found[-1].index + 1:
            raise Misplaced(f"entry {entry.index} follows entry {found[-1].index}")
        found.append(entry)
        start += entry.size
    return found


def same(one: Entry, other: Entry) -> bool:
    """The two checksums are not compared: nobody fills them in."""
    return one[:6] == other[:6] and one.body == other.body


class Ledger(Protocol):
    """The log of a member. One owner calls it. As a leader the broker appends by itself, the rules only see `end` grow.

    Errors of the disk (OSError) come out as they are, and nothing was taken then."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def end_term(self) -> int:
        """Of the last entry; -1 when there is none."""

    @property
    def end_pos(self) -> int:
        """Behind the last entry, before any blank."""

    @property
    def written_index(self) -> int: ...

    @property
    def flushed_index(self) -> int: ...

    @property
    def committed(self) -> int: ...

    def term_of(self, index: int) -> int:
        """Raises LookupError outside of begin..end, Cold when it must be read first."""

    def place_of(self, index: int) -> tuple[int, int]:
        """(pos, size with the 48 bytes). Raises as `term_of`."""

    def read(self, first: int, max_bytes: int, max_entries: int) -> Sequence[Entry]:
        """Entries from `first` on, at least one, of those that are written. Raises LookupError when `first` is not held, Cold."""

    def read_raw(self, first: int, max_bytes: int, max_entries: int) -> tuple[int, bytes]:
        """(how many, their bytes one after another as they stand in the data files, without blanks). Otherwise as `read`."""

    def append(self, entries: Sequence[Entry]) -> None:
        """As a follower: take over what the leader has, byte for byte, all or nothing; written when this returns.

        Raises Misplaced when the first is not `end` + 1, a later one does not follow, a term goes back, or an entry would stand at
        another `pos` here."""

    def append_raw(self, data: bytes | memoryview) -> int:
        """As `append`, of entries as `read_raw` gives them; returns the last index. Raises Misplaced when they are no whole entries."""

    def truncate(self, entry: Entry) -> None:
        """Afterwards this entry is the last one. What stood behind it is gone; an entry that stood there with other bytes is replaced.
        Where the entry does not follow what is held (a hole, or before `begin`) everything else goes, and it is the only one.

        Nothing that the ledger itself knows to be committed may go this way unless the whole ledger does: raises Misplaced."""

    def note_committed(self, index: int) -> None:
        """A majority holds this entry: `safe` of the log rises to its end. Smaller than before, or beyond `end`: as much as is true."""


class TermFile(Protocol):
    """Term and vote, on disk before anything is answered with them (E5)."""

    def load(self) -> tuple[int, str]:
        """(term, whom it was given to: "" for nobody)."""

    def save(self, term: int, vote: str) -> None:
        """Durable when this returns: written aside, synced, renamed, the directory synced. Raises OSError; then the old one counts."""
