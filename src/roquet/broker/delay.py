"""Delayed messages: 18 levels (messageDelayLevel), each a queue of SCHEDULE_TOPIC_XXXX.

A message with DELAY=<level> is stored in queue level - 1 of the schedule topic; REAL_TOPIC and REAL_QID remember where it
was meant to go. All messages of a level wait equally long, so a queue is in the order of delivery and one number a level,
its cursor, says what was delivered. The queue entry carries the time of delivery in place of a tag hash.

A delivery is a second record with the same properties in the real queue. config/delayOffset.json keeps the cursors:

    {"offsetTable":{1:8,3:2},"logOffset":60361}

as upstream writes them, plus the log's end at that moment, which upstream ignores. It is saved only once the log is
flushed that far: a cursor must never be safer than the deliveries it vouches for. What a crash leaves:

- Nothing is lost, and nothing is early.
- Deliveries since the last save are looked for in the log behind `logOffset` and not made again. So a message comes twice
  only if the log lost its delivery (a power failure under ASYNC_FLUSH takes what was not flushed), or if an Apache broker
  saved the cursors last and was killed: it writes no `logOffset`, and up to 10 s of its deliveries come again, as upstream.

Time is the store's, that is wall time. A message may wait for its level's delay and no longer: one whose time of delivery is
further away was stored while the clock was ahead, and is delivered at once, as upstream does, so that it holds up nobody.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from zlib import crc32

from roquet.broker.gather import FOREIGN_MAX, SPAN_MAX, near_each_other
from roquet.broker.handler import answers
from roquet.broker.part import ColdReads, Shared
from roquet.broker.portions import Work, finish, unhurried
from roquet.broker.saving import SavedDocument, SavedPart
from roquet.broker.send import Sender
from roquet.broker.stored import Again, apart_for
from roquet.broker.writer import Draft, Writer
from roquet.errors import Refused, StoreUnavailable
from roquet.message import Property
from roquet.ports import FOREVER, Peer
from roquet.store.disk import Cold
from roquet.store.fanout import PREPARED, ROLLBACK, TRANSACTION_MASK, delay_level, queue_tag
from roquet.store.queue import ConsumeQueue
from roquet.store.recovery import first_at_or_after
from roquet.store.staging import Row
from roquet.store.store import Store
from roquet.store.window import LogWindow
from roquet.wire import fastjson
from roquet.wire.calls.offsets import GET_ALL_DELAY_OFFSET, DelayOffsetTable
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.layout import BLANK_LENGTH, ENTRY, HOST, QUEUE_ID_MAX, RECORD_MIN
from roquet.wire.names import HALF_TOPIC, NOT_ALLOWED_SEND_TOPICS, SCHEDULE_TOPIC, SYSTEM_TOPIC_PREFIX, TIMER_TOPIC, check_topic
from roquet.wire.record import BadRecord, Record

log = logging.getLogger("roquet.broker")

COPIED = "copied"
"""In the file of a slave: the cursors are its master's, which has gone on since."""
DELIVERED_MAX = 500
"""Messages delivered in one tick, over all levels; the rest waits for the next turn of the loop."""
BYTES_MAX = 8 * 1024 * 1024
"""The same in bytes."""
AHEAD_MAX = 64
"""Records that one trip to the disk fetches at most, when the next is not in memory."""
READ_MAX = 256
"""Queue entries read at a time."""
REAL = f"{Property.REAL_TOPIC}\x02{Property.REAL_QUEUE_ID}".encode()
"""Where a message was meant to go: what is asked of it."""
SLACK_MS = 1_000
"""A clock that is put right by less than this moves no delivery."""
LATER_MAX = 100_000
"""Messages of a level that are looked at for deliveries which outlived others."""


