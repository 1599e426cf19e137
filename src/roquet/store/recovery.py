"""Opening a store: finding the log's true end after a stop or a crash, and giving the derived files what they lack.

1. Where to start reading. After a clean stop of ours, at the end itself. After a crash, at the offset below which our
   manifest says that all derived files were synced. Without a manifest of ours that fits (Apache RocketMQ wrote here
   last), where upstream starts: three files back after a clean stop, else the newest file that begins before the checkpoint.
2. Queues forget every entry from there on, the index what it cannot vouch for.
3. The log is read forward; each whole record gets its entries again. What cannot be read is a hole: it is reported, stays where
   it is, and is stepped over. The log ends where no whole record follows, and never below what was synced once.
4. A record whose queue lacks entries before it shows that queue files were lost: then all is derived again from the
   oldest record that is left. The log is the only truth.
5. Numbers of a queue never go back: where its records are lost or expired, blanks stand for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import orjson

from roquet.errors import Damaged
from roquet.store.checkpoint import Checkpoint
from roquet.store.fanout import index_keys, is_indexed, is_queued
from roquet.store.index import KeyIndex
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue, entries_end, stored_entry
from roquet.store.scan import Found, Hole, Walk, read_records, record_at, records_between
from roquet.store.segments import file_name
from roquet.wire.bodies import camel
from roquet.wire.layout import BLANK_LENGTH, RECORD_MIN

if TYPE_CHECKING:
    from roquet.store.ledger_chain import Chain
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

ShowProgress = Callable[[str, int, int], None]
"""(what, done, total): called now and then while opening takes long."""

STEP = 64 * 1024 * 1024
HOLES_LOGGED = 100
"""Holes that get a line of their own."""
BLANKS_MAX = 1_000_000
"""Blanks in a row that a queue may get; a number further ahead than that is not believed."""
LOOKED_AT = 4 << 20
"""Bytes of the log in which a record with keys is looked for that no index file holds: nearly every message has one."""
MISSING_MAX = 16
"""Newest log files that may be missing; more than that is no accident that a broker should go on after."""


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
    sizes: dict[str, int] = field(default_factory=dict)
    """Setting -> the size of files that it gave this store."""
    documents: list[str] = field(default_factory=list)
    """What stood in config/."""
    set_backs: list[int] = field(default_factory=list)
    """Log offsets where the wall clock had been set back, so that store times do not rise there."""
    overtaken: list[tuple[int, int]] = field(default_factory=list)
    """(start, end) of stretches of the log that a crash left with holes before anything of them was synced: a record there may have
    outlived one that was written before it, all but the one that begins at `start`, which stands before the first hole."""
    start: int = 0
    """Where the log began."""
    firsts: dict[str, int] = field(default_factory=dict)
    """"topic@queue" -> the first entry in its files, where that is not 0."""
    before: tuple[int, int, int] = (-1, -1, -1)
    """The checkpoint's times before this: on a full disk, or killed between the two, it may still say these."""

    def fits(self, times: tuple[int, int, int]) -> bool:
        """Is this checkpoint the one that we left?"""
        return times in (self.checkpoint, self.before)

    def encode(self) -> bytes:
        return orjson.dumps({camel(one.name): getattr(self, one.name) for one in fields(self)}, option=orjson.OPT_INDENT_2)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Raises for what it cannot be: a number that is none is found here and not later."""
        value = orjson.loads(data)
        physic, logics, index = (_number(one, "checkpoint") for one in value["checkpoint"])
        before = value.get("before", value["checkpoint"])
        queues = {str(key): _number(count, f"queue {key}") for key, count in value["queues"].items()}
        for key in queues:
            if not key.rpartition("@")[2].isdigit():
                raise ValueError(f"queue {key!r} is not of the form topic@number")
        return cls(
            value["clean"] is True, _number(value["end"], "end"), (physic, logics, index), queues, [str(one) for one in value["indexes"]],
            str(value.get("broker", "")), {str(key): _number(size, key) for key, size in value.get("sizes", {}).items()},
            [str(one) for one in value.get("documents", [])],
            sorted(_number(place, "setBacks") for place in value.get("setBacks", [])),
            [(_number(start, "overtaken"), _number(end, "overtaken")) for start, end in value.get("overtaken", [])],
            _number(value.get("start", value["end"]), "start"),
            {str(key): _number(first, f"first of {key}") for key, first in value.get("firsts", {}).items()},
            (_number(before[0], "before"), _number(before[1], "before"), _number(before[2], "before")),
        )  # fmt: skip


def _number(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{what} is {value!r}, a number from 0 on is expected")
    return value


def queue_key(queue: ConsumeQueue) -> str:
    return f"{queue.topic}@{queue.queue_id}"


def firsts_of(queues: Iterable[ConsumeQueue]) -> dict[str, int]:
    """For the manifest: where the files of each queue begin. In whatever thread."""
    return {queue_key(queue): bases[0] // ENTRY_SIZE for queue in queues if (bases := queue.segments.bases[:1]) and bases[0]}


def index_names(index: KeyIndex) -> list[str]:
    return [file.name for file in index.files]


def times_of(checkpoint: Checkpoint) -> tuple[int, int, int]:
    return checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms


class Recovery:
    """One opening. `run` leaves queues and index complete up to the log's end, which it returns."""

    def __init__(self, store: Store, manifest: Manifest | None, progress: ShowProgress) -> None:
        self.segments, self.queues, self.make_queue, self.deletions = store.log.segments, store.queues, store.queue, store.deletions
        self.ledger = store.ledger
        self.limit: int | None = None
        """Of a ledger: behind this nothing is committed, and nothing is derived."""
        self.index = store.index if store.settings.message_index_enable else None
        self.checkpoint = checkpoint = store.checkpoint
        self.delays_ms = store.delays_ms
        self.crashed = store.crashed
        self.check_crc = store.settings.check_crc_on_recover
        self.progress = progress
        fits = manifest is not None and manifest.fits(times_of(checkpoint))
        self.manifest = manifest if fits else None
        self.last_store_ms = 0
        self.set_backs: list[int] = []
        self.overtaken = list(manifest.overtaken) if manifest is not None else []
        self.records = 0
        self.sure = 0
        """Below this the log is known to be on disk."""
        self.holes: list[Hole] = []
        trusted = manifest if fits or not any(times_of(checkpoint)) else None
        self._vouched = trusted.end if trusted is not None else 0
        """Below this our last run had synced the log, so nothing there is the end."""
        self._counts = trusted.queues if trusted is not None else {}
        """How far the numbers of each queue had come at least."""
        self._unconfirmed: dict[ConsumeQueue, int] = {}
        """Where entries ended in files of queues whose last ones the log did not confirm."""
        self._doubted: dict[ConsumeQueue, Found] = {}
        """Records whose number does not fit their queue, until the next one confirms it or not."""
        self._last = 0
        """Where the last record begins that was read."""
        self._before_hole: int | None = None
        """Where the one begins that stands before the first hole of this crash."""

    def read_chain(self) -> Chain | None:
        """Of a ledger that has entries: which. Called before `run`, which stops at what is committed of them."""
        if self.ledger is None or not self.segments.bases:
            return None
        chain = self.ledger.read_chain(vouched=self._vouched, crashed=self.crashed, check_crc=self.check_crc)
        if chain is not None:
            self.limit = chain.committed_end
        return chain

    def run(self) -> int:
        if self.index is not None:
            known = self.manifest.indexes if self.manifest is not None else ()
            self.index.open(crashed=self.crashed, safe_ms=self.checkpoint.index_ms, known=known)
            for warning in self.index.warnings:
                log.warning("%s", warning)
        if not self.segments.bases:
            return self._begin_anew()
        if self.limit is None:
            self._make_missing()
        if self.manifest is None and self.index is not None:
            self._keep_index_without_gaps(self.index)
        for queue in self.queues.values():
            self._measure(queue)
            self._forget_deleted(queue)
        start = self._start() if self.limit is None else min(self._start(), max(self.limit, self.segments.start))
        self.sure = start if self.manifest is None else max(start, min(self.manifest.end, self.segments.stop))
        try:
            end = self._derive_from(start)
        except _Hole as hole:
            log.warning("%s: entries are missing in the queue files; deriving all of them from the log again", hole)
            end = self._derive_from(self.segments.start)
        self._report()
        gone = {queue: number - queue.next for queue, number in self._unconfirmed.items() if number > queue.next}
        if gone:
            queue = next(iter(gone))
            log.error(
                "%d entries of %d queues lead to no record of the log, the first is %s %d: their messages are lost. A power loss under "
                "ASYNC_FLUSH does that; else log files are missing: bring them back from a backup while the broker is stopped",
                sum(gone.values()), len(gone), queue_key(queue), queue.next,
            )  # fmt: skip
        if self._before_hole is not None:
            self.overtaken.append((self._before_hole, end))
        for queue in self.queues.values():
            self._write(queue, queue.write_tail)
            queue.first = first_at_or_after(queue, self.segments.start)
            queue.visible = queue.next
        return end

    def _begin_anew(self) -> int:
        """No log file. Where there are queue files they tell how far numbers and offsets had come: none is given twice."""
        end = 0
        for queue in self.queues.values():
            try:
                queue.segments.load()
                filled = queue.tail_start = entries_end(queue.segments)
                last = _entry(queue, filled - 1) if filled > queue.segments.start // ENTRY_SIZE else None
            except Damaged:
                filled, last = 0, None
            if last is not None and last[1] != BLANK_LENGTH:
                end = max(end, last[0] + last[1])
            queue.start_at(filled)
            self._write(queue, queue.keep_number)
        if self.index is not None:
            self.index.truncate_after(0)
        if end and self.ledger is not None:
            log.error("%s holds no file: what this member had comes from the others of its group again", self.segments.directory)
            for queue in self.queues.values():
                queue.start_at(0)
            return 0
        if end:
            end += -end % self.segments.size
            log.error(
                "%s holds no file, but %d queues have entries: their messages are lost. Their numbers go on, and the log at offset %d",
                self.segments.directory, len(self.queues), end,
            )  # fmt: skip
        return end

    def _make_missing(self) -> None:
        """Newest files that are gone are made again, empty: offsets and numbers must not be given a second time."""
        stop = self.segments.stop
        missing = (self._vouched - stop + self.segments.size - 1) // self.segments.size if self._vouched > stop else 0
        if missing > MISSING_MAX:
            raise Damaged(
                f"{self.segments.directory}: the log had reached offset {self._vouched}, its newest file ends at {stop}, {missing} files "
                "are missing. Bring them back from a backup, or remove config/roquet.json to go on without them"
            )
        for _ in range(missing):
            base = self.segments.stop
            log.error("%s is missing: its messages are lost; it is made again, empty", self.segments.path(base))
            self.segments.create(base)

    def _keep_index_without_gaps(self, index: KeyIndex) -> None:
        """Nobody knows which index files there were. Where a record with keys stands before a file, and behind what the file before it
        holds, one is missing; and so it is where one stands behind the last, if the stop was clean."""
        start, files = self.segments.start - 1, [file for file in index.files if file.number > 1]
        stops = [file.begin_offset for file in files] + ([] if self.crashed else [self.segments.stop])
        for count, stop in enumerate(stops if files else ()):
            looked_at = records_between(self.segments, max(start, self.segments.start), min(stop, start + LOOKED_AT))
            if any(one.offset > start and is_indexed(one.sys_flag) and index_keys(one.properties) for one in looked_at):
                where = f"before {files[count].name}" if count < len(files) else f"behind {files[-1].name}"
                log.warning("%s: a file is missing %s; what follows is built again from the log", index.directory, where)
                index.keep_first(count)
                return
            start = files[count].end_offset if count < len(files) else stop

    def _report(self) -> None:
        """Each hole with its place; what they hold stays in the log."""
        for hole in self.holes[:HOLES_LOGGED]:
            base = self.segments.base_of(hole.offset) or 0
            of = f" It was {hole.record.topic}/{hole.record.queue_id} offset {hole.record.queue_offset}." if hole.record else ""
            log.error(
                "the log is damaged at offset %d (%s, position %d): %s. %d bytes are stepped over and stay where they are.%s",
                hole.offset, file_name(base), hole.offset - base, hole.why, hole.size, of,
            )  # fmt: skip
        if self.holes:
            log.error("the log has %d damaged places, %d bytes in all", len(self.holes), sum(hole.size for hole in self.holes))

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
        """By the store time of each file's first record. Where these fall, the clock was set back and times say nothing more."""
        found, last_ms = self.segments.start, 0
        for base in self.segments.bases:
            first = next(read_records(self.segments, base, base + 1, check_crc=False), None)
            if first is None or not last_ms <= first.store_ms <= time_ms:
                break
            found, last_ms = base, first.store_ms
        return found

    def _is_boundary(self, offset: int) -> bool:
        """Does a record begin here, or did the last one end here?"""
        if offset == self.segments.start or (offset == self.segments.stop and offset > 0):
            return True
        base = self.segments.base_of(offset)
        if base is None:
            return False
        if next(read_records(self.segments, offset, offset + 1, check_crc=False), None) is not None:
            return True
        # Nothing begins here: it is the end if some queue's last record ends here, or our last run said so.
        if any(self._last_end(queue) == offset for queue in self.queues.values()):
            return True
        return offset == self._vouched and not any(self.segments.file(base).read(offset - base, 8))

    def _last_end(self, queue: ConsumeQueue) -> int:
        entry = _entry(queue, queue.next - 1) if queue.next > queue.first else None
        return entry[0] + entry[1] if entry else -1

    def _queues_are_complete(self) -> bool:
        """Nothing that our last run vouched for is missing (a directory removed, a file restored from an old backup)."""
        for one in self.queues.values():
            if self._lacks_its_front(one):
                log.warning("queue %s: the files of its entries before %d are missing", queue_key(one), one.first)
                return False
        if self.manifest is None:
            return True
        for key, count in self.manifest.queues.items():
            topic, _, queue_id = key.rpartition("@")
            if self.deletions.stale(topic, self.manifest.end - 1):
                continue  # what it vouched for was deleted since
            queue = self.queues.get((topic, int(queue_id)))
            found = queue.next if queue is not None else 0  # one that never had an entry has no file
            if found < count:
                log.warning("queue %s has %d entries, %d were on disk at the last checkpoint", key, found, count)
                return False
        return True

    def _lacks_its_front(self, queue: ConsumeQueue) -> bool:
        """Do its files begin behind entries that the log may still have records of? Retention lets a file go after all its records."""
        first = queue.segments.start // ENTRY_SIZE
        known = self.manifest.firsts.get(queue_key(queue), 0) if self.manifest is not None else 0
        entry = _entry(queue, first) if known < first < queue.next else None
        return entry is not None and entry[1] != BLANK_LENGTH and entry[0] > self.segments.start

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
        queue.first = segments.start // ENTRY_SIZE
        queue.next = queue.tail_start = entries_end(segments)
        while queue.next > queue.first and not self._confirmed(queue, queue.next - 1):
            queue.next -= 1
        if queue.next < queue.tail_start:
            self._unconfirmed[queue] = queue.tail_start
            whole, queue.next = queue.next, queue.tail_start
            queue.truncate(whole)

    def _forget_deleted(self, queue: ConsumeQueue) -> None:
        """A crash may bring back the files of a deleted topic."""
        entry = _entry(queue, queue.first) if queue.next > queue.first else None
        if entry is not None and entry[1] != BLANK_LENGTH and self.deletions.stale(queue.topic, entry[0]):
            queue.start_at(0)

    def _confirmed(self, queue: ConsumeQueue, offset: int) -> bool:
        entry = _entry(queue, offset)
        if entry is None:
            return False
        position, size, _ = entry
        if size == BLANK_LENGTH or (0 <= position < self.segments.start and size >= RECORD_MIN):
            return True  # its record is gone with an old file, or lost; the entry is no longer of interest, and not wrong
        found = record_at(self.segments, position, size)
        return found is not None and (found.topic, found.queue_id, found.queue_offset) == (queue.topic, queue.queue_id, offset)

    # Reading forward

    def _derive_from(self, start: int) -> int:
        whole_log = start == self.segments.start
        ended: dict[ConsumeQueue, int] = {}
        if whole_log:
            for queue in self.queues.values():
                ended[queue] = queue.next if self.limit is None else first_at_or_after(queue, self.limit)
                queue.start_at(0)
        for queue in self.queues.values():
            if self.crashed and self.manifest is not None and not whole_log and start <= self.manifest.end:
                # What was not synced with the manifest may be anything, and is of records behind its end: all of these are read now.
                queue.truncate(max(queue.first, self.manifest.queues.get(queue_key(queue), 0)))
            at = first_at_or_after(queue, start)
            while at > queue.first and (entry := _entry(queue, at - 1)) is not None and entry[1] <= 0:
                at -= 1  # never written: a power loss took it, and left what was written behind it
            queue.truncate(at)
            queue.synced = queue.next  # whoever vouches for the start vouches for the entries before it
        if self.index is not None and start < self.index.covered:
            self.index.truncate_after(start)
        shown, total = start, self.segments.stop - start
        self.records = 0
        self.last_store_ms = 0
        self._last, self._before_hole = start, None
        self.set_backs = [] if self.manifest is None else [place for place in self.manifest.set_backs if place <= start]
        self.holes.clear()
        self._doubted.clear()
        reading = Walk(self.segments, start, sure=self._vouched, tidy=not self.crashed, check_crc=self.check_crc, stop=self.limit)
        for found in reading:
            if isinstance(found, Hole):
                self._step_over(found)
            else:
                self._derive(found, whole_log)
                self.records += 1
                self._last = found.offset
            if reading.end - shown >= STEP:
                shown = reading.end
                self.progress("reading the log", shown - start, total)
                self._write_tails()
        end = reading.end if self.limit is None else self.limit
        for queue, doubted in self._doubted.items():
            # Nothing came behind it, so nothing contradicts it. 0: a topic that was made again has one message so far.
            if doubted.queue_offset == 0 or 0 < doubted.queue_offset - queue.next <= BLANKS_MAX:
                place(queue, doubted, self.delays_ms)
        self._forget_after(end)
        self._number_on(ended)
        self._write_tails()
        return end

    def _note(self, hole: Hole) -> None:
        self.holes.append(hole)
        is_new = hole.offset >= self._vouched and not any(start <= hole.offset < end for start, end in self.overtaken)
        if self.crashed and is_new and self._before_hole is None:
            self._before_hole = self._last

    def _step_over(self, hole: Hole) -> None:
        self._note(hole)
        record = hole.record
        if record is not None and is_queued(record.sys_flag) and not self.deletions.stale(record.topic, record.offset):
            queue = self.queues.get((record.topic, record.queue_id))
            if queue is not None and record.queue_offset == queue.next:
                queue.append_blanks(1)

    def _derive(self, found: Found, whole_log: bool) -> None:
        offset, _, topic, queue_id, queue_offset, sys_flag, store_ms, properties = found
        if store_ms < (self.last_store_ms or self.checkpoint.log_ms):
            self.set_backs.append(offset)
        self.last_store_ms = store_ms
        if is_queued(sys_flag) and not self.deletions.stale(topic, offset):
            queue = self.queues.get((topic, queue_id)) or self.make_queue(topic, queue_id)
            if queue_offset == queue.next:
                if self._doubted:
                    self._doubted.pop(queue, None)
                queue.append(*found.entry(self.delays_ms))
            else:
                self._fit(queue, found, whole_log)
        if self.index is not None and is_indexed(sys_flag):
            for key in index_keys(properties):
                self.index.add(topic, key, offset, store_ms)
            if len(self.index.pending) >= 4_096:
                self._settle()

    def _fit(self, queue: ConsumeQueue, found: Found, whole_log: bool) -> None:
        """Its number is not the next one. Either a topic was deleted and made again, or records before it are lost, or the number
        itself is damaged: no checksum covers it. A second record that goes on from it confirms it."""
        number = found.queue_offset
        if number > found.offset // RECORD_MIN:  # more messages than the log before it could ever hold
            self._note(Hole(found.offset, found.size, "its number in its queue cannot be", found))
            return
        if number > queue.next and not whole_log:
            raise _Hole(f"{queue.topic}/{queue.queue_id} at {number}, entries end at {queue.next}")
        before = self._doubted.pop(queue, None)
        lost = sum(hole.size for hole in self.holes) // RECORD_MIN
        if queue.next == queue.first or 0 < number - queue.next <= lost or is_blank(queue, number):
            place(queue, found, self.delays_ms)
        elif before is not None and number == before.queue_offset + 1 and number - queue.next <= BLANKS_MAX:
            place(queue, before, self.delays_ms)
            place(queue, found, self.delays_ms)
        else:
            self._doubted[queue] = found

    def _number_on(self, ended: dict[ConsumeQueue, int]) -> None:
        """Numbers that were given once are not given again, though their records are gone with old files or lost."""
        lacks = self.limit is not None and self.limit < self._vouched  # the others of the group have the rest, with its numbers
        for key, count in self._counts.items() if not lacks else ():
            topic, _, queue_id = key.rpartition("@")
            if count and not self.deletions.stale(topic, self._vouched - 1):
                queue = self.queues.get((topic, int(queue_id))) or self.make_queue(topic, int(queue_id))
                ended[queue] = max(ended.get(queue, 0), count)
        for queue, number in ended.items():
            if queue.next == queue.first:
                if number > queue.next:
                    queue.start_at(number)
            elif 0 < number - queue.next <= BLANKS_MAX and self._counts and self.limit is None:
                log.error("queue %s/%d: the records of entries %d to %d are lost", queue.topic, queue.queue_id, queue.next, number - 1)
                queue.append_blanks(number - queue.next)
            self._write(queue, queue.keep_number)

    def _write_tails(self) -> None:
        for queue in self.queues.values():
            if queue.tail:
                self._write(queue, queue.write_tail)
        self._settle()

    def _write(self, queue: ConsumeQueue, write: Callable[[], None]) -> None:
        """Entries that the disk has no room for stay in memory; the store tries again."""
        try:
            write()
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
                if entry is not None and (entry[0] + entry[1] <= end or entry[1] == BLANK_LENGTH):
                    break
                queue.truncate(queue.next - 1)
        if self.index is not None:
            self.index.truncate_after(end)


