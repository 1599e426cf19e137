"""How many new names a second: topics and groups that nobody used before.

A new name is cheap to ask for and dear to have: it is saved, registered with every name server, and stays. So each address
may bring `newNamesPerSecond`, with ten seconds' worth at once, and all addresses together five times as many. Who brings more is
told SYSTEM_BUSY, which clients take for "later"; groups in a heartbeat wait for their turn instead (`Members`).

Addresses count, not connections: who closes and connects again is still the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from roquet.errors import Refused
from roquet.hosts import source_of
from roquet.ports import Clock, Peer
from roquet.settings import BrokerSettings
from roquet.wire.codes import ResponseCode

BURST_S = 10
"""Seconds' worth of names that may come at once."""
ALL_FACTOR = 5
"""All addresses together, in terms of one."""
BUCKETS_MAX = 1_000
"""Addresses that are remembered before those whose time is over are forgotten."""


@dataclass(slots=True)
class Bucket:
    """Names that may still come. A list in one request may bring it below zero: it is let in whole, and paid for later."""

    names: float
    at_ms: int

    def fill(self, rate: int, now_ms: int) -> float:
        self.names = min(float(rate * BURST_S), self.names + rate * max(0, now_ms - self.at_ms) / 1_000)
        self.at_ms = now_ms
        return self.names

    def take(self, count: int, rate: int) -> None:
        self.names = max(self.names - count, float(-rate * BURST_S))


class Newcomers:
    """State: a bucket for each address that brought names lately, and one for all."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.peer: Peer | None = None
        """Whose request is being answered; None: the broker's own work, which is not bounded. The core sets it."""
        self._buckets: dict[str, Bucket] = {}
        self._all: Bucket | None = None
        self._forget_at = BUCKETS_MAX

    def let_in(self, count: int = 1) -> None:
        """Raises Refused when whoever asks now has brought too many."""
        if self.peer is None:
            return
        host = host_of(self.peer)
        if not self.may_enter(host, count):
            rate = self.settings.new_names_per_second
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[NEW_NAMES]too many new topics and groups: {host} may bring newNamesPerSecond={rate} a second, all clients together "
                f"{rate * ALL_FACTOR}. Try again later",
            )

    @contextlib.contextmanager
    def own_work(self) -> Iterator[None]:
        """Names made in this block are counted by whoever makes them, or not at all."""
        peer, self.peer = self.peer, None
        try:
            yield
        finally:
            self.peer = peer

    def may_enter(self, host: str, count: int = 1) -> bool:
        """Whether this address may bring so many names now; if so they count as brought."""
        rate, now_ms = self.settings.new_names_per_second, self.clock.steady_ms()
        if self._all is None:
            self._all = Bucket(float(rate * ALL_FACTOR * BURST_S), now_ms)
        if self._all.fill(rate * ALL_FACTOR, now_ms) < 1:
            return False
        bucket = self._buckets.get(host)
        if bucket is None:
            self._forget(now_ms)
            bucket = self._buckets[host] = Bucket(float(rate * BURST_S), now_ms)
        if bucket.fill(rate, now_ms) < 1:
            return False
        bucket.take(count, rate)
        self._all.take(count, rate * ALL_FACTOR)
        return True

    def _forget(self, now_ms: int) -> None:
        """Drop the buckets that are full again. There are few others: each of them took from the common one not long ago."""
        if len(self._buckets) >= self._forget_at:
            over_ms = now_ms - 2 * BURST_S * 1_000
            self._buckets = {host: bucket for host, bucket in self._buckets.items() if bucket.at_ms > over_ms}
            self._forget_at = max(BUCKETS_MAX, 2 * len(self._buckets))


def host_of(peer: Peer) -> str:
    """What counts as one address: of IPv6 a network of 64 bits."""
    return source_of(peer.address)
