"""A broker that is a member of a DLedger group: the rules of `raft` over connections, with the store's ledger and the broker's role.

    another member ── GroupDoor.receive ── Member.receive ── the ledger grows ── the answer, when it counts
    a send ── the log grows ── Member.stored ── pushes ── answers of a majority ── committed, so safe ── the send's own answer
    elected ── an entry of the new term ── committed, all of the log applied ── the broker becomes the master and registers at once
    deposed ── the broker becomes a slave at once; sends that wait are told that nobody knows

What the rules want on disk first (term and vote) is written in the background; until then nothing of theirs goes out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from posixpath import normpath
from typing import TYPE_CHECKING, NamedTuple

from roquet.access.guard import AccessGuard
from roquet.broker.part import Part, Shared
from roquet.broker.portions import Work
from roquet.broker.roles import STORES, is_slave
from roquet.errors import Broken, CallTimeout, Damaged, Refused, RoquetError
from roquet.hosts import host_of, parts_of
from roquet.ports import FOREVER, Caller, Guard, Peer, Receiver, Rest
from roquet.raft.codes import Call, Code, Role
from roquet.raft.frames import answer_from, command_of, refusal_of, reply_to, request_from
from roquet.raft.ledger import HEAD
from roquet.raft.member import Ask, Change, Member, Reply
from roquet.raft.messages import Request, Unreadable
from roquet.raft.noop import noop_record
from roquet.raft.options import BadGroup, Options, peers_of
from roquet.settings import BrokerSettings
from roquet.store.disk import Cold
from roquet.store.ledger_part import LedgerPlace
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame
from roquet.wire.signing import ACCESS_KEY

if TYPE_CHECKING:
    from roquet.store.ledger_part import LedgerPart

log = logging.getLogger("roquet.broker")

APPLY_MS = 5
PREPARE_MS = 10
"""How long one turn prepares to lead."""
RETRY_MS = 1_000
"""After term and vote, or the first entry of a term, could not be written."""
BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
"""Upstream's remark for everything that a group cannot take now."""
NOTICE = "dledger"
AMONG_MEMBERS = frozenset((Call.VOTE, Call.HEART_BEAT, Call.PUSH, Call.DENSE_PUSH))
"""What only members ask each other. Tools ask for the rest."""


def options_of(settings: BrokerSettings) -> Options:
    """Raises BadGroup."""
    if not settings.dleger_peers:
        raise BadGroup("enableDLegerCommitLog=true and dLegerPeers is empty, expected id-host:port of each member, separated by ';'")
    return Options(
        settings.dleger_group or settings.broker_name,
        settings.dleger_self_id,
        peers_of(settings.dleger_peers),
        tuple(filter(None, (name.strip() for name in settings.preferred_leader_id.split(";")))),
        sync_flush=settings.flush_disk_type == "SYNC_FLUSH",
        heartbeat_ms=settings.dleger_heartbeat_interval,
    )


def place_of(settings: BrokerSettings) -> LedgerPlace | None:
    """Where the ledger is; None without a group. From here on the broker is a slave of its group, until it is elected. Raises BadGroup."""
    if not settings.enable_dleger_commit_log:
        return None
    options = options_of(settings)
    settings.broker_role, settings.broker_id = "SLAVE", slave_id(options)
    home = f"{settings.store_path_root_dir}/dledger-{options.me}"
    check_place(settings, home)
    return LedgerPlace(home, settings.store_path_dledger_commit_log)


def check_place(settings: BrokerSettings, home: str) -> None:
    """The ledger's data files must be alone: they have names as the plain log's and the queues' have. Raises BadGroup."""
    root, given = settings.store_path_root_dir, settings.store_path_dledger_commit_log
    others = [settings.store_path_commit_log or f"{root}/commitlog", root, home, f"{home}/index"]
    others += [f"{root}/{name}" for name in ("consumequeue", "index", "config", "timers", "lost")]
    if given and normpath(given) in map(normpath, others):
        raise BadGroup(
            f"storePathDLedgerCommitLog is {given}, where this broker has other files: give the ledger's data a directory of its own, or "
            f"leave it empty for {home}/data"
        )


