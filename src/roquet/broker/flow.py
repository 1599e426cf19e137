"""Flow control: when the broker turns a send away instead of letting it wait, with upstream's remarks.

Upstream's broker has four such scenes, all about requests that wait in the queue of a thread pool. We have no such queue:
a request is handled when it is read. So each scene is mapped to what it was about:

[REJECTREQUEST]        upstream: the log's lock is held for over osPageCacheBusyTimeOutMills
                       ours: under SYNC_FLUSH, an fsync of the log has been under way for so long
[PCBUSY_CLEAN_QUEUE]   upstream: the same, for requests that are queued already
                       ours: a write of the log took so long; sends read right behind it waited for it
[TIMEOUT_CLEAN_QUEUE]  upstream: a request has been queued for over waitTimeMillsInSendQueue
                       ours: the event loop came round later than that; what it reads now has waited
[OVERLOAD]             upstream: sendThreadPoolQueueCapacity requests are queued
                       ours: so many sends wait for their fsync

Upstream's other cause of [REJECTREQUEST], an empty pool of write buffers (transientStorePoolEnable), cannot arise: there is
no pool.
Only sends are shed. Heartbeats, pulls and administration are answered throughout. Under a late loop a growing share of the
sends is refused, evenly over all who send, until the loop keeps up: early, and not all at once.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet

from roquet.broker.part import Part, Shared
from roquet.errors import Refused
from roquet.wire.codes import ResponseCode

log = logging.getLogger("roquet.broker")

HICCUPS = 3
"""Late rounds in a row that are not taken for overload yet: a busy machine or one long request makes such."""
SHARE_STEP = 0.1
SHARE_MAX = 0.9
"""Some sends are always let in: they show when there is room again."""


class Flow(Part):
    """State: what presses now. `pressed` is all that the hot path looks at."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.pressed = False
        self.waiting = 0
        """Sends that are stored and wait for their fsync."""
        self.refused = 0
        """Sends turned away since the start."""
        self._share = 0.0
        self._debt = 0.0
        self._late_ms = 0
        self._late_rounds = 0
        self._stalled_ms = 0
        self._stall_over_ms = 0
        self.store.on_slow_write = self.log_was_written

    # What the shell and the store tell

    def loop_came_round(self, late_ms: int) -> None:
        """The shell measured how late a timer of its loop was; called at every tick."""
        self._late_ms = late_ms
        if late_ms >= self.settings.wait_time_mills_in_send_queue:
            self._late_rounds += 1
            if self._late_rounds > HICCUPS:
                self._share = min(SHARE_MAX, self._share + SHARE_STEP)
        else:
            self._late_rounds = 0
            self._share = max(0.0, self._share - SHARE_STEP)
        self.look()

    def log_was_written(self, took_ms: int) -> None:
        """A write of the log took this long; said only when it was long."""
        if took_ms >= self.settings.os_page_cache_busy_time_out_mills:
            self._stalled_ms = took_ms
            self._stall_over_ms = self.clock.steady_ms() + self.settings.wait_time_mills_in_send_queue
            self.look()

    def tick(self, now_ms: int) -> None:
        self.look()

    def settings_changed(self, names: AbstractSet[str]) -> None:
        if "broker_fast_failure_enable" in names:
            self.look()

    def look(self) -> None:
        """See anew whether sends are to be turned away."""
        pressed = self.settings.broker_fast_failure_enable and bool(self._reason(self.clock.steady_ms()) or self._share)
        if pressed != self.pressed:
            self.pressed = pressed
            why = self._reason(self.clock.steady_ms()) or f"the event loop is {self._late_ms} ms late"
            if pressed:
                self.notices.warn("flow control", f"sends are turned away: {why}")
            else:
                self.notices.clear("flow control")
                log.info("= flow control ends, %d sends were turned away since the start", self.refused)

    # What a send asks

    def check(self) -> None:
        """Raises Refused(2) when this send is to be turned away."""
        if not self.pressed:
            return
        reason = self._reason(self.clock.steady_ms())
        if not reason:
            self._debt += self._share
            if self._debt < 1:
                return
            self._debt -= 1
            reason = (
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {self._late_ms}ms, "
                f"size of queue: {self.waiting}"
            )
        self.refused += 1
        raise Refused(ResponseCode.SYSTEM_BUSY, reason)

    def _reason(self, now_ms: int) -> str:
        """Why every send is turned away now; "" when not every one is."""
        settings = self.settings
        flushing = self.store.flush.since_ms if self.store.log.wants_flush else -1
        if flushing >= 0 and now_ms - flushing >= settings.os_page_cache_busy_time_out_mills:
            return "[REJECTREQUEST]system busy, start flow control for a while"
        if now_ms < self._stall_over_ms:
            return (
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {self._stalled_ms}ms, "
                f"size of queue: {self.waiting}"
            )
        if self.waiting >= settings.send_thread_pool_queue_capacity:
            return "[OVERLOAD]system busy, start flow control for a while"
        return ""
