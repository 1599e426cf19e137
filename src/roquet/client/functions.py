"""Calling the user's functions: async ones on the loop, plain ones in threads of their own, so that neither stops the client."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from roquet.errors import ClientError

Function = Callable[..., Any]


class Functions:
    """Threads are made at first use, up to `threads_max`."""

    def __init__(self, name: str, threads_max: int) -> None:
        self.name = name
        self.threads_max = threads_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._in_threads: set[Future[Any]] = set()

    @property
    def in_threads(self) -> int:
        """Calls that run in a thread now."""
        return len(self._in_threads)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this on the loop. It is cancelled by close()."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def call(self, function: Function, *args: Any) -> Any:
        if is_async(function):
            return await function(*args)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.threads_max, thread_name_prefix=f"roquet-{self.name}")
        under_way = self._threads.submit(partial(function, *args))
        self._in_threads.add(under_way)
        under_way.add_done_callback(self._in_threads.discard)
        result = await asyncio.wrap_future(under_way)
        if isinstance(result, Awaitable):  # a lambda or partial around an async function
            result = await result
        return result

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def check_handler(function: Function, topic: str) -> None:
    """Raises ClientError for what cannot be called with a message."""
    if not callable(function):
        raise ClientError(f"the handler for topic {topic!r} is {function!r}; expected is a function of one parameter, the message")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        name = name_of(function)
        raise ClientError(
            f"handler {name}() cannot be called with a message; expected is a function of one parameter: def {name}(message)"
        ) from None
    except ValueError:
        pass  # written in C, without a signature


def name_of(function: Function) -> str:
    return getattr(function, "__name__", None) or repr(function)


def is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
