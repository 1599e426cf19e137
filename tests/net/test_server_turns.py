"""The server's turns: who waits, in which order, and that nobody is forgotten. Real sockets, a core of the test's own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from roquet.clock import SystemClock
from roquet.net.server import Server
from roquet.ports import TURN_MS, Peer, Receiver, Rest
from roquet.wire import command as commands
from roquet.wire.command import Command
from roquet.wire.frame import Frame, Framer

from .tls_line import LOOPS

COUNT = 40
WITHIN_S = 30.0


class SlowCore(Receiver):
    """Every request takes `ms` of the loop's time; keeps who was served when."""

    def __init__(self, ms: float) -> None:
        self.ms = ms
        self.clock = SystemClock()
        self.served: list[tuple[str, int]] = []
        self.gone: list[Peer] = []
        self.longest_ms = 0

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        left = iter(frames)
        for frame in left:
            if self.clock.steady_ms() >= until_ms:
                return [frame, *left]
            command = commands.decode(frame)
            end = time.perf_counter() + self.ms / 1_000
            while time.perf_counter() < end:
                pass
            self.served.append((peer.address, command.opaque))
            peer.send(command.reply().encode())
        return None

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer)

    def tick(self, now_ms: int) -> Rest | None: ...


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, WITHIN_S))


async def answers(reader: asyncio.StreamReader, count: int) -> list[int]:
    framer, found = Framer(), list[int]()
    while len(found) < count:
        data = await reader.read(65_536)
        assert data, f"closed after {len(found)} of {count} answers"
        found += [commands.decode(frame).opaque for frame in framer.feed(data)]
    return found


def burst(count: int = COUNT) -> bytes:
    return b"".join(Command(1, opaque=n).encode() for n in range(count))


class LargeCore(SlowCore):
    """Answers with so many bytes, to who takes its answers."""

    def __init__(self, size: int) -> None:
        super().__init__(0)
        self.size = size
        self.calls = 0

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        self.calls += 1
        for at, frame in enumerate(frames):
            if peer.unread:
                return frames[at:]
            command = commands.decode(frame)
            self.served.append((peer.address, command.opaque))
            peer.send(command.reply(body=bytes(self.size)).encode())
        return None


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_peer_asks_for_waits_until_it_takes_its_answers_and_costs_nothing_meanwhile(loop: str) -> None:
    async def work() -> None:
        core = LargeCore(1_000_000)
        server = Server(core, core.clock, idle_s=60, connections_max=10)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_096)
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(burst(100))
        while not core.served:
            await asyncio.sleep(0)
        for number in range(5):  # another one is served meanwhile, turn after turn
            other_writer.write(Command(1, opaque=number).encode())
            assert await answers(other_reader, 1) == [number]
        waiting = len(core.served) - 5
        assert waiting < 20, "some fit into the sockets, and the rest waits"
        assert server._waiting < 4_000_000
        assert core.calls < 30, "nobody looks at it again and again"
        assert await answers(reader, 100) == list(range(100))
        for one in (writer, other_writer):
            one.close()
        await server.close()

    LOOPS[loop](asyncio.wait_for(work(), WITHIN_S))


class Waiting(SlowCore):
    """Answers the first request with more than the sockets take, and waits with it and all others until that was read."""

    def __init__(self) -> None:
        super().__init__(0)
        self.begun = 0
        """So many more turns does a request need that is under way."""
        self.calls: list[tuple[int, bool, bool]] = []  # frames, whether the peer was unread, whether it was gone

    def has_begun(self, peer: Peer) -> bool:
        return self.begun > 0

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        if not self.calls:
            peer.send(bytes(LARGE))
        self.begun -= peer.unread
        self.calls.append((len(frames), peer.unread, peer.closed))
        return frames if peer.unread or self.begun > 0 else None


LARGE = 12 << 20


