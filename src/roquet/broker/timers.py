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

    timed/properties.py   what a message asks for             timed/near.py         those due soon, in memory
    timed/following.py    the topic's queue becomes rows      timed/firing.py       they are delivered
    timed/cancelling.py   and the record of it                timed/moving.py       out of old log files
    timed/taken_back.py   what counts before it is followed   timed/saving.py       files and checkpoint on disk
"""

from __future__ import annotations

import base64
import contextlib
import logging
from functools import partial

from roquet.broker.handler import answers
from roquet.broker.one_by_one import OneByOne
from roquet.broker.part import Part, Shared
from roquet.broker.portions import Work, unhurried
from roquet.broker.send import Sender
from roquet.broker.timed.cancelling import Cancelling
from roquet.broker.timed.firing import Firing
from roquet.broker.timed.following import FOLLOW_MAX, Following
from roquet.broker.timed.moving import Moving
from roquet.broker.timed.near import Near
from roquet.broker.timed.properties import ASKING, CANCEL, DUE, MOVES, REAL_TOPIC, due_of, read_handle
from roquet.broker.timed.reading import TimerReader
from roquet.broker.timed.saving import TimerSaving
from roquet.broker.timed.taken_back import TakenBack
from roquet.broker.topics import Topics
from roquet.broker.writer import Draft, Writer
from roquet.errors import Refused, Unstorable
from roquet.message import Property
from roquet.ports import FOREVER, Peer
from roquet.store.disk import Cold, blocking
from roquet.store.fanout import PREPARED, ROLLBACK, TRANSACTION_MASK
from roquet.store.log import MovedOut
from roquet.store.queue import ConsumeQueue
from roquet.store.scan import CHUNK
from roquet.store.timers import GONE, Deliveries, Fired, TimerCheckpoint, TimerFiles, rows_of
from roquet.wire.calls.sends import RECALL_MESSAGE
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import NOT_ALLOWED_SEND_TOPICS, TIMER_TOPIC

log = logging.getLogger("roquet.broker")

SLACK_MS = 1_000
"""A clock that is put right by less than this moves no timer."""

FIND_MS = 5
"""How long one tick looks for deliveries."""
WARM = 1 << 20
"""Bytes of the log that come into memory at a time, before they are read."""
AHEAD = 2 * CHUNK
"""And so many before the reader comes to them: it reads in pieces of CHUNK."""


class Timers(Part):
    """State: `files` hold what is pending; the rest is in its parts."""

    master_only = True

    def __init__(self, shared: Shared, topics: Topics, writer: Writer, sender: Sender) -> None:
        super().__init__(shared)
        self.topics = topics
        self.answer_when_stored = sender.answer_when_stored
        sender.recall_handle = self.recall_handle
        writer.diversions.append(self.divert)
        self._writer = writer
        self.forget()

    # Life

    def forget(self) -> None:
        shared, topics, writer = self.shared, self.topics, self._writer
        self.files = TimerFiles(shared.disk, f"{self.settings.store_path_root_dir}/timers")
        self.reader = TimerReader(self.store.log, shared.fetch)
        self.near = near = Near(self.store, self.files, OneByOne(shared.background), self.reader, TakenBack(self.store.log))
        self.firing = Firing(near, topics)
        self.cancelling = Cancelling(near, writer, self.settings)
        self.moving = Moving(near, writer)
        self.following = Following(near, self.moving)
        self.saving = TimerSaving(near, self.following, self.settings)
        self._moved_out = MovedOut(self.store.log)
        self._finding: Work[None] | None = None
        """Looks for deliveries in the log; nothing is delivered before that is over."""

    def open(self) -> None:
        self._begin()
        while self._finding is not None:
            self._find_some(FOREVER)

    def prepare_to_lead(self) -> Work[None]:
        """Deliveries are looked for after that, while others send: a member that leads for the first time reads all of the log for them."""
        self.forget()
        yield None
        self._begin()

    def _begin(self) -> None:
        """Take up the files where the last checkpoint left them, or derive them from the log anew. Blocking."""
        self.files.disk.make_dir(self.files.directory)
        queue = self.store.find_queue(TIMER_TOPIC, 0)
        saved = self.saving.load()
        if queue is None:
            self.files.clear()
            return
        self.topics.ensure(TIMER_TOPIC)
        self.following.behind = queue.next
        start = self._take_up(queue, saved)
        self.near.horizon = self.near.mark[0]
        self._finding = self._find_delivered(start)

    def _take_up(self, queue: ConsumeQueue, saved: TimerCheckpoint | None) -> int:
        """Returns from which log offset on deliveries are looked for."""
        commit_log = self.store.log
        fits = saved is not None and commit_log.start <= saved.log_end <= commit_log.written and queue.first <= saved.followed <= queue.next
        if saved is not None and fits and self.files.restore(saved.hours):
            self.near.done, self.following.followed, self.saving.saved = Fired(saved.mark, saved.past), saved.followed, saved
            return saved.log_end
        document = self.saving.document
        if saved is not None or not (self.store.crashed or document.warning):
            what = "is missing" if saved is None else "does not fit the log or its files"
            log.warning("%s %s: the timers are derived from the log again", document.path, what)
        self.files.clear()
        self.following.followed = queue.first
        entry = blocking(queue.entry, queue.first)
        return commit_log.written if entry is None else max(commit_log.start, entry[0])

    def _find_some(self, until_ms: int) -> None:
        assert self._finding is not None
        try:
            while self.clock.steady_ms() < until_ms:
                cold = next(self._finding)
                if cold is not None and until_ms == FOREVER:
                    cold.fetch()
                elif cold is not None:
                    return self.reader.start(cold)
        except StopIteration:
            self._finding = None

    def _find_delivered(self, start: int) -> Work[None]:
        """In the log as it is now. What is delivered later than this was put by this part."""
        rows: list[tuple[int, int, int]] = []
        deliveries, warm = Deliveries(self.store.log.segments, start, self.store.log.written), start
        reading = iter(deliveries)
        while True:
            while warm < min(deliveries.stop, deliveries.at + AHEAD):
                warm = yield from self._warm(warm, deliveries.stop)
            try:
                found = next(reading)
            except StopIteration:
                break
            yield None
            if found is None:
                continue
            due, offset = found
            rows.append((max(due, self.near.mark[0]), offset, GONE))
            if len(rows) == FOLLOW_MAX:
                self.files.add(rows_of(rows))
                self.files.writer()[0]()
                rows.clear()
        self.files.add(rows_of(rows))

    def _warm(self, at: int, stop: int) -> Work[int]:
        """Let the next piece of the log come into memory, where it is read then. Returns where that ends."""
        segments = self.store.log.segments
        base = segments.base_of(at)
        if base is None:
            return stop
        size = min(WARM, stop - at, base + segments.size - at)
        with contextlib.suppress(LookupError):
            yield from unhurried(self.store.log.read, at, size)
        return at + size

    @property
    def busy(self) -> bool:
        """Files are being written in the background; a clean stop waits for that."""
        return self.saving.busy

    def save_now(self) -> None:
        if self._finding is None:
            self.saving.save_now()

    def metrics(self) -> dict[str, object]:
        queue = self.store.find_queue(TIMER_TOPIC, 0)
        waiting = self.near.waiting + (0 if queue is None else max(0, queue.visible - self.following.followed))
        return {"roquetTimedWaiting": waiting} if waiting else {}

    # Taking messages, and cancelling

    def divert(self, draft: Draft) -> None:
        """A diversion: a message that asks for a later time goes to the timer topic. Raises Refused for one too far ahead."""
        properties = draft.properties
        if ASKING.isdisjoint(properties):
            return
        if draft.prepared < 0 or draft.topic in NOT_ALLOWED_SEND_TOPICS or draft.sys_flag & TRANSACTION_MASK in (PREPARED, ROLLBACK):
            return  # delivered before and tried again; or not yet on its way
        if properties.get(Property.DELAY, "0") != "0":
            for name in ASKING:  # as upstream: the level counts
                properties.pop(name, None)
            return
        key = properties.get(CANCEL, "")
        if key:
            self.cancelling.divert(draft, key, own_topic_only=self.check_record is not None)
            return
        now_ms = self.store.staging.now_ms
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
        if why := draft.lacks_room("timer"):
            raise Unstorable(why)
        self.topics.ensure(TIMER_TOPIC)
        properties.pop(MOVES, None)
        properties[DUE] = str(due)
        draft.divert_to(TIMER_TOPIC)

    def recall_handle(self, draft: Draft) -> str | None:
        """What 5.x's clients keep of a send to cancel it: the text of a RECALL_MESSAGE. None when it is not a pending timer."""
        properties = draft.properties
        key = properties.get(Property.UNIQUE_KEY)
        if draft.topic != TIMER_TOPIC or CANCEL in properties or not key:
            return None
        text = f"v1 {properties[REAL_TOPIC]} {self.settings.broker_name} {properties[DUE]} {key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @answers(RECALL_MESSAGE)
    def recall(self, peer: Peer, command: Command) -> None:
        """370. The handle is 5.x's, or just the id of the message: the producer's unique one, or the broker's."""
        handle = RECALL_MESSAGE.read_header(command).recall_handle.strip()
        why = self.store.trouble.refuse_writes()
        if why:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"nothing can be cancelled now: {why}")
        topic, key = read_handle(handle)
        may_cancel = self.check_record
        self.cancelling.cancel_by_id(key, topic, may_cancel and partial(may_cancel, peer, command))
        self.answer_when_stored(command, key)

    # Time

    def tick(self, now_ms: int) -> None:
        """First of all parts: it commits what it puts, and must not commit what others staged."""
        self.more_due = False
        if self._finding is not None:
            if not self.reader.busy():
                self._find_some(self.clock.steady_ms() + FIND_MS)
            return
        wall_ms = self.store.staging.now_ms
        if self.near.mark[0] > wall_ms + SLACK_MS and not self._put_back(wall_ms):
            return
        self.following.follow()
        if self.following.followed >= self.following.behind:
            # Not before: what was there at the start includes cancellations, and timers that the files know as delivered already.
            self.near.load(wall_ms)
            self.more_due = self.firing.fire(wall_ms)
            self.near.warm(wall_ms)
            self.moving.move(wall_ms)
        self.near.tidy(wall_ms)
        self.saving.tick()

    def next_due_ms(self) -> int:
        queue = self.store.find_queue(TIMER_TOPIC, 0)
        if queue is None:
            return FOREVER
        if self._finding is not None or self.following.followed < queue.visible or self.firing.under_way:
            return 0  # not known yet
        return self.near.next_due_ms()

    def _put_back(self, wall_ms: int) -> bool:
        """The clock was set back behind what is fired: what comes now may be due before that again. False: not yet, the disk is asked."""
        try:
            end = self.following.log_end()
        except Cold as cold:
            self.reader.start(cold)
            return False
        self.saving.finish_hours()
        self.firing.put_back(wall_ms, end)
        self.saving.save_soon()
        return True

    def may_drop(self, end: int) -> bool:
        """Retention asks: does no pending timer need the log below this offset? If one does, moving them begins."""
        if self.store.find_queue(TIMER_TOPIC, 0) is None:
            return True
        if self._finding is not None:
            return False
        if self.files.oldest() < end or self.following.needs(end):
            self.moving.below = max(self.moving.below, end)
            return False
        return self._moved_out.is_durable(end)
