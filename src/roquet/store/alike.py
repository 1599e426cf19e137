"""Messages of batches that differ in nothing but their bodies and unique keys, as those of most batches: equally long, and with the same
properties else. What `store.batch` does for any, at a fraction of the cost: their records are one record, written as often as there are
messages, into which bodies, keys and numbers are copied, a column at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from roquet.message import Property
from roquet.store.batch import Longs, Portion
from roquet.store.fanout import KEYS_BYTES, UNIQUE_KEY_BYTES, property_of, tag_hash
from roquet.store.texts import SEPARATOR, is_text
from roquet.wire.arrays import np
from roquet.wire.batch import FRONT as BATCH_FRONT
from roquet.wire.batch import MESSAGES_MAX, SMALLEST
from roquet.wire.columns import COLUMNS, ENTRIES
from roquet.wire.layout import ENTRY, FRONT, MAGIC_V1

if TYPE_CHECKING:
    import numpy.typing as npt

    from roquet.store.index import KeyIndex

Bytes: TypeAlias = "npt.NDArray[np.uint8]"

FLAG_AT, BODY_AT = 12, BATCH_FRONT.size
NOT_IN_KEYS = b"\0\1\2"
"""What stands between names, values and properties, or is no text."""


@dataclass(slots=True)
class Alike:
    """Checked and ready to store."""

    raw: bytes
    """All of them, as they came."""
    rows: Bytes
    """The same, a row a message. Places are those in a row."""
    body_size: int
    text: bytes
    """The properties of the first."""
    key_at: int
    keys: bytes
    """The values of all unique keys, equally long, of which the first stands at `key_at`."""
    suffix: bytes = b""
    """What is stored behind the properties of each."""

    @classmethod
    def of(cls, raw: bytes) -> Alike | None:
        """The messages of a batch, without a suffix. None: they are not alike, or not sound, or have KEYS."""
        size, _, _, _, body_size = BATCH_FRONT.unpack_from(raw) if len(raw) >= SMALLEST else (0, 0, 0, 0, 0)
        text_at = SMALLEST + body_size
        if body_size <= 0 or text_at > size or len(raw) % size or len(raw) > size * MESSAGES_MAX:
            return None
        text = raw[text_at:size]
        name_at = text.find(UNIQUE_KEY_BYTES)
        key_at = text_at + name_at + len(UNIQUE_KEY_BYTES)
        key_stop = raw.find(b"\x02", key_at, size)
        if key_stop < 0:
            key_stop = size
        if (
            int.from_bytes(raw[text_at - 2 : text_at], "big", signed=True) != len(text) or name_at < 0 or key_at == key_stop
            or (name_at and text[name_at - 1] != SEPARATOR) or text.count(UNIQUE_KEY_BYTES) > 1 or KEYS_BYTES in text or not is_text(text)
        ):  # fmt: skip
            return None
        rows = np.frombuffer(raw, np.uint8).reshape(-1, size)
        count = len(rows)
        for start, stop in ((0, 4), (FLAG_AT, BODY_AT), (text_at - 2, key_at), (key_stop, size)):
            if rows[:, start:stop].tobytes() != raw[start:stop] * count:
                return None
        keys = rows[:, key_at:key_stop].tobytes()
        if not keys.isascii() or len(keys.translate(None, NOT_IN_KEYS)) < len(keys):
            return None
        return cls(raw, rows, body_size, text, key_at, keys)

    def __len__(self) -> int:
        return len(self.rows)

    def places(self, topic_field: bytes, start: int, lead: int) -> tuple[Longs, Longs]:
        """`Batch.places`."""
        size = FRONT.size + self.body_size + len(topic_field) + 2 + len(self.text) + len(self.suffix)
        step = size + lead
        offsets = np.arange(start + lead, start + step * len(self), step)
        return offsets, offsets + size

    def records(
        self, offsets: Longs, ends: Longs, portions: Sequence[Portion], firsts: Sequence[int],
        born_host: bytes, store_ms: int, store_host: bytes, lead: bytes = b"",
    ) -> bytes:  # fmt: skip
        """`Batch.records`."""
        raw, body_size, text, suffix, count = self.raw, self.body_size, self.text, self.suffix, len(self)
        size, body_at = int(ends[0] - offsets[0]), len(lead) + FRONT.size
        step = len(lead) + size
        flag = int.from_bytes(raw[FLAG_AT : FLAG_AT + 4], "big", signed=True)
        behind = b"%b%b%b%b" % (portions[0].queue.topic_field, (len(text) + len(suffix)).to_bytes(2, "big"), text, suffix)
        made = bytearray()
        for queue, messages, sys_flag, born_ms in portions:
            front = FRONT.pack(
                size, MAGIC_V1, 0, queue.queue_id, flag, 0, 0, sys_flag, born_ms, born_host, store_ms, store_host, 0, 0, body_size
            )  # fmt: skip
            made += b"%b%b%b%b" % (lead, front, raw[BODY_AT : BODY_AT + body_size], behind) * messages
        numbers = [np.arange(first, first + portion.messages) for portion, first in zip(portions, firsts, strict=True)]
        fronts = np.ndarray((count,), COLUMNS[0], made, len(lead), (step,))
        fronts["queue_offset"], fronts["physical_offset"] = np.concatenate(numbers), offsets
        bodies = np.ndarray((count,), f"V{body_size}", raw, BODY_AT, (self.rows.shape[1],))
        fronts["crc"] = np.fromiter(map(crc32, bodies.tolist()), dtype=np.uint32, count=count) & 0x7FFFFFFF
        rows = np.frombuffer(made, np.uint8).reshape(count, step)
        rows[:, body_at : body_at + body_size] = self.rows[:, BODY_AT : BODY_AT + body_size]
        keys = np.frombuffer(self.keys, np.uint8).reshape(count, -1)
        key_at = step - len(suffix) - (self.rows.shape[1] - self.key_at)
        rows[:, key_at : key_at + keys.shape[1]] = keys
        return bytes(made)

    def entries(self, offsets: Longs, ends: Longs) -> bytearray:
        """`Batch.entries`."""
        tag = tag_hash(property_of(self.text.decode(), Property.TAGS))
        entries = bytearray(ENTRY.pack(0, int(ends[0] - offsets[0]), tag) * len(self))
        np.ndarray((len(self),), ENTRIES, entries)["offset"] = offsets
        return entries

    def add_keys(self, index: KeyIndex, topic: str, offsets: Longs, store_ms: int) -> None:
        """`Batch.add_keys`."""
        index.add_alike(topic, self.keys, len(self.keys) // len(self), offsets, store_ms)
