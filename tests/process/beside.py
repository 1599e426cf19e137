"""Scenarios that mostly wait, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Key = TypeVar("Key")


@contextmanager
def beside(scenario: Callable[[Key], None], keys: Iterable[Key]) -> Iterator[dict[Key, Future[None]]]:
    """Begins the scenario for every key at once, each in a thread of its own, with servers and directories of its own. A test takes
    the outcome of its key with `result()`, which raises what went wrong there."""
    each = list(keys)
    with ThreadPoolExecutor(len(each)) as pool:
        yield {key: pool.submit(scenario, key) for key in each}