class Delays(SavedPart):
    """State: `offsets` is the cursor of each level, the next queue offset to deliver; `_due` when that one is due, 0 when not known."""

    master_only = True

    def __init__(self, shared: Shared, writer: Writer, sender: Sender) -> None:
        super().__init__(shared)
        sender.plain.diversions[Property.DELAY] = self.divert_plain
        self.writer = writer
        self.delays_ms = self.store.delays_ms
        self.delivered = 0
        """Since the start."""
        self.forget()
        self.reads = ColdReads(shared.fetch)
        """By level."""
        self._turn = 0
        self._window = LogWindow(self.store.log)
        self.saving = SavedDocument(
            shared, "delayOffset.json", self._snapshot, speaks_of_messages=True,
            pause=lambda awaited: self.settings.flush_delay_offset_interval,
        )  # fmt: skip
        writer.diversions.append(self.divert)

    # Opening

    def forget(self) -> None:
        self.offsets: dict[int, int] = {}
        self._loaded: tuple[dict[int, int], int | None, bool] | None = None
        self._due: dict[int, int] = {}
        self._delivered_ahead: dict[int, set[int]] = {}  # level -> messages behind its cursor that were delivered before a crash
        self._found_from = 0  # log offset from which on those deliveries are found

    def load(self) -> None:
        self._loaded = self.saving.load(parse_offsets)  # one that nobody can read is not passed over: everything would come again

    def open(self) -> None:
        if finish(self._find_progress()):
            self.saving.try_now()

    def prepare_to_lead(self) -> Work[None]:
        self.forget()
        self.load()
        if (yield from self._find_progress()):
            self.saving.changed()

    def _find_progress(self) -> Work[bool]:
        """Returns whether the file is to be written: what was read back is flushed, so from here on every delivery can be found."""
        # Without a file: nothing was delivered when the log was empty, as long as the log still begins there.
        saved, log_offset, copied = self._loaded or ({}, 0 if self.store.log.start == 0 else None, False)
        crashed = self.store.crashed or copied
        queues = {queue.queue_id + 1: queue for queue in self.store.queues_of(SCHEDULE_TOPIC)}
        for level in sorted(saved.keys() | queues.keys()):
            at, queue = saved.get(level, 0), queues.get(level)
            first, end = (0, 0) if queue is None else (queue.first, queue.next)
            if at > end:
                # Under ASYNC_FLUSH a power loss took entries that were delivered; the next ones get their offsets.
                log.warning("delay level %d: delivered up to %d, but its queue ends at %d; going on from there", level, at, end)
            self.offsets[level] = max(first, min(at, end))
        if crashed and log_offset is not None:
            yield from self._step_over_delivered(log_offset)
        return crashed or log_offset is None

    def _step_over_delivered(self, log_offset: int) -> Work[None]:
        """The saved cursors were true when the log ended at this offset. Every delivery since stands behind it, in its level's
        order: what is found there is not made again."""
        behind = Delivered(self.store, log_offset)
        for queue in self.store.queues_of(SCHEDULE_TOPIC):
            level = queue.queue_id + 1
            start = self.offsets[level]
            while self.offsets[level] < queue.visible:
                draft = yield from self._draft_at(queue, self.offsets[level])
                if draft is not None and not (yield from behind.take(draft)):
                    yield from self._find_later_ones(queue, level, behind)
                    break
                self.offsets[level] += 1
            if self.offsets[level] > start:
                log.info("delay level %d: %d deliveries before the crash are in the log", level, self.offsets[level] - start)

    def _find_later_ones(self, queue: ConsumeQueue, level: int, behind: Delivered) -> Work[None]:
        """Where the log has a hole, a delivery may have outlived one that was made before it."""
        if not any(end > behind.log_offset for _, end in self.store.timeline.overtaken):
            return
        for at in range(self.offsets[level] + 1, min(queue.visible, self.offsets[level] + LATER_MAX)):
            draft = yield from self._draft_at(queue, at)
            if draft is not None and (yield from behind.take(draft)):
                self._delivered_ahead.setdefault(level, set()).add(at)
                self._found_from = behind.log_offset

    def _draft_at(self, queue: ConsumeQueue, at: int) -> Work[Draft | None]:
        entry = yield from unhurried(queue.entry, at)
        record = None if entry is None else (yield from unhurried(self.record, entry[0], entry[1]))
        yield None
        return None if record is None else self.draft(record, queue.queue_id + 1)

    # On the way in

    def divert(self, draft: Draft) -> None:
        """A draft that asks for a delay goes into the schedule topic. Raises Refused for a level that is no number."""
        asked = draft.properties.get(Property.DELAY)
        if asked is None or draft.topic in NOT_ALLOWED_SEND_TOPICS or draft.topic.startswith(SYSTEM_TOPIC_PREFIX):
            return
        if draft.sys_flag & TRANSACTION_MASK in (PREPARED, ROLLBACK):
            return
        digits = asked.removeprefix("-")
        if not digits.isascii() or not digits.isdigit():
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"DELAY={asked[:64]!r} is no delay level; allowed are 1 to {len(self.delays_ms)}")
        level = delay_level(asked, len(self.delays_ms))
        if level == 0:
            return
        draft.properties[Property.DELAY] = str(level)
        draft.divert_to(SCHEDULE_TOPIC, level - 1)
        draft.wait_kept = True

    def divert_plain(self, topic: str, asked: str) -> tuple[ConsumeQueue, str, int | None] | None:
        """The same for a plain send (`plain_send.PlainDiversion`)."""
        level = delay_level(asked, len(self.delays_ms))
        if level == 0 or topic in NOT_ALLOWED_SEND_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX):
            return None
        due_ms = self.store.staging.now_ms + self.delays_ms[level - 1]
        return self.store.queue(SCHEDULE_TOPIC, level - 1), str(level), due_ms

    # On the way out

    def tick(self, now_ms: int) -> None:
        self.more_due = False
        if not self.store.trouble.refuse_own():
            self._deliver()
        super().tick(now_ms)

    def next_due_ms(self) -> int:
        waiting = [(level, self.store.find_queue(SCHEDULE_TOPIC, level - 1)) for level in range(1, self._queue_count() + 1)]
        return min(
            (self._due.get(level, 0) for level, queue in waiting if queue is not None and self.offsets.get(level, 0) < queue.visible),
            default=FOREVER,
        )

    def _deliver(self) -> None:
        now_ms = self.store.staging.now_ms  # the times of delivery were made from it
        waiting: list[tuple[int, ConsumeQueue]] = []
        for queue_id in range(self._queue_count()):
            level, queue = queue_id + 1, self.store.find_queue(SCHEDULE_TOPIC, queue_id)
            if queue is None or self.offsets.get(level, 0) >= queue.visible or self._waits(level, self._due.get(level, 0), now_ms):
                continue
            if not self.reads.busy(level):
                waiting.append((level, queue))
        if not waiting:
            return
        # Another level begins each time, so that none starves while there is more than one tick can deliver.
        self._turn += 1
        turn = self._turn % len(waiting)
        budget = Budget(DELIVERED_MAX, BYTES_MAX)
        reached: dict[int, int] = {}
        for level, queue in waiting[turn:] + waiting[:turn]:
            reached[level] = self._deliver_level(level, queue, now_ms, budget)
            if budget.spent:
                break
        try:
            self.store.commit()
        except StoreUnavailable as error:
            self._due.clear()
            log.warning("delayed messages could not be delivered, they are tried again: %s", error)
            return
        self.delivered += budget.delivered
        self.more_due = budget.spent
        for level, offset in reached.items():
            if offset != self.offsets.get(level, 0):
                self.saving.unsaved = True
            self._advance(level, offset)

    def _advance(self, level: int, offset: int) -> None:
        self.offsets[level] = offset
        if self._delivered_ahead and max(self._delivered_ahead.get(level, ()), default=offset) < offset:
            del self._delivered_ahead[level]

    def _queue_count(self) -> int:
        """Also those of levels that messageDelayLevel once had and has no longer: their messages are delivered too."""
        topic = self.writer.topics.get(SCHEDULE_TOPIC)
        return max(len(self.delays_ms), 0 if topic is None else topic.write_queue_nums)

    def _deliver_level(self, level: int, queue: ConsumeQueue, now_ms: int, budget: Budget) -> int:
        """Stage what is due of one level; returns the offset reached."""
        at = self.offsets.get(level, 0)
        if at < queue.first:
            log.warning("delay level %d: messages %d to %d left with old log files before they were delivered", level, at, queue.first - 1)
            at = queue.first
        try:
            while at < queue.visible and not budget.spent:
                start, raw = at, queue.read(at, min(READ_MAX, queue.visible - at))
                if not raw:
                    break
                done = self._deliver_many(raw, at, now_ms, budget)
                if done:
                    at += done
                    continue
                for position, size, due_ms in ENTRY.iter_unpack(raw):
                    if self._delivered_ahead and self.is_delivered(level, at):
                        at += 1
                        continue
                    if size < RECORD_MIN:  # damaged: the log may have the message all the same
                        position, size, due_ms = self.store.mender.entry(queue, at) or (0, BLANK_LENGTH, 1)
                    if due_ms <= 0:  # no time but the address of one (upstream's enableConsumeQueueExt): made again from the record
                        due_ms = self._due_by_record(level, position, size)
                    if self._waits(level, due_ms, now_ms, position):
                        self._due[level] = due_ms
                        return at
                    try:
                        record = self.record(position, size)
                    except Cold as cold:
                        behind = islice(ENTRY.iter_unpack(raw), at - start + 1, at - start + 1 + AHEAD_MAX)
                        due = [(place, length) for place, length, when in behind if when <= now_ms and length != BLANK_LENGTH]
                        raise self.store.log.together(cold, due) from None
                    if record is None and size != BLANK_LENGTH:
                        mended = self.store.mender.entry(queue, at)
                        record = None if mended is None or mended[0] == position else self.record(mended[0], mended[1])
                    draft = None if record is None else self.draft(record, level)
                    budget.take(size if draft is not None and self._put(draft, level, at) else 0)
                    at += 1
                    if budget.spent:
                        break
        except Cold as cold:
            self.reads.start(cold, level)
        self._due[level] = 0
        return at

    def _deliver_many(self, raw: bytes, at: int, now_ms: int, budget: Budget) -> int:
        """Stage the first of these entries that are due, as many as are in memory and nothing is unusual about: how many. What it does
        not take, one entry after another does, with the same outcome."""
        places: list[int] = []
        sizes: list[int] = []
        end, left = self.store.log.start, budget.size
        for position, size, due_ms in ENTRY.iter_unpack(raw[: budget.count * ENTRY.size]):
            if not RECORD_MIN <= size < BLANK_LENGTH or not 0 < due_ms <= now_ms or position < end or left <= 0:
                break
            places.append(position)
            sizes.append(size)
            end, left = position + size, left - size
        if len(places) < 2 or self._delivered_ahead:
            return 0
        try:
            messages = self._read(places, sizes)
        except (Cold, LookupError):
            return 0
        queues: dict[bytes, ConsumeQueue | None] = {}
        rows: list[Row] = []
        for (key, size, _, sys_flag, reconsumed, properties, kept), listed in zip(messages, sizes, strict=False):
            queue = queues[key] if key in queues else queues.setdefault(key, self._real_queue(key))
            if queue is None or size != listed:
                break
            rows.append((queue, properties, None, sys_flag, reconsumed, 0, kept))
        try:
            self.store.staging.put_rows(rows)
        except (Refused, ValueError):
            return 0
        budget.take_many(len(rows), sum(sizes[: len(rows)]))
        return len(rows)

    def _read(self, places: list[int], sizes: list[int]) -> list[Again]:
        """The messages there, up to the first that is unusual. Raises Cold and LookupError."""
        length = places[-1] + sizes[-1] - places[0]
        together = length <= SPAN_MAX and length - sum(sizes) <= FOREIGN_MAX
        found: list[Again] = []
        for begin, stop in [(0, len(places))] if together else near_each_other(places, sizes, SPAN_MAX):
            first = places[begin]
            stretch = self._window.view(first, places[stop - 1] + sizes[stop - 1] - first)
            found += apart_for(self.store.staging)(stretch, first, places[begin:stop], REAL)
            if len(found) < stop:
                break
        return found

    def _real_queue(self, key: bytes) -> ConsumeQueue | None:
        """Where messages go that say so (`stored.Again`, of REAL). None: not sure."""
        stored_in, *real = key.decode().split("\x02")
        if stored_in != SCHEDULE_TOPIC or len(real) != 2:
            return None
        topic, queue_id = real
        if topic in ("", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC) or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 5):
            return None
        return None if self.writer.topics.get(topic) is None else self.writer.topics.reachable(topic, int(queue_id))

    def _waits(self, level: int, due_ms: int, now_ms: int, position: int = -1) -> bool:
        """Is it to be delivered later? Not when that is further away than the level's delay: then the clock was set back since."""
        if due_ms <= now_ms:
            return False
        if level <= len(self.delays_ms):
            return due_ms <= now_ms + self.delays_ms[level - 1] + SLACK_MS
        # A level that messageDelayLevel no longer has: its delay is not known, but whether the record is from the future.
        return position < 0 or self.store.store_time_at(position) <= now_ms + SLACK_MS

    # For `handover.py`

    def queues(self) -> list[ConsumeQueue]:
        found = [self.store.find_queue(SCHEDULE_TOPIC, queue_id) for queue_id in range(self._queue_count())]
        return [queue for queue in found if queue is not None]

    def next_of(self, queue: ConsumeQueue) -> int:
        """The first message of the level that may still have to be delivered."""
        return max(self.offsets.get(queue.queue_id + 1, 0), queue.first)

    def is_delivered(self, level: int, at: int) -> bool:
        """A power loss left this delivery and took one before it."""
        return at in self._delivered_ahead.get(level, ())

    def due_of(self, level: int, entry: tuple[int, int, int]) -> int:
        """When to deliver it; at the latest its level's delay from now (see `_waits`)."""
        position, size, due_ms = entry
        if due_ms <= 0:
            due_ms = self._due_by_record(level, position, size)
        if level <= len(self.delays_ms):
            due_ms = min(due_ms, self.store.staging.now_ms + self.delays_ms[level - 1])
        return due_ms

    def reach(self, level: int, offset: int) -> None:
        """Everything of this level before this offset is done with."""
        self._advance(level, offset)
        self._due[level] = 0
        self.saving.unsaved = True

    def record(self, position: int, size: int) -> Record | None:
        """None when it is gone. Raises Cold."""
        if size == BLANK_LENGTH:
            return None  # the log lost it; recovery said so
        if position < self.store.log.start:
            log.error("a delayed message left with an old log file before it was delivered: log offset %d", position)
            return None
        try:
            record = Record.decode(self.store.log.read(position, size))
            if record.physical_offset != position:
                raise BadRecord(f"the record there says that it stands at {record.physical_offset}")
        except (LookupError, BadRecord) as error:
            log.error("the delayed message at log offset %d cannot be read, it is left out: %s", position, error)
            return None
        return record

    def draft(self, record: Record, level: int) -> Draft | None:
        """The delivery of a record. None for one that cannot be delivered: it must not hold up the others.

        Properties stay as they are, DELAY too, as Apache RocketMQ 4.9.7 stores them.
        """
        draft = Draft.again(record)
        draft.topic = draft.properties.get(Property.REAL_TOPIC, "")
        queue_id = draft.properties.get(Property.REAL_QUEUE_ID, "")
        try:
            check_topic(draft.topic)
            if draft.topic in (HALF_TOPIC, SCHEDULE_TOPIC):
                raise ValueError(f"its real topic would be {draft.topic}")
            draft.queue_id = int(queue_id)
            if not 0 <= draft.queue_id <= QUEUE_ID_MAX:
                raise ValueError(f"its real queue would be {queue_id}")
        except (Refused, ValueError) as error:
            log.error("the message in delay level %d at log offset %d is left out: %s", level, record.physical_offset, error)
            return None
        return draft

    def _put(self, draft: Draft, level: int, at: int) -> bool:
        topics = self.writer.topics
        try:
            if topics.get(draft.topic) is None:  # made by the very send and lost with a crash, or deleted meanwhile: as with timers
                topics.ensure(draft.topic, draft.queue_id + 1)
            self.writer.put_as_is(draft)
        except (Refused, ValueError) as error:  # a name or a size that the log has no room for
            log.error("message %d of delay level %d is left out: %s", at, level, error)
            return False
        return True

    def _due_by_record(self, level: int, position: int, size: int) -> int:
        stored_ms = self.store.store_time_at(position) if size != BLANK_LENGTH else -1
        return queue_tag(SCHEDULE_TOPIC, f"{Property.DELAY}\x01{level}", max(stored_ms, 0), self.delays_ms)

    # The file

    def take_over(self, table: DelayOffsetTable, log_end: int) -> None:
        """On a slave: the master's cursors, from when the log reached at least so far, are kept in the file for whoever takes over."""
        self.offsets = dict(table.offset_table)
        text = fastjson.dumps_pretty({"offsetTable": self._begun(), "logOffset": log_end, COPIED: True})

        def saved(error: Exception | None) -> None:
            if error is not None:
                log.warning("%s could not be written: %s; it is tried again", self.saving.document.path, error)

        self.saving.document.save_later(text, self.shared.background, saved)

    def _snapshot(self) -> Callable[[], bytes]:
        data = self.encode()
        return lambda: data

    def encode(self) -> bytes:
        """The file: the cursors, and the log's end that they belong to."""
        since = self._found_from if self._delivered_ahead else self.store.log.written
        return fastjson.dumps_pretty({"offsetTable": self._begun(), "logOffset": since})

    def _begun(self) -> dict[int, int]:
        """Levels that delivered something: upstream lists no others."""
        return {level: offset for level, offset in sorted(self.offsets.items()) if offset > 0}

    # Requests

    @answers(GET_ALL_DELAY_OFFSET)
    def get_all(self, peer: Peer, command: Command) -> Command:
        return GET_ALL_DELAY_OFFSET.reply(command, body=DelayOffsetTable(self._begun()))

    def metrics(self) -> Mapping[str, object]:
        rows = {}
        for level, offset in sorted(self.offsets.items()):
            queue = self.store.find_queue(SCHEDULE_TOPIC, level - 1)
            rows[f"scheduleMessageOffset_{level}"] = f"{offset},{0 if queue is None else queue.visible}"
        return rows


