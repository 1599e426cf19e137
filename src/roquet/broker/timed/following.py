"""Following the timer topic's queue: what is new there becomes rows of the files and of the window."""

from __future__ import annotations

import logging
from typing import Any

from roquet.broker.timed.moving import Moving
from roquet.broker.timed.near import Near
from roquet.broker.timed.properties import CANCEL, DUE
from roquet.store.disk import Cold
from roquet.store.queue import ConsumeQueue
from roquet.store.timers import GONE, Rows, rows_of
from roquet.wire.arrays import np
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import BLANK_LENGTH, RECORD_MIN
from roquet.wire.names import TIMER_TOPIC
from roquet.wire.record import decode_properties

log = logging.getLogger("roquet.broker")

FOLLOW_MAX = 20_000
"""Entries taken from the timer topic's queue in a tick."""
SURE_MS = 1_000_000_000_000
"""Entries with a smaller number than this (a time in 2001) say nothing sure: their records are read. Those of cancellations and
moved timers are negative, and Apache RocketMQ 4.9, deriving the queue anew, would write hashes of tags."""


class Following:
    """State: `followed` entries of the queue are in the files; `behind` were there at the start."""

    def __init__(self, near: Near, moving: Moving) -> None:
        self._near = near
        self._moving = moving
        self.followed = 0
        self.behind = 0

    def follow(self) -> None:
        queue = self._near.store.find_queue(TIMER_TOPIC, 0)
        stop = 0 if queue is None else min(queue.visible, self.followed + FOLLOW_MAX)
        while queue is not None and self.followed < stop and not self._near.reader.busy():
            if self.followed < queue.first:
                self.followed = queue.first
                continue
            try:
                entries = self._mended(queue, np.frombuffer(queue.read(self.followed, stop - self.followed), ENTRIES))
                rows, cleared = self._rows(entries)
            except Cold as cold:
                self._near.reader.start(cold)
                return
            if not len(entries):
                return
            self.followed += len(entries)
            np.maximum(rows[:, 0], self._near.mark[0], out=rows[:, 0])
            self._near.add(rows)
            for offset in cleared:
                self._near.taken_back.followed(offset)
            self._moving.followed(cleared)

    def _mended(self, queue: ConsumeQueue, entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Damaged entries made again from the log, or blank. Raises Cold while they are looked for."""
        damaged = np.flatnonzero(entries["size"] < RECORD_MIN).tolist()
        if damaged:
            entries = entries.copy()
            for number in damaged:
                found = self._near.store.mender.entry(queue, self.followed + number)
                entries[number] = (0, BLANK_LENGTH, 0) if found is None else found
        return entries

    def _rows(self, entries: np.ndarray[Any, Any]) -> tuple[Rows, list[int]]:
        """(rows of these entries, offsets of timers that they take back). Raises Cold, and then nothing has happened."""
        rows = np.stack([entries[name].astype(np.int64) for name in ("tag", "offset", "size")], axis=1)
        unsure = rows[:, 0] < SURE_MS
        if not unsure.any():
            return rows, []
        more: list[tuple[int, int, int]] = []
        cleared: list[int] = []
        for (_, offset, size), record in self._near.reader.read(rows[unsure & (rows[:, 2] != BLANK_LENGTH)]):
            names = decode_properties(record.properties) if record is not None else {}
            text = names.get(DUE, "")
            if record is None or not text.isdigit() or len(text) > 15:
                log.error("the record at log offset %d is no timer, skipped", offset)
                continue
            if record.prepared_transaction_offset < 0:
                cleared.append(~record.prepared_transaction_offset)
                more.append((int(text), cleared[-1], GONE))
            if CANCEL not in names:
                more.append((int(text), offset, size))
        return np.concatenate((rows[~unsure], rows_of(more))), cleared

    def needs(self, end: int) -> bool:
        """May an entry that was not followed yet stand for a record below this log offset?"""
        queue = self._near.store.find_queue(TIMER_TOPIC, 0)
        if queue is None or self.followed >= queue.next:
            return False
        try:
            entry = queue.entry(self.followed)
        except Cold:
            return True
        return entry is None or entry[0] < end

    def log_end(self) -> int:
        """The records of all timers that were followed stand below this log offset. Raises Cold."""
        queue = self._near.store.find_queue(TIMER_TOPIC, 0)
        if queue is None or self.followed <= queue.first:
            return 0
        entry = queue.entry(self.followed - 1)
        return 0 if entry is None else entry[0] + 1
