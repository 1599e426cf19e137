"""One thread that renews what plain handlers hold, for as long as they run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from roquet.idempotence.store import Claim

log = logging.getLogger(__name__)

IDLE_S = 10.0
"""The thread ends when there was nothing to renew for so long."""


@dataclass(eq=False, slots=True)
class _Due:
    at: float
    every_s: float


class Renewals:
    """Most handlers are over before anything is renewed, so adding a claim wakes the thread only if it is due before all others."""

    def __init__(self, name: str, renew: Callable[[Claim], None]) -> None:
        self._name = name
        self._renew = renew
        self._changed = threading.Condition()
        self._due: dict[Claim, _Due] = {}
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, claim: Claim, every_s: float) -> None:
        """Renew it again and again, for the first time after so many seconds."""
        with self._changed:
            at = time.monotonic() + every_s
            self._due[claim] = _Due(at, every_s)
            if self._thread is None or not self._thread.is_alive():  # not begun, over, or of the process that this one was forked from
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif at < self._wakes_at:
                self._changed.notify()

    def remove(self, claim: Claim) -> None:
        """One that is being renewed at this moment may be renewed once more; whoever sets the mark after this looks whose it is."""
        with self._changed:
            self._due.pop(claim, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                claim = self._next()
            if claim is None:
                return
            try:
                self._renew(claim)
            except Exception as error:
                log.warning("! the lease of %d messages could not be renewed; it is tried again: %s", len(claim.marks), error)

    def _next(self) -> Claim | None:
        """Waits until one is due. None: the thread ends."""
        idle_at = time.monotonic() + IDLE_S
        while True:
            now = time.monotonic()
            claim = min(self._due, key=lambda one: self._due[one].at, default=None)
            if claim is not None and (due := self._due[claim]).at <= now:
                due.at = now + due.every_s
                return claim
            self._wakes_at = self._due[claim].at if claim is not None else idle_at
            if claim is None and now >= idle_at:
                self._thread = None
                return None
            self._changed.wait(self._wakes_at - now)
