"""Old files: which log files go, in what order, and what queues and index let go of with them. The rules are in `retention.py`."""

from __future__ import annotations

import logging
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING

from roquet.ports import Background
from roquet.store import retention
from roquet.store.disk import Disk
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.store.recovery import first_at_or_after
from roquet.store.retention import HOUR_MS, Decision, LogFile
from roquet.store.wall import span_text

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

DOUBT_MS = 3_600_000
"""A broker whose log files all look expired at its start waits this long before it believes the clock."""

ROOM_MS = 1_000
"""While the disk is full, how often it is asked whether there is room again. Files go at their usual pace, cleanResourceInterval."""

EXPIRE_MS = 5
"""How long one tick lets go of expired queue entries."""

ASKED_ROUNDS = 20
"""Rounds after a request to delete, in which the hour counts as right."""


class Unlinking:
    """Log files that were given up go in the background, one at a time and the oldest first: to unlink a gigabyte takes its time.
    One that a crash brings back is the oldest of the log again, and goes the next time."""

    def __init__(self, disk: Disk, background: Background) -> None:
        self._disk = disk
        self._background = background
        self.paths: deque[str] = deque()
        self.busy = False

    def go_on(self) -> None:
        if self.busy or not self.paths:
            return
        self.busy = True
        path = self.paths.popleft()

        def unlinked(result: Exception | None) -> None:
            self.busy = False
            if isinstance(result, Exception):
                log.warning("%s could not be removed: %s", path, result)
            self.go_on()

        self._background.run(lambda: self._disk.remove(path), unlinked)


class ExpiredEntries:
    """State: `found` are queues that have entries to let go of, and the first to keep."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queues, self._clock = store.all_queues, store.clock
        self.found: deque[tuple[ConsumeQueue, int]] = deque()

    def find(self, start: int) -> None:
        """The log begins here now."""
        queues = list(self._queues.table.values())

        def work() -> list[tuple[ConsumeQueue, int]]:
            firsts = [(queue, first_at_or_after(queue, start)) for queue in queues]
            return [(queue, first) for queue, first in firsts if first > queue.first]

        def done(result: list[tuple[ConsumeQueue, int]] | Exception) -> None:
            if isinstance(result, Exception):
                log.warning("looking for expired queue entries failed: %s", result)
                return
            self.found += result
            self.drop_some()
            self._store.index.expire(start)

        self._store.background.run(work, done)

    def drop_some(self) -> None:
        """Queues let go of entries whose messages are gone, some milliseconds a tick. Their files go here and now: in the background
        one could take the file of a topic that was deleted and made again meanwhile."""
        until_ms = self._clock.steady_ms() + EXPIRE_MS
        while self.found:
            queue, first = self.found.popleft()
            if self._queues.has(queue):
                queue.first = max(queue.first, min(first, queue.next))
                while len(queue.segments.bases) > 1 and queue.segments.bases[1] <= queue.first * ENTRY_SIZE:
                    queue.segments.drop_first()
            if self._clock.steady_ms() >= until_ms:
                break


class OldFiles:
    """State: `due_ms` is when files are looked at again (steady time), `asked` for how many rounds an operator wants them to go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._disk, self._settings, self._clock = store.disk, store.settings, store.clock
        self._log, self._trouble = store.log, store.trouble
        self.unlinking = Unlinking(store.disk, store.background)
        self.expired = ExpiredEntries(store)
        self.due_ms = 0
        self.asked = 0
        self._room_due_ms = 0
        self._ages_due_ms = 0  # before this (steady) time no log file goes for its age

    def look_soon(self) -> None:
        self.due_ms = 0

    def delete_expired_now(self) -> None:
        """An operator asked (code 329): the next rounds treat the hour as right."""
        self.asked = ASKED_ROUNDS
        self.look_soon()

    def doubt_the_clock(self, idle_ms: int) -> None:
        """Everything would be expired at once: nobody was here for long, or the clock is wrong. That is looked at before files go.
        `idle_ms`: how long ago the last message was stored, by the clock."""
        if self._log.written > self._log.start and idle_ms >= self._settings.file_reserved_time * HOUR_MS:
            self._ages_due_ms = self._clock.steady_ms() + DOUBT_MS
            log.warning(
                "the last message was stored %s ago by this machine's clock, which is more than fileReservedTime=%d h. If the clock is "
                "wrong, set it right within %s: until then no log file goes for its age",
                span_text(idle_ms), self._settings.file_reserved_time, span_text(DOUBT_MS),
            )  # fmt: skip

    def tick(self, now_ms: int) -> None:
        if now_ms >= self.due_ms and not self.unlinking.busy:  # before they are gone, the disk looks fuller than it is
            self.due_ms = now_ms + self._settings.clean_resource_interval
            decision = self._decide(now_ms)
            self._note_room(decision)
            self._give_up(decision)
        if self._trouble.full and now_ms >= self._room_due_ms:
            self._room_due_ms = now_ms + ROOM_MS
            if max(self._used_ratios()) <= retention.FORCED_RATIO:
                self.look_soon()
        if self.expired.found:
            self.expired.drop_some()

    def _used_ratios(self) -> tuple[float, float]:
        """Of the file systems of the log and of all else."""
        return self._disk.used_ratio(self._log.segments.directory), self._disk.used_ratio(self._settings.store_path_root_dir)

    def _decide(self, now_ms: int) -> Decision:
        segments, root = self._log.segments, self._settings.store_path_root_dir
        wall_ms = self._clock.now_ms()
        ages = self._store.wall.ages_ms([self._disk.mtime_ms(segments.path(base)) for base in segments.bases])
        if now_ms < self._ages_due_ms:
            ages = [0] * len(ages)
        log_ratio, root_ratio = self._used_ratios()
        self._trouble.has_reserve = max(log_ratio, root_ratio) < retention.RESERVE_RATIO
        decision = retention.decide_for_both(
            [LogFile(base, wall_ms - age) for base, age in zip(segments.bases, ages, strict=True)],
            self._settings,
            (segments.directory, log_ratio),
            (root, root_ratio),
            now_ms=wall_ms,
            hour=datetime.fromtimestamp(wall_ms / 1000).hour,
            manual=self.asked > 0,
            writable=not self._trouble.full,
        )
        self.asked = max(0, self.asked - 1)
        return decision

    def _note_room(self, decision: Decision) -> None:
        trouble = self._trouble
        if not decision.writable:
            if not trouble.full:
                log.error("%s", decision.reason)
            trouble.full = decision.reason
        elif trouble.full:
            log.warning("writes are taken again: there is room on the disk")
            trouble.full = ""

    def _give_up(self, decision: Decision) -> None:
        segments = self._log.segments
        start = segments.start
        for file in decision.delete:
            if file.base + segments.size > self._log.safe:
                break  # not committed, or without entries yet
            if not self._store.may_drop(file.base + segments.size):
                log.info("%s stays for now: pending timed, delayed or prepared messages move out of it first", segments.path(file.base))
                break
            assert file.base == segments.bases[0] != segments.bases[-1], "only the oldest file may go, never the last"
            log.info("removing %s: %s", segments.path(file.base), decision.reason)
            self.unlinking.paths.append(segments.forget_first())
        if segments.start != start and self._store.ledger is not None:
            self.unlinking.paths += self._store.ledger.begin_later()
        self.unlinking.go_on()
        if segments.start != start:
            self._store.deletions.forget_before(segments.start)
            self.expired.find(segments.start)
