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
HEAD = struct.Struct(">qqII")
"""Where it stands in the log, how many bytes, their checksum, and that of the store's checkpoint: where another broker has written here
since (RocketMQ opens the same directories), the copy is of another log."""
COPIED_MAX = 64 * 1024 * 1024
"""Longer ends are written again without a copy, which would take long, and as much room once more."""


def write_again(disk: Disk, root: str, segments: Segments, start: int, end: int) -> None:
    """What recovery read back may exist in memory only, in any log file, and must be safe before anything builds on it. It is written
    again, because after a failed fsync the system takes pages for clean that never reached the disk, and a sync alone would do nothing."""
    segments.drop_from(end)
    disk.sync_dir(segments.directory)
    start = max(start, segments.bases[0]) if segments.bases else end
    is_copied = 0 < end - start <= COPIED_MAX and make_copy(disk, root, segments, start, end)
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


def make_copy(disk: Disk, root: str, segments: Segments, start: int, end: int) -> bool:
    """False: there is none. A file of the log is too short, or there is no room: a full disk must not refuse the start."""
    data = read(segments, start, end)
    if len(data) != end - start:
        return False
    path = f"{root}/{NAME}"
    try:
        copy = disk.open(path, size=0)
        try:
            copy.write(0, HEAD.pack(start, len(data), crc32(data), checkpoint_of(disk, root)) + data)
            copy.sync()
        finally:
            copy.close()
        disk.sync_dir(root)
    except OSError as error:
        log.warning("the end of the log is written again without a copy: %s", error)
        if disk.exists(path):
            disk.remove(path)
            disk.sync_dir(root)
        return False
    return True


def checkpoint_of(disk: Disk, root: str) -> int:
    path = f"{root}/checkpoint"
    if not disk.exists(path):
        return 0
    file = disk.open(path)
    try:
        return crc32(file.read(0, file.size()))
    finally:
        file.close()


def finish(disk: Disk, root: str, segments: Segments) -> None:
    """A start before this one was ended in the middle of that: its copy counts, if it is whole. Else nothing was written again yet."""
    path = f"{root}/{NAME}"
    if not disk.exists(path):
        return
    copy = disk.open(path)
    raw = copy.read(0, min(copy.size(), HEAD.size + COPIED_MAX))
    copy.close()
    if len(raw) >= HEAD.size:
        start, size, checksum, checkpoint = HEAD.unpack_from(raw)
        data = raw[HEAD.size :]
        if len(data) == size and crc32(data) == checksum and checkpoint == checkpoint_of(disk, root):
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
