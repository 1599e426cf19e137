"""The store: one log, and the queues, the index and the checkpoint that are derived from it.

One owner calls it, from one thread. A tick is: `put` any number of messages, then `commit` once. What may block (fsync, a
look at all queues) goes through `background` and comes back as a call on the owner's thread.

Nothing is shown to a consumer that a crash the configured flush level protects against could erase: a queue's `visible`
follows the log's `safe` mark, which is `written` under ASYNC_FLUSH and `flushed` under SYNC_FLUSH.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime

import numpy as np

from roquet.errors import Damaged, StoreUnavailable
from roquet.ports import FOREVER, Background, Clock
from roquet.settings import BrokerSettings, delay_levels_ms
from roquet.store import lost, retention
from roquet.store.checkpoint import Checkpoint
from roquet.store.deletions import DELETED, Deletion, Deletions
from roquet.store.disk import Cold, Disk, is_shortage
from roquet.store.documents import Document
from roquet.store.fanout import queue_tag
from roquet.store.index import KeyIndex
from roquet.store.log import CommitLog, Log
from roquet.store.mending import Mender
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.store.queue_sync import QueueSync
from roquet.store.recovery import Manifest, Progress, Recovery, first_at_or_after, firsts_of, index_names, queue_key, times_of
from roquet.store.retention import HOUR_MS, LogFile
from roquet.store.scan import CHUNK, Hole, parse
from roquet.store.segments import OpenFiles, Segments, file_name
from roquet.store.staging import Staged, Staging
from roquet.store.times import Times
from roquet.store.wall import STEP_MS, WallWatch, span_text
from roquet.wire.layout import (
    BLANK_LENGTH,
    ENTRIES,
    RECORD_MIN,
    TIMED,
    store_time_of,
)

log = logging.getLogger("roquet.store")

SETTLE_AT = 1_024
"""Pending index keys that are hashed together."""

SLOW_MS = 100
TIMES_LOOKED_AT = 256
"""Messages among which one is looked for whose time can be told."""
PAUSE_MS = 1_000
"""After a failure to make a log file nobody tries again for so long."""

QUERY_SIZE_MAX = 15 * 1024 * 1024
"""Bytes of one query's records: they must fit a frame."""

SET_BACKS_MAX = 64
"""Places in the log that are kept where the clock was set back; with more than that, searches by time know the newest only."""

DOUBT_MS = 3_600_000
"""A broker whose log files all look expired at its start waits this long before it believes the clock."""

TAILS_MS = 5
"""How long one tick writes queue entries into their files; the others wait for the next. A queue costs one write whatever it got,
so entries wait in memory (20 bytes each) for one round over the queues that got some: 8,000 of them take a second."""

SIZES_LOOKED_AT = 256
"""Queue files that tell which size they all have."""

PUT_AWAY = "deleted"
"""Directory of what is being removed."""

EXPIRE_MS = 5
"""How long one tick lets go of expired queue entries."""

SYNC_DERIVED_MS = 10_000
"""Queues and index are synced this often; after a crash at most so much of the log is read again."""


SHORTAGE_TOLD_MS = 60_000
"""How often the log says that files are short."""


