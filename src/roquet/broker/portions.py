"""Work that takes long, done in portions between which everybody else gets a turn."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import ParamSpec, TypeVar

from roquet.store.disk import Cold

P = ParamSpec("P")
T = TypeVar("T")

Work = Generator[Cold | None, None, T]
"""Yields None after every small piece of it, or a Cold, and goes on when that was fetched."""


def unhurried(read: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Work[T]:
    """Read; what is not in memory is waited for while others work."""
    while True:
        try:
            return read(*arguments, **named)
        except Cold as cold:
            yield cold


def finish(work: Work[T]) -> T:
    """Do all of it now, and wait for the disk right here."""
    try:
        while True:
            cold = next(work)
            if cold is not None:
                cold.fetch()
    except StopIteration as stop:
        result: T = stop.value
        return result
