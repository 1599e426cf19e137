"""Reading the log forward, record by record, trusting nothing. Recovery, verification and rebuilds all walk with this."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from roquet.store.disk import DiskFile
from roquet.store.segments import Segments
from roquet.wire.record import BLANK_MAGIC, BORN_HOST_V6, MAGIC_V1, MAGIC_V2, STORE_HOST_V6

CHUNK = 4 * 1024 * 1024
# size, magic, crc, queue, flag, queue offset, physical offset, system flag, born time
HEAD = struct.Struct(">iIiiiqqiq")
assert HEAD.size == 48
RECORD_MIN = 91


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


def read_records(segments: Segments, start: int, stop: int | None = None, *, check_crc: bool = True) -> Iterator[Found]:
    """Every record from `start` (a record's first byte) to the first that is not whole. Blocking reads.

    The generator's end is the log's end: the caller takes it from the last record, or from `start` when there is none.
    """
    at = start
    while stop is None or at < stop:
        base = segments.base_of(at)
        if base is None:
            return
        reader = _Window(segments.file(base), segments.size)
        while at < base + segments.size and (stop is None or at < stop):
            found = _one(reader, at - base, at, segments.size, check_crc)
            if found is None:
                return
            if isinstance(found, int):  # blank: the rest of this file is empty
                at += found
                break
            yield found
            at += found.size


class _Window:
    """A file read in large pieces, for a walk that goes forward."""

    def __init__(self, file: DiskFile, limit: int) -> None:
        self.file = file
        self.limit = limit
        self.start = 0
        self.data = b""

    def get(self, position: int, size: int) -> bytes:
        at = position - self.start
        if at < 0 or at + size > len(self.data):
            self.start, at = position, 0
            self.data = self.file.read(position, max(size, min(CHUNK, self.limit - position)))
        return self.data[at : at + size]


def _one(reader: _Window, position: int, offset: int, limit: int, check_crc: bool) -> Found | int | None:
    head = reader.get(position, 8)
    if len(head) < 8:
        return None
    size, magic = int.from_bytes(head[:4], "big", signed=True), int.from_bytes(head[4:], "big")
    if magic == BLANK_MAGIC:
        return limit - position if size == limit - position else None
    if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_MIN or position + size > limit:
        return None
    return parse(reader.get(position, size), offset, check_crc=check_crc)


def parse(raw: bytes, offset: int, *, check_crc: bool = True) -> Found | None:
    """A record that should stand at this offset, or None when it does not: every length adds up, the checksum holds, it says so itself."""
    if len(raw) < RECORD_MIN:
        return None
    size, magic, crc, queue_id, _, queue_offset, physical, sys_flag, _ = HEAD.unpack_from(raw)
    if size != len(raw) or physical != offset or queue_offset < 0 or queue_id < 0:
        return None
    at = 48 + (20 if sys_flag & BORN_HOST_V6 else 8)
    store_ms = int.from_bytes(raw[at : at + 8], "big")
    at += 8 + (20 if sys_flag & STORE_HOST_V6 else 8) + 12
    body_size = int.from_bytes(raw[at : at + 4], "big", signed=True)
    at += 4
    if body_size < 0 or at + body_size + 3 > size:
        return None
    # Upstream stores 0 for an empty body and checks only bodies that are there.
    if check_crc and body_size and zlib.crc32(raw[at : at + body_size]) & 0x7FFFFFFF != crc:
        return None
    at += body_size
    width = 1 if magic == MAGIC_V1 else 2
    topic_size = int.from_bytes(raw[at : at + width], "big")
    at += width
    topic = raw[at : at + topic_size]
    at += topic_size
    if at + 2 > size:
        return None
    properties_size = int.from_bytes(raw[at : at + 2], "big")
    at += 2
    properties = raw[at : at + properties_size]
    if at + properties_size != size:
        return None
    # The checksum covers the body alone. A torn write leaves zeros, which neither a topic nor properties contain: sends with
    # them are refused.
    if b"\0" in properties or b"\0" in topic or not topic:
        return None
    try:
        return Found(offset, size, topic.decode(), queue_id, queue_offset, sys_flag, store_ms, properties.decode())
    except UnicodeDecodeError:
        return None
