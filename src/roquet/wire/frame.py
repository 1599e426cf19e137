"""Cutting a byte stream into frames.

    0        4        8              8+h
    +--------+--------+--------------+----------+
    | length | t |  h | header       | body     |     length counts everything after itself: 4 + h + body
    +--------+--------+--------------+----------+     t: 0 the header is JSON, 1 it is RocketMQ's binary form

One `feed` returns every whole frame that has arrived, so that a server works per batch and not per message.
"""

from __future__ import annotations

import struct

from roquet.errors import Broken
from roquet.speedups import native

FRAME_SIZE_MAX = 16 * 1024 * 1024
"""Upstream's com.rocketmq.remoting.frameMaxLength. A longer frame closes the connection, as there."""

HEADER_SIZE_MAX = 0xFFFFFF
"""All that the length of a header can say."""

SMALL = 1024
"""Pieces below this are gathered in one buffer, larger ones are kept as they came."""

SIZES = struct.Struct(">II")
"""The length, and the word that has the header's form and length."""

JSON = 0
BINARY = 1

Frame = tuple[int, bytes, bytes]
"""(header form, header, body)."""


def cut_frames(data: bytes, limit: int) -> tuple[list[Frame], int, int]:
    """(frames, where the first byte stands that belongs to none of them, how many bytes are needed from there on). A stream that cannot be
    trusted any further needs 0, and `distrust` says why."""
    frames: list[Frame] = []
    at, have = 0, len(data)
    unpack = SIZES.unpack_from
    while have - at >= 8:
        size, word = unpack(data, at)
        stop, start, form = at + 4 + size, at + 8, word >> 24
        head = start + (word & 0xFFFFFF)
        if size < 4 or size > limit or head > stop or form > 1:
            return frames, at, 0
        if stop > have:
            return frames, at, 4 + size
        frames.append((form, data[start:head], data[head:stop]))
        at = stop
    return frames, at, 8


cut = cut_frames if native is None else native.cut_frames


def distrust(data: bytes, at: int, limit: int) -> Broken:
    """What is wrong with the frame that begins here."""
    size, word = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
    if size < 4 or size > limit:
        return Broken(f"frame length {size}, allowed are 4 to {limit}")
    if (word & 0xFFFFFF) + 4 > size:
        return Broken(f"bad header length {word & 0xFFFFFF} in a frame of {size}")
    return Broken(f"unknown header form {word >> 24}, known are 0 (JSON) and 1 (binary)")


class Framer:
    """Holds the bytes of one connection that do not make a whole frame yet. Bounded by one frame of the largest size."""

    __slots__ = ("_chunks", "buffered", "header_max", "limit", "needed")

    def __init__(self, limit: int = FRAME_SIZE_MAX, header_max: int = HEADER_SIZE_MAX) -> None:
        self.limit = limit
        self.header_max = header_max
        self._chunks: list[bytes | bytearray] = []
        self.buffered = 0
        self.needed = 8
        """Bytes that the frame has which has begun, as far as is known: there is no use in looking before they are there."""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames completed by these bytes, in order.

        Raises Broken when the stream cannot be trusted any further; frames before the bad one are lost with it,
        since the caller closes the connection anyway.
        """
        if self.buffered:
            self._keep(data)
            if self.buffered < self.needed:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
            self.buffered = 0
        frames, at, need = cut(data, self.limit)
        if not need:
            raise distrust(data, at, self.limit)
        if len(data) > self.header_max:  # else there is no room for such a header
            self._check_header(max((len(header) for _, header, _ in frames), default=0))
        if at < len(data):
            if need > self.header_max:
                self._check_header(int.from_bytes(data[at + 5 : at + 8], "big"))
            self._keep(data[at:] if at else data)
        self.needed = need
        return frames

    def _check_header(self, size: int) -> None:
        if size > self.header_max:
            raise Broken(f"header length {size}, allowed are {self.header_max}")

    def _keep(self, data: bytes) -> None:
        self.buffered += len(data)
        if len(data) >= SMALL:
            self._chunks.append(data)
        elif self._chunks and isinstance(self._chunks[-1], bytearray):
            # A peer that sends byte by byte must not cost forty bytes of objects for each.
            self._chunks[-1] += data
        else:
            self._chunks.append(bytearray(data))


def encode_frame(form: int, header: bytes, body: bytes = b"") -> bytes:
    size = len(header)
    return b"%b%b%b%b" % ((4 + size + len(body)).to_bytes(4, "big"), (form << 24 | size).to_bytes(4, "big"), header, body)
