"""One suite for the real clock, background, caller and peer and for those of `roquet.testing`: a fake ships only because it passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from roquet.clock import SystemClock
from roquet.errors import ConnectFailed, RoquetError
from roquet.net.background import ThreadBackground
from roquet.net.caller import AsyncCaller
from roquet.net.server import Server
from roquet.ports import Background, Caller, Clock, Peer, Receiver
from roquet.testing import (
    FakePeer,
    ManualBackground,
    ManualClock,
    RecordingCaller,
    SimBackground,
    SimCaller,
    SimClock,
    SimNetwork,
    Simulation,
)
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame, Framer

PATIENCE_S = 60
SECOND = 1_000_000

Until = Callable[[Callable[[], bool]], None]
"""Lets the world go on until this is so."""


def now(condition: Callable[[], bool]) -> None:
    assert condition(), "must have happened by now"


def simulated(simulation: Simulation) -> Until:
    def until(condition: Callable[[], bool]) -> None:
        assert simulation.run(simulation.now_us + 60 * SECOND, condition)

    return until


def in_loop(loop: asyncio.AbstractEventLoop) -> Until:
    async def wait(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    def until(condition: Callable[[], bool]) -> None:
        loop.run_until_complete(asyncio.wait_for(wait(condition), PATIENCE_S))

    return until


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


# Clocks


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(), ManualClock(look_ms=1), SimClock(Simulation(0))], ids=repr)
def test_a_clock_shows_whole_milliseconds_of_wall_and_steady_time_and_the_steady_one_never_goes_back(clock: Clock) -> None:
    assert isinstance(clock.now_ms(), int)
    assert clock.now_ms() > 1_700_000_000_000
    looks = [clock.steady_ms() for _ in range(100)]
    assert looks == sorted(looks)
    assert looks[0] >= 0


def test_a_set_wall_clock_leaves_the_steady_one_alone() -> None:
    manual, simulated = ManualClock(), SimClock(Simulation(0))
    steady = (manual.steady_ms(), simulated.steady_ms())
    wall = (manual.now_ms(), simulated.now_ms())
    manual.step(-5_000)
    simulated.skew_ms -= 5_000
    assert (manual.steady_ms(), simulated.steady_ms()) == steady
    assert (manual.now_ms(), simulated.now_ms()) == (wall[0] - 5_000, wall[1] - 5_000)


# Backgrounds


@pytest.fixture(params=["real", "manual", "held", "simulated"])
def background(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> Iterator[tuple[Background, Until]]:
    if request.param == "real":
        threads = ThreadBackground(loop)
        yield threads, in_loop(loop)
        threads.close()
    elif request.param == "simulated":
        simulation = Simulation(5)
        yield SimBackground(simulation), simulated(simulation)
    else:
        manual = ManualBackground(hold=request.param == "held")

        def until(condition: Callable[[], bool]) -> None:
            manual.release()
            now(condition)

        yield manual, until


def test_each_work_is_done_once_and_its_result_told_once(background: tuple[Background, Until]) -> None:
    pool, until = background
    done: list[int] = []
    told: list[int | Exception] = []

    def work(number: int) -> int:
        done.append(number)
        return number * 10

    for number in range(20):
        pool.run(lambda number=number: work(number), told.append)  # type: ignore[misc] # mypy infers no default in a lambda
    until(lambda: len(told) == 20)
    assert sorted(done) == list(range(20))
    assert sorted(one for one in told if isinstance(one, int)) == [number * 10 for number in range(20)]


def test_what_work_raises_is_its_result_and_the_next_work_is_done(background: tuple[Background, Until]) -> None:
    pool, until = background
    told: list[Any] = []

    def fail() -> None:
        raise OSError(5, "no disk")

    pool.run(fail, told.append)
    until(lambda: len(told) == 1)
    assert isinstance(told[0], OSError)
    pool.run(lambda: "fine", told.append)
    until(lambda: len(told) == 2)
    assert told[1] == "fine"


def test_who_is_told_may_give_more_work(background: tuple[Background, Until]) -> None:
    pool, until = background
    told: list[Any] = []

    def again(result: Any) -> None:
        told.append(result)
        if result < 5:
            pool.run(lambda: result + 1, again)

    pool.run(lambda: 0, again)
    until(lambda: len(told) == 6)
    assert told == [0, 1, 2, 3, 4, 5]


# Callers and peers


class Echo(Receiver):
    """A server's core: answers with the body it got, and knows its peer."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.heard: list[bytes] = []

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int = 0) -> None:
        self.peers.append(peer)
        for request in map(decode, frames):
            self.heard.append(request.body)
            if not request.is_oneway:
                peer.send(request.reply(body=request.body).encode())

    def disconnected(self, peer: Peer) -> None: ...

    def tick(self, now_ms: int) -> None: ...


