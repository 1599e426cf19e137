"""Brokers that leave sends without an answer: maybe another one is the master by now, and nobody has told.

A machine that stops, or is cut off, says no word: its connections stay, and a send would wait there until its time is over. So while sends
are under way to an address, it is looked at four times a second. After a second in which nothing was answered the name servers are
asked, soon again, and then ever more seldom. When they name another master for that broker, the silent connection is given up, and what
waited on it is sent to the new one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from roquet.errors import RoquetError
from roquet.wire.command import Command

if TYPE_CHECKING:
    from roquet.client.core.instance import ClientCore
    from roquet.client.core.resolver import TopicRoute

LOOK_MS = 250
SILENT_LOOKS = 4
"""Looks in a row at which nothing was answered since the one before: then the broker is silent."""
OFTEN_LOOKS = 8
"""Until then the name servers are asked at each look; a new leader is there after a second or two. Then ever more seldom."""


class Waited:
    """Sends under way to one address."""

    __slots__ = ("heard", "looks", "next", "topic", "under_way", "watched")

    def __init__(self) -> None:
        self.topic = ""
        self.under_way = 0
        self.watched = False
        self.heard = True
        """Since the last look."""
        self.looks = 0
        """At which nothing was heard, in a row."""
        self.next = SILENT_LOOKS
        """At so many of them the name servers are asked."""


class Silence:
    """State: what is under way, by address."""

    def __init__(self, client: ClientCore) -> None:
        self._client = client
        self._waited: dict[str, Waited] = {}
        self._masters: dict[str, str] = {}

    def sent(self, address: str, topic: str) -> None:
        waited = self._waited.get(address)
        if waited is None:
            waited = self._waited[address] = Waited()
        waited.under_way += 1
        if not waited.watched:
            waited.watched, waited.heard, waited.topic = True, True, topic
            self._client.after(LOOK_MS, partial(self._look, address, waited))

    def ended(self, address: str, result: Command | RoquetError) -> None:
        """One of them was answered, or failed."""
        waited = self._waited[address]
        waited.under_way -= 1
        if isinstance(result, Command):
            waited.heard = True

    def _look(self, address: str, waited: Waited) -> None:
        if not waited.under_way:
            del self._waited[address]
            return
        if waited.heard:
            waited.heard, waited.looks, waited.next = False, 0, SILENT_LOOKS
        else:
            waited.looks += 1
            if waited.looks >= waited.next:
                waited.next = waited.looks + (1 if waited.looks < OFTEN_LOOKS else waited.looks // 2)
                self._client.routes.fetch_again(waited.topic)
        self._client.after(LOOK_MS, partial(self._look, address, waited))

    def route_changed(self, route: TopicRoute) -> None:
        for name, master in route.masters.items():
            before = self._masters.get(name, master)
            self._masters[name] = master
            if before != master and before not in self._client.routes.addresses():
                waited = self._waited.get(before)
                if waited is not None and waited.looks >= SILENT_LOOKS:
                    self._client.caller.hang_up(before)
