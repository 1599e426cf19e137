"""Where a client lives: its clock, its connections, its timers and its files.

`Machine` is the real one. A broker of `roquet.testing` is another: it stands here under the address of its name server, and every client,
consumer and Admin that is given this address lives there, without knowing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import TYPE_CHECKING, Protocol

from roquet.client.offset_file import DiskOffsetFile
from roquet.clock import SystemClock
from roquet.net.caller import AsyncCaller, Handler
from roquet.net.connection import ConnectionOptions
from roquet.ports import Caller, Clock

if TYPE_CHECKING:
    from roquet.client.core.offsets import OffsetFile
    from roquet.client.shared import SharedClient

LOOPBACK = b"\x7f\x00\x00\x01"


class Connections(Caller, Protocol):
    """A caller that belongs to an event loop."""

    handler: Handler | None
    """Who answers what servers ask over these connections."""

    async def drained(self, address: str) -> None:
        """Return when the address has room for more."""

    async def close(self) -> None:
        """Close every connection, after writing what was accepted; calls under way fail with ConnectFailed."""


class Alarm(Protocol):
    def cancel(self) -> None: ...


class Place(Protocol):
    clock: Clock

    def connections(self, how: ConnectionOptions) -> Connections:
        """Of their own for each who asks. Raises ClientError when the files of the connection's TLS cannot be used."""

    def random(self) -> Random: ...

    async def own_ip(self, name_server: str) -> bytes:
        """The address of this host as that name server sees it, best guess."""

    def later(self, delay_s: float, ring: Callable[[], None]) -> Alarm: ...

    def offset_file(self, client_id: str, group: str, directory: str | os.PathLike[str] | None) -> OffsetFile:
        """Of a broadcasting consumer. `directory`: as the user gave it."""

    def opened(self, client: SharedClient) -> None:
        """It lives here from now on."""

    def closed(self, client: SharedClient) -> None: ...

    def hurrying(self) -> AbstractAsyncContextManager[None]:
        """Around what its caller waits for and nobody else speeds up: a start, a close. Where time stands still it goes on meanwhile."""


class Machine:
    """This process on its host."""

    clock: Clock = SystemClock()

    def connections(self, how: ConnectionOptions) -> Connections:
        return AsyncCaller(connection=how)

    def random(self) -> Random:
        return Random()

    async def own_ip(self, name_server: str) -> bytes:
        """No packet is sent."""
        host, _, port = name_server.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
            family, _, _, _, address = found[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return socket.inet_pton(family, probe.getsockname()[0].partition("%")[0])
        except OSError:
            return LOOPBACK

    def later(self, delay_s: float, ring: Callable[[], None]) -> Alarm:
        return asyncio.get_running_loop().call_later(delay_s, ring)

    def offset_file(self, client_id: str, group: str, directory: str | os.PathLike[str] | None) -> OffsetFile:
        return DiskOffsetFile(client_id, group, directory)

    def opened(self, client: SharedClient) -> None:
        """Nobody looks after it."""

    def closed(self, client: SharedClient) -> None: ...

    def hurrying(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()


MACHINE = Machine()
PLACES: dict[str, Place] = {}
"""By the addresses of name servers that are no sockets."""


def place_of(name_servers: Sequence[str]) -> Place:
    return PLACES.get(name_servers[0], MACHINE) if PLACES and name_servers else MACHINE
