"""The fake cluster behind a real socket: name server and broker on one port of this host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from roquet.wire.command import Command, decode
from roquet.wire.frame import Framer
from tests.client.fakes import FakeCluster

PATIENCE_S = 600


class FakeServer:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.address = ""
        self.connections: list[Connection] = []
        self.cluster.push = self.push

    def push(self, name: str, command: Command) -> None:
        """To every client: the tests have one."""
        for connection in list(self.connections):
            connection.transport.write(command.encode())

    def answer(self, connection: Connection, commands: list[Command]) -> None:
        for command in commands:
            if command.is_response:
                connection.answers.append(command)
            elif command.is_oneway:
                self.cluster.oneway(self.address, command)
            else:
                self.cluster.call(self.address, command, 60_000, connection.reply)
        self.cluster.run()


class Connection(asyncio.Protocol):
    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.framer = Framer()
        self.answers: list[Command] = []
        self.reads: list[int] = []  # frames in each read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.remove(self)

    def data_received(self, data: bytes) -> None:
        commands = [decode(frame) for frame in self.framer.feed(data)]
        self.reads.append(len(commands))
        self.server.answer(self, commands)

    def reply(self, answer: object) -> None:
        assert isinstance(answer, Command)
        if not self.transport.is_closing():
            self.transport.write(answer.encode())


@asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    listening = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0)
    server.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    server.cluster.masters["a"] = server.address
    try:
        yield server
    finally:
        listening.close()
        for connection in list(server.connections):
            connection.transport.abort()
        await listening.wait_closed()


def run(test: Callable[[FakeServer], Coroutine[Any, Any, None]], **topics: int) -> None:
    """The test beside a server with these topics, and so many queues of each; without any, "t" with two."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S), fake_server() as server:
            for topic, queues in (topics or {"t": 2}).items():
                server.cluster.create_topic(topic, queues)
            await test(server)

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)