@dataclass
class Line:
    """A caller, an Echo that it can call at `address`, and an address where nobody is."""

    caller: Caller
    echo: Echo
    address: str
    nobody: str
    until: Until
    do: Callable[[Callable[[], None]], None] = lambda action: action()
    """Calls are made where the caller lives."""

    def call(self, address: str, *bodies: bytes) -> list[Command | RoquetError]:
        answers: list[Command | RoquetError] = []

        def calls() -> None:
            for body in bodies:
                self.caller.call(address, Command(1, {}, body), 30_000, answers.append)
            assert not answers, "nobody is told from within the call"

        self.do(calls)
        self.until(lambda: len(answers) == len(bodies))
        return answers


@pytest.fixture(params=["real", "simulated"])
def line(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> Iterator[Line]:
    echo = Echo()
    if request.param == "simulated":
        simulation = Simulation(5)
        network = SimNetwork(simulation)
        network.listen("10.0.0.1:80", echo)
        yield Line(SimCaller(network, "10.0.0.2"), echo, "10.0.0.1:80", "10.0.0.3:80", simulated(simulation))
        return

    async def build() -> tuple[Server, int, AsyncCaller]:
        server = Server(echo, SystemClock(), idle_s=60, connections_max=10)
        return server, await server.listen("127.0.0.1", 0), AsyncCaller()

    def do(action: Callable[[], None]) -> None:
        async def inside() -> None:
            action()

        loop.run_until_complete(inside())

    server, port, caller = loop.run_until_complete(build())
    yield Line(caller, echo, f"127.0.0.1:{port}", "127.0.0.1:1", in_loop(loop), do)
    loop.run_until_complete(caller.close())
    loop.run_until_complete(server.close())


def test_calls_are_heard_in_order_on_one_connection_and_each_is_answered_once(line: Line) -> None:
    bodies = [b"%d" % number for number in range(20)]
    answers = line.call(line.address, *bodies)
    assert [answer.body for answer in answers if isinstance(answer, Command)] == bodies == line.echo.heard
    assert len(set(map(id, line.echo.peers))) == 1


def test_a_call_to_nobody_fails_and_the_next_call_elsewhere_is_answered(line: Line) -> None:
    (answer,) = line.call(line.nobody, b"x")
    assert isinstance(answer, ConnectFailed)
    assert line.nobody in str(answer)
    (answer,) = line.call(line.address, b"x")
    assert isinstance(answer, Command)


def test_a_oneway_call_is_heard_and_not_answered(line: Line) -> None:
    line.do(lambda: line.caller.oneway(line.address, Command(1, {}, b"quiet")))
    line.until(lambda: line.echo.heard == [b"quiet"])


def test_a_connection_that_is_hung_up_fails_its_calls_and_the_next_call_opens_another(line: Line) -> None:
    line.call(line.address, b"x")
    line.do(lambda: line.caller.hang_up(line.address))
    (answer,) = line.call(line.address, b"y")
    assert isinstance(answer, Command)
    assert len(set(map(id, line.echo.peers))) == 2


def test_a_peer_is_known_by_an_address_and_the_same_as_stored_in_records(line: Line) -> None:
    line.call(line.address, b"x")
    (peer,) = line.echo.peers
    ip, _, port = peer.address.rpartition(":")
    assert peer.host == bytes(int(part) for part in ip.split(".")) + int(port).to_bytes(4, "big")
    assert len(FakePeer().host) == len(peer.host)


def test_a_closed_peer_is_closed_for_both_ends(line: Line) -> None:
    line.call(line.address, b"x")
    (peer,) = line.echo.peers
    assert not peer.closed
    line.do(lambda: peer.close("enough"))
    assert peer.closed
    (answer,) = line.call(line.address, b"y")
    while isinstance(answer, ConnectFailed):  # it was on its way to the connection that ends
        (answer,) = line.call(line.address, b"y")
    assert len(set(map(id, line.echo.peers))) == 2


def test_a_fake_peer_keeps_what_a_real_one_would_have_written_to_its_client() -> None:
    echo, peer = Echo(), FakePeer("10.0.0.9:5")
    frames = Framer().feed(Command(1, {}, b"a", opaque=4).encode() + Command(1, {}, b"b", opaque=5).encode())
    echo.receive(peer, frames)
    assert [(answer.opaque, answer.body) for answer in peer.take()] == [(4, b"a"), (5, b"b")]
    assert not peer.sent
    assert not peer.closed
    peer.close("enough")
    assert peer.closed
    assert peer.close_reason == "enough"


def test_a_recording_caller_answers_each_call_once_with_success_or_leaves_it_to_the_test() -> None:
    caller = RecordingCaller()
    answers: list[Command | RoquetError] = []
    caller.call("a:1", Command(7, opaque=3), 1_000, answers.append)
    (answer,) = answers
    assert isinstance(answer, Command)
    assert answer.is_response
    assert (answer.code, answer.opaque) == (0, 3)
    caller.answering = False
    caller.call("b:1", Command(8), 1_000, answers.append)
    caller.oneway("c:1", Command(9))
    assert len(answers) == 1
    assert [(address, command.code) for address, command, _ in caller.calls] == [("a:1", 7), ("b:1", 8), ("c:1", 9)]
