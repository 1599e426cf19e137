"""Outgoing connections for programs without an event loop, such as Spark's tasks: blocking sockets, one per address.

    caller = BlockingCaller()
    answer = caller.call("127.0.0.1:10911", command, timeout_s=3)            one request, one answer
    calls = [caller.start(address, one, timeout_s=3) for one in commands]    several under way on one connection
    answers = [caller.wait(one) for one in calls]                            in any order

Used by one thread. A large body is received by one system call into the bytes object that the caller gets, or into memory of
the caller's (Room): no copy.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

from roquet.errors import Broken, CallTimeout, ClientError, ConnectFailed, Rejected, RoquetError
from roquet.net.address import endpoint
from roquet.net.connection import PLAIN, ConnectionOptions, Contexts, no_encryption
from roquet.wire.command import ONEWAY, Command, decode
from roquet.wire.frame import FRAME_SIZE_MAX, Framer
from roquet.wire.pending import OPAQUE_MAX
from roquet.wire.signing import sign

T = TypeVar("T")

SMALL = 16 * 1024
"""Frames up to this are received in one piece for the framer; of larger ones it sees the beginning, and the body is received by itself."""
MORE = getattr(socket, "MSG_MORE", 0)
"""Linux sends what follows in the same packets."""
PIPELINED_MAX = 128
"""Requests that `call_all` has under way on one connection at most."""


@dataclass(slots=True, eq=False)
class Call:
    """A request under way."""

    address: str
    opaque: int
    deadline: float
    line: _Line


@dataclass(slots=True)
class Room:
    """Memory that large bodies are received into, one behind the other, so that whoever wants several need not join them."""

    data: memoryview
    used: int = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.used

    def put(self, body: bytes) -> None:
        self.data[self.used : self.used + len(body)] = body
        self.used += len(body)


class BlockingCaller:
    def __init__(self, connection: ConnectionOptions = PLAIN, *, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        """Raises ClientError when the files of the connection's TLS cannot be used."""
        self.credentials = connection.credentials
        self.connect_timeout_s = connection.connect_timeout_ms / 1000
        self.frame_size_max = frame_size_max
        self._contexts = Contexts(connection.tls)
        self._lines: dict[str, _Line] = {}

    def call(self, address: str, command: Command, timeout_s: float) -> Command:
        """The answer, of any code. Raises ConnectFailed or CallTimeout."""
        return self.wait(self.start(address, command, timeout_s))

    def ask(self, address: str, command: Command, timeout_s: float) -> Command:
        """The answer when it is a success. Raises Rejected otherwise."""
        return succeeded(self.call(address, command, timeout_s), address)

    def start(self, address: str, command: Command, timeout_s: float, body: bytes | memoryview = b"") -> Call:
        """Send a request and do not wait for its answer yet. The time runs from now. Raises ConnectFailed or CallTimeout.

        `body`: of a command that has none itself: a large one goes from where it lies, without a copy.
        """
        deadline = time.monotonic() + timeout_s
        line = self._lines.get(address)
        if line is None or line.ended is not None:
            tls = self._contexts.current()
            line = self._lines[address] = _Line(address, min(self.connect_timeout_s, timeout_s), tls, self.frame_size_max)
        command.opaque = line.new_opaque()
        if self.credentials is not None:
            command.body, body = command.body or bytes(body), b""  # a signature is of the body, too
            sign(command, self.credentials)
        line.write(command.encode(), body, deadline)
        line.expected.add(command.opaque)
        return Call(address, command.opaque, deadline, line)

    def wait(self, call: Call, room: Room | None = None) -> Command:
        """The answer of a started call, of any code. With a room, a large body that fits goes there, and the answer's own is empty.
        Raises ConnectFailed or CallTimeout."""
        return call.line.answer(call.opaque, call.deadline, room)

    def forget(self, call: Call) -> None:
        """Nobody waits for this answer any more; it is thrown away when it comes."""
        call.line.expected.discard(call.opaque)
        call.line.arrived.pop(call.opaque, None)

    def call_all(self, requests: Iterable[tuple[str, Command]], timeout_s: float) -> list[Command | ClientError]:
        """Many at once, over as many connections as there are addresses; answers, or what went wrong, in order."""
        results: list[Command | ClientError] = []
        under_way: list[Call | ClientError] = []

        def finish(one: Call | ClientError) -> None:
            try:
                results.append(self.wait(one) if isinstance(one, Call) else one)
            except ClientError as error:
                results.append(error)

        down: dict[str, ClientError] = {}  # an address that cannot be reached is tried once, not once per request
        for address, command in requests:
            if address in down:
                under_way.append(down[address])
            else:
                try:
                    under_way.append(self.start(address, command, timeout_s))
                except ClientError as error:
                    down[address] = error
                    under_way.append(error)
            if len(under_way) > PIPELINED_MAX:
                finish(under_way.pop(0))
        for one in under_way:
            finish(one)
        return results

    def oneway(self, address: str, command: Command, timeout_s: float) -> None:
        """Send and do not expect an answer. Raises ConnectFailed or CallTimeout when it could not be handed over."""
        command.flag |= ONEWAY
        self.forget(self.start(address, command, timeout_s))

    def hang_up(self, address: str) -> None:
        line = self._lines.pop(address, None)
        if line is not None:
            line.end("this client closed it")

    def close(self) -> None:
        for address in list(self._lines):
            self.hang_up(address)

    def __repr__(self) -> str:
        open_now = [address for address, line in self._lines.items() if line.ended is None]
        return f"<BlockingCaller {', '.join(open_now) or 'no connection'}>"


