"""Numbers as Java reads and orders them: what Integer.valueOf, Long.valueOf and Double.valueOf make of a property's text."""

from __future__ import annotations

import math
import re

NUMBER_TEXT_MAX = 400
"""Characters of a text that is read as a number. A longer one is no number here; a bound for hostile senders."""

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1


class NotComparable(ValueError):
    """A property's text does not fit what it is compared with. The message is not delivered."""


BLANKS = bytes(range(0x21))
WHOLE = re.compile(r"[+-]?\d+")
DOUBLE = re.compile(
    rb"([+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?"
    rb"|([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
NAMED = re.compile(rb"[+-]?(?:NaN|Infinity)[fFdD]")
"""The two names take no type letter."""


def to_int(text: bytes) -> int:
    if text.isdigit() and len(text) < 10:
        return int(text)
    return _whole(text, INT_MIN, INT_MAX)


def to_long(text: bytes) -> int:
    if text.isdigit() and len(text) < 19:
        return int(text)
    return _whole(text, LONG_MIN, LONG_MAX)


def _whole(text: bytes, low: int, high: int) -> int:
    if len(text) <= NUMBER_TEXT_MAX:
        # Java takes the digits of every script, as long as one character is one UTF-16 unit.
        digits = text.decode("utf-8", "replace")
        if WHOLE.fullmatch(digits) and max(digits) <= "\uffff":
            number = int(digits)
            if low <= number <= high:
                return number
    raise NotComparable(f"{text[:40]!r} is no whole number from {low} to {high}")


def to_double(text: bytes) -> float:
    if len(text) <= NUMBER_TEXT_MAX:
        text = text.strip(BLANKS)
        found = DOUBLE.fullmatch(text)
        if found is not None and not NAMED.fullmatch(text):
            if found[1] is not None:
                return float(found[1])
            try:
                return float.fromhex(found[2].decode())
            except OverflowError:
                return -math.inf if text.startswith(b"-") else math.inf
    raise NotComparable(f"{text[:40]!r} is no decimal number")


def order(one: float, other: float) -> int:
    """Java's total order of doubles: -0.0 before 0.0, NaN behind everything and equal to itself."""
    if one < other:
        return -1
    if one > other:
        return 1
    if one != one or other != other:
        return (one != one) - (other != other)
    if one == 0:
        return int((math.copysign(1.0, one) - math.copysign(1.0, other)) / 2)
    return 0
