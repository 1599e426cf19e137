"""What a request handler of the broker is."""

from __future__ import annotations

from collections.abc import Callable

from roquet.ports import Peer
from roquet.wire.command import Command

Handler = Callable[[Peer, Command], Command | None]
"""Returns the response, or None when the handler answers later through peer.send.

Raises Refused for an error answer. Lets Cold through when a read is not in memory: the core fetches it in the background
and calls the handler again, so a handler reads first and changes afterwards.
"""
