"""Spark's Python workers look for garbage after every task, and what they look through is almost only modules, which stay."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_loaded() -> None:
    """What this process has loaded by now is never looked through again: 20 to 30 ms of CPU a task. Done once, by the first task."""
    gc.freeze()
