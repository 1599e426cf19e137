"""Access control of a name server: the guard, and its files, which are looked at every second."""

from __future__ import annotations

import logging

from roquet.access.accounts import Rules
from roquet.access.audit import Audit
from roquet.access.guard import AccessGuard
from roquet.access.source import AclSource
from roquet.errors import RoquetError
from roquet.ports import Clock
from roquet.settings import BadSetting, NameServerSettings

log = logging.getLogger("roquet.access")

LOOK_MS = 1_000


class WatchedRules:
    """State: the guard; None without access control."""

    def __init__(self, settings: NameServerSettings, clock: Clock, source: AclSource | None) -> None:
        if settings.acl_enable and source is None:
            raise BadSetting("aclEnable=true, and nothing that gives the accounts")
        self.audit = Audit(clock)
        self._source = source if settings.acl_enable else None
        self.guard = None if self._source is None else AccessGuard(self._source.read(), self.audit)
        self._look_ms = clock.steady_ms()

    @property
    def rules(self) -> Rules:
        return Rules() if self.guard is None else self.guard.rules

    def tick(self, now_ms: int) -> None:
        if self._source is None or self.guard is None or now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_MS
        try:
            found = self._source.look()
        except (RoquetError, OSError) as error:
            log.warning("%s. The rules from before stay in force; correct the file", error)
            return
        if found is not None:
            self.guard.use(found)
            log.info("the acl files have changed: %d accounts", len(found.accounts))
