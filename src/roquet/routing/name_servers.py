"""Which name server is asked: one at a time, the next one when it does not answer.

A question is a generator: it gives an address and a request, and is sent the answer or what went wrong. So it needs no connection:
`tasks.follow` asks it in the client's core, `net.blocking.follow` in programs without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from roquet.errors import ClientError, ConnectFailed, RoquetError
from roquet.wire.command import Command

T = TypeVar("T")

Steps = Generator[tuple[str, Command], Command | RoquetError, T]

DEFAULT_PORT = "9876"


def split_addresses(text: str) -> list[str]:
    """ "a:9876;b:9876" as a list, each address once."""
    return list(dict.fromkeys(address.strip() for address in text.split(";") if address.strip()))


def parse_name_servers(text: str | Sequence[str]) -> tuple[str, ...]:
    """ "a:9876;b:9876" or a list of addresses. Raises ClientError naming what is wrong."""
    if not isinstance(text, str) and not (isinstance(text, Sequence) and all(isinstance(one, str) for one in text)):
        raise ClientError(f'the name servers are {text!r}; expected is a text or a list of them, such as "127.0.0.1:9876;10.0.0.2:9876"')
    found: dict[str, None] = {}
    for part in split_addresses((text if isinstance(text, str) else ";".join(text)).replace(",", ";")):
        part = part.removeprefix("http://").rstrip("/")
        host, colon, port = part.rpartition(":")
        if not colon:
            host, port = part, DEFAULT_PORT
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ClientError(f'name server address {part!r} is not "host:port"')
        found[f"{host}:{port}"] = None
    if not found:
        raise ClientError(f'no name server in {text!r}; give addresses such as "127.0.0.1:9876;10.0.0.2:9876"')
    return tuple(found)


class NameServers:
    """Keeps to one name server while it answers, as upstream does: fewer connections, and one view of the routes."""

    def __init__(self, addresses: Sequence[str], first: int = 0) -> None:
        self.addresses = tuple(addresses)
        self._current = first

    @property
    def current(self) -> str:
        return self.addresses[self._current]

    def ask(self, make: Callable[[], Command]) -> Steps[tuple[str, Command]]:
        """(address, answer) with an answer of any code. Raises ConnectFailed after every name server was tried once."""
        reasons: list[str] = []
        while len(reasons) < len(self.addresses):
            place, address = self._current, self.current
            answer = yield address, make()
            if isinstance(answer, Command):
                return address, answer
            reasons.append(f"{address}: {answer}")
            if self._current == place:  # another question may have moved on already
                self._current = (place + 1) % len(self.addresses)
        raise ConnectFailed(f"no name server answered ({'; '.join(reasons)}); start one, or check the name server address")