def is_blank(queue: ConsumeQueue, number: int) -> bool:
    """Do nothing but blanks stand from this number on? Of a hole that names a record nobody knows if its number was given again."""
    at = queue.next
    while at > max(number, queue.first) and _says_nothing(_entry(queue, at - 1)):
        at -= 1
    return at <= number < queue.next


def place(queue: ConsumeQueue, found: Found, delays_ms: Sequence[int]) -> None:
    """Give it the entry of its number, whatever stands there."""
    number = found.queue_offset
    if queue.next == queue.first and number > queue.next:
        queue.start_at(number)
    elif number > queue.next:
        log.warning("queue %s/%d: entries %d to %d have no record in the log", queue.topic, queue.queue_id, queue.next, number - 1)
        queue.append_blanks(number - queue.next)
    elif number < queue.next:
        # The topic was deleted and made again, or a failed write left an older record behind: the newer record counts.
        queue.truncate(number)
        if number < queue.first:
            queue.start_at(number)
    queue.append(*found.entry(delays_ms))


class _Hole(Exception):
    pass


def _entry(queue: ConsumeQueue, offset: int) -> tuple[int, int, int] | None:
    """Like queue.entry, but waits for the disk: opening may."""
    return queue.entry(offset) if offset >= queue.tail_start else stored_entry(queue.segments, offset)


def _says_nothing(entry: tuple[int, int, int] | None) -> bool:
    """A blank, or one that was never written."""
    return entry is None or entry[1] <= 0 or entry[1] == BLANK_LENGTH


def first_at_or_after(queue: ConsumeQueue, log_offset: int) -> int:
    """The first entry whose record stands at or after this log offset. Log offsets rise along a queue; blanks say nothing, and
    those right before it count as before."""
    low, high, found = queue.first, queue.next, queue.next
    while low < high:
        middle = (low + high) // 2
        at, entry = middle, _entry(queue, middle)
        while at < high and _says_nothing(entry):
            at += 1
            entry = _entry(queue, at) if at < high else None
        if entry is not None and entry[0] < log_offset:
            low = at + 1
        else:
            high = middle
            if entry is not None:
                found = at
    return found
