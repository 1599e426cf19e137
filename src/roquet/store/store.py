"""The store: one log, and the queues, the index and the checkpoint that are derived from it.

One owner calls it, from one thread. A tick is: `put` any number of messages, then `commit` once. What may block (fsync, a
look at all queues) goes through `background` and comes back as a call on the owner's thread.

Nothing is shown to a consumer that a crash the configured flush level protects against could erase: a queue's `visible`
follows the log's `safe` mark, which is `written` under ASYNC_FLUSH and `flushed` under SYNC_FLUSH.

    put, commit    staging.py, log.py, showing.py     messages reach the log, and then consumers
    flush          log_flush.py                       the log reaches the disk
    ledger         ledger_part.py, entry_log.py       the log of a member of a DLedger group
    apply          applier.py                         records of another node get their entries
    rejoin         rejoining.py                       a log that is not its master's is cut back, or begun anew
    derived        tails.py, index.py, derived.py     entries and keys follow, then manifest_file.py and checkpoint.py say how far
    old files      old_files.py, retention.py         what is old goes
    trouble        trouble.py                         why nothing is taken just now
    opening        first_look.py, opening.py, recovery.py
    topics         queues.py, removal.py, deletions.py
    reading        records.py; pulls read queues and log themselves
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from roquet.errors import StoreUnavailable
from roquet.ports import Background, Clock
from roquet.settings import BrokerSettings, delay_levels_ms
from roquet.store import first_look, opening
from roquet.store.applier import FOLLOWS, Applier
from roquet.store.checkpoint import Checkpoint
from roquet.store.deletions import DELETED, Deletions
from roquet.store.derived import SETTLE_MOST, Derived
from roquet.store.directory_locks import lock_directories
from roquet.store.disk import Disk
from roquet.store.index import KEY, KeyIndex
from roquet.store.ledger_part import LedgerPart, LedgerPlace
from roquet.store.log import CommitLog, Log
from roquet.store.log_flush import LogFlush
from roquet.store.manifest_file import ManifestFile
from roquet.store.mending import Mender
from roquet.store.old_files import OldFiles
from roquet.store.queues import Queues
from roquet.store.records import RecordLookup
from roquet.store.recovery import ShowProgress
from roquet.store.rejoining import Rejoining
from roquet.store.removal import TopicRemoval
from roquet.store.scan import Hole
from roquet.store.segments import OpenFiles, Segments
from roquet.store.showing import Showing
from roquet.store.staging import Staged, Staging
from roquet.store.synced_log import SyncedLog
from roquet.store.tails import Tails
from roquet.store.timeline import Timeline
from roquet.store.trouble import Trouble
from roquet.store.wall import STEP_MS, WallWatch

log = logging.getLogger("roquet.store")

SLOW_MS = 100


def log_of(settings: BrokerSettings, segments: Segments) -> CommitLog:
    """The log of this role."""
    sync_flush = settings.flush_disk_type == "SYNC_FLUSH"
    if settings.broker_role == "SYNC_MASTER":
        return SyncedLog(segments, sync_flush=sync_flush, timeout_ms=lambda: settings.slave_timeout)
    return CommitLog(segments, sync_flush=sync_flush)


class Store:
    """State: `queues` by (topic, queue); the rest is in its parts, which are made in this order, each from the whole: it may take those
    before it when it is made, and any when it is used."""

    def __init__(
        self, disk: Disk, settings: BrokerSettings, clock: Clock, background: Background, ledger: LedgerPlace | None = None
    ) -> None:
        """`ledger`: the log is DLedger's, and stands there."""
        self.disk = disk
        self.settings = settings
        self.clock = clock
        self.background = background
        self.root = root = settings.store_path_root_dir
        self.delays_ms = delay_levels_ms(settings.message_delay_level)
        self.steady_ms = clock.steady_ms()
        """When this tick began, for deadlines."""
        self.write_ms = 0
        """From there to the end of its last commit."""
        self.is_open = False
        self.crashed = False
        """Whether the run before this one ended without a clean stop; known after `open`."""
        self.recovered_records = 0
        self.recovered_from = self.recovered_to = 0
        """Up to the first the last run's checkpoint had everything; the second is where the log ended when it was opened."""
        self.holes: list[Hole] = []
        """Damaged places that recovery found in the log."""
        self.missing: list[str] = []
        """Documents of config/ that were there when the store was last written, and are gone."""
        self.on_counted: Callable[[str, int, int], None] = lambda topic, count, size: None
        """(topic, messages, bytes) appended since the last time, about once a second: statistics cost a send nothing."""
        self.on_slow_write: Callable[[int], None] = lambda took_ms: None
        """A tick from its begin to its write took this long, which is longer than SLOW_MS."""
        self.may_drop: Callable[[int], bool] = lambda end: True
        """Asked before a log file goes, with where it ends: is nothing below needed any more? If not, it is asked again later."""

        # The log
        self.files = OpenFiles(disk)
        directory = settings.store_path_commit_log or f"{root}/commitlog"
        size, sync_flush = settings.mapped_file_size_commit_log, settings.flush_disk_type == "SYNC_FLUSH"
        self.ledger = None if ledger is None else LedgerPart(self.files, ledger, size, directory, sync_flush=sync_flush)
        self.log: Log = log_of(settings, Segments(self.files, directory, size)) if self.ledger is None else self.ledger.log
        self.timeline = Timeline()
        self.trouble = Trouble(self)
        self.checkpoint = Checkpoint(disk, f"{root}/checkpoint")
        self.flush = LogFlush(self)
        self.locks = contextlib.ExitStack()

        # What is derived from it
        slots, entries = settings.max_hash_slot_num, settings.max_index_num
        self.index = KeyIndex(disk, f"{root}/index", slots_max=slots, entries_max=entries, clock=clock, open_files=self.files)
        self.staging = staging = Staging(self.log, self.index, self.delays_ms, clock.now_ms(), self.trouble.cannot_roll)
        self.showing = Showing(self.log)
        self.all_queues = queues = Queues(self.files, settings)
        self.tails = Tails(self)
        self.manifest = ManifestFile(self)
        self.derived = Derived(self)
        self.applier = Applier(self)
        self.rejoining = Rejoining(self)
        self.mender = Mender(self)

        # What goes
        self.deletions = Deletions(disk, f"{root}/config/{DELETED}", background)
        self.removal = TopicRemoval(self)
        self.wall = WallWatch(clock)
        self.old_files = OldFiles(self)

        # What the parts do is asked of the whole, at no cost.
        self.put, self.put_derived = staging.put, staging.put_derived
        self.put_sends, self.put_batch, self.put_columns = staging.put_sends, staging.put_batch, staging.put_columns
        self.undo, self.together = staging.undo, staging.together
        self.queues, self.queue, self.find_queue = queues.table, queues.queue, queues.find
        self.topics, self.queues_of, self.delete_topic = queues.topics, queues.of_topic, self.removal.delete_topic
        self.begin_at, self.cut_back = self.rejoining.begin_at, self.rejoining.cut_back
        self.flush_now, self.delete_expired_now = self.flush.now, self.old_files.delete_expired_now
        records = RecordLookup(self)
        self.record_at, self.raw_at, self.raw_by = records.record_at, records.raw_at, records.raw_by
        self.store_time_at, self.query = records.store_time_at, records.query
        self.times, self.offset_by_time, self.first_store_time = records.times, records.offset_by_time, records.first_store_time

    # Opening and closing

    @property
    def busy(self) -> bool:
        """A sync is under way in the background. A clean stop waits for it, to hear if it failed."""
        ledger = self.ledger is not None and self.ledger.busy
        return ledger or self.flush.busy or self.derived.busy or self.old_files.unlinking.busy

    def open(self, progress: ShowProgress = lambda what, done, total: None) -> None:
        """Recover and get ready to append. Raises Damaged when this directory must not be opened; it is left as it was then."""
        try:
            lock_directories(self.disk, self.root, self.log.segments.directory, self.locks)
            self.is_open = True
            opening.recover(self, first_look.look(self), progress)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Let go of everything and write nothing: a start was refused, or failed half way, and the next one must find it so."""
        self.files.close()
        self.locks.close()
        self.is_open = False

    def close(self) -> None:
        """A clean stop: everything on disk, the checkpoint last, the abort file gone."""
        if not self.is_open:
            return
        with contextlib.suppress(StoreUnavailable):
            self.commit()
        try:
            if not self.trouble.failed:
                self._close_cleanly()
        except OSError as error:
            log.error("the store could not be closed cleanly: %s. The next start reads the log again and mends what is missing.", error)
        self.log.give_up()
        self.abandon()

    def _close_cleanly(self) -> None:
        """Each step only after the one before: whoever finds no abort file may trust everything else."""
        self.flush_now()
        if self.ledger is not None:
            if not self.applier.following:
                self.applier.follow()  # what is not committed keeps no entries
            self.ledger.close()
        if self.applier.following:
            self.applier.finish()
            if self.log.safe < self.log.written and self.ledger is None:
                self.log.truncate(self.log.safe)  # half a record: the other node sends it again
        self.derived.close(self.timeline.last_ms)
        self.disk.remove(f"{self.root}/abort")
        self.disk.sync_dir(self.root)

    # Writing

    def begin(self, now_ms: int) -> None:
        """A tick begins; `now_ms` is the wall time, and the store time of its messages. Along the log it rises, and stands still while a
        clock is put right by less than a second. Where the clock was set back it begins anew, and searches by time know the place."""
        self.steady_ms = self.clock.steady_ms()
        if now_ms > self.staging.now_ms:
            self.staging.now_ms = now_ms
        elif self.staging.now_ms - now_ms >= STEP_MS:
            self.staging.now_ms = now_ms
            self.timeline.note_set_back(self.log.written)
            self.derived.sync_due_ms = 0  # the checkpoint of before speaks of times that come again

    def commit(self) -> None:
        """Write the tick's messages. Raises StoreUnavailable when they could not be written; then none of them exists."""
        if self.log.end == self.log.written:
            return
        if self.applier.following:
            self.undo()
            raise StoreUnavailable(FOLLOWS)
        mark = (self.log.written, self.timeline.last_ms)
        try:
            self.log.commit()
        except OSError as error:
            self.undo()
            raise self.trouble.cannot_write(error) from error
        staged, self.staging.staged = self.staging.staged, []
        try:
            self._written(staged, mark)
        except Exception:  # they are written: whoever sent them must be told so
            log.exception("! what follows a write of the log failed")

    def _written(self, staged: list[Staged], mark: tuple[int, int]) -> None:
        self.write_ms = took_ms = self.clock.steady_ms() - self.steady_ms
        if took_ms >= SLOW_MS:
            self.on_slow_write(took_ms)
        self.timeline.last_ms = self.staging.now_ms
        waiting, seen, awaited = self.tails.waiting, self.log.safe >= self.log.written, False
        for queue, _, after, _ in staged:  # one loop for both: most reads have something for most queues
            if queue not in waiting:
                waiting[queue] = mark
            if seen:
                queue.visible = after
                if queue.on_visible is not None:
                    awaited = True
        if awaited:
            self.showing.wake(staged)
        if not seen:
            self.showing.show_when_safe(staged)
            if self.log.wants_flush:
                self.flush.begin()
        if len(self.index.runs) > SETTLE_MOST * KEY.size or len(self.index.pending) > SETTLE_MOST:
            self.derived.settle_many()

    # Time

    def tick(self, now_ms: int) -> None:
        self.log.expire(now_ms)
        self.trouble.tick(now_ms)
        self.flush.tick(now_ms)
        self.applier.tick()
        if self.ledger is not None:
            self.ledger.tick(now_ms)
        self.derived.tick(now_ms)
        self.old_files.tick(now_ms)

    def settings_changed(self, names: AbstractSet[str]) -> None:
        if names & {"flush_interval_commit_log", "flush_interval_consume_queue"}:
            self.flush.due_ms = self.derived.tails_due_ms = 0  # a new interval begins at once

    def __repr__(self) -> str:
        return f"<Store {self.root} {self.log!r} {len(self.queues)} queues>"