async def not_reading(core: Waiting, sent: bytes) -> tuple[Server, asyncio.StreamReader, asyncio.StreamWriter]:
    """A peer that has sent this, and takes no answer yet. What is not done waits."""
    server = Server(core, core.clock, idle_s=60, connections_max=10)
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.listen("127.0.0.1", 0), limit=4_096)
    writer.write(sent)
    while not any(connection._rest_size for connection in server.connections):
        await asyncio.sleep(0)
    return server, reader, writer


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_peer_asked_for_and_waits_counts_with_the_answers_that_it_does_not_take(loop: str) -> None:
    async def work() -> None:
        core = Waiting()
        server, reader, writer = await not_reading(core, Command(1, body=bytes(2_000_000)).encode())
        [connection] = server.connections
        assert server._waiting > connection._transport.get_write_buffer_size() + 2_000_000
        await reader.readexactly(LARGE)
        while connection._rest is not None:
            await asyncio.sleep(0)
        assert server._waiting == 0
        writer.close()
        await server.close()

    LOOPS[loop](asyncio.wait_for(work(), WITHIN_S))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_that_has_begun_goes_on_although_its_peer_takes_no_answers(loop: str) -> None:
    async def work() -> None:
        core = Waiting()
        core.begun = 5
        server, _, writer = await not_reading(core, burst(3))
        assert core.begun == 0
        assert len(core.calls) == 5, "and then nobody looks at it again"
        writer.close()
        await server.close()

    LOOPS[loop](asyncio.wait_for(work(), WITHIN_S))


@pytest.mark.parametrize("loop", LOOPS)
def test_what_waited_when_its_peer_went_comes_to_the_core_once_more(loop: str) -> None:
    async def work() -> None:
        core = Waiting()
        server, _, writer = await not_reading(core, burst(3))
        assert [call for call in core.calls if call[2]] == []
        writer.transport.abort()
        while not core.gone:
            await asyncio.sleep(0)
        assert [call for call in core.calls if call[2]] == [(3, False, True)]
        assert core.calls[-1][2], "before it hears that the peer is gone"
        assert server._waiting == 0
        await server.close()

    LOOPS[loop](asyncio.wait_for(work(), WITHIN_S))


def test_connections_that_ask_for_more_than_a_turn_take_turns_and_each_gets_its_answers_in_order() -> None:
    async def work() -> None:
        core = SlowCore(3)
        server = Server(core, core.clock, idle_s=60, connections_max=10)
        port = await server.listen("127.0.0.1", 0)
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _, writer in pairs:
            writer.write(burst())
        found = await asyncio.gather(*[answers(reader, COUNT) for reader, _ in pairs])
        assert found == [list(range(COUNT))] * 4
        ends = {address: index for index, (address, _) in enumerate(core.served)}
        first_end = min(ends.values())
        # When the first is done, the others are nearly: none was served whole before another had begun.
        for address in ends:
            assert sum(1 for who, _ in core.served[: first_end + 1] if who == address) > COUNT // 2
        for _, writer in pairs:
            writer.close()
        await server.close()

    run(work())


