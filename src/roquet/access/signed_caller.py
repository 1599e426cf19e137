"""What a server asks others, signed."""

from __future__ import annotations

from roquet.ports import Answered, Caller
from roquet.wire.command import Command
from roquet.wire.signing import Credentials, sign


class SignedCaller:
    """A `ports.Caller` around another. `credentials` may change at any time; None: nothing is signed."""

    def __init__(self, caller: Caller, credentials: Credentials | None = None) -> None:
        self._caller = caller
        self.credentials = credentials

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        if self.credentials is not None:
            sign(command, self.credentials)
        self._caller.call(address, command, timeout_ms, done)

    def oneway(self, address: str, command: Command) -> None:
        if self.credentials is not None:
            sign(command, self.credentials)
        self._caller.oneway(address, command)

    def hang_up(self, address: str) -> None:
        self._caller.hang_up(address)
