"""The files that are derived from the log: entries of queues and keys of the index are written now and then, synced every ten seconds,
and then manifest and checkpoint say how far they reach."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from roquet.store.disk import is_shortage
from roquet.store.queue_sync import sync_queues
from roquet.store.recovery import firsts_of, index_names, queue_key, times_of

if TYPE_CHECKING:
    from roquet.store.queue import ConsumeQueue
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

TAILS_MS = 5
"""How long one tick writes queue entries into their files; the others wait for the next. A queue costs one write whatever it got,
so entries wait in memory (20 bytes each) for one round over the queues that got some: 8,000 of them take a second."""

SETTLE_AT = 1_024
"""Keys that are worth a visit to the index; fewer wait for the entries."""

SETTLE_MOST = 16 * SETTLE_AT
"""Keys that do not wait for a tick: a millisecond's work of the extension, some of Python."""

TROUBLED_MS = 1_000
"""Where keys could not be written it is tried again so much later."""

SYNC_DERIVED_MS = 10_000
"""Queues and index are synced this often; after a crash at most so much of the log is read again."""


class Derived:
    """State: `checkpointed` says up to where the derived files are on disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._log, self._queues, self._tails, self._index = store.log, store.all_queues, store.tails, store.index
        self._checkpoint, self._manifest, self._trouble = store.checkpoint, store.manifest, store.trouble
        self.checkpointed = -1
        self.tails_due_ms = self.sync_due_ms = self._settle_due_ms = 0
        self.syncing = False
        self.cuts = 0
        """How often the log was cut back."""
        self.busy = False
        """The part of a sync is under way that runs in the background."""
        self.before_vouching: Callable[[Callable[[Exception | None], None]], None] = lambda done: done(None)
        """Calls back when what others keep about the messages so far is on disk: their topics. After a crash only messages behind the
        checkpoint may be of queues that no table knows."""

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._settle_due_ms and self._index.waiting >= SETTLE_AT:
            self.settle()
        if now_ms >= self.tails_due_ms:
            self._tails.write(self._store.clock.steady_ms() + TAILS_MS)
            self.settle()
            if not self._tails.waiting or self._trouble.full:
                self.tails_due_ms = now_ms + self._store.settings.flush_interval_consume_queue
        if now_ms >= self.sync_due_ms:
            self.sync_due_ms = now_ms + SYNC_DERIVED_MS
            self._sync()

    def settle(self) -> None:
        """Pending keys go into the index."""
        if not self._store.settings.message_index_enable:
            self._index.forget_from(0)
            return
        staged = self._index.forget_from(self._log.written)  # what may be undone yet stays out of the files
        try:
            self._index.settle()
        except OSError as error:
            # The log has the keys; the index is a convenience that catches up when there is room again.
            self._settle_due_ms = self._store.clock.steady_ms() + TROUBLED_MS
            log.warning("the index could not be written: %s", error)
        finally:
            self._index.take_back(staged)

    def settle_many(self) -> None:
        """So many keys came since the last tick that the next one would take long."""
        if self._store.steady_ms >= self._settle_due_ms:
            self.settle()

    def cut_back(self, to: int) -> None:
        """The log is about to end here. A sync that began before must vouch for nothing any more: what it is about comes anew."""
        self.cuts += 1
        self.checkpointed = min(self.checkpointed, to)

    def _sync(self) -> None:
        """Queues and index on disk, then the checkpoint that says so. The log comes first: entries must not outrun it."""
        if self.syncing or self._trouble.failed or (self._store.applier.reach == self.checkpointed and not self._tails.dirty):
            return
        self.syncing = True
        self._tails.write(self._store.clock.steady_ms() + TAILS_MS)
        self.settle()
        sync = SyncRound(self, self._store)
        # All that has entries, though less is vouched for: who waits for the flush stands in the order of the log.
        deadline_ms = self._store.clock.steady_ms() + self._store.settings.sync_flush_timeout
        self._log.when_durable(self._store.applier.reach, deadline_ms, sync.log_flushed)
        self._store.flush.begin()

    def written_again(self, dirty: set[ConsumeQueue]) -> None:
        """These were not synced: the next sync is about them, too."""
        self._tails.dirty |= {queue for queue in dirty if self._queues.has(queue)}

    def save_manifest(self, *, clean: bool) -> None:
        """Of all that has entries."""
        queues = self._queues.table.values()
        counts = {queue_key(queue): queue.next for queue in queues}
        self._manifest.save(
            clean, self._store.applier.reach, times_of(self._checkpoint), counts, index_names(self._index), firsts_of(queues)
        )

    def close(self, last_ms: int) -> None:
        """At a clean stop, when the log is flushed: all of it on disk, the checkpoint last. `last_ms`: the log's last store time."""
        self._tails.write()
        if self._tails.waiting:
            raise OSError(errno.ENOSPC, f"{len(self._tails.waiting)} queues have entries that are not in their files")
        for queue in self._tails.dirty:
            queue.syncer()[0]()
        self.settle()
        index_ms = self._index.sync()
        self._checkpoint.note(log_ms=last_ms, queues_ms=last_ms, index_ms=index_ms)
        self.save_manifest(clean=True)
        self._checkpoint.save()
        self._index.close()


