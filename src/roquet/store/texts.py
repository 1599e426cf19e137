"""Properties of many messages in one text, looked at all at once: `fanout`'s answers, some hundred times cheaper a message.

A property test holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from roquet.message import Property
from roquet.store.fanout import KEYS_BYTES, KEYS_MAX, TAGS_BYTES
from roquet.wire.arrays import np
from roquet.wire.columns import powers
from roquet.wire.hashing import java_hash

if TYPE_CHECKING:
    import numpy.typing as npt

Longs: TypeAlias = "npt.NDArray[np.int64]"
Hashes: TypeAlias = "npt.NDArray[np.uint32]"

SEPARATOR = 2  # between two properties; 1 stands between name and value
PADDING = bytes(16)  # so that a look at the eight bytes from any property on stays inside


class Texts:
    """`raw` is all of them, each ended by a separator, then padding; `starts` is where each begins."""

    def __init__(self, raw: bytes, starts: Longs) -> None:
        self.raw = raw
        self.starts = starts

    @classmethod
    def of(cls, parts: Sequence[bytes | memoryview]) -> Texts:
        sizes = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)) + 1
        return cls(b"\x02".join([*parts, PADDING]), np.cumsum(sizes) - sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> str:
        stop = self.starts[number + 1] if number + 1 < len(self) else len(self.raw) - len(PADDING)
        return self.raw[self.starts[number] : stop - 1].decode()

    @property
    def sound(self) -> bool:
        """All are UTF-8 without a zero. What stands between them belongs to no character, so one look tells it of each."""
        return self.raw.find(b"\0") == len(self.raw) - len(PADDING) and (self.raw.isascii() or is_text(self.raw[: -len(PADDING)]))

    def last_bytes(self) -> npt.NDArray[np.uint8]:
        """Of each; a separator for an empty one that is not the first."""
        found: npt.NDArray[np.uint8] = self._bytes[np.append(self.starts[1:], len(self.raw) - len(PADDING)) - 2]
        return found

    def tags(self) -> Longs:
        """fanout.tag_hash of each."""
        tags: Longs = np.zeros(len(self), dtype=np.int64)
        if TAGS_BYTES in self.raw:
            owners, starts, stops = self.values(Property.TAGS)
            hashes, _ = self.hashes(starts, stops)
            tags[owners] = hashes.view(np.int32)
        return tags

    def keys(self) -> tuple[Longs, Hashes, Longs]:
        """(whose, Java's hash, length in UTF-16 units) of what fanout.index_keys gives for each, in its order."""
        owners, starts, stops = self.values(Property.UNIQUE_KEY)
        if KEYS_BYTES in self.raw:
            uniques = owners
            owners, word_starts, word_stops = self._words(*self.values(Property.KEYS))
            owners = np.concatenate((uniques, owners))
            order = owners.argsort(kind="stable")  # the unique key comes first
            owners = owners[order]
            starts, stops = np.concatenate((starts, word_starts))[order], np.concatenate((stops, word_stops))[order]
        filled = stops > starts
        if not filled.all():
            owners, starts, stops = owners[filled], starts[filled], stops[filled]
        return owners, *self.hashes(starts, stops)

    def values(self, name: str | bytes) -> tuple[Longs, Longs, Longs]:
        """(whose, start, stop) of this property's value, for those that have it; the last one when it stands twice."""
        begins, ends, words = self._properties
        mark = (name.encode() if isinstance(name, str) else name) + b"\x01"
        head = mark[:8]
        here = (words >> np.uint64(64 - 8 * len(head))) == int.from_bytes(head, "big")
        for more in range(8, len(mark)):
            here[here] = self._bytes[begins[here] + more] == mark[more]
        begins, ends = begins[here], ends[here]
        owners = np.searchsorted(self.starts, begins, side="right") - 1
        last = np.append(owners[1:] != owners[:-1], True) if len(owners) else np.empty(0, np.bool_)
        return owners[last], begins[last] + len(mark), ends[last]

    @cached_property
    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.raw, dtype=np.uint8)

    @cached_property
    def _properties(self) -> tuple[Longs, Longs, npt.NDArray[np.uint64]]:
        """(start, stop, first eight bytes as a number) of every property of all."""
        ends = np.flatnonzero(self._bytes == SEPARATOR)
        begins = np.zeros_like(ends)
        begins[1:] = ends[:-1] + 1
        everywhere = np.ndarray((len(self.raw) - 7,), ">u8", buffer=self.raw, strides=(1,))
        return begins, ends, everywhere[begins].astype(np.uint64)

    def _words(self, owners: Longs, starts: Longs, stops: Longs) -> tuple[Longs, Longs, Longs]:
        """The words of these values that are not empty, at most KEYS_MAX of each."""
        if not len(starts) or b" " not in self.raw:
            return owners, starts, stops
        spaces = np.flatnonzero(self._bytes == 0x20)
        inside = np.searchsorted(starts, spaces, side="right") - 1
        spaces = spaces[(inside >= 0) & (spaces < stops[inside])]
        # Values lie apart and in order, so the n-th start and the n-th stop belong together.
        begins, ends = np.sort(np.append(starts, spaces + 1)), np.sort(np.append(stops, spaces))
        filled = ends > begins
        begins, ends = begins[filled], ends[filled]
        owned = owners[np.searchsorted(starts, begins, side="right") - 1]
        rank = np.arange(len(owned)) - np.searchsorted(owned, owned, side="left")
        kept = rank < KEYS_MAX
        return owned[kept], begins[kept], ends[kept]

    def hashes(self, starts: Longs, stops: Longs) -> tuple[Hashes, Longs]:
        """(Java's hash, length in UTF-16 units) of each range of bytes. Ranges of one length make a matrix, hashed in one product."""
        raw, sizes = self.raw, stops - starts
        hashes = np.zeros(len(starts), dtype=np.uint32)
        for size in np.flatnonzero(np.bincount(sizes)).tolist() if len(sizes) else ():
            if size:
                chosen = np.flatnonzero(sizes == size)
                rows = np.ndarray((len(raw) - size + 1,), f"V{size}", buffer=raw, strides=(1,))[starts[chosen]]
                matrix = rows.view(np.uint8).reshape(len(chosen), size).astype(np.uint32)
                hashes[chosen] = matrix @ powers()[:size][::-1]
        if not raw.isascii():
            beyond = np.cumsum(self._bytes >= 0x80)
            for number in np.flatnonzero(beyond[np.maximum(stops - 1, 0)] > np.where(starts > 0, beyond[starts - 1], 0)).tolist():
                word = raw[starts[number] : stops[number]].decode()
                hashes[number] = java_hash(word) & 0xFFFFFFFF
                sizes[number] = len(word.encode("utf-16-le", "surrogatepass")) // 2
        return hashes, sizes


def is_text(raw: bytes) -> bool:
    """UTF-8 without a zero, as properties and topics are."""
    if b"\0" in raw:
        return False
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError:
            return False
    return True
