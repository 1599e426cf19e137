"""What the guard asks of a store, and what the store may say.

A store is plain, or all of its four methods are async. The guard calls them in this order, once each, for one call of the handler:

    claim(claim)                    try to set every mark to running; answers how each of them stands now
    begin(claim)                    the handler runs next, for claim.marks: those that are ours. Gives the handler's session, or None
    finish(claim, done, failed)     the handler returned
    fail(claim)                     it raised, said that nothing is done, or did not begin
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from roquet.errors import ClientError


class StoreFailed(ClientError):
    """A store could not say whether a message was handled, or could not commit. The message comes again."""


class LeaseLost(ClientError):
    """Somebody else has the message now: the lease was over before this one began, or while it ran."""


class State(Enum):
    """How the mark of a message stands when it is claimed."""

    MINE = "mine"
    """Nobody had it, the last one failed, or its lease was over: the claim has it now."""
    RUNNING = "running"
    """Somebody handles it."""
    DONE = "done"


class Standing(NamedTuple):
    """The answer for one mark."""

    state: State
    left_ms: int = 0
    """Of one that runs: when its lease is over, unless it is renewed; 0: not known."""


MINE = Standing(State.MINE)
DONE = Standing(State.DONE)


class Mark(NamedTuple):
    """What a store remembers a message by."""

    digest: str
    """Of group and key, 32 characters."""
    group: str
    key: str


@dataclass(eq=False, slots=True)
class Claim:
    """The marks of one call of a handler."""

    marks: Sequence[Mark]
    """No two are equal."""
    token: str
    """Nobody else's."""
    lease_ms: int
    work: Any = None
    """The store's own, from begin() to the end."""


class Store(Protocol):
    """A plain store, for plain handlers; an async handler's guard calls it in threads when it `blocks`."""

    @property
    def blocks(self) -> bool:
        """Whether a call may wait for somebody."""
        ...

    @property
    def has_session(self) -> bool:
        """begin() gives a session, and finish() commits what was done in it: when that raises, nothing was done."""
        ...

    def claim(self, claim: Claim) -> Sequence[Standing]:
        """One for each mark, in their order. When it raises, none is set."""
        ...

    def begin(self, claim: Claim) -> Any:
        """May raise LeaseLost."""
        ...

    def finish(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None:
        """At least one is done."""
        ...

    def fail(self, claim: Claim) -> None:
        """The next delivery may claim the marks at once."""
        ...


class AsyncStore(Protocol):
    """The same on the event loop, for async handlers."""

    @property
    def has_session(self) -> bool: ...

    async def claim(self, claim: Claim) -> Sequence[Standing]: ...

    async def begin(self, claim: Claim) -> Any: ...

    async def finish(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None: ...

    async def fail(self, claim: Claim) -> None: ...
