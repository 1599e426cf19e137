"""SimNetwork: connections between simulated hosts.

Bytes arrive in order and in pieces of any size, after delays from the seed. A connection can be cut: both ends learn of it,
each in its own time, and what was under way is lost. A partition holds bytes back until it heals, as TCP does; it may be in one
direction only. Where packets are lost, bytes come later. A host can stand still: nothing reaches its process until it goes on.

Servers whose frames stand each for itself may be `unordered`: what is sent to them, and what they answer, is lost, doubled, and
comes in any order. TCP does nothing of this. The rules of a group must bear it all the same.

    caller.call ──> line ──> wire ──> SimPeer ──> core.receive(peer, frames)
                     ^                  │
                     └──────────────────┘ peer.send
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Protocol
from zlib import crc32

from roquet.errors import Broken, ConnectFailed
from roquet.ports import Answered, Peer
from roquet.testing.simulation import Simulation
from roquet.wire.command import ONEWAY, Command, decode
from roquet.wire.frame import Frame, Framer
from roquet.wire.pending import NEVER, PendingCalls

CONNECT_TIMEOUT_US = 3_000_000

Reply = Callable[[Command], None]
Handler = Callable[[str, Command, Reply], None]


class Core(Protocol):
    def receive(self, peer: Peer, frames: list[Frame]) -> list[Frame] | None: ...

    def disconnected(self, peer: Peer) -> None: ...


class ServerEnd(Protocol):
    """A connection where it was accepted."""

    address: str
    closed: bool

    def received(self, data: bytes) -> None: ...

    def disconnected(self) -> None: ...


class ClientEnd(Protocol):
    """A connection where it was opened."""

    ended: bool

    def received(self, data: bytes) -> None: ...

    def end(self, error: ConnectFailed) -> None: ...


class SimNetwork:
    """State: who listens where, which wires exist, and which pairs of hosts cannot reach each other."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.slowest_us = 3_000
        """Delays go up to this."""
        self.slow: dict[str, int] = {}
        """Host -> up to this for what it sends and gets."""
        self.split_ratio = 0.1
        """How many sends arrive in pieces."""
        self._listening: dict[str, Core] = {}
        self._accept: dict[str, Callable[[Wire, str], ServerEnd]] = {}
        self._wires: dict[Wire, None] = {}
        self._apart: set[frozenset[str]] = set()
        self._deaf: set[tuple[str, str]] = set()
        """(from, to) where nothing arrives."""
        self.forbidden: set[tuple[str, str]] = set()
        """The same for good: no healing changes it."""
        self.loss = 0.0
        """How many pieces must be sent again, or are lost for ever where there is no order."""
        self.unordered: set[str] = set()
        """Addresses of servers."""
        self.still: dict[str, int] = {}
        """Host -> until when its process stands still."""
        self._ports = 40_000

    # Servers

    def listen(self, address: str, core: Core, accept: Callable[[Wire, str], ServerEnd] | None = None) -> None:
        """`accept` makes the server's end of a connection, given the address of the other end; None: one that carries commands."""
        assert address not in self._listening, f"{address} is in use"
        self._listening[address] = core
        self._accept[address] = accept or (lambda wire, other: SimPeer(wire, other, core))

    def stop(self, address: str, *, slowest_us: int = 50_000) -> None:
        """The server is gone; whoever is connected learns of it within this time."""
        del self._listening[address]
        for wire in self.wires(host_of(address)):
            if wire.address == address:
                wire.peer.closed = True
                wire.cut(slowest_us)

    def core_at(self, address: str) -> Core | None:
        return self._listening.get(address)

    # Trouble

    def wires(self, host: str) -> list[Wire]:
        """Connections of this host, made by it or to it."""
        return [wire for wire in self._wires if host in (wire.host, host_of(wire.address))]

    def part(self, host: str, other: str) -> None:
        self._apart.add(frozenset((host, other)))

    def rejoin(self, host: str, other: str) -> None:
        self._apart.discard(frozenset((host, other)))

    def deafen(self, source: str, target: str) -> None:
        """What `source` sends to `target` does not arrive; the other direction works."""
        self._deaf.add((source, target))

    def undeafen(self, source: str, target: str) -> None:
        self._deaf.discard((source, target))

    def heal(self) -> None:
        """Everybody reaches everybody again, nothing is lost, and no host is slow."""
        self._apart.clear()
        self._deaf.clear()
        self.slow.clear()
        self.loss = 0.0

    def parted(self, host: str, other: str) -> bool:
        """At least one of the two does not hear the other."""
        return (bool(self._apart) and frozenset((host, other)) in self._apart) or (
            bool(self._deaf) and ((host, other) in self._deaf or (other, host) in self._deaf)
        ) or (host, other) in self.forbidden  # fmt: skip

    def arrives(self, source: str, target: str) -> bool:
        """Does what is sent now from here to there arrive?"""
        if self._apart and frozenset((source, target)) in self._apart:
            return False
        return (source, target) not in self._deaf and (source, target) not in self.forbidden

    def when_awake(self, host: str, action: Callable[[], object]) -> None:
        """Do it now, or when the host's process goes on."""
        until_us = self.still.get(host, 0) if self.still else 0
        if until_us > self.simulation.now_us:
            self.simulation.at(until_us, lambda: self.when_awake(host, action))
        else:
            action()

    # Inside

    def delay_us(self, host: str, other: str) -> int:
        slow = self.slow
        return self.simulation.between(50, max(self.slowest_us, slow.get(host, 0), slow.get(other, 0)) if slow else self.slowest_us)

    def accept(self, wire: Wire, other: str) -> ServerEnd:
        return self._accept[wire.address](wire, other)

    def connect(self, host: str, address: str, line: ClientEnd) -> Wire:
        self._ports += 1
        wire = Wire(self, host, address, line, self._ports)
        self._wires[wire] = None
        return wire

    def forget(self, wire: Wire) -> None:
        self._wires.pop(wire, None)


