"""The edges of the cores: what a broker, a name server and a client brain are given instead of sockets, threads and clocks.

The programs pass the real ones (`net/`), tests and the simulation pass their own (`roquet.testing`). A core holds no
other way to reach the world, so one seed decides everything that happens in a simulated cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from roquet.errors import RoquetError
from roquet.wire.command import Command
from roquet.wire.frame import Frame

log = logging.getLogger("roquet")

T = TypeVar("T")

TURN_MS = 10
"""How long a server's core works on requests in one turn of the loop; what is left waits for the next."""
Rest = Callable[[], "Rest | None"]
"""What a tick had no time for. It is called in the next turn of the loop; so is what it returns."""
FOREVER = (1 << 63) - 1
""" "Until" for whoever has no loop to give back."""


class Clock(Protocol):
    """Two clocks. Somebody may set the wall clock, forward or back, at any moment; the steady one only goes on."""

    def now_ms(self) -> int:
        """Wall time: milliseconds since 1970. For what is stored, promised to people or shown to them, and for nothing else."""

    def steady_ms(self) -> int:
        """Milliseconds since some moment, never going back. For intervals, deadlines, leases and rates. `tick` is given this one."""


class Peer(Protocol):
    """The other end of a connection that a server accepted. Hashable by identity."""

    address: str
    """ "ip:port" of the other end."""
    host: bytes
    """The same as stored in records: 4 or 16 bytes of ip, then 4 bytes of port."""
    closed: bool
    unread: bool
    """It does not take its answers. What else it asks for, but for sends, is for later: answers would only fill the memory."""
    principal: str
    """Who it is, as far as it has proved that; "" when it has not."""
    certificate_subject: str
    """Of the certificate that it showed over TLS and that was verified, as in CN=orders,O=Example; "" of none."""

    def send(self, data: bytes | memoryview) -> None:
        """Queue whole frames for writing. Never blocks; a peer that does not read is closed by the shell. What a view looks at
        must not change any more."""

    def send_all(self, frames: list[bytes]) -> None:
        """The same, one after another."""

    def close(self, reason: str) -> None: ...


Read = tuple[Peer, list[Frame]]
"""Frames that came from a peer at once."""


class Receiver(Protocol):
    """Who takes requests."""

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        """Returns what it has no time for before `until_ms` (steady), or what waits until the peer takes its answers: that is handed in
        again, before anything else of this peer. None: all is done."""

    def has_begun(self, peer: Peer) -> bool:
        """Whether a request of this peer is under way, for which `receive` needs more turns: then it gets them even while the peer takes no
        answers, since what is half made needs memory, too."""
        return False

    def receive_all(self, reads: list[Read], until_ms: int) -> list[list[Frame] | None]:
        """`receive` of each, for who works no less when it sees them together. A mistake ends the connection whose requests met it."""
        rests: list[list[Frame] | None] = []
        for peer, frames in reads:
            rest = None
            try:
                rest = self.receive(peer, frames, until_ms)
            except Exception:
                log.exception("! requests of %s failed", peer.address)
                peer.close("its requests could not be handled")
            rests.append(rest)
        return rests


class Stream(Protocol):
    """A connection whose bytes mean something to its two ends alone: a master and its slave. Hashable by identity."""

    address: str
    """ "ip:port" of the other end."""
    closed: bool

    def send(self, data: bytes) -> None:
        """Queue these bytes for writing. Never blocks; whoever sends knows how much the other end has confirmed."""

    def close(self, reason: str) -> None: ...


class StreamEnd(Protocol):
    """Who hears what happens on streams."""

    def opened(self, stream: Stream) -> None: ...

    def received(self, stream: Stream, data: bytes) -> None: ...

    def lost(self, stream: Stream | None, why: str) -> None:
        """It is closed, by either end. None: it could not be opened."""


class Dialer(Protocol):
    def dial(self, address: str, end: StreamEnd, timeout_ms: int) -> None:
        """Open a stream. `end` is told that it is open, or `lost` with None."""


Guard = Callable[[Peer, Command], None]
"""Looks at a request before anything happens. Raises Refused when this peer may not ask for that."""


class Background(Protocol):
    """Work that may block (fsync, cold reads), done elsewhere. `done` is called on the core's own thread."""

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None: ...


Keep = Callable[[Mapping[str, str]], None]
"""Writes settings that were changed at run time, by upstream's keys, to the file they are read from. May block; raises OSError."""

Answered = Callable[[Command | RoquetError], None]


class Caller(Protocol):
    """Outgoing connections, one per address, opened on first use and kept."""

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        """Send a request. `done` is called exactly once: with the response (any code), ConnectFailed or CallTimeout."""

    def oneway(self, address: str, command: Command) -> None:
        """Send and forget; a failure is not reported."""

    def hang_up(self, address: str) -> None:
        """Close the connection to this address, if there is one; calls under way fail with ConnectFailed."""
