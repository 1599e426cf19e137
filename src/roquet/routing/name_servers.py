"""Which name server is asked: one at a time, the next one when it does not answer.

A question is a generator: it gives an address and a request, and is sent the answer or what went wrong. So it needs no connection:
`tasks.follow` asks it in the client's core, `net.blocking.follow` in programs without an event loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from roquet.errors import ClientError, ConnectFailed, RoquetError
from roquet.wire.command import Command

T = TypeVar("T")

Steps = Generator[tuple[str, Command], Command | RoquetError, T]

DEFAULT_PORT = "9876"
LOOKUP = re.compile(r"https?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?/[!-:<-~]*\w[!-:<-~]*", re.ASCII)
"""With a path that is more than "/": some write an address as "http://host:9876"."""


def split_addresses(text: str) -> list[str]:
    """ "a:9876;b:9876" as a list, each address once."""
    return list(dict.fromkeys(address.strip() for address in text.split(";") if address.strip()))


def lookup_url(text: str | Sequence[str]) -> str | None:
    """The place where name servers are looked up, "http://host/path"; None: `text` is their addresses."""
    found = LOOKUP.fullmatch(text.strip()) if isinstance(text, str) else None
    return found.group() if found is not None and int(found["port"] or 0) < 65536 else None


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
        if not host or "/" in part or not port.isdigit() or not 0 < int(port) < 65536:
            where = '; where an HTTP server tells them, give that alone: "http://host/path"' if "/" in part else ""
            raise ClientError(f'name server address {part!r} is not "host:port"{where}')
        found[f"{host}:{port}"] = None
    if not found:
        raise ClientError(f'no name server in {text!r}; give addresses such as "127.0.0.1:9876;10.0.0.2:9876"')
    return tuple(found)


class NameServers:
    """Keeps to one name server while it answers, as upstream does: fewer connections, and one view of the routes."""

    def __init__(self, addresses: Sequence[str], first: int = 0) -> None:
        self.addresses = tuple(addresses)
        self.trouble = "no name server is known yet"
        """Why there is none; shown while that is so."""
        self._current = first

    @property
    def current(self) -> str:
        return self.addresses[self._current]

    def change(self, addresses: Sequence[str]) -> None:
        """These are the name servers now. The one that is asked stays the same, if it is among them."""
        current = self.current if self.addresses else ""
        self.addresses = tuple(addresses)
        self._current = self.addresses.index(current) if current in self.addresses else 0

    def ask(self, make: Callable[[], Command]) -> Steps[tuple[str, Command]]:
        """(address, answer) with an answer of any code. Raises ConnectFailed after every name server was tried once."""
        if not self.addresses:
            raise ConnectFailed(self.trouble)
        reasons: list[str] = []
        while len(reasons) < len(self.addresses):
            address = self.current
            answer = yield address, make()
            if isinstance(answer, Command):
                return address, answer
            reasons.append(f"{address}: {answer}")
            if self.current == address:  # another question may have moved on already
                self._current = (self._current + 1) % len(self.addresses)
        raise ConnectFailed(f"no name server answered ({'; '.join(reasons)}); start one, or check the name server address")
