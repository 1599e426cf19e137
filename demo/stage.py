"""What the chapters of the demo stand on: real server processes on free ports, and words for the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from roquet.admin import Admin
from roquet.cli.shards import DLEDGER_PORT, free_ports
from roquet.errors import RoquetError
from roquet.supervisor import BOOT_SUCCESS

if TYPE_CHECKING:
    from spark_install import SparkInstall

BOOT_TIMEOUT_S = 40
HOST = "127.0.0.1"


class Broken(RoquetError):
    """What the demo claims did not hold."""


def say(text: str = "") -> None:
    print(text, flush=True)


class Server:
    """One `roquet` process. It ends with us: it reads our end of its standard input."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.boot_s = 0.0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Return when it listens. Raises with the end of its log when it does not."""
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "roquet", *self.command, "--stop-with-parent",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(BOOT_TIMEOUT_S):
                while line := await self._process.stdout.readline():
                    if BOOT_SUCCESS.encode() in line:
                        self.boot_s = time.monotonic() - began
                        return
        except TimeoutError:
            pass
        raise RoquetError(f"{self.name} did not start. Its log ends with:\n{self.log.read_text()[-2000:]}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def kill(self) -> None:
        """As a power switch would, seen from the process: no goodbye, no flush."""
        os.kill(self.pid, signal.SIGKILL)
        await self._end()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._end()

    async def _end(self) -> None:
        assert self._process is not None
        await self._process.communicate()
        self._process = None


class Stage:
    """A name server, and the brokers that chapters ask for. Everything under one temporary directory."""

    def __init__(self, directory: Path, messages: int, spark: SparkInstall) -> None:
        self.directory = directory
        self.spark = spark
        self.messages = messages  # how much a chapter should do: so many, or its share of it
        self.namesrv = f"{HOST}:{free_ports(1, HOST)[0]}"
        self.facts: list[tuple[str, str]] = []  # what the summary will say
        self._servers: list[Server] = []

    async def open(self) -> None:
        port = self.namesrv.rpartition(":")[2]
        data = self.directory / "namesrv-data"
        await self._run(
            Server("name server", ["namesrv", "--data", str(data), "--set", f"listenPort={port}"], self.directory / "namesrv.log")
        )

    async def broker(self, name: str, cluster: str, settings: Mapping[str, str]) -> Server:
        """A broker of its own cluster, so that a chapter's topics are on it alone."""
        (port,) = free_ports(1, HOST)
        server = await self._run(self._broker(name, port, {"brokerName": name, "brokerClusterName": cluster, **settings}))
        await self._until_registered(name)
        return server

    async def group(self, name: str, cluster: str) -> dict[str, Server]:
        """Three brokers that elect their master, by their names in the group."""
        ports = free_ports(3, HOST)
        peers = ";".join(f"n{number}-{HOST}:{port + DLEDGER_PORT}" for number, port in enumerate(ports))
        settings = {"brokerName": name, "brokerClusterName": cluster, "enableDLegerCommitLog": "true", "dLegerPeers": peers}
        members = {
            f"n{number}": self._broker(f"{name}-n{number}", port, settings | {"dLegerSelfId": f"n{number}"})
            for number, port in enumerate(ports)
        }
        await asyncio.gather(*(self._run(member) for member in members.values()))
        await self._until_registered(name)
        return members

    def _broker(self, home: str, port: int, settings: Mapping[str, str]) -> Server:
        own = {"listenPort": str(port), "storePathRootDir": str(self.directory / home), **settings}
        command = ["broker", "-n", self.namesrv]
        for key, value in own.items():
            command += ["--set", f"{key}={value}"]
        return Server(home, command, self.directory / f"{home}.log")

    async def _until_registered(self, name: str) -> None:
        async with Admin(self.namesrv) as admin:
            await admin.until_registered([name])

    async def _run(self, server: Server) -> Server:
        self._servers.append(server)
        await server.start()
        return server

    def fact(self, name: str, value: str) -> None:
        self.facts.append((name, value))

    async def close(self) -> None:
        await self.spark.close()
        for server in reversed(self._servers):
            await server.stop()
