"""Timed messages: delivery at any moment up to timerMaxDelaySec ahead, asked for by a property of the message.

    TIMER_DELAY_SEC, TIMER_DELAY_MS                  so long after the broker took it (5.x)
    TIMER_DELIVER_MS, __STARTDELIVERTIME             at that time, ms since 1970 (5.x, Aliyun)

A timed message is put into the log at once, under the topic rmq_sys_wheel_timer with REAL_TOPIC, REAL_QID and TIMER_OUT_MS
(when it is due), so it is as safe as any other. Everything else is derived from the log by following that topic's queue:

    a timer         TIMER_OUT_MS                       pending until that time
    a cancellation  prepared = ~offset of the timer    that one is pending no longer; has TIMER_DEL_UNIQKEY
    a moved timer   prepared = ~offset of the timer    that one is pending no longer, this one is; has TIMER_ROLL_TIMES
    a delivery      prepared = ~offset of the timer    in the real topic: that one is pending no longer

So a delivered message is itself the record of its delivery (clients cannot set that field). Pending timers lie in files by
the hour (`store/timers.py`); memory holds those of the present hour. Timers whose records stand in a log file that
retention wants to remove are moved, that is appended again, before the file goes.

What is promised. After a process crash (SIGKILL) no timer is lost and none fires twice: recovery reads from the last
checkpoint on which deliveries the log records. When the machine loses power, a delivery whose log bytes were not synced
yet is gone from the log together with its record and happens again; under ASYNC_FLUSH a consumer may have seen it by then
(at most flushIntervalCommitLog of deliveries), under SYNC_FLUSH not. Timers themselves are as safe as flushDiskType makes
every message. A cancellation that was acknowledged holds under the same conditions. Nothing fires early by this broker's
clock; ticks come every 50 ms, so it fires that much late.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from roquet.broker.handler import Handler
from roquet.broker.part import Part
from roquet.broker.send import Sender
from roquet.broker.topics import Topics
from roquet.broker.writer import Draft, Writer
from roquet.errors import Refused, StoreUnavailable, Unstorable
from roquet.ports import Background, Peer
from roquet.settings import BrokerSettings
from roquet.store.disk import Cold, Disk, blocking
from roquet.store.documents import Document
from roquet.store.fanout import PREPARED, ROLLBACK, TRANSACTION_MASK
from roquet.store.log import MovedOut
from roquet.store.queue import ConsumeQueue
from roquet.store.storable import check_place
from roquet.store.store import Store
from roquet.store.timers import (
    GONE,
    HOUR_MS,
    NO_ROWS,
    NOTHING,
    WINDOW_ROWS,
    Checkpoint,
    Deliveries,
    Fired,
    Mark,
    Rows,
    TimerFiles,
    Window,
    rows_of,
)
from roquet.wire.calls.sends import RECALL_MESSAGE
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.ids import parse_offset_message_id
from roquet.wire.layout import ENTRIES, PROPERTIES_MAX, RECORD_MIN
from roquet.wire.names import NOT_ALLOWED_SEND_TOPICS, TIMER_TOPIC, check_topic
from roquet.wire.record import BadRecord, Record, decode_properties

log = logging.getLogger("roquet.broker")

DELAYS = (("TIMER_DELAY_SEC", 1_000), ("TIMER_DELAY_MS", 1))
MOMENTS = ("TIMER_DELIVER_MS", "__STARTDELIVERTIME")
CANCEL = "TIMER_DEL_UNIQKEY"
ASKING = frozenset(("TIMER_DELAY_SEC", "TIMER_DELAY_MS", *MOMENTS, CANCEL))
"""The properties served here."""

REAL_TOPIC, REAL_QUEUE, DUE, MOVES = "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ROLL_TIMES"
SURE_MS = 1_000_000_000_000
"""Entries with a smaller number than this (a time in 2001) say nothing sure: their records are read. Those of cancellations and
moved timers are negative, and Apache RocketMQ 4.9, deriving the queue anew, would write hashes of tags."""

FOLLOW_MAX = 20_000
"""Entries taken from the timer topic's queue in a tick."""
FIRE_MAX = 1_000
"""Timers fired in a tick: 20,000 a second, if that many are due."""
FIRE_AT_ONCE = 250
MOVE_MAX = 250
"""Timers moved in a tick."""
MOVE_ROWS = 20_000
"""Timers to move that are in memory at once."""
MOVE_AHEAD_MS = 60_000
"""Timers due within this are not moved; the log file waits until they have fired."""
AHEAD_MS = 10_000
"""Windows are loaded this long before they are due."""
WARM_MS = 2_000
"""Records are read into memory (the system's, not ours) this long before they are due."""
WRITE_MS = 1_000
SAVE_MS = 10_000
SAVE_BYTES = 64 << 20
"""A checkpoint is due after that much of the log even when no timer changed: recovery reads the log from there."""
RETRY_MS = 1_000
SLACK_MS = 1_000
"""A clock that is put right by less than this moves no timer."""
READ_GAP = 4_096
READ_MAX = 1 << 19
MARKS_MAX = 128
"""Bytes of properties that are kept free in a timed message for where it goes, and for how often it was moved."""
SAME_KEY_MAX = 64
"""Timers with one unique key that a cancellation looks at: a producer that tries again may store a message twice."""

