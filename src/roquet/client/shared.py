"""One client per process and name-server list: all producers and consumers of a loop share it, and its connections.

producer A ─┐
producer B ─┼─ SharedClient: ClientCore + Connections ── one connection per broker
consumer C ─┘
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from roquet.client.core.failures import GroupTaken
from roquet.client.core.instance import ClientCore
from roquet.client.lookup import Lookup
from roquet.client.place import Alarm, Place, place_of
from roquet.net.connection import PLAIN, ConnectionOptions

T = TypeVar("T")

ALARM_MAX_S = 3_600.0
"""The alarm rings at least this often: no loop takes a delay for ever."""

STARTED_NS = time.time_ns()


def process_name() -> str:
    """Instance name when the user gives none: two processes never share a client id, nor does a fork share its parent's."""
    return f"{os.getpid()}#{STARTED_NS}"


@dataclass(frozen=True)
class ClientOptions:
    name_servers: tuple[str, ...]
    instance_name: str | None = None
    unit_name: str = ""
    connection: ConnectionOptions = PLAIN
    lookup: str = ""
    """Where the name servers are looked up, in place of name_servers."""


class Joining(Protocol):
    """A producer or consumer core on its way into a client."""

    def start(self) -> None: ...


C = TypeVar("C", bound=Joining)


class SharedClient:
    """Made and used on one loop. `join` counts up, `leave` counts down; the last one out closes the connections."""

    def __init__(self, key: tuple[ClientOptions, int], client_id: str, ip: bytes, place: Place) -> None:
        self.key = key
        self.place = place
        self.users = 0
        self.caller = place.connections(key[0].connection)
        self.core = ClientCore(
            name_servers=key[0].name_servers,
            client_id=client_id,
            caller=self.caller,
            clock=place.clock,
            random=place.random(),
            ip=ip,
            pid=os.getpid(),
        )
        self.caller.handler = self.core.receive
        self._lookup: Lookup | None = None
        if key[0].lookup:
            self._lookup = Lookup(key[0].lookup, self.core.name_servers, self.caller.hang_up)
            self._lookup.start()
        self.loop = asyncio.get_running_loop()
        self._alarm: Alarm | None = None
        self.core.timers.on_sooner = self.arm
        place.opened(self)
        self.arm(self.core.next_due_ms())

    def arm(self, due_ms: int) -> None:
        """Ring then, and not at the time that was told before."""
        if self._alarm is not None:
            self._alarm.cancel()
        delay_ms = due_ms - self.core.clock.steady_ms()
        if delay_ms <= 0:
            self._alarm = self.loop.call_soon(self.ring)  # when what is ready now has run
        else:
            self._alarm = self.place.later(min(delay_ms / 1000, ALARM_MAX_S), self.ring)

    def ring(self) -> None:
        """Do what is due."""
        self._alarm = None
        self.core.tick(self.core.clock.steady_ms())
        if not self.core.closed:
            self.arm(self.core.next_due_ms())

    async def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            _clients_of(self.loop).pop(self.key, None)
            if self._lookup is not None:
                self._lookup.close()
            self.core.timers.on_sooner = None
            self.core.close()
            if self._alarm is not None:
                self._alarm.cancel()
            self.place.closed(self)
            await self.caller.close()


_all: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[ClientOptions, int], SharedClient]] = WeakKeyDictionary()


def _clients_of(loop: asyncio.AbstractEventLoop) -> dict[tuple[ClientOptions, int], SharedClient]:
    return _all.setdefault(loop, {})


async def join(options: ClientOptions, make: Callable[[ClientCore], C]) -> tuple[SharedClient, C]:
    """Make a producer or consumer and start it inside the shared client.

    A second member of the same group in this process gets a client (and client id) of its own, since brokers tell
    members apart by client id. With an instance_name of the user's that is an error instead.
    """
    place = place_of(options.name_servers)
    ip = await place.own_ip(options.name_servers[0] if options.name_servers else server_of(options.lookup))
    clients = _clients_of(asyncio.get_running_loop())
    number = 0
    while True:
        key = (options, number)
        shared = clients.get(key)
        if shared is None:
            shared = clients[key] = SharedClient(key, client_id(options, number, ip), ip, place)
        part = make(shared.core)
        shared.users += 1
        try:
            part.start()
        except GroupTaken:
            shared.users -= 1  # others are there, or the group could not be taken
            if options.instance_name is not None:
                raise
            number += 1
        except BaseException:
            await shared.leave()
            raise
        else:
            return shared, part


def client_id(options: ClientOptions, number: int, ip: bytes) -> str:
    """Upstream's form: ip@instance[@unit]."""
    instance = options.instance_name if options.instance_name is not None else process_name()
    if number:
        instance = f"{instance}#{number + 1}"
    name = f"{socket.inet_ntop(socket.AF_INET if len(ip) == 4 else socket.AF_INET6, ip)}@{instance}"
    return f"{name}@{options.unit_name}" if options.unit_name else name


def server_of(url: str) -> str:
    """host:port of it."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 80}"
