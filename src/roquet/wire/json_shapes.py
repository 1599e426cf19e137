"""JSON headers of one producer's sends to one queue differ in three values: when the message was born, its properties, and the opaque.

So a header is cut at these, and what stands around them is read once:

    front     before g       the code, the group, the topic, the default topic with its number of queues, the queue id, the sys flag
              13 digits      when the message was born
    middle    up to i        the flag of the message
              a text         the properties
    back      behind it      times consumed, batch or not, the broker's name, the flag of the request; up to the opaque
              a number       the opaque
    tail      behind it      the version, and whatever else stands there

These pieces count only if they were tried around other values, and read in full said the same but for those. Whatever is odd is left to
who reads the whole header.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from roquet.wire.send_shapes import KNOWN_MAX, PIECE_MAX, SIGNED, Shaped

BORN, TEXT, OPAQUE = b'"g":"', b'"i":', b'"opaque":'
BORN_SIZE = 13
OPAQUE_MAX = 0x7FFFFFFF
text_from = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"').match
number_from = re.compile(b"[1-9][0-9]*").match
LEARN_EVERY = 16
"""Of the headers that are not known so many are let go for each that is tried, which costs twice as much as reading it. So who sends others
all the time loses little by it."""
LEARNT_MAX = 8 * 1024
"""Bytes of a header that is tried. Usual ones have a tenth of that, and to try one of half a megabyte would take 30 ms."""
ALIKE_MAX = 4
"""Shapes with one front that are kept: clients of several versions in one group, and sends that are oneway."""
TRIALS = (b"0" * BORN_SIZE, b'"x"', b"1"), (b"1" * BORN_SIZE, b'""', b"20")


class Pieces(NamedTuple):
    front: bytes
    middle: bytes
    back: bytes
    tail: bytes


Shape = tuple[bytes, int, bytes, int, bytes, int, str, str, int, int]
"""(middle, how far behind the front the text begins, back, tail; flag of the request, topic, text of the queue id, sys flag, flag of the
message)."""


class JsonShapes:
    """State: the shapes that are known, by their front. They begin anew when there are too many."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[Shape]] = {}
        self._unknown = 0

    def read(self, header: bytes) -> Shaped | None:
        """What it says. None, or ValueError: its pieces are not known, or not sure."""
        front, mark, rest = header.partition(BORN)
        if not mark:
            return None
        values, _, end = rest.rpartition(OPAQUE)  # a search for all of a back would take long where somebody means it to
        for middle, text_at, back, back_size, tail, flag, topic, queue_text, sys_flag, user_flag in self._known.get(front, ()):
            born, digits = values[:BORN_SIZE], end.removesuffix(tail)
            if (
                digits != end and digits.isdigit() and digits >= b"1" and born.isdigit() and values.endswith(back)
                and values.startswith(middle, BORN_SIZE) and (opaque := int(digits)) <= OPAQUE_MAX
            ):  # fmt: skip
                return opaque, flag, topic, queue_text, sys_flag, int(born), user_flag, orjson.loads(values[text_at:-back_size])
        return None

    def learn(self, header: bytes, head: dict[str, Any], found: Shaped) -> None:
        """`head` is what all of the header says, and `found` what that means: a topic and a queue that there are."""
        self._unknown += 1
        if self._unknown < LEARN_EVERY or len(header) > LEARNT_MAX or SIGNED in header:
            return
        self._unknown = 0
        pieces = pieces_of(header)
        if pieces is None or not all(says_the_same(pieces, head, *trial) for trial in TRIALS):
            return
        front, middle, back, tail = pieces
        _, flag, topic, queue_text, sys_flag, _, user_flag, _ = found
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        shapes = self._known.setdefault(front, [])
        shapes.insert(0, (middle, BORN_SIZE + len(middle), back, len(back), tail, flag, topic, queue_text, sys_flag, user_flag))
        del shapes[ALIKE_MAX:]


def pieces_of(header: bytes) -> Pieces | None:
    """Where they seem to stand. None: they stand elsewhere, or there is no use in keeping them."""
    front, _, rest = header.partition(BORN)
    opaque_at = rest.find(OPAQUE)
    if opaque_at < 0:
        return None
    number = number_from(rest, opaque_at + len(OPAQUE))
    text_at = rest.find(TEXT) + len(TEXT)
    text = text_from(rest, text_at)
    if number is None or text is None or len(header) - len(text[0]) > PIECE_MAX:
        return None
    return Pieces(front, rest[BORN_SIZE:text_at], rest[text.end() : opaque_at], rest[number.end() :])


def says_the_same(pieces: Pieces, head: dict[str, Any], born: bytes, text: bytes, number: bytes) -> bool:
    """As `head` does, but for the values that the pieces stand around now."""
    front, middle, back, tail = pieces
    fields = head["extFields"] | {"g": born.decode(), "i": orjson.loads(text)}
    try:
        told = orjson.loads(b"".join((front, BORN, born, middle, text, back, OPAQUE, number, tail)))
    except ValueError:
        return False
    return bool(told == head | {"extFields": fields, "opaque": int(number)})
