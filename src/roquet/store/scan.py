"""Reading the log forward, record by record, trusting nothing. Recovery, verification and rebuilds all walk with this.

Odd is not the end. What cannot be read is a hole: it is reported with its place and size, and the walk goes on behind it. The
log ends only where no whole record follows.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from roquet.store.fanout import queue_tag
from roquet.store.segments import Segments
from roquet.wire.layout import (
    BLANK_MAGIC,
    FRONTS,
    HEAD,
    HOSTS_V6,
    LEDGER_BLANK,
    LEDGER_BLANK_MAGIC,
    LEDGER_HEAD,
    LEDGER_MAGIC,
    MAGIC_AT,
    MAGIC_START,
    MAGIC_V1,
    MAGIC_V2,
    MAGICS,
    OFFSET_AT,
    QUEUE_ID_MAX,
    RECORD_MIN,
    store_time_place,
)
from roquet.wire.ledger_entry import Head, read_head

CHUNK = 4 * 1024 * 1024
EMPTY = bytes(CHUNK)
TOPIC = re.compile(rb"(?!\.\.?\Z)[!-.0-~]{1,255}")
"""What a directory can be named after. Clients may use fewer characters; a log of long ago may hold more than they do."""


class Found(NamedTuple):
    """What the derived files need to know of a record."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: str

    def entry(self, delays_ms: Sequence[int]) -> tuple[int, int, int]:
        """What stands in its queue: (log offset, size, tag hash)."""
        return self.offset, self.size, queue_tag(self.topic, self.properties, self.store_ms, delays_ms)


class Hole(NamedTuple):
    """A stretch of the log that holds no record that can be read."""

    offset: int
    size: int
    why: str
    record: Found | None = None
    """What the damaged record says of itself, where its lengths add up."""


def read_records(segments: Segments, start: int, stop: int | None = None, *, check_crc: bool = True) -> Iterator[Found]:
    """Every record from `start` (a record's first byte) to the first that is not whole, which may be one that is being written
    just now. Blocking reads."""
    for found in _Stretch(segments, start, check_crc).read(stop):
        if isinstance(found, Hole):
            return
        yield found


def records_between(segments: Segments, start: int, stop: int) -> Iterator[Found]:
    """Every whole record that begins there, whatever stands between them. Blocking reads."""
    for found in Walk(segments, start):
        if found.offset >= stop:
            return
        if isinstance(found, Found):
            yield found


class Walk:
    """Every record from `start` to the log's end, and the holes between them. Blocking reads; for a log that nobody writes.

    `sure`: below this the log was synced once, so whatever stands there is part of it. `tidy`: the log was left by a clean stop,
    so its last record cannot be half written, only damaged. `stop`: what begins there or behind it is not read. `end` is the log's end
    when all has been read.
    """

    def __init__(
        self, segments: Segments, start: int, *, sure: int = 0, tidy: bool = False, check_crc: bool = True, stop: int | None = None
    ) -> None:
        self.segments = segments
        self.stop = stop
        self.sure = sure if stop is None else min(sure, stop)
        self.tidy = tidy
        self.check_crc = check_crc
        self.end = start

    def __iter__(self) -> Iterator[Found | Hole]:
        while True:
            stretch, hole = _Stretch(self.segments, self.end, self.check_crc), None
            for found in stretch.read(self.stop):
                if isinstance(found, Hole):
                    hole = found
                    break
                self.end = stretch.at
                yield found
            self.end = stretch.at
            if self.stop is not None and self.end >= self.stop:
                return
            step = self._over(hole, stretch) if hole is not None else None
            if step is None and self.end < self.sure:
                step = Hole(self.end, self.sure - self.end, hole.why if hole is not None else "nothing stands here, and something did")
            if step is None:
                return
            self.end = step.offset + step.size
            yield step

    def _over(self, hole: Hole, stretch: _Stretch) -> Hole | None:
        """What to make of a hole; None: the log ends here."""
        behind = hole.offset + hole.size
        if hole.size and (behind <= self.sure or stretch.goes_on_at(behind)):
            return hole
        following = next_record(self.segments, hole.offset + 1)
        if following is not None:
            if stretch.goes_on_at(following - LEDGER_HEAD.size) and following - LEDGER_HEAD.size > hole.offset:
                following -= LEDGER_HEAD.size
            return Hole(hole.offset, following - hole.offset, hole.why)
        return hole if self.tidy and hole.size else None


def next_record(segments: Segments, start: int) -> int | None:
    """Where the first whole record at or after this offset begins; it carries its own offset, so it cannot be mistaken."""
    return next((offset for offset, size in heads(segments, start) if record_at(segments, offset, size, check_crc=True) is not None), None)


def record_at(segments: Segments, offset: int, size: int, *, check_crc: bool = False) -> Found | None:
    """The whole record of this size that stands here, None when none does. Blocking."""
    base = segments.base_of(offset)
    if base is None or size <= 0 or offset + size > base + segments.size:
        return None
    return parse(segments.file(base).read(offset - base, size), offset, check_crc=check_crc)


