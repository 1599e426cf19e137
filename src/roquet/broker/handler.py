"""What a request handler of the broker is."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar

from roquet.ports import Peer
from roquet.store.disk import Cold
from roquet.wire.calls.call import Answered, AnyCall, Call
from roquet.wire.command import Command

Portions = Generator[Cold | None, None, Command | None]
"""Work that costs in proportion to all topics, queues or groups. It yields after every few milliseconds of it, so that others
get their turn, or yields a Cold and goes on when that was fetched. What it returns is what a handler returns. Whatever it looks
at may have changed when it goes on."""

Handler = Callable[[Peer, Command], Command | Portions | None]
"""Returns the response, or None when the handler answers later through peer.send, or the work in portions.

Raises Refused for an error answer. Lets Cold through when a read is not in memory: the core fetches it in the background
and calls the handler again, so a handler reads first and changes afterwards.
"""


def when_all(count: int, done: Callable[[], None]) -> Callable[[], None]:
    """What it returns is called by each of so many; the last call is passed on."""
    left = count

    def one_more() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done()

    return one_more


def send_answer(peer: Peer, command: Command, reply: Command | None) -> None:
    """Send it, if there is one and somebody who waits for it."""
    if reply is not None and not command.is_oneway and not peer.closed:
        peer.send(reply.encode())


Method = TypeVar("Method", bound=Callable[..., Any])


def answers(*calls: AnyCall) -> Callable[[Method], Method]:
    """Marks the method of a part that is the handler of these calls."""

    def mark(method: Method) -> Method:
        method.answers = calls  # type: ignore[attr-defined]
        return method

    return mark


class Ticking(Protocol):
    """A part that works by time. `now_ms` is steady."""

    def tick(self, now_ms: int) -> None: ...


T = TypeVar("T")
PORTION = 128
"""Queues that are looked at before others may get their turn: some milliseconds when each is in a file of its own."""
LARGE = 128 * 1024
"""Bytes of a body, or some thousand rows of an answer, that are read or written elsewhere and not on the loop."""
LARGE_ROWS = 1_000


def portions(items: Iterable[T], each: Callable[[T], None] = lambda item: None, size: int = PORTION) -> Generator[Cold | None, None, None]:
    """Do this with all of them, some at a time. They may come from a generator that does the work itself."""
    for count, item in enumerate(items, 1):
        each(item)
        if count % size == 0:
            yield None


def elsewhere(work: Callable[[], T]) -> Generator[Cold | None, None, T]:
    """Do this in the background, and go on with its result. It must look at nothing that changes meanwhile."""
    results: list[T] = []
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    yield Cold(attempt)
    if errors:
        error = errors.pop()  # nothing of ours may hold it: it holds our frame, and so what was worked on would stay for good
        try:
            raise error
        finally:
            del error
    return results[0]


def reply_with(call: Call[Any, Any, Any, Answered], command: Command, body: Answered, rows: int, release: Callable[[], None]) -> Portions:
    """The answer; a large one is written elsewhere. `release` lets go of the rows: of a hundred thousand that takes as long as a turn,
    so it is done there too."""

    def write() -> bytes:
        encoded = body.encode()
        release()
        return encoded

    return call.reply(command, body=body if rows < LARGE_ROWS else (yield from elsewhere(write)))
