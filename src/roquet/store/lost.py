"""What stands behind the log's end is cut off, and kept: somebody may want to look into it.

    lost/00000000000000183296.1794732520880     bytes of the log from that offset on; then when they were cut off

It is there after a power loss (writes that were torn, or that overtook lost ones), or when the log's end is damaged. Left in its
place it would count again as soon as new records end where an old one begins.
"""

from __future__ import annotations

import errno
import logging
from contextlib import closing

from roquet.store.disk import Disk
from roquet.store.scan import CHUNK, heads, next_data, written
from roquet.store.segments import Segments, file_name

log = logging.getLogger("roquet.store")


def cut(disk: Disk, segments: Segments, root: str, end: int, now_ms: int, why: str = "none of them whole or in its place") -> None:
    """Make the log end here. Each step only after the one before is safe: a crash in between leaves all of it, maybe twice."""
    if next_data(segments, end) is None:
        return
    records = sum(1 for _ in heads(segments, end))
    directory = f"{root}/lost"
    disk.make_dir(directory)
    disk.sync_dir(root)
    kept: list[str] = []
    size = 0
    # The last files first: a crash must leave no gap, and one that it leaves short must be the last.
    for base in reversed([base for base in segments.bases if base >= end]):
        stop = _last_data(segments, base, base)
        if stop > base:
            kept.append(f"{directory}/{file_name(base)}.{now_ms}")
            size += stop - base
            try:
                segments.move(base, kept[-1])
            except OSError as error:
                if error.errno != errno.EXDEV:  # the log has a disk of its own
                    raise
                _copy(disk, segments, base, 0, stop - base, kept[-1])
            disk.sync_dir(directory)
        segments.drop_from(base)  # what is empty, or was copied
        disk.sync_dir(segments.directory)
    last = segments.base_of(end)
    if last is not None and last < end:
        base, stop = last, _last_data(segments, last, end) - last
        if stop > end - base:
            kept.append(f"{directory}/{file_name(end)}.{now_ms}")
            size += stop - (end - base)
            _copy(disk, segments, base, end - base, stop, kept[-1])
            disk.sync_dir(directory)
            file = segments.file(base)
            file.truncate(end - base)
            file.truncate(segments.size)
            file.sync()
    disk.sync_dir(directory)
    log.error(
        "the log ends at offset %d, and behind it stand %d bytes in which %d records begin, %s: they are cut off and kept as %s",
        end, size, records, why, ", ".join(kept),
    )  # fmt: skip


def _last_data(segments: Segments, base: int, start: int) -> int:
    """The end of the last byte of this file, from `start` on, that is not zero; `start` when there is none."""
    found = start
    for offset, chunk in written(segments, start):
        if offset >= base + segments.size:
            break
        filled = len(chunk.rstrip(b"\0"))
        found = offset + filled if filled else found
    return found


def _copy(disk: Disk, segments: Segments, base: int, start: int, stop: int, path: str) -> None:
    source = segments.file(base)
    with closing(disk.open(path, size=0)) as target:
        for at in range(start, stop, CHUNK):
            target.write(at - start, source.read(at, min(CHUNK, stop - at)))
        target.sync()
