"""The timer files on disk, and the checkpoint that says what of them is."""

from __future__ import annotations

import logging

from roquet.broker.timed.following import Following
from roquet.broker.timed.near import Near
from roquet.errors import StoreUnavailable
from roquet.settings import BrokerSettings
from roquet.store.documents import Document
from roquet.store.timers import TimerCheckpoint

log = logging.getLogger("roquet.broker")

WRITE_MS = 1_000
SAVE_MS = 10_000
SAVE_BYTES = 64 << 20
"""A checkpoint is due after that much of the log even when no timer changed: recovery reads the log from there."""


class TimerSaving:
    """State: `saved` is the checkpoint that is on disk; `_finished` are hours that are done with and whose files are still there.
    After a failed sync it is `_broken`: there will be no newer checkpoint."""

    def __init__(self, near: Near, following: Following, settings: BrokerSettings) -> None:
        self._near = near
        self._following = following
        self._settings = settings
        self.document = Document(near.files.disk, f"{near.files.directory}/checkpoint.json")
        self.saved: TimerCheckpoint | None = None
        self._finished: list[int] = []
        self._saving = self._broken = False
        self._write_due_ms = self._save_due_ms = 0

    @property
    def busy(self) -> bool:
        return bool(self._near.work) or self._saving

    def load(self) -> TimerCheckpoint | None:
        saved = self.document.load(TimerCheckpoint.decode)
        if self.document.warning:
            log.warning("%s; the timers are derived from the log again", self.document.warning)
        return saved

    def finish_hours(self) -> None:
        """All timers of the hours before the mark are fired."""
        self._finished = [*{*self._finished, *self._near.files.forget_before(self._near.mark[0])}]

    def save_soon(self) -> None:
        self._save_due_ms = 0

    def tick(self) -> None:
        steady_ms = self._near.store.steady_ms
        if steady_ms >= self._save_due_ms and not self._saving:
            self._save_due_ms = steady_ms + SAVE_MS
            self._save(steady_ms)
        if self._near.files.fresh_bytes and not self._near.work and steady_ms >= self._write_due_ms:
            self._write_due_ms = steady_ms + WRITE_MS

            def done(result: object) -> None:
                if isinstance(result, Exception):
                    log.warning("timers could not be written to their files: %s; trying again", result)

            self._near.after_write(lambda: None, done)

    def save_now(self) -> None:
        """At a clean stop, so that the next start has nothing to derive. May block; raises OSError."""
        if self.busy or self._broken or (self.saved is None and not self._near.files.hours and not self._following.followed):
            return
        try:
            self._near.store.commit()
        except StoreUnavailable:
            return
        self._near.store.flush_now()
        state = self._state()
        self._near.files.writer()[0]()
        self._near.files.syncer()()
        self.document.save(state.encode())

    def _state(self) -> TimerCheckpoint:
        done = self._near.done
        return TimerCheckpoint(self._near.store.log.written, self._following.followed, done.mark, self._near.files.describe(), done.past)

    def _is_due(self, state: TimerCheckpoint) -> bool:
        saved = self.saved
        return (
            saved is None
            or (saved.followed, saved.hours, saved.past) != (state.followed, state.hours, state.past)
            or state.log_end - saved.log_end >= SAVE_BYTES
            or (state.mark != saved.mark and bool(self._finished))
        )

    def _save(self, now_ms: int) -> None:
        """Files on disk, then the checkpoint that says so. The log comes first: they must not outrun it."""
        if self._broken or self._near.store.trouble.failed or (self.saved is None and not self._near.files.hours):
            return
        self.finish_hours()
        state = self._state()
        if not self._is_due(state):
            return
        self._saving = True
        finished = list(self._finished)

        def log_flushed(flushed: bool) -> None:
            if not flushed:
                self._saving = False
                return
            write, failed = self._near.files.writer()
            sync = self._near.files.syncer()
            remove = self._near.files.remover(finished)
            wrote = False

            def work() -> None:
                nonlocal wrote
                write()
                wrote = True
                sync()
                self.document.save(state.encode())
                remove()

            def done(result: object) -> None:
                self._saving = False
                if not isinstance(result, Exception):
                    self.saved = state
                    self._finished = [hour for hour in self._finished if hour not in finished]
                elif wrote:
                    # After a failed sync nobody can say what is on disk. The checkpoint of before still holds; there will be no newer.
                    self._broken = True
                    log.error("timer files could not be synced: %s; after a restart they are derived from the log again", result)
                else:
                    failed()
                    log.warning("timers could not be written to their files: %s; trying again", result)

            self._near.work.do(work, done)

        self._near.store.log.when_durable(state.log_end, now_ms + self._settings.sync_flush_timeout, log_flushed)
