"""Records that another node made: they are in the log as its bytes (`Log.append_raw`), and get their queue entries and keys here.

A slave's log, and that of a follower, grows by bytes that may end anywhere, also inside a record. The applier walks behind, up to what
`Log.appliable` says, record by record with the functions of recovery, so that it finds what a restart would find:

- Only whole records count. What is half here waits for its rest.
- The number of a message in its queue is the one in its record.
- What cannot be read is a hole: reported, counted, left where it is and stepped over, as soon as a whole record stands behind it.

No turn is long: `advance` stops when its time is over, and the store's next tick goes on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from roquet.ports import FOREVER
from roquet.store.apply_many import apply_many
from roquet.store.disk import Cold, blocking
from roquet.store.fanout import index_keys, is_indexed, is_queued
from roquet.store.queue import ConsumeQueue
from roquet.store.recovery import BLANKS_MAX, first_at_or_after, is_blank, place
from roquet.store.scan import Found, Hole, own_size, parse, read_one
from roquet.wire.layout import BLANK, BLANK_MAGIC, MAGIC_START, MAGIC_V1, MAGIC_V2, MAGICS, RECORD_MIN

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

WINDOW = 128 * 1024
"""Bytes of the log that are read at a time, or one record."""
APPLY_MS = 5
"""How long one tick applies records."""
RECORDS_A_LOOK = 256
"""Records between two looks at the clock."""
SETTLE_AT = 1_024
"""Keys that are hashed together."""
HOLES_KEPT = 1_000

FOLLOWS = "this broker is a slave: it stores what its master has, and nothing else"

FILE_ENDS = 0xFFFFFFFF
"""First word of what closes a file of a log with leads."""


class Applier:
    """State: `applied` is where the first record begins that has no entries yet. `following`: the log grows by another node's bytes; while
    it does not, messages are put here, get their entries at once, and the rest of this means nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._log = store.log
        self._lead = len(store.log.lead)
        self.following = False
        self.applied = 0
        self.records = 0
        """Applied since the start."""
        self.damaged = 0
        """Holes since the start."""
        self._lost = 0  # bytes in them
        self._searched = 0  # behind a damaged record no whole one begins before this offset
        self._fetching = False
        self._doubted: dict[ConsumeQueue, Found] = {}
        """Records whose number does not fit their queue, until the next one confirms it or all is applied."""

    # Roles

    @property
    def reach(self) -> int:
        """Up to here the log has its entries in memory or files: what the derived files can vouch for."""
        return self.applied if self.following else self._log.written

    def follow(self, applied: int = FOREVER) -> None:
        """From now on the log grows by another node's bytes. Of what was put here and is not safe, queues and index forget everything:
        the other node decides if it stays, and then it is applied. `applied`: up to here it is, if that is before what is safe."""
        store, safe = self._store, min(self._log.safe, applied)
        store.undo()
        unsafe, store.showing.unsafe = store.showing.unsafe, type(store.showing.unsafe)()
        try:
            for queue, before, _, _ in reversed(unsafe):
                if store.all_queues.has(queue):
                    queue.truncate(before)
            if unsafe:
                safe = self._cut_index(safe)
        except OSError as error:  # the next start looks at all of it
            store.trouble.fail(f"what was put here and is not safe could not be taken out of queues and index: {error}")
        self.following, self.applied, self._searched = True, safe, safe
        store.trouble.follows = FOLLOWS
        self._doubted.clear()
        self._log.note_applied(safe)

    def lead(self) -> None:
        """Messages are put here again. Raises ValueError when not all of the log is applied: numbers would be given twice."""
        self._settle_doubts()
        if self.following and self.applied < self._log.end:
            raise ValueError(f"the log ends at {self._log.end} and is applied up to {self.applied}: this node cannot take messages yet")
        self.following = False
        self._store.trouble.follows = ""
        self._log.note_applied(None)

    def stand_at(self, to: int) -> None:
        """The log begins anew here: nothing before it comes any more."""
        self.applied = self._searched = to
        self._doubted.clear()

    def cut_back(self, to: int) -> int:
        """The log is about to end here, at the beginning of a record: queues and index forget what stands behind it. Returns up to where it
        is applied then: that is earlier, where a damaged file of the index goes."""
        self._store.derived.cut_back(to)
        self._cut_queues(to)
        to = self._cut_index(to)
        self.applied, self._searched = min(self.applied, to), min(self._searched, to)
        self._doubted.clear()
        return to

    def _cut_queues(self, to: int) -> None:
        for queue in self._store.queues.values():
            before = queue.next
            queue.truncate(first_at_or_after(queue, to))
            if queue.next < before:
                self._store.tails.dirty.add(queue)

    def _cut_index(self, to: int) -> int:
        """The index forgets what stands behind this. Where a damaged file takes earlier keys with it, queues forget as much, so that all of
        it is applied again. From where on."""
        self._store.index.forget_from(to)
        missing = max(self._store.index.truncate_after(to), self._log.start)
        if missing < to:
            log.warning("an index file cannot be used any more: the log is applied again from %d on, up to %d", missing, to)
            self._cut_queues(missing)
        return missing

    # Applying

    def tick(self) -> None:
        if self.following:
            self.advance(self._store.clock.steady_ms() + APPLY_MS)

    def advance(self, until_ms: int = FOREVER) -> bool:
        """Apply what is whole, and until this steady time. True: no whole record is left."""
        if not self.following or self._fetching:
            return False
        steady_ms = self._store.clock.steady_ms
        try:
            while self._window():
                if steady_ms() >= until_ms:
                    return False
        except Cold as cold:
            self._fetch(cold)
            return False
        if self._doubted and self.applied == self._log.appliable:
            self._settle_doubts()
        return True

    def finish(self) -> None:
        """Apply all that is whole, and wait for the disk: for a stop."""
        while blocking(self._window):
            pass

    def _fetch(self, cold: Cold) -> None:
        self._fetching = True

        def done(result: object) -> None:
            self._fetching = False
            if isinstance(result, Exception):
                log.error("the log could not be read at %d: %s; it is tried again", self.applied, result)
            elif self._store.is_open:
                self.tick()

        self._store.background.run(cold.fetch, done)

    def _window(self) -> bool:
        """Apply the records of one piece of the log. False: nothing whole is left."""
        start, limit = self.applied, self._log.appliable
        base = self._log.segments.base_of(start)
        if start >= limit or base is None:
            return False
        file_end = base + self._log.segments.size
        data = self._log.read(start, min(WINDOW, limit - start, file_end - start))
        count, shown = 0, _Shown(self._store, start)
        at, many = (0, 0) if self._doubted else apply_many(self._store, data, start, shown.note)
        self.records += many
        while count < RECORDS_A_LOOK and at < len(data):
            step = self._one(data, at, start + at, file_end, limit, shown)
            if not step:
                break
            at += step
            count += 1
        if not at:
            at = self._longer(start, file_end, limit, shown)
        self.applied = start + at
        shown.show(self.applied)
        if at:
            self._log.note_applied(self.applied)
        if self._store.index.waiting >= SETTLE_AT:
            self._store.derived.settle()
        return at > 0

    def _longer(self, start: int, file_end: int, limit: int, shown: _Shown) -> int:
        """The first record is longer than the window, or damaged, or not whole yet."""
        whole = self._lead + BLANK.size
        if limit - start < min(whole, file_end - start):
            return 0
        head = self._log.read(start, min(whole, file_end - start))
        size = self._lead_of(head) + int.from_bytes(head[self._lead_of(head) :][:4], "big", signed=True)
        if WINDOW < size <= min(file_end, limit) - start:
            return self._one(self._log.read(start, size), 0, start, file_end, limit, shown)
        return 0

    def _lead_of(self, head: bytes) -> int:
        """Bytes before the record: none before one of a log that had no leads yet."""
        return 0 if self._lead == 0 or head[4:8] in MAGICS or head[4:8] == BLANK_MAGIC.to_bytes(4, "big") else self._lead

    def _one(self, data: bytes, at: int, offset: int, file_end: int, limit: int, shown: _Shown) -> int:
        """Apply what stands at this place. Returns its size, 0 when it is not whole here."""
        head = data[at : at + self._lead + BLANK.size]
        left = file_end - offset
        if left < self._lead + BLANK.size:
            return left if offset + left <= limit and not self._lead else self._closed(head, left, offset, limit)
        if len(head) < self._lead + BLANK.size:
            return 0
        lead = self._lead_of(head)
        size, magic = int.from_bytes(head[lead : lead + 4], "big", signed=True), int.from_bytes(head[lead + 4 : lead + 8], "big")
        if (magic == BLANK_MAGIC and size == left) or (lead and int.from_bytes(head[:4], "big") == FILE_ENDS):
            return left if offset + left <= limit else 0
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_MIN <= size <= left - lead:
            return self._over(Hole(offset, 0, "no record begins here"), file_end, limit)
        if at + lead + size > len(data):
            own = own_size(data[at + lead :])
            if own is None or own == size:
                return 0
            return self._over(Hole(offset, 0, "its lengths do not add up"), file_end, limit)
        found = read_one(data[at + lead : at + lead + size], offset + lead)
        if isinstance(found, Hole):
            if not found.size or not self._goes_on(offset + lead + size, file_end, limit):
                return self._over(found._replace(offset=offset, size=0), file_end, limit)
            self._note(found, lead + size)
            if found.record is not None:
                self._stand_in(found.record, shown)
        else:
            self._derive(found, shown)
            self.records += 1
        return lead + size

    def _closed(self, head: bytes, left: int, offset: int, limit: int) -> int:
        """The end of a file with leads, too short for another entry."""
        return left if offset + left <= limit and int.from_bytes(head[:4], "big") == FILE_ENDS else 0

    # Damage

    def _goes_on(self, offset: int, file_end: int, limit: int) -> bool:
        """Does something that is part of a log begin here? Only then the damaged record before it had this size."""
        if offset == file_end:
            return limit > offset
        size = min(self._lead + BLANK.size, file_end - offset)
        if offset + size > limit:
            return False
        head = self._log.read(offset, size)
        lead = self._lead_of(head)
        magic = head[lead + 4 : lead + 8]
        return magic in MAGICS or magic == BLANK_MAGIC.to_bytes(4, "big") or (lead > 0 and int.from_bytes(head[:4], "big") == FILE_ENDS)

    def _over(self, hole: Hole, file_end: int, limit: int) -> int:
        """How far the next whole record is, 0 when none is here yet. Every byte is searched once."""
        at = max(self._searched, hole.offset + 1)
        while at < limit:
            base = self._log.segments.base_of(at)
            if base is None:
                return 0
            stop = min(base + self._log.segments.size, limit)
            data = self._log.read(at, min(WINDOW, stop - at))
            found = self._first_whole(data, at, stop)
            if found is not None:
                step = found - self._lead - hole.offset
                self._note(hole, step)
                self._searched = found
                return step
            if at + len(data) == limit:
                break  # a record may begin in the last bytes: they are searched again with what follows them
            at += max(len(data) - RECORD_MIN, 1) if at + len(data) < stop else len(data)
            self._searched = at
        return 0

    def _first_whole(self, data: bytes, offset: int, stop: int) -> int | None:
        place_ = data.find(MAGIC_START, 4)
        while place_ >= 0:
            start = place_ - 4
            size = int.from_bytes(data[start:place_], "big", signed=True)
            if data[place_ : place_ + 4] in MAGICS and RECORD_MIN <= size <= stop - offset - start:
                raw = data[start : start + size] if start + size <= len(data) else self._log.read(offset + start, size)
                if parse(raw, offset + start) is not None:
                    return offset + start
            place_ = data.find(MAGIC_START, place_ + 1)
        return None

    def _note(self, hole: Hole, size: int) -> None:
        self.damaged += 1
        self._lost += size
        if self.damaged <= HOLES_KEPT:
            self._store.holes.append(hole._replace(size=size))
            log.error("the log of the other node is damaged at offset %d: %s. %d bytes are stepped over", hole.offset, hole.why, size)

    def _stand_in(self, record: Found, shown: _Shown) -> None:
        """A blank for a message that is lost, where its number is the next."""
        if is_queued(record.sys_flag):
            queue = self._store.find_queue(record.topic, record.queue_id)
            if queue is not None and record.queue_offset == queue.next:
                queue.append_blanks(1)
                shown.note(queue)

    # What is derived

    def _derive(self, found: Found, shown: _Shown) -> None:
        store, timeline = self._store, self._store.timeline
        offset, _, topic, queue_id, queue_offset, sys_flag, store_ms, properties = found
        if store_ms < timeline.last_ms:
            timeline.note_set_back(offset)
        timeline.last_ms = store_ms
        if is_queued(sys_flag):
            queue = store.find_queue(topic, queue_id) or store.queue(topic, queue_id)
            shown.note(queue)
            if queue_offset == queue.next:
                if self._doubted:
                    self._doubted.pop(queue, None)
                queue.append(*found.entry(store.delays_ms))
            else:
                self._fit(queue, found)
        if store.settings.message_index_enable and is_indexed(sys_flag):
            for key in index_keys(properties):
                store.index.add(topic, key, offset, store_ms)

    def _fit(self, queue: ConsumeQueue, found: Found) -> None:
        """Its number is not the next one. Either this log begins behind the queue's first messages, or the topic was deleted and made
        again, or records before it are lost, or the number itself is damaged: no checksum covers it. Then the next one tells."""
        number, before = found.queue_offset, self._doubted.pop(queue, None)
        likely = queue.next == queue.first or number == 0 or 0 < number - queue.next <= self._lost // RECORD_MIN
        if likely or is_blank(queue, number):
            place(queue, found, self._store.delays_ms)
        elif before is not None and number == before.queue_offset + 1 and number - queue.next <= BLANKS_MAX:
            place(queue, before, self._store.delays_ms)
            place(queue, found, self._store.delays_ms)
        else:
            self._doubted[queue] = found

    def _settle_doubts(self) -> None:
        """All is applied, and nothing contradicts them."""
        doubted, self._doubted = self._doubted, {}
        shown = _Shown(self._store, self.applied)
        for queue, found in doubted.items():
            if 0 < found.queue_offset - queue.next <= BLANKS_MAX and self._store.all_queues.has(queue):
                shown.note(queue)
                place(queue, found, self._store.delays_ms)
        shown.show(self.applied)


class _Shown:
    """What one piece of the log brought, to be shown and written when it is applied. State: the queues, and their `next` before."""

    def __init__(self, store: Store, start: int) -> None:
        self._store = store
        self._mark = (start, store.timeline.last_ms)
        self._queues: dict[ConsumeQueue, int] = {}

    def note(self, queue: ConsumeQueue) -> None:
        self._queues.setdefault(queue, queue.next)

    def show(self, applied: int) -> None:
        waiting = self._store.tails.waiting
        for queue in self._queues:
            if queue not in waiting:
                waiting[queue] = self._mark
        self._store.showing.show([(queue, before, queue.next, applied) for queue, before in self._queues.items()])
