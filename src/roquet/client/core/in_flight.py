"""How many messages of a producer are under way: given to send, and no answer yet. Where there is no room for more, sends line up.

A send that lines up is made already and its time runs; it goes when one before it was answered, first come, first served. So a program
that sends faster than its brokers store waits, and what it holds in memory is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.client.core.tasks import Wait
from roquet.errors import RoquetError

if TYPE_CHECKING:
    from roquet.client.core.sending import Sending

IN_FLIGHT_MAX = 65_535
CLOSED = "the producer was closed"


class InFlight:
    """State: how many more may go, and who waits for that. Who waits does so only while there is no room."""

    __slots__ = ("_freed", "_letting_in", "_line", "crowded", "limit", "room")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.room = limit
        """Messages that may go besides those under way. Below 0 after a batch, which goes whole."""
        self.crowded = False
        """Somebody waits for room."""
        self._line: dict[Sending, None] = {}  # a set that keeps its order
        self._letting_in = False
        self._freed: Wait[None] | None = None

    def begin(self, sending: Sending) -> None:
        """It goes now, or lines up."""
        if self.room <= 0 or self._line:
            self._line[sending] = None
            self.crowded = True
            sending.wait_for_room(self.limit)
        else:
            self.room -= len(sending.outgoing.message_ids)
            sending.start()

    def leave(self, sending: Sending) -> None:
        """It is over."""
        if sending in self._line:
            del self._line[sending]
        else:
            self.free(len(sending.outgoing.message_ids))

    def free(self, count: int) -> None:
        """So many messages are over."""
        self.room += count
        if self.crowded:
            self.let_in()

    def let_in(self) -> None:
        """Those that wait, as far as there is room."""
        if self._letting_in:  # one that went was over at once
            return
        self._letting_in = True
        try:
            while self._line and self.room > 0:
                first = next(iter(self._line))
                del self._line[first]
                self.room -= len(first.outgoing.message_ids)
                first.go_on()
        finally:
            self._letting_in = False
        freed = self._freed if self.room > 0 else None
        if freed is not None:
            self._freed = None
        self.crowded = bool(self._line) or self._freed is not None
        if freed is not None:
            freed.end(None)

    def close(self, error: RoquetError) -> None:
        """Nobody has to wait for room any more: there will be none."""
        while self._line:
            next(iter(self._line)).give_up(CLOSED)
        if self._freed is not None:
            self._freed.end(error)

    async def until_room(self) -> None:
        while self.room <= 0:
            if self._freed is None:
                self._freed = Wait()
                self.crowded = True
            await self._freed
