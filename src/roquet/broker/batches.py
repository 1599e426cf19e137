"""The messages of batches, ready to store: one after another, or those of many requests at once, as columns. Both give the same bytes.

Upstream stores each message's properties as they came, and adds those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from roquet.broker.send_properties import WAITS, may_ask_for_more
from roquet.errors import Refused
from roquet.message import Property
from roquet.store.alike import Alike
from roquet.store.batch import Batch, Portion
from roquet.store.fanout import (
    KEYS_BYTES,
    KEYS_MARK,
    TAGS_BYTES,
    TAGS_MARK,
    UNIQUE_KEY_BYTES,
    UNIQUE_KEY_MARK,
    index_keys,
    property_of,
    tag_hash,
)
from roquet.store.queue import ConsumeQueue
from roquet.store.staging import BatchedMessage
from roquet.store.texts import Texts
from roquet.wire.arrays import np
from roquet.wire.batch import InnerMessage
from roquet.wire.codes import ResponseCode
from roquet.wire.columns import batch_columns
from roquet.wire.layout import PROPERTIES_MAX

TAGS = Property.TAGS
SEPARATOR = 2

MANY = 48
"""Messages from which on columns cost less than one message after another."""
ALIKE = 8
"""The same of messages that are alike."""


class BatchSend(NamedTuple):
    """A request with a batch, checked but for what is in its body."""

    form: int
    opaque: int
    queue: ConsumeQueue
    suffix: str
    body: bytes
    sys_flag: int
    born_ms: int


class Suffixes:
    """What the properties of a whole batch add to those of each of its messages."""

    def __init__(self, added: str) -> None:
        self.added = added
        self._usual = f"\x02{WAITS}\x02{added}"

    def of(self, header_properties: str) -> str:
        if header_properties == WAITS:  # from 4.x, always
            return self._usual
        return "\x02" + "\x02".join([item for item in header_properties.split("\x02") if "\x01" in item] + [self.added])


def go_together(one: BatchSend, other: BatchSend) -> bool:
    """May their messages be columns together? They may go to different queues of one topic."""
    if one.queue.topic != other.queue.topic:
        return False
    return one.suffix == other.suffix or without_unique_key(one.suffix) == without_unique_key(other.suffix)


def are_many(sends: Sequence[BatchSend]) -> bool:
    """By the size of the first message of each; any answer is right."""
    return sum([len(send.body) // (int.from_bytes(send.body[:4], "big") or 1) for send in sends]) >= MANY


def columns_of(sends: Sequence[BatchSend]) -> tuple[list[Portion], Batch | Alike] | None:
    """What `messages_of` does, for the messages of all these, which go together. None: they are few, or something about one is unusual, so
    look at each."""
    suffix = sends[0].suffix
    if TAGS_MARK in suffix or KEYS_MARK in suffix:
        return None
    raw = b"".join([send.body for send in sends])
    alike = _alike_of(sends, raw)
    if alike is not None or not are_many(sends):
        return alike
    columns = batch_columns(raw)
    if columns is None:
        return None
    ends = list(accumulate([len(send.body) for send in sends]))
    stops = np.searchsorted(columns.starts, ends).tolist()
    counts = [stop - start for start, stop in zip([0, *stops], stops, strict=False)]
    if not all(counts) or (columns.starts[stops[:-1]] != ends[:-1]).any():
        return None  # one says that it is longer than it is: together they would look sound
    texts = Texts.of(columns.properties)
    if not texts.sound or may_ask_for_more(texts.raw):
        return None
    if any(property_of(send.suffix, Property.UNIQUE_KEY) for send in sends):  # of the whole batch, from 5.x: each message keeps its own
        whose, begins, finals = texts.values(Property.UNIQUE_KEY)
        if len(whose) < len(texts) or not (finals > begins).all():
            return None
        suffix = without_unique_key(suffix)
    if int(columns.property_sizes.max()) > PROPERTIES_MAX - max(len(send.suffix.encode()) for send in sends):
        return None
    bare = (columns.property_sizes == 0) | (texts.last_bytes() == SEPARATOR)
    if bare.any():
        if not bare.all():
            return None
        suffix = suffix[1:]
    portions = [Portion(send.queue, count, send.sys_flag, send.born_ms) for send, count in zip(sends, counts, strict=True)]
    return portions, Batch.of(columns, texts, suffix.encode())


def _alike_of(sends: Sequence[BatchSend], raw: bytes) -> tuple[list[Portion], Alike] | None:
    """The same where all of them, one behind the other, differ in nothing but bodies and unique keys. None: they differ, or are few."""
    size = int.from_bytes(raw[:4], "big")
    if len(raw) < ALIKE * size or not size or any(len(send.body) % size or not send.body for send in sends):
        return None
    alike = Alike.of(raw)
    if alike is None:
        return None
    text, suffix = alike.text, sends[0].suffix
    if may_ask_for_more(text) or len(text) > PROPERTIES_MAX - max([len(send.suffix.encode()) for send in sends]):
        return None
    if any(property_of(send.suffix, Property.UNIQUE_KEY) for send in sends):
        suffix = without_unique_key(suffix)
    alike.suffix = suffix.encode()[text[-1] == SEPARATOR :]
    return [Portion(send.queue, len(send.body) // size, send.sys_flag, send.born_ms) for send in sends], alike


def messages_of(parts: list[InnerMessage], suffix: str) -> list[BatchedMessage]:
    """The messages of a batch, checked and ready to store. Raises Refused, and then none is stored.

    A name that stands in a message and in `suffix` has the latter's value, as in Java's map; but a message keeps its own
    unique key (5.x gives the whole batch one too): as 5.x brokers do, and else who drops repeated ids would lose messages.
    """
    messages: list[BatchedMessage] = []
    # Looked for once in the whole, not in every message: most batches have neither.
    every = b"\x02".join([properties for _, _, properties in parts])
    tagged, keyed = TAGS_BYTES in every, KEYS_BYTES in every
    unique, odd = property_of(suffix, Property.UNIQUE_KEY), TAGS_MARK in suffix or KEYS_MARK in suffix
    added = suffix.encode()
    keyless = without_unique_key(suffix) if unique and UNIQUE_KEY_BYTES in every else ""
    for flag, one, raw in parts:
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"properties in the batch are not UTF-8: {error}") from None
        more = keyless if keyless and property_of(text, Property.UNIQUE_KEY) else suffix
        tail = added if more is suffix else more.encode()
        properties = raw + tail if raw and raw[-1] != 2 else raw + tail[1:]
        keys: Iterable[str]
        if odd or more is not suffix or (keyed and unique):
            text += more
            tag, keys = tag_hash(property_of(text, TAGS)), index_keys(text)
        else:
            tag = tag_hash(property_of(text, TAGS)) if tagged else 0
            keys = index_keys(text) if keyed else (unique or property_of(text, Property.UNIQUE_KEY),)
        messages.append((flag, one, properties, tag, keys))
    return messages


def without_unique_key(suffix: str) -> str:
    if UNIQUE_KEY_MARK not in suffix:
        return suffix
    return "".join(["\x02" + item for item in suffix[1:].split("\x02") if not item.startswith(UNIQUE_KEY_MARK)])