Found = tuple[int, int, Record]
"""(due, offset, record) of a pending timer."""


class Timers(Part):
    """State: `mark` and `followed` say how much has happened; `files` hold what is pending, `window` those of them due before
    `horizon`, less the ones in `_dead`. `_batch` was taken from the window and is being fired.

    `_asked` and `_moving` are cancellations and moves that were put and not followed yet: until then they count by these.
    """

    master_only = True

    def __init__(
        self,
        store: Store,
        topics: Topics,
        writer: Writer,
        settings: BrokerSettings,
        disk: Disk,
        background: Background,
        fetch: Callable[[Cold, Callable[[], None]], None],
        sender: Sender,
    ) -> None:
        self.store = store
        self.topics = topics
        self.writer = writer
        self.settings = settings
        self.background = background
        self.fetch = fetch
        self.answer_when_stored = sender.answer_when_stored
        sender.recall_handle = self.recall_handle
        writer.diversions.append(self.divert)
        root = f"{settings.store_path_root_dir}/timers"
        self.files = TimerFiles(disk, root)
        self.document = Document(disk, f"{root}/checkpoint.json")
        self.window = Window()
        self.horizon = 0
        self.done = Fired((0, -1))
        self.followed = 0
        self._behind = 0  # entries there were at the start
        self.fired = self.cancelled = self.moved = 0
        self._dead: dict[int, int] = {}  # offset -> due
        self._batch = NO_ROWS
        self._asked: dict[int, int] = {}  # offset of a timer -> of its cancellation
        self._moving: dict[int, tuple[int, int]] = {}  # offset of a timer -> (due, where it was put again)
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._working = False
        self._loading: list[Rows] | None = None  # rows that came while a window is loaded
        self._reading = False
        self._warmed = 0
        self._move_below = 0
        self._moved = MovedOut(store.log)
        self._movable = NO_ROWS
        self._gone_since: set[int] = set()  # taken back since the search for those to be moved began
        self._finish_move: Callable[[], None] = lambda: None
        self._finding = False
        self._finished: list[int] = []
        self._saved: Checkpoint | None = None
        self._saving = self._broken = False
        self._retry_ms = self._move_ms = self._write_ms = self._save_ms = self._purge_ms = 0

    @property
    def mark(self) -> Mark:
        return self.done.mark

    # Life

    def open(self) -> None:
        """Take up the files where the last checkpoint left them, or derive them from the log anew. Blocking."""
        store = self.store
        self.files.disk.make_dir(self.files.directory)
        queue = store.find_queue(TIMER_TOPIC, 0)
        saved = self.document.load(Checkpoint.decode)
        if self.document.warning:
            log.warning("%s; the timers are derived from the log again", self.document.warning)
        if queue is None:
            self.files.clear()
            return
        self.topics.ensure(TIMER_TOPIC, read_queues=1, write_queues=1)
        self._behind = queue.next
        fits = saved is not None and store.log.start <= saved.log_end <= store.log.written and queue.first <= saved.followed <= queue.next
        if saved is not None and fits and self.files.restore(saved.hours):
            self.done, self.followed, start = Fired(saved.mark, saved.past), saved.followed, saved.log_end
            self._saved = saved
        else:
            if saved is not None or not (store.crashed or self.document.warning):
                what = "is missing" if saved is None else "does not fit the log or its files"
                log.warning("%s %s: the timers are derived from the log again", self.document.path, what)
            self.files.clear()
            self.followed = queue.first
            entry = blocking(queue.entry, queue.first)
            start = store.log.written if entry is None else max(store.log.start, entry[0])
        self.horizon = self.mark[0]
        deliveries = Deliveries(store.log.segments, start)
        rows: list[tuple[int, int, int]] = []
        for due, offset in deliveries:
            rows.append((max(due, self.mark[0]), offset, GONE))
            if len(rows) == FOLLOW_MAX:
                self.files.add(rows_of(rows))
                self.files.writer()[0]()
                rows.clear()
        self.files.add(rows_of(rows))

    @property
    def busy(self) -> bool:
        """Files are being written in the background; a clean stop waits for that."""
        return self._working or self._saving

    def save_now(self) -> None:
        """At a clean stop, so that the next start has nothing to derive. May block; raises OSError."""
        if self.busy or self._broken or (self._saved is None and not self.files.hours and not self.followed):
            return
        try:
            self.store.commit()
        except StoreUnavailable:
            return
        self.store.flush_now()
        state = self._state()
        self.files.writer()[0]()
        self.files.syncer()()
        self.document.save(state.encode())

    def _state(self) -> Checkpoint:
        return Checkpoint(self.store.log.written, self.followed, self.mark, self.files.describe(), self.done.past)

    # Taking messages

    def divert(self, draft: Draft) -> None:
        """A diversion: a message that asks for a later time goes to the timer topic. Raises Refused for one too far ahead."""
        properties = draft.properties
        if ASKING.isdisjoint(properties):
            return
        if draft.prepared < 0 or draft.topic in NOT_ALLOWED_SEND_TOPICS or draft.sys_flag & TRANSACTION_MASK in (PREPARED, ROLLBACK):
            return  # delivered before and tried again; or not yet on its way
        if properties.get("DELAY", "0") != "0":
            for name in ASKING:  # as upstream: the level counts
                properties.pop(name, None)
            return
        key = properties.get(CANCEL, "")
        if key:
            self._divert_cancellation(draft, key)
            return
        now_ms = self.store.now_ms
        due = due_of(properties, now_ms)
        limit_s = self.settings.timer_max_delay_sec
        if due - now_ms > limit_s * 1_000:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"timer message illegal, the delay time should not be bigger than the max delay {limit_s * 1_000}ms: "
                f"this one is due in {due - now_ms} ms, the limit is timerMaxDelaySec={limit_s} ({limit_s / 86_400:g} days)",
            )
        if due <= now_ms:
            return
        if len(draft.text().encode()) + len(draft.topic) + MARKS_MAX > PROPERTIES_MAX:
            raise Unstorable(
                f"maybe msg properties exceed the limit of {PROPERTIES_MAX} bytes, of which {MARKS_MAX} and the topic's name are kept for "
                "the timer"
            )
        self.topics.ensure(TIMER_TOPIC, read_queues=1, write_queues=1)
        properties.pop(MOVES, None)
        properties[DUE] = str(due)
        properties[REAL_TOPIC], properties[REAL_QUEUE] = draft.topic, str(draft.queue_id)
        draft.topic, draft.queue_id = TIMER_TOPIC, 0

    def recall_handle(self, draft: Draft) -> str | None:
        """What 5.x's clients keep of a send to cancel it: the text of a RECALL_MESSAGE. None when it is not a pending timer."""
        properties = draft.properties
        key = properties.get("UNIQ_KEY")
        if draft.topic != TIMER_TOPIC or CANCEL in properties or not key:
            return None
        text = f"v1 {properties[REAL_TOPIC]} {self.settings.broker_name} {properties[DUE]} {key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    # Cancelling

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, peer: Peer, command: Command) -> None:
        """370. The handle is 5.x's, or just the id of the message: the producer's unique one, or the broker's."""
        handle = RECALL_MESSAGE.read_header(command).recall_handle.strip()
        why = self.store.refuse_writes()
        if why:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"nothing can be cancelled now: {why}")
        topic, key = read_handle(handle)
        self._cancel(self._pending(key, topic), key)
        self.answer_when_stored(command, key)

    def _divert_cancellation(self, draft: Draft, text: str) -> None:
        """A message with TIMER_DEL_UNIQKEY cancels, and is stored as a cancellation itself. 5.3 writes topic_key."""
        topic, _, key = text.rpartition("_")
        try:
            found = self._pending(text, "")
        except Refused:
            if not topic:
                raise
            found = self._pending(key, topic)
        self._cancel(found, text)
        other = self._cancellation(found[0], text)
        draft.topic, draft.queue_id, draft.prepared, draft.properties = other.topic, other.queue_id, other.prepared, other.properties

    def _pending(self, key: str, topic: str) -> list[Found]:
        """The pending timers with this id. Raises Refused when there is none, Cold while it must be looked up on disk."""
        records, _, _ = self.store.query(TIMER_TOPIC, key, SAME_KEY_MAX, 0, NOTHING)
        decoded = [(record, decode_properties(record.properties)) for record in map(Record.decode, records)]
        decoded = [(record, names) for record, names in decoded if names.get("UNIQ_KEY") == key]  # the index knows hashes only
        if not decoded:
            record = self._at_offset_of(key)
            if record is not None:
                names = decode_properties(record.properties)
                if names.get("UNIQ_KEY", key) != key:
                    return self._pending(names["UNIQ_KEY"], topic)
                decoded = [(record, names)]
        gone = {~record.prepared_transaction_offset: CANCEL in names for record, names in decoded if record.prepared_transaction_offset < 0}
        found: list[Found] = []
        state = "not known"
        for record, names in decoded:
            offset, due = record.physical_offset, int(names.get(DUE, "0"))
            if CANCEL in names or (topic and names.get(REAL_TOPIC) != topic):
                continue
            if gone.get(offset) or self._is_asked(offset):
                state = "cancelled already"
            elif due <= self.store.now_ms or self.done.has(due, offset):
                # The first, too: the mark may be behind, after a crash it does not know all that was delivered.
                state = "delivered already"
            elif offset not in gone:
                found.append((due, offset, record))
        if not found:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"no timed message with id {key[:80]!r} is pending on {self.settings.broker_name}: it is {state}. "
                "Give the id that its send was answered with; one that has fired cannot be cancelled",
            )
        return found

    def _at_offset_of(self, text: str) -> Record | None:
        """The timer that stands where an offset id of this broker says."""
        try:
            host, offset = parse_offset_message_id(text)
            record = Record.decode(self.store.record_at(offset), check_crc=False) if host == self.store.store_host else None
        except (Refused, LookupError):
            return None
        return record if record is not None and record.topic == TIMER_TOPIC else None

    def _cancel(self, found: list[Found], key: str) -> None:
        """Put a cancellation for each. They count from now on, if they are stored."""
        for one in found:
            place = self.writer.put_as_is(self._cancellation(one, key))
            self._asked[one[1]] = place.log_offset
            self.cancelled += 1
            due, moved = self._moving.get(one[1], (0, -1))
            if moved >= 0:
                place = self.writer.put_as_is(self._cancellation((due, moved, one[2]), key))
                self._asked[moved] = place.log_offset

    def _cancellation(self, found: Found, key: str) -> Draft:
        due, offset, record = found
        names = decode_properties(record.properties)
        properties = {name: names[name] for name in ("UNIQ_KEY", REAL_TOPIC, REAL_QUEUE) if name in names}
        properties |= {CANCEL: names.get("UNIQ_KEY", key), DUE: str(due)}
        return Draft(TIMER_TOPIC, 0, b"", properties, born_ms=self.store.now_ms, born_host=record.born_host, prepared=~offset)

    def _is_asked(self, offset: int) -> bool:
        """Was this timer cancelled, although following has not come to it? A cancellation that could not be written does not count."""
        at = self._asked.get(offset)
        if at is None:
            return False
        if at >= self.store.log.written:
            return at < self.store.log.end  # staged in this very batch of requests
        try:
            record = Record.decode(self.store.log.read(at, int.from_bytes(self.store.log.read(at, 4), "big")))
        except (LookupError, BadRecord):
            record = None
        except Cold:
            return True  # written just now, so it is there; only the memory was needed for something else
        if record is None or record.topic != TIMER_TOPIC or record.prepared_transaction_offset != ~offset:
            del self._asked[offset]
            return False
        return True

    # Time

    def tick(self, now_ms: int) -> None:
        """First of all parts: it commits what it puts, and must not commit what others staged."""
        wall_ms = self.store.now_ms
        if self.mark[0] > wall_ms + SLACK_MS and not self._put_back(wall_ms):
            return
        self._follow()
        if self.followed >= self._behind:
            # Not before: what was there at the start includes cancellations, and timers that the files know as delivered already.
            self._load(wall_ms)
            self._fire(wall_ms)
            self._warm(wall_ms)
            self._move(wall_ms)
        self._tidy(wall_ms)

    def _put_back(self, wall_ms: int) -> bool:
        """The clock was set back behind what is fired: what comes now may be due before that again. False: not yet, the disk is asked."""
        queue = self.store.find_queue(TIMER_TOPIC, 0)
        end = 0
        if queue is not None and self.followed > queue.first:
            try:
                entry = queue.entry(self.followed - 1)
            except Cold as cold:
                if not self._reading:
                    self._fetch(cold)
                return False
            end = 0 if entry is None else entry[0] + 1
        late = self.window.take(self.mark[0] + 1, WINDOW_ROWS)  # came when their time was over: they stay due at once
        late[:, 0] = wall_ms
        self.window.add(self._batch)  # was about to be fired, and may not be due any more
        self._batch = NO_ROWS
        self._finished = [*{*self._finished, *self.files.forget_before(self.mark[0])}]
        self.done = self.done.put_back(wall_ms, end)
        self.window.add(late)
        self._warmed = 0
        self._save_ms = 0
        return True

    def _follow(self) -> None:
        """Take what is new in the timer topic's queue."""
        queue = self.store.find_queue(TIMER_TOPIC, 0)
        stop = 0 if queue is None else min(queue.visible, self.followed + FOLLOW_MAX)
        while queue is not None and self.followed < stop and not self._reading:
            if self.followed < queue.first:
                self.followed = queue.first
                continue
            try:
                entries = self._mended(queue, np.frombuffer(queue.read(self.followed, stop - self.followed), ENTRIES))
                rows, cleared = self._rows(entries)
            except Cold as cold:
                self._fetch(cold)
                return
            if not len(entries):
                return
            self.followed += len(entries)
            np.maximum(rows[:, 0], self.mark[0], out=rows[:, 0])
            self._apply(rows)
            for offset in cleared:
                self._asked.pop(offset, None)
                self._moving.pop(offset, None)
            if self._finding or len(self._movable):
                self._gone_since.update(cleared)

    def _mended(self, queue: ConsumeQueue, entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Damaged entries made again from the log, or blank. Raises Cold while they are looked for."""
        damaged = np.flatnonzero(entries["size"] < RECORD_MIN).tolist()
        if damaged:
            entries = entries.copy()
            for number in damaged:
                found = self.store.mender.entry(queue, self.followed + number)
                entries[number] = (0, 0x7FFFFFFF, 0) if found is None else found
        return entries

    def _rows(self, entries: np.ndarray[Any, Any]) -> tuple[Rows, list[int]]:
        """(rows of these entries, offsets of timers that they take back). Raises Cold, and then nothing has happened."""
        rows = np.stack([entries[name].astype(np.int64) for name in ("tag", "offset", "size")], axis=1)
        unsure = rows[:, 0] < SURE_MS
        if not unsure.any():
            return rows, []
        more: list[tuple[int, int, int]] = []
        cleared: list[int] = []
        for (_, offset, size), record in self._read(rows[unsure & (rows[:, 2] != 0x7FFFFFFF)]):
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

    def _apply(self, rows: Rows) -> None:
        self.files.add(rows)
        near = rows[:, 0] < self.horizon
        self._hold(rows[near])
        if self._loading is not None and not near.all():
            self._loading.append(rows[~near])

    def _hold(self, rows: Rows) -> None:
        """These are due before the horizon: keep them in memory."""
        gone = rows[:, 2] == GONE
        for due, offset, _ in rows[gone].tolist():
            self._dead[offset] = due
        self.window.add(rows[~gone])

    # The window

    def _load(self, now_ms: int) -> None:
        """Keep the horizon ahead of now."""
        if self._loading is not None:
            return
        soon = now_ms + AHEAD_MS
        if self.horizon >= soon or self.store.steady_ms < self._retry_ms:
            return
        hour = self.files.next_hour(self.horizon)
        if hour is None or hour * HOUR_MS > soon:
            self.horizon = soon
            return
        write, failed = self.files.writer()
        load = self.files.loader(hour, self.horizon, self.done)
        self._loading = []

        def work() -> tuple[Rows, int]:
            write()
            return load()

        def done(result: tuple[Rows, int] | Exception) -> None:
            came, self._loading = self._loading or [], None
            if isinstance(result, Exception):
                failed()
                self._retry_ms = self.store.steady_ms + RETRY_MS
                log.error("timers due from %d on could not be read: %s; trying again", self.horizon, result)
                return
            rows, self.horizon = result
            self.window.add(rows)
            for more in came:
                self._hold(more[more[:, 0] < self.horizon])

        self._do(work, done)

    def _shorten(self, now_ms: int) -> None:
        """More timers than expected were sent for the hour in memory: its later part stays in its file for now."""
        stop = self.window.due_of(WINDOW_ROWS) // 1_000 * 1_000
        if stop > now_ms + 2 * AHEAD_MS:
            self.window.drop_from(stop)
            self.horizon = stop
            self._dead = {offset: due for offset, due in self._dead.items() if due < stop}

    def _warm(self, now_ms: int) -> None:
        """Ask the disk for records before their time, so that firing finds them in memory."""
        start, stop = max(self._warmed, now_ms), min(now_ms + WARM_MS, self.horizon)
        if self._reading or stop - start < WARM_MS // 4:
            return
        self._warmed = stop
        rows = self.window.look(start, stop)[: 10 * FIRE_MAX]
        try:
            self._read(rows, decode=False)
        except Cold as cold:
            self._fetch(cold)

    # Firing

    def _fire(self, now_ms: int) -> None:
        if self._reading or self.store.steady_ms < self._retry_ms or self.store.refuse_own():
            return
        fired = 0
        while fired < FIRE_MAX:
            if not len(self._batch):
                limit = min(now_ms + 1, self.horizon)
                self._batch = self.window.take(limit, FIRE_AT_ONCE)
                if not len(self._batch):
                    self.done = self.done.risen(max(self.mark, (limit, -1)))
                    return
            batch = self._batch
            due = [not self._is_taken_back(offset) for offset in batch[:, 1].tolist()]
            try:
                found = self._read(batch[due])
            except Cold as cold:
                self._fetch(cold)
                return
            for (_, offset, _), record in found:
                self._deliver(offset, record)
            try:
                self.store.commit()
            except StoreUnavailable as error:
                self._retry_ms = self.store.steady_ms + RETRY_MS
                log.warning("%d timed messages are due and could not be delivered: %s; trying again", len(batch), error)
                return
            self.done = self.done.risen((int(batch[-1, 0]), int(batch[-1, 1])))
            self._batch = NO_ROWS
            fired += len(batch)
            self.fired += len(found)

    def _is_taken_back(self, offset: int) -> bool:
        if offset in self._dead:
            return True
        return offset in self._moving or self._is_asked(offset)

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
        if self.topics.get(real) is None:
            # Deleted meanwhile, or made by the very send and lost with a crash: who promised delivery cannot tell, and keeps it.
            log.warning("topic %s does not exist, but a timed message for it is due: it is made again", real)
            self.topics.ensure(real, read_queues=queue_id + 1, write_queues=queue_id + 1)
        self.store.put(
            self.store.queue(real, queue_id),
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

    # Reading

    def _read(self, rows: Rows, *, decode: bool = True) -> list[tuple[tuple[int, int, int], Record | None]]:
        """The timers' records in the order of the rows, None where there is none. Neighbours in the log are read together.

        Raises one Cold for all that is not in memory.
        """
        places: list[tuple[int, int, int]] = sorted((offset, size, n) for n, (_, offset, size) in enumerate(rows.tolist()))
        found: list[Record | None] = [None] * len(places)
        fetches: list[Callable[[], object]] = []
        commit_log, segment = self.store.log, self.store.log.segments.size
        n = 0
        while n < len(places):
            start, size, _ = places[n]
            end, last = start + size, n + 1
            while last < len(places):
                offset, size, _ = places[last]
                if offset > end + READ_GAP or offset + size - start > READ_MAX or offset // segment != start // segment:
                    break
                end, last = max(end, offset + size), last + 1
            try:
                data = commit_log.read(start, end - start)
            except LookupError:
                data = b""
            except Cold as cold:
                fetches.append(cold.fetch)
                data = b""
            if decode and data:
                for offset, _, place in places[n:last]:
                    try:
                        record = Record.decode(data, offset - start, check_crc=False)
                    except BadRecord:
                        continue
                    if record.physical_offset == offset and record.topic == TIMER_TOPIC:
                        found[place] = record
            n = last
        if fetches:
            raise Cold(lambda: [fetch() for fetch in fetches])
        return [((due, offset, size), record) for (due, offset, size), record in zip(rows.tolist(), found, strict=True)]

    def _fetch(self, cold: Cold) -> None:
        self._reading = True

        def done() -> None:
            self._reading = False

        try:
            self.fetch(cold, done)
        except Refused:  # too many reads are under way: the next tick tries again
            self._reading = False

    # Moving timers out of log files that are to go

    def may_drop(self, end: int) -> bool:
        """Retention asks: does no pending timer need the log below this offset? If one does, moving them begins."""
        if self.store.find_queue(TIMER_TOPIC, 0) is None:
            return True
        if self._needs(end):
            self._move_below = max(self._move_below, end)
            return False
        return self._moved.is_durable(end)

    def _needs(self, end: int) -> bool:
        queue = self.store.find_queue(TIMER_TOPIC, 0)
        if queue is None:
            return False
        if self.files.oldest() < end:
            return True
        if self.followed >= queue.next:
            return False
        try:
            entry = queue.entry(self.followed)
        except Cold:
            return True
        return entry is None or entry[0] < end

    def _move(self, now_ms: int) -> None:
        if not self._move_below or self._reading or self.store.steady_ms < self._move_ms or self.store.refuse_own():
            return
        if len(self._movable):
            self._move_some(now_ms)
        elif not self._moving and not self._finding:
            self._find_movable(now_ms)

    def _find_movable(self, now_ms: int) -> None:
        below = self._move_below
        hour = next((number for number, hour in self.files.hours.items() if hour.first < below), None)
        if hour is None:
            self._move_below = 0
            return
        write, failed = self.files.writer()
        end = self.store.log.written
        find = self.files.mover(hour, below, self.done, MOVE_ROWS)
        self._finding = True
        self._gone_since.clear()

        def work() -> tuple[Rows, int]:
            write()
            return find()

        def done(result: tuple[Rows, int] | Exception) -> None:
            self._finding = False
            if isinstance(result, Exception):
                failed()
                self._move_ms = self.store.steady_ms + RETRY_MS
                log.warning("timers to be moved could not be read: %s; trying again", result)
                return
            self._movable, first = result

            def finish() -> None:
                if hour in self.files.hours:
                    # What was put since the search stands behind the log's end of then.
                    self.files.hours[hour].first = min(first, end)

            self._finish_move = finish
            if not len(self._movable):
                finish()

        self._do(work, done)

    def _move_some(self, now_ms: int) -> None:
        rows = self._movable[:MOVE_MAX]
        gone = self._gone_since
        pending = np.array(
            [not self.done.has(due, offset) and offset not in gone and not self._is_taken_back(offset) for due, offset, _ in rows.tolist()]
        )
        late = rows[:, 0] > now_ms + MOVE_AHEAD_MS
        if (pending & ~late).any():
            self._move_ms = self.store.steady_ms + RETRY_MS  # soon due: it fires first
            self._movable = NO_ROWS
            return
        try:
            found = self._read(rows[pending])
        except Cold as cold:
            self._fetch(cold)
            return
        moved: dict[int, tuple[int, int]] = {}
        for (due, offset, _), record in found:
            if record is None:
                log.error("the timed message at log offset %d is gone from the log and cannot be moved", offset)
                continue
            draft = Draft.of(record)
            draft.sys_flag = record.sys_flag & ~0x30
            draft.properties[MOVES] = str(int(draft.properties.get(MOVES, "0")) + 1)
            draft.prepared = ~offset
            moved[offset] = (due, self.writer.put_as_is(draft).log_offset)
        try:
            self.store.commit()
        except StoreUnavailable as error:
            self._move_ms = self.store.steady_ms + RETRY_MS
            log.warning("timers could not be moved out of an old log file: %s; trying again", error)
            return
        self._moving |= moved
        self.moved += len(moved)
        self._movable = self._movable[MOVE_MAX:]
        if not len(self._movable):
            self._finish_move()

    # The files

    def _tidy(self, now_ms: int) -> None:
        steady_ms = self.store.steady_ms
        if steady_ms >= self._purge_ms:
            self._purge_ms = steady_ms + WRITE_MS
            if self._dead:
                self._dead = {offset: due for offset, due in self._dead.items() if due >= self.mark[0]}
            if len(self.window) > 2 * WINDOW_ROWS and self._loading is None:
                self._shorten(now_ms)
        if steady_ms >= self._save_ms and not self._saving:
            self._save_ms = steady_ms + SAVE_MS
            self._save(steady_ms)
        if self.files.fresh_bytes and not self._working and steady_ms >= self._write_ms:
            self._write_ms = steady_ms + WRITE_MS
            work, failed = self.files.writer()

            def done(result: object) -> None:
                if isinstance(result, Exception):
                    failed()
                    log.warning("timers could not be written to their files: %s; trying again", result)

            self._do(work, done)

    def _save(self, now_ms: int) -> None:
        """Files on disk, then the checkpoint that says so. The log comes first: they must not outrun it."""
        saved, store = self._saved, self.store
        if self._broken or store.failed or (saved is None and not self.files.hours):
            return
        self._finished = [*{*self._finished, *self.files.forget_before(self.mark[0])}]
        state = self._state()
        if (
            saved is not None
            and (saved.followed, saved.hours, saved.past) == (state.followed, state.hours, state.past)
            and state.log_end - saved.log_end < SAVE_BYTES
            and not (state.mark != saved.mark and self._finished)
        ):
            return
        self._saving = True
        finished = list(self._finished)

        def log_flushed(flushed: bool) -> None:
            if not flushed:
                self._saving = False
                return
            write, failed = self.files.writer()
            sync = self.files.syncer()
            remove = self.files.remover(finished)
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
                    self._saved = state
                    self._finished = [hour for hour in self._finished if hour not in finished]
                elif wrote:
                    # After a failed sync nobody can say what is on disk. The checkpoint of before still holds; there will be no newer.
                    self._broken = True
                    log.error("timer files could not be synced: %s; after a restart they are derived from the log again", result)
                else:
                    failed()
                    log.warning("timers could not be written to their files: %s; trying again", result)

            self._do(work, done)

        store.log.when_durable(state.log_end, now_ms + self.settings.sync_flush_timeout, log_flushed)

    def _do(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Work on the files, one after the other."""
        self._jobs.append((work, done))
        self._next_job()

    def _next_job(self) -> None:
        if self._working or not self._jobs:
            return
        self._working = True
        work, done = self._jobs.popleft()

        def finished(result: Any) -> None:
            self._working = False
            done(result)
            self._next_job()

        self.background.run(work, finished)

    def __repr__(self) -> str:
        return f"<Timers up to {self.mark}, {len(self.window)} due before {self.horizon}, {self.files!r}>"


def due_of(properties: dict[str, str], now_ms: int) -> int:
    """When the message is to be delivered; 0 for at once. Raises Refused for what is no number."""
    for name, unit in DELAYS:
        if properties.get(name):
            return now_ms + number_of(properties, name) * unit
    for name in MOMENTS:
        if properties.get(name):
            return number_of(properties, name)
    return 0


def number_of(properties: dict[str, str], name: str) -> int:
    text = properties[name].strip()
    if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 19:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {name}={text[:40]!r} is not a number of at most 19 digits")
    return int(text)


def read_handle(text: str) -> tuple[str, str]:
    """(topic or "", message id) of a recall handle of 5.x, or of a bare message id. Raises Refused."""
    if not text or len(text) > 1_024:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"recall failed, recallHandle has {len(text)} characters, expected 1 to 1024")
    try:
        parts = base64.urlsafe_b64decode(text.encode()).decode().split(" ")
    except (binascii.Error, UnicodeError):
        parts = []
    if len(parts) == 5 and parts[0] == "v1":
        return parts[1], parts[4]
    if not text.isprintable() or " " in text:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"recall failed, handle is invalid: {text[:80]!r}")
    return "", text


def unwrap(properties: str) -> tuple[str, int, str]:
    """(real topic, real queue, properties as delivered) of a timer's properties. Raises Refused for a place that cannot be."""
    topic, queue = "", "0"
    kept: list[str] = []
    for item in properties.split("\x02"):
        name, _, value = item.partition("\x01")
        if name == REAL_TOPIC:
            topic = value
        elif name == REAL_QUEUE:
            queue = value
        elif name != MOVES:
            kept.append(item)
    check_topic(topic)
    queue_id = int(queue) if queue.isascii() and queue.isdigit() and len(queue) < 10 else 0
    check_place(topic, queue_id)
    return topic, queue_id, "\x02".join(kept)
