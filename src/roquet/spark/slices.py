"""Many slices of one stretch of bytes as one Arrow array: the step that every text and body of a decoded batch goes through."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

WINDOW_MAX = 2**31 - 1
"""Arrow counts the bytes of a binary array with 32 bits."""
HEX = np.array([int.from_bytes(f"{value:02X}".encode(), "little") for value in range(256)], "<u2")
"""The two digits of each byte, as they stand in memory."""


def gather(data: pa.Buffer, starts: Places, stops: Places, kind: pa.DataType) -> Any:
    """data[starts[n] : stops[n]] as an array of binary or string. The places rise and do not overlap: the caller has made sure.

    All the slices and the gaps between them are laid out as one array without a copy, then every second one is taken. Arrow
    copies them in one loop, an order of magnitude faster than Python would.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    sizes = stops - starts
    width = int(sizes[0])
    if width and (sizes == width).all():
        return gather_alike(data, starts, width, kind)
    base = int(starts[0])
    length = int(stops[-1]) - base
    assert length <= WINDOW_MAX, length
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts - base
    offsets[1::2] = stops - base
    all_of_them = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), data.slice(base, length)])
    return all_of_them.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def gather_alike(data: pa.Buffer, starts: Places, width: int, kind: pa.DataType) -> Any:
    """The same for slices of one width: numpy copies them for half of what Arrow needs, which has to guess how much room they take."""
    count = len(starts)
    assert count * width <= WINDOW_MAX, (count, width)
    taken = at_every_byte(np.frombuffer(data, np.uint8), f"V{width}")[starts]
    places = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(places), pa.py_buffer(taken)])


def offsets_of(array: Any) -> npt.NDArray[np.int32]:
    """The offsets of a binary or string array, one more than it has items."""
    found: npt.NDArray[np.int32] = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return found


def bytes_of(array: Any) -> Bytes:
    """Everything that a binary or string array made by `gather` holds, one after another."""
    held = array.buffers()[2]
    return np.frombuffer(held, np.uint8) if held is not None else np.empty(0, np.uint8)


def at_every_byte(data: Bytes, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """A view whose item n is what begins at byte n, aligned or not; it ends where a whole item no longer fits."""
    wanted = np.dtype(kind)
    return np.ndarray((max(0, data.size - wanted.itemsize + 1),), wanted, data, strides=(1,))
