"""Java's String.hashCode: the tag code of queue entries and the key hash of the index.

h = c0 * 31^(n-1) + c1 * 31^(n-2) + ... + c(n-1) over UTF-16 code units, in 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def java_hash(text: str) -> int:
    """Signed 32-bit String.hashCode. For many texts at once `java_hashes` is about ten times cheaper a text."""
    hashed = 0
    if text.isascii():
        for unit in text.encode():
            hashed = (hashed * 31 + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            hashed = (hashed * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return hashed - 0x100000000 if hashed & 0x80000000 else hashed


POWERS = np.cumprod([1] + [31] * 0xFFFF, dtype=np.uint32)
"""31^n; it wraps at 32 bits, as Java's int does."""


def java_hashes(texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """java_hash of each text, in order."""
    count = len(texts)
    if not count:
        return np.empty(0, dtype=np.int32)
    joined = "".join(texts)
    if joined.isascii():
        units = np.frombuffer(joined.encode(), dtype=np.uint8).astype(np.uint32)
        sizes = np.fromiter(map(len, texts), dtype=np.int64, count=count)
    else:
        # Texts apart: joined, two lone surrogates could merge into one pair, which has the same units but the length differs.
        encoded = [text.encode("utf-16-be", "surrogatepass") for text in texts]
        units = np.frombuffer(b"".join(encoded), dtype=">u2").astype(np.uint32)
        sizes = np.fromiter((len(one) // 2 for one in encoded), dtype=np.int64, count=count)
    if not len(units):
        return np.zeros(count, dtype=np.int32)
    if sizes.max() > len(POWERS):
        return np.array([java_hash(text) for text in texts], dtype=np.int32)
    ends = np.cumsum(sizes)
    # A unit's power is its distance from the end of its own text.
    distance = np.repeat(ends, sizes) - 1 - np.arange(len(units))
    products = units * POWERS[distance]
    filled = sizes > 0  # reduceat gives the element itself for an empty run
    hashes = np.zeros(count, dtype=np.uint32)
    hashes[filled] = np.add.reduceat(products, (ends - sizes)[filled], dtype=np.uint32)
    return hashes.view(np.int32)
