"""What somebody asks servers, one request after the other, written down in order.

A talk is a generator: it yields a request, goes on with its answer, and returns what came of it. A call that fails is raised in it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from roquet.errors import Refused, RoquetError
from roquet.wire.calls.call import Answer, Answered, AnswerHeader, Asked, Call, Header
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command

T = TypeVar("T")
Talk = Generator[tuple[str, Command], Command, T]
"""Yields (address, request), is sent the answer, whatever its code."""
SUCCESS = (ResponseCode.SUCCESS,)


def ask(
    address: str,
    call: Call[Header, Asked, AnswerHeader, Answered],
    header: Header | None = None,
    body: Asked | bytes = b"",
    *,
    accept: Sequence[int] = SUCCESS,
) -> Talk[Answer[AnswerHeader, Answered]]:
    """One request. Raises Refused, with who refused it, for an answer whose code is not in `accept`."""
    answer: Command = yield address, call.request(header, body)
    if answer.code not in accept:
        raise Refused(answer.code, f"{address} answers code {answer.code}: {answer.remark}")
    return call.answer(answer)


def ask_first(
    addresses: Sequence[str],
    call: Call[Header, Any, AnswerHeader, Answered],
    header: Header | None = None,
    *,
    accept: Sequence[int] = SUCCESS,
) -> Talk[Answer[AnswerHeader, Answered]]:
    """The first of these that answers: name servers all know the same. Raises what the last one said when none does."""
    trouble: RoquetError = RoquetError("no name server is known: set namesrvAddr")
    for address in addresses:
        try:
            return (yield from ask(address, call, header, accept=accept))
        except RoquetError as error:
            trouble = error
    raise trouble
