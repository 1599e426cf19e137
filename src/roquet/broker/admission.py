"""Who may ask for what, now: the one gate between a frame and what it asks for.

Every request passes it. Access control comes first (`access`), then guards, which look at the peer and the request and raise Refused: a
slave that takes no writes is one. Flow control is here too; it turns sends away and nothing else.

A plain send is too cheap for a gate of its own: once a read, `lets_plain_in` says whether all of them go straight to the log. With a
guard, or while something presses, none does, and each is looked at. With access control those do that are signed by who may send them
(`access/signed_sends.py`).
"""

from __future__ import annotations

from roquet.access.guard import AccessGuard
from roquet.broker.flow import Flow
from roquet.broker.send import SENDS
from roquet.ports import Guard, Peer
from roquet.store.store import Store
from roquet.wire.command import Command


class Admission:
    """State: the guards, in the order in which they look."""

    def __init__(self, store: Store, flow: Flow, access: AccessGuard | None = None) -> None:
        self.store = store
        self.flow = flow
        self.access = access
        self.guards: list[Guard] = []

    def lets_plain_in(self) -> bool:
        """Everybody would let a plain send in just now."""
        return not (self.guards or self.flow.pressed or self.store.trouble.failed or self.store.trouble.full)

    def watches(self, peer: Peer) -> bool:
        """Every request of this peer must be looked at, with all its fields."""
        return bool(self.guards) or (self.access is not None and not self.access.lets_in(peer))

    def note_unasked(self, peer: Peer) -> None:
        """It sent an answer that nobody waits for."""
        if self.access is not None:
            self.access.note_unasked(peer)

    def check(self, peer: Peer, command: Command) -> None:
        """Raises Refused."""
        if self.access is not None:
            self.access(peer, command)
        for guard in self.guards:
            guard(peer, command)
        if command.code in SENDS:
            self.flow.check()