class Wire:
    """One connection. Two directions, each with the pieces that are under way in it."""

    def __init__(self, network: SimNetwork, host: str, address: str, line: ClientEnd, port: int) -> None:
        self.network = network
        self.host = host
        self.address = address
        self.server_host = host_of(address)
        self.line = line
        self.broken = False
        self._unordered = address in network.unordered
        self._to_server: deque[bytes] = deque()
        self._to_client: deque[bytes] = deque()
        self.peer = network.accept(self, f"{host}:{port}")

    def send(self, data: bytes, *, to_server: bool) -> None:
        if self.broken:
            return
        network, simulation = self.network, self.network.simulation
        if self._unordered:
            self._carry(data, to_server)
            return
        pieces = [data]
        if len(data) > 1 and simulation.random.random() < network.split_ratio:
            cuts = sorted({0, len(data), simulation.random.randrange(1, len(data)), simulation.random.randrange(1, len(data))})
            pieces = [data[start:stop] for start, stop in itertools.pairwise(cuts)]
        for piece in pieces:
            (self._to_server if to_server else self._to_client).append(piece)
            simulation.after(self._delay_us(), lambda: self._arrive(to_server))

    def _carry(self, data: bytes, to_server: bool) -> None:
        """Frames that stand each for itself."""
        network, random = self.network, self.network.simulation.random
        if random.random() < network.loss or not network.arrives(*self._way(to_server)):
            return

        def arrive() -> None:
            if not self.broken and not (self.peer.closed if to_server else self.line.ended):
                self._deliver(data, to_server)

        for _ in range(1 if random.random() < 0.98 else 2):
            network.simulation.after(self._delay_us(), lambda: network.when_awake(self._way(to_server)[1], arrive))

    def _way(self, to_server: bool) -> tuple[str, str]:
        return (self.host, self.server_host) if to_server else (self.server_host, self.host)

    def _arrive(self, to_server: bool) -> None:
        """The next piece, whichever this event was scheduled for: so the order stays."""
        pieces = self._to_server if to_server else self._to_client
        if self.broken or not pieces:
            return
        network = self.network
        source, target = self._way(to_server)
        if not network.arrives(source, target) or (network.loss and network.simulation.random.random() < network.loss):
            network.simulation.after(100_000 + self._delay_us(), lambda: self._arrive(to_server))
        elif network.still and network.still.get(target, 0) > network.simulation.now_us:
            network.simulation.at(network.still[target], lambda: self._arrive(to_server))
        else:
            self._deliver(pieces.popleft(), to_server)

    def _delay_us(self) -> int:
        return self.network.delay_us(self.host, self.server_host)

    def _deliver(self, data: bytes, to_server: bool) -> None:
        way = f"{self.peer.address} > {self.address}" if to_server else f"{self.address} > {self.peer.address}"
        self.network.simulation.note(f"{way} {len(data)} bytes {crc32(data):08x}")
        if to_server:
            self.peer.received(data)
        else:
            self.line.received(data)

    def cut(self, slowest_us: int = 500_000) -> None:
        """The connection is lost. Some of what was on its way to the client may still arrive: it had left already."""
        if self.broken:
            return
        simulation = self.network.simulation
        late: list[bytes] = []
        if simulation.random.random() < 0.5 and not self.network.parted(self.host, self.server_host):
            late = list(self._to_client)[: simulation.random.randint(0, len(self._to_client))]
        self.broken = True
        self._to_client.clear()
        self._to_server.clear()
        self.network.forget(self)

        def client_learns() -> None:
            for data in late:
                if not self.line.ended:
                    self._deliver(data, to_server=False)
            self.line.end(ConnectFailed(f"the connection to {self.address} was lost; the request may or may not have been carried out"))

        network = self.network
        simulation.after(simulation.between(50, slowest_us), lambda: network.when_awake(self.host, client_learns))
        simulation.after(simulation.between(50, slowest_us), lambda: network.when_awake(self.server_host, self.peer.disconnected))


