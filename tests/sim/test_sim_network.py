"""SimNetwork and SimBackground: what the cores are promised by the real ones."""

from __future__ import annotations

import pytest

from roquet.errors import CallTimeout, ConnectFailed, RoquetError
from roquet.ports import Peer
from roquet.testing import SimBackground, SimCaller, SimNetwork, Simulation
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame

SERVER = "10.0.0.1:80"
SECOND = 1_000_000


class Echo:
    """Answers with the body it got, except to the ones it was told to be silent about."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.peers: list[Peer] = []
        self.gone: list[Peer] = []
        self.silent = False

    def receive(self, peer: Peer, frames: list[Frame]) -> None:
        if peer not in self.peers:
            self.peers.append(peer)
        for frame in frames:
            request = decode(frame)
            self.heard.append(request.body)
            if not self.silent and not request.is_oneway:
                peer.send(request.reply(body=request.body).encode())

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer)


class Kit:
    def __init__(self, seed: int = 1) -> None:
        self.simulation = Simulation(seed)
        self.network = SimNetwork(self.simulation)
        self.echo = Echo()
        self.network.listen(SERVER, self.echo)
        self.caller = SimCaller(self.network, "10.0.0.2")
        self.answers: list[Command | RoquetError] = []

    def call(self, body: bytes, timeout_ms: int = 3_000) -> None:
        self.caller.call(SERVER, Command(1, {}, body), timeout_ms, lambda answer: self.answers.append(answer))

    def run(self, seconds: float = 10) -> list[Command | RoquetError]:
        self.simulation.run(self.simulation.now_us + int(seconds * SECOND))
        answers, self.answers = self.answers, []
        return answers


def bodies(answers: list[Command | RoquetError]) -> list[bytes]:
    return [answer.body for answer in answers if isinstance(answer, Command)]


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_whatever_the_delays_and_pieces(seed: int) -> None:
    kit = Kit(seed)
    kit.network.split_ratio = 0.8
    sent = [b"%d" % number for number in range(100)]
    for body in sent:
        kit.call(body)
    assert bodies(kit.run()) == sent == kit.echo.heard
    assert len(kit.echo.peers) == 1


def test_nobody_listening_is_a_failed_connection() -> None:
    kit = Kit()
    kit.network.stop(SERVER)
    kit.call(b"x")
    (answer,) = kit.run()
    assert isinstance(answer, ConnectFailed)


def test_no_answer_is_a_timeout_and_a_late_one_is_nobodys() -> None:
    kit = Kit()
    kit.echo.silent = True
    kit.call(b"x", timeout_ms=500)
    assert kit.run(0.4) == []
    (answer,) = kit.run(0.2)
    assert isinstance(answer, CallTimeout)
    kit.echo.peers[0].send(Command(0, opaque=1, flag=1).encode())
    assert kit.run() == []


def test_a_cut_connection_is_told_to_both_ends_and_the_next_call_opens_another() -> None:
    kit = Kit()
    kit.echo.silent = True
    kit.call(b"x")
    assert kit.run(1) == []
    (wire,) = kit.network.wires("10.0.0.2")
    wire.cut()
    (answer,) = kit.run(1)
    assert isinstance(answer, ConnectFailed)
    assert kit.echo.gone == kit.echo.peers
    kit.echo.silent = False
    kit.call(b"y")
    assert bodies(kit.run()) == [b"y"]
    assert len(kit.echo.peers) == 2


def test_a_partition_holds_bytes_back_until_it_heals() -> None:
    kit = Kit()
    kit.call(b"before")
    kit.run(1)
    kit.network.part("10.0.0.2", "10.0.0.1")
    kit.call(b"during", timeout_ms=60_000)
    assert kit.run(20) == []
    kit.network.heal()
    assert bodies(kit.run(1)) == [b"during"]


def test_no_connection_can_be_made_through_a_partition() -> None:
    kit = Kit()
    kit.network.part("10.0.0.1", "10.0.0.2")
    kit.call(b"x", timeout_ms=60_000)
    assert kit.run(2) == []
    (answer,) = kit.run(2)
    assert isinstance(answer, ConnectFailed)


def test_a_dead_caller_is_told_nothing_and_its_server_learns_of_it() -> None:
    kit = Kit()
    kit.call(b"x")
    kit.run(1)
    kit.call(b"y")
    kit.caller.kill()
    kit.call(b"z")
    assert kit.run() == []
    assert kit.echo.gone == kit.echo.peers


def test_a_server_asks_and_the_handler_answers() -> None:
    kit = Kit()
    kit.caller.handler = lambda address, request, reply: reply(request.reply(body=address.encode()))
    kit.call(b"hello")
    kit.run(1)
    kit.echo.peers[0].send(Command(40, opaque=9).encode())
    kit.run(1)
    assert kit.echo.heard == [b"hello", SERVER.encode()]


def test_rubbish_closes_the_connection() -> None:
    kit = Kit()
    kit.call(b"x")
    kit.run(1)
    kit.echo.peers[0].send(b"\xff" * 20)
    kit.call(b"y")
    answers = kit.run(1)
    assert all(isinstance(answer, ConnectFailed) for answer in answers)
    assert len(answers) == 1
    assert kit.echo.gone == kit.echo.peers


def test_work_begins_in_order_and_is_told_later() -> None:
    simulation = Simulation(4)
    background = SimBackground(simulation, slowest_us=50_000)
    begun: list[int] = []
    told: list[int | Exception] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise OSError("the disk is gone")
        return number

    for number in range(20):
        background.run(lambda number=number: work(number), told.append)  # type: ignore[misc] # mypy infers no default in a lambda
    assert begun == []
    simulation.run(5 * SECOND)
    assert begun == list(range(20))
    assert sorted(str(one) for one in told) == sorted(str(number) if number != 3 else "the disk is gone" for number in range(20))


def test_a_dead_background_tells_nobody() -> None:
    simulation = Simulation(4)
    background = SimBackground(simulation)
    told: list[object] = []
    background.run(lambda: 1, told.append)
    background.kill()
    simulation.run(SECOND)
    assert told == []


def test_what_one_host_says_may_be_unheard_while_it_hears_the_other() -> None:
    network = SimNetwork(Simulation(1))
    network.deafen("10.0.0.1", "10.0.0.2")
    assert not network.arrives("10.0.0.1", "10.0.0.2")
    assert network.arrives("10.0.0.2", "10.0.0.1")
    assert network.parted("10.0.0.2", "10.0.0.1"), "no connection is made where an answer cannot come back"
    network.heal()
    assert network.arrives("10.0.0.1", "10.0.0.2")


def test_what_reaches_a_host_that_stands_still_happens_when_it_goes_on() -> None:
    simulation = Simulation(1)
    network = SimNetwork(simulation)
    network.still["10.0.0.1"] = 5_000
    happened: list[int] = []
    network.when_awake("10.0.0.1", lambda: happened.append(simulation.now_us))
    network.when_awake("10.0.0.2", lambda: happened.append(simulation.now_us))
    simulation.run(10_000)
    assert happened == [0, 5_000]
