"""Connections inside the process: no socket, no thread, and no time. What is sent waits in one queue until `deliver`.

    client ── call ──> Line ──> core.receive(peer, frames)
                        ^              │
                        └── answers ───┘ peer.send

Frames are encoded and decoded as on a socket, and those that are written together arrive together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from roquet.errors import Broken, ConnectFailed, RoquetError
from roquet.net.caller import Handler
from roquet.net.connection import PLAIN, ConnectionOptions
from roquet.ports import Answered, Clock, Peer
from roquet.testing.network import stored_host
from roquet.wire.command import ONEWAY, Command, decode
from roquet.wire.frame import Frame, Framer
from roquet.wire.pending import NEVER, PendingCalls
from roquet.wire.signing import sign

log = logging.getLogger(__name__)

FIRST_PORT = 40_001


class Server(Protocol):
    def receive(self, peer: Peer, frames: list[Frame]) -> list[Frame] | None: ...

    def disconnected(self, peer: Peer) -> None: ...


class Wires:
    """State: who listens where, who calls, and what is on its way."""

    def __init__(self, clock: Clock, wake: Callable[[], None] = lambda: None) -> None:
        """`wake`: told that there is something to deliver."""
        self.clock = clock
        self.wake = wake
        self.servers: dict[str, Server] = {}
        self.callers: dict[WireCaller, None] = {}
        self.delivered = 0
        """Events so far: whoever waits until nothing more happens compares it."""
        self._events: deque[Callable[[], None]] = deque()
        self._ports = FIRST_PORT
        self._is_delivering = False

    def post(self, event: Callable[[], None]) -> None:
        self._events.append(event)
        if not self._is_delivering:
            self.wake()

    def deliver(self) -> None:
        """Everything that is on its way, and what comes of it."""
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._events:
                self.delivered += 1
                event = self._events.popleft()
                try:
                    event()
                except Exception:
                    log.exception("! what was delivered failed")
        finally:
            self._is_delivering = False

    @property
    def busy(self) -> bool:
        return bool(self._events)

    def listen(self, address: str, server: Server) -> None:
        self.servers[address] = server

    def stop(self, address: str) -> None:
        """Nobody listens there any more, and whoever is connected is cut off."""
        self.servers.pop(address, None)
        lost = ConnectFailed(f"the connection to {address} was lost; the request may or may not have been carried out")
        for caller in list(self.callers):
            caller.cut(address, lost)

    def next_port(self) -> int:
        port, self._ports = self._ports, self._ports + 1
        return port

    def next_deadline_ms(self) -> int:
        """No call runs out of time before this."""
        return min((line.calls.next_deadline_ms for caller in self.callers for line in caller.lines.values()), default=NEVER)

    def expire(self) -> None:
        """Calls whose time is over fail."""
        now_ms = self.clock.steady_ms()
        for caller in list(self.callers):
            for line in list(caller.lines.values()):
                self.delivered += line.calls.expire(now_ms)


class WirePeer:
    """A connection as the server sees it (ports.Peer)."""

    def __init__(self, line: Line, address: str) -> None:
        self.address = address
        self.host = stored_host(address)
        self.closed = self.unread = False
        self.principal = ""
        self.certificate_subject = ""
        self._line = line

    def send(self, data: bytes | memoryview) -> None:
        if not self.closed:
            self._line.arrives(bytes(data))

    def send_all(self, frames: list[bytes]) -> None:
        self.send(b"".join(frames))

    def close(self, reason: str) -> None:
        if not self.closed:
            log.warning("x %s closed: %s", self.address, reason)
            self._line.end(ConnectFailed(f"{self._line.address} closed the connection: {reason}"))

    def __repr__(self) -> str:
        return f"<WirePeer {self.address}{' closed' if self.closed else ''}>"


class Line:
    """One connection, from its first frame until it is lost."""

    def __init__(self, caller: WireCaller, address: str) -> None:
        self.address = address
        self.calls = PendingCalls()
        self.ended = False
        self._caller = caller
        self._wires = caller.wires
        self._out: list[bytes] = []
        self._server: Server | None = None
        self._peer: WirePeer | None = None
        self._to_server = Framer()
        self._to_client = Framer()

    def write(self, frame: bytes) -> None:
        self._out.append(frame)
        if len(self._out) == 1:
            self._wires.post(self._flush)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self.ended or not out:
            return
        if self._server is None or self._peer is None:
            server = self._wires.servers.get(self.address)
            if server is None:
                self.end(ConnectFailed(f"cannot connect to {self.address}: refused; is the server running there, and the address right?"))
                return
            self._server, self._peer = server, WirePeer(self, f"127.0.0.1:{self._wires.next_port()}")
        try:
            frames = self._to_server.feed(b"".join(out))
        except Broken as error:
            self._peer.close(str(error))
            return
        self._server.receive(self._peer, frames)

    def arrives(self, data: bytes) -> None:
        """From the server."""
        self._wires.post(lambda: self._received(data))

    def _received(self, data: bytes) -> None:
        if self.ended:
            return
        for frame in self._to_client.feed(data):
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

        handler = self._caller.handler
        if handler is None:
            reply(command.reply(3, f" request type {command.code} not supported"))
            return
        try:
            handler(self.address, command, reply)
        except Exception as error:
            log.exception("! %s request %s failed", self.address, command.code)
            reply(command.reply(1, f"{type(error).__name__}: {error}"))

    def end(self, error: ConnectFailed) -> None:
        """It is lost: calls under way fail. Idempotent."""
        if not self.ended:
            self.abandon()
            self.calls.fail_all(error)

    def abandon(self) -> None:
        """The same, where nobody is left who could be told."""
        self.ended = True
        self._caller.forget(self)
        peer, server = self._peer, self._server
        if peer is not None and server is not None:
            peer.closed = True
            self._wires.post(lambda: server.disconnected(peer) if self._wires.servers.get(self.address) is server else None)

    def finish(self, error: ConnectFailed) -> None:
        """The same, after what was accepted is written, as on a socket."""
        if self._peer is not None and not self.ended:
            self._flush()
        self.end(error)


class WireCaller:
    """ports.Caller, and `client.place.Connections`. The real one is `roquet.net.caller.AsyncCaller`."""

    def __init__(self, wires: Wires, connection: ConnectionOptions = PLAIN, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """TLS is nothing here: bytes never leave the process. `loop`: where a client lives; None: it is a server's."""
        self.wires = wires
        self.loop = loop
        self.handler: Handler | None = None
        self.lines: dict[str, Line] = {}
        self.closed = False
        self._credentials = connection.credentials
        wires.callers[self] = None

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        if self.closed:
            self.wires.post(lambda: done(ConnectFailed(f"not sent to {address}: this client is closed")))
            return
        line = self._line(address)
        command.opaque = line.calls.add(done, self.wires.clock.steady_ms() + timeout_ms)
        self._write(line, command)

    def oneway(self, address: str, command: Command) -> None:
        if self.closed:
            return
        line = self._line(address)
        command.flag |= ONEWAY
        command.opaque = line.calls.add(_nobody, 0)
        line.calls.forget(command.opaque)
        self._write(line, command)

    def _write(self, line: Line, command: Command) -> None:
        if self._credentials is not None:
            sign(command, self._credentials)
        line.write(command.encode())

    def _line(self, address: str) -> Line:
        line = self.lines.get(address)
        if line is None:
            line = self.lines[address] = Line(self, address)
        return line

    def hang_up(self, address: str) -> None:
        line = self.lines.get(address)
        if line is not None:
            line.finish(ConnectFailed(f"the connection to {address} was closed by this client"))

    def cut(self, address: str, error: ConnectFailed) -> None:
        line = self.lines.get(address)
        if line is not None:
            line.end(error)

    def forget(self, line: Line) -> None:
        if self.lines.get(line.address) is line:
            del self.lines[line.address]

    async def drained(self, address: str) -> None:
        """There is always room."""

    async def close(self) -> None:
        self.closed = True
        for address in list(self.lines):
            self.hang_up(address)
        self.wires.callers.pop(self, None)

    def abandon(self) -> None:
        """Its process, or its event loop, is gone: nobody is called any more, and the servers learn of it."""
        self.closed = True
        for line in list(self.lines.values()):
            line.abandon()
        self.wires.callers.pop(self, None)


def _nobody(_: Command | RoquetError) -> None:
    pass
