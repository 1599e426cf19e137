"""A server whose core sends every request back, with TLS at its entrance, for tests over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import uvloop

from roquet.clock import SystemClock
from roquet.errors import RoquetError
from roquet.net.caller import AsyncCaller
from roquet.net.connection import PLAIN, ConnectionOptions, Tls
from roquet.net.server import Server
from roquet.net.tls import ENFORCING, ServerFiles, ServerTls
from roquet.ports import Peer, Receiver, Rest
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame
from tests.certificates import authority, issued

LOOPS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}
PATIENCE_S = 120


class Echo(Receiver):
    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.gone: list[Peer] = []

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        if peer not in self.peers:
            self.peers.append(peer)
        for frame in frames:
            command = decode(frame)
            answer = command.reply(0)
            answer.opaque, answer.body = command.opaque, command.body
            peer.send(answer.encode())
        return None

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer)

    def tick(self, now_ms: int) -> Rest | None:
        return None


@dataclass
class Place:
    server: Server
    port: int
    core: Echo
    tls: ServerTls
    callers: list[AsyncCaller] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def ask(self, body: bytes = b"hello", *, tls: Tls | None = None) -> bytes | RoquetError:
        """What comes back, or what went wrong."""
        caller = AsyncCaller(connection=ConnectionOptions(connect_timeout_ms=PATIENCE_S * 1_000, tls=tls) if tls else PLAIN)
        self.callers.append(caller)
        return await asked(caller, self.address, body)


async def asked(caller: AsyncCaller, address: str, body: bytes) -> bytes | RoquetError:
    answer: asyncio.Future[Command | RoquetError] = asyncio.get_running_loop().create_future()
    caller.call(address, Command(11, {}, body), PATIENCE_S * 1_000, answer.set_result)
    found = await answer
    return found.body if isinstance(found, Command) else found


def server_files(*, client_auth: str = "none") -> ServerFiles:
    shown = issued()
    return ServerFiles(shown.cert, shown.key, trust_file=authority().file if client_auth != "none" else "", client_auth=client_auth)


@contextlib.asynccontextmanager
async def serving(
    mode: str = ENFORCING, files: ServerFiles | None = None, *, idle_s: int = 60, connections_max: int = 1_000
) -> AsyncIterator[Place]:
    core, tls = Echo(), ServerTls(mode, server_files() if files is None else files)
    server = Server(core, SystemClock(), idle_s=idle_s, connections_max=connections_max, tls=tls)
    place = Place(server, await server.listen("127.0.0.1", 0), core, tls)
    server.start_ticking()
    try:
        yield place
    finally:
        for caller in place.callers:
            await caller.close()
        await server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What still came before the other end closed."""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
    return b""
