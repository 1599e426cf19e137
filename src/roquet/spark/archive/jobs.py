"""The same work done here or by Spark's tasks: a function, a list of what it is given, and the answers in that order.

Only what a task is given and answers goes through the JVM: ranges there, facts about files back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from roquet.errors import ClientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Runner(Protocol):
    width: int
    """How many tasks run at the same time."""

    def __call__(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]: ...


class TaskFailed(ClientError):
    """A task failed as often as Spark tries it. The text is what the task said."""


def cause(text: str) -> str:
    """What a Python task raised, out of all that Spark says about it: the line after the traceback."""
    _, traceback, tail = text.rpartition("Traceback (most recent call last):")
    for line in tail.splitlines() if traceback else ():
        found = re.match(r"(?:[\w.]+\.)?(\w+): (.+)", line)
        if found:
            return f"a task failed: {found[2]} ({found[1]})"
    return f"a task failed: {text.strip().splitlines()[0] if text.strip() else 'Spark does not say why'}"


class Here:
    """In this process, one after the other: for tests, and where starting Spark is not worth it."""

    width = 1

    def __call__(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return [work(task) for task in tasks]


class OnSpark:
    """One Spark task each. As an RDD: mapInArrow would do as well, but it needs pandas, which nothing else here does."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.width = self._context.defaultParallelism

    def __call__(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        if not tasks:
            return []
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            return self._context.parallelize(list(tasks), len(tasks)).map(work).collect()
        except (Py4JJavaError, PySparkException) as error:
            raise TaskFailed(cause(str(error))) from error