class Store:
    """State: `queues` by (topic, queue); `staging` is this tick's puts; `_unsafe` is written but not yet safe to show."""

    def __init__(self, disk: Disk, settings: BrokerSettings, clock: Clock, background: Background) -> None:
        self.disk = disk
        self.settings = settings
        self.clock = clock
        self.background = background
        self.root = root = settings.store_path_root_dir
        self.files = OpenFiles(disk)
        directory = settings.store_path_commit_log or f"{root}/commitlog"
        segments = Segments(self.files, directory, settings.mapped_file_size_commit_log)
        self.log: Log = CommitLog(segments, sync_flush=settings.flush_disk_type == "SYNC_FLUSH")
        self.log.on_safe(self._show_safe)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._ids: dict[str, set[int]] = {}  # topic -> ids that `queues` may hold of it: nobody looks through 100,000 queues for one topic
        self.index = KeyIndex(disk, f"{root}/index", slots_max=settings.max_hash_slot_num, entries_max=settings.max_index_num, clock=clock)
        self.checkpoint = Checkpoint(disk, f"{root}/checkpoint")
        self.manifest = Document(disk, f"{root}/config/roquet.json")
        self.mender = Mender(
            self.log, lambda topic, text, store_ms: queue_tag(topic, text, store_ms, self.delays_ms), lambda queue: self._dirty.add(queue)
        )
        self.deletions = Deletions(disk, f"{root}/config/{DELETED}", background)
        self.delays_ms = delay_levels_ms(settings.message_delay_level)
        self.staging = staging = Staging(self.log, self.index, self.delays_ms, clock.now_ms(), self._cannot_roll)
        self.put, self.put_derived, self.put_batch, self.put_columns = (
            staging.put,
            staging.put_derived,
            staging.put_batch,
            staging.put_columns,
        )
        self.undo, self.together = staging.undo, staging.together
        self.wall = WallWatch(clock)
        self.steady_ms = clock.steady_ms()
        """When this tick began, for deadlines."""
        self.failed = ""
        """Why no write is taken any more; a failed fsync sets it for good."""
        self.full = ""
        """Why no write is taken for now: the disk."""
        self.paused = ""
        """Why no write is taken for a second: no new file could be opened or made. Nothing was lost by that, and it is tried again."""
        self._pause_due_ms = -1
        self.crashed = False
        """Whether the run before this one ended without a clean stop; known after `open`."""
        self.recovered_records = 0
        self.holes: list[Hole] = []
        """Damaged places that recovery found in the log."""
        self.missing: list[str] = []
        """Documents of config/ that were there when the store was last written, and are gone."""
        self.on_counted: Callable[[str, int, int], None] = lambda topic, count, size: None
        """(topic, messages, bytes) appended since the last time, about once a second: statistics cost a send nothing."""
        self.on_slow_write: Callable[[int], None] = lambda took_ms: None
        """A tick from its begin to its write took this long, which is longer than SLOW_MS."""
        self.flushing_since_ms = -1
        """Since when (steady time) an fsync of the log is under way; -1 when none is."""
        self.may_drop: Callable[[int], bool] = lambda end: True
        """Asked before a log file goes, with where it ends: is nothing below needed any more? If not, it is asked again later."""
        self._release: Callable[[], None] | None = None
        self._unsafe: deque[Staged] = deque()
        self._last_store_ms = 0
        self._flushing = False
        self._flush_due_ms = self._tails_due_ms = self._derived_due_ms = self._retention_due_ms = 0
        self._syncing_derived = False
        self._derived_at_work = False  # the part of it that runs in the background
        # Queues with entries that are not in their file yet, in the order of the log: where it ended before the oldest of them, and
        # the store time then. So the first one tells up to where all queue files are complete.
        self._tails: OrderedDict[ConsumeQueue, tuple[int, int]] = OrderedDict()
        self._dirty: set[ConsumeQueue] = set()  # queues whose file was written since its last sync
        self._delete_now = 0
        self._ages_due_ms = 0  # before this (steady) time no log file goes for its age
        self.overtaken: list[tuple[int, int]] = []
        """(start, end) of stretches of the log in which a record may have outlived one that was written before it."""
        self.set_backs: list[int] = []
        """Log offsets where the wall clock had been set back: between two of them store times rise."""
        self._reserve = True  # when writes are refused: there is room for the broker's own
        self._shortage_told_ms = 0
        self._expired: deque[tuple[ConsumeQueue, int]] = deque()  # queues that have entries to let go of, and the first to keep
        self._unlinks: deque[str] = deque()  # log files that are to go
        self._unlinking = False
        self._times = (0, 0, 0)  # as the checkpoint's file has them
        self.checkpointed = -1
        """Up to here the derived files are on disk."""

    # Opening and closing

    @property
    def is_open(self) -> bool:
        return self._release is not None

    @property
    def busy(self) -> bool:
        """A sync is under way in the background. A clean stop waits for it, to hear if it failed."""
        return self._flushing or self._derived_at_work or self._unlinking

    def open(self, progress: Progress = lambda what, done, total: None) -> None:
        """Recover and get ready to append. Raises Damaged when this directory must not be opened; it is left as it was then."""
        self._lock()
        try:
            manifest = self._look()
            self._recover(manifest, progress)
        except BaseException:
            self.abandon()
            raise

    def _lock(self) -> None:
        """Every directory that is written: the store's root as upstream locks it, and the log's, which may be elsewhere."""
        disk, root, directory = self.disk, self.root, self.log.segments.directory
        releases: list[Callable[[], None]] = []

        def release_all() -> None:
            for release in reversed(releases):
                release()

        self._release = release_all
        for path, made, setting in ((f"{root}/lock", root, "storePathRootDir"), (directory, directory, "storePathCommitLog")):
            disk.make_dir(made)
            try:
                releases.append(disk.lock(path))
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF) and path is directory:
                    log.warning("%s cannot be locked (%s): take care that no other broker uses it", path, error)
                    continue
                self.abandon()
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise Damaged(f"{made} is in use by another broker: stop that one, or choose another {setting}") from None

    def _look(self) -> Manifest | None:
        """Whatever can refuse a start is looked at here, before anything is written."""
        disk, root, segments = self.disk, self.root, self.log.segments
        self.crashed = disk.exists(f"{root}/abort")
        self.checkpoint.load()
        self._times = times_of(self.checkpoint)
        manifest = self.manifest.load(Manifest.decode)
        if self.manifest.warning:
            log.error("%s. Without it more of the log is read again, and nothing else is lost.", self.manifest.warning)
        for setting, size in self._sizes().items():
            given = manifest.sizes.get(setting, size) if manifest is not None else size
            if given != size:
                raise Damaged(f"{setting} is {size}, but {root} was written with {given}: set it as it was, sizes of files cannot change")
        if manifest is None:
            self._look_at_queue_files()
        segments.load(crashed=self.crashed)
        if manifest is not None:
            if manifest.end and not segments.bases:
                raise Damaged(
                    f"{segments.directory} holds no file, but the log of this store had reached offset {manifest.end}. If it is on a "
                    "disk of its own: is that mounted? If its messages are lost for good, remove roquet.json and roquet.json.bak from "
                    f"{root}/config: then a new log begins, and topics, groups and the numbers of queues stay"
                )
            if segments.start > manifest.start:
                log.error(
                    "%s begins at offset %d, and began at %d when this store was last written: %s. The messages of the files before %s "
                    "cannot be read; bring these files back from a backup while the broker is stopped",
                    segments.directory, segments.start, manifest.start,
                    "unless retention removed them just before the crash, files are missing" if self.crashed else "files are missing",
                    file_name(segments.start),
                )  # fmt: skip
            present = set(disk.list(f"{root}/config"))
            self.missing = sorted(name for name in manifest.documents if not present & {name, f"{name}.bak"})
            self._compare_checkpoint(manifest)
        elif segments.bases and not self.manifest.warning:
            log.warning("%s is missing. Where Apache RocketMQ wrote last that is so; more of the log is read again", self.manifest.path)
        return manifest

    def _compare_checkpoint(self, manifest: Manifest) -> None:
        times = times_of(self.checkpoint)
        if manifest.fits(times):
            return
        if not self.disk.exists(self.checkpoint.path):
            log.error("%s is missing: more of the log is read again, and nothing is lost", self.checkpoint.path)
        else:
            log.warning(
                "%s says %s, and %s says that it should say %s: another program wrote here since, it is damaged, or the broker was killed "
                "between writing the two. More of the log is read again, and nothing is lost",
                self.checkpoint.path, times, self.manifest.path, manifest.checkpoint,
            )  # fmt: skip

    def _look_at_queue_files(self) -> None:
        """Nobody remembers their size (Apache RocketMQ wrote here last): where they all have the same and it is another, the setting is
        wrong. One alone may be damaged, and is derived again."""
        disk, where, sizes = self.disk, f"{self.root}/consumequeue", set[int]()
        directories = (f"{where}/{topic}/{name}" for topic in disk.list(where) for name in disk.list(f"{where}/{topic}") if name.isdigit())
        paths = (f"{directory}/{name}" for directory in directories for name in disk.list(directory) if len(name) == 20 and name.isdigit())
        count = 0
        for path in itertools.islice(paths, SIZES_LOOKED_AT):
            sizes.add(disk.size(path))
            count += 1
        expected = self.settings.mapped_file_size_consume_queue
        if count > 1 and len(sizes) == 1 and expected not in sizes and not (size := sizes.pop()) % ENTRY_SIZE and size:
            raise Damaged(
                f"mappedFileSizeConsumeQueue is {expected}, but the files in {where} have {size} bytes: set it as it was when they were "
                "written, or remove that directory to have it derived from the log anew"
            )

    def _sizes(self) -> dict[str, int]:
        settings = self.settings
        return {
            "mappedFileSizeCommitLog": settings.mapped_file_size_commit_log,
            "mappedFileSizeConsumeQueue": settings.mapped_file_size_consume_queue,
        }

    def _recover(self, manifest: Manifest | None, progress: Progress) -> None:
        disk, root, crashed = self.disk, self.root, self.crashed
        for directory in (f"{root}/config", f"{root}/consumequeue", f"{root}/index"):
            disk.make_dir(directory)
        # The store's own name must be safe too: with it a power loss would take everything, synced or not.
        disk.sync_dir(root.rstrip("/").rpartition("/")[0] or ("/" if root.startswith("/") else "."))
        # From here on a crash must be seen as one, also while recovering.
        disk.open(f"{root}/abort", size=0).close()
        disk.sync_dir(root)
        self.deletions.load()
        self._tidy_deleted()
        for topic in disk.list(f"{root}/consumequeue"):
            for name in disk.list(f"{root}/consumequeue/{topic}"):
                if name.isdigit():
                    self.queue(topic, int(name))
        recovery = Recovery(
            self.log.segments,
            self.queues,
            self.queue,
            self.index if self.settings.message_index_enable else None,
            self.checkpoint,
            manifest,
            self.delays_ms,
            crashed=crashed,
            check_crc=self.settings.check_crc_on_recover,
            progress=progress,
            deletions=self.deletions,
        )
        end = recovery.run()
        self.recovered_records = recovery.records
        self.holes = recovery.holes
        if end == 0 and recovery.manifest is None:
            # A new store tells its broker's name from its first message on: who reads the files keeps positions under that name.
            self.manifest.save(self._manifest(clean=False, end=0).encode())
        self._last_store_ms = recovery.last_store_ms or self.checkpoint.log_ms
        self.set_backs = recovery.set_backs[-SET_BACKS_MAX:]
        self.overtaken = recovery.overtaken[-SET_BACKS_MAX:]
        lost.cut(disk, self.log.segments, root, end, self.clock.now_ms())
        if crashed:
            self._make_sure(recovery.sure, end)
        self.log.start_at(end)
        self._dirty = set(self.queues.values())
        self._tails = OrderedDict((queue, (0, 0)) for queue in self.queues.values() if queue.tail)
        # What recovery read back may exist in memory only: make it safe before anything builds on it.
        _, work = self.log.syncer()
        work()
        self.staging.now_ms = self.clock.now_ms()
        if self.now_ms < self._last_store_ms:
            self._note_set_back()
        self._doubt_the_clock()

    def _doubt_the_clock(self) -> None:
        """Everything would be expired at once: nobody was here for long, or the clock is wrong. That is looked at before files go."""
        idle_ms = self.now_ms - self._last_store_ms
        if self.log.written > self.log.start and idle_ms >= self.settings.file_reserved_time * HOUR_MS:
            self._ages_due_ms = self.clock.steady_ms() + DOUBT_MS
            log.warning(
                "the last message was stored %s ago by this machine's clock, which is more than fileReservedTime=%d h. If the clock is "
                "wrong, set it right within %s: until then no log file goes for its age",
                span_text(idle_ms), self.settings.file_reserved_time, span_text(DOUBT_MS),
            )  # fmt: skip

    def _make_sure(self, start: int, end: int) -> None:
        """After a crash: what recovery read back may exist in memory only, in any log file, and must be safe before anything
        builds on it. It is written again, because after a failed fsync the system takes pages for clean that never reached
        the disk, and a sync alone would do nothing."""
        segments = self.log.segments
        segments.drop_from(end)
        self.disk.sync_dir(segments.directory)
        for base in segments.bases:
            file = segments.file(base)
            at, stop = max(start, base), min(end, base + segments.size)
            while at < stop:
                data = file.read(at - base, min(CHUNK, stop - at))
                file.write(at - base, data)
                at += len(data)
            file.sync()

    def abandon(self) -> None:
        """Let go of everything and write nothing: a start was refused, or failed half way, and the next one must find it so."""
        self.files.close()
        if self._release is not None:
            self._release()
            self._release = None

    def close(self) -> None:
        """A clean stop: everything on disk, the checkpoint last, the abort file gone."""
        if self._release is None:
            return
        with contextlib.suppress(StoreUnavailable):
            self.commit()
        try:
            if not self.failed:
                self._close_cleanly()
        except OSError as error:
            log.error("the store could not be closed cleanly: %s. The next start reads the log again and mends what is missing.", error)
        self.log.give_up()
        self.files.close()
        self._release()
        self._release = None

    def flush_now(self) -> None:
        """Make everything written so far safe, and wait for it: for a clean stop. Raises OSError, and then the store has failed."""
        target, work = self.log.syncer()
        try:
            work()
        except OSError as error:
            self.fail(f"fsync of the log failed: {error}")
            raise
        self.log.note_flushed(target)

    def _close_cleanly(self) -> None:
        """Each step only after the one before: whoever finds no abort file may trust everything else."""
        self.flush_now()
        target = self.log.written
        self._write_tails()
        if self._tails:
            raise OSError(errno.ENOSPC, f"{len(self._tails)} queues have entries that are not in their files")
        for queue in self._dirty:
            queue.syncer()[0]()
        self._settle()
        index_ms = self.index.sync()
        self.checkpoint.note(log_ms=self._last_store_ms, queues_ms=self._last_store_ms, index_ms=index_ms)
        self.manifest.save(self._manifest(clean=True, end=target).encode())
        self.checkpoint.save()
        self.index.close()
        self.disk.remove(f"{self.root}/abort")
        self.disk.sync_dir(self.root)

    # Queues

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """This queue, made if it is not there yet. Names were checked where they came in; a path is built from this one."""
        found = self.queues.get((topic, queue_id))
        if found is None:
            segments = Segments(self.files, f"{self.root}/consumequeue/{topic}/{queue_id}", self.settings.mapped_file_size_consume_queue)
            found = self.queues[topic, queue_id] = ConsumeQueue(topic, queue_id, segments)
            self._ids.setdefault(topic, set()).add(queue_id)
        return found

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.queues.get((topic, queue_id))

    def topics(self) -> list[str]:
        """Names of which there are queues."""
        return list(self._ids)

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        found = (self.queues.get((topic, queue_id)) for queue_id in sorted(self._ids.get(topic, ())))
        return [queue for queue in found if queue is not None]

    def delete_topic(self, topic: str, topics_version: int = 0, done: Callable[[Exception | None], None] = lambda error: None) -> None:
        """Remove the topic's queues. Its records stay in the log until their file goes, and nothing leads to them any more.

        `done` is called when that is on disk: with it a crash cannot bring the topic back. Nothing of the topic may be staged.
        """
        queues, mark = self.queues_of(topic), self.log.written
        directory, aside = f"{self.root}/consumequeue/{topic}", f"{self.root}/{PUT_AWAY}/{topic}.{mark}"
        try:
            self.disk.make_dir(f"{self.root}/{PUT_AWAY}")
            if self.disk.is_dir(directory):
                self.disk.rename(directory, aside)  # at once, so that the topic can be made again; the files go later
        except OSError as error:
            log.warning("%s could not be moved aside, it is removed here: %s", directory, error)
            self.disk.remove_tree(directory)
        held: list[object] = []  # open files and the queues: tens of thousands, which are closed and freed elsewhere
        for queue in queues:
            del self.queues[topic, queue.queue_id]
            self._tails.pop(queue, None)
            self._dirty.discard(queue)
            held += (queue, *queue.segments.forget_all())
            if queue.on_visible is not None:
                queue.on_visible(queue)
        self._ids.pop(topic, None)

        def remove() -> None:
            while held:
                held.pop()
            self.disk.remove_tree(aside)

        def removed(result: Exception | None) -> None:
            if isinstance(result, Exception):
                log.warning("%s could not be removed: %s. The next start tries again", aside, result)

        def noted(error: Exception | None) -> None:
            if error is None:
                self.background.run(remove, removed)
            done(error)

        used = any(queue.next for queue in queues)
        queues.clear()
        if used:
            self.deletions.note(topic, Deletion(mark, topics_version), noted)
        else:
            noted(None)  # the log holds nothing of it

    def _tidy_deleted(self) -> None:
        """At the start: finish deletions that a crash cut off, and take back those that were not on disk yet."""
        place = f"{self.root}/{PUT_AWAY}"
        for name in self.disk.list(place):
            topic, _, mark = name.rpartition(".")
            directory = f"{self.root}/consumequeue/{topic}"
            if mark.isdigit() and topic and not self.deletions.stale(topic, int(mark) - 1) and not self.disk.is_dir(directory):
                log.warning("topic %s was being deleted when the broker was killed: it is kept", topic)
                self.disk.rename(f"{place}/{name}", directory)
        self.disk.remove_tree(place)

    # Writing

    @property
    def now_ms(self) -> int:
        """Wall time of this tick: the store time of its messages."""
        return self.staging.now_ms

    @property
    def store_host(self) -> bytes:
        """This broker's address, as its records carry it."""
        return self.staging.store_host

    @store_host.setter
    def store_host(self, host: bytes) -> None:
        self.staging.store_host = host

    def refuse_writes(self) -> str:
        """Why no message can be stored now, or ""."""
        return self.failed or self.full or self.paused

    def refuse_own(self) -> str:
        """The same for what the broker itself puts to keep a promise: moves, deliveries, ends of transactions. They have a reserve."""
        return self.failed or ("" if self._reserve else self.full) or self.paused

    def begin(self, now_ms: int) -> None:
        """A tick begins; `now_ms` is the wall time, and the store time of its messages. Along the log it rises, and stands still while a
        clock is put right by less than a second. Where the clock was set back it begins anew, and searches by time know the place."""
        self.steady_ms = self.clock.steady_ms()
        if now_ms > self.staging.now_ms:
            self.staging.now_ms = now_ms
        elif self.staging.now_ms - now_ms >= STEP_MS:
            self.staging.now_ms = now_ms
            self._note_set_back()
            self._derived_due_ms = 0  # the checkpoint of before speaks of times that come again

    def _note_set_back(self) -> None:
        if not self.set_backs or self.set_backs[-1] < self.log.written:
            self.set_backs = [*self.set_backs, self.log.written][-SET_BACKS_MAX:]

    def commit(self) -> None:
        """Write the tick's messages. Raises StoreUnavailable when they could not be written; then none of them exists."""
        if self.log.end == self.log.written:
            return
        mark = (self.log.written, self._last_store_ms)
        try:
            self.log.commit()
        except OSError as error:
            self.undo()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._is_full(error)
            else:
                self.fail(f"writing the log failed: {error}")
            raise StoreUnavailable(self.refuse_writes()) from error
        staged = self.staging.take()
        try:
            self._written(staged, mark)
        except Exception:  # they are written: whoever sent them must be told so
            log.exception("! what follows a write of the log failed")

    def _written(self, staged: list[Staged], mark: tuple[int, int]) -> None:
        took_ms = self.clock.steady_ms() - self.steady_ms
        if took_ms >= SLOW_MS:
            self.on_slow_write(took_ms)
        self._last_store_ms = self.now_ms
        tails = self._tails
        for queue, _, _, _ in staged:
            if queue not in tails:
                tails[queue] = mark
        if self.log.safe >= self.log.written:
            self._show(staged)
        else:
            self._unsafe.extend(staged)
        if self.log.wants_flush:
            self._flush()
        if self.index.waiting >= SETTLE_AT:
            self._settle()

    def _is_full(self, error: OSError) -> None:
        self.full = f"the disk is full: {error}"
        self._reserve = False
        self._retention_due_ms = 0

    def _cannot_roll(self, error: OSError) -> StoreUnavailable:
        """No new log file could be made. Nothing has changed by that, so writes go on as soon as it can."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._is_full(error)
        elif not self.paused:
            self.paused = f"no new log file can be made: {error}"
            self._pause_due_ms = -1
            log.error("%s; it is tried again every second, and messages are refused until then", self.paused)
        return StoreUnavailable(self.refuse_writes())

    def _end_pause(self, now_ms: int) -> None:
        if self._pause_due_ms < 0:
            self._pause_due_ms = now_ms + PAUSE_MS
        elif now_ms >= self._pause_due_ms:
            self.paused = ""

    def fail(self, why: str) -> None:
        """Stop taking writes for good: what the disk holds can no longer be told."""
        if not self.failed:
            self.failed = why
            log.error("%s; no more messages are taken. Check the disk, then restart the broker.", why)
            self.log.give_up()

    def short_of_files(self, error: object) -> None:
        """What needed a file descriptor was not done, and is tried again by itself."""
        if self.clock.steady_ms() >= self._shortage_told_ms:
            self._shortage_told_ms = self.clock.steady_ms() + SHORTAGE_TOLD_MS
            log.warning("there are too few file descriptors, the store waits for some: %s. Raise the limit (ulimit -n).", error)

    def _show(self, staged: Iterable[Staged]) -> None:
        woken: dict[ConsumeQueue, None] = {}
        for queue, _, after, _ in staged:
            queue.visible = after
            if queue.on_visible is not None:
                woken[queue] = None
        for queue in woken:
            if queue.on_visible is not None:
                try:
                    queue.on_visible(queue)
                except Exception:  # one that waits must not keep the others from hearing
                    log.exception("! looking at the new messages of %s/%d failed", queue.topic, queue.queue_id)

    def _show_safe(self) -> None:
        """The log's safe mark has risen: show what it now covers."""
        safe, unsafe, shown = self.log.safe, self._unsafe, []
        while unsafe and unsafe[0][3] <= safe:
            shown.append(unsafe.popleft())
        if shown:
            self._show(shown)

    # Flushing

    def _flush(self) -> None:
        """Group commit: one fsync at a time; whoever comes while it runs shares the next one."""
        if self._flushing or self.failed or self.log.written <= self.log.flushed:
            return
        try:
            target, work = self.log.syncer()
        except OSError as error:
            if is_shortage(error):
                self.short_of_files(error)
            else:
                self.fail(f"the log could not be opened for its fsync: {error}")
            return
        self._flushing = True
        self.flushing_since_ms = self.clock.steady_ms()
        last_ms = self._last_store_ms

        def done(result: object) -> None:
            self._flushing = False
            self.flushing_since_ms = -1
            if is_shortage(result):
                self.short_of_files(result)  # the next tick tries again
                self.log.segments.new_since_sync = True
                return
            if isinstance(result, Exception):
                self.fail(f"fsync of the log failed: {result}")
                return
            self.checkpoint.note(log_ms=last_ms)
            self.log.note_flushed(target)
            if self.log.wants_flush:
                self._flush()

        self.background.run(work, done)

    def _settle(self) -> None:
        if not self.settings.message_index_enable:
            self.index.forget_from(0)
            return
        staged = self.index.forget_from(self.log.written)  # what may be undone yet stays out of the files
        try:
            self.index.settle()
        except OSError as error:
            # The log has the keys; the index is a convenience that catches up when there is room again.
            log.warning("the index could not be written: %s", error)
        finally:
            self.index.take_back(staged)

    def _write_tails(self, until_ms: int = FOREVER) -> None:
        """Those that have waited longest first, and entries of committed messages alone: what is only staged may be undone yet.
        `until_ms`: steady time after which the others wait for the next tick."""
        tails, steady_ms = self._tails, self.clock.steady_ms
        staged: dict[ConsumeQueue, int] = {}
        for queue, before, _, _ in self.staging.staged:
            staged.setdefault(queue, before)
        while tails:
            queue = next(iter(tails))
            if self.queues.get((queue.topic, queue.queue_id)) is not queue:
                del tails[queue]  # its topic was deleted in the tick that wrote it: the file is another queue's now
                continue
            stop = staged.get(queue, queue.next)
            sizes = np.frombuffer(bytes(queue.tail[: (stop - queue.tail_start) * ENTRY_SIZE]), dtype=ENTRIES)["size"]
            try:
                queue.write_tail(stop)
            except OSError as error:
                if is_shortage(error):
                    self.short_of_files(error)
                    return
                log.warning("queue %s/%d could not be written: %s", queue.topic, queue.queue_id, error)
                self.full = self.full or f"the disk is full: {error}"
                return
            del tails[queue]
            self._dirty.add(queue)
            self.on_counted(queue.topic, len(sizes), int(sizes.sum()))
            if steady_ms() >= until_ms:
                return

    def _covered(self) -> tuple[int, int]:
        """Below this log offset all entries are in the queues' files, and the store time there."""
        first = next(iter(self._tails.values()), None)
        return (self.log.written, self._last_store_ms) if first is None else first

    def _sync_derived(self) -> None:
        """Queues and index on disk, then the checkpoint that says so. The log comes first: entries must not outrun it."""
        if self._syncing_derived or self.failed or (self.log.written == self.checkpointed and not self._dirty):
            return
        self._syncing_derived = True
        self._write_tails(self.clock.steady_ms() + TAILS_MS)
        self._settle()
        end, last_ms = self._covered()
        all_written = not self.index.waiting and end >= max(self.checkpointed, self.log.start)
        dirty, self._dirty = self._dirty, set()
        queues = list(self.queues.values())
        # What is in their files now is behind the flush that comes first. What is written meanwhile waits for the next sync.
        stops = {queue: queue.tail_start for queue in dirty}
        checkpoint = self.checkpoint
        not_done: list[Callable[[], None]] = []

        def log_flushed(flushed: bool) -> None:
            if not flushed:
                self._dirty |= dirty
                self._syncing_derived = False
                return
            self._derived_at_work = True
            QueueSync(stops, not_done, self.background, sync_index).begin()

        def sync_index(error: Exception | None) -> None:
            if error is not None:
                synced(error)
                return
            try:
                index_work = self.index.begin_sync()
            except OSError as index_error:
                synced(index_error)
                return
            self.background.run(index_work, synced)

        def synced(result: int | Exception) -> None:
            self._derived_at_work = False
            if is_shortage(result):
                self.short_of_files(result)
                for undo in not_done:
                    undo()
                self._dirty |= {queue for queue in dirty if self.queues.get((queue.topic, queue.queue_id)) is queue}
                self._syncing_derived = False
                return
            if isinstance(result, Exception):
                self._syncing_derived = False
                self.fail(f"fsync of queues or index failed: {result}")
                return
            if not all_written:  # neither is written then: they must agree, or the next start trusts none of the numbers of queues
                self._syncing_derived = False
                return
            checkpoint.note(queues_ms=last_ms, index_ms=result)
            times, indexes = times_of(checkpoint), index_names(self.index)
            save_checkpoint = checkpoint.begin_save()

            def save() -> None:
                # Here, since it goes over all queues. What is synced of a queue does not change while this is under way.
                counts = {queue_key(queue): queue.synced for queue in queues}
                # Before the checkpoint: on a full disk that, which is written in place, can be written and this cannot.
                self.manifest.save(self._manifest_with(False, end, times, counts, indexes, firsts_of(queues)).encode())
                save_checkpoint()
                self._times = times

            self._derived_at_work = True
            self.background.run(save, saved)

        def saved(result: Exception | None) -> None:
            self._syncing_derived = self._derived_at_work = False
            if isinstance(result, Exception):
                log.warning("the checkpoint could not be written: %s", result)
            else:
                self.checkpointed = end

        # All that is written, though less is vouched for: who waits for the flush stands in the order of the log.
        self.log.when_durable(self.log.written, self.clock.steady_ms() + self.settings.sync_flush_timeout, log_flushed)
        self._flush()

    def _manifest(self, *, clean: bool, end: int) -> Manifest:
        queues = {queue_key(queue): queue.next for queue in self.queues.values()}
        firsts = firsts_of(self.queues.values())
        return self._manifest_with(clean, end, times_of(self.checkpoint), queues, index_names(self.index), firsts)

    def _manifest_with(
        self, clean: bool, end: int, times: tuple[int, int, int], queues: dict[str, int], indexes: list[str], firsts: dict[str, int]
    ) -> Manifest:
        names = [name for name in self.disk.list(f"{self.root}/config") if name.endswith(".json")]
        return Manifest(
            clean, end, times, queues, indexes, self.settings.broker_name, self._sizes(), names,
            [place for place in self.set_backs if place > self.log.start],
            [(start, stop) for start, stop in self.overtaken if stop > self.log.start],
            self.log.start, firsts, self._times,
        )  # fmt: skip

    # Time

    def settings_changed(self, names: AbstractSet[str]) -> None:
        if names & {"flush_interval_commit_log", "flush_interval_consume_queue"}:
            self._flush_due_ms = self._tails_due_ms = 0  # a new interval begins at once

    def tick(self, now_ms: int) -> None:
        self.log.expire(now_ms)
        if self.paused:
            self._end_pause(now_ms)
        settings = self.settings
        if now_ms >= self._flush_due_ms:
            self._flush_due_ms = now_ms + settings.flush_interval_commit_log
            self._flush()
        if now_ms >= self._tails_due_ms:
            self._write_tails(self.clock.steady_ms() + TAILS_MS)
            self._settle()
            if not self._tails or self.full:
                self._tails_due_ms = now_ms + settings.flush_interval_consume_queue
        if now_ms >= self._derived_due_ms:
            self._derived_due_ms = now_ms + SYNC_DERIVED_MS
            self._sync_derived()
        if now_ms >= self._retention_due_ms and not self._unlinking:  # before they are gone, the disk looks fuller than it is
            self._retention_due_ms = now_ms + settings.clean_resource_interval
            self._retain(now_ms)
        if self._expired:
            self._expire_some()

    # Retention

    def delete_expired_now(self) -> None:
        """An operator asked (code 329): the next rounds treat the hour as right."""
        self._delete_now = 20
        self._retention_due_ms = 0

    def _retain(self, now_ms: int) -> None:
        segments = self.log.segments
        wall_ms = self.clock.now_ms()
        ages = self.wall.ages_ms([self.disk.mtime_ms(segments.path(base)) for base in segments.bases])
        if now_ms < self._ages_due_ms:
            ages = [0] * len(ages)
        log_ratio, root_ratio = self.disk.used_ratio(segments.directory), self.disk.used_ratio(self.root)
        self._reserve = max(log_ratio, root_ratio) < retention.RESERVE_RATIO
        decision = retention.decide_for_both(
            [LogFile(base, wall_ms - age) for base, age in zip(segments.bases, ages, strict=True)],
            self.settings,
            (segments.directory, log_ratio),
            (self.root, root_ratio),
            now_ms=wall_ms,
            hour=datetime.fromtimestamp(wall_ms / 1000).hour,
            manual=self._delete_now > 0,
            writable=not self.full,
        )
        self._delete_now = max(0, self._delete_now - 1)
        if not decision.writable:
            if not self.full:
                log.error("%s", decision.reason)
            self.full = decision.reason
        elif self.full:
            log.warning("writes are taken again: there is room on the disk")
            self.full = ""
        start = segments.start
        for file in decision.delete:
            if not self.may_drop(file.base + segments.size):
                log.info("%s stays for now: pending timed, delayed or prepared messages move out of it first", segments.path(file.base))
                break
            assert file.base == segments.bases[0] != segments.bases[-1], "only the oldest file may go, never the last"
            log.info("removing %s: %s", segments.path(file.base), decision.reason)
            self._unlinks.append(segments.forget_first())
        self._unlink()
        if segments.start == start:
            return
        start = segments.start
        self.deletions.forget_before(start)
        queues = list(self.queues.values())

        def work() -> list[tuple[ConsumeQueue, int]]:
            firsts = [(queue, first_at_or_after(queue, start)) for queue in queues]
            return [(queue, first) for queue, first in firsts if first > queue.first]

        def done(result: list[tuple[ConsumeQueue, int]] | Exception) -> None:
            if isinstance(result, Exception):
                log.warning("looking for expired queue entries failed: %s", result)
                return
            self._expired += result
            self._expire_some()
            self.index.expire(start)

        self.background.run(work, done)

    def _expire_some(self) -> None:
        """Queues let go of entries whose messages are gone, some milliseconds a tick. Their files go here and now: in the background
        one could take the file of a topic that was deleted and made again meanwhile."""
        until_ms = self.clock.steady_ms() + EXPIRE_MS
        while self._expired:
            queue, first = self._expired.popleft()
            if self.queues.get((queue.topic, queue.queue_id)) is queue:
                queue.first = max(queue.first, min(first, queue.next))
                while len(queue.segments.bases) > 1 and queue.segments.bases[1] <= queue.first * ENTRY_SIZE:
                    queue.segments.drop_first()
            if self.clock.steady_ms() >= until_ms:
                break

    def _unlink(self) -> None:
        """Log files that were given up go in the background, one at a time and the oldest first: to unlink a gigabyte takes its
        time. One that a crash brings back is the oldest of the log again, and goes the next time."""
        if self._unlinking or not self._unlinks:
            return
        self._unlinking = True
        path = self._unlinks.popleft()

        def done(result: Exception | None) -> None:
            self._unlinking = False
            if isinstance(result, Exception):
                log.warning("%s could not be removed: %s", path, result)
            self._unlink()

        self.background.run(lambda: self.disk.remove(path), done)

    # Reading

    def record_at(self, offset: int) -> bytes:
        """The whole record that begins here. Raises LookupError when none does, Cold when it is not in memory."""
        head = self.log.read(offset, 4) if offset + 4 <= self.log.safe else b""
        size = int.from_bytes(head, "big", signed=True) if head else 0
        if size < RECORD_MIN or offset + size > self.log.safe:
            raise LookupError(f"no message begins at log offset {offset}")
        raw = self.log.read(offset, size)
        if parse(raw, offset, check_crc=False) is None:
            raise LookupError(f"no message begins at log offset {offset}")
        return raw

    def store_time_at(self, offset: int) -> int:
        """Store time of the record that begins here (its place is trusted). -1 when it is gone."""
        try:
            return store_time_of(self.log.read(offset, TIMED))
        except LookupError:
            return -1

    def offset_by_time(self, queue: ConsumeQueue, time_ms: int) -> int:
        """Upstream's rule: the message stored at that time, else the nearer neighbour (the earlier on a tie)."""
        at = self.times(queue).first_from(time_ms)
        if at == queue.first:
            return at
        if at == queue.visible:
            return at - 1  # all are older: the last
        before_ms, after_ms = self.time_of(queue, at - 1), self.time_of(queue, at)
        return at if after_ms == time_ms or before_ms < 0 or after_ms - time_ms < time_ms - before_ms else at - 1

    def times(self, queue: ConsumeQueue) -> Times:
        """For a search by store time, which may raise Cold."""

        def place_of(offset: int) -> int:
            entry = queue.entry(offset)
            return -1 if entry is None else entry[0]

        return Times(queue.first, queue.visible, self.set_backs, place_of, lambda offset: self.time_of(queue, offset))

    def first_store_time(self, queue: ConsumeQueue) -> int:
        return self.time_of(queue, queue.first)

    def time_of(self, queue: ConsumeQueue, offset: int) -> int:
        """Store time of the message with this number; where it cannot be read, of the next that can. -1 when there is none near."""
        for number in range(offset, min(offset + TIMES_LOOKED_AT, queue.visible)):
            entry = queue.entry(number)
            if entry is not None and RECORD_MIN <= entry[1] < BLANK_LENGTH:
                stored = self.store_time_at(entry[0])
                if stored >= 0:
                    return stored
        return -1

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> tuple[list[bytes], int, int]:
        """Records under a key, oldest first as upstream sends them, at most QUERY_SIZE_MAX bytes, with the index's last update."""
        self._settle()
        offsets, last_ms, last_offset = self.index.query(topic, key, count_max, begin_ms, end_ms)
        records: list[bytes] = []
        fetches: list[Callable[[], object]] = []
        size = 0
        for offset in sorted(offsets):
            try:
                record = self.record_at(offset)
            except LookupError:
                continue  # expired since
            except Cold as cold:
                fetches.append(cold.fetch)
                continue
            size += len(record)
            if records and size > QUERY_SIZE_MAX:
                break
            records.append(record)
        if fetches:
            raise Cold(lambda: [fetch() for fetch in fetches])
        return records, last_ms, last_offset

    def __repr__(self) -> str:
        return f"<Store {self.root} {self.log!r} {len(self.queues)} queues>"
