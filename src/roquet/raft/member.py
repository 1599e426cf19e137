"""A member of a group: its role, its term, its vote. A value that takes messages and steady time, and says what to send and to save.

    receive(token, request, now)      somebody asks; the answer comes out as Reply(token, ...), perhaps later
    tick(now)                         time has passed: votes, heartbeats, repetitions
    stored(now)                       the ledger has grown, or more of it is written or flushed
    saved(term, vote, now)            `unsaved` is on disk now
    connection_lost(member, now)      the other end of a connection is gone: a hint, nothing more

    out         what to send now: Ask (its `done` must be called exactly once, with the answer or None) and Reply
    unsaved     (term, vote) that must go to disk; until then nothing goes out, since everything speaks of that term (E5)
    reads       what must be read from disk elsewhere, and whom to tell then
    changes     what happened to the role, for whoever serves clients

`receive` may raise Cold: nothing has happened then, and it is called again with the same arguments when the bytes are in memory.

The rules are DLedger's with what it gets wrong put right:

    a vote and a term are on disk before anybody hears of them; a term in which this member has asked or led in an earlier life, or led in
    this one, is never asked for again: two ledgers of one term would have different entries with equal numbers (DLedger asks again)
    a leader commits by counting only entries of its own term; so it appends one of its own when it begins (`Leading.begins`)
    a leader that no majority has answered for a while stops being one; it could not commit anything anyway
    trial votes, where every member that is known knows them: a member that was cut off comes back without raising the term
    a member that was started looks who is there before it asks for votes (`looking`): one that comes back unseats nobody
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from roquet.raft.codes import Code, Role, VoteResult
from roquet.raft.following import Following
from roquet.raft.handing import Handing
from roquet.raft.leading import Leading
from roquet.raft.ledger import Ledger
from roquet.raft.looking import Looking
from roquet.raft.messages import (
    OURS,
    Answer,
    AppendAnswer,
    AppendRequest,
    DensePush,
    GetAnswer,
    GetRequest,
    HeartBeatAnswer,
    HeartBeatRequest,
    Message,
    MetadataAnswer,
    MetadataRequest,
    PushAnswer,
    PushRequest,
    Request,
    TransferAnswer,
    TransferRequest,
    VoteAnswer,
    VoteRequest,
)
from roquet.raft.options import JAVA_HEARTBEAT_MS, TERM_STEP_MAX, Options
from roquet.raft.voting import Outcome, Poll, Verdict, Voter, Why, trial_verdict, verdict
from roquet.store.disk import Cold

if TYPE_CHECKING:
    from random import Random

SOMEBODY = "?"
"""The vote of a term whose vote was lost: nobody gets it."""
GET_BYTES = 1 << 20

Done = Callable[[Answer | None, int], None]


@dataclass(slots=True, eq=False)
class Ask:
    """A request for another member. `done(answer, now)`, with None when there was none in time."""

    member: str
    request: Request
    done: Done
    timeout_ms: int


class Reply(NamedTuple):
    token: object
    answer: Answer


class Change(NamedTuple):
    """The role, the term or the leader is another one now."""

    role: Role
    term: int
    leader: str | None
    why: str


class Member:
    def __init__(self, options: Options, ledger: Ledger, saved: tuple[int, str], random: Random, now_ms: int) -> None:
        """`saved`: (term, vote) as they stand on disk."""
        self.options = options
        self.ledger = ledger
        self.random = random
        self.now_ms = now_ms
        self.role = Role.CANDIDATE
        self.leader: str | None = None
        self.durable = saved
        self.term, self.vote = saved
        if self.term < ledger.end_term:  # the file was lost, or is an old one: whom this member voted for since then is not known
            self.term, self.vote = ledger.end_term, SOMEBODY
        self.known_max = -1
        self.spent = self.term if self.vote == options.me else -1
        """The last term in which this member may not ask for votes any more."""
        self.ours: set[str] = set()
        """Members that know what Java does not."""
        self.poll: Poll | None = None
        self.raise_next = False
        self.next_vote_ms = now_ms + random.randrange(options.pause_ms)
        self.heard_ms = now_ms
        self.beat_ms = options.heartbeat_ms
        self.lost_ms = now_ms
        """When the leader counts as lost unless it is heard."""
        self.gone = False
        """The leader's connection ended, and it was not heard since."""
        self.disk_refuses = False
        """Whoever runs this member says so: its disk is full, or has failed."""
        self._ticked_ms = now_ms
        self.out: list[Ask | Reply] = []
        self._held: list[Ask | Reply] = []
        self._own_vote: Poll | None = None
        self.changes: list[Change] = []
        self.reads: list[tuple[Cold, Callable[[int], None]]] = []
        """Bytes that must come into memory, and what to call then, with the time."""
        self.looking = Looking(self)
        self.following = Following(self)
        self.leading = Leading(self)
        self.handing = Handing(self)

    # What goes out

    @property
    def unsaved(self) -> tuple[int, str] | None:
        current = (self.term, self.vote)
        return None if current == self.durable else current

    def ask(self, member: str, request: Request, done: Done, timeout_ms: int = 0) -> None:
        request.group, request.remote_id, request.local_id = self.options.group, member, self.options.me
        request.ours = OURS

        def answered(answer: Answer | None, now_ms: int) -> None:
            self.now_ms = now_ms
            if answer is not None and answer.term > self.term + TERM_STEP_MAX:
                answer = None
            if answer is not None:
                self.note_kind(member, answer)
            done(answer, now_ms)

        self._emit(Ask(member, request, answered, timeout_ms or self.options.rpc_ms))

    def reply(self, token: object, answer: Answer) -> None:
        self._emit(Reply(token, answer))

    def _emit(self, message: Ask | Reply) -> None:
        (self.out if self.unsaved is None else self._held).append(message)

    def saved(self, term: int, vote: str, now_ms: int) -> None:
        """(term, vote) are on disk: what was held back goes out, unless there is something newer to save."""
        self.now_ms = now_ms
        self.durable = (term, vote)
        if self.unsaved is not None:
            return
        held, self._held = self._held, []
        self.out.extend(held)
        self._count_own_vote(now_ms)
        self._stand_back(now_ms)

    def note_kind(self, member: str | None, message: Message) -> None:
        if member in self.options.peers and member is not None:
            self.looking.known.add(member)
            if message.ours:
                self.ours.add(member)
            else:
                self.ours.discard(member)

    # What comes in

    def receive(self, token: object, request: Request, now_ms: int) -> None:
        self.now_ms = now_ms
        if request.remote_id != self.options.me:
            return self.reply(token, self.refusal(request, Code.UNKNOWN_MEMBER))
        if request.group != self.options.group:
            return self.reply(token, self.refusal(request, Code.UNKNOWN_GROUP))
        if request.term > self.term + TERM_STEP_MAX:
            return self.reply(token, self.refusal(request, Code.UNEXPECTED_ARGUMENT))
        if request.local_id != self.options.me:
            self.note_kind(request.local_id, request)
        match request:
            case PushRequest():
                self.following.push(token, request, now_ms)
            case DensePush():
                self.following.dense(token, request, now_ms)
            case VoteRequest():
                self._voted(token, request, now_ms)
            case HeartBeatRequest():
                self._beat(token, request, now_ms)
            case TransferRequest():
                self.handing.receive(token, request, now_ms)
            case MetadataRequest():
                peers = dict(self.options.peers)
                ours = OURS if request.ours else 0
                self.reply(token, MetadataAnswer(group=self.options.group, leader_id=self.leader, peers=peers, ours=ours))
            case GetRequest():
                self._get(token, request)
            case _:
                self.reply(token, self.refusal(request, Code.UNSUPPORTED))

    def refusal(self, request: Request, code: Code) -> Answer:
        """An error answer as DLedger's: the request's own fields, the code, the leader."""
        kind: type[Answer] = {
            VoteRequest: VoteAnswer,
            HeartBeatRequest: HeartBeatAnswer,
            PushRequest: PushAnswer,
            DensePush: PushAnswer,
            TransferRequest: TransferAnswer,
            MetadataRequest: MetadataAnswer,
            AppendRequest: AppendAnswer,
            GetRequest: GetAnswer,
        }.get(type(request), Answer)
        return kind(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=self.leader,
            term=request.term,
            code=code,
            ours=OURS if request.ours else 0,
        )

    def _get(self, token: object, request: GetRequest) -> None:
        if self.role is not Role.LEADER:
            return self.reply(token, self.refusal(request, Code.NOT_LEADER))
        if not self.ledger.begin <= request.begin_index <= min(self.ledger.committed, self.ledger.written_index):
            return self.reply(token, self.refusal(request, Code.INDEX_OUT_OF_RANGE))
        entries = self.ledger.read(request.begin_index, GET_BYTES, 1)
        self.reply(token, GetAnswer(group=self.options.group, leader_id=self.leader, entries=entries[:1]))

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        if now_ms - self._ticked_ms > self.options.late_ms:
            self._stood_still(now_ms)
        self._ticked_ms = now_ms
        if self.role is Role.LEADER:
            self.leading.tick(now_ms)
        elif self.role is Role.FOLLOWER:
            self._look_for_leader(now_ms)
        if self.role is Role.CANDIDATE:
            self._candidate(now_ms)
        self.following.tick(now_ms)
        self.handing.tick(now_ms)

    def _stood_still(self, now_ms: int) -> None:
        """This process had no processor for a while. What others said meanwhile waits to be read, so their silence means nothing yet."""
        self.lost_ms = max(self.lost_ms, now_ms + self.options.heartbeat_ms)
        self.leading.stood_still(now_ms)

    def stored(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.following.stored()
        self.handing.tick(now_ms)
        if self.role is Role.LEADER:
            self.leading.stored(now_ms)

    def connection_lost(self, member: str, now_ms: int) -> None:
        """The leader's process may have ended: look soon. If it lives, its next heartbeat puts things right; a Java leader is given the
        time for one, since a vote would unseat it."""
        if self.role is Role.FOLLOWER and member == self.leader:
            self.gone = True
            wait_ms = self.options.pause_ms // 2 if member in self.ours else self.beat_ms + self.options.pause_ms
            self.lost_ms = min(self.lost_ms, now_ms + wait_ms + self.random.randrange(self.options.pause_ms))

    # Roles

    def _change(self, role: Role, leader: str | None, why: str) -> None:
        if (role, leader) != (self.role, self.leader) or role is Role.LEADER:
            self.role, self.leader = role, leader
            self.changes.append(Change(role, self.term, leader, why))

    def raise_term(self, term: int) -> None:
        """Take a larger term over; nobody has this member's vote in it yet."""
        assert term > self.term
        self.term, self.vote = term, ""
        self.poll = self._own_vote = None

    def become_candidate(self, term: int, why: str, now_ms: int) -> None:
        """Nobody leads here, and somebody is in this term (this member's own, or a larger one)."""
        self.known_max = max(self.known_max, term)
        if self.role is Role.LEADER:
            self.spent = max(self.spent, self.term)
            self.leading.ends(now_ms)
        self.following.forget()
        self.poll = self._own_vote = None
        self._change(Role.CANDIDATE, None, why)
        self.next_vote_ms = now_ms + self.pause()
        self.handing.decided()

    def become_follower(self, leader: str, term: int, now_ms: int, beat_ms: int = 0) -> None:
        """This one leads in this term, which is at least the member's own."""
        if self.role is Role.LEADER:
            self.spent = max(self.spent, self.term)
            self.leading.ends(now_ms)
        if term > self.term or (self.role, self.leader) != (Role.FOLLOWER, leader):
            self.following.forget()
        if term > self.term:
            self.raise_term(term)
        self.poll = self._own_vote = None
        self.raise_next = False
        self._change(Role.FOLLOWER, leader, f"{leader} leads in term {term}")
        self.hear(now_ms, beat_ms)
        self.handing.decided()

    def _become_leader(self, now_ms: int) -> None:
        self.poll = self._own_vote = None
        self.raise_next = False
        self.spent = self.term
        self.following.forget()
        self._change(Role.LEADER, self.options.me, f"elected in term {self.term}")
        self.leading.begins(now_ms)
        self.handing.decided()

    def pause(self) -> int:
        options = self.options
        if self.taking:
            return options.takeover_pause_ms + self.random.randrange(options.takeover_random_ms)
        late_ms = options.cannot_write_ms if self.cannot_write else 0
        return late_ms + options.pause_ms + self.random.randrange(options.pause_random_ms)

    @property
    def cannot_write(self) -> bool:
        """One who leads lets another member lead; one who does not waits until others had their chance."""
        return self.disk_refuses or self.now_ms < self.following.refused_until_ms

    @property
    def taking(self) -> bool:
        """It is to lead in this term, and is preferred: others stand back."""
        return self.handing.term_to_take == self.term and self.options.me in self.options.preferred

    @property
    def held(self) -> int:
        """The last entry that counts here."""
        return self.ledger.flushed_index if self.options.sync_flush else self.ledger.written_index

    # The leader's heartbeat, at a follower

    def hear(self, now_ms: int, beat_ms: int = 0) -> None:
        """The leader has said something. `beat_ms`: how often it says so; 0: not told now."""
        if beat_ms:
            self.beat_ms = beat_ms
        self.gone = False
        self.heard_ms = now_ms
        self.lost_ms = now_ms + self.beat_ms * self.options.leak + self.random.randrange(self.options.heartbeat_ms)

    def _look_for_leader(self, now_ms: int) -> None:
        if now_ms >= self.lost_ms:
            why = (
                f"the connection of {self.leader} ended"
                if self.gone
                else f"nothing was heard of {self.leader} for {now_ms - self.heard_ms} ms"
            )
            self.become_candidate(self.term, why, now_ms)
            if not self.cannot_write:
                self.next_vote_ms = now_ms

    @property
    def leader_lives(self) -> bool:
        if self.role is Role.FOLLOWER:
            return not self.gone and self.now_ms - self.heard_ms < self.beat_ms * (self.options.leak - 1)
        return self.role is Role.LEADER and self.leading.has_quorum(self.now_ms)

    def _beat(self, token: object, request: HeartBeatRequest, now_ms: int) -> None:
        code, term = self._take_beat(request, now_ms)
        self.reply(token, HeartBeatAnswer(code=code, term=term, ours=OURS if request.ours else 0, cannot_write=self.cannot_write))

    def _take_beat(self, request: HeartBeatRequest, now_ms: int) -> tuple[Code, int]:
        leader = request.leader_id
        if leader is None or leader not in self.options.peers:
            return Code.UNKNOWN_MEMBER, self.term
        if leader == self.options.me:
            return Code.UNEXPECTED_MEMBER, self.term
        if request.term < self.term:
            return Code.EXPIRED_TERM, self.term
        beat_ms = bounded_beat(request.every_ms)
        if request.term > self.term and not request.ours:
            self.become_candidate(request.term, f"{leader} has term {request.term}", now_ms)
            self.raise_term(request.term)
            return Code.TERM_NOT_READY, -1
        if request.term == self.term and self.leader not in (None, leader):
            return Code.INCONSISTENT_LEADER, -1
        self.become_follower(leader, request.term, now_ms, beat_ms)
        return Code.SUCCESS, -1

    # Votes, of the one who is asked

    def voter(self) -> Voter:
        options, ledger = self.options, self.ledger
        return Voter(options.me, options.peers, self.term, self.vote, self.leader, ledger.end, ledger.end_term, self.taking)

    def _voted(self, token: object, request: VoteRequest, now_ms: int) -> None:
        told = trial_verdict(self.voter(), request, self.leader_lives) if request.trial else self._decide(request, now_ms)
        self.reply(
            token,
            VoteAnswer(
                group=request.group,
                remote_id=request.remote_id,
                local_id=request.local_id,
                leader_id=request.leader_id,
                term=told.term,
                result=told.result,
                ours=OURS if request.ours else 0,
            ),
        )

    def _decide(self, request: VoteRequest, now_ms: int) -> Verdict:
        told = verdict(self.voter(), request)
        if told.raise_to > self.term:
            self.become_candidate(told.raise_to, f"{request.leader_id} asks for votes in term {told.raise_to}", now_ms)
            self.raise_term(told.raise_to)
            self.handing.decided()
        if told.result is VoteResult.ACCEPT and self.vote != request.leader_id:
            self.vote = str(request.leader_id)
            self.poll = self._own_vote = None
            self._stand_back(now_ms)
        return told

    def _stand_back(self, now_ms: int) -> None:
        """Whoever got this member's vote, or brought the larger term, gets time to make something of it: from now, and anew from when it
        hears of it, since the disk may take longer than a pause. One that was elected may be slow to say so."""
        if self.role is Role.CANDIDATE and self.poll is None:
            voted_ms = 0 if self.vote in ("", self.options.me) else self.options.heartbeat_ms
            self.next_vote_ms = max(self.next_vote_ms, now_ms + voted_ms + self.pause())

    # Votes, of the candidate

    def _candidate(self, now_ms: int) -> None:
        if self.poll is not None:
            if now_ms >= self.poll.deadline_ms and self._own_vote is None:  # else nobody was asked yet
                self._judge(now_ms)
        elif self.looking.is_over(now_ms) and now_ms >= self.next_vote_ms and self.unsaved is None:
            if self.ours and self.ours >= self.looking.known:
                self._start_poll(max(self.term, self.known_max) + 1, now_ms, trial=True)
            else:
                self.campaign(now_ms)

    def may_ask_in_term(self) -> bool:
        """Has this member given its vote in its term to nobody, or (in this life) to itself, and has it not led in it?"""
        return self.vote in ("", self.options.me) and self.term > self.spent and self.term >= self.ledger.end_term

    def campaign(self, now_ms: int, *, term: int = -1) -> None:
        """Ask for votes: in this term; -1: in the member's own, or in the next one where that is needed."""
        if term > self.term:
            self.raise_term(term)
        elif self.raise_next or not self.may_ask_in_term():
            self.raise_term(max(self.term + 1, self.known_max))
        self.raise_next = False
        self.vote = self.options.me
        self._start_poll(self.term, now_ms, trial=False)

    def _start_poll(self, term: int, now_ms: int, *, trial: bool) -> None:
        options = self.options
        poll = self.poll = Poll(len(options.peers), term, now_ms + options.vote_wait_ms, trial=trial)
        end, end_term = self.ledger.end, self.ledger.end_term
        for member in options.others:
            if trial and member not in self.ours:  # nobody knows yet if it would take a trial for more than that
                poll.take(member, VoteResult.UNKNOWN, -1)
                continue
            request = VoteRequest(leader_id=options.me, term=term, ledger_end_index=end, ledger_end_term=end_term, trial=trial)
            self.ask(member, request, self._vote_taker(poll, member), options.vote_wait_ms)
        self._own_vote = poll
        if self.unsaved is None:
            self._count_own_vote(now_ms)

    def _count_own_vote(self, now_ms: int) -> None:
        """Its own vote counts when it is on disk, as anybody's. The others are asked then, and not earlier."""
        poll, self._own_vote = self._own_vote, None
        if poll is not None and poll is self.poll:
            poll.deadline_ms = now_ms + self.options.vote_wait_ms
            poll.take(self.options.me, VoteResult.ACCEPT, poll.term)
            if poll.decided:
                self._judge(now_ms)

    def _vote_taker(self, poll: Poll, member: str) -> Done:
        def take(answer: Answer | None, now_ms: int) -> None:
            if self.poll is not poll:
                return
            if isinstance(answer, VoteAnswer) and answer.code == Code.SUCCESS:
                poll.take(member, answer.result, answer.term)
            else:
                poll.take(member, VoteResult.UNKNOWN, -1)
            if poll.decided and self.unsaved is None:
                self._judge(now_ms)

        return take

    def _judge(self, now_ms: int) -> None:
        poll = self.poll
        assert poll is not None
        self.poll = None
        outcome, why = poll.judge()
        self.known_max = max(self.known_max, poll.told_term)
        if outcome is Outcome.PASSED:
            if poll.trial:
                return self.campaign(now_ms, term=poll.term)
            return self._become_leader(now_ms)
        self.raise_next = outcome is Outcome.WAIT_TO_VOTE_NEXT and not poll.trial
        self.next_vote_ms = now_ms + self._wait(outcome, why)

    def _wait(self, outcome: Outcome, why: Why) -> int:
        if outcome is Outcome.REVOTE_IMMEDIATELY:
            return 10
        if why is Why.HAS_LEADER:
            return self.pause() + self.options.heartbeat_ms * self.options.leak
        if why is Why.LONGER_LEDGERS:
            return self.pause() + self.options.heartbeat_ms
        return self.pause()


def bounded_beat(told_ms: int) -> int:
    """How often the leader says that it sends heartbeats; a member that tells nothing, or something odd, is taken for Java's."""
    return told_ms if 10 <= told_ms <= 10_000 else JAVA_HEARTBEAT_MS
