"""Streams over asyncio: connections whose bytes go as they are to whoever listens or dialed. Masters and slaves copy logs over them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import cast

from roquet.net.address import endpoint, shown
from roquet.net.connection import PLAIN, ConnectionOptions, Contexts
from roquet.net.entrance import Entrance
from roquet.net.tls import PLAIN_ONLY, ServerTls
from roquet.ports import Stream, StreamEnd

log = logging.getLogger("roquet.net")

UNSENT_MAX = 8 << 20
"""Bytes that wait for the other end to read them. Whoever sends is held back by what is confirmed long before; one who confirms and does
not read is closed. All of them together hold STREAMS_MAX times that at most."""
STREAMS_MAX = 32
"""Streams that are accepted at once."""
SILENT_S = 60.0
"""Time for the first word of whoever opens one. A slave says at once what it has."""


class NetStream(asyncio.Protocol):
    """One stream. What goes wrong in its end closes it, and nothing else."""

    _transport: asyncio.Transport

    def __init__(self, end: StreamEnd, host: StreamHost | None = None) -> None:
        self._end = end
        self._host = host
        self._why = "the other end closed it"
        self.address = ""
        self.closed = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer or (self._host is not None and not self._host.admit(self)):
            transport.abort()
            return
        self.address = shown(peer)
        self.closed = False
        if (raw := transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tell(lambda: self._end.opened(self))

    def data_received(self, data: bytes) -> None:
        if not self.closed:
            self._tell(lambda: self._end.received(self, data))

    def _tell(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:
            log.exception("! what came from %s could not be taken", self.address)
            self.close(f"{type(error).__name__}: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        known = self.address
        self.closed = True
        if self._host is not None:
            self._host.streams.pop(self, None)
        if known:
            self._tell(lambda: self._end.lost(self, str(error) if error is not None else self._why))

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNSENT_MAX:
            self.close(f"it does not read: {self._transport.get_write_buffer_size()} bytes wait, limit is {UNSENT_MAX}")

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._why = reason
            self._transport.abort()

    def __repr__(self) -> str:
        return f"<NetStream {self.address}{' closed' if self.closed else ''}>"


class StreamHost:
    """Listens for streams. State: those that are open."""

    def __init__(self, end: StreamEnd, tls: ServerTls = PLAIN_ONLY) -> None:
        self._end = end
        self.is_spare: Callable[[Stream], bool] | None = None
        """May this one be closed to let another one in? None: nobody may."""
        self.streams: dict[NetStream, None] = {}
        """In the order in which they came."""
        # Who has not said yet who it is takes nobody's place: a stranger could keep every slave out.
        self.entrance = Entrance(tls, silent_s=SILENT_S, silent_max=STREAMS_MAX, has_room=self._has_room)
        self._listening: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Returns the port, chosen by the system when 0 was asked for."""
        make = self.entrance.before(lambda: NetStream(self._end, self))
        server = await asyncio.get_running_loop().create_server(make, host, port)
        self._listening.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def admit(self, stream: NetStream) -> bool:
        room = self._has_room()
        if room:
            self.streams[stream] = None
        return room

    def _has_room(self) -> bool:
        there = len(self.streams)
        room = there < STREAMS_MAX or self._make_room()
        if not room:
            log.warning("a stream is refused: %d are open, which is the limit", there)
        return room

    def _make_room(self) -> bool:
        """Close the oldest that nobody would miss, if there is one."""
        if self.is_spare is None:
            return False
        spare = next(filter(self.is_spare, self.streams), None)
        if spare is not None:
            spare.close(f"{len(self.streams)} streams are open, and this one has said nothing of use")
            self.streams.pop(spare, None)
        return spare is not None

    def close(self) -> None:
        for server in self._listening:
            server.close()
        self.entrance.close()
        for stream in list(self.streams):
            stream.close("this broker stops")


class NetDialer:
    """Opens streams. State: tasks that are under way, so that nobody drops them."""

    def __init__(self, connection: ConnectionOptions = PLAIN) -> None:
        """Raises ClientError when the files of the connection's TLS cannot be used."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._contexts = Contexts(connection.tls)

    def dial(self, address: str, end: StreamEnd, timeout_ms: int) -> None:
        task = asyncio.get_running_loop().create_task(self._open(address, end, timeout_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, address: str, end: StreamEnd, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            host, port = endpoint(address)
            how = self._contexts.how(host)
            await asyncio.wait_for(loop.create_connection(lambda: NetStream(end), host, port, **how), timeout_ms / 1_000)
        except (OSError, ValueError, TimeoutError) as error:
            encrypted = "; does it speak TLS, and does its certificate fit?" if self._contexts.tls is not None else ""
            end.lost(None, f"{address} cannot be reached: {error or 'it does not answer'}{encrypted}")

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
