"""After a crash the end of the log is written again (`write_again`). A power loss in the middle of that could spoil what was safe before:
so a copy of it is made safe first, and the next start puts that in its place."""

from __future__ import annotations

import logging
import struct
from zlib import crc32

from roquet.store.disk import Disk
from roquet.store.scan import CHUNK
from roquet.store.segments import Segments

log = logging.getLogger("roquet.store")

NAME = "rewriting"
HEAD = struct.Struct(">qqI")
"""Where it stands in the log, how many bytes, their checksum."""
COPIED_MAX = 64 * 1024 * 1024
"""Longer ends are written again without a copy: what is not flushed for so long was promised to nobody."""


def write_again(disk: Disk, root: str, segments: Segments, start: int, end: int) -> None:
    """What recovery read back may exist in memory only, in any log file, and must be safe before anything builds on it. It is written
    again, because after a failed fsync the system takes pages for clean that never reached the disk, and a sync alone would do nothing."""
    segments.drop_from(end)
    disk.sync_dir(segments.directory)
    start = max(start, segments.bases[0]) if segments.bases else end
    data = read(segments, start, end) if 0 < end - start <= COPIED_MAX else b""
    is_copied = len(data) == end - start > 0  # a file that is too short has no copy
    if is_copied:
        copy = disk.open(f"{root}/{NAME}", size=0)
        copy.write(0, HEAD.pack(start, len(data), crc32(data)) + data)
        copy.sync()
        copy.close()
        disk.sync_dir(root)
    for base in segments.bases:
        file = segments.file(base)
        at, stop = max(start, base), min(end, base + segments.size)
        while at < stop:
            piece = file.read(at - base, min(CHUNK, stop - at))
            file.write(at - base, piece)
            at += len(piece)
        file.sync()
    if is_copied:
        disk.remove(f"{root}/{NAME}")
        disk.sync_dir(root)


def finish(disk: Disk, root: str, segments: Segments) -> None:
    """A start before this one was ended in the middle of that: its copy counts, if it is whole. Else nothing was written again yet."""
    path = f"{root}/{NAME}"
    if not disk.exists(path):
        return
    copy = disk.open(path)
    raw = copy.read(0, min(copy.size(), HEAD.size + COPIED_MAX))
    copy.close()
    if len(raw) >= HEAD.size:
        start, size, checksum = HEAD.unpack_from(raw)
        data = raw[HEAD.size :]
        if len(data) == size and crc32(data) == checksum:
            put_back(segments, start, data)
    disk.remove(path)
    disk.sync_dir(root)


def put_back(segments: Segments, start: int, data: bytes) -> None:
    changed = 0
    for base in segments.bases:
        at, stop = max(start, base), min(start + len(data), base + segments.size)
        if at < stop:
            file, piece = segments.file(base), data[at - start : stop - start]
            if file.read(at - base, len(piece)) != piece:
                file.write(at - base, piece)
                changed += 1
            file.sync()
    if changed:
        log.warning(
            "the last start was ended while it wrote %d bytes of the log again, and they were spoiled: put back from its copy", len(data)
        )


def read(segments: Segments, start: int, end: int) -> bytes:
    pieces = []
    for base in segments.bases:
        at, stop = max(start, base), min(end, base + segments.size)
        if at < stop:
            pieces.append(segments.file(base).read(at - base, stop - at))
    return b"".join(pieces)