def test_the_loop_goes_round_while_a_read_full_of_work_is_done() -> None:
    async def work() -> None:
        core = SlowCore(4)
        server = Server(core, core.clock, idle_s=60, connections_max=10)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        rounds: list[int] = []
        done = False

        async def go_round() -> None:
            while not done:
                rounds.append(len(core.served))
                await asyncio.sleep(0)

        going = asyncio.ensure_future(go_round())
        writer.write(burst(100))
        await answers(reader, 100)
        done = True
        await going
        most = max(after - before for before, after in itertools.pairwise(rounds))
        assert most <= 2 * (TURN_MS // 4 + 1), f"{most} requests of 4 ms in one turn of the loop"
        writer.close()
        await server.close()

    run(work())


def test_what_a_peer_sent_before_it_went_is_done_and_a_connection_that_broke_is_forgotten() -> None:
    async def work() -> None:
        core = SlowCore(2)
        server = Server(core, core.clock, idle_s=60, connections_max=10)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(burst())
        writer.write_eof()
        assert await answers(reader, COUNT) == list(range(COUNT))
        _, broken = await asyncio.open_connection("127.0.0.1", port)
        broken.write(burst(1_000))
        await broken.drain()
        while not any(opaque == 10 for _, opaque in core.served[COUNT:]):
            await asyncio.sleep(0)
        broken.transport.abort()
        while server.connections:
            await asyncio.sleep(0.001)
        served = len(core.served)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(core.served) == served < COUNT + 1_000
        assert len(core.gone) == 2
        with suppress(OSError):
            writer.close()
        await server.close()

    run(work())


def test_reading_goes_on_after_the_backlog_and_a_full_write_buffer_does_not_undo_the_pause() -> None:
    async def work() -> None:
        core = SlowCore(1)
        server = Server(core, core.clock, idle_s=60, connections_max=10)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(burst(50))
            assert await answers(reader, 50) == list(range(50))
        (connection,) = server.connections
        paused: list[str] = []
        transport = connection._transport

        class Watched:
            def pause_reading(self) -> None:
                paused.append("pause")

            def resume_reading(self) -> None:
                paused.append("resume")

            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

        connection._transport = Watched()  # type: ignore[assignment]
        connection._rest = []
        connection.pause_writing()
        connection.resume_writing()
        assert paused == ["pause", "pause"], "frames still wait for their turn"
        connection.data_received(burst(2))
        assert len(connection._rest) == 2, "what comes although reading pauses waits behind them"
        assert not connection.go_on(core.clock.steady_ms() + 10_000)
        assert paused[-1] == "resume"
        connection._transport = transport
        writer.close()
        await server.close()

    run(work())


class CoreWithLongTicks(SlowCore):
    """A tick needs ten turns. Notes what happened in which order."""

    def __init__(self) -> None:
        super().__init__(0)
        self.heard: list[str] = []

    def tick(self, now_ms: int) -> Rest | None:
        self.heard.append("tick")
        return partial(self.go_on, 9)

    def go_on(self, left: int) -> Rest | None:
        self.heard.append("rest")
        return partial(self.go_on, left - 1) if left else None

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        self.heard.append("read")
        return super().receive(peer, frames, until_ms)


def test_what_a_tick_had_no_time_for_goes_on_in_the_next_turns_and_reads_have_theirs_between() -> None:
    async def work() -> None:
        core = CoreWithLongTicks()
        server = Server(core, core.clock, idle_s=60, connections_max=10)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        server.start_ticking()
        core.heard.clear()
        between = 0
        while not between:
            writer.write(burst(1))
            await answers(reader, 1)
            heard = [one for one in core.heard if one != "tick"]
            between = sum(1 for before, after in itertools.pairwise(heard) if (before, after) == ("read", "rest"))
        while core.heard.count("tick") < 2:
            await asyncio.sleep(0)
        first, second = [n for n, one in enumerate(core.heard) if one == "tick"][:2]
        assert core.heard[first:second].count("rest") == 10, "all of it before the next tick"
        writer.close()
        await server.close()
        after = len(core.heard)
        await asyncio.sleep(0)
        assert len(core.heard) == after, "a server that is closed ticks no more"

    run(work())


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_of_all_sizes_come_whole_and_in_order(loop: str) -> None:
    """Large ones are handed to the socket one by one, small ones together; a peer that is slow to read gets them in pieces."""
    sizes = [10, 9_000, 5_000, 3, 100_000, 4_096, 1, 400_000, 20]

    class Sized(SlowCore):
        def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
            for command in map(commands.decode, frames):
                peer.send(Command(0, body=bytes([command.opaque]) * sizes[command.opaque % len(sizes)], opaque=command.opaque).encode())
            return None

    async def work() -> None:
        core = Sized(0)
        server = Server(core, core.clock, idle_s=60, connections_max=10)
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.listen("127.0.0.1", 0))
        framer, bodies, asked = Framer(), list[bytes](), list[int]()
        for some in ([1, 2], [0, 3], list(range(9)), [7, 4, 4, 7, 7], [8], [4]):
            asked += some
            writer.write(b"".join(Command(1, opaque=number).encode() for number in some))
            await asyncio.sleep(0)
        while len(bodies) < len(asked):
            data = await reader.read(65_536)
            assert data, f"closed after {len(bodies)} of {len(asked)} answers"
            bodies += [body for _, _, body in framer.feed(data)]
        assert bodies == [bytes([number]) * sizes[number] for number in asked]
        writer.close()
        await server.close()

    LOOPS[loop](asyncio.wait_for(work(), WITHIN_S))
