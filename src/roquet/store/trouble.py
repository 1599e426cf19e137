"""Why the store takes no writes: it has failed, the disk is full, or no new file can be made for a moment."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from roquet.errors import StoreUnavailable

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

PAUSE_MS = 1_000
"""After a failure to make a log file nobody tries again for so long."""

SHORTAGE_LOGGED_MS = 60_000
"""How often the log says that files are short."""


def is_full_disk(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Trouble:
    """State: one sentence for each kind of trouble, "" while there is none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.failed = ""
        """Why no write is taken any more; a failed fsync sets it for good."""
        self.full = ""
        """Why no write is taken for now: the disk."""
        self.paused = ""
        """Why no write is taken for a second: no new file could be opened or made. Nothing was lost by that, and it is tried again."""
        self.follows = ""
        """Why no write is taken: this node follows another."""
        self.has_reserve = True
        """While writes are refused: there is room for the broker's own."""
        self._pause_due_ms = -1
        self._shortage_logged_ms = 0

    def refuse_writes(self) -> str:
        """Why no message can be stored now, or ""."""
        return self.failed or self.full or self.paused or self.follows

    def refuse_own(self) -> str:
        """The same for what the broker itself puts to keep a promise: moves, deliveries, ends of transactions. They have a reserve."""
        return self.failed or ("" if self.has_reserve else self.full) or self.paused or self.follows

    def cannot_write(self, error: OSError) -> StoreUnavailable:
        """A write of the log failed."""
        if is_full_disk(error):
            self._is_full(error)
        else:
            self.fail(f"writing the log failed: {error}")
        return StoreUnavailable(self.refuse_writes())

    def cannot_roll(self, error: OSError) -> StoreUnavailable:
        """No new log file could be made. Nothing has changed by that, so writes go on as soon as it can."""
        if is_full_disk(error):
            self._is_full(error)
        elif not self.paused:
            self.paused = f"no new log file can be made: {error}"
            self._pause_due_ms = -1
            log.error("%s; it is tried again every second, and messages are refused until then", self.paused)
        return StoreUnavailable(self.refuse_writes())

    def _is_full(self, error: OSError) -> None:
        self.full = f"the disk is full: {error}"
        self.has_reserve = False
        self._store.old_files.look_soon()  # maybe there is room to make

    def fail(self, why: str) -> None:
        """Stop taking writes for good: what the disk holds can no longer be told."""
        if not self.failed:
            self.failed = why
            log.error("%s; no more messages are taken. Check the disk, then restart the broker.", why)
            self._store.log.give_up()

    def short_of_files(self, error: object) -> None:
        """What needed a file descriptor was not done, and is tried again by itself."""
        now_ms = self._store.clock.steady_ms()
        if now_ms >= self._shortage_logged_ms:
            self._shortage_logged_ms = now_ms + SHORTAGE_LOGGED_MS
            log.warning("there are too few file descriptors, the store waits for some: %s. Raise the limit (ulimit -n).", error)

    def tick(self, now_ms: int) -> None:
        if not self.paused:
            return
        if self._pause_due_ms < 0:
            self._pause_due_ms = now_ms + PAUSE_MS
        elif now_ms >= self._pause_due_ms:
            self.paused = ""
