"""Running a core's coroutines inside asyncio. The core steps them itself, in the loop's callbacks; here somebody awaits the end."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from roquet.client.core.tasks import Tasks, Work

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def finished(tasks: Tasks, work: Work[T], *, cancel: bool = False) -> T:
    """What the work gives, or raises. When whoever awaits this is cancelled, the work goes on without them; with `cancel` it ends too."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | Exception) -> None:
        if answer.done():
            return  # whoever waited was cancelled
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    task = tasks.start(work, done)
    try:
        return await answer
    except asyncio.CancelledError:
        if cancel:
            task.cancel()
        raise
