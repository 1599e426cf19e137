"""When a delivery that met a running one comes again."""

from __future__ import annotations

from bisect import bisect_left

from roquet.client.core.ordered import SUSPEND_MAX_MS, SUSPEND_MIN_MS, SUSPEND_MS
from roquet.client.core.send_back import FIRST_DELAY_LEVEL

LEVELS_MS = [1_000 * s for s in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)]
"""As brokers have them unless their messageDelayLevel says otherwise."""


def level_after(left_ms: int, times: int) -> int:
    """The first level that is over after the lease, and never an earlier one than that of a failure: a handler that renews its lease for
    hours does not make dead letters of its duplicates."""
    level = bisect_left(LEVELS_MS, left_ms) + 1
    return min(max(level, FIRST_DELAY_LEVEL + times), len(LEVELS_MS))


def suspend_ms(left_ms: int) -> int:
    """For how long an orderly queue waits."""
    return min(max(left_ms or SUSPEND_MS, SUSPEND_MIN_MS), SUSPEND_MAX_MS)
