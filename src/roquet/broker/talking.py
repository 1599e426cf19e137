"""A talk (`routing/talks.py`) over the broker's own connections."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from roquet.errors import RoquetError
from roquet.ports import Caller
from roquet.routing.talks import Talk
from roquet.wire.command import Command

T = TypeVar("T")


def hold(caller: Caller, talk: Talk[T], timeout_ms: int, done: Callable[[T | RoquetError], None]) -> None:
    """Go on with it, answer by answer. `done` gets what it returns, or the error that ended it."""
    _go_on(caller, talk, timeout_ms, done, None)


def _go_on(
    caller: Caller, talk: Talk[T], timeout_ms: int, done: Callable[[T | RoquetError], None], answer: Command | RoquetError | None
) -> None:
    try:
        asked = talk.throw(answer) if isinstance(answer, RoquetError) else next(talk) if answer is None else talk.send(answer)
    except StopIteration as stop:
        done(stop.value)
    except RoquetError as error:
        done(error)
    else:
        caller.call(*asked, timeout_ms, partial(_go_on, caller, talk, timeout_ms, done))
