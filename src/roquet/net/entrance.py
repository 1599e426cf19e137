"""The entrance of a server's ports: the first byte that a peer sends says whether it speaks TLS, and only then its connection is made.

    accepted --first byte 0x16--> handshake, in turns --> the connection, over TLS
             --anything else----> the connection, plain; nothing of this is in its way any more       (enforcing: closed)

No frame begins with 0x16 (that would be 350 MB), and no stream of a slave does. Who says nothing, or does not end its handshake, is
closed after a while. Handshakes cost time before anybody has proved anything, so they get some of each turn of the loop and no
more, and only so many are under way: beyond that the oldest goes, of the address (of IPv6 the network of 64 bits) that has most of them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import TypeVar, cast

from roquet.hosts import source_of_host
from roquet.net.address import shown
from roquet.net.encrypted import EncryptedTransport
from roquet.net.tls import DISABLED, ENFORCING, ServerTls

log = logging.getLogger("roquet.net")

HANDSHAKE = 0x16
"""The first byte of a TLS connection."""
HANDSHAKE_S = 10.0
"""Time for a handshake, from its first byte."""
HANDSHAKES_MAX = 256
"""Under way at once, for one server."""
OF_ONE_MAX = 1_000
"""Connections of one address that have said nothing yet, or whose handshake is under way, where everybody must show who it is; beyond that
the oldest goes."""
TURN_S = 0.005
"""Of each turn of the loop, for handshakes."""
LOOK_S = 0.5
"""Between looks for those that are late."""
COMPLAINT_S = 10.0
"""Between two log lines of one kind: a stranger must not fill the log."""

TOO_MANY = "x a connection of %s is closed: %d of its connections have said nothing yet, or have not ended their handshakes"
TOO_SILENT = "x a connection of %s is closed: %d have said nothing yet, and most are from there"
TOO_SLOW = "x a TLS handshake of %s is given up: %d are under way, and most are from there"

Make = Callable[[], asyncio.BaseProtocol]
T = TypeVar("T")


class FirstByte(asyncio.Protocol):
    """A peer that has said nothing yet."""

    _transport: asyncio.Transport
    source: str

    def __init__(self, entrance: Entrance, make: Make) -> None:
        self._entrance = entrance
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.source = source_of(self._transport)
        if not self._entrance.admit(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._entrance.decide(self, self._transport, data, self._make)

    def connection_lost(self, error: Exception | None) -> None:
        self._entrance.forget(self)

    def abort(self) -> None:
        self._transport.abort()


Newcomer = FirstByte | EncryptedTransport
N = TypeVar("N", FirstByte, EncryptedTransport)


def source_of(transport: asyncio.Transport) -> str:
    """What counts as one address: of IPv6 a network of 64 bits."""
    peer = transport.get_extra_info("peername")
    return source_of_host(str(peer[0])) if peer else ""


class Entrance:
    """Of one server. State: who has said nothing, whose handshake is under way, and when."""

    def __init__(self, tls: ServerTls, *, silent_s: float, has_room: Callable[[], bool], silent_max: int = sys.maxsize) -> None:
        """`silent_s`: time for the first byte. `has_room`: whether one more may come. `silent_max`: how many may have said nothing; beyond
        that one of them goes, as with handshakes."""
        self.tls = tls
        self.silent: dict[FirstByte, float] = {}
        self.shaking: dict[EncryptedTransport, float] = {}
        self._silent_s = silent_s
        self._has_room = has_room
        self._silent_max = silent_max
        self.of_one_max = sys.maxsize
        self._sources: dict[Newcomer, str] = {}
        self._of: dict[str, dict[Newcomer, None]] = {}
        """By source those of `_sources`, in the order in which they came."""
        self._due: deque[EncryptedTransport] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._complaints = Complaints()

    def __len__(self) -> int:
        return len(self.silent) + len(self.shaking)

    def before(self, make: Make) -> Make:
        """What a listening socket makes of whom it accepts."""
        return make if self.tls.mode == DISABLED else lambda: FirstByte(self, make)

    def admit(self, newcomer: FirstByte) -> bool:
        if not self._has_room():
            return False
        self.silent[newcomer] = time.monotonic()
        self._note(newcomer, newcomer.source)
        if len(self.silent) > self._silent_max:
            self._send_one_away(self.silent, TOO_SILENT)
        self._watch()
        return True

    def send_oldest_away(self) -> bool:
        """Another one needs the room. Those who have said nothing go before those whose handshake has begun. False: there is none."""
        if self.silent:
            self._send_one_away(self.silent, TOO_SILENT)
        elif self.shaking:
            self._send_one_away(self.shaking, TOO_SLOW)
        else:
            return False
        return True

    def decide(self, newcomer: FirstByte, transport: asyncio.Transport, data: bytes, make: Make) -> None:
        if not self.forget(newcomer):
            return  # it is on its way out
        if data[0] == HANDSHAKE:
            self._begin(transport, data, make)
        elif self.tls.mode == ENFORCING:
            where = shown(transport.get_extra_info("peername"))
            self._complaints.say("x %s closed: it does not speak TLS, and tls.server.mode=enforcing lets nobody in without", where)
            transport.abort()
        else:
            protocol = cast(asyncio.Protocol, make())
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            if not transport.is_closing():
                protocol.data_received(data)

    # -- handshakes

    def _begin(self, transport: asyncio.Transport, data: bytes, make: Make) -> None:
        try:
            one = EncryptedTransport(transport, self.tls.context, make, self)
        except Exception:
            log.exception("! a TLS connection cannot be made")
            transport.abort()
            return
        self.shaking[one] = time.monotonic()
        self._note(one, source_of(transport))
        if len(self.shaking) > HANDSHAKES_MAX:
            self._send_one_away(self.shaking, TOO_SLOW)
        self._watch()
        transport.set_protocol(one)
        one.data_received(data)

    def _send_one_away(self, among: Mapping[N, float], text: str) -> None:
        """There are too many of them: the oldest goes, of the address that has most."""
        (most, _), *_ = Counter(self._sources[one] for one in among).most_common(1)
        self._complaints.say(text, most, len(among))
        oldest = next(one for one in among if self._sources[one] == most)
        self.forget(oldest)
        oldest.abort()

    def due(self, one: EncryptedTransport) -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._turn)
        self._due.append(one)

    def _turn(self) -> None:
        ends = time.monotonic() + TURN_S
        while self._due:
            one = self._due.popleft()
            try:
                one.shake_hands()
            except Exception:
                log.exception("! a TLS connection cannot be made")
                self.forget(one)
                one.abort()
            if time.monotonic() >= ends:
                break
        if self._due:
            asyncio.get_running_loop().call_soon(self._turn)

    def passed(self, one: EncryptedTransport) -> None:
        self.forget(one)

    def failed(self, one: EncryptedTransport, why: str) -> None:
        if self.forget(one) and why:
            where = shown(one.get_extra_info("peername"))
            self._complaints.say("x %s closed: its TLS handshake failed: %s", where, why)

    def forget(self, one: Newcomer) -> bool:
        """Whether it was here."""
        since = self.silent.pop(one, None) if isinstance(one, FirstByte) else self.shaking.pop(one, None)
        source = self._sources.pop(one, None)
        if source is not None:
            those = self._of[source]
            del those[one]
            if not those:
                del self._of[source]
        return since is not None

    def _note(self, one: Newcomer, source: str) -> None:
        self._sources[one] = source
        those = self._of.setdefault(source, {})
        those[one] = None
        if len(those) > self.of_one_max:
            self._complaints.say(TOO_MANY, source, len(those))
            oldest = next(iter(those))
            self.forget(oldest)
            oldest.abort()

    # -- those who are late

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        late = first_until(self.silent, now - self._silent_s)
        slow = first_until(self.shaking, now - HANDSHAKE_S)
        for newcomer in late:
            self.forget(newcomer)
            newcomer.abort()
        for one in slow:
            self.failed(one, f"it did not end within {HANDSHAKE_S:g} s")
            one.abort()
        if len(self):
            self._watch()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        silent, shaking = list(self.silent), list(self.shaking)
        self.silent.clear()
        self.shaking.clear()
        self._sources.clear()
        self._of.clear()
        for newcomer in silent:
            newcomer.abort()
        for one in shaking:
            one.abort()


def first_until(since: dict[T, float], limit: float) -> list[T]:
    """Those that are here since before the limit; they stand first."""
    return list(takewhile(lambda one: since[one] < limit, since))


class Complaints:
    """Log lines about strangers: one of a kind in a while, with how many were left out."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def say(self, text: str, *values: object) -> None:
        now = time.monotonic()
        if now - self._said.get(text, -COMPLAINT_S) < COMPLAINT_S:
            self._left_out[text] += 1
            return
        self._said[text] = now
        left_out = self._left_out.pop(text, 0)
        log.warning(text + (f" (and {left_out} more like this before)" if left_out else ""), *values)