def member_hosts(options: Options) -> frozenset[str]:
    """The addresses that members come from. None where a host name is among them: what it means may change."""
    hosts = frozenset(address.rpartition(":")[0].strip("[]") for address in options.peers.values())
    return hosts if all(map(is_ip, hosts)) else frozenset()


def known_by_address(settings: BrokerSettings) -> bool:
    """All members are given by address. Else, with access control, what they ask each other is signed."""
    return bool(member_hosts(options_of(settings)))


def is_ip(host: str) -> bool:
    return ":" in host or all(part.isdecimal() for part in host.split("."))


def slave_id(options: Options) -> int:
    """Of the member n0 it is 1."""
    return int(options.me[1:]) + 1


class Token(NamedTuple):
    """Whom an answer is for."""

    peer: Peer
    command: Command


class GroupMember(Part):
    """State: the member, with its rules; which connection is which member's; what is being written."""

    def __init__(
        self, shared: Shared, caller: Caller, signing: Caller, guards: Callable[[], list[Guard]], become_slave: Callable[[int], None],
        prepare_to_lead: Callable[[], Work[None]], become_master: Callable[[], None],
    ) -> None:  # fmt: skip
        """`signing`: asks for members that are not known by their addresses."""
        super().__init__(shared)
        self.options = options_of(shared.settings)
        self._caller = caller if known_by_address(shared.settings) else signing
        self._guards = guards
        self._become_slave, self._prepare_to_lead, self._become_master = become_slave, prepare_to_lead, become_master
        self._preparing: Work[None] | None = None
        self._waits = False  # for the next turn of the loop, or the disk
        ledger = shared.store.ledger
        assert ledger is not None
        self.ledger: LedgerPart = ledger
        self._saved = (0, "")
        self._member: Member | None = None
        self._inside = False  # a step of the member is under way
        self._saving = False
        self._retry_ms = 0
        self._begin_term = -1  # of the entry that must be written first
        self._names: dict[Peer, str] = {}
        self._complained: set[Peer] = set()
        self._hosts = member_hosts(self.options) if shared.settings.dleger_refuse_strangers else frozenset()
        self._guarding = ""
        self._left: Callable[[], None] | None = None
        self.last_change: Change | None = None
        self.last_change_ms = 0

    @property
    def port(self) -> int:
        """Where other members reach this one."""
        return int(self.options.peers[self.options.me].rpartition(":")[2])

    @property
    def member(self) -> Member:
        assert self._member is not None, "it is not open yet"
        return self._member

    def load(self) -> None:
        self._saved = self.ledger.terms.load()

    def open(self) -> None:
        self._member = Member(self.options, self.ledger.ledger, self._saved, self.shared.random, self.clock.steady_ms())
        self.ledger.log.on_grown = self._grown
        self.ledger.log.led_ms = self._led_ms

    def _led_ms(self) -> int:
        return self.member.leading.led_ms if self.member.role is Role.LEADER else -1

    # Steps of the member

    def tick(self, now_ms: int) -> None:
        if self._member is not None:
            self._member.disk_refuses = bool(self.store.trouble.full or self.store.trouble.failed) or self._retry_ms > now_ms
        self.step(lambda member: member.tick(now_ms))
        if self._member is not None and self._member.following.conflict:
            self.notices.warn(NOTICE, self._member.following.conflict)

    def step(self, work: Callable[[Member], None]) -> None:
        """Let the rules do something, then do what they want."""
        if self._member is None:
            return
        if self._inside:
            work(self._member)
            return
        self._inside = True
        try:
            work(self._member)
            self._after(self._member)
        finally:
            self._inside = False

    def _grown(self) -> None:
        """More of the log is written or flushed. Inside a step the rules see it by themselves."""
        if not self._inside:
            now_ms = self.clock.steady_ms()
            self.step(lambda member: member.stored(now_ms))

    def _after(self, member: Member) -> None:
        while member.changes or member.out or member.reads:
            changes, member.changes = member.changes, []
            for change in changes:
                self._changed(change)
            out, member.out = member.out, []
            for message in out:
                if isinstance(message, Reply):
                    self._answer(message)
                else:
                    self._call(message)
            reads, member.reads = member.reads, []
            for cold, then in reads:
                self._read(cold, then)
            self._begin()
        self._save(member)
        if self.store.log.wants_flush:
            self.store.flush.begin()
        self._serve(member)

    def _save(self, member: Member) -> None:
        wanted, now_ms = member.unsaved, self.clock.steady_ms()
        if wanted is None or self._saving or now_ms < self._retry_ms:
            return
        self._saving = True

        def done(result: object) -> None:
            self._saving = False
            if isinstance(result, Exception):
                self._retry_ms = self.clock.steady_ms() + RETRY_MS
                self.notices.warn(NOTICE, f"term and vote cannot be written, so this member takes no part: {result}")
            else:
                self.step(lambda member: member.saved(*wanted, self.clock.steady_ms()))

        self.shared.background.run(lambda: self.ledger.terms.save(*wanted), done)

    def _read(self, cold: Cold, then: Callable[[int], None]) -> None:
        def fetched() -> None:
            self.step(lambda member: then(self.clock.steady_ms()))

        try:
            self.shared.fetch(cold, fetched)
        except Refused:  # the disk has too much to do: after a while, again
            self.shared.background.run(lambda: None, lambda result: fetched())

    @property
    def busy(self) -> bool:
        return self._saving

    def leave(self, done: Callable[[], None]) -> None:
        """A clean stop: if this member leads, let the one lead that has most of the ledger. `done`: it leads no more, or nobody can take
        it over."""
        member, now_ms = self.member, self.clock.steady_ms()
        able = [copy for copy in member.leading.copies.values() if member.leading.could_lead(copy, now_ms)]
        best = max(able, key=lambda copy: copy.match, default=None)
        if (
            member.role is not Role.LEADER
            or best is None
            or member.ledger.end - best.match >= self.options.lag_max
            or member.handing.transferee is not None
        ):
            return done()
        self._left = done
        log.info("%s stops and hands the leadership over to %s", self.options.me, best.member)
        self.step(lambda member: member.handing.start(best.member, None, self.clock.steady_ms()))

    # Other members

    def receive(self, peer: Peer, command: Command) -> None:
        if command.code in AMONG_MEMBERS and self._is_stranger(peer):
            why = f"{peer.address} is no address of a member ({', '.join(sorted(self._hosts))}); see dLegerRefuseStrangers"
            self._complain(peer, why)
            return peer.send(refusal_of(command, why).encode())
        try:
            request = request_from(command)
        except KeyError:
            return peer.send(refusal_of(command, "").encode())
        except Unreadable as error:
            self._complain(peer, f"{peer.address} sent a request {command.code} that cannot be read: {error}")
            return peer.send(refusal_of(command, str(error)).encode())
        if request.local_id in self.options.peers and request.local_id is not None:
            self._names[peer] = request.local_id
        self._take(Token(peer, command), request)

    def _is_stranger(self, peer: Peer) -> bool:
        return bool(self._hosts) and peer.address.rpartition(":")[0].strip("[]") not in self._hosts

    def _complain(self, peer: Peer, why: str) -> None:
        """Once for each connection: whoever sends rubbish sends much of it."""
        if peer not in self._complained:
            self._complained.add(peer)
            log.warning("a request is refused: %s", why)

    def knows(self, peer: Peer) -> bool:
        """Has this connection said which member it is?"""
        return peer in self._names

    def _take(self, token: Token, request: Request) -> None:
        now_ms = self.clock.steady_ms()
        try:
            self.step(lambda member: member.receive(token, request, now_ms))
        except Cold as cold:
            try:
                self.shared.fetch(cold, lambda: self._take(token, request))
            except Refused:
                token.peer.send(refusal_of(token.command, "too many reads from disk wait").encode())

    def disconnected(self, peer: Peer) -> None:
        self._complained.discard(peer)
        name = self._names.pop(peer, None)
        if name is not None and self._member is not None:
            now_ms = self.clock.steady_ms()
            self.step(lambda member: member.connection_lost(name, now_ms))

    def _answer(self, reply: Reply) -> None:
        token = reply.token
        assert isinstance(token, Token)
        if not token.peer.closed and not token.command.is_oneway:
            token.peer.send(reply_to(token.command, reply.answer).encode())

    def _call(self, ask: Ask) -> None:
        address = self.options.peers[ask.member]

        def done(result: Command | RoquetError) -> None:
            if isinstance(result, CallTimeout):
                self._caller.hang_up(address)  # after a cut, a new connection works sooner than the old one does
            answer = None if isinstance(result, RoquetError) else answer_from(ask.request, result)
            self.step(lambda member: ask.done(answer, self.clock.steady_ms()))

        self._caller.call(address, command_of(ask.request), ask.timeout_ms, done)

    # The role

    def _changed(self, change: Change) -> None:
        log.info("%s of the group %s is %s in term %d: %s", self.options.me, self.options.group, change.role, change.term, change.why)
        self.last_change, self.last_change_ms = change, self.clock.now_ms()
        self._preparing = None
        if change.role is Role.LEADER:
            self._begin_term = change.term
            self._begin()
            return
        self._begin_term = -1
        left, self._left = self._left, None
        if not is_slave(self.settings):
            self._become_slave(slave_id(self.options))
            self.ledger.log.forget_waiting()
            self._guard("")
        if left is not None:
            left()  # last: whoever hears of it may stop this broker

    def _begin(self) -> None:
        """A leader's first act: an entry of its own term. What stands before it is committed with it."""
        term, entries = self._begin_term, self.ledger.log
        if term < 0 or self.clock.steady_ms() < self._retry_ms:
            return
        entries.term = term
        host, now_ms = self.store.staging.store_host, self.clock.now_ms()
        try:
            size = len(noop_record(0, term, self.options.me, now_ms, host))
            offset = entries.reserve(HEAD + size)
            entries.staged += (entries.lead, noop_record(offset + HEAD, term, self.options.me, now_ms, host))
            entries.commit()
        except OSError as error:
            entries.rollback()
            self._retry_ms = self.clock.steady_ms() + RETRY_MS
            self.notices.warn(NOTICE, f"this member is elected and cannot write its first entry: {error}")
            return
        self._begin_term = -1
        self.member.stored(self.clock.steady_ms())

    def _serve(self, member: Member) -> None:
        """A leader serves when all of its log is committed and applied. A master that cannot take more just now refuses sends."""
        if member.role is not Role.LEADER:
            return
        self._begin()
        if not is_slave(self.settings):
            code = member.leading.may_append()
            self._guard("" if code is Code.SUCCESS else code.name)
        elif member.leading.ready and self.ledger.ledger.committed == self.ledger.ledger.end:
            applier = self.store.applier
            applier.advance(self.clock.steady_ms() + APPLY_MS)
            if applier.applied == self.store.log.end:
                self._prepare()
            else:
                self._next_turn()

    def _prepare(self) -> None:
        """All of the log is applied: some of what is to be done before this broker serves. It serves when that was the last of it.

        Where the disk does not let it, it is begun anew after a while; meanwhile this member says that its disk refuses, so that another
        one is asked to lead."""
        if self._waits or self.clock.steady_ms() < self._retry_ms:
            return
        work = self._preparing = self._preparing or self._prepare_to_lead()
        until_ms = self.clock.steady_ms() + PREPARE_MS
        try:
            while self.clock.steady_ms() < until_ms:
                cold = next(work)
                if cold is not None:
                    return self._next_turn(cold)
        except StopIteration:
            self._preparing = None
            self._become_master()
            log.info("%s serves as the master of its group since term %d", self.options.me, self.member.term)
        except (OSError, Damaged) as error:
            self._preparing = None
            self._retry_ms = self.clock.steady_ms() + RETRY_MS
            self.notices.warn(NOTICE, f"this member is elected and cannot serve yet: {error}")
        except Exception:
            self._preparing = None  # it is begun anew with the next tick
            raise
        else:
            self._next_turn()

    def _next_turn(self, cold: Cold | None = None) -> None:
        """Go on when others had their turn, or when that was fetched. The tick would come for it, too, but later."""
        if self._waits:
            return
        self._waits = True

        def turn(result: object = None) -> None:
            self._waits = False
            self.step(lambda member: None)

        try:
            if cold is not None:
                return self.shared.fetch(cold, turn)
        except Refused:
            pass  # the disk has too much to do: it is tried again
        self.shared.background.run(lambda: None, turn)

    def _guard(self, why: str) -> None:
        guards = self._guards()
        if why and not self._guarding:
            guards.append(self._refuse)
        elif self._guarding and not why:
            guards.remove(self._refuse)
        self._guarding = why

    def _refuse(self, peer: Peer, command: Command) -> None:
        if command.code in STORES:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{BUSY} ({self._guarding})")

    def metrics(self) -> Mapping[str, object]:
        if self._member is None:
            return {}
        member, ledger = self._member, self.ledger.ledger
        rows: dict[str, object] = {
            "dledgerSelfId": self.options.me,
            "dledgerRole": str(member.role),
            "dledgerTerm": member.term,
            "dledgerLeaderId": member.leader or "",
            "dledgerBeginIndex": ledger.begin,
            "dledgerEndIndex": ledger.end,
            "dledgerCommittedIndex": ledger.committed,
        }
        if self.last_change is not None:
            rows["dledgerSince"], rows["dledgerWhy"] = self.last_change_ms, self.last_change.why
        for copy in member.leading.copies.values():
            rows[f"dledgerBehind_{copy.member}"] = ledger.end - copy.match
        if member.following.conflict:
            rows["dledgerConflict"] = member.following.conflict
        return rows


