"""Calling the user's functions: async ones on the loop, plain ones in threads of their own, so that neither stops the client."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import CodeType
from typing import Any

from roquet.errors import ClientError

Function = Callable[..., Any]


class Functions:
    """Threads are made at first use, up to `threads_max`."""

    def __init__(self, name: str, threads_max: int) -> None:
        self.name = name
        self.threads_max = threads_max
        self.tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._in_threads: set[Future[Any]] = set()

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

    def begin(self, work: Coroutine[Any, Any, None], cancelled: Callable[[], None]) -> None:
        """Run this on the loop. It is cancelled by close(): then `cancelled` is called, as the work may not even have begun."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(partial(self._over, cancelled))

    def _over(self, cancelled: Callable[[], None], task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if task.cancelled():
            cancelled()
        else:
            task.exception()  # SystemExit and KeyboardInterrupt, which the loop raises

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

    def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
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


def name_of(function: Function) -> str:
    return getattr(function, "__name__", None) or repr(function)


def is_async(function: Function) -> bool:
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and code.co_flags & inspect.CO_COROUTINE:
        return True  # the usual case, asked before every call
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
