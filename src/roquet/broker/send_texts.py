"""Properties of plain sends, as texts: what is stored of them, and what the queue entry and the index need to know.

Those of one producer mostly differ in the unique key alone: what stands around it is taken apart once.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from roquet.broker.send_properties import UNUSUAL, WAITS
from roquet.message import Property
from roquet.store.fanout import KEYS_MAX, UNIQUE_KEY_MARK, tag_hash

TAGS, KEYS = Property.TAGS, Property.KEYS
KNOWN_MAX = 10_000
AROUND_MAX = 256
"""Characters around a unique key that are kept."""


class Items(NamedTuple):
    kept: list[str]
    """What is stored, without what the broker adds."""
    tag: int
    keys: list[str]
    diverted: tuple[str, str] | None
    """(name, value) of what makes the message go elsewhere first."""


class SendTexts:
    """State: what repeats with every message."""

    def __init__(self, added: str) -> None:
        """`added`: what the broker adds to each message's properties."""
        self.added = added
        self._tags: dict[str, int] = {}
        """Properties seen before that are more than kept: a tag -> its hash."""
        self._around: dict[tuple[str, str], tuple[str, str, int]] = {}
        """What stands before and behind a unique key -> what is stored before and behind it, the tag's hash."""

    def stored(self, text: str) -> tuple[bytes, int, Sequence[str]] | None:
        """(the properties as they are stored, the tag's hash, the keys). None: the message goes elsewhere first, or it is not sure."""
        before, _, rest = text.partition(UNIQUE_KEY_MARK)
        unique, _, behind = rest.partition("\x02")
        around = self._around.get((before, behind))
        if around is not None and unique:
            front, back, tag = around
            return f"{front}{unique}{back}".encode(), tag, (unique,)
        items = self.take_apart(text)
        if items is None:
            return None
        kept, tag, keys, _ = items
        if keys == [unique] and before[-1:] in ("", "\x02") and len(before) + len(behind) <= AROUND_MAX:
            if len(self._around) >= KNOWN_MAX:
                self._around.clear()
            at = kept.index(UNIQUE_KEY_MARK + unique)
            back = "\x02".join(["", *kept[at + 1 :], self.added])
            self._around[before, behind] = "\x02".join([*kept[:at], UNIQUE_KEY_MARK]), back, tag
        return "\x02".join([*kept, self.added]).encode(), tag, keys

    def take_apart(self, text: str, diversions: Container[str] = ()) -> Items | None:
        """`diversions`: names of properties of which one may make the message go elsewhere. None: look properly."""
        tag, unique, known = 0, "", self._tags
        diverted: tuple[str, str] | None = None
        keys: list[str] = []
        kept: list[str] = []
        if text[-1:] == "\x02":  # 5.x ends them with a separator
            text = text[:-1]
        for item in text.split("\x02") if text else ():
            if item[:9] == UNIQUE_KEY_MARK and len(item) > 9:
                if unique:
                    return None
                unique = item[9:]
                kept.append(item)
            elif item in known:
                tag = known[item]
                kept.append(item)
            elif item != WAITS:
                name, _, value = item.partition("\x01")
                if name in UNUSUAL or not value:
                    if diverted is not None or name not in diversions or not value:
                        return None
                    diverted = name, value
                if name == TAGS:
                    tag = tag_hash(value)
                    if len(known) < KNOWN_MAX:
                        known[item] = tag
                elif name == KEYS:
                    if keys:
                        return None
                    keys += [word for word in value.split(" ") if word][:KEYS_MAX] if " " in value else (value,)
                kept.append(item)
        if unique:
            keys.insert(0, unique)
        return Items(kept, tag, keys, diverted)
