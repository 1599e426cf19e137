"""Searching a queue by store time.

Store times are the wall clock's. They rise along the log, but where the clock was set back they begin anew; such places are
known by their log offsets. Between two of them times rise, so each stretch can be searched by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def first_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number from `low` on for which it holds, as it then does for all behind it; `high` when it holds for none before."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def first_from(
    first: int, end: int, time_ms: int, set_backs: Iterable[int], place_of: Callable[[int], int], stored_ms: Callable[[int], int]
) -> int:
    """The first queue offset stored at or after this time, `end` when all are older. Nothing before it was stored at or after it.

    `place_of` and `stored_ms` tell log offset and store time of a queue offset, -1 when it is gone.
    """
    low = first
    for place in set_backs:
        stop = first_true(low, end, lambda offset, place=place: place_of(offset) >= place)  # type: ignore[misc]
        low = first_true(low, stop, lambda offset: stored_ms(offset) >= time_ms)
        if low < stop:
            return low
    return first_true(low, end, lambda offset: stored_ms(offset) >= time_ms)
