"""Calling the user's functions: async ones on the loop, plain ones in threads of their own, so that neither stops the client."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

Function = Callable[..., Any]


class Functions:
    """Threads are made at first use, up to `threads_max`."""

    def __init__(self, name: str, threads_max: int) -> None:
        self.name = name
        self.threads_max = threads_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None

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
        result = await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args))
        if isinstance(result, Awaitable):  # a lambda or partial around an async function
            result = await result
        return result

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
