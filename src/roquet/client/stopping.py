"""run() and serve(): members of a program that a signal ends.

SIGINT (Ctrl-C) or SIGTERM   handlers that run may finish, progress is written, the group is left, and run() returns
a second one                 handlers are not waited for; progress is written all the same, and the exit code is 128 + the signal's number
a third one                  the process ends at once
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from roquet.client.served import Served
from roquet.errors import ClientError

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
FORCED = 2
AT_ONCE = 3
STUCK_S = 2.0
"""How long run() waits for handlers that close() has cancelled."""


def run(*members: Served) -> None:
    """Start these, serve until SIGINT or SIGTERM (or until a consumer among them is closed), close them, and return.

    Producers start before consumers and end after them, so handlers may send. Blocks: it makes an event loop of its own. Inside
    one that runs, `await serve(...)`.
    """
    run_on(None, *members)


def run_on(loops: Callable[[], asyncio.AbstractEventLoop] | None, *members: Served) -> None:
    """`run` on an event loop that `loops` makes; None: asyncio's own."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ClientError("run() was called inside a running event loop, where it would block; use `await consumer.serve()` there")
    serving = Serving(members)
    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(serve_to_the_end(serving))
    serving.end_program()
    serving.raise_exit()


async def serve(*members: Served) -> None:
    """`run` for a program that has an event loop: returns after a signal, when all of them are closed."""
    serving = Serving(members)
    await serve_until_signalled(serving)
    serving.raise_exit()


async def serve_to_the_end(serving: Serving) -> None:
    await serve_until_signalled(serving)
    # asyncio.run() waits for every task, and a handler may have caught its own cancellation.
    if calls := set().union(*(member.calls() for member in serving.members)):
        _, stuck = await asyncio.wait(calls, timeout=STUCK_S)
        serving.end_without(len(stuck))


async def serve_until_signalled(serving: Serving) -> None:
    with serving.signals(asyncio.get_running_loop(), wakes=True):
        await serving.serve()


class Serving:
    """What one run() does. `serve` belongs to the members' loop; signals come in the main thread."""

    def __init__(self, members: Sequence[Served]) -> None:
        if not members:
            raise ClientError("there is nothing to run: give run() at least one producer or consumer")
        for member in members:
            if not isinstance(member, Served):
                raise ClientError(
                    f"run() was given {member!r}; it takes producers and consumers of one kind, asyncio's or the blocking ones"
                )
        self.members = sorted(members, key=lambda member: member.stops_first)
        self._asked = asyncio.Event()
        self._count = 0
        self._number = 0
        self._exit: BaseException | None = None

    @contextlib.contextmanager
    def signals(self, loop: asyncio.AbstractEventLoop, *, wakes: bool) -> Iterator[None]:
        """`wakes`: the loop runs in this thread, so a signal must wake it, whichever thread of the process the system gives it to."""

        def told(number: int, _: FrameType | None) -> None:
            self._count, self._number = self._count + 1, number
            if self._count >= AT_ONCE:
                end_now(128 + number)
            loop.call_soon_threadsafe(self._told, number, self._count)

        before: dict[signal.Signals, Any] = {}
        try:
            for number in SIGNALS:
                before[number] = signal.getsignal(number)
                if wakes:
                    with contextlib.suppress(NotImplementedError):  # Windows: its loop looks by itself
                        loop.add_signal_handler(number, nothing)
                signal.signal(number, told)
        except (ValueError, RuntimeError):
            raise ClientError(
                "run() and serve() wait for signals, which only the main thread gets; call them there, or use start() and close() here"
            ) from None
        try:
            yield
        finally:
            for number, handler in before.items():
                if wakes:
                    with contextlib.suppress(NotImplementedError):
                        loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._count >= FORCED:
            end_now(128 + self._number)

    def _told(self, number: int, count: int) -> None:
        name = signal.Signals(number).name
        self._asked.set()
        if count >= FORCED:
            log.warning("= %s again: handlers that run are not waited for, their messages come again", name)
            for member in self.members:
                member.hurry()
        elif running := sum(member.running for member in self.members):
            log.warning("= %s: waiting for %d calls of handlers to end; the same signal again does not wait", name, running)

    def _exited(self, error: BaseException) -> None:
        """A handler called sys.exit(): the program ends as after a signal, and then with this."""
        self._exit = self._exit or error
        self._asked.set()

    def raise_exit(self) -> None:
        if self._exit is not None:
            raise self._exit

    async def serve(self) -> None:
        for member in self.members:
            member.on_exit = self._exited
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await self._first(asked, self._start())
            if not asked.done():
                await self._first(asked, *(member.closed() for member in self.members))
        finally:
            asked.cancel()
            # One after the other: handlers may use the producers until they have ended.
            for member in reversed(self.members):
                await member.close()
                member.on_exit = None

    async def _start(self) -> None:
        for member in self.members:
            await member.start()

    async def _first(self, asked: asyncio.Future[Any], *works: Any) -> None:
        """Until the first of these is over, or a signal asks for the end."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def end_program(self) -> None:
        """Python waits for every thread at its end, so a handler that does not end would keep a closed program alive."""
        self.end_without(sum(member.in_threads for member in self.members))

    def end_without(self, stuck: int) -> None:
        if stuck:
            log.error("! %d calls of handlers run on although the consumer is closed; the program ends without them", stuck)
            end_now(1)


def nothing() -> None:
    """The loop woke up, which was the point: Python then calls the handler of the signal."""


def end_now(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    logging.shutdown()
    os._exit(code)
