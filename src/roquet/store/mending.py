"""Queue entries that lead to no message: found by whoever reads, mended from the log where the log has the message, else stepped over.

An entry is sound when it names a place in the log where a record of that size, queue and number stands. One that is not was
damaged on the disk, or its record was. The entries around it tell where in the log to look: between the record before and the
record after. That search reads the disk, so it is a Cold: whoever met the entry waits for it and asks again. An entry whose record
is not found is a hole: said once with its place, counted, and stepped over by everybody. Nothing is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from roquet.store.disk import Cold, blocking
from roquet.store.queue import BLANK_ENTRY, ENTRY_SIZE, ConsumeQueue, unpack_entry
from roquet.store.scan import heads, record_at
from roquet.wire.layout import BLANK_LENGTH, ENTRY, HEAD, MAGIC_V1, MAGIC_V2, RECORD_MIN

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

Entry = tuple[int, int, int]

LOOKED_AT = 64
"""Entries that are looked at together once one was found damaged."""
AROUND = 4_096
"""Entries among which a sound neighbour is looked for, on either side."""
SEARCHED_MAX = 256 << 20
"""Bytes of the log that one search reads."""
HOLES_MAX = 100_000
"""Remembered; of more the search is made again each time."""


class Odd(Exception):
    """A record is not what its entry says. Whoever catches it looks at the entries one by one (`Mender.clean`)."""


class Search:
    """One look for the records of a queue's damaged entries. `run` may block and is called elsewhere, maybe twice."""

    def __init__(self, mender: Mender, queue: ConsumeQueue, offset: int) -> None:
        self.mender = mender
        self.queue = queue
        self.offset = offset
        self.first, self.stop = offset, offset + 1
        """The entries that were looked for."""
        self.found: dict[int, Entry] | None = None

    def run(self) -> None:
        queue, commit_log = self.queue, self.mender.log
        start, stop = commit_log.start, commit_log.safe
        for offset in range(self.offset - 1, max(queue.first, self.offset - AROUND) - 1, -1):
            entry = blocking(self.mender.entry_if_sound, queue, offset)
            if entry is not None:
                start = entry[0] + entry[1]
                break
            self.first = offset
        for offset in range(self.offset + 1, min(queue.visible, self.offset + AROUND)):
            entry = blocking(self.mender.entry_if_sound, queue, offset)
            if entry is not None:
                stop = entry[0]
                break
            self.stop = offset + 1
        self.found = dict(self._records(start, min(stop, start + SEARCHED_MAX)))

    def _records(self, start: int, stop: int) -> Iterator[tuple[int, Entry]]:
        segments, mine = self.mender.log.segments, (self.queue.topic, self.queue.queue_id)
        for place, size in heads(segments, start):
            if place >= stop:
                return
            record = record_at(segments, place, size)
            if record is not None and (record.topic, record.queue_id) == mine and self.first <= record.queue_offset < self.stop:
                yield record.queue_offset, record.entry(self.mender.delays_ms)


class Mender:
    """State: searches under way, and the holes that are known."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.log, self.delays_ms = store.log, store.delays_ms
        self.on_hole: Callable[[str], None] = lambda text: None
        """Told of each new hole."""
        self.mended = 0
        self.holes: dict[tuple[ConsumeQueue, int], None] = {}
        self.unreadable = 0
        self._searches: dict[ConsumeQueue, Search] = {}

    def entry(self, queue: ConsumeQueue, offset: int) -> Entry | None:
        """The sound entry of this number, mended if need be; None for a hole, and for what left with an old log file.

        Raises Cold while it must be read or looked for.
        """
        found = unpack_entry(queue.read(offset, 1))
        if found is None or found[1] == BLANK_LENGTH or (found[1] >= RECORD_MIN and 0 <= found[0] < self.log.start):
            return None
        return found if self._sound(queue, offset, found) else self._mend(queue, offset)

    def clean(self, queue: ConsumeQueue, offset: int, raw: bytes) -> bytes:
        """Some of these entries, from the first on; blanks stand for those that lead nowhere. Raises Cold once for all it needs."""
        cleaned: list[bytes] = []
        fetches: list[Callable[[], object]] = []
        for number in range(min(LOOKED_AT, len(raw) // ENTRY_SIZE)):
            try:
                entry = self.entry(queue, offset + number)
            except Cold as cold:
                fetches.append(cold.fetch)
                continue
            cleaned.append(BLANK_ENTRY if entry is None else ENTRY.pack(*entry))
        if fetches:
            raise Cold(lambda: [fetch() for fetch in fetches])
        return b"".join(cleaned)

    def entry_if_sound(self, queue: ConsumeQueue, offset: int) -> Entry | None:
        """The entry as it is if it is sound, else None. May raise Cold."""
        entry = unpack_entry(queue.read(offset, 1))
        return entry if entry is not None and self._sound(queue, offset, entry) else None

    def _sound(self, queue: ConsumeQueue, offset: int, entry: Entry) -> bool:
        position, size, _ = entry
        if size < RECORD_MIN:
            return False
        try:
            self.log.read(position + size - 1, 1)
            front = self.log.read(position, HEAD.size)
        except LookupError:
            return False
        length, magic, _, queue_id, _, queue_offset, physical, _, _ = HEAD.unpack(front)
        return (length, queue_id, queue_offset, physical) == (size, queue.queue_id, offset, position) and magic in (MAGIC_V1, MAGIC_V2)

    def _mend(self, queue: ConsumeQueue, offset: int) -> Entry | None:
        if (queue, offset) in self.holes:
            return None
        search = self._searches.get(queue)
        if search is not None and search.found is not None:
            del self._searches[queue]
            self._take(queue, search, search.found)
            if offset in search.found:
                return search.found[offset]
            if search.first <= offset < search.stop:
                return None
            search = None
        if search is None:
            search = self._searches[queue] = Search(self, queue, offset)
        raise Cold(search.run)

    def _take(self, queue: ConsumeQueue, search: Search, found: dict[int, Entry]) -> None:
        where = f"{queue.topic}/{queue.queue_id}"
        for offset in range(search.first, search.stop):
            entry = found.get(offset)
            if entry is None:
                self._report_hole(queue, offset)
                continue
            try:
                queue.replace(offset, ENTRY.pack(*entry))
            except OSError as error:
                log.warning("entry %d of queue %s is damaged and could not be written again: %s", offset, where, error)
            self.mended += 1
            log.error("entry %d of queue %s was damaged: made again from the record at log offset %d", offset, where, entry[0])
        self._store.tails.dirty.add(queue)

    def _report_hole(self, queue: ConsumeQueue, offset: int) -> None:
        if (queue, offset) in self.holes:
            return
        entry = unpack_entry(queue.read(offset, 1))
        if entry is None or entry[1] == BLANK_LENGTH:
            return
        if len(self.holes) < HOLES_MAX:
            self.holes[queue, offset] = None
        self.unreadable += 1
        text = (
            f"message {offset} of queue {queue.topic}/{queue.queue_id} cannot be read and is stepped over: its entry says log offset "
            f"{entry[0]}, {entry[1]} bytes, and no such record stands there or between its neighbours"
        )
        log.error("%s", text)
        self.on_hole(text)

    def metrics(self) -> Mapping[str, object]:
        return {"queueEntriesMended": self.mended, "messagesUnreadable": self.unreadable}
