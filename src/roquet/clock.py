"""The machine's clock; the one in `roquet.testing` is turned by hand."""

from __future__ import annotations

import time

from roquet.speedups import native


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class SystemClock:
    """Asked several times a read: compiled where it is."""

    now_ms = staticmethod(now_ms if native is None else native.now_ms)
    steady_ms = staticmethod(steady_ms if native is None else native.steady_ms)
