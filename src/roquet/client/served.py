"""What run() and serve() can run: producers, consumers, and an app made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar


class Served:
    """Started, closed, and hurried by a second signal."""

    stops_first: ClassVar[bool] = False
    """It has handlers, which may use the others until they have ended."""
    running = 0
    """Calls of handlers under way."""
    in_threads = 0
    """Of these, those in threads: nothing can end them from outside."""
    _called_from_here = False
    """Whoever asks is one of its functions, which cannot wait for its own end."""
    on_exit: Callable[[BaseException], None] | None = None
    """Told when a handler calls sys.exit(), in place of the loop."""

    async def start(self) -> Any:
        """Idempotent."""
        raise NotImplementedError

    async def close(self) -> None:
        """Idempotent."""
        raise NotImplementedError

    async def closed(self) -> None:
        """Wait until close() was called and is through."""
        raise NotImplementedError

    def calls(self) -> set[asyncio.Task[None]]:
        """Calls of handlers that the loop still has."""
        return set()

    def hurry(self) -> None:
        """close() waits, or will wait, for handlers: it shall not."""