class SyncRound:
    """One sync: what it began with, and its steps, each called when the one before is done. Those are methods, not functions inside of
    one that name each other: such a cycle waits for the garbage collector, and this one holds every queue of the store."""

    def __init__(self, derived: Derived, store: Store) -> None:
        self._derived, self._store = derived, store
        self._end, self._last_ms = store.tails.covered()
        self._all_written = not store.index.waiting and self._end >= max(derived.checkpointed, store.log.start)
        self._dirty, store.tails.dirty = store.tails.dirty, set()
        self._queues = list(store.all_queues.table.values())
        # What is in their files now is behind the flush that comes first. What is written meanwhile waits for the next sync.
        self._stops = {queue: queue.tail_start for queue in self._dirty}
        self._not_done: list[Callable[[], None]] = []
        self._cuts = derived.cuts

    @property
    def _is_void(self) -> bool:
        """The log was cut back meanwhile."""
        return self._cuts != self._derived.cuts

    def log_flushed(self, flushed: bool) -> None:
        if not flushed or self._is_void:
            self._derived.written_again(self._dirty)
            self._derived.syncing = False
            return
        self._derived.busy = True
        sync_queues(self._stops, self._not_done, self._store.background, self._sync_index)

    def _sync_index(self, error: Exception | None) -> None:
        if error is not None:
            self._synced(error)
        else:
            self._store.background.run(self._store.index.begin_sync(), self._synced)

    def _synced(self, result: int | Exception) -> None:
        # Without all of it neither is written: they must agree, or the next start trusts none of the numbers of queues.
        derived, vouches = self._derived, self._all_written and not self._is_void
        if isinstance(result, Exception) or not vouches:
            derived.syncing = derived.busy = False
        if is_shortage(result):
            self._store.trouble.short_of_files(result)
            for undo in self._not_done:
                undo()
            derived.written_again(self._dirty)
        elif isinstance(result, Exception):
            self._store.trouble.fail(f"fsync of queues or index failed: {result}")
        elif vouches:
            derived.busy = False  # a stop does not wait for this
            derived.before_vouching(partial(self._vouch, result))

    def _vouch(self, index_ms: int, error: Exception | None) -> None:
        if error is not None or self._is_void or self._store.trouble.failed or not self._store.is_open:
            self._derived.syncing = False
            return
        self._derived.busy = True
        checkpoint = self._store.checkpoint
        checkpoint.note(queues_ms=self._last_ms, index_ms=index_ms)
        work = partial(self._save, times_of(checkpoint), index_names(self._store.index), checkpoint.begin_save())
        self._store.background.run(work, self._saved)

    def _save(self, times: tuple[int, int, int], indexes: list[str], save_checkpoint: Callable[[], None]) -> None:
        """In the background, since it goes over all queues. What is synced of a queue does not change while this is under way."""
        counts = {queue_key(queue): queue.synced for queue in self._queues}
        # Before the checkpoint: on a full disk that, which is written in place, can be written and this cannot.
        manifest = self._store.manifest
        manifest.save(False, self._end, times, counts, indexes, firsts_of(self._queues))
        save_checkpoint()
        manifest.times = times

    def _saved(self, result: Exception | None) -> None:
        self._derived.syncing = self._derived.busy = False
        if isinstance(result, Exception):
            log.warning("the checkpoint could not be written: %s", result)
        else:
            self._derived.checkpointed = self._end
