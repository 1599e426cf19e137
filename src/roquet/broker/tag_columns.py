"""Tag filters over many queue entries at once: columns, not messages."""

from __future__ import annotations

from roquet.wire.arrays import np
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import ENTRY, RECORD_MIN

WORDS = ENTRY.size // 4
"""Of four bytes; the last of an entry is the part of its tag hash that Java looks at."""
FEW = 8
"""Tags that are looked for one by one: that costs less than a search in all of them."""


def tagged(raw: bytes, codes: bytes, start: int, end: int, record_max: int) -> tuple[list[int], list[int], list[int]] | None:
    """(log offset, size, number among these) of the entries with one of these tag hashes, which are four bytes each as entries end with
    them. None: one of all entries is not as it should be.

    `start`, `end`: of the log."""
    entries = np.frombuffer(raw, ENTRIES)
    places, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int32)
    if not len(raw) or places[0] < start or places[-1] > end or sizes.min() < RECORD_MIN or sizes.max() > record_max:
        return None
    if (places[1:] - sizes[:-1] < places[:-1]).any():  # they overlap, or do not rise
        return None
    hashes = np.frombuffer(raw, ">i4")[WORDS - 1 :: WORDS]
    wanted = np.frombuffer(codes, ">i4").tolist()
    if not wanted:
        return [], [], []
    if len(wanted) <= FEW:
        keep = hashes == wanted[0]
        for code in wanted[1:]:
            keep |= hashes == code
    else:
        keep = np.isin(hashes, wanted)
    chosen = np.flatnonzero(keep)
    return places[chosen].tolist(), sizes[chosen].tolist(), chosen.tolist()