def follow(caller: BlockingCaller, steps: Generator[tuple[str, Command], Command | RoquetError, T], timeout_s: float) -> T:
    """What the steps give, when each of their requests was answered or failed (routing/name_servers.py)."""
    answer: Command | RoquetError | None = None
    while True:
        try:
            address, command = next(steps) if answer is None else steps.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return] # what the steps returned
        try:
            answer = caller.call(address, command, timeout_s)
        except ClientError as error:
            answer = error


def succeeded(answer: Command, address: str) -> Command:
    if answer.code != 0:
        raise Rejected(answer.code, (answer.remark or "no remark").strip(), address)
    return answer


class _Line:
    """One connection. Once `ended` has a reason it is of no more use."""

    def __init__(self, address: str, connect_timeout_s: float, tls: ssl.SSLContext | None, frame_size_max: int) -> None:
        self.address = address
        self.ended: str | None = None
        self.expected: set[int] = set()
        """Requests whose answers somebody waits for."""
        self.arrived: dict[int, Command] = {}
        """Answers that came while another was waited for."""
        self._frame_size_max = frame_size_max
        self._next = 0
        self._waits_s = -1.0  # what the socket's time limits are set to
        self._socket = self._connect(connect_timeout_s, tls)
        self._encrypted = tls is not None

    def _connect(self, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
        try:
            host, port = endpoint(self.address)
            made = socket.create_connection((host, port), timeout_s)
        except TimeoutError:
            text = f"no connection to {self.address} within {timeout_s:g} s; is it reachable from this host?"
            raise ConnectFailed(text) from None
        except (OSError, ValueError) as error:
            text = f"cannot connect to {self.address}: {error}; is the server running there, and the address right?"
            raise ConnectFailed(text) from None
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                return tls.wrap_socket(made, server_hostname=host)
            made.setblocking(True)  # time limits are the kernel's, so that one call can receive a whole body
        except (OSError, ValueError) as error:
            made.close()
            raise ConnectFailed(no_encryption(self.address, error)) from None
        return made

    def new_opaque(self) -> int:
        self._next = self._next + 1 if self._next < OPAQUE_MAX else 1
        return self._next

    # -- writing

    def write(self, frame: bytes, body: bytes | memoryview, deadline: float) -> None:
        """A frame, and a body that it does not have yet."""
        try:
            self._limit(deadline)
            if body:
                frame = (int.from_bytes(frame[:4], "big") + len(body)).to_bytes(4, "big") + frame[4:]
                self._socket.sendall(frame, 0 if self._encrypted else MORE)
                self._socket.sendall(body)
            else:
                self._socket.sendall(frame)
        except (BlockingIOError, TimeoutError):
            # Part of it may have left, so nothing else can follow on this connection.
            self.end("a request could not be written in time")
            raise CallTimeout(
                f"{self.address} did not take a request of {len(frame) + len(body)} bytes in time; it may be overloaded"
            ) from None
        except OSError as error:
            raise self._connection_lost(str(error)) from None

    # -- reading

    def answer(self, opaque: int, deadline: float, room: Room | None = None) -> Command:
        while opaque not in self.arrived:
            if self.ended is not None:
                raise ConnectFailed(self._sentence(self.ended))
            command = self._read(deadline, opaque, room)
            # Requests of the server, and answers that nobody waits for any more, are not for us.
            if command.is_response and command.opaque in self.expected:
                self.expected.discard(command.opaque)
                self.arrived[command.opaque] = command
        return self.arrived.pop(opaque)

    def _read(self, deadline: float, opaque: int, room: Room | None) -> Command:
        """The next frame. A time limit that passes between two frames leaves the connection in use; inside one it ends it."""
        front = self._receive(8, deadline)
        if not front:
            self.expected.discard(opaque)
            raise CallTimeout(
                f"no answer from {self.address} in time; the server may or may not have done what was asked, so check before repeating it"
            )
        try:
            framer = Framer(self._frame_size_max)
            frames = framer.feed(front)
            left = framer.needed - len(front)
            if left and left <= SMALL:
                frames = framer.feed(self._receive(left, deadline, inside=True))
            if frames:
                return decode(frames[0])
            header_size = int.from_bytes(front[5:], "big")
            command = decode((front[4], self._receive(header_size, deadline, inside=True), b""))
            left -= header_size
            if room is not None and left <= room.left and command.is_response and command.opaque == opaque:
                self._receive_into(room.data[room.used : room.used + left], deadline)
                room.used += left
            else:
                command.body = self._receive(left, deadline, inside=True)
            return command
        except Broken as error:
            self.end(str(error))
            text = f"{self.address} sent bytes that are not the protocol: {error}; is this a RocketMQ port?"
            raise ConnectFailed(text) from None

    def _receive(self, size: int, deadline: float, *, inside: bool = False) -> bytes:
        """Exactly this many bytes; none when the time passed before the first of a frame."""
        pieces: list[bytes] = []
        left = size
        while left:
            try:
                self._limit(deadline)
                piece = self._socket.recv(left, 0 if self._encrypted else socket.MSG_WAITALL)
            except (BlockingIOError, TimeoutError):
                if not pieces and not inside:
                    return b""
                raise self._stopped() from None
            except OSError as error:
                raise self._connection_lost(str(error)) from None
            if not piece:
                raise self._connection_lost("the server closed it")
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _receive_into(self, room: memoryview, deadline: float) -> None:
        """As many bytes as there is room for, of a frame that has begun."""
        while room:
            try:
                self._limit(deadline)
                got = self._socket.recv_into(room, 0, 0 if self._encrypted else socket.MSG_WAITALL)
            except (BlockingIOError, TimeoutError):
                raise self._stopped() from None
            except OSError as error:
                raise self._connection_lost(str(error)) from None
            if not got:
                raise self._connection_lost("the server closed it")
            room = room[got:]

    def _limit(self, deadline: float) -> None:
        """Set how long the socket may wait. Set anew only when it would be wrong by a tenth."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            left_s = 0.001  # what is there already is still taken
        elif left_s <= self._waits_s <= left_s * 1.1:
            return
        self._waits_s = left_s
        if self._encrypted:
            self._socket.settimeout(left_s)
        else:
            value = struct.pack("ll", int(left_s), int(left_s % 1 * 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    # -- ending

    def _sentence(self, reason: str) -> str:
        return f"the connection to {self.address} was lost: {reason}; the request may or may not have been carried out"

    def _stopped(self) -> CallTimeout:
        self.end("an answer stopped in its middle")
        return CallTimeout(f"{self.address} sent part of an answer and then nothing in time; it may be overloaded")

    def _connection_lost(self, reason: str) -> ConnectFailed:
        self.end(reason)
        return ConnectFailed(self._sentence(reason))

    def end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
            self.expected.clear()
            self._socket.close()
