"""Streams over asyncio: connections whose bytes go as they are to whoever listens or dialed. Masters and slaves copy logs over them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import cast

from roquet.net.address import endpoint
from roquet.ports import StreamEnd

log = logging.getLogger("roquet.net")

UNSENT_MAX = 16 << 20
"""Bytes that wait for the other end to read them. Whoever sends is held back by what is confirmed long before."""
STREAMS_MAX = 64
"""Streams that are accepted at once."""


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
        self.address = f"{peer[0]}:{peer[1]}" if ":" not in peer[0] else f"[{peer[0]}]:{peer[1]}"
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
            self._host.streams.discard(self)
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

    def __init__(self, end: StreamEnd) -> None:
        self._end = end
        self.streams: set[NetStream] = set()
        self._listening: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Returns the port, chosen by the system when 0 was asked for."""
        server = await asyncio.get_running_loop().create_server(lambda: NetStream(self._end, self), host, port)
        self._listening.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def admit(self, stream: NetStream) -> bool:
        if len(self.streams) >= STREAMS_MAX:
            log.warning("a stream is refused: %d are open, which is the limit", len(self.streams))
            return False
        self.streams.add(stream)
        return True

    def close(self) -> None:
        for server in self._listening:
            server.close()
        for stream in list(self.streams):
            stream.close("this broker stops")


class NetDialer:
    """Opens streams. State: tasks that are under way, so that nobody drops them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def dial(self, address: str, end: StreamEnd, timeout_ms: int) -> None:
        task = asyncio.get_running_loop().create_task(self._open(address, end, timeout_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, address: str, end: StreamEnd, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            host, port = endpoint(address)
            await asyncio.wait_for(loop.create_connection(lambda: NetStream(end), host, port), timeout_ms / 1_000)
        except (OSError, ValueError, TimeoutError) as error:
            end.lost(None, f"{address} cannot be reached: {error or 'it does not answer'}")

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
