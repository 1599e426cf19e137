"""The properties of many records at once: `name 0x01 value 0x02 name 0x01 value`, with or without a 0x02 at the end.

The same rules as `wire.record.decode_properties`, without a loop over rows: entries without a name or a value do not count,
of two with one name the later does, bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roquet.spark.columns import MAP
from roquet.spark.slices import Bytes, Places, at_every_byte, bytes_of, gather, offsets_of

NAME_END, ENTRY_END = 1, 2
WORD = 8
MASKS = np.array([(1 << 8 * size) - 1 for size in range(WORD)] + [2**64 - 1], np.uint64)
"""Of a word loaded little-endian, its first so many bytes."""
ALIKE_MIN, ALIKE_BYTES = 16, 1_024
"""Rows that are worth a look whether all are alike, and bytes of the properties of one: beyond, names are looked for as ever."""
SIDE_BY_SIDE = 32
"""Rows that are looked at as one."""
FEW = 16
"""Up to so many properties a message, each is compared with each to find repeated names; beyond, they are sorted."""


class Properties:
    """Of one batch. `text` holds all of it, each row after a separator of its own."""

    def __init__(self, data: pa.Buffer, starts: Places, stops: Places) -> None:
        """The places of the properties. Before each stands a byte that is not theirs (their length), which is taken along and made a
        separator: then every entry begins behind one, the first of a row too."""
        self.count = len(starts)
        taken = gather(data, starts - 1, stops, pa.binary())
        self.row_at = offsets_of(taken)
        size = int(self.row_at[-1]) if self.count else 0
        self.size = size
        self.text: Bytes = bytes_of(taken)[:size]
        if not self.text.flags.writeable:
            self.text = self.text.copy()
        self.text[self.row_at[:-1]] = ENTRY_END
        if size and self.text.max() > 127:
            self._mend()

    def _mend(self) -> None:
        """Make it UTF-8, as Arrow's strings must be. Rows that are not are rare, so they may take their time."""
        whole = pa.Array.from_buffers(pa.string(), self.count, [None, pa.py_buffer(self.row_at), pa.py_buffer(self.text)])
        try:
            whole.validate(full=True)
        except pa.ArrowInvalid:
            rows = [raw.decode("utf-8", "replace") for raw in whole.view(pa.binary()).to_pylist()]
            mended = pa.array(rows, pa.string())
            self.row_at = offsets_of(mended)
            self.size = int(self.row_at[-1])
            self.text = bytes_of(mended)[: self.size]

    @cached_property
    def starts(self) -> Places:
        """Where each entry begins, empty ones included."""
        return np.flatnonzero(self.text == ENTRY_END) + 1

    @cached_property
    def stops(self) -> Places:
        return np.append(self.starts[1:] - 1, self.size)

    @cached_property
    def rows(self) -> Places:
        """The row that each entry belongs to."""
        firsts = np.searchsorted(self.starts, self.row_at[:-1] + 1)
        return np.repeat(np.arange(self.count), np.diff(firsts, append=len(self.starts)))

    @cached_property
    def words(self) -> npt.NDArray[np.uint64]:
        """The word that begins at each byte; behind the last one there are zeros."""
        return at_every_byte(np.concatenate([self.text, np.zeros(WORD, np.uint8)]), "<u8")

    @cached_property
    def first_words(self) -> npt.NDArray[np.uint64]:
        return self.words[self.starts]

    @cached_property
    def alike(self) -> dict[bytes, tuple[int, int]] | None:
        """Where in a row each value stands, when that is the same in all rows; None when it is not.

        What one producer sends looks so: the same names in the same order, and values of the same lengths. Then a value of all rows
        is a slice of a table of bytes, and nobody has to look for it.
        """
        if self.count < ALIKE_MIN or not self.size or self.size % self.count:
            return None
        width = self.size // self.count
        if width > ALIKE_BYTES or bool((np.diff(self.row_at) != width).any()):
            return None
        table = self.text.reshape(self.count, width)
        first, low = table[0].tobytes(), of_columns(np.minimum, table)
        same = low == of_columns(np.maximum, table)  # of each place in a row: all have one byte there
        marks = table[0] <= ENTRY_END
        if not same[marks].all() or (low[~marks] <= ENTRY_END).any():
            return None  # a separator stands elsewhere in some row
        found: dict[bytes, tuple[int, int]] = {}
        for start, stop in itertools.pairwise([*(at for at in np.flatnonzero(marks).tolist() if first[at] == ENTRY_END), width]):
            end = first.find(NAME_END, start, stop)
            if not same[start : stop if end < 0 else end + 1].all():  # the name; all of an entry that has none
                return None
            if start + 1 < end < stop - 1:
                found[first[start + 1 : end]] = (end + 1, stop)
        return found

    def _value_of_alike(self, place: tuple[int, int]) -> Any:
        start, stop = place
        width = stop - start
        places = np.arange(0, (self.count + 1) * width, width, dtype=np.int32)
        data = np.ndarray((self.count,), f"V{width}", self.text, start, (self.size // self.count,)).copy()  # in pieces, not byte by byte
        return pa.Array.from_buffers(pa.string(), self.count, [None, pa.py_buffer(places), pa.py_buffer(data)])

    def value(self, name: str) -> Any:
        """A string array: the value that each row has under this name, null without."""
        if self.alike is not None:
            place = self.alike.get(name.encode())
            return pa.nulls(self.count, pa.string()) if place is None else self._value_of_alike(place)
        mark = name.encode() + bytes((NAME_END,))
        matches = (self.first_words & MASKS[min(len(mark), WORD)]) == word_of(mark[:WORD])
        found = np.flatnonzero(matches & (self.stops - self.starts > len(mark)))
        for at in range(WORD, len(mark), WORD):
            piece = mark[at : at + WORD]
            found = found[(self.words[self.starts[found] + at] & MASKS[len(piece)]) == word_of(piece)]
        if not len(found):
            return pa.nulls(self.count, pa.string())
        rows = self.rows[found]
        values = gather(pa.py_buffer(self.text), self.starts[found] + len(mark), self.stops[found], pa.string())
        if len(found) == self.count and (rows[1:] > rows[:-1]).all():
            return values
        which = np.full(self.count, -1, np.int64)
        which[rows] = np.arange(len(found))  # of several in one row the last stays
        return values.take(pa.array(which, mask=which < 0))

    def map(self) -> Any:
        """All of them, a map for each row."""
        starts, stops, ends = self.starts, self.stops, self._name_ends()
        counts = (ends > starts) & (ends + 1 < stops)
        self._drop_repeated(counts, ends)
        rows = self.rows
        if not counts.all():
            starts, stops, ends, rows = starts[counts], stops[counts], ends[counts], rows[counts]
        text = pa.py_buffer(self.text)
        row_at = np.zeros(self.count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=self.count), out=row_at[1:])
        names, values = gather(text, starts, ends, pa.string()), gather(text, ends + 1, stops, pa.string())
        return pa.MapArray.from_arrays(pa.array(row_at), names, values, MAP)

    def _name_ends(self) -> Places:
        """Where each entry's name ends; its own end for one that has no value."""
        marks = np.flatnonzero(self.text == NAME_END)
        starts, stops = self.starts, self.stops
        if len(marks) == len(starts) and (marks >= starts).all() and (marks < stops).all():
            return marks
        if not len(marks):
            return stops
        next_one = np.searchsorted(marks, starts)
        found = marks[np.minimum(next_one, len(marks) - 1)]
        return np.where((next_one < len(marks)) & (found < stops), found, stops)

    # Names that stand twice in one row: a map must not hold them twice.

    def _fingerprints(self, ends: Places) -> npt.NDArray[np.uint64]:
        """Equal for equal names, and seldom for others."""
        sizes = ends - self.starts
        prints: npt.NDArray[np.uint64] = self.first_words & MASKS[np.minimum(sizes, WORD)]
        long = np.flatnonzero(sizes > WORD)
        if len(long):
            prints[long] ^= self.words[ends[long] - WORD] * np.uint64(0x9E3779B97F4A7C15)
        prints ^= sizes.astype(np.uint64) << np.uint64(56)
        return prints

    def _drop_repeated(self, counts: npt.NDArray[np.bool_], ends: Places) -> None:
        """Of a name that stands twice in one row only the last counts."""
        rows, prints = self.rows, self._fingerprints(ends)
        most = int(np.bincount(rows).max()) if len(rows) else 0
        if most > FEW:
            order = np.lexsort((prints, rows))
            alike = (prints[order][1:] == prints[order][:-1]) & (rows[order][1:] == rows[order][:-1])
            self._drop_slowly(counts, ends, set(rows[order][1:][alike].tolist()))
            return
        for lag in range(1, most):
            pairs = np.flatnonzero((prints[lag:] == prints[:-lag]) & (rows[lag:] == rows[:-lag]) & counts[lag:] & counts[:-lag])
            if len(pairs):
                names = gather(pa.py_buffer(self.text), self.starts, ends, pa.string())
                same = pc.equal(names.take(pa.array(pairs)), names.take(pa.array(pairs + lag)))
                counts[pairs[same.to_numpy(zero_copy_only=False)]] = False

    def _drop_slowly(self, counts: npt.NDArray[np.bool_], ends: Places, rows: set[int]) -> None:
        seen: set[tuple[int, bytes]] = set()
        for index in np.flatnonzero(counts & np.isin(self.rows, list(rows)))[::-1].tolist():
            key = (int(self.rows[index]), self.text[self.starts[index] : ends[index]].tobytes())
            if key in seen:
                counts[index] = False
            seen.add(key)


def of_columns(reduced: np.ufunc, table: Bytes) -> Bytes:
    """The least or greatest byte of each column. Numpy begins anew at every row, which costs more than the row: so many are one."""
    rows, width = table.shape
    whole = rows // SIDE_BY_SIDE
    parts = [table[whole * SIDE_BY_SIDE :]]
    if whole:
        wide = table[: whole * SIDE_BY_SIDE].reshape(whole, SIDE_BY_SIDE * width)
        parts.append(reduced.reduce(wide, axis=0).reshape(SIDE_BY_SIDE, width))
    found: Bytes = reduced.reduce(np.concatenate(parts), axis=0)
    return found


def word_of(raw: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(raw, "little"))
