"""Which records carry one of some tags, for many records at once.

Brokers and queue entries know only the hash of a tag, so a stranger with the same hash may be among the records.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from roquet.message import Property
from roquet.routing.subscription import ALL, subscribe
from roquet.spark.places import Positions, Sizes
from roquet.wire.layout import BODY_AT, LONGER_V6, MAGIC_AT, MAGIC_V2, SYS_FLAG_AT

NAME = int.from_bytes(Property.TAGS.encode(), "little")
"""With both addresses IPv4; each IPv6 address moves it by 12."""


class TagCheck:
    """Judges by the tag itself, as upstream's clients do."""

    def __init__(self, tags: frozenset[str]) -> None:
        self.tags = sorted(tag.encode() for tag in tags)

    @classmethod
    def of(cls, expression: str | None) -> TagCheck | None:
        """None when everything is wanted. Raises BadExpression."""
        if expression in (None, "", ALL):
            return None
        tags = frozenset(subscribe("", expression).tags_set)
        # An expression that names no tag (" || "): nobody looks again, as the broker lets nothing through.
        return cls(tags) if tags else None

    def takes(self, data: memoryview, positions: Positions, sizes: Sizes) -> npt.NDArray[np.bool_]:
        """One verdict per record: its last TAGS property is one of the tags."""
        verdicts = np.zeros(len(positions), np.bool_)
        found, starts, stops = find_tags(data, positions, sizes)
        raw = np.frombuffer(data, np.uint8)
        for tag in self.tags:
            # Only those of the right length are compared, all of them together.
            same = np.flatnonzero(stops - starts == len(tag))
            if len(same):
                text = raw[starts[same][:, None] + np.arange(len(tag))]
                verdicts[found[same[(text == np.frombuffer(tag, np.uint8)).all(axis=1)]]] = True
        return verdicts


def find_tags(data: memoryview, positions: Positions, sizes: Sizes) -> tuple[Positions, Positions, Positions]:
    """(numbers of the records that have a tag, where it begins, where it ends)."""
    raw = np.frombuffer(data, np.uint8)
    ends = positions + sizes
    properties = properties_at(data, positions)
    # Where "TAGS\1" stands; 4 bytes compared as one number at every byte.
    words: npt.NDArray[np.uint32] = np.ndarray((max(0, len(raw) - 4),), "<u4", data, 0, (1,))
    names = np.flatnonzero(words == NAME)
    names = names[raw[names + 4] == 1]
    owner = np.searchsorted(positions, names, "right") - 1
    inside = (owner >= 0) & (names >= properties[owner]) & (names < ends[owner])
    names, owner = names[inside], owner[inside]
    begins = (names == properties[owner]) | (raw[names - 1] == 2)
    names, owner = names[begins], owner[begins]
    starts = names + 5
    separators = np.append(np.flatnonzero(raw == 2), len(raw))
    stops = np.minimum(separators[np.searchsorted(separators, starts)], ends[owner])
    # An empty value is none, and of two with one name the later counts.
    some = stops > starts
    owner, starts, stops = owner[some], starts[some], stops[some]
    last = np.flatnonzero(np.append(owner[1:] != owner[:-1], True)[: len(owner)])
    return owner[last], starts[last], stops[last]


def properties_at(data: memoryview, positions: Positions) -> Positions:
    """Where the properties of each record begin. A record that is none gets a place past its own."""
    raw = np.frombuffer(data, np.uint8)
    top = len(raw) - 1

    def number(at: Positions, width: int) -> Positions:
        value = np.zeros(len(at), np.int64)
        for n in range(width):
            value = value << 8 | raw[np.minimum(at + n, top)]
        return value

    flags = number(positions + SYS_FLAG_AT, 4)
    body_at = positions + BODY_AT - 4 + LONGER_V6 * ((flags >> 4 & 1) + (flags >> 5 & 1))
    topic_at = body_at + 4 + number(body_at, 4)
    long = number(positions + MAGIC_AT, 4) == MAGIC_V2
    topic_size = np.where(long, number(topic_at, 2), number(topic_at, 1))
    found: Positions = topic_at + 1 + long + topic_size + 2
    return found
