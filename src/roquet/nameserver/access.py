"""Access control of a name server: the guard, its files, which are looked at every second, and the requests about them."""

from __future__ import annotations

import logging

from roquet.access.accounts import Rules
from roquet.access.audit import Audit
from roquet.access.guard import AccessGuard
from roquet.access.requests import change_of, config_of, failed_code, in_short
from roquet.access.source import AclSource
from roquet.errors import BadSetting, Refused, RoquetError
from roquet.ports import Clock, Peer
from roquet.settings import NameServerSettings
from roquet.wire.calls import access as calls
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

log = logging.getLogger("roquet.access")

LOOK_MS = 1_000
ROUTES = frozenset((int(RequestCode.GET_ROUTEINFO_BY_TOPIC), int(RequestCode.REGISTER_TOPIC_IN_NAMESRV)))
"""What aclRoutesNeedKey=false leaves open: routes, and the question that Node's client asks before (217)."""
OFF = "access control is off: set aclEnable=true in the name server's file"


class WatchedRules:
    """State: the guard; None without access control."""

    def __init__(self, settings: NameServerSettings, clock: Clock, source: AclSource | None) -> None:
        if settings.acl_enable and source is None:
            raise BadSetting("aclEnable=true, and nothing that gives the accounts")
        self.audit = Audit(clock)
        self.trouble = ""
        """Why the files are not those that are in force; "": they are."""
        self._clock = clock
        self._source = source if settings.acl_enable else None
        self.guard = (
            None
            if self._source is None
            else AccessGuard(self._source.read(), self.audit, open_to_all=frozenset() if settings.acl_routes_need_key else ROUTES)
        )
        self._look_ms = clock.steady_ms()
        if self.guard is not None:
            log.info("access control is on: %s", in_short(self.guard.rules))

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
            self.trouble = f"{error}. The rules from before stay in force; correct the file"
            log.warning("%s", self.trouble)
            return
        if found is not None:
            self.guard.use(found)
            self.trouble = ""
            log.info("the acl files have changed: %s", in_short(found))

    def note_unasked(self, peer: Peer) -> None:
        """It sent an answer, and a name server asks nobody."""
        if self.guard is not None:
            self.guard.note_unasked(peer)

    # Requests

    def change(self, peer: Peer, command: Command) -> Command:
        """50, 51, 53. The answer says that it is on disk and in force."""
        if self._source is None or self.guard is None:
            raise Refused(failed_code(command.code), OFF)
        change = change_of(command, self.guard.rules, self._clock.now_ms())
        try:
            rules = self._source.change(change.access_key, change.edit)
        except (RoquetError, OSError) as error:
            raise Refused(change.failed, f"{error}. Nothing was changed") from None
        self.guard.use(rules)
        self.trouble = ""
        log.info("access control, %s: changed by %s", change.words, peer.address)
        return command.reply()

    def accounts(self, command: Command) -> Command:
        """54."""
        if self.guard is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, OFF)
        return calls.GET_BROKER_CLUSTER_ACL_CONFIG.reply(command, body=config_of(self.guard.rules))
