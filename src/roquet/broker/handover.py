"""Delayed messages whose log file is to go before they are due: they are handed over to the timers.

A delay level may be longer than files are kept, and a short disk takes files of any age. A record of the level's queue cannot be put
again there: its time of delivery follows from its store time. So a timed message with the same time of delivery is put for it
(`timers.py`, which moves it on from file to file), and the level's cursor steps over it. The file goes when that is on disk.

A crash between the two leaves both: then the message comes twice, and never not at all.
"""

from __future__ import annotations

import logging

from roquet.broker.delay import AHEAD_MAX, Delays
from roquet.broker.part import Part, Shared
from roquet.broker.portions import Work
from roquet.broker.timed.properties import CANCEL, DUE, MOVES
from roquet.broker.writer import Draft
from roquet.errors import Refused, StoreUnavailable
from roquet.store.disk import Cold
from roquet.store.log import MovedOut
from roquet.store.queue import ConsumeQueue
from roquet.wire.layout import BLANK_LENGTH, ENTRY
from roquet.wire.names import TIMER_TOPIC

log = logging.getLogger("roquet.broker")

MOVED_MAX = 250
"""Messages handed over in a tick."""


class Handover(Part):
    """State: below `_below` nothing delayed may be left in the log."""

    master_only = True

    def __init__(self, shared: Shared, delays: Delays) -> None:
        super().__init__(shared)
        self.delays = delays
        self.moved = 0
        """Since the start."""
        self.forget()

    def prepare_to_lead(self) -> Work[None]:
        self.forget()
        yield None

    def forget(self) -> None:
        self._below = 0
        self._moved = MovedOut(self.store.log)
        self._stuck: set[int] = set()  # levels with a message that cannot be handed over: it waits for its time, and the file with it

    def may_drop(self, end: int) -> bool:
        """Retention asks: does no delayed message need the log below this offset? If one does, handing over begins."""
        if any(self._needs(queue, end) for queue in self.delays.queues()):
            self._below = max(self._below, end)
            return False
        return self._moved.is_durable(end)

    def _needs(self, queue: ConsumeQueue, end: int) -> bool:
        at = self.delays.next_of(queue)
        if at >= queue.visible:
            return False
        try:
            entry = queue.entry(at)
        except Cold as cold:
            self.delays.reads.start(cold, queue.queue_id + 1)
            return True
        return entry is not None and entry[0] < end

    def tick(self, now_ms: int) -> None:
        if not self._below or self.store.trouble.refuse_own():
            return
        reached: dict[int, int] = {}
        count = 0
        for queue in self.delays.queues():
            level = queue.queue_id + 1
            if not self.delays.reads.busy(level) and level not in self._stuck:
                at = self._hand_over(queue, level, MOVED_MAX - count)
                start = self.delays.next_of(queue)
                if at > start:
                    reached[level] = at
                    count += at - start
        if not count:
            if not any(self._needs(queue, self._below) for queue in self.delays.queues()):
                self._below = 0
                self._stuck.clear()
            return
        try:
            self.store.commit()
        except StoreUnavailable as error:
            log.warning("delayed messages could not be moved out of an old log file: %s; trying again", error)
            return
        self.moved += count
        for level, at in reached.items():
            self.delays.reach(level, at)

    def _hand_over(self, queue: ConsumeQueue, level: int, count_max: int) -> int:
        """Stage timers for the level's messages in files that are to go; returns the offset reached."""
        delays = self.delays
        start = at = delays.next_of(queue)
        entries: list[tuple[int, int, int]] = []
        try:
            raw = queue.read(at, min(count_max, queue.visible - at))
            entries = [entry for entry in ENTRY.iter_unpack(raw) if entry[0] < self._below]
            for entry in entries:
                record = None if delays.is_delivered(level, at) else delays.record(entry[0], entry[1])
                draft = None if record is None else delays.draft(record, level)
                if draft is not None:
                    self._put(draft, delays.due_of(level, entry))
                at += 1
        except Cold as cold:
            behind = entries[at - start + 1 : at - start + 1 + AHEAD_MAX]
            delays.reads.start(self.store.log.together(cold, [(offset, size) for offset, size, _ in behind if size != BLANK_LENGTH]), level)
        except Refused as refused:
            log.error("message %d of delay level %d cannot be moved out of its log file, which stays: %s", at, level, refused.remark)
            self._stuck.add(level)
        return at

    def _put(self, draft: Draft, due_ms: int) -> None:
        draft.properties.pop(MOVES, None)
        draft.properties.pop(CANCEL, None)
        draft.properties[DUE] = str(due_ms)
        draft.topic, draft.queue_id = TIMER_TOPIC, 0
        self.delays.writer.topics.ensure(TIMER_TOPIC)
        self.delays.writer.put_as_is(draft)
