"""WatchedCaller: a Caller around the client's own, while middleware wants to hear of each call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from roquet.client.core.events import CallEvent
from roquet.client.core.hooks import Hook, distinct
from roquet.errors import RoquetError
from roquet.ports import Answered, Caller, Clock
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command

if TYPE_CHECKING:
    from roquet.client.core.hooks import Hooks

NAMES = {int(code): code.name for code in RequestCode}


class WatchedCaller:
    """Connections are shared by all members of a client, and so are the calls: each watcher hears of all of them."""

    def __init__(self, caller: Caller, clock: Clock, client_id: str) -> None:
        self.caller = caller
        self.watchers: list[Hooks] = []
        self._clock = clock
        self._client_id = client_id
        self._before: list[Hook] = []
        self._after: list[Hook] = []

    def watch(self, watchers: list[Hooks]) -> None:
        self.watchers = watchers
        self._before = distinct(watchers, "before_call")
        self._after = distinct(watchers, "after_call")[::-1]

    # -- ports.Caller

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        event = self._begin(address, command, oneway=False)
        self.caller.call(address, command, timeout_ms, partial(self._ended, event, self._after, done))

    def oneway(self, address: str, command: Command) -> None:
        event = self._begin(address, command, oneway=True)
        self.caller.oneway(address, command)
        for hook in self._after:
            hook(event)

    def hang_up(self, address: str) -> None:
        self.caller.hang_up(address)

    # -- inside

    def _begin(self, address: str, command: Command, *, oneway: bool) -> CallEvent:
        code, clock = command.code, self._clock
        name = NAMES.get(code, str(code))
        event = CallEvent(self._client_id, address, code, name, oneway, clock.now_ms(), steady_ms=clock.steady_ms())
        for hook in self._before:
            hook(event)
        return event

    def _ended(self, event: CallEvent, after: list[Hook], done: Answered, result: Command | RoquetError) -> None:
        event.duration_ms = self._clock.steady_ms() - event.steady_ms
        if isinstance(result, Command):
            event.answer_code = result.code
        else:
            event.error = result
        for hook in after:
            hook(event)
        done(result)
