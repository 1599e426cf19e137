"""Accepting connections over asyncio: bytes in, frames to the core, answers out.

One turn of the loop hands the core every whole frame that arrived, from all connections together; what it answers to each leaves in
one write. What the core had no time for waits in its connection, nothing more is read from that one, and the connections that wait take
turns. A peer that sends rubbish, stays silent too long or never reads its answers is closed; the others do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from roquet.errors import Broken
from roquet.net.address import shown
from roquet.net.buffers import LargeMemory
from roquet.net.entrance import Entrance
from roquet.net.processor import ProcessorTime
from roquet.net.strangers import Strangers
from roquet.net.tls import PLAIN_ONLY, ServerTls, subject_of
from roquet.net.unfinished import Unfinished
from roquet.ports import TURN_MS, Clock, Peer, Read, Receiver, Rest
from roquet.wire.frame import FRAME_SIZE_MAX, Frame, Framer

log = logging.getLogger("roquet.net")

TICK_S = 0.05
WRITE_BUFFER_HIGH = 1024 * 1024
"""Above this nothing more is read from the peer until it has taken its answers."""
PIECE_MIN = 4 * 1024
"""Where answers have so many bytes each, to copy them into one piece costs more than to hand them over one by one."""
WRITE_BUFFER_MAX = 64 * 1024 * 1024
"""Above this the peer is closed: it asked for more than it reads."""
WAITING_MAX = 160 * 1024 * 1024
"""The same for all connections together."""
FRAME_COST = 200
"""Bytes that a frame in memory takes beside its own."""
HEADER_MAX = 512 * 1024
"""Bytes of a request's header. A million small fields would keep the loop for most of a second before anybody looks at them; what is
large in ordinary use is in the body. (Answers may have larger ones: of a batch all its message ids.)"""
CLOSINGS_AT_ONCE, CLOSINGS_PER_S = 100, 5
"""Log lines about closed connections."""
TOGETHER_MAX = 4 * 1024 * 1024
"""Bytes that are read in a turn before the core is given what has come."""
CROWDED_TURNS = 32
"""After one in which several connections were read. While each turn has one, what it says goes to the core at once: to wait for the end
of the turn costs a little, too."""
UNFINISHED_MAX = 128 * 1024 * 1024
"""Bytes of frames that have begun and not ended, over all connections (net/unfinished.py)."""


class Core(Receiver, Protocol):
    def disconnected(self, peer: Peer) -> None: ...

    def tick(self, now_ms: int) -> Rest | None: ...


class Connection(asyncio.Protocol):
    """One accepted connection; to the core it is a Peer."""

    __slots__ = (
        "_busy", "_came", "_framer", "_held", "_loop", "_out", "_out_size", "_partial", "_rest", "_rest_size", "_scheduled", "_server",
        "_stranger", "_transport", "_waiting",
        "active", "address", "certificate_subject", "closed", "host", "in_line", "principal", "unread",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.loop
        self._framer = Framer(header_max=HEADER_MAX)
        self._out: list[bytes | memoryview] = []
        self._out_size = 0
        self._waiting = 0  # bytes the peer has not read, as last looked at
        self.unread = False  # it does not take its answers: nothing more is read from it
        self._held = False  # there is no memory for the rest of its frame: the same
        self._partial = False  # part of a frame has come
        self._came: list[Frame] = []  # frames that the core gets in this turn
        self._busy = False  # the core looks at them, and what it answers is written when it is done
        self._stranger = False  # it has not shown who it is, and the server wants to know
        self._scheduled = False
        self._rest: list[Frame] | None = None  # frames for a later turn; None when the core is done with all
        self._rest_size = 0  # of those that wait until the peer takes its answers
        self.in_line = False  # its rest waits for a turn
        self.active = True  # traffic since the last look for idle connections
        self.closed = False
        self.principal = ""
        self.certificate_subject = ""
        self.address = ""
        self.host = bytes(8)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        peer = transport.get_extra_info("peername")
        if not peer or not self._server.admit(self):
            self.closed = True
            transport.abort()
            return
        self.address = shown(peer)
        self.host = host_bytes(peer[0], peer[1])
        self.certificate_subject = subject_of(transport.get_extra_info("peercert"))
        strangers = self._server.strangers
        if strangers is not None and not strangers.knows(self):
            self._stranger = True
            self._framer.limit, self._framer.header_max = strangers.frame_max, strangers.header_max
            strangers.came(self)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if (raw := transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.active = True
        try:
            frames = self._framer.feed(data)
        except Broken as error:
            self.close(str(error))
            return
        if self._rest is not None:
            self._rest += frames  # it came although reading pauses: behind the others
        elif frames:
            self._server.came(self, frames, len(data))
        framer = self._framer
        have = framer.buffered
        if have or self._partial:
            fresh = bool(frames) or not self._partial
            self._partial = have > 0
            if not self.closed:
                self._server.unfinished.note(self, have, framer.needed, self._loop.time(), fresh=fresh)

    def gather(self, frames: list[Frame]) -> None:
        """The core gets them later in this turn."""
        self._came = self._came + frames if self._came else frames

    def gathered(self) -> list[Frame]:
        """What it gets now; `hand_over` or `handed_over` follows."""
        frames, self._came = self._came, []
        self._busy = True
        return frames

    def hand_over(self, frames: list[Frame], until_ms: int) -> bool:
        """To the core. True: some of it waits."""
        self._busy = True
        rest = self._server.core.receive(self, frames, until_ms)
        if rest is not None or self._rest is not None or self._stranger:
            return self.handed_over(rest)
        self._busy = False  # as nearly always, and a call less
        if self._out:
            self._flush()
        return False

    def handed_over(self, rest: list[Frame] | None) -> bool:
        """The core is done with what it got, but for these."""
        waited, self._rest = self._rest is not None, rest
        self._busy = False
        if self._out:
            self._flush()
        if waited != (rest is not None):
            self._read_on()
        if self._stranger and self._server.strangers is not None and self._server.strangers.knows(self):
            self._stranger = False
            self._framer.limit, self._framer.header_max = FRAME_SIZE_MAX, HEADER_MAX
        return rest is not None

    def go_on(self, until_ms: int) -> bool:
        """Its turn has come. True: it needs another. A peer that does not take its answers gets one when it does."""
        if self._rest is None or self.closed:
            return False
        if self.unread and not self._server.core.has_begun(self):
            self._rest_size = sum([len(header) + len(body) + FRAME_COST for _, header, body in self._rest])
            self._server.note_waiting(self, self._transport.get_write_buffer_size() + self._rest_size)
            return False
        self.active = True
        return self.hand_over(self._rest, until_ms) and not self.closed

    def hold_reading(self) -> None:
        self._held = True
        self._read_on()

    def go_on_reading(self) -> None:
        self._held = False
        self._read_on()

    def _read_on(self) -> None:
        with contextlib.suppress(RuntimeError):
            if self._held or self.unread or self._rest is not None:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def send(self, data: bytes | memoryview) -> None:
        if self.closed:
            return
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size > WRITE_BUFFER_HIGH:
            self._flush()  # not gathered further: what the peer does not read must show
        elif not self._busy and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def send_all(self, frames: list[bytes]) -> None:
        size = self._out_size + sum(map(len, frames))
        if self._busy and size <= WRITE_BUFFER_HIGH and not self.closed:
            self._out += frames
            self._out_size = size
        else:
            for frame in frames:
                self.send(frame)

    def _flush(self) -> None:
        self._scheduled = False
        out = self._out
        if self.closed or not out:
            return
        large = self._out_size >= len(out) * PIECE_MIN
        self._out = []
        self._out_size = 0
        self.active = True
        transport = self._transport
        if large and len(out) > 1:
            transport.writelines(out)
        else:
            transport.write(out[0] if len(out) == 1 else b"".join(out))
        waiting = transport.get_write_buffer_size()
        if waiting > WRITE_BUFFER_MAX:
            self.close(f"it does not read its answers: {waiting} bytes wait, limit is {WRITE_BUFFER_MAX}")
        elif waiting > WRITE_BUFFER_HIGH or self._waiting:
            self._server.note_waiting(self, waiting + self._rest_size)

    def waits(self, size: int) -> int:
        """Remember how much waits until the peer reads; returns the change."""
        change, self._waiting = size - self._waiting, size
        return change

    def pause_writing(self) -> None:
        self.unread = True
        self._read_on()

    def resume_writing(self) -> None:
        self._rest_size = 0
        self._server.note_waiting(self, self._transport.get_write_buffer_size())
        self.unread = False
        self._read_on()
        if self._rest is not None and not self.closed:
            self._server.wait_for_turn(self)

    def connection_lost(self, error: Exception | None) -> None:
        was_closed, self.closed = self.closed, True
        self.unread = False
        if self._came:
            self._server.hand_over()  # it is gone, and what it had sent before counts
        if self._rest is not None and not was_closed:
            self._server.take_last(self, self._rest)
        self._out.clear()
        self._rest, self._rest_size = None, 0
        self._framer = Framer()  # whoever still knows this peer must not keep what had come
        self._server.unfinished.forget(self)
        self._server.note_waiting(self, 0)
        if self._server.strangers is not None:
            self._server.strangers.gone(self)
        if self._server.forget(self) or not was_closed:
            self._server.core.disconnected(self)

    def close(self, reason: str) -> None:
        if not self.closed:
            self._server.closings.say(self.address, reason)
            self.closed = True
            self._transport.abort()

    def finish(self) -> None:
        """Close after writing what is there."""
        if not self.closed:
            self._flush()
            self.closed = True
            self._transport.close()

    def __repr__(self) -> str:
        return f"<Connection {self.address}{' closed' if self.closed else ''}>"


class Closings:
    """Log lines about connections that were closed: some at once, then few a second, with how many were left out. A stranger who is
    closed again and again must not fill the log."""

    def __init__(self) -> None:
        self._left = float(CLOSINGS_AT_ONCE)
        self._then_s = 0.0
        self._left_out = 0

    def say(self, address: str, reason: str) -> None:
        now_s = time.monotonic()
        self._left = min(CLOSINGS_AT_ONCE, self._left + (now_s - self._then_s) * CLOSINGS_PER_S)
        self._then_s = now_s
        if self._left < 1:
            self._left_out += 1
            return
        self._left -= 1
        more = f" (and {self._left_out} others before)" if self._left_out else ""
        self._left_out = 0
        log.warning("x %s closed: %s%s", address, reason, more)


class Server:
    """The listening sockets of one core, its connections, and the clock that drives it."""

    def __init__(
        self, core: Core, clock: Clock, *, idle_s: int, connections_max: int, unfinished_max: int = UNFINISHED_MAX,
        tls: ServerTls = PLAIN_ONLY,
    ) -> None:  # fmt: skip
        self.core = core
        self.clock = clock
        self.idle_s = idle_s
        self.connections_max = connections_max
        self.loop = asyncio.get_running_loop()
        self.connections: dict[Connection, None] = {}
        """In the order in which they came."""
        self.entrance = Entrance(tls, silent_s=idle_s, has_room=self._has_room)
        self.unfinished = Unfinished(unfinished_max)
        self.closings = Closings()
        self.strangers: Strangers | None = None
        """Connections that have not shown who they are; None: nobody has to."""
        self._memory = LargeMemory()
        self._listening: list[asyncio.Server] = []
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_rest: asyncio.Handle | None = None
        self._idle_due = self.loop.time() + idle_s
        self._refused = 0
        self._waiting = 0  # bytes that slow readers have not read yet, over all connections
        self._slow: dict[Connection, int] = {}  # and of each of them
        self._tick_due = self.loop.time()
        self._until_ms = 0
        """Steady time up to which requests that cost something are taken in this turn of the loop."""
        self._turn_s = -1.0
        self._turn_due = False
        self._crowded = 0
        """Turns for which what comes is gathered."""
        self._last: Connection | None = None
        """Whose frames the core got last."""
        self._came: dict[Connection, None] = {}
        """Connections with frames that the core has not seen."""
        self._came_bytes = 0
        self._waiting_turn: deque[Connection] = deque()
        """Connections with frames for which there was no time."""
        self.on_lateness: Callable[[int], None] = lambda late_ms: None
        """Told at every tick how late it came: how long what is read now may have waited."""
        self.on_processor_awaited: Callable[[float], None] = lambda share: None
        """Told at every tick for which share of the time since the last one this thread had something to do and no processor."""
        self._processor = ProcessorTime()
        self.is_spare: Callable[[Peer], bool] | None = None
        """May this connection be closed to let another one in? None: nobody may."""

    def came(self, connection: Connection, frames: list[Frame], size: int) -> None:
        """Frames have come, in so many bytes. While several connections have something in a turn of the loop the core gets all of it
        together, else each at once."""
        if not self._crowded:
            if connection is not self._last:
                if self.loop.time() == self._turn_s:
                    self._crowded = CROWDED_TURNS
                self._last = connection
            if connection.hand_over(frames, self._turn_ends_ms()):
                self.wait_for_turn(connection)
            return
        connection.gather(frames)
        self._came[connection] = None
        self._came_bytes += size
        if self._came_bytes > TOGETHER_MAX:
            self.hand_over()
        elif not self._turn_due:
            self._schedule_turn()

    def _turn_ends_ms(self) -> int:
        """Until when this turn of the loop takes requests that cost something. A new one begins when the loop went round, which uvloop's
        time tells: it stands still meanwhile. (Without uvloop every read begins one.) While others wait the time of the last turn holds,
        which is over: plain sends are taken all the same, the rest waits behind them."""
        now_s = self.loop.time()
        if now_s != self._turn_s and not self._waiting_turn:
            self._turn_s = now_s
            self._until_ms = self.clock.steady_ms() + TURN_MS
        return self._until_ms

    def wait_for_turn(self, connection: Connection) -> None:
        if not connection.in_line:
            connection.in_line = True
            self._waiting_turn.append(connection)
        if not self._turn_due:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        self._turn_due = True
        self.loop.call_soon(self._turn)

    def hand_over(self) -> None:
        """What was gathered goes to the core."""
        came, self._came, self._came_bytes = self._came, {}, 0
        reads: list[Read] = [(connection, connection.gathered()) for connection in came]
        try:
            rests = self.core.receive_all(reads, self._turn_ends_ms())
        except Exception:
            log.exception("! requests of %d connections failed", len(reads))
            for connection in came:
                connection.close("its requests could not be handled")
            return
        for connection, rest in zip(came, rests, strict=True):
            self._last = connection
            if connection.handed_over(rest):
                self.wait_for_turn(connection)

    def take_last(self, connection: Connection, rest: list[Frame]) -> None:
        """The connection is gone. What had come and waits is done as far as it needs no answer, and a turn has time for it."""
        try:
            self.core.receive(connection, rest, self.clock.steady_ms() + TURN_MS)
        except Exception:
            log.exception("! requests of %s failed", connection.address)

    def _turn(self) -> None:
        """The loop went round: those that wait share the time of a new turn, one after another, behind what has come."""
        waiting = self._waiting_turn
        share, self._turn_due = len(waiting), False
        if self._came:
            self._crowded = CROWDED_TURNS if len(self._came) > 1 else self._crowded - 1
            self.hand_over()
        if share:
            self._turn_s = self.loop.time()
            self._until_ms = self.clock.steady_ms() + TURN_MS
        for _ in range(share):
            connection = waiting.popleft()
            connection.in_line = False
            try:
                if connection.go_on(self._until_ms):
                    self.wait_for_turn(connection)
            except Exception:
                log.exception("! requests of %s failed", connection.address)
                connection.close("its requests could not be handled")
            if self.clock.steady_ms() >= self._until_ms:
                break
        if waiting and not self._turn_due:
            self._schedule_turn()

    async def listen(self, host: str, port: int) -> int:
        """Returns the port, chosen by the system when 0 was asked for."""
        server = await self.loop.create_server(self.entrance.before(lambda: Connection(self)), host, port, backlog=4_096)
        self._listening.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def start_ticking(self) -> None:
        self._tick_due = self.loop.time()
        self._tick()

    def _tick(self) -> None:
        late_s = self.loop.time() - self._tick_due
        self._tick_due = self.loop.time() + TICK_S
        self._ticking = self.loop.call_at(self._tick_due, self._tick)
        try:
            self.on_lateness(max(0, int(late_s * 1_000)))
            self.on_processor_awaited(self._processor.awaited())
        except Exception:
            log.exception("! tick failed")
        self._tick_core(lambda: self.core.tick(self.clock.steady_ms()))
        self.unfinished.tick(self.loop.time())
        self._memory.look(self.unfinished.held + self._waiting, self.loop.time())
        if self.loop.time() >= self._idle_due:
            self._idle_due = self.loop.time() + self.idle_s
            self._close_idle()

    def _tick_core(self, work: Rest) -> None:
        """What the core has no time for it does in the next turn, when what was read has had its own. A new tick begins with that, too."""
        if self._tick_rest is not None:
            self._tick_rest.cancel()
        rest = None
        try:
            rest = work()
        except Exception:
            log.exception("! tick failed")
        self._tick_rest = None if rest is None else self.loop.call_soon(self._tick_core, rest)

    def _close_idle(self) -> None:
        """Twice in a row without traffic is between one and two periods of silence."""
        for connection in list(self.connections):
            if connection.active:
                connection.active = False
            else:
                connection.close(f"silent for more than {self.idle_s} s")

    def admit(self, connection: Connection) -> bool:
        room = self._has_room()
        if room:
            self.connections[connection] = None
        return room

    def _has_room(self) -> bool:
        """For one more."""
        there = len(self.connections) + len(self.entrance)
        room = there < self.connections_max or self._make_room()
        if not room:
            if self._refused % 1_000 == 0:
                log.warning("connections are refused: %d are open, limit is connectionsMax=%d", there, self.connections_max)
            self._refused += 1
        return room

    def _make_room(self) -> bool:
        """Close the oldest connection that nobody would miss, if there is one."""
        if self.is_spare is None and self.strangers is None:
            return False
        if self.entrance.send_oldest_away():
            return True
        if self.is_spare is None:
            return self.strangers is not None and self.strangers.send_one_away()
        is_spare = self.is_spare
        spare = next((one for one in self.connections if one not in self._came and is_spare(one)), None)
        if spare is not None:
            spare.close(f"{len(self.connections)} connections are open, and this one has said nothing of use")
            self.connections.pop(spare)
        return spare is not None

    def note_waiting(self, connection: Connection, size: int) -> None:
        """Bound what waits for all slow readers together. Beyond it the one with most is closed: whoever goes beyond it just now may be
        honest and only late."""
        self._waiting += connection.waits(size)
        if size:
            self._slow[connection] = size
        else:
            self._slow.pop(connection, None)
        while self._waiting > WAITING_MAX and self._slow:
            most = max(self._slow, key=self._slow.__getitem__)
            most.close(
                f"{self._waiting} bytes wait for peers that do not read, limit is {WAITING_MAX}, and it has most: {self._slow[most]}"
            )
            del self._slow[most]
            self._waiting += most.waits(0)

    def forget(self, connection: Connection) -> bool:
        known = connection in self.connections
        self.connections.pop(connection, None)
        if self._last is connection:
            self._last = None
        return known

    async def stop_listening(self) -> None:
        for server in self._listening:
            server.close()
        self.entrance.close()

    async def close(self, before_end: Callable[[], None] = lambda: None) -> None:
        """Stop listening and ticking, let every connection take what was written to it, close."""
        await self.stop_listening()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._tick_rest is not None:
            self._tick_rest.cancel()
        if self._came:
            self.hand_over()  # whoever was read is answered
        before_end()
        for connection in list(self.connections):
            connection.finish()
        deadline = self.loop.time() + 2
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection._transport.abort()
        self._processor.close()


def host_bytes(ip: str, port: int) -> bytes:
    """An address as records store it: 4 or 16 bytes of ip, 4 of port."""
    ip = ip.split("%")[0]
    if ip.startswith("::ffff:") and "." in ip:
        ip = ip[7:]
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.inet_pton(family, ip) + port.to_bytes(4, "big")
