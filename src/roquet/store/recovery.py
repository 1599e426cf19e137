"""Opening a store: finding the log's true end after a stop or a crash, and giving the derived files what they lack.

1. Where to start reading. After a clean stop of ours, at the end itself. After a crash, at the offset below which our
   manifest says that all derived files were synced. Without a manifest of ours that fits (Apache RocketMQ wrote here
   last), where upstream starts: three files back after a clean stop, else the newest file that begins before the checkpoint.
2. Queues forget every entry from there on, the index what it cannot vouch for.
3. The log is read forward; each whole record gets its entries again. The first record that is not whole is the end.
4. A record whose queue lacks entries before it shows that queue files were lost: then all is derived again from the
   oldest record that is left. The log is the only truth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from roquet.errors import Damaged
from roquet.store.checkpoint import Checkpoint
from roquet.store.fanout import index_keys, is_indexed, is_queued, queue_tag
from roquet.store.index import KeyIndex
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue, unpack_entry
from roquet.store.scan import Found, parse, read_records
from roquet.store.segments import Segments

log = logging.getLogger("roquet.store")

Progress = Callable[[str, int, int], None]
"""(what, done, total): called now and then while opening takes long."""

STEP = 64 * 1024 * 1024


@dataclass
class Manifest:
    """config/roquet.json: what our last run vouched for. Upstream neither reads nor writes it."""

    clean: bool = False
    end: int = 0
    """Below this log offset every derived file is on disk; after a clean stop it is the log's end."""
    checkpoint: tuple[int, int, int] = (0, 0, 0)
    """The checkpoint file's times as we left them: if they differ, somebody else wrote here since, and we vouch for nothing."""
    queues: dict[str, int] = field(default_factory=dict)
    """"topic@queue" -> entries."""
    indexes: list[str] = field(default_factory=list)
    broker: str = ""
    """Name of the broker whose store this is, for who reads the files alone."""

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "broker": self.broker, "clean": self.clean, "end": self.end, "checkpoint": self.checkpoint,
                "queues": self.queues, "indexes": self.indexes,
            },
            option=orjson.OPT_INDENT_2,
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        value = orjson.loads(data)
        physic, logics, index = value["checkpoint"]
        return cls(
            bool(value["clean"]), int(value["end"]), (physic, logics, index), dict(value["queues"]), list(value["indexes"]),
            str(value.get("broker", "")),
        )  # fmt: skip


def queue_key(queue: ConsumeQueue) -> str:
    return f"{queue.topic}@{queue.queue_id}"


def index_names(index: KeyIndex) -> list[str]:
    return [file.name for file in index.files]


def times_of(checkpoint: Checkpoint) -> tuple[int, int, int]:
    return checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms


