"""Tasks: coroutines that go on when something happens to the core (an answer, a tick, a frame), without a loop of their own.

    task = tasks.start(work())       runs at once, in this call, until it has to wait
    await call(caller, ...)          an answer, or what went wrong
    await client.sleep(ms)           steady milliseconds
    await wait                       until somebody says wait.end(value)
    await task                       until that one is over

A task goes on inside the call that ends its wait; nothing is queued in between. So the order of things is decided by what drives
the core alone: by asyncio's callbacks in a program, by a seed in the simulation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

from roquet.errors import NotStarted, RoquetError
from roquet.ports import Caller
from roquet.routing.name_servers import Steps
from roquet.wire.command import Command

log = logging.getLogger(__name__)

T = TypeVar("T")

Work = Coroutine[Any, Any, T]
Done = Callable[[Any], None]
"""Gets what a coroutine returned, or the exception that it raised."""


CLOSED = "this client was closed; close it later, or start another one"


class Cancelled(NotStarted):
    """The client was closed, or nobody wants it any more, before this was through."""


class Wait(Generic[T]):
    """Something to wait for. It ends once, with a value or with an error that is raised where it is awaited."""

    __slots__ = ("_result", "_wakes", "over")

    def __init__(self) -> None:
        self.over = False
        self._result: Any = None
        self._wakes: list[Callable[[], None]] = []

    def end(self, result: T | Exception) -> None:
        """Only the first end counts: an answer that comes after its time-out changes nothing."""
        if self.over:
            return
        self.over = True
        self._result = result
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """This one waits no longer."""
        if wake in self._wakes:
            self._wakes.remove(wake)

    def __await__(self) -> Generator[Wait[T], None, T]:
        if not self.over:
            yield self
        if isinstance(self._result, Exception):
            raise self._result
        return self._result  # type: ignore[no-any-return] # what `end` was given


class Task(Wait[T]):
    """A coroutine under way. Awaiting it gives what it returns, or raises what it raises."""

    __slots__ = ("_cancelled", "_done", "_tasks", "_waits_for", "_work")

    def __init__(self, tasks: Tasks, work: Work[T], done: Done | None) -> None:
        super().__init__()
        self._tasks = tasks
        self._work = work
        self._done = done
        self._waits_for: Wait[Any] | None = None
        self._cancelled = False

    def step(self) -> None:
        if self.over or self._tasks.closed:  # woken together with who cancelled it, or by one that was cancelled before it
            return
        self._waits_for = None
        try:
            wait = self._work.send(None)
        except StopIteration as stop:
            self._finish(stop.value)
        except Exception as error:
            if could_not_go_on(error):
                error = Cancelled(f"{self.name} did not end: its client was thrown away without close()")
            self._finish(error)
        except BaseException:  # the program ends
            self._tasks.forget(self)
            raise
        else:
            self._waits_for = wait
            wait._wakes.append(self.step)
            if self._cancelled:
                self.cancel()

    def cancel(self, why: str = "it was cancelled") -> None:
        """End it where it waits. Its `finally` blocks run, and must not wait. Who waits for it gets Cancelled; what it waits for
        goes on."""
        if self.over:
            return
        wait = self._waits_for
        if wait is None:  # it runs just now: then where it waits next
            self._cancelled = True
            return
        wait.forget(self.step)
        try:
            self._work.close()
        except Exception:
            log.exception("! %s failed while it was cancelled", self.name)
        self._finish(Cancelled(f"{self.name} did not end: {why}"))

    def _finish(self, result: T | Exception) -> None:
        self._tasks.forget(self)
        if isinstance(result, Exception) and not self._wakes and self._done is None and not isinstance(result, Cancelled):
            log.error("! %s failed, and nobody waits for it", self.name, exc_info=result)
        done, self._done = self._done, None
        if done is not None:
            try:
                done(result)
            except Exception:
                log.exception("! who waited for %s failed", self.name)
        self.end(result)

    @property
    def name(self) -> str:
        return getattr(self._work, "__qualname__", repr(self._work))

    def __repr__(self) -> str:
        return f"<Task {self.name}{' over' if self.over else ''}>"


class Tasks:
    """The tasks of one core."""

    def __init__(self) -> None:
        self._tasks: dict[Task[Any], None] = {}  # a set that keeps its order
        self.closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Work[T], done: Done | None = None) -> Task[T]:
        """Run this. `done` gets what came of it; without it, and when nobody awaits the task by then, an exception is logged."""
        task = Task(self, work, done)
        if self.closed:
            work.close()
            task._finish(Cancelled(f"{task.name} does not begin: {CLOSED}"))
        else:
            self._tasks[task] = None
            task.step()
        return task

    async def each(self, works: Iterable[Work[T]]) -> list[T | RoquetError]:
        """Run these at the same time. What each of them gave, in order, or the error that it raised."""
        results: list[T | RoquetError] = []
        for task in [self.start(work, ignore) for work in works]:
            try:
                results.append(await task)
            except RoquetError as error:
                results.append(error)
        return results

    async def all(self, works: Iterable[Work[T]]) -> list[T]:
        """The same, where an error is not a result: the first one is raised when all are over."""
        results: list[T] = []
        failure: RoquetError | None = None
        for result in await self.each(works):
            if isinstance(result, RoquetError):
                failure = failure or result
            else:
                results.append(result)
        if failure is not None:
            raise failure
        return results

    def forget(self, task: Task[Any]) -> None:
        self._tasks.pop(task, None)

    def close(self) -> None:
        """Cancel all, and begin no other."""
        self.closed = True
        for task in list(self._tasks):
            task.cancel(CLOSED)


def call(caller: Caller, address: str, command: Command, timeout_ms: int) -> Wait[Command]:
    """The answer, of any code. Raises ConnectFailed or CallTimeout."""
    answer: Wait[Command] = Wait()
    caller.call(address, command, timeout_ms, answer.end)
    return answer


async def follow(caller: Caller, steps: Steps[T], timeout_ms: int) -> T:
    """What the steps give, when each of their requests was answered or failed."""
    answer: Command | RoquetError | None = None
    while True:
        try:
            address, command = next(steps) if answer is None else steps.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return] # what the steps returned
        try:
            answer = await call(caller, address, command, timeout_ms)
        except RoquetError as error:
            answer = error


def could_not_go_on(error: Exception) -> bool:
    """Python refused to run the coroutine: the collector, and not its task, has closed it or closes it now. Its own errors come from a
    frame of its own, or have a cause (a StopIteration)."""
    trace = error.__traceback__
    return isinstance(error, RuntimeError | ValueError) and trace is not None and trace.tb_next is None and error.__cause__ is None


def ignore(result: object) -> None:
    """For `done`, where a RoquetError is nothing unusual. Any other exception is a mistake of ours."""
    if isinstance(result, Exception) and not isinstance(result, RoquetError):
        log.error("! a task failed", exc_info=result)