@dataclass(slots=True)
class Budget:
    """What one tick may still do, and what it delivered."""

    count: int
    size: int
    delivered: int = 0

    def take(self, size: int) -> None:
        """One message of so many bytes; 0 for one that was left out, which costs time too."""
        self.count -= 1
        self.size -= size
        self.delivered += size > 0

    def take_many(self, count: int, size: int) -> None:
        """So many messages, of so many bytes together."""
        self.count -= count
        self.size -= size
        self.delivered += count

    @property
    def spent(self) -> bool:
        return self.count <= 0 or self.size <= 0


class Delivered:
    """Deliveries that stand in the log behind an offset, to be crossed out one by one.

    Of a queue only those records are read that have the size which the delivery would have.
    """

    def __init__(self, store: Store, log_offset: int) -> None:
        self.store = store
        self.log_offset = log_offset
        self._places: dict[tuple[str, int], dict[int, list[int]]] = {}
        self._found: dict[tuple[str, int, int], Counter[object]] = {}

    def take(self, draft: Draft) -> Work[bool]:
        """Whether there is one like this that was not taken yet."""
        queue_key, size = (draft.topic, draft.queue_id), size_of(draft)
        places = self._places.get(queue_key)
        if places is None:
            places = self._places[queue_key] = yield from self._places_of(*queue_key)
        found = self._found.get((*queue_key, size))
        if found is None:
            found = self._found[*queue_key, size] = Counter()
            for at in places.get(size, []):
                raw = yield from unhurried(self.store.record_at, at)
                found[identity_of(Draft.of(Record.decode(raw, check_crc=False)))] += 1
                yield None
        identity = identity_of(draft)
        if found[identity] == 0:
            return False
        found[identity] -= 1
        return True

    def _places_of(self, topic: str, queue_id: int) -> Work[dict[int, list[int]]]:
        """Size -> log offsets."""
        places: dict[int, list[int]] = {}
        queue = self.store.find_queue(topic, queue_id)
        at = 0 if queue is None else first_at_or_after(queue, self.log_offset)
        while queue is not None and at < queue.visible:
            raw = yield from unhurried(queue.read, at, min(READ_MAX, queue.visible - at))
            yield None
            if not raw:
                break
            for position, size, _ in ENTRY.iter_unpack(raw):
                places.setdefault(size, []).append(position)
                at += 1
        return places


