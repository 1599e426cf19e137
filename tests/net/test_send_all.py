"""Many frames at once (`Connection.send_all`) leave as they would one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from roquet.clock import SystemClock
from roquet.net import server as server_module
from roquet.net.server import WRITE_BUFFER_HIGH, WRITE_BUFFER_MAX, Connection, Server
from roquet.ports import Peer, Receiver, Rest
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame, Framer

from .tls_line import LOOPS

WITHIN_S = 30.0


class Core(Receiver):
    """Does with what comes what the test says."""

    def __init__(self, does: Callable[[Peer, list[Frame]], None] = lambda peer, frames: None) -> None:
        self.does = does

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        self.does(peer, frames)
        return None

    def disconnected(self, peer: Peer) -> None: ...

    def tick(self, now_ms: int) -> Rest | None: ...


class Wire:
    """A transport that notes each write; `unread` bytes of what was written wait for the peer, -1: all."""

    def __init__(self, unread: int = 0) -> None:
        self.writes: list[bytes] = []
        self.unread = unread
        self.aborted = False

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 40_001) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.writes.append(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes)) if self.unread < 0 else self.unread

    def abort(self) -> None:
        self.aborted = True


def over_a_wire(does: Callable[[Connection, Wire], None], *, within: bool, unread: int = 0) -> list[bytes]:
    """What was written when `does` was called, within a hand-over to the core or outside of one, and after the loop went round."""
    wire = Wire(unread)

    async def work() -> None:
        core = Core(lambda peer, frames: does(connection, wire))
        server = Server(core, SystemClock(), idle_s=60, connections_max=10)
        connection = Connection(server)
        connection.connection_made(wire)  # type: ignore[arg-type]
        if within:
            connection.data_received(Command(1).encode())
        else:
            does(connection, wire)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert connection.closed or not connection._out

    asyncio.run(asyncio.wait_for(work(), WITHIN_S))
    return wire.writes


def one_by_one(connection: Connection, frames: list[bytes]) -> None:
    for frame in frames:
        connection.send(frame)


@pytest.mark.parametrize("within", [False, True])
def test_the_order_is_kept_with_those_before_and_after(within: bool) -> None:
    def say(connection: Connection, wire: Wire) -> None:
        connection.send(b"1")
        connection.send_all([b"2", b"3"])
        connection.send_all([])
        connection.send(memoryview(b"4"))
        connection.send_all([b"5" * 5_000])
        connection.send(b"6")
        assert wire.writes == [], "gathered until the core is done, or the loop goes round"

    assert over_a_wire(say, within=within) == [b"1234" + b"5" * 5_000 + b"6"]


@pytest.mark.parametrize("within", [False, True])
def test_outside_of_a_hand_over_it_leaves_with_the_next_turn_of_the_loop(within: bool) -> None:
    assert over_a_wire(lambda connection, wire: connection.send_all([b"a", b"b"]), within=within) == [b"ab"]
    assert over_a_wire(lambda connection, wire: connection.send_all([]), within=within) == []


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("within", [False, True])
def test_over_the_limit_of_what_is_gathered_it_is_written_as_one_by_one(within: bool, seed: int) -> None:
    random = Random(seed)
    runs = [
        [bytes([random.randrange(256)]) * random.choice((1, 1_000, WRITE_BUFFER_HIGH // 3, WRITE_BUFFER_HIGH - 1)) for _ in range(count)]
        for count in (random.randrange(6) for _ in range(4))
    ]
    sizes: list[list[int]] = []

    def say(way: Callable[[Connection, list[bytes]], None], connection: Connection, wire: Wire) -> None:
        noted: list[int] = []
        for run in runs:
            way(connection, run)
            noted.append(sum(map(len, wire.writes)))
            assert connection._out_size == sum(map(len, connection._out)) <= WRITE_BUFFER_HIGH
        sizes.append(noted)

    together, apart = [over_a_wire(partial(say, way), within=within) for way in (Connection.send_all, one_by_one)]
    assert together == apart
    assert sizes[0] == sizes[1], "at the same time"
    assert b"".join(together) == b"".join(b"".join(run) for run in runs)


def test_exactly_the_limit_is_gathered_and_a_byte_more_is_not() -> None:
    def say(connection: Connection, wire: Wire) -> None:
        connection.send(b"x")
        connection.send_all([b"y" * (WRITE_BUFFER_HIGH - 2), b"z"])
        assert not wire.writes
        connection.send_all([b"!"])
        assert len(wire.writes) == 1

    assert len(over_a_wire(say, within=True)) == 1


@pytest.mark.parametrize("within", [False, True])
def test_on_a_connection_that_is_closed_nothing_happens(within: bool) -> None:
    def say(connection: Connection, wire: Wire) -> None:
        connection.close("the test")
        connection.send_all([b"a", b"b" * WRITE_BUFFER_HIGH])
        assert (connection._out, connection._out_size, connection._scheduled) == ([], 0, False)

    assert over_a_wire(say, within=within) == []


@pytest.mark.parametrize("within", [False, True])
def test_a_peer_that_does_not_read_is_closed_in_the_middle_and_gets_nothing_of_the_rest(within: bool) -> None:
    def say(connection: Connection, wire: Wire) -> None:
        connection.send_all([b"x" * (WRITE_BUFFER_HIGH + 1)] * 100)
        assert connection.closed
        assert wire.aborted

    writes = over_a_wire(say, within=within, unread=-1)
    assert WRITE_BUFFER_MAX < sum(map(len, writes)) <= WRITE_BUFFER_MAX + WRITE_BUFFER_HIGH + 1


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_of_all_sizes_come_whole_and_in_order(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real socket; some are gathered, some go over the limit."""
    monkeypatch.setattr(server_module, "WRITE_BUFFER_HIGH", 100_000)
    sizes = [10, 9_000, 5_000, 3, 90_000, 4_096, 1, 400_000, 20]

    def answer(peer: Peer, frames: list[Frame]) -> None:
        made = [Command(0, body=bytes([n]) * sizes[n], opaque=n).encode() for n in (decode(frame).opaque for frame in frames)]
        peer.send_all(made[:-1])
        peer.send(made[-1])

    async def work() -> None:
        server = Server(Core(answer), SystemClock(), idle_s=60, connections_max=10)
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
