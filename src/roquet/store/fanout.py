"""One record -> its queue and index entries. Live appends, recovery and replicas all use these functions, so they cannot disagree.

Upstream's rules: the tag hash is Java's String.hashCode of TAGS, sign-extended; a message is indexed under UNIQ_KEY and
under each word of KEYS; prepared and rolled-back transactional messages get no queue entry, rolled-back ones no index entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from roquet.message import Property
from roquet.wire.hashing import java_hash
from roquet.wire.names import SCHEDULE_TOPIC, TIMER_TOPIC

TRANSACTION_MASK = 0xC
PREPARED = 0x4
ROLLBACK = 0xC

KEYS_MAX = 2_048
"""Words of KEYS indexed per message; a bound for hostile senders, above any real use. A message of traces from Java has hundreds: ids and
keys of all messages that it tells of (`wire/trace.py`)."""

TAGS_MARK, KEYS_MARK, UNIQUE_KEY_MARK = (name + "\x01" for name in (Property.TAGS, Property.KEYS, Property.UNIQUE_KEY))
"""How these properties begin in a text."""
TAGS_BYTES, KEYS_BYTES, UNIQUE_KEY_BYTES = TAGS_MARK.encode(), KEYS_MARK.encode(), UNIQUE_KEY_MARK.encode()
TAKES_BACK = (Property.TIMER_CANCELLED_KEY + "\x01", Property.TIMER_ROLL_TIMES + "\x01")


@lru_cache(maxsize=10_000)
def tag_hash(tag: str) -> int:
    """0 without a tag. Cached, because a topic has few tags and many messages."""
    return java_hash(tag)


def property_of(properties: str, name: str) -> str:
    """One value out of a properties text, "" when absent. Cheaper than splitting all of it, which the hot path need not.

    A name that stands twice (batches repeat some) has its last value, as in Java's map.
    """
    mark = name + "\x01"
    start = properties.rfind(mark)
    if start > 0 and properties[start - 1] != "\x02":  # the end of a longer name: look properly
        start = properties.rfind("\x02" + mark) + 1
        if not start and not properties.startswith(mark):
            return ""
    elif start < 0:
        return ""
    start += len(mark)
    stop = properties.find("\x02", start)
    return properties[start:] if stop < 0 else properties[start:stop]


def delay_level(text: str, levels: int) -> int:
    """The value of a DELAY property: 0 for none and for what is no number, the last level for one above it."""
    if not text.isascii() or not text.isdigit():
        return 0
    digits = text.lstrip("0")
    return min(int(digits or "0"), levels) if len(digits) < 10 else levels


def queue_tag(topic: str, properties: str, store_ms: int, delays_ms: Sequence[int]) -> int:
    """The third number of a queue entry. Of the schedule topic it is the time of delivery, in place of a tag hash, and so it
    is of the timer topic."""
    if topic == SCHEDULE_TOPIC:
        level = delay_level(property_of(properties, Property.DELAY), len(delays_ms))
        if level > 0:
            return store_ms + delays_ms[level - 1]
    elif topic == TIMER_TOPIC:
        return timer_tag(properties)
    return tag_hash(property_of(properties, Property.TAGS)) if TAGS_MARK in properties else 0


def timer_tag(properties: str) -> int:
    """When a timed message is due; negative for a record that also takes an earlier one back (`broker/timers.py`)."""
    due = property_of(properties, Property.TIMER_OUT_MS)
    if not due.isascii() or not due.isdigit() or len(due) > 15:
        return 0
    return -int(due) if any(mark in properties for mark in TAKES_BACK) else int(due)


def index_keys(properties: str) -> list[str]:
    """The keys in upstream's order: the unique key first."""
    unique = property_of(properties, Property.UNIQUE_KEY)
    keys = [unique] if unique else []
    if KEYS_MARK in properties:
        keys += [word for word in property_of(properties, Property.KEYS).split(" ") if word][:KEYS_MAX]
    return keys


def is_queued(sys_flag: int) -> bool:
    return sys_flag & TRANSACTION_MASK not in (PREPARED, ROLLBACK)


def is_indexed(sys_flag: int) -> bool:
    return sys_flag & TRANSACTION_MASK != ROLLBACK
