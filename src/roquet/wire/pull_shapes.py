"""Pulls of one consumer from one queue differ in three numbers: the opaque, where to read on, and the progress that comes along.

What is left of a header without them is its shape, and whoever has read one header of a shape has read them all. So a request that comes a
million times is taken apart once; then the price is finding three numbers.
"""

from __future__ import annotations

import re

from roquet.speedups import native
from roquet.wire.frame import BINARY

FRONT = b'{"code":11,'
NAMES = (b'"opaque":', b'"queueOffset":"', b'"commitOffset":"')
BINARY_FRONT = b"\0\x0b"
BINARY_OFFSET, BINARY_COMMIT = b"\0\x0bqueueOffset\0\0\0", b"\0\x0ccommitOffset\0\0\0"
"""With the front of the number's length, of which one byte is left."""
number_at = re.compile(rb"(?:0|[1-9][0-9]{0,17})(?![0-9])").match
BINARY_FIXED = 21
"""Bytes before the fields, where there is no remark."""

Shaped = tuple[bytes, int, int, int]
"""(shape, opaque, queue offset, offset to commit)."""


def pull_shape(form: int, header: bytes) -> Shaped | None:
    """None: it is no pull, or not sure. Each number stands there once, behind its name; whether the rest of the header makes sense
    is not asked."""
    if form == BINARY:
        return _binary_shape(header)
    if not header.startswith(FRONT):
        return None
    holes: list[tuple[int, int]] = []
    for name in NAMES:
        at = header.find(name)
        found = number_at(header, at + len(name))
        if at < 1 or found is None or header[at - 1] not in b"{," or header.find(name, at + 1) >= 0:
            return None
        holes.append(found.span())
    opaque, queue_offset, commit_offset = [int(header[start:stop]) for start, stop in holes]
    if opaque > 0x7FFFFFFF:
        return None
    holes.sort()
    (one, two), (three, four), (five, six) = holes
    return b"".join((header[:one], header[two:three], header[four:five], header[six:])), opaque, queue_offset, commit_offset


def _binary_shape(header: bytes) -> Shaped | None:
    size = len(header) - BINARY_FIXED
    if not header.startswith(BINARY_FRONT) or size < 0 or header[13:21] != size.to_bytes(8, "big"):
        return None
    one, two = _binary_hole(header, BINARY_OFFSET), _binary_hole(header, BINARY_COMMIT)
    if one is None or two is None:
        return None
    offset_at, offset_stop, queue_offset = one
    commit_at, commit_stop, commit_offset = two
    if offset_at < commit_at:
        rest = header[BINARY_FIXED : offset_at - 4], header[offset_stop : commit_at - 4], header[commit_stop:]
    else:
        rest = header[BINARY_FIXED : commit_at - 4], header[commit_stop : offset_at - 4], header[offset_stop:]
    return b"".join((header[:5], header[9:17], *rest)), int.from_bytes(header[5:9], "big", signed=True), queue_offset, commit_offset


def _binary_hole(header: bytes, name: bytes) -> tuple[int, int, int] | None:
    """Where the number behind this name starts and stops, and the number."""
    at = header.find(name, BINARY_FIXED)
    start = at + len(name) + 1
    found = number_at(header, start)
    if at < 0 or found is None or header.find(name, start) >= 0:
        return None
    stop = found.end()
    return (start, stop, int(found[0])) if header[start - 1] == stop - start else None


shape_of = pull_shape if native is None else native.pull_shape
