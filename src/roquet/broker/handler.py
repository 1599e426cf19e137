"""What a request handler of the broker is."""

from __future__ import annotations

from collections.abc import Callable, Generator

from roquet.ports import Peer
from roquet.store.disk import Cold
from roquet.wire.command import Command

Portions = Generator[Cold | None, None, Command | None]
"""Work that costs in proportion to all topics, queues or groups. It yields after every few milliseconds of it, so that others
get their turn, or yields a Cold and goes on when that was fetched. What it returns is what a handler returns. Whatever it looks
at may have changed when it goes on."""

Handler = Callable[[Peer, Command], Command | Portions | None]
"""Returns the response, or None when the handler answers later through peer.send, or the work in portions.

Raises Refused for an error answer. Lets Cold through when a read is not in memory: the core fetches it in the background
and calls the handler again, so a handler reads first and changes afterwards.
"""
