"""Programs of users as processes of their own: what a terminal, a supervisor or a container does to them is done to them here."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from textwrap import dedent

PATIENCE_S = 600.0
"""Deadline of what must happen at all; the machine may be busy."""


class Running:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed = ""

    async def until(self, text: str) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.printed:
                line = await self.process.stdout.readline()
                assert line, f"it ended before {text!r}:\n{self.printed}"
                self.printed += line.decode()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def end(self) -> int:
        """Its exit code; a negative one is the signal that killed it."""
        async with asyncio.timeout(PATIENCE_S):
            rest, _ = await self.process.communicate()
        self.printed += rest.decode()
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def program(code: str) -> AsyncIterator[Running]:
    """Python code in a process of its own. Everything that it prints, errors too, is one stream."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", dedent(code), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
