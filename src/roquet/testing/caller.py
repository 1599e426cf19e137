"""RecordingCaller: outgoing calls, as a list."""

from __future__ import annotations

from roquet.ports import Answered
from roquet.wire.command import Command


class RecordingCaller:
    """Keeps calls. Answers them with success, at once and from within the call, unless `answering` is False: then the test calls
    what the list has for it. The real one is `roquet.net.caller.AsyncCaller`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Command, Answered]] = []
        self.answering = True

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        self.calls.append((address, command, done))
        if self.answering:
            done(command.reply())

    def oneway(self, address: str, command: Command) -> None:
        self.calls.append((address, command, lambda result: None))

    def hang_up(self, address: str) -> None:
        pass