NO_MEMBER = "it is no address of dLegerPeers, not on the global white list, and no admin signed its request"


class GroupDoor(Receiver):
    """What listens for other members: a core of its own, since it has a port of its own."""

    def __init__(self, group: GroupMember, guard: AccessGuard | None = None) -> None:
        """`guard`: with access control nobody but members may say what the log is."""
        self.group = group
        self._guard = guard

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int = FOREVER) -> list[Frame] | None:
        guard = None if self._guard is None or self._is_member(peer) else self._guard
        for at, frame in enumerate(frames):
            try:
                command = decode(frame)
            except Broken as error:
                peer.close(str(error))
                return None
            if guard is not None and not guard.is_admin(peer, command):
                guard.audit.note(peer.address, command.fields.get(ACCESS_KEY, ""), command.code, "the DLedger port", NO_MEMBER)
                peer.close(f"access control: {NO_MEMBER}")
                return None
            if not command.is_response:
                self.group.receive(peer, command)
            if peer.closed:
                return None
            if self.group.clock.steady_ms() >= until_ms:
                return frames[at + 1 :] or None
        return None

    def knows(self, peer: Peer) -> bool:
        """With access control: it is a member, or has shown an admin's key or a certificate that is an account."""
        return self._guard is None or self._is_member(peer) or self._guard.knows(peer)

    def _is_member(self, peer: Peer) -> bool:
        """By its address. Of a member that is given by name nobody knows it: that one signs what it asks."""
        assert self._guard is not None
        hosts = {parts_of(host_of(one)) for one in self.group.options.peers.values()} - {()}
        return parts_of(host_of(peer.address)) in hosts or self._guard.lets_in(peer)

    def disconnected(self, peer: Peer) -> None:
        self.group.disconnected(peer)

    def tick(self, now_ms: int) -> Rest | None:
        self.group.tick(now_ms)
        return None
