"""The guard of a broker or a name server: who asks is looked for, then what the request needs.

    the address is on the global white list         everything is allowed, as in RocketMQ
    the code is open to all (aclRoutesNeedKey)      allowed
    no access key, and a certificate's subject      the account of that name
      that is an account
    no access key, or one that nobody has           refused
    the account's own white list has the address    everything is allowed, as in RocketMQ
    the signature is wrong                          refused
    the code has no line in the table               refused
    the request was signed for another broker       refused: somebody sends again what was meant for that one
    the line asks for more than the account has     refused

Refusals have RocketMQ's code (1) and its words, which clients and people look for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from roquet.access.accounts import Account, Rules
from roquet.access.audit import Audit
from roquet.access.needs import NEEDS, Need, Wanted
from roquet.access.permissions import Permission, is_group
from roquet.access.signatures import is_signed
from roquet.errors import Refused
from roquet.hosts import host_of, parts_of
from roquet.ports import Peer
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import RETRY_PREFIX
from roquet.wire.signing import ACCESS_KEY

ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
"""What RocketMQ's remarks begin with."""
REPLIES = frozenset((int(RequestCode.SEND_REPLY_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE_V2)))
SHORT_NAMES = frozenset((int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE_V2)))
ALL_BROKERS = "__syslo__"
"""What a broker name of RocketMQ 5 begins with that stands for many."""
HOSTS_MAX = 4_096
GUESS_MAX = 64 * 1024
"""Bytes of a body whose signature is looked at in any case."""
COPIES_MS = 60_000
"""How long an address may have the log after an admin asked about the log from there. Slaves ask every ten seconds."""
DECISIONS_MAX = 100_000

EVERYTHING = None
"""In place of an account: an address that may do everything."""


