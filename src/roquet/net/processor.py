"""What the system knows about this thread and its processor."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from roquet.system import pread


class ProcessorTime:
    """How long this thread was ready to run and had no processor: Linux counts that. Elsewhere it never waits."""

    def __init__(self, path: str = "/proc/thread-self/schedstat", clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY)
        self._clock_ns = clock_ns
        self._waited = 0
        self._waited, self._then = self._read(), clock_ns()

    def awaited(self) -> float:
        """Share of the time since the last call."""
        waited, now = self._read(), self._clock_ns()
        share = (waited - self._waited) / max(1, now - self._then)
        self._waited, self._then = waited, now
        return share

    def _read(self) -> int:
        if self._file < 0:
            return self._waited
        try:
            return int(pread(self._file, 128, 0).split()[1])  # time on a processor, time without, both in ns, and turns
        except (OSError, ValueError, IndexError):  # a system that says something else: nothing is known, and nothing must fail
            self.close()
            return self._waited

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
