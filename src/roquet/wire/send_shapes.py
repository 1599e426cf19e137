"""Binary headers of one producer's sends to one queue differ in four things: the opaque, when the message was born, its properties, and
how long they make the header.

So a header is cut into pieces, and a piece that was read once is known:

    front    fields a to e     the group, the topic, the default topic with its number of queues, the queue id
    middle   fields f to h     the sys flag, when it was born, the flag; then the length of i
    text     field i           the properties
    back     j and the rest    times consumed, batch or not, the broker's name and whatever else stands there

What a piece says counts only if it was written exactly as `encode_fields` would write it: then all pieces together read as the whole
header does. Whatever is odd is left to `read_header`.
"""

from __future__ import annotations

import re
from typing import Any

from roquet.errors import Broken
from roquet.wire.binary import FRONT, encode_fields, read_fields
from roquet.wire.codes import RequestCode

FIELDS_AT = FRONT.size
CODES = frozenset((int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)))
MIDDLE_MARK = b"\0\1f\0\0\0\1"
middle_of = re.compile(b"\0\1f\0\0\0\1([0-3])\0\1g\0\0\0\x0d([0-9]{13})\0\1h\0\0\0\1([0-9])\0\1i\0\0").fullmatch
MIDDLE_SIZE = 41
"""With the upper half of the length of the properties, which has four bytes."""
FRONT_NAMES = tuple("abcde")
BEFORE_BACK = frozenset("abcdefghi")
PIECE_MAX = 1_024
"""Bytes of a piece that is kept."""
KNOWN_MAX = 10_000
"""Pieces of a kind that are kept."""
SIGNED = b"Signature"
"""It is another one in each header: no use in keeping it."""

Shaped = tuple[int, int, str, str, int, int, int, str]
"""(opaque, flag of the request, topic, text of the queue id, sys flag, when it was born, flag of the message, properties) of a send of a
single message that was not consumed before. Whatever is a number here is one that a record can hold."""


class SendShapes:
    """State: the pieces that are known. Each kind begins anew when there are too many."""

    def __init__(self) -> None:
        self._fronts: dict[bytes, tuple[str, str] | None] = {}
        """-> topic, text of the queue id. None here and below: `read` cannot answer for it."""
        self._middles: dict[bytes, tuple[int, int, int] | None] = {}
        """-> sys flag, when it was born, flag of the message."""
        self._backs: dict[bytes, bool] = {}
        """-> whether all that it says is what nearly all say."""

    def read(self, header: bytes) -> Shaped | None:
        """What `read_header` finds in it. None: it is not of that kind, or not sure."""
        if len(header) < FIELDS_AT:
            return None
        code, _, _, opaque, flag, remark_size, size = FRONT.unpack_from(header)
        middle_start = header.find(MIDDLE_MARK, FIELDS_AT)
        if code not in CODES or remark_size or size != len(header) - FIELDS_AT or middle_start < 0:
            return None
        text_size_at = middle_start + MIDDLE_SIZE
        text_at = text_size_at + 2
        text_stop = text_at + int.from_bytes(header[text_size_at:text_at], "big")
        front, middle, back = header[FIELDS_AT:middle_start], header[middle_start:text_size_at], header[text_stop:]
        try:
            place, numbers = self._fronts[front], self._middles[middle]
            plain = self._backs[back]
        except KeyError:
            place, numbers, plain = self._learn(front, middle, back)
        if place is None or numbers is None or not plain:
            return None
        try:
            return opaque, flag, *place, *numbers, header[text_at:text_stop].decode()
        except UnicodeDecodeError:
            return None

    def _learn(self, front: bytes, middle: bytes, back: bytes) -> tuple[tuple[str, str] | None, tuple[int, int, int] | None, bool]:
        if len(front) > PIECE_MAX or len(back) > PIECE_MAX or SIGNED in back:
            return None, None, False
        if middle not in self._middles:  # there is a new one each millisecond
            keep(self._middles, middle, numbers_of(middle))
        if self._middles[middle] is None:
            return None, None, False  # it was cut at the wrong places: the others are no pieces
        if front not in self._fronts:
            keep(self._fronts, front, place_of(front))
        if back not in self._backs:
            keep(self._backs, back, says_nothing(back))
        return self._fronts[front], self._middles[middle], self._backs[back]


def keep(known: dict[bytes, Any], piece: bytes, found: object) -> None:
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[piece] = found


def place_of(front: bytes) -> tuple[str, str] | None:
    fields = fields_of(front)
    if fields is None or tuple(fields) != FRONT_NAMES or not is_number(fields["d"]):
        return None
    return fields["b"], fields["e"]


def numbers_of(middle: bytes) -> tuple[int, int, int] | None:
    found = middle_of(middle)
    if found is None:
        return None
    sys_flag, born_ms, flag = found.groups()
    return int(sys_flag), int(born_ms), int(flag)


def says_nothing(back: bytes) -> bool:
    """An empty one does not: a length that is too large leaves nothing either."""
    fields = fields_of(back)
    if not fields or not BEFORE_BACK.isdisjoint(fields):
        return False
    return fields.get("j", "0") == "0" and fields.get("m", "false") == "false" and is_number(fields.get("l", "0"))


def fields_of(piece: bytes) -> dict[str, str] | None:
    """None: somebody else would write them otherwise, so it is not sure that they end where the piece does."""
    try:
        fields = read_fields(piece, 0, len(piece))
    except (Broken, UnicodeDecodeError):
        return None
    return fields if encode_fields(fields) == piece else None


def is_number(text: str) -> bool:
    return text.isdigit() and text.isascii()
