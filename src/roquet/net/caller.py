"""Outgoing connections over asyncio: the real `ports.Caller`.

One connection per address, opened on first use and opened anew on the next use after it was lost. Frames handed over
in one turn of the loop leave in one write, many bytes in a few; answers that arrive in one read are handled together.

    idle --call--> connecting --connected--> open --lost--> idle       lost, refused, too slow: calls under way fail
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import cast

from roquet.errors import Broken, ConnectFailed, RoquetError
from roquet.net.address import endpoint
from roquet.net.connection import PLAIN, ConnectionOptions, Contexts, no_encryption
from roquet.net.unfinished import Unfinished
from roquet.wire.command import ONEWAY, Command, decode
from roquet.wire.frame import Framer
from roquet.wire.pending import NEVER, Done, PendingCalls
from roquet.wire.signing import sign

log = logging.getLogger(__name__)

Reply = Callable[[Command], None]
Handler = Callable[[str, Command, Reply], None]
"""(address, request from the server, reply). A request that is not oneway should get exactly one reply."""

SILENT_MS = 10_000
"""A connection on which a call timed out and nothing at all has arrived for this long is taken for dead, and opened anew."""
UNFINISHED_MAX = 128 * 1024 * 1024
"""Bytes of answers that have begun and not ended, over all connections (net/unfinished.py)."""
LATE_MS, GRACE_MS = 20, 200
"""An alarm that rings so late says that the loop stood still: the program held it up, or the machine slept. What was asked may not have
left yet, and what was answered lies in the socket unread. So each call that is due by then or soon has so much time from then on, once."""
NOT_LISTENING_MS = 1_000
"""So long a time in which nobody listened is not the silence of a connection. Less is: a program may be held up again and again."""
LET_IN_S = 0.05
READ_MAX = 256 * 1024
"""Bytes of one read."""
LARGE = 4 * 1024
"""A frame of so many bytes leaves at once when it is the first of its turn: the server works on it while others are made."""
MUCH = 16 * 1024
"""Later ones leave when they are so many bytes together: a write for each batch of 32 small messages cost a client 6 %."""
BACKLOG_MAX = 4 * 1024 * 1024
"""Bytes waiting to be written to one address above which `drained` makes its callers wait."""


class AsyncCaller:
    """Belongs to the loop it was made in; every method is called on that loop."""

    def __init__(self, handler: Handler | None = None, connection: ConnectionOptions = PLAIN) -> None:
        """Raises ClientError when the files of the connection's TLS cannot be used."""
        self.handler = handler
        self.connection = connection
        self.contexts = Contexts(connection.tls)
        self._credentials = connection.credentials
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, _Line] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER
        self.unfinished = Unfinished(UNFINISHED_MAX)
        self.room = memoryview(bytearray(READ_MAX))
        """Where all connections read into, one after another: memory that is asked for anew costs more than the read."""
        self._letting_in = False

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # -- ports.Caller

    def call(self, address: str, command: Command, timeout_ms: int, done: Done) -> None:
        if self.closed:
            self._loop.call_soon(done, ConnectFailed(f"not sent to {address}: this client is closed"))
            return
        line = self._lines.get(address)
        if line is None or line.ended:
            line = self._open(address)
        deadline = int(self._loop.time() * 1000) + timeout_ms
        command.opaque = line.calls.add(done, deadline)
        if self._credentials is not None:
            sign(command, self._credentials)
        line.write(command.encode())
        if deadline < self._timer_ms:
            self._arm(deadline)

    def oneway(self, address: str, command: Command) -> None:
        if self.closed:
            return
        line = self._lines.get(address)
        if line is None or line.ended:
            line = self._open(address)
        command.flag |= ONEWAY
        command.opaque = line.calls.add(_nobody, 0)  # a number nobody waits for, but not one in use
        line.calls.forget(command.opaque)
        if self._credentials is not None:
            sign(command, self._credentials)
        line.write(command.encode())

    def hang_up(self, address: str) -> None:
        line = self._lines.pop(address, None)
        if line is not None:
            line.end(ConnectFailed(f"the connection to {address} was closed by this client"))

    # -- for the shell around it

    def backlog(self, address: str) -> int:
        """Bytes accepted for this address and not yet handed to the operating system."""
        line = self._lines.get(address)
        return 0 if line is None else line.backlog()

    async def drained(self, address: str) -> None:
        """Return when the address has room for more. Senders that wait for no answer await this, or fill the memory."""
        line = self._lines.get(address)
        if line is not None and line.backlog() > BACKLOG_MAX:
            await line.drained()

    def addresses(self) -> list[str]:
        """Where a connection is open or being opened."""
        return [address for address, line in self._lines.items() if not line.ended]

    async def close(self) -> None:
        """Close every connection, after writing what was accepted; calls under way fail with ConnectFailed."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines = list(self._lines.values())
        for line in lines:
            self.hang_up(line.address)
        for line in lines:
            await line.gone()

    # -- inside

    def note_unfinished(self, line: _Line, have: int, need: int, *, fresh: bool) -> None:
        """Servers together may make a client hold so much of answers that do not end, and no more."""
        self.unfinished.note(line, have, need, self._loop.time(), fresh=fresh)
        if self.unfinished.waiting and not self._letting_in:
            self._letting_in = True
            self._loop.call_later(LET_IN_S, self._let_in)

    def _let_in(self) -> None:
        self.unfinished.tick(self._loop.time())
        self._letting_in = self.unfinished.waiting > 0
        if self._letting_in:
            self._loop.call_later(LET_IN_S, self._let_in)

    def _open(self, address: str) -> _Line:
        line = self._lines[address] = _Line(self, address, self._loop)
        line.connect()
        return line

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        # One timer for all calls. Not finer than 10 ms: a late timeout hurts nobody.
        self._timer = self._loop.call_at(deadline_ms / 1000 + 0.01, self._expire)

    def _expire(self) -> None:
        now = self.now_ms()
        late_ms = now - self._timer_ms
        self._timer, self._timer_ms = None, NEVER
        for line in list(self._lines.values()):
            if late_ms > LATE_MS:
                line.calls.put_off(now + GRACE_MS)
            if late_ms > NOT_LISTENING_MS:
                line.heard_ms += late_ms
            if line.calls.expire(now) and now - line.heard_ms > SILENT_MS:
                line.end(ConnectFailed(f"{line.address} was silent for {now - line.heard_ms} ms; the connection is given up"))
        soonest = min((line.calls.next_deadline_ms for line in self._lines.values()), default=NEVER)
        if soonest < self._timer_ms and not self.closed:
            self._arm(max(soonest, now))


def _nobody(_: Command | RoquetError) -> None:
    pass


class _Line(asyncio.BufferedProtocol):
    """One connection, from the decision to open it until it is lost."""

    def __init__(self, caller: AsyncCaller, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.caller = caller
        self.address = address
        self.calls = PendingCalls()
        self.ended = False
        self.heard_ms = int(loop.time() * 1000)  # when something last arrived
        self._loop = loop
        self._framer = Framer()
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._out: list[bytes] = []
        self._out_size = 0
        self._flushing = False  # a flush is scheduled for the end of this turn of the loop
        self._paused = False
        self._partial = False  # part of a frame has come
        self._waiters: list[asyncio.Future[None]] = []
        self._socket_closed = loop.create_future()

    # -- opening

    def connect(self) -> None:
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            host, port = endpoint(self.address)
            how = self.caller.contexts.how(host)
            async with asyncio.timeout(self.caller.connection.connect_timeout_ms / 1000):
                await self._loop.create_connection(lambda: self, host, port, **how)
        except TimeoutError:
            limit = self.caller.connection.connect_timeout_ms
            self.end(ConnectFailed(f"no connection to {self.address} within {limit} ms; is it reachable from this host?"))
        except (OSError, ValueError) as error:
            encrypting = self.caller.contexts.tls is not None and isinstance(
                error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError
            )
            plain = f"cannot connect to {self.address}: {error}; is the server running there, and the address right?"
            self.end(ConnectFailed(no_encryption(self.address, error) if encrypting else plain))
        finally:
            self._connecting = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        line = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if self.ended:
            line.abort()
            return
        self._transport = line
        line.set_write_buffer_limits(high=1024 * 1024)
        self._flush()

    # -- writing

    def write(self, frame: bytes) -> None:
        self._out.append(frame)
        self._out_size += len(frame)
        if len(frame) >= LARGE and (self._out_size >= MUCH or not self._flushing):
            self._flush()
        if not self._flushing and self._transport is not None:
            self._flushing = True
            self._loop.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._paused:
            out, self._out, self._out_size = self._out, [], 0
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            if self._waiters and not self._paused:  # all of it is taken, and nobody will be told to go on
                self._wake()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()
        if not self._paused:
            self._wake()

    def backlog(self) -> int:
        return self._out_size + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    async def drained(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.caller.room

    def buffer_updated(self, nbytes: int) -> None:
        if not self.ended:
            self._received(bytes(self.caller.room[:nbytes]))

    def _received(self, data: bytes) -> None:
        self.heard_ms = int(self._loop.time() * 1000)
        try:
            frames = self._framer.feed(data)
            have = self._framer.buffered
            if have or self._partial:
                fresh = bool(frames) or not self._partial
                self._partial = have > 0
                self.caller.note_unfinished(self, have, self._framer.needed, fresh=fresh)
            for frame in frames:
                command = decode(frame)
                if command.flag & 1:
                    self.calls.answer(command)
                else:
                    self._asked(command)
        except Broken as error:
            log.warning("x %s %s", self.address, error)
            self.end(ConnectFailed(f"{self.address} sent bytes that are not the protocol: {error}; is this a RocketMQ port?"))

    def hold_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def go_on_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self, reason: str) -> None:
        log.warning("x %s closed: %s", self.address, reason)
        self.end(ConnectFailed(f"the connection to {self.address} was closed by this client: {reason}"))

    def _asked(self, command: Command) -> None:
        handler = self.caller.handler

        def reply(answer: Command) -> None:
            if not command.is_oneway and not self.ended:
                answer.opaque = command.opaque
                self.write(answer.encode())

        if handler is None:
            reply(command.reply(3, f" request type {command.code} not supported"))
            return
        try:
            handler(self.address, command, reply)
        except Exception as error:
            log.exception("! %s request %s failed", self.address, command.code)
            reply(command.reply(1, f"{type(error).__name__}: {error}"))

    # -- ending

    def connection_lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error else ""
        self.end(ConnectFailed(f"the connection to {self.address} was lost{reason}; the request may or may not have been carried out"))
        if not self._socket_closed.done():
            self._socket_closed.set_result(None)

    def end(self, error: ConnectFailed) -> None:
        """No more use of this connection. Idempotent."""
        if self.ended:
            return
        self.ended = True
        self._framer = Framer()
        self.caller.unfinished.forget(self)
        if self.caller._lines.get(self.address) is self:
            del self.caller._lines[self.address]
        if self._transport is not None:
            self._flush()
            self._transport.close()
        elif not self._socket_closed.done():
            self._socket_closed.set_result(None)
        self._out.clear()
        self._out_size = 0
        self._wake()
        self.calls.fail_all(error)

    async def gone(self) -> None:
        """Wait until the socket is closed, a second at most."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        try:
            async with asyncio.timeout(1):
                await asyncio.shield(self._socket_closed)
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