class Recovery:
    """One opening. `run` leaves queues and index complete up to the log's end, which it returns."""

    def __init__(
        self,
        segments: Segments,
        queues: dict[tuple[str, int], ConsumeQueue],
        make_queue: Callable[[str, int], ConsumeQueue],
        index: KeyIndex | None,
        checkpoint: Checkpoint,
        manifest: Manifest | None,
        delays_ms: Sequence[int],
        *,
        crashed: bool,
        check_crc: bool,
        progress: Progress,
    ) -> None:
        self.segments = segments
        self.queues = queues
        self.make_queue = make_queue
        self.index = index
        self.checkpoint = checkpoint
        self.delays_ms = delays_ms
        self.crashed = crashed
        self.check_crc = check_crc
        self.progress = progress
        fits = manifest is not None and manifest.checkpoint == times_of(checkpoint)
        self.manifest = manifest if fits else None
        self.last_store_ms = 0
        self.records = 0
        self.sure = 0
        """Below this the log is known to be on disk."""

    def run(self) -> int:
        if self.index is not None:
            self.index.open(crashed=self.crashed, safe_ms=self.checkpoint.index_ms)
            for warning in self.index.warnings:
                log.warning("%s", warning)
        if not self.segments.bases:
            for queue in self.queues.values():
                queue.segments.drop_all()
            self.queues.clear()
            if self.index is not None:
                self.index.truncate_after(0)
            return 0
        for queue in self.queues.values():
            self._measure(queue)
        start = self._start()
        self.sure = start if self.manifest is None else max(start, min(self.manifest.end, self.segments.stop))
        try:
            end = self._derive_from(start)
        except _Hole as hole:
            log.warning("%s: entries are missing in the queue files; deriving all of them from the log again", hole)
            end = self._derive_from(self.segments.start)
        for queue in self.queues.values():
            self._write_tail(queue)
            queue.first = self._first(queue)
            queue.visible = queue.next
        return end

    # Where to start

    def _start(self) -> int:
        oldest = self.segments.start
        manifest = self.manifest
        complete = self._queues_are_complete()
        if manifest is not None and complete and self._is_boundary(manifest.end):
            return manifest.end if self._index_is_complete(manifest) else min(manifest.end, self._index_start())
        if not complete:
            return oldest
        if not self.crashed:
            start = self.segments.bases[-3] if len(self.segments.bases) >= 3 else oldest
        else:
            start = self._newest_file_before(self.checkpoint.start_ms)
        return min(start, self._index_start())

    def _index_is_complete(self, manifest: Manifest) -> bool:
        if self.index is None:
            return True
        if not self.crashed and manifest.clean:
            return self.index.intact and set(manifest.indexes) <= set(index_names(self.index))
        return self.index.covered >= manifest.end

    def _index_start(self) -> int:
        """A record boundary at or before the first record that the index lacks."""
        if self.index is None:
            return self.segments.stop
        if not self.crashed and self.index.files and self.index.intact:
            return self.segments.stop  # whoever stopped cleanly had indexed all there was
        covered = max(self.index.covered, self.segments.start)
        # It counts to just behind the first byte of the last record it holds; that record is indexed again, which changes nothing.
        return next((at for at in (covered, covered - 1) if self._is_boundary(at)), self.segments.start)

    def _newest_file_before(self, time_ms: int) -> int:
        for base in reversed(self.segments.bases):
            first = next(read_records(self.segments, base, base + 1, check_crc=False), None)
            if first is not None and first.store_ms <= time_ms:
                return base
        return self.segments.start

    def _is_boundary(self, offset: int) -> bool:
        """Does a record begin here, or did the last one end here?"""
        if offset == self.segments.start or (offset == self.segments.stop and offset > 0):
            return True
        base = self.segments.base_of(offset)
        if base is None:
            return False
        if next(read_records(self.segments, offset, offset + 1, check_crc=False), None) is not None:
            return True
        # Nothing begins here: it is the end if some queue's last record ends here.
        return any(self._last_end(queue) == offset for queue in self.queues.values())

    def _last_end(self, queue: ConsumeQueue) -> int:
        entry = _entry(queue, queue.next - 1) if queue.next > queue.first else None
        return entry[0] + entry[1] if entry else -1

    def _queues_are_complete(self) -> bool:
        """Nothing that our last run vouched for is missing (a directory removed, a file restored from an old backup)."""
        if self.manifest is None:
            return True
        for key, count in self.manifest.queues.items():
            topic, _, queue_id = key.rpartition("@")
            queue = self.queues.get((topic, int(queue_id)))
            found = queue.next if queue is not None else 0  # one that never had an entry has no file
            if found < count:
                log.warning("queue %s has %d entries, %d were on disk at the last checkpoint", key, found, count)
                return False
        return True

    # What the queue files hold

    def _measure(self, queue: ConsumeQueue) -> None:
        """Find where the queue's entries end, by its files alone, then step back over entries that the log does not confirm."""
        segments = queue.segments
        try:
            segments.load()
        except Damaged as error:
            log.warning("%s: dropped, it is derived again from the log", error)
            segments.drop_all()
        if not segments.bases:
            queue.start_at(0)
            return
        last = segments.bases[-1]
        file = segments.file(last)
        low, high = 0, segments.size // ENTRY_SIZE  # entries before low are filled, from high on they are not
        while low < high:
            middle = (low + high) // 2
            if int.from_bytes(file.read(middle * ENTRY_SIZE + 8, 4), "big", signed=True) > 0:
                low = middle + 1
            else:
                high = middle
        queue.first = segments.start // ENTRY_SIZE
        queue.next = queue.tail_start = last // ENTRY_SIZE + low
        while queue.next > queue.first and not self._confirmed(queue, queue.next - 1):
            queue.next -= 1
        if queue.next < queue.tail_start:
            whole, queue.next = queue.next, queue.tail_start
            queue.truncate(whole)

    def _confirmed(self, queue: ConsumeQueue, offset: int) -> bool:
        entry = _entry(queue, offset)
        if entry is None:
            return False
        position, size, _ = entry
        if position < self.segments.start:
            return True  # its record is gone with an old file; the entry is no longer of interest, and not wrong
        base = self.segments.base_of(position)
        if base is None or size <= 0 or position + size > base + self.segments.size:
            return False
        found = parse(self.segments.file(base).read(position - base, size), position, check_crc=False)
        return found is not None and (found.topic, found.queue_id, found.queue_offset) == (queue.topic, queue.queue_id, offset)

    def _first(self, queue: ConsumeQueue) -> int:
        return first_at_or_after(queue, self.segments.start)

    # Reading forward

    def _derive_from(self, start: int) -> int:
        ended: dict[ConsumeQueue, int] = {}
        if start == self.segments.start:
            for queue in self.queues.values():
                ended[queue] = queue.next
                queue.start_at(0)
        for queue in self.queues.values():
            queue.truncate(first_at_or_after(queue, start))
            queue.synced = queue.next  # whoever vouches for the start vouches for the entries before it
        if self.index is not None and start < self.index.covered:
            self.index.truncate_after(start)
        end, shown, total = start, start, self.segments.stop - start
        self.records = 0
        for found in read_records(self.segments, start, check_crc=self.check_crc):
            self._derive(found, whole_log=start == self.segments.start)
            end = found.offset + found.size
            self.records += 1
            if end - shown >= STEP:
                shown = end
                self.progress("reading the log", end - start, total)
                self._write_tails()
        self._forget_after(end)
        self._write_tails()
        for queue, offset in ended.items():
            if queue.next == 0 and offset > 0:
                queue.start_at(offset)  # its messages are all gone with old files, but its numbering goes on
        return end

    def _derive(self, found: Found, *, whole_log: bool) -> None:
        offset, size, topic, queue_id, queue_offset, sys_flag, store_ms, properties = found
        self.last_store_ms = store_ms
        if is_queued(sys_flag):
            queue = self.queues.get((topic, queue_id)) or self.make_queue(topic, queue_id)
            if queue_offset > queue.next:
                if not whole_log:
                    raise _Hole(f"{topic}/{queue_id} at {queue_offset}, entries end at {queue.next}")
                if queue.next == queue.first:
                    queue.start_at(queue_offset)
                else:
                    # Only a log damaged in its middle looks like this; offsets must stay what they were, so the gap is shown as blanks.
                    log.warning("queue %s/%d: entries %d to %d have no record in the log", topic, queue_id, queue.next, queue_offset - 1)
                    while queue.next < queue_offset:
                        queue.append(0, 0x7FFFFFFF, 0)
            elif queue_offset < queue.next:
                # The topic was deleted and made again, or a failed write left an older record behind: the newer record counts.
                queue.truncate(queue_offset)
                if queue_offset < queue.first:
                    queue.start_at(queue_offset)
            queue.append(offset, size, queue_tag(topic, properties, store_ms, self.delays_ms))
        if self.index is not None and is_indexed(sys_flag):
            for key in index_keys(properties):
                self.index.add(topic, key, offset, store_ms)
            if len(self.index.pending) >= 4_096:
                self._settle()

    def _write_tails(self) -> None:
        for queue in self.queues.values():
            if queue.tail:
                self._write_tail(queue)
        self._settle()

    def _write_tail(self, queue: ConsumeQueue) -> None:
        """Entries that the disk has no room for stay in memory; the store tries again."""
        try:
            queue.write_tail()
        except OSError as error:
            log.warning("queue %s/%d could not be written: %s", queue.topic, queue.queue_id, error)

    def _settle(self) -> None:
        """A disk too full for the index must not keep the broker from starting: messages can still be read."""
        try:
            if self.index is not None:
                self.index.settle()
        except OSError as error:
            log.warning("the index could not be written: %s", error)

    def _forget_after(self, end: int) -> None:
        """Entries beyond the end point to records that are not there."""
        for queue in self.queues.values():
            while queue.next > queue.first:
                entry = _entry(queue, queue.next - 1)
                if entry is not None and (entry[0] + entry[1] <= end or entry[1] == 0x7FFFFFFF):
                    break
                queue.truncate(queue.next - 1)
        if self.index is not None:
            self.index.truncate_after(end)


class _Hole(Exception):
    pass


def _entry(queue: ConsumeQueue, offset: int) -> tuple[int, int, int] | None:
    """Like queue.entry, but waits for the disk: opening may."""
    if offset >= queue.tail_start:
        return queue.entry(offset)
    position = offset * ENTRY_SIZE
    base = queue.segments.base_of(position)
    if base is None:
        return None
    raw = queue.segments.file(base).read(position - base, ENTRY_SIZE)
    return unpack_entry(raw)


def first_at_or_after(queue: ConsumeQueue, log_offset: int) -> int:
    """The first entry whose record stands at or after this log offset. Log offsets rise along a queue; blanks count as before."""
    low, high = queue.first, queue.next
    while low < high:
        middle = (low + high) // 2
        entry = _entry(queue, middle)
        if entry is None or entry[0] < log_offset or entry[1] == 0x7FFFFFFF:
            low = middle + 1
        else:
            high = middle
    return low
