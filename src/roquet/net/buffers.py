"""Memory of large frames."""

from __future__ import annotations

import contextlib
import ctypes

KEPT_BYTES = 16 * 1024 * 1024
LARGE_BYTES = 32 * 1024 * 1024
"""Once this much was held at a time, what is free afterwards is given back."""
CALM_S = 5.0
M_ARENA_MAX = -8
"""As the GNU C library numbers it."""


def keep_memory() -> None:
    """Have the C library keep the memory of large requests and answers for the next ones. It gives back what is large, and
    faulting it in again costs a tenth of a large batch and a third of a scan; but once something this large was freed, it takes
    that for usual. Harmless where it does not.

    Threads share the memory of the loop's: with a store of its own each would keep what the largest request took in it."""
    bytearray(KEPT_BYTES)
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


class LargeMemory:
    """Gives memory back when much of it was in use and then, for a while, was not."""

    def __init__(self) -> None:
        self._large_s = 0.0
        self._large = False

    def look(self, held: int, now_s: float) -> None:
        """So many bytes are held now."""
        if held >= LARGE_BYTES:
            self._large, self._large_s = True, now_s
        elif self._large and now_s - self._large_s >= CALM_S:
            self._large = False
            with contextlib.suppress(AttributeError, OSError, TypeError):  # not the GNU library, which returns what is free to the system
                ctypes.CDLL(None).malloc_trim(0)
