"""Spark and a Java, installed while the chapters that need neither are running."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
import tomllib
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path

from stage import say

from roquet.errors import RoquetError
from roquet.spark.session import need_spark

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
STEP_S = 10
"""A line at least this often, so that nobody takes a download for a standstill."""
WORTH_SAYING = ("Downloading", "Building", "Installing", "installing")


def packages() -> list[str]:
    """What `pip install roquet[spark]` adds, without Roquet itself: it is running."""
    return list(tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["spark"])


def missing() -> str:
    """Why Spark cannot be started, in a sentence; "" when it can."""
    importlib.invalidate_caches()
    try:
        need_spark()
    except RoquetError as error:
        return str(error)
    return ""


class SparkInstall:
    """Begun once, waited for once. What went wrong is kept for the one who waits."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._work: asyncio.Task[None] | None = None
        self._step = "pip has just begun"
        self._output: list[str] = []

    def begin(self) -> None:
        if self._wanted and missing():
            say(f"\n(Installing {' and '.join(packages())} for the last chapter meanwhile: about 500 MB. What follows is slower for it.)")
            self._work = asyncio.create_task(self._install())

    async def ready(self) -> str:
        """Wait until it is over; why Spark cannot be started, in a sentence, "" when it can."""
        if self._work is not None:
            began = time.monotonic()
            while not self._work.done():
                say(f"   waiting for Spark since {time.monotonic() - began:.0f} s: {self._step}")
                await asyncio.wait([self._work], timeout=STEP_S)
            await self._work
        why = missing()
        if why and self._output:
            say("\n".join(["pip and the search for a Java ended with:", *self._output[-5:]]))
        return why

    async def _install(self) -> None:
        pip = ["pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *packages()]
        await asyncio.gather(self._run(pip), self._run(["roquet.spark.java", "--install"]))

    async def _run(self, module: list[str]) -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", *module, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                text = line.decode(errors="replace").strip()
                self._output.append(text)
                if text.startswith(WORTH_SAYING):
                    self._step = text
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
