"""Cutting a byte stream into frames.

    0        4        8              8+h
    +--------+--------+--------------+----------+
    | length | t |  h | header       | body     |     length counts everything after itself: 4 + h + body
    +--------+--------+--------------+----------+     t: 0 the header is JSON, 1 it is RocketMQ's binary form

One `feed` returns every whole frame that has arrived, so that a server works per batch and not per message.
"""

from __future__ import annotations

from roquet.errors import Broken

FRAME_SIZE_MAX = 16 * 1024 * 1024
"""Upstream's com.rocketmq.remoting.frameMaxLength. A longer frame closes the connection, as there."""

SMALL = 1024
"""Pieces below this are gathered in one buffer, larger ones are kept as they came."""

JSON = 0
BINARY = 1

Frame = tuple[int, bytes, bytes]
"""(header form, header, body)."""


class Framer:
    """Holds the bytes of one connection that do not make a whole frame yet. Bounded by one frame of the largest size."""

    __slots__ = ("_chunks", "buffered", "limit", "needed")

    def __init__(self, limit: int = FRAME_SIZE_MAX) -> None:
        self.limit = limit
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
        frames: list[Frame] = []
        at, have = 0, len(data)
        from_bytes = int.from_bytes
        need = 8
        while have - at >= 8:
            size = from_bytes(data[at : at + 4], "big")
            if size < 4 or size > self.limit:
                raise Broken(f"frame length {size}, allowed are 4 to {self.limit}")
            stop = at + 4 + size
            word = from_bytes(data[at + 4 : at + 8], "big")
            head = at + 8 + (word & 0xFFFFFF)
            if head > stop:
                raise Broken(f"bad header length {word & 0xFFFFFF} in a frame of {size}")
            if word >> 24 > 1:
                raise Broken(f"unknown header form {word >> 24}, known are 0 (JSON) and 1 (binary)")
            if stop > have:
                need = 4 + size
                break
            frames.append((word >> 24, data[at + 8 : head], data[head:stop]))
            at = stop
        if at < have:
            self._keep(data[at:] if at else data)
        self.needed = need
        return frames

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
