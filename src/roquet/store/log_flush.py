"""The flush of the log: group commit, one fsync at a time, and who comes while it runs shares the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.store.disk import is_shortage

if TYPE_CHECKING:
    from roquet.store.store import Store


class LogFlush:
    """State: `since_ms` is when the fsync that is under way began (steady time), -1 when none is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._log, self._trouble = store.log, store.trouble
        self.since_ms = -1
        self.due_ms = 0

    @property
    def busy(self) -> bool:
        return self.since_ms >= 0

    def tick(self, now_ms: int) -> None:
        if now_ms >= self.due_ms:
            self.due_ms = now_ms + self._store.settings.flush_interval_commit_log
            self.begin()

    def begin(self) -> None:
        if self.busy or self._trouble.failed or self._log.written <= self._log.flushed:
            return
        try:
            target, work = self._log.syncer()
        except OSError as error:
            if is_shortage(error):
                self._trouble.short_of_files(error)
            else:
                self._trouble.fail(f"the log could not be opened for its fsync: {error}")
            return
        self.since_ms = self._store.clock.steady_ms()
        last_ms = self._store.timeline.last_ms

        def done(result: object) -> None:
            self.since_ms = -1
            if is_shortage(result):
                self._trouble.short_of_files(result)  # the next tick tries again
                self._log.segments.new_since_sync = True
                return
            if isinstance(result, Exception):
                self._trouble.fail(f"fsync of the log failed: {result}")
                return
            self._store.checkpoint.note(log_ms=last_ms)
            self._log.note_flushed(target)
            if self._log.wants_flush:
                self.begin()

        self._store.background.run(work, done)

    def now(self) -> None:
        """Make everything written so far safe, and wait for it: for a clean stop. Raises OSError, and then the store has failed."""
        target, work = self._log.syncer()
        try:
            work()
        except OSError as error:
            self._trouble.fail(f"fsync of the log failed: {error}")
            raise
        self._log.note_flushed(target)
