"""The same work on many items, on all cores of a cluster, with progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress = Callable[[int], None]
"""Called from another thread with the items that were done since the last time."""

LOOK_S = 0.1
TASKS_MAX = 4_096


def silent(done: int) -> None:
    """Nobody watches."""


def each(
    spark: SparkSession | None, items: Sequence[Item], work: Callable[[Item], Result], progress: Progress = silent, *, small: bool = False
) -> list[Result]:
    """Results in the order of the items; a task each, or a few a task where the items are `small` or very many. Without Spark, one after
    the other in this process, which for a small store is faster."""
    if not items:
        return []
    if spark is None:
        here = []
        for item in items:
            here.append(work(item))
            progress(1)
        return here
    context = spark.sparkContext
    tasks = min(len(items), 4 * context.defaultParallelism if small else TASKS_MAX)
    finished = context.accumulator(0)

    def counted(item: Item) -> Result:
        result = work(item)
        finished.add(1)
        return result

    over = threading.Event()

    def watch() -> None:
        shown = 0
        while True:
            last = over.wait(LOOK_S)
            now = finished.value
            progress(now - shown)
            shown = now
            if last:
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return context.parallelize(items, tasks).map(counted).collect()
    finally:
        over.set()
        watcher.join()
