"""The address patterns of white lists, as RocketMQ's plain_acl.yml has them.

*   *.*.*.*   *:*:*:*:*:*:*:*                 every address
10.0.0.7      fe80::1                         this one
10.0.*.*      10.0.0.1-45    10.0.1-3.*       ranges; the same with IPv6: 5::7:6:1-200:*
10.0.*                                        a star at the end stands for all that follows
10.0.0.{1,2,9}   1::{4,5}                     some of the last part
10.0.0.1,10.0.0.2                             some addresses
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roquet.hosts import Parts

EVERY = frozenset(("*", "*.*.*.*", "*:*:*:*:*:*:*:*"))
PATTERN_MAX = 4_096


class BadPattern(ValueError):
    """Says the pattern and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class AddressPattern:
    text: str
    matches: Callable[[Parts], bool]

    def __repr__(self) -> str:
        return f"<AddressPattern {self.text}>"


def pattern_of(text: str) -> AddressPattern:
    """Raises BadPattern."""
    text = text.strip()
    if not text or len(text) > PATTERN_MAX:
        raise BadPattern(f"{text[:40]!r}: expected an address or a pattern of one, as in 10.0.0.* or 10.0.0.1-20")
    if text in EVERY:
        return AddressPattern(text, lambda parts: True)
    if "," in text and not text.endswith("}"):
        several = [pattern_of(one) for one in text.split(",")]
        return AddressPattern(text, lambda parts: any(one.matches(parts) for one in several))
    ranges = ranges_of(text)

    def matches(parts: Parts) -> bool:
        if len(parts) != len(ranges):
            return False
        return all(any(low <= part <= high for low, high in choices) for part, choices in zip(parts, ranges, strict=True))

    return AddressPattern(text, matches)


def ranges_of(text: str) -> list[list[tuple[int, int]]]:
    """For each part of an address the ranges that it may be in."""
    six = ":" in text
    separator, count, highest = (":", 8, 0xFFFF) if six else (".", 4, 255)
    front, brace, last = text.partition("{")
    if brace and not (last.endswith("}") and front.endswith(separator)):
        raise BadPattern(f"{text!r}: {{}} may only be the whole last part, as in 10.0.0.{{1,2}}")
    words = _expanded(front[:-1] if brace and not front.endswith("::") else front, text, count - bool(brace)) if six else (
        front[:-1] if brace else front
    ).split(".")  # fmt: skip
    if not six and words[-1] == "*" and not brace:
        words += ["*"] * (count - len(words))
    if len(words) + bool(brace) != count:
        raise BadPattern(f"{text!r}: {len(words) + bool(brace)} parts, an address has {count} with {separator!r} between them")
    ranges = [[_range(word, text, six, highest)] for word in words]
    if brace:
        ranges.append([_range(word.strip(), text, six, highest) for word in last[:-1].split(",")])
    return ranges


def _expanded(front: str, text: str, count: int) -> list[str]:
    """The parts of an IPv6 pattern: "::" stands for as many zeros as are missing."""
    if front.count("::") > 1 or ":::" in front:
        raise BadPattern(f"{text!r}: '::' may stand once in an address")
    if "::" not in front:
        return front.split(":")
    before, _, after = front.partition("::")
    head, tail = [one.split(":") if one else [] for one in (before, after)]
    return [*head, *["0"] * max(0, count - len(head) - len(tail)), *tail]


def _range(word: str, text: str, six: bool, highest: int) -> tuple[int, int]:
    if word == "*":
        return 0, highest
    low, dash, high = word.partition("-")
    try:
        found = _number(low, six), _number(high if dash else low, six)
    except ValueError:
        raise BadPattern(f"{text!r}: {word!r} is no part of an address, expected a number, a range as in 1-20, or *") from None
    if not 0 <= found[0] <= found[1] <= highest:
        raise BadPattern(f"{text!r}: {word!r} is not in 0 to {highest:x}" if six else f"{text!r}: {word!r} is not in 0 to {highest}")
    return found


def _number(word: str, six: bool) -> int:
    if not word.isascii() or not word.isalnum() or len(word) > 5:
        raise ValueError(word)
    return int(word, 16 if six else 10)
