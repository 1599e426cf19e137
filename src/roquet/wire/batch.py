"""The body of a batch send: messages one after another.

    size 4 | magic 4 | crc 4 | flag 4 | body 4+n | properties 2+n        size counts itself

Magic and crc are 0 on the wire; the broker computes its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from roquet.errors import Refused
from roquet.speedups import native
from roquet.wire.codes import ResponseCode
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.record import NAME_VALUE, PROPERTY

FRONT = struct.Struct(">iiiii")
SMALLEST = FRONT.size + 2
MESSAGES_MAX = 65_536
"""Of one batch. Clients are bounded by its size long before; a body of empty messages would hold up everybody else."""

InnerMessage = tuple[int, bytes, bytes]
"""(flag, body, properties as encoded)."""


def split_batch(body: bytes) -> list[InnerMessage]:
    """The messages of a batch. Every length is checked against what is left; raises Refused(13) at the first that lies."""
    parts: list[InnerMessage] = []
    at, end = 0, len(body)
    unpack = FRONT.unpack_from
    while at < end:
        if end - at < 22:
            raise bad(f"message {len(parts)} has {end - at} bytes left, at least 22 expected")
        size, _, _, flag, body_size = unpack(body, at)
        stop = at + size
        if size < 22 or stop > end:
            raise bad(f"message {len(parts)} says {size} bytes, {end - at} are left")
        start = at + 20
        middle = start + body_size
        if body_size < 0 or middle + 2 > stop:
            raise bad(f"message {len(parts)} of {size} bytes says a body of {body_size}")
        if middle + 2 + int.from_bytes(body[middle : middle + 2], "big", signed=True) != stop:
            raise bad(f"message {len(parts)} of {size} bytes has properties that do not end where it ends")
        parts.append((flag, body[start:middle], body[middle + 2 : stop]))
        if len(parts) > MESSAGES_MAX:
            raise bad(f"it has more than {MESSAGES_MAX} messages")
        at = stop
    if not parts:
        raise bad("it is empty")
    return parts


def join_batch(parts: Iterable[InnerMessage]) -> bytes:
    """The body of a batch send. Properties are limited to 32767 bytes a message."""
    pieces: list[bytes] = []
    for flag, body, properties in parts:
        if len(properties) > PROPERTIES_MAX:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"properties of {len(properties)} bytes, limit is {PROPERTIES_MAX}")
        pieces += (
            FRONT.pack(22 + len(body) + len(properties), 0, 0, flag, len(body)),
            body,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    return b"".join(pieces)


def join_messages(bodies: list[bytes], texts: list[str], message_ids: list[str], name: str) -> bytes:
    """The body of a batch send, of columns: properties of each message as text, and its id, which becomes one of them under this name."""
    return join_batch(
        [
            (0, body, (f"{text}{PROPERTY}{name}{NAME_VALUE}{message_id}" if text else f"{name}{NAME_VALUE}{message_id}").encode())
            for body, text, message_id in zip(bodies, texts, message_ids, strict=True)
        ]
    )


def join_columns(bodies: list[bytes], texts: list[str], message_ids: list[str], name: str) -> bytes:
    """join_messages, compiled where that is built."""
    made: bytes | None = None if native is None else native.join_messages(bodies, texts, message_ids, name)
    return join_messages(bodies, texts, message_ids, name) if made is None else made


def bad(what: str) -> Refused:
    return Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is illegal: {what}")
