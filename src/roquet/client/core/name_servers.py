"""Asking the name servers: one at a time, the next one when it does not answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from roquet.client.core.tasks import call
from roquet.errors import ClientError, ConnectFailed, RoquetError
from roquet.ports import Caller
from roquet.wire.command import Command

if TYPE_CHECKING:
    from random import Random


def parse_name_servers(text: str | Sequence[str]) -> tuple[str, ...]:
    """ "a:9876;b:9876" or a list of addresses. Raises ClientError naming what is wrong."""
    parts = text.replace(",", ";").split(";") if isinstance(text, str) else list(text)
    found: list[str] = []
    for part in (one.strip() for one in parts):
        if not part:
            continue
        part = part.removeprefix("http://").rstrip("/")
        host, colon, port = part.rpartition(":")
        if not colon:
            host, port = part, "9876"
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ClientError(f'name server address {part!r} is not "host:port"')
        if f"{host}:{port}" not in found:
            found.append(f"{host}:{port}")
    if not found:
        raise ClientError(f'no name server in {text!r}; give addresses such as "127.0.0.1:9876;10.0.0.2:9876"')
    return tuple(found)


class NameServers:
    """Keeps to one name server while it answers, as upstream does: fewer connections, and one view of the routes."""

    def __init__(self, addresses: Sequence[str], caller: Caller, random: Random) -> None:
        self.addresses = tuple(addresses)
        self._caller = caller
        self._current = random.randrange(len(self.addresses))

    @property
    def current(self) -> str:
        return self.addresses[self._current]

    async def ask(self, make: Callable[[], Command], timeout_ms: int) -> tuple[str, Command]:
        """(address, answer) with an answer of any code. Raises ConnectFailed after every name server was tried once."""
        reasons: list[str] = []
        while len(reasons) < len(self.addresses):
            place = self._current
            address = self.addresses[place]
            try:
                return address, await call(self._caller, address, make(), timeout_ms)
            except RoquetError as error:
                reasons.append(f"{address}: {error}")
            if self._current == place:  # another question may have moved on already
                self._current = (place + 1) % len(self.addresses)
        raise ConnectFailed(f"no name server answered ({'; '.join(reasons)}); start one, or mend the namesrv address")
