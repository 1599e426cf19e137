"""Calls under way on one connection: opaque -> who waits, and until when.

Pure, so that the client's connections, the broker's calls to its clients and the simulation share it. Times are
milliseconds of whatever clock the owner counts with; only differences matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from roquet.errors import CallTimeout, RoquetError
from roquet.wire.command import Command

log = logging.getLogger(__name__)

Done = Callable[[Command | RoquetError], None]

OPAQUE_MAX = 0x7FFFFFFF
NEVER = 1 << 62


class PendingCalls:
    """Every `done` is called exactly once: by answer, by expire or by fail_all.

    A `done` that raises is logged and does not keep the others from being called.
    """

    __slots__ = ("_next", "_put_off", "_soonest", "_waiting")

    def __init__(self, first_opaque: int = 1) -> None:
        self._waiting: dict[int, tuple[int, Done]] = {}  # opaque -> (deadline, done)
        self._put_off: set[int] = set()
        """Calls that have more time than they asked for; some of them are over."""
        self._next = first_opaque
        # No deadline is before this. It may be older than the true minimum, since answers do not move it: that costs
        # one idle scan per timeout instead of a heap operation per call.
        self._soonest = NEVER

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_deadline_ms(self) -> int:
        """expire() has nothing to do before this. NEVER when nobody waits."""
        return self._soonest if self._waiting else NEVER

    def after(self, deadline_ms: int) -> list[int]:
        """The opaques of those that may wait for longer than this."""
        return [opaque for opaque, (deadline, _) in self._waiting.items() if deadline > deadline_ms]

    def __contains__(self, opaque: int) -> bool:
        """Somebody waits for this answer."""
        return opaque in self._waiting

    def add(self, done: Done, deadline_ms: int) -> int:
        """Remember a call and return the opaque its request must carry."""
        opaque = self._next
        waiting = self._waiting
        while opaque in waiting:  # only after two thousand million calls, when an old one still waits
            opaque = opaque + 1 if opaque < OPAQUE_MAX else 0
        self._next = opaque + 1 if opaque < OPAQUE_MAX else 0
        waiting[opaque] = (deadline_ms, done)
        if deadline_ms < self._soonest:
            self._soonest = deadline_ms
        return opaque

    def answer(self, command: Command) -> bool:
        """Hand a response to whoever waits for it. False: nobody does (it came too late, or the peer made it up)."""
        waiting = self._waiting.pop(command.opaque, None)
        if waiting is None:
            return False
        _tell(waiting[1], command)
        return True

    def forget(self, opaque: int) -> None:
        """Drop a call without telling anybody."""
        self._waiting.pop(opaque, None)

    def put_off(self, deadline_ms: int) -> None:
        """Every call that is due before gets this deadline, unless it was put off once."""
        if deadline_ms <= self._soonest:
            return
        had = self._put_off & self._waiting.keys()
        late = [opaque for opaque, (deadline, _) in self._waiting.items() if deadline < deadline_ms and opaque not in had]
        for opaque in late:
            self._waiting[opaque] = (deadline_ms, self._waiting[opaque][1])
        self._put_off = had.union(late)

    def expire(self, now_ms: int, most: int | None = None) -> int:
        """Fail the calls whose deadline has come with CallTimeout, all of them or the first so many; how many there were."""
        if now_ms < self._soonest:
            return 0
        late = list(islice((opaque for opaque, (deadline, _) in self._waiting.items() if deadline <= now_ms), most))
        gone = [self._waiting.pop(opaque)[1] for opaque in late]
        self._soonest = min((deadline for deadline, _ in self._waiting.values()), default=NEVER)
        for done in gone:
            _tell(done, CallTimeout("no answer in time; the server may or may not have done what was asked, so check before repeating it"))
        return len(gone)

    def fail_all(self, error: RoquetError) -> int:
        """The connection is gone: everybody gets this error."""
        gone = [done for _, done in self._waiting.values()]
        self._waiting.clear()
        self._soonest = NEVER
        for done in gone:
            _tell(done, error)
        return len(gone)


def _tell(done: Done, result: Command | RoquetError) -> None:
    try:
        done(result)
    except Exception:
        log.exception("the handler of an answer failed")
