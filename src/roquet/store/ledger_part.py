"""DLedger's log as a part of the store: its files and documents, what opening makes of them, and what follows when it is cut.

    ledger      by index, for the rules of Raft      terms       term and vote
    log         by offset, for the store             checkpoint  how far the group had come

What is not committed has no queue entries while this member follows: the applier stops at the committed position. As a leader it has, in
memory and in files, unseen by consumers; when it stops leading they are taken back, and applied again once they are committed.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, NamedTuple

from roquet.store.disk import Disk
from roquet.store.entry_log import EntryLog
from roquet.store.ledger import DiskLedger
from roquet.store.ledger_chain import Chain, ChainReader
from roquet.store.ledger_documents import LedgerCheckpoint, TermFile, Told, encode_told
from roquet.store.ledger_index import LedgerIndex
from roquet.store.ledger_segments import LedgerSegments
from roquet.store.segments import OpenFiles, Segments
from roquet.wire.layout import LEDGER_HEAD, LEDGER_INDEX_FILE
from roquet.wire.ledger_entry import read_head

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

CHECKPOINT_MS = 3_000


class LedgerPlace(NamedTuple):
    """Where a member keeps its ledger."""

    home: str
    """<storePathRootDir>/dledger-<dLegerSelfId>"""
    data: str = ""
    """Of the data files, if they have a place of their own (storePathDLedgerCommitLog)."""
    index_file_size: int = LEDGER_INDEX_FILE
    """Only a simulation has smaller ones."""


class LedgerPart:
    """State: `_anew_at` is where the ledger began anew, -1 when it never did; `_saved` what the checkpoint says."""

    def __init__(self, files: OpenFiles, place: LedgerPlace, file_size: int, old_directory: str, *, sync_flush: bool) -> None:
        self.place = place
        disk = files.disk
        segments = LedgerSegments(files, place.data or f"{place.home}/data", file_size, old_directory)
        self.log = EntryLog(segments, LedgerIndex(Segments(files, f"{place.home}/index", place.index_file_size)), sync_flush=sync_flush)
        self.ledger = DiskLedger(self.log)
        self.terms = TermFile(disk, place.home)
        self.checkpoint = LedgerCheckpoint(disk, place.home)
        self._store: Store | None = None
        self._due_ms = 0
        self._anew_at = -1
        self._saved = -2

    # Opening

    def make_directories(self, disk: Disk, root: str) -> None:
        """Their names must be as safe as what comes into them."""
        directories = (self.log.segments.directory, self.log.index.segments.directory)
        for directory in directories:
            disk.make_dir(directory)
        for parent in dict.fromkeys((*(directory.rpartition("/")[0] for directory in directories), root)):
            disk.sync_dir(parent)

    @property
    def begins_anew(self) -> bool:
        """The last run was about to begin anew: its old files may be gone, and the new one not there yet. May block."""
        told = self.checkpoint.load()
        return told.anew_at >= 0 and told.committed < 0

    def read_chain(self, *, vouched: int, crashed: bool, check_crc: bool) -> Chain | None:
        """Which entries there are. None: there is only a plain log, which the ledger will go on from."""
        segments = self.log.segments
        told = self.checkpoint.load()
        if not segments.has_entries and segments.old.bases:
            return None
        self._anew_at = told.anew_at
        reader = ChainReader(segments, self.log.index, told, vouched=vouched, tidy=not crashed, check_crc=check_crc)
        chain = reader.read(crashed=crashed)
        if chain.lost:
            log.error("%s", chain.lost)
        segments.begin_pos = chain.begin_pos
        self.log.found(chain.begin, chain.last, chain.last_term, chain.committed, chain.committed_end)
        return chain

    def opened(self, store: Store) -> None:
        """The store is ready; this member follows until somebody says that it leads."""
        self._store = store
        self.log.on_cut, self.log.on_anew = self._cut, self._began_anew
        store.applier.follow()

    # Time

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._due_ms and self._store is not None:
            self._due_ms = now_ms + CHECKPOINT_MS
            told = self._told()
            if told.committed != self._saved:
                self._saved = told.committed
                self.checkpoint.document.save_later(encode_told(told, self.log.last), self._store.background, self._was_saved)

    @property
    def busy(self) -> bool:
        return self.checkpoint.document.busy

    def close(self) -> None:
        """At a clean stop, when the log is flushed."""
        self.checkpoint.save(self._told(), self.log.last)

    def _told(self) -> Told:
        return Told(min(self.log.committed, self.log.flushed_index), self._anew_at)

    def _was_saved(self, result: Exception | None) -> None:
        if result is not None:
            log.warning("%s could not be written: %s", self.checkpoint.document.path, result)
            self._saved = -2

    # What goes

    def _cut(self, to: int) -> None:
        """What was derived goes before its entries do."""
        assert self._store is not None
        applier = self._store.applier
        if not applier.following:
            applier.follow()
        if to < applier.applied:
            applier.cut_back(to)

    def _began_anew(self, pos: int) -> None:
        assert self._store is not None
        if self.busy:
            raise OSError(
                errno.EAGAIN,
                "it is being written, and would come last: the ledger begins anew when that is done",
                self.checkpoint.document.path,
            )
        log.warning("the ledger begins anew at offset %d: the leader does not have what this member lacks before it any more", pos)
        self._anew_at = pos
        self.log.segments.begin_pos = pos
        self.checkpoint.save(Told(-1, pos), -1)
        self._saved = -2
        self._store.applier.stand_at(pos)
        self._store.old_files.expired.find(pos)

    def begin_later(self) -> list[str]:
        """Old data files went. Returns the index files that are needed no more."""
        segments, entries = self.log.segments, self.log
        if not segments.has_entries or entries.begin < 0 or segments.first_data <= segments.begin_pos:
            return []
        base = segments.first_data
        head = read_head(segments.file(base).read(0, LEDGER_HEAD.size))
        if head.adds_up and head.pos == base:
            entries.begin = head.index
            segments.begin_pos = base
        return entries.index.old_files(entries.begin)
