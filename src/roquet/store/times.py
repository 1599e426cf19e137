"""Searching a queue by store time.

Store times are the wall clock's. They rise along the log, but where the clock was set back they begin anew; such places are
known by their log offsets. Between two of them times rise, so each stretch can be searched by halves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


def first_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number from `low` on for which it holds, as it then does for all behind it; `high` when it holds for none before."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class Times:
    """The messages of a queue from offset `first` to before `end`. The functions tell log offset and store time of a queue offset,
    -1 when it is gone; what they raise goes through."""

    first: int
    end: int
    set_backs: Sequence[int]
    place_of: Callable[[int], int]
    stored_ms: Callable[[int], int]

    def first_from(self, time_ms: int) -> int:
        """The first one stored at or after this time, `end` when all are older. Nothing before it was stored at or after it."""
        for start, stop in self._stretches():
            found = start + bisect_left(range(start, stop), time_ms, key=self.stored_ms)
            if found < stop:
                return found
        return self.end

    def last_until(self, time_ms: int) -> int:
        """The last one stored at or before this time, `first` - 1 when all are younger. Nothing behind it was stored until then."""
        for start, stop in reversed(list(self._stretches())):
            found = start + bisect_right(range(start, stop), time_ms, key=self.stored_ms)
            if found > start:
                return found - 1
        return self.first - 1

    def _stretches(self) -> Iterator[tuple[int, int]]:
        start = self.first
        for place in self.set_backs:
            stop = start + bisect_left(range(start, self.end), place, key=self.place_of)
            yield start, stop
            start = stop
        yield start, self.end
