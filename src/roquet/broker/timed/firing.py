"""Firing: timers whose time has come are put into their real topics. The delivery is itself the record that they were fired."""

from __future__ import annotations

import logging

from roquet.broker.timed.near import Near
from roquet.broker.timed.properties import unwrap
from roquet.broker.topics import Topics
from roquet.errors import Refused, StoreUnavailable
from roquet.store.disk import Cold
from roquet.store.timers import NO_ROWS, WINDOW_ROWS
from roquet.wire.record import Record

log = logging.getLogger("roquet.broker")

FIRE_MAX = 500
"""Timers fired in a tick; the rest waits for the next turn of the loop."""
FIRE_AT_ONCE = 250


class Firing:
    """State: `_batch` was taken from the window and is being fired; `fired` counts."""

    def __init__(self, near: Near, topics: Topics) -> None:
        self._near = near
        self._topics = topics
        self._batch = NO_ROWS
        self.fired = 0

    @property
    def under_way(self) -> bool:
        """Some are due and could not be put yet."""
        return len(self._batch) > 0

    def fire(self, now_ms: int) -> bool:
        """Returns whether there may be more than it did."""
        near = self._near
        if self._near.reader.busy() or self._near.store.steady_ms < near.retry_ms or self._near.store.trouble.refuse_own():
            return False
        fired = 0
        while fired < FIRE_MAX:
            if not len(self._batch):
                limit = min(now_ms + 1, near.horizon)
                self._batch = near.window.take(limit, FIRE_AT_ONCE)
                if not len(self._batch):
                    near.done = near.done.risen(max(near.mark, (limit, -1)))
                    return False
            batch = self._batch
            due = [not self._near.taken_back.has(offset) for offset in batch[:, 1].tolist()]
            try:
                found = self._near.reader.read(batch[due])
            except Cold as cold:
                self._near.reader.start(cold)
                return False
            for (_, offset, _), record in found:
                self._deliver(offset, record)
            try:
                self._near.store.commit()
            except StoreUnavailable as error:
                near.pause()
                log.warning("%d timed messages are due and could not be delivered: %s; trying again", len(batch), error)
                return False
            near.done = near.done.risen((int(batch[-1, 0]), int(batch[-1, 1])))
            self._batch = NO_ROWS
            fired += len(batch)
            self.fired += len(found)
        return True

    def _deliver(self, offset: int, record: Record | None) -> None:
        if record is None:
            log.error("the timed message at log offset %d is gone from the log and is not delivered", offset)
            return
        properties = record.properties.decode("utf-8", "replace")
        try:
            real, queue_id, kept = unwrap(properties)
        except Refused as refused:  # the directory may be from anywhere
            log.error("the timed message at log offset %d has no place to go and is not delivered: %s", offset, refused.remark)
            return
        if self._topics.get(real) is None:
            # Deleted meanwhile, or made by the very send and lost with a crash: who promised delivery cannot tell, and keeps it.
            log.warning("topic %s does not exist, but a timed message for it is due: it is made again", real)
            self._topics.ensure(real, queue_id + 1)
        self._near.store.put(
            self._near.store.queue(real, queue_id),
            record.body,
            kept,
            sys_flag=record.sys_flag & ~0x30,
            flag=record.flag,
            born_ms=record.born_timestamp,
            born_host=record.born_host,
            reconsumed=record.reconsume_times,
            prepared=~offset,
            store_host=record.store_host,
        )

    def put_back(self, wall_ms: int, end: int) -> None:
        """The clock was set back to this time, behind what is fired. All timers there are stand below the log offset `end`."""
        near = self._near
        late = near.window.take(near.mark[0] + 1, WINDOW_ROWS)  # came when their time was over: they stay due at once
        late[:, 0] = wall_ms
        near.window.add(self._batch)  # was about to be fired, and may not be due any more
        self._batch = NO_ROWS
        near.done = near.done.put_back(wall_ms, end)
        near.window.add(late)
        near.warmed = 0
