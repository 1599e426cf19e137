"""Calling the user's functions: async ones on the loop, plain ones in threads of their own, so that neither stops the client."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from types import CodeType
from typing import Any

from roquet.errors import ClientError

Function = Callable[..., Any]
Call = tuple[Any, ...]
Serve = Callable[..., Coroutine[Any, Any, None]]

OWN_THREADS = 2
"""For functions of the user that are no handlers: they do not wait until a handler is through."""
CALLS_A_TURN = 32
"""So many calls that do not wait are served before the loop looks after others."""


class Functions:
    """Threads are made at first use, up to `threads_max`."""

    def __init__(self, name: str, threads_max: int) -> None:
        self.name = name
        self.threads_max = threads_max
        self.tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[Serve, Call, Callable[[], None]]] = deque()
        self._starting: asyncio.Task[None] | None = None
        """It was made and has not begun; it will look at what waits."""
        self._context = copy_context()
        self._threads: ThreadPoolExecutor | None = None
        self._in_threads: set[Future[Any]] = set()

    def set_threads(self, most: int) -> None:
        """Calls that run in a thread go on there; the next ones get new threads."""
        self.threads_max = most
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    @property
    def called_from_here(self) -> bool:
        """Whoever asks is one of the calls."""
        try:
            return asyncio.current_task() in self.tasks
        except RuntimeError:  # no loop here
            return getattr(_thread, "owner", None) is self

    @property
    def in_threads(self) -> int:
        """Calls that run in a thread now."""
        return len(self._in_threads)

    def begin(self, serve: Serve, call: Call, cancelled: Callable[[], None]) -> None:
        """Have `serve(*call)` awaited on the loop. It is cancelled by close(): then `cancelled` is called, as it may not even have begun.

        A task serves calls one after another, as long as they are over without waiting; while one waits, another task serves the others.
        Each call begins with the variables (contextvars) that were set at open(), whatever the calls before it have set."""
        self._waiting.append((serve, call, cancelled))
        self.go_on()

    def open(self) -> None:
        self._context = copy_context()
        self.tasks = {task for task in self.tasks if not task.get_loop().is_closed()}  # a loop that was closed never ends its tasks
        if self._starting not in self.tasks:
            self._starting = None

    @property
    def wanted(self) -> bool:
        """Something waits for a task."""
        return bool(self._waiting)

    def go_on(self) -> None:
        """There may be something to serve: a task will look, if none will already."""
        if self._starting is None and self.wanted:
            task = self._starting = asyncio.get_running_loop().create_task(self._serve(), context=self._context.copy())
            self.tasks.add(task)
            task.add_done_callback(self._over)

    def _begun(self) -> asyncio.Task[Any]:
        """The task that was made last serves now: the next one may be made."""
        task, self._starting = asyncio.current_task(), None
        assert task is not None
        return task

    async def _serve(self) -> None:
        me = self._begun()
        waiting, clean = self._waiting, copy_context()
        for _ in range(CALLS_A_TURN):
            if not waiting:
                return
            serve, call, cancelled = waiting.popleft()
            self.go_on()
            try:
                await serve(*call)
            except asyncio.CancelledError:
                cancelled()
                raise
            if me.cancelling() or not is_same(clean):
                return

    def _over(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self._starting is task:  # cancelled before it began
            self._starting = None
        if not task.cancelled():
            task.exception()  # SystemExit and KeyboardInterrupt, which the loop raises
        self.go_on()

    async def call(self, function: Function, *args: Any) -> Any:
        if is_async(function):
            return await function(*args)
        if self._threads is None:
            mark = partial(setattr, _thread, "owner", self)
            self._threads = ThreadPoolExecutor(self.threads_max, thread_name_prefix=f"roquet-{self.name}", initializer=mark)
        under_way = self._threads.submit(plainly, function, *args)
        self._in_threads.add(under_way)
        under_way.add_done_callback(self._in_threads.discard)
        result = await asyncio.wrap_future(under_way)
        if isinstance(result, Awaitable):  # a lambda or partial around an async function
            result = await result
        return result

    def forked(self) -> None:
        """The threads are not in this process."""
        self._threads = None
        self._in_threads = set()
        self._waiting.clear()
        self._starting = None

    def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        while self._waiting:
            _, _, cancelled = self._waiting.popleft()
            cancelled()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


_thread = threading.local()


def plainly(function: Function, *args: Any) -> Any:
    try:
        return function(*args)
    except StopIteration as stop:  # which no future takes, so that the call would never end
        raise RuntimeError(f"{name_of(function)} raised StopIteration") from stop


def check_handler(function: Function, topic: str) -> None:
    """Raises ClientError for what cannot be called with a message."""
    if not callable(function):
        raise ClientError(f"the handler for topic {topic!r} is {function!r}; expected is a function of one parameter, the message")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ClientError(
            f"handler {name_of(function)} for topic {topic!r} has a `yield`, so a call would run nothing of it; expected is a function that"
            " returns: take the `yield` out"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        name = name_of(function)
        raise ClientError(
            f"handler {name}() cannot be called with a message; expected is a function of one parameter: def {name}(message)"
        ) from None
    except ValueError:
        pass  # written in C, without a signature


def being_cancelled() -> bool:
    """The task that runs is cancelled from outside; else a CancelledError is one of what it awaits, or its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_same(context: Context) -> bool:
    """Whether the variables are those of this context."""
    try:
        return copy_context() == context
    except Exception:  # a value that cannot be compared is another one
        return False


def name_of(function: Function) -> str:
    return getattr(function, "__name__", None) or repr(function)


def is_async(function: Function) -> bool:
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and code.co_flags & inspect.CO_COROUTINE:
        return True  # the usual case, asked before every call
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
