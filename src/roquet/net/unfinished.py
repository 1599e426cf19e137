"""Frames that have begun and not ended: what all connections together may hold of them, and who waits or goes when that is too much.

A peer can begin a frame of 16 MiB and never end it, on as many connections as there may be. So the sum has a limit, in two parts:

    a quarter       frames of which little has come (up to LARGE bytes), and frames that wait. Beyond it, who asked for most goes,
                    of equals who began first. Ordinary requests come whole or nearly so, and are not here for long.
    three quarters  frames of which more has come. One is let in with its whole length, so it can always be finished; while there
                    is no room, nothing more is read from its connection. Who asks for least is let in next.

While others wait, who was let in has to keep going: one that stops for STALL_S, or is slower than RATE, is closed. Nobody is closed for
being slow while there is room. The sum is over all peers: a server that knows who they are may give each a part of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

LARGE = 64 * 1024
"""A frame of which more than this has come counts with its whole length."""
STALL_S = 2.0
RATE = 4 * 1024 * 1024
"""Bytes a second, after the first STALL_S."""


class Reading(Protocol):
    """A connection, as far as it matters here."""

    def hold_reading(self) -> None: ...

    def go_on_reading(self) -> None: ...

    def close(self, reason: str) -> None: ...


@dataclass(slots=True)
class Part:
    """What has come of one frame."""

    have: int
    need: int
    admitted_s: float = 0.0
    """When it was let in."""
    moved_s: float = 0.0
    """When something of it came last, or it was let in."""


class Unfinished:
    """State: `_loose` in the order in which the frames began, `_waiting` are those of them that want to be `_admitted`;
    `_loose_bytes` have come of the first, `_room` bytes are left for the last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Bytes that have come of frames that are not whole."""
        self._loose: OrderedDict[Reading, Part] = OrderedDict()
        self._waiting: dict[Reading, Part] = {}
        self._admitted: dict[Reading, Part] = {}
        self._loose_max = limit // 4
        self._loose_bytes = 0
        self._room = limit - self._loose_max

    @property
    def waiting(self) -> int:
        """Connections that are not read from for now: while there are any, `tick` must be called."""
        return len(self._waiting)

    def note(self, peer: Reading, have: int, need: int, now_s: float, *, fresh: bool) -> None:
        """So much of this frame has come; `fresh`: it is not the frame of the last time. None has begun when `have` is 0."""
        if fresh:
            self.forget(peer)
            if not have:
                return
        part = self._admitted.get(peer)
        if part is not None:
            self.held += have - part.have
            part.have, part.moved_s = have, now_s
            return
        part = self._loose.get(peer)
        if part is None:
            part = self._loose[peer] = Part(0, need)
        came = have - part.have
        part.have, part.need = have, need
        self.held += came
        self._loose_bytes += came
        if have > LARGE and peer not in self._waiting:
            self._waiting[peer] = part
            peer.hold_reading()
            self._admit(now_s)
        while self._loose_bytes > self._loose_max:
            one = max(self._waiting, key=lambda one: self._waiting[one].need) if self._waiting else next(iter(self._loose))
            self._close(one, self._loose[one], "it asks for most, or began first")

    def forget(self, peer: Reading) -> None:
        """Its frame is whole, or its connection is gone."""
        part = self._admitted.pop(peer, None)
        if part is not None:
            self._room += part.need
            self.held -= part.have
            return
        part = self._loose.pop(peer, None)
        if part is not None:
            self._waiting.pop(peer, None)
            self._loose_bytes -= part.have
            self.held -= part.have

    def tick(self, now_s: float) -> None:
        """Close who holds others up, and let in who waits."""
        if not self._waiting:
            return
        for peer, part in list(self._admitted.items()):
            quiet_s, took_s = now_s - part.moved_s, now_s - part.admitted_s
            if quiet_s > STALL_S or took_s > STALL_S + part.need / RATE:
                self._close(peer, part, f"{len(self._waiting)} others wait, it takes {took_s:.1f} s and nothing came for {quiet_s:.1f} s")
        self._admit(now_s)

    def _admit(self, now_s: float) -> None:
        while self._waiting:
            peer = min(self._waiting, key=lambda one: self._waiting[one].need)
            part = self._waiting[peer]
            if part.need > self._room:
                return
            del self._waiting[peer], self._loose[peer]
            self._loose_bytes -= part.have
            self._room -= part.need
            part.admitted_s = part.moved_s = now_s
            self._admitted[peer] = part
            peer.go_on_reading()

    def _close(self, peer: Reading, part: Part, why: str) -> None:
        self.forget(peer)
        short = f"memory for unfinished frames is short (limit {self.limit})"
        peer.close(f"{part.have} of {part.need} bytes of a frame have come and {short}: {why}")