def heads(segments: Segments, start: int) -> Iterator[tuple[int, int]]:
    """(offset, size) of everything at or after this offset that says of itself that it is a record of its place, whole or not."""
    for offset, chunk in written(segments, start, overlap=HEAD.size - 1):
        place = chunk.find(MAGIC_START, 4)
        while 0 <= place <= len(chunk) - HEAD.size + 4:
            size, magic, _, _, _, _, physical, _, _ = HEAD.unpack_from(chunk, place - 4)
            if magic in (MAGIC_V1, MAGIC_V2) and physical == offset + place - 4 and size >= RECORD_MIN:
                yield physical, size
            place = chunk.find(MAGIC_START, place + 1)


def next_data(segments: Segments, start: int) -> int | None:
    """Where the first byte stands that is not zero, at or after this offset; None when all is empty."""
    for offset, chunk in written(segments, start):
        rest = chunk.lstrip(b"\0")
        if rest:
            return offset + len(chunk) - len(rest)
    return None


def written(segments: Segments, start: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
    """Pieces of the files from this offset on, each with its own, those left out that are all zeros. `overlap`: so many bytes
    come twice, so that what is shorter is whole in one of the two. Blocking reads."""
    for base in [base for base in segments.bases if base + segments.size > start]:
        file, at = segments.file(base), max(start - base, 0)
        while (data_at := file.next_data(at)) is not None and data_at < segments.size:
            at = max(at, data_at - overlap)
            chunk = file.read(at, min(CHUNK, segments.size - at))
            if len(chunk) <= overlap:
                break
            if chunk != EMPTY[: len(chunk)]:  # where no system knows the holes, an empty file is a GiB of these
                yield base + at, chunk
            at += len(chunk) - overlap


class _Stretch:
    """Records one behind the other. State: `at`, behind the last of them, and the part of a file that was read last, with its offset."""

    def __init__(self, segments: Segments, start: int, check_crc: bool) -> None:
        self.segments = segments
        self.check_crc = check_crc
        self.at = start
        self._window_at = 0
        self._window = b""

    def read(self, stop: int | None = None) -> Iterator[Found | Hole]:
        """Records up to the first hole, which is given too; none where the log simply ends: zeros up to the end of its files."""
        while stop is None or self.at < stop:
            base = self.segments.base_of(self.at)
            if base is None and (base := self.segments.base_behind(self.at)) is not None:
                self.at = base  # a ledger that began anew
            if base is None:
                return
            one = self._one(self.at, base)
            if isinstance(one, int):  # blank: the rest of this file is empty
                self.at += one
                continue
            if one is None:
                return
            if isinstance(one, Hole):
                if one.why != CUT_OFF or one.record is None or not self.goes_on_at(self.at + one.size):
                    yield one
                    return
                one = one.record  # whoever wrote what follows had written this before
            self.at = one.offset + one.size
            yield one

    def goes_on_at(self, offset: int) -> bool:
        """Does a record begin here, or a blank?"""
        base = self.segments.base_of(offset)
        if base is None:
            return offset == self.segments.stop
        left = base + self.segments.size - offset
        head = self._get(base, offset, HEAD.size)
        size, magic = int.from_bytes(head[:4], "big", signed=True), head[MAGIC_AT : MAGIC_AT + 4]
        if magic == BLANK_MAGIC.to_bytes(4, "big"):
            return size == left
        if size in (LEDGER_BLANK_MAGIC, LEDGER_MAGIC):
            return self._blank_of(head, left) > 0 or self._entry_at(offset, base) is not None
        return magic in MAGICS and RECORD_MIN <= size <= left and int.from_bytes(head[OFFSET_AT : OFFSET_AT + 8], "big") == offset

    def _get(self, base: int, offset: int, size: int) -> bytes:
        """These bytes of the file that starts at `base`, which is read in large pieces: the walk goes forward."""
        at = offset - self._window_at
        if at < 0 or at + size > len(self._window):
            self._window_at, at = offset, 0
            self._window = self.segments.file(base).read(offset - base, max(size, min(CHUNK, base + self.segments.size - offset)))
        return self._window[at : at + size]

    def _one(self, offset: int, base: int) -> Found | Hole | int | None:
        left = base + self.segments.size - offset
        head = self._get(base, offset, 8)
        size, magic = int.from_bytes(head[:4], "big", signed=True), int.from_bytes(head[4:], "big")
        if magic == BLANK_MAGIC and size == left:
            return size
        if size in (LEDGER_BLANK_MAGIC, LEDGER_MAGIC):
            entry = self._entry_at(offset, base)
            if entry is not None:
                at = offset + LEDGER_HEAD.size
                found = read_one(self._get(base, at, entry.body_size), at, check_crc=self.check_crc)
                return found if isinstance(found, Found) else found._replace(offset=offset, size=entry.size)
            if blank := self._blank_of(head, left):
                return blank
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_MIN <= size <= left:
            if not any(head):
                if (begin := self.segments.begin_behind(offset)) is not None:
                    return begin - offset
                if next_data(self.segments, offset) is None:
                    return None
            return Hole(offset, 0, "no record begins here")
        return read_one(self._get(base, offset, size), offset, check_crc=self.check_crc)

    def _entry_at(self, offset: int, base: int) -> Head | None:
        """The head of an entry of DLedger's log that stands here and says so itself."""
        left = base + self.segments.size - offset
        head = read_head(self._get(base, offset, LEDGER_HEAD.size)) if left >= LEDGER_HEAD.size else None
        return head if head is not None and head.adds_up and head.pos == offset and head.size <= left else None

    def _blank_of(self, head: bytes, left: int) -> int:
        """The size of the blank that closes a file of DLedger's log, 0 when it is none."""
        return left if head[:8] == LEDGER_BLANK.pack(LEDGER_BLANK_MAGIC, left) else 0


def parse(raw: bytes, offset: int, *, check_crc: bool = True) -> Found | None:
    """A record that should stand at this offset, or None when it does not: every length adds up, the checksum holds, it says so itself."""
    found = read_one(raw, offset, check_crc=check_crc)
    return found if isinstance(found, Found) else None


def own_size(raw: bytes) -> int | None:
    """What the lengths of a record's parts add up to, where only its beginning may be here. None: one of them is not here yet."""
    if len(raw) < RECORD_MIN:
        return None
    _, magic, _, _, _, _, _, sys_flag, _ = HEAD.unpack_from(raw)
    body_at = FRONTS[sys_flag & HOSTS_V6].size
    at = body_at + int.from_bytes(raw[body_at - 4 : body_at], "big", signed=True)
    width = 1 if magic == MAGIC_V1 else 2
    if at < body_at:
        return 0
    if at + width > len(raw):
        return None
    at += width + int.from_bytes(raw[at : at + width], "big")
    return at + 2 + int.from_bytes(raw[at : at + 2], "big") if at + 2 <= len(raw) else None


ZEROS = "a part of its properties is zeros, as if it had never been written"
CUT_OFF = "it ends in zeros, as if its end had never been written"
SECTOR = 512
"""What a disk writes whole or not at all, or a part of that."""


def read_one(raw: bytes, offset: int, *, check_crc: bool = True) -> Found | Hole:
    """The same, or what is wrong with it. The hole has the record's size where its lengths add up, else 0: nobody knows."""
    if len(raw) < RECORD_MIN:
        return Hole(offset, 0, "it is shorter than any record")
    size, magic, crc, queue_id, _, queue_offset, physical, sys_flag, _ = HEAD.unpack_from(raw)
    if magic not in (MAGIC_V1, MAGIC_V2) or size != len(raw):
        return Hole(offset, 0, "its length is not its own")
    at = store_time_place(sys_flag)
    store_ms = int.from_bytes(raw[at : at + 8], "big", signed=True)
    body_at = FRONTS[sys_flag & HOSTS_V6].size
    body_size = int.from_bytes(raw[body_at - 4 : body_at], "big", signed=True)
    at = body_at + body_size
    width = 1 if magic == MAGIC_V1 else 2
    if body_size < 0 or at + width + 2 > size:
        return Hole(offset, 0, "its lengths do not add up")
    topic_size = int.from_bytes(raw[at : at + width], "big")
    at += width
    topic = raw[at : at + topic_size]
    at += topic_size
    properties = raw[at + 2 :]
    if at + 2 > size or len(properties) != int.from_bytes(raw[at : at + 2], "big"):
        return Hole(offset, 0, "its lengths do not add up")
    if physical != offset:
        return Hole(offset, size, f"it says that it stands at {physical}")
    if not TOPIC.fullmatch(topic) or queue_offset < 0 or not 0 <= queue_id <= QUEUE_ID_MAX:
        return Hole(offset, size, "its topic, queue or queue offset cannot be")
    found = Found(offset, size, topic.decode(), queue_id, queue_offset, sys_flag, store_ms, properties.decode(errors="replace"))
    # Upstream stores 0 for an empty body and checks only bodies that are there.
    if check_crc and body_size and zlib.crc32(memoryview(raw)[body_at : body_at + body_size]) & 0x7FFFFFFF != crc:
        return Hole(offset, size, "its body does not match its checksum", found)
    if b"\0" in properties:
        if _lacks_a_sector(raw, size - len(properties)):
            return Hole(offset, size, ZEROS, found)
        if properties[-1] == 0:
            return Hole(offset, size, CUT_OFF, found)
    return found


def _lacks_a_sector(raw: bytes, start: int) -> bool:
    """The checksum covers the body alone. Whether a sector of what follows it was never written, and is all zeros therefore. Zeros
    among other bytes were sent: such sends are refused, but were not always."""
    offset = int.from_bytes(raw[OFFSET_AT : OFFSET_AT + 8], "big")
    at = raw.find(0, start)
    while at >= 0:
        begin = at - (offset + at) % SECTOR
        if not any(raw[max(begin, 0) : begin + SECTOR]):
            return True
        at = raw.find(0, begin + SECTOR)
    return False
