"""While several connections have something to say in each turn of the loop, the core gets it together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from roquet.clock import SystemClock
from roquet.net import server as server_module
from roquet.net.server import CROWDED_TURNS, Server
from roquet.ports import Peer, Read, Receiver, Rest
from roquet.testing import FakePeer
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame, Framer

uvloop = pytest.importorskip("uvloop")

WITHIN_S = 20


class Together(Receiver):
    """Answers every request, and notes how many reads it got at once."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.reads: list[int] = []
        self.heard: list[tuple[str, int]] = []
        self.gone: list[str] = []
        self.fails = False

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        return self.receive_all([(peer, frames)], until_ms)[0]

    def receive_all(self, reads: list[Read], until_ms: int) -> list[list[Frame] | None]:
        if self.fails:
            raise RuntimeError("planted")
        self.reads.append(len(reads))
        for peer, frames in reads:
            for frame in frames:
                request = decode(frame)
                self.heard.append((peer.address, request.opaque))
                peer.send(request.reply(0).encode())
        return [None] * len(reads)

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer.address)

    def tick(self, now_ms: int) -> Rest | None:
        return None


class Client:
    """A plain socket: what it says is there before the loop looks again."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
        self._framer = Framer()

    def say(self, *opaques: int) -> None:
        self.socket.sendall(b"".join([Command(1, opaque=opaque).encode() for opaque in opaques]))

    async def hear(self, count: int) -> list[int]:
        found: list[int] = []
        self.socket.setblocking(False)
        while len(found) < count:
            data = await asyncio.get_running_loop().sock_recv(self.socket, 65_536)
            assert data, f"closed after {len(found)} of {count} answers"
            found += [decode(frame).opaque for frame in self._framer.feed(data)]
        self.socket.setblocking(True)
        return found


def with_server(work: Callable[[Together, Server, list[Client]], Coroutine[Any, Any, None]], clients: int = 3) -> None:
    async def run() -> None:
        core = Together()
        server = Server(core, core.clock, idle_s=60, connections_max=10)
        port = await server.listen("127.0.0.1", 0)
        made = [Client(port) for _ in range(clients)]
        try:
            for client in made:  # each is known, and has said something
                client.say(0)
                await client.hear(1)
            core.reads.clear()
            core.heard.clear()
            await work(core, server, made)
        finally:
            for client in made:
                client.socket.close()
            await server.close()

    uvloop.run(asyncio.wait_for(run(), WITHIN_S))


def test_what_three_connections_say_in_one_turn_reaches_the_core_together_and_each_hears_its_own_answers() -> None:
    async def work(core: Together, server: Server, clients: list[Client]) -> None:
        for turn in range(3):
            for at, client in enumerate(clients):
                client.say(100 * at + turn, 100 * at + turn + 50)
            for at, client in enumerate(clients):
                assert await client.hear(2) == [100 * at + turn, 100 * at + turn + 50]
        assert core.reads[-2:] == [3, 3], core.reads  # in the first turn it shows that there are several

    with_server(work)


def test_one_connection_is_served_at_once_again_when_the_others_are_silent() -> None:
    async def work(core: Together, server: Server, clients: list[Client]) -> None:
        for _ in range(2):
            for client in clients:
                client.say(1)
            for client in clients:
                await client.hear(1)
        assert server._crowded == CROWDED_TURNS
        for turn in range(CROWDED_TURNS + 1):
            clients[0].say(turn)
            assert await clients[0].hear(1) == [turn]
        assert server._crowded == 0
        assert not server._turn_due
        clients[0].say(7)
        assert await clients[0].hear(1) == [7]
        assert not server._turn_due

    with_server(work)


def test_what_a_connection_said_before_it_ended_is_done() -> None:
    async def work(core: Together, server: Server, clients: list[Client]) -> None:
        server._crowded = CROWDED_TURNS
        for at, client in enumerate(clients):
            client.say(at + 1)
        clients[1].socket.close()
        assert await clients[0].hear(1) == [1]
        assert await clients[2].hear(1) == [3]
        while not core.gone:
            await asyncio.sleep(0)
        assert sorted(opaque for _, opaque in core.heard) == [1, 2, 3]

    with_server(work)


def test_what_was_gathered_of_a_connection_that_broke_reaches_the_core_before_the_news_of_its_end() -> None:
    async def work(core: Together, server: Server, clients: list[Client]) -> None:
        connection = next(iter(server.connections))
        connection.gather(Framer().feed(Command(1, opaque=9).encode()))
        server._came[connection] = None
        heard_first: list[bool] = []
        core.disconnected = lambda peer: heard_first.append((peer.address, 9) in core.heard)  # type: ignore[method-assign]
        connection.connection_lost(ConnectionResetError())
        assert heard_first == [True]
        assert core.heard == [(connection.address, 9)]

    with_server(work)


def test_more_than_a_turn_may_gather_goes_to_the_core_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "TOGETHER_MAX", 100)

    async def work(core: Together, server: Server, clients: list[Client]) -> None:
        server._crowded = CROWDED_TURNS
        for client in clients:
            client.say(*range(10))
        for client in clients:
            assert await client.hear(10) == list(range(10))
        assert core.reads == [1, 1, 1]

    with_server(work)


def test_a_server_that_stops_answers_what_it_had_read() -> None:
    async def work(core: Together, server: Server, clients: list[Client]) -> None:
        connection = next(iter(server.connections))
        connection.gather(Framer().feed(Command(1, opaque=9).encode()))
        server._came[connection] = None
        await server.close()
        assert await clients[0].hear(1) == [9]

    with_server(work)


def test_nobody_is_sent_away_who_has_just_said_something() -> None:
    async def work(core: Together, server: Server, clients: list[Client]) -> None:
        server.is_spare = lambda peer: True
        first, second, _ = server.connections
        first.gather(Framer().feed(Command(1, opaque=9).encode()))
        server._came[first] = None
        assert server._make_room()
        assert not first.closed
        assert second.closed

    with_server(work)


def test_a_mistake_with_one_peer_ends_its_connection_and_no_other_where_each_is_looked_at_alone() -> None:
    class Alone(Together):
        def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
            if peer.address == self.gone[0]:
                raise RuntimeError("planted")
            return None

        receive_all = Receiver.receive_all

    core, peers = Alone(), [FakePeer(f"10.0.0.{n}:1") for n in range(3)]
    core.gone = [peers[1].address]
    frames = Framer().feed(Command(1).encode())
    assert core.receive_all([(peer, frames) for peer in peers], 0) == [None, None, None]
    assert [peer.closed for peer in peers] == [False, True, False]


def test_a_core_that_fails_ends_the_connections_whose_requests_it_had_and_no_other() -> None:
    async def work(core: Together, server: Server, clients: list[Client]) -> None:
        server._crowded = CROWDED_TURNS
        core.fails = True
        for client in clients[:2]:
            client.say(1)
        while len(core.gone) < 2:
            await asyncio.sleep(0)
        core.fails = False
        clients[2].say(5)
        assert await clients[2].hear(1) == [5]

    with_server(work)
