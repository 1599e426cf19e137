"""The files of DLedger's log, and those of the plain log that stood here before it: one row.

    commitlog/00000000000000000000  00000000000000065536      records alone, as a plain broker wrote them; no more come
    dledger-n0/data/00000000000000131072  ...                 entries: a head of 48 bytes, then a record

Offsets go on from the one to the other; the ledger's first entry stands where the old log's last file ends (`divided`).
"""

from __future__ import annotations

from roquet.errors import Damaged
from roquet.store.disk import DiskFile
from roquet.store.segments import OpenFiles, Segments


class LedgerSegments(Segments):
    """`divided`: from this offset on stand entries. Between the two may be a gap, when the ledger began anew behind it; then its first
    entry may stand in the middle of its first file, at `begin_pos`."""

    __slots__ = ("begin_pos", "divided", "old")

    def __init__(self, files: OpenFiles, directory: str, size: int, old_directory: str) -> None:
        super().__init__(files, directory, size)
        self.old = Segments(files, old_directory, size)
        self.divided = self.begin_pos = 0

    def load(self, *, crashed: bool = False) -> None:
        super().load(crashed=crashed)
        self.old.load(crashed=crashed)
        if not self.old.bases:
            self.divided = self.start
            return
        self.divided = self.start if self.bases else self.old.stop
        if self.divided < self.old.stop:
            raise Damaged(
                f"{self.old.directory} ends at {self.old.stop}, and {self.directory} begins at {self.divided}, before that: a broker "
                "without enableDLegerCommitLog wrote here since. Decide which of the two counts, and move the other away"
            )
        self.bases = self.old.bases + self.bases

    @property
    def has_entries(self) -> bool:
        """Is there a file of the ledger itself?"""
        return bool(self.bases) and self.bases[-1] >= self.divided

    @property
    def first_data(self) -> int:
        """Where the ledger's own files begin."""
        return next((base for base in self.bases if base >= self.divided), self.divided)

    def directory_of(self, base: int) -> str:
        return self.directory if base >= self.divided else self.old.directory

    def file(self, base: int) -> DiskFile:
        return self.files.get(self.directory if base >= self.divided else self.old.directory, base)

    def begin_behind(self, offset: int) -> int | None:
        return self.begin_pos if self.first_data <= offset < self.begin_pos else None

    def create(self, base: int) -> DiskFile:
        self.files.disk.make_dir(self.directory)
        if not self.bases:
            self.divided = base  # nothing stands before it any more, neither plain records nor entries
        return super().create(base)