def identity_of(draft: Draft) -> object:
    """All that a delivery has in common with the record it came from."""
    properties = frozenset(draft.properties.items())
    return properties, len(draft.body), crc32(draft.body), draft.flag, draft.born_ms, draft.born_host, draft.reconsumed


def size_of(draft: Draft) -> int:
    longer = len(draft.born_host) + len(draft.store_host or bytes(HOST)) - 2 * HOST
    return RECORD_MIN + longer + len(draft.topic) + len(draft.body) + len(draft.text().encode())


def parse_offsets(data: bytes) -> tuple[dict[int, int], int | None, bool]:
    """The file, of 4.9 or 5.x: the cursors, the log's end that they belong to, and whether a slave copied them. Raises ValueError when
    it is not what it should be."""
    value = fastjson.loads(data)
    offsets = value.get("offsetTable") if isinstance(value, dict) else None
    if not isinstance(offsets, dict):
        raise ValueError("it holds no offsetTable")
    table = {int(level): int(offset) for level, offset in offsets.items()}
    if any(level < 1 or offset < 0 for level, offset in table.items()):
        raise ValueError(f"levels count from 1 and offsets from 0: {table}")
    mark = value.get("logOffset")
    return table, mark if isinstance(mark, int) and mark >= 0 else None, value.get(COPIED) is True