class AccessGuard:
    """Made with the rules of now; `use` gives it others. `broker_name`: of a broker, whose requests may name it."""

    def __init__(
        self, rules: Rules, audit: Audit, *, broker_name: str = "", reply_topic: str = "", replies_need_pub: bool = True,
        open_to_all: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        """`reply_topic`: of this cluster, which needs no PUB unless `replies_need_pub`. `open_to_all`: codes that need no key."""
        self.audit = audit
        self._open_to_all = open_to_all
        self._broker_name = broker_name
        self.broker_name = broker_name.encode()
        self._reply_topic = reply_topic
        self.replies_need_pub = replies_need_pub
        self._white_hosts: dict[str, bool] = {}
        self._copying: dict[
            str, tuple[str, int]
        ] = {}  # address -> the admin who asked about the log from there, and until when that counts
        self.secrets: dict[bytes, bytes] = {}
        """By access key, for `signed_sends`."""
        self.may_send: set[bytes] = set()
        """Access key, zero, topic: who was found to be allowed to send where."""
        self.on_shown: Callable[[Peer, str], None] = lambda peer, access_key: None
        """Told of a connection that shows another account than just before."""
        self.use(rules)

    @property
    def rules(self) -> Rules:
        return self._rules

    def use(self, rules: Rules) -> None:
        """From the next request on, of connections that are open too."""
        self._rules = rules
        self._white_hosts.clear()
        self.may_send.clear()
        self.secrets = {key.encode(): account.secret_key for key, account in rules.accounts.items()}

    def lets_in(self, peer: Peer) -> bool:
        """Its address may do everything."""
        host = host_of(peer.address)
        found = self._white_hosts.get(host)
        if found is None:
            if len(self._white_hosts) >= HOSTS_MAX:
                self._white_hosts.clear()
            found = self._white_hosts[host] = self._rules.lets_in(parts_of(host))
        return found

    def knows(self, peer: Peer) -> bool:
        """It has shown a key, or a certificate that is one, or need not."""
        return bool(peer.principal) or peer.certificate_subject in self._rules.accounts or self.lets_in(peer)

    def note_unasked(self, peer: Peer) -> None:
        """It sent an answer that nobody waits for. From a stranger that is worth no more than a request without a key."""
        if not self.knows(peer) and self.audit.too_many_keyless(peer.address):
            peer.close("too many answers that nobody asked for came from its address")

    def lets_copy(self, address: str) -> bool:
        """May who connects from there be sent the whole log, still? The stream of master and slave has no room for a signature: the address
        must be on the global white list, as RocketMQ wants it of slaves, or an admin must have asked about the log from there in the last
        minute, as our slaves do. Other requests of admins do not count: people sign those, from places that others share."""
        host = host_of(address)
        key, until_ms = self._copying.get(host, ("", 0))
        account = self._rules.accounts.get(key)
        if (account is not None and account.admin and self.audit.clock.steady_ms() < until_ms) or self._rules.lets_in(parts_of(host)):
            return True
        self.audit.note(address, key, 0, "the log", "it is no address of the global white list, and no admin asks about the log from there")
        return False

    def is_admin(self, peer: Peer, command: Command) -> bool:
        """Does an admin ask? By its certificate, or the signature of this request: what the connection showed before may have changed
        since. For ports whose requests are not in the table, and where nobody else is served. Where too many wrong signatures come from,
        nobody is looked at who has not shown a right one."""
        accounts = self._rules.accounts
        known = accounts.get(peer.certificate_subject)
        if known is not None and known.admin:
            return True
        key = command.fields.get(ACCESS_KEY)
        if not key or (not peer.principal and self.audit.guesses(peer.address)):
            return False
        account = accounts.get(key)
        if account is not None and not account.admin:
            return False
        if account is None or not is_signed(command.fields, command.body, account.secret_key):
            self._wrong(peer, command)
            return False
        peer.principal = key
        return True

    def __call__(self, peer: Peer, command: Command) -> None:
        """Raises Refused."""
        if command.code in self._open_to_all or self.lets_in(peer):
            return
        account = self._who(peer, command)
        if account is not EVERYTHING:
            self._may(peer, command, account)

    def may_be_told(self, peer: Peer, topic: str) -> bool:
        """May this connection be shown what its like sent to this topic, without having asked? By the account that it showed last."""
        if self.lets_in(peer):
            return True
        account = self._rules.accounts.get(peer.principal)
        return account is not None and (self._white(account, peer) or account.allows(topic, Permission.PUB))

    def check_record(self, peer: Peer, command: Command, topic: str) -> None:
        """Of a request that was let in and names a message by its place: here is the message's topic. Raises Refused."""
        need = NEEDS.get(command.code)
        if need is None or not need.record or self.lets_in(peer):
            return
        account = self._rules.accounts.get(command.fields.get(ACCESS_KEY) or peer.certificate_subject)
        if account is None:  # removed since
            self._refuse(peer, command, topic, f"No acl config for {command.fields.get(ACCESS_KEY, '')[:100]}")
        elif not self._white(account, peer):
            needed = need.record if not is_group(topic) else Permission.SUB
            self._check(peer, command, account, [(topic, needed)])

    def allows_sends(self, pair: bytes) -> bool:
        """Of (access key, zero, topic), of which the signature is right: remembered in `may_send` if so. Nobody is refused by this."""
        key, _, topic = pair.decode().partition("\0")
        account = self._rules.accounts.get(key)
        if account is None or is_group(topic) or not account.allows(topic, Permission.PUB):
            return False
        if len(self.may_send) >= DECISIONS_MAX:
            self.may_send.clear()
        self.may_send.add(pair)
        return True

    # Who

    def _who(self, peer: Peer, command: Command) -> Account | None:
        fields, accounts = command.fields, self._rules.accounts
        key = fields.get(ACCESS_KEY)
        if not key:
            account = accounts.get(peer.certificate_subject) if peer.certificate_subject else None
            if account is None:
                if self.audit.too_many_keyless(peer.address):
                    peer.close("too many requests without a key came from its address")
                self._refuse(peer, command, "", "No accessKey is configured")
            self._showed(peer, account.access_key)
            return account
        account = accounts.get(key)
        if account is None:
            self._wrong(peer, command)
            self._refuse(peer, command, "", f"No acl config for {key[:100]}")
        if self._white(account, peer):
            self._showed(peer, key)
            return EVERYTHING
        if self._is_too_costly(peer, command) or not is_signed(fields, command.body, account.secret_key):
            self._wrong(peer, command)
            self._refuse(peer, command, "", f"Check signature failed for accessKey={key}")
        self._showed(peer, key)
        return account

    def _showed(self, peer: Peer, key: str) -> None:
        if peer.principal != key:
            peer.principal = key
            self.on_shown(peer, key)

    def _white(self, account: Account, peer: Peer) -> bool:
        return account.white is not None and bool(parts := parts_of(host_of(peer.address))) and account.white.matches(parts)

    def _is_too_costly(self, peer: Peer, command: Command) -> bool:
        """A large body of somebody who has shown nothing yet, from where wrong ones come, is not worth a look at its signature."""
        return not peer.principal and len(command.body) > GUESS_MAX and self.audit.guesses(peer.address)

    def _wrong(self, peer: Peer, command: Command) -> None:
        """Guessing must not be cheap, and a flood of it must not be answered."""
        if self.audit.too_many_wrong(peer.address, len(command.body)):
            peer.close("too many requests with unknown keys or wrong signatures came from its address")

    # What

    def _may(self, peer: Peer, command: Command, account: Account) -> None:
        need = NEEDS.get(command.code)
        if need is None:
            self.audit.note(peer.address, account.access_key, command.code, "", "the table of access control has no line for this code")
            raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
        self._check_broker(peer, command)
        if need.admin and not account.admin:
            key = account.access_key
            self._refuse(peer, command, "admin", f"Need admin permission for request code={command.code}, but accessKey={key} is not")
        if command.code == RequestCode.LOG_PIECE:
            if len(self._copying) >= HOSTS_MAX:
                self._copying.clear()
            self._copying[host_of(peer.address)] = (account.access_key, self.audit.clock.steady_ms() + COPIES_MS)
        if need.wants is not None:
            self._check(peer, command, account, self._wanted(command, need))

    def _wanted(self, command: Command, need: Need) -> Iterable[Wanted]:
        assert need.wants is not None
        wanted = need.wants(command)
        if command.code in REPLIES and not self.replies_need_pub:
            return [one for one in wanted if one[0] != self._reply_topic]
        return wanted

    def _check_broker(self, peer: Peer, command: Command) -> None:
        fields = command.fields
        named = fields.get("bname") or (fields.get("n") if command.code in SHORT_NAMES else "")
        if named and self._broker_name and named != self._broker_name and not named.startswith(ALL_BROKERS):
            self._refuse(peer, command, f"broker {named}", f"it was signed for broker {named[:100]}, and this is {self._broker_name}")

    def _check(self, peer: Peer, command: Command, account: Account, wanted: Iterable[Wanted]) -> None:
        for resource, permission in wanted:
            if not account.allows(resource, permission):
                name = f"group:{resource.removeprefix(RETRY_PREFIX)}" if is_group(resource) else f"topic:{resource}"
                self._refuse(peer, command, name, f"No default permission for {name[:200]}", account.decides(resource, permission).why)

    def _refuse(self, peer: Peer, command: Command, resource: str, remark: str, why: str = "") -> NoReturn:
        """`why`, with the line of the file, is for the operator alone."""
        key = command.fields.get(ACCESS_KEY) or peer.certificate_subject
        self.audit.note(peer.address, key, command.code, resource, why or remark)
        raise Refused(ResponseCode.SYSTEM_ERROR, ACL_EXCEPTION + remark)
