"""What consumers may see: a queue's `visible` follows the log's safe mark."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from roquet.store.log import Log
from roquet.store.staging import Staged

log = logging.getLogger("roquet.store")


class Showing:
    """State: `unsafe` is written but not yet safe to show. While there is some, the log tells when that changes."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.unsafe: deque[Staged] = deque()

    def show_when_safe(self, staged: Iterable[Staged]) -> None:
        self.unsafe.extend(staged)
        self._log.on_safe(self._safe_has_risen)

    def show(self, staged: list[Staged]) -> None:
        for queue, _, after, _ in staged:
            queue.visible = after
        self.wake(staged)

    def wake(self, staged: list[Staged]) -> None:
        """Tell those who wait for what is visible now."""
        for queue in {queue: None for queue, _, _, _ in staged if queue.on_visible is not None}:
            if queue.on_visible is not None:  # who was told before may have ended this wait
                try:
                    queue.on_visible(queue)
                except Exception:  # one that waits must not keep the others from hearing
                    log.exception("! looking at the new messages of %s/%d failed", queue.topic, queue.queue_id)

    def _safe_has_risen(self) -> None:
        safe, unsafe, shown = self._log.safe, self.unsafe, []
        while unsafe and unsafe[0][3] <= safe:
            shown.append(unsafe.popleft())
        if not unsafe:
            self._log.on_safe(None)
        if shown:
            self.show(shown)
