"""Access control of a broker: its guard, its rules and their files, and the requests about them (50 to 54, and who was refused)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from roquet.access.accounts import Account, Rules, credentials_of, may_less
from roquet.access.audit import Audit
from roquet.access.guard import AccessGuard
from roquet.access.permissions import Permission, is_group
from roquet.access.requests import OFF, change_of, config_of, config_with_secrets, failed_code, in_short, with_copies
from roquet.access.shown import Shown
from roquet.access.signed_caller import SignedCaller
from roquet.access.source import AclSource
from roquet.broker.handler import Portions, answers, elsewhere
from roquet.broker.part import Part, Shared
from roquet.errors import BadSetting, Refused, RoquetError
from roquet.ports import Peer
from roquet.wire import fastjson
from roquet.wire.calls import access as calls
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import REPLY_SUFFIX, RETRY_PREFIX, retry_topic
from roquet.wire.sealing import NONCE_SIZE, seal
from roquet.wire.signing import ACCESS_KEY, Credentials

log = logging.getLogger("roquet.access")

LOOK_MS = 1_000
"""Between two looks at the files: a changed one is taken when it looked the same twice."""
CLOSED_AT_ONCE = 100
"""Connections that are closed in one tick because their accounts may less than before."""


class AccessControl(Part):
    """State: the guard with the rules of now, None without access control; who has shown which account, and who is to be closed."""

    def __init__(self, shared: Shared, source: AclSource | None, signing: SignedCaller, credentials: Credentials | None = None) -> None:
        """`signing`: signs what this broker asks others with `credentials`; None: with the first admin of the rules."""
        super().__init__(shared)
        if source is None and self.settings.acl_enable:
            raise BadSetting("aclEnable=true, and nothing that gives the accounts")
        self.source = source if self.settings.acl_enable else None
        self.audit = Audit(shared.clock)
        self.guard: AccessGuard | None = None
        self._signing = signing
        self._own = signing.credentials = credentials
        self._shown = Shown()
        self._leaving: deque[Peer] = deque()
        self._looking = False
        self._look_ms = 0
        if self.source is not None:
            settings = self.settings
            self.guard = AccessGuard(  # lets nobody in before the files are read
                Rules(),
                self.audit,
                broker_name=settings.broker_name,
                reply_topic=settings.broker_cluster_name + REPLY_SUFFIX,
                replies_need_pub=settings.acl_replies_need_pub,
            )
            self.guard.on_shown = self._shown.note

    def load(self) -> None:
        if self.source is not None:
            self._use(self.source.read())
            log.info("access control is on: %s", in_short(self._guard().rules))

    def _use(self, rules: Rules, asker: Peer | None = None) -> None:
        """`asker`: whose request this is."""
        before = self._guard().rules.accounts
        self._guard().use(rules)
        self._signing.credentials = self._own or next((credentials_of(one) for one in rules.admins()), None)
        self._send_away([key for key in self._shown.accounts() if key in before and may_less(before[key], rules.accounts.get(key))], asker)

    def _send_away(self, keys: Sequence[str], asker: Peer | None) -> None:
        """Who has shown these accounts may have asked for what would be refused now, and waits for it: pulls do so for a minute. So those
        connections are closed, and clients that come again are judged by the rules of now. All but the one that waits for an answer."""
        peers = self._shown.peers_of(keys)
        if asker is not None:
            peers.pop(asker, None)
        if peers:
            self._leaving += peers
            named = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
            log.info("access control: %d connections of accounts that are gone or may less than before are closed: %s", len(peers), named)

    def disconnected(self, peer: Peer) -> None:
        self._shown.forget(peer)

    def settings_changed(self, names: AbstractSet[str]) -> None:
        if self.guard is not None:
            self.guard.replies_need_pub = self.settings.acl_replies_need_pub

    def metrics(self) -> Mapping[str, object]:
        return {"aclEnable": str(self.guard is not None).lower(), "aclRefusedCalls": self.audit.refused}

    # The files

    def tick(self, now_ms: int) -> None:
        for _ in range(min(len(self._leaving), CLOSED_AT_ONCE)):
            self._leaving.popleft().close("access control: its account is gone or may less than before")
        if self.source is not None and not self._looking and now_ms >= self._look_ms:
            self._looking, self._look_ms = True, now_ms + LOOK_MS
            self.shared.background.run(self.source.look, self._looked)

    def _looked(self, found: Rules | Exception | None) -> None:
        self._looking = False
        if isinstance(found, Exception):
            self.notices.warn("acl files", f"{found}. The rules from before stay in force; correct the file")
        elif found is not None:
            self._use(found)
            self.notices.clear("acl files")
            log.info("the acl files have changed: %s", in_short(found))

    def accounts_with_secrets(self) -> calls.AclConfig:
        """Never to be shown or logged. Empty without access control."""
        if self.guard is None:
            return calls.AclConfig()
        return config_with_secrets(self.guard.rules)

    def take(self, accounts: Sequence[calls.PlainAccessConfig], white: Sequence[str], done: Callable[[Exception | None], None]) -> None:
        """Add these accounts to the first file, and let its white list be this one, unless it is empty: all at once, written elsewhere."""
        source, now_ms = self.source, self.clock.now_ms()
        if source is None or not (accounts or white):
            done(None)
            return

        def changed(result: Rules | Exception) -> None:
            if isinstance(result, Exception):
                done(result)
                return
            self._use(result)
            log.info("access control: %d accounts were copied from the cluster", len(accounts))
            done(None)

        self.shared.background.run(lambda: source.change("", partial(with_copies, accounts=accounts, white=white, now_ms=now_ms)), changed)

    # Requests

    @answers(calls.UPDATE_AND_CREATE_ACL_CONFIG, calls.DELETE_ACL_CONFIG, calls.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    def change(self, peer: Peer, command: Command) -> Portions:
        """50, 51, 53. Written elsewhere; the answer comes when it is on disk and in force."""
        if self.source is None:
            raise Refused(failed_code(command.code), OFF)
        source, change = self.source, change_of(command, self._guard().rules, self.clock.now_ms())
        try:
            rules = yield from elsewhere(lambda: source.change(change.access_key, change.edit))
        except (RoquetError, OSError) as error:
            raise Refused(change.failed, f"{error}. Nothing was changed") from None
        self._use(rules, peer)
        log.info("access control, %s: changed by %s", change.words, peer.address)
        return command.reply()

    @answers(calls.GET_BROKER_CLUSTER_ACL_INFO)
    def version(self, peer: Peer, command: Command) -> Command:
        """52: the version of all files as one."""
        source = self._source()
        versions = source.versions()
        newest = DataVersion(
            timestamp=max((one.timestamp_ms for one in versions.values()), default=0), counter=sum(one.counter for one in versions.values())
        )
        settings = self.settings
        of_files = {name: {"counter": one.counter, "timestamp": one.timestamp_ms} for name, one in versions.items()}
        header = calls.AclVersionHeader(
            newest.encode().decode(), settings.broker_name, self._address, settings.broker_cluster_name, fastjson.dumps(of_files).decode()
        )
        return calls.GET_BROKER_CLUSTER_ACL_INFO.reply(command, header)

    @answers(calls.GET_BROKER_CLUSTER_ACL_CONFIG)
    def accounts(self, peer: Peer, command: Command) -> Command:
        self._source()
        return calls.GET_BROKER_CLUSTER_ACL_CONFIG.reply(command, body=config_of(self._guard().rules))

    @answers(calls.ACCESS_COPY)
    def copy(self, peer: Peer, command: Command) -> Command:
        """For a new broker of the cluster. Only who has the secret of the admin that it names can read it, however it came in."""
        self._source()
        rules = self._guard().rules
        asker = rules.accounts.get(command.fields.get(ACCESS_KEY, ""))
        if asker is None or not asker.admin:
            raise Refused(
                ResponseCode.NO_PERMISSION, "accounts are told to an admin who signs the request: they are sealed with its secret key"
            )
        body = self.accounts_with_secrets().encode()
        log.info("all accounts were copied by %s of %s", asker.access_key, peer.address)
        nonce = self.shared.random.randbytes(NONCE_SIZE)
        return calls.ACCESS_COPY.reply(command, body=seal(asker.secret_key.decode(), nonce, body))

    @answers(calls.ACCESS_AUDIT)
    def refused_calls(self, peer: Peer, command: Command) -> Command:
        return calls.ACCESS_AUDIT.reply(command, body=calls.refused_calls(self.audit.refused, self.audit.calls))

    @answers(calls.ACCESS_CHECK)
    def check(self, peer: Peer, command: Command) -> Command:
        self._source()
        header = calls.ACCESS_CHECK.read_header(command)
        account = self._guard().rules.accounts.get(header.access_key)
        if account is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"there is no account {header.access_key[:255]!r}")
        asked = [(header.topic, permission) for permission in (Permission.PUB, Permission.SUB) if header.topic]
        asked += [(retry_topic(header.group), Permission.SUB)] if header.group else []
        return calls.ACCESS_CHECK.reply(command, body=calls.Verdicts([verdict(account, *one) for one in asked]))

    # Inside

    _address = ""

    def listening(self, address: str, ha_address: str) -> None:
        self._address = address

    def _guard(self) -> AccessGuard:
        assert self.guard is not None
        return self.guard

    def _source(self) -> AclSource:
        if self.source is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, OFF)
        return self.source


def verdict(account: Account, resource: str, permission: Permission) -> calls.Verdict:
    decision = account.decides(resource, permission)
    name = f"group {resource.removeprefix(RETRY_PREFIX)}" if is_group(resource) else f"topic {resource}"
    return calls.Verdict(name, permission.name or "", decision.allowed, decision.why)