class SimPeer:
    """A connection as the server's core sees it (ports.Peer)."""

    def __init__(self, wire: Wire, address: str, core: Core | None) -> None:
        self.address = address
        self.host = stored_host(address)
        self.closed = self.unread = False
        self.principal = ""
        self.certificate_subject = ""
        self._wire = wire
        self._core = core
        self._framer = Framer()

    def received(self, data: bytes) -> None:
        if self.closed or self._core is None:
            return
        try:
            frames = self._framer.feed(data)
        except Broken as error:
            self.close(str(error))
            return
        if frames:
            self._core.receive(self, frames)

    def send(self, data: bytes | memoryview) -> None:
        if not self.closed:
            self._wire.send(bytes(data), to_server=False)

    def send_all(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.send(frame)

    def close(self, reason: str) -> None:
        if not self.closed:
            self._wire.network.simulation.note(f"x {self.address} closed: {reason}")
            self.closed = True
            self._wire.cut(1_000)

    def disconnected(self) -> None:
        core, self._core = self._core, None
        self.closed = True
        if core is not None and self._wire.network.core_at(self._wire.address) is core:
            core.disconnected(self)

    def __repr__(self) -> str:
        return f"<SimPeer {self.address}{' closed' if self.closed else ''}>"


class SimCaller:
    """ports.Caller over the simulated network; the real one is `roquet.net.caller.AsyncCaller`."""

    def __init__(self, network: SimNetwork, host: str, handler: Handler | None = None) -> None:
        self.network = network
        self.host = host
        self.handler = handler
        self.dead = False
        self._lines: dict[str, Line] = {}
        self._alarm_ms = NEVER

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        if self.dead:
            return
        line = self._line(address)
        deadline_ms = self._now_ms() + timeout_ms
        command.opaque = line.calls.add(done, deadline_ms)
        line.write(command.encode())
        self._arm(deadline_ms)

    def oneway(self, address: str, command: Command) -> None:
        if self.dead:
            return
        line = self._line(address)
        command.flag |= ONEWAY
        command.opaque = line.calls.add(lambda result: None, 0)
        line.calls.forget(command.opaque)
        line.write(command.encode())

    def hang_up(self, address: str) -> None:
        line = self._lines.pop(address, None)
        if line is not None:
            line.end(ConnectFailed(f"the connection to {address} was closed by this client"))

    def kill(self) -> None:
        """The process is gone: nobody is called any more, and the other ends learn of it."""
        self.dead = True
        for line in self._lines.values():
            line.ended = True
            if line.wire is not None:
                line.wire.cut()
        self._lines.clear()

    def forget(self, line: Line) -> None:
        if self._lines.get(line.address) is line:
            del self._lines[line.address]

    def _line(self, address: str) -> Line:
        line = self._lines.get(address)
        if line is None or line.ended:
            line = self._lines[address] = Line(self, address)
        return line

    def _now_ms(self) -> int:
        return self.network.simulation.now_us // 1_000

    def _arm(self, deadline_ms: int) -> None:
        """One alarm for all calls, as the real caller has."""
        if deadline_ms < self._alarm_ms:
            self._alarm_ms = deadline_ms
            network = self.network
            network.simulation.at(deadline_ms * 1_000 + 10_000, lambda: network.when_awake(self.host, lambda: self._expire(deadline_ms)))

    def _expire(self, alarm_ms: int) -> None:
        if self.dead or alarm_ms != self._alarm_ms:
            return
        self._alarm_ms = NEVER
        for line in list(self._lines.values()):
            line.calls.expire(self._now_ms())
        soonest = min((line.calls.next_deadline_ms for line in self._lines.values()), default=NEVER)
        if soonest < NEVER:
            self._arm(soonest)


class Line:
    """The client's end of one connection, from the decision to open it until it is lost."""

    def __init__(self, caller: SimCaller, address: str) -> None:
        self.caller = caller
        self.address = address
        self.calls = PendingCalls()
        self.ended = False
        self.wire: Wire | None = None
        self._framer = Framer()
        self._out: list[bytes] = []
        network = caller.network
        if network.parted(caller.host, host_of(address)):
            error = ConnectFailed(f"no connection to {address} within 3000 ms; is it reachable from this host?")
            network.simulation.after(CONNECT_TIMEOUT_US, lambda: network.when_awake(caller.host, lambda: self.end(error)))
        else:
            delay_us = network.delay_us(caller.host, host_of(address))
            network.simulation.after(delay_us, lambda: network.when_awake(caller.host, self._connected))

    def _connected(self) -> None:
        if self.ended or self.caller.dead:
            return
        network = self.caller.network
        if network.core_at(self.address) is None:
            self.end(ConnectFailed(f"cannot connect to {self.address}: refused; is the server running there, and the address right?"))
            return
        self.wire = network.connect(self.caller.host, self.address, self)
        out, self._out = self._out, []
        if out:
            self.wire.send(b"".join(out), to_server=True)

    def write(self, frame: bytes) -> None:
        if self.wire is None:
            self._out.append(frame)
        else:
            self.wire.send(frame, to_server=True)

    def received(self, data: bytes) -> None:
        if self.ended or self.caller.dead:
            return
        try:
            frames = self._framer.feed(data)
        except Broken as error:
            self.end(ConnectFailed(f"{self.address} sent bytes that are not the protocol: {error}"))
            return
        for frame in frames:
            command = decode(frame)
            if command.is_response:
                self.calls.answer(command)
            else:
                self._asked(command)

    def _asked(self, command: Command) -> None:
        def reply(answer: Command) -> None:
            if not command.is_oneway and not self.ended:
                answer.opaque = command.opaque
                self.write(answer.encode())

        if self.caller.handler is None:
            reply(command.reply(3, f" request type {command.code} not supported"))
        else:
            self.caller.handler(self.address, command, reply)

    def end(self, error: ConnectFailed) -> None:
        if self.ended:
            return
        self.ended = True
        self.caller.forget(self)
        if self.wire is not None:
            self.wire.cut(1_000)
        self.calls.fail_all(error)


def host_of(address: str) -> str:
    return address.rpartition(":")[0]


def stored_host(address: str) -> bytes:
    """As it stands in records."""
    ip, _, port = address.rpartition(":")
    return bytes(int(part) for part in ip.split(".")) + int(port).to_bytes(4, "big")
