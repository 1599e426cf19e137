"""Votes as functions: what a member answers to a candidate, and what a candidate makes of the answers. DLedger's rules, in its order."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from roquet.raft.codes import VoteResult
from roquet.raft.messages import VoteRequest


class Voter(NamedTuple):
    """What the one who is asked knows."""

    me: str
    members: Collection[str]
    term: int
    vote: str
    """Whom it gave its vote in this term; "" for nobody."""
    leader: str | None
    end: int
    end_term: int
    taking: bool = False
    """It was told to take the leadership over in this term, and is preferred."""


class Verdict(NamedTuple):
    result: VoteResult
    term: int
    """Told to the candidate."""
    raise_to: int = -1
    """The larger term that the voter takes over; -1: it keeps its own."""


def verdict(voter: Voter, request: VoteRequest) -> Verdict:
    """The ledgers are compared before the terms: a member with a shorter ledger spreads no larger term."""
    if request.leader_id is None or request.leader_id not in voter.members:
        return Verdict(VoteResult.UNKNOWN_LEADER, voter.term)
    if request.leader_id == voter.me:
        return Verdict(VoteResult.UNEXPECTED_LEADER, voter.term)
    shorter = ledger_verdict(voter, request)
    if shorter is not None:
        return Verdict(shorter, voter.term)
    if request.term < voter.term:
        return Verdict(VoteResult.EXPIRED_VOTE_TERM, voter.term)
    if request.term > voter.term:
        if not request.ours:
            return Verdict(VoteResult.TERM_NOT_READY, voter.term, request.term)
        raised = verdict(voter._replace(term=request.term, vote="", leader=None), request)
        return raised._replace(raise_to=request.term)
    if voter.vote not in ("", request.leader_id):
        return Verdict(VoteResult.ALREADY_HAS_LEADER if voter.leader else VoteResult.ALREADY_VOTED, voter.term)
    if request.term < voter.end_term:
        return Verdict(VoteResult.TERM_SMALL_THAN_LEDGER, voter.end_term)
    if voter.taking and voter.end_term == request.ledger_end_term and voter.end >= request.ledger_end_index:
        return Verdict(VoteResult.TAKING_LEADERSHIP, voter.term)
    return Verdict(VoteResult.ACCEPT, voter.term)


def ledger_verdict(voter: Voter, request: VoteRequest) -> VoteResult | None:
    """None: the candidate's ledger has everything that can have been committed, as far as this member knows."""
    if request.ledger_end_term < voter.end_term:
        return VoteResult.EXPIRED_LEDGER_TERM
    if request.ledger_end_term == voter.end_term and request.ledger_end_index < voter.end:
        return VoteResult.SMALL_LEDGER_END_INDEX
    return None


def trial_verdict(voter: Voter, request: VoteRequest, leader_lives: bool) -> Verdict:
    """Would it vote for this one? Nothing changes. A member that hears its leader says no: so nobody unseats a leader that works."""
    if request.leader_id is None or request.leader_id not in voter.members:
        return Verdict(VoteResult.UNKNOWN_LEADER, voter.term)
    if request.leader_id == voter.me:
        return Verdict(VoteResult.UNEXPECTED_LEADER, voter.term)
    shorter = ledger_verdict(voter, request)
    if shorter is not None:
        return Verdict(shorter, voter.term)
    if request.term <= voter.term:
        return Verdict(VoteResult.EXPIRED_VOTE_TERM, voter.term)
    if leader_lives:
        return Verdict(VoteResult.ALREADY_HAS_LEADER, voter.term)
    return Verdict(VoteResult.ACCEPT, voter.term)


class Outcome(Enum):
    PASSED = "PASSED"
    REVOTE_IMMEDIATELY = "REVOTE_IMMEDIATELY"
    WAIT_TO_REVOTE = "WAIT_TO_REVOTE"
    WAIT_TO_VOTE_NEXT = "WAIT_TO_VOTE_NEXT"


class Why(Enum):
    """Which line of the table decided."""

    LARGER_TERM = "a member has a larger term"
    HAS_LEADER = "a member has a leader"
    NO_QUORUM = "no majority answered"
    LONGER_LEDGERS = "too many members have a longer ledger"
    ELECTED = "a majority voted for it"
    NOT_READY = "members take the term over first"
    LOST = "no majority voted for it"


TELLS_TERM = frozenset({VoteResult.EXPIRED_VOTE_TERM, VoteResult.TERM_SMALL_THAN_LEDGER})
LONGER = frozenset({VoteResult.EXPIRED_LEDGER_TERM, VoteResult.SMALL_LEDGER_END_INDEX})


class Poll:
    """The answers to one vote. State: a result for each member that has answered, the largest term that was told."""

    def __init__(self, members: int, term: int, deadline_ms: int, *, trial: bool) -> None:
        self.members = members
        self.quorum = members // 2 + 1
        self.term = term
        self.deadline_ms = deadline_ms
        self.trial = trial
        self.results: dict[str, VoteResult] = {}
        self.told_term = -1

    def take(self, member: str, result: VoteResult, term: int) -> None:
        self.results[member] = result
        if result in TELLS_TERM and term > self.told_term:
            self.told_term = term

    def count(self, *wanted: VoteResult) -> int:
        return sum(result in wanted for result in self.results.values())

    @property
    def decided(self) -> bool:
        """Need nobody else be waited for?"""
        accepted = self.count(VoteResult.ACCEPT)
        return (
            VoteResult.ALREADY_HAS_LEADER in self.results.values()
            or accepted >= self.quorum
            or accepted + self.count(VoteResult.TERM_NOT_READY) >= self.quorum
            or len(self.results) == self.members
        )

    def judge(self) -> tuple[Outcome, Why]:
        accepted, not_ready = self.count(VoteResult.ACCEPT), self.count(VoteResult.TERM_NOT_READY)
        valid = len(self.results) - self.count(VoteResult.UNKNOWN)
        if self.told_term > self.term:
            return Outcome.WAIT_TO_VOTE_NEXT, Why.LARGER_TERM
        if VoteResult.ALREADY_HAS_LEADER in self.results.values():
            return Outcome.WAIT_TO_REVOTE, Why.HAS_LEADER
        if valid < self.quorum:
            return Outcome.WAIT_TO_REVOTE, Why.NO_QUORUM
        if valid - self.count(*LONGER) < self.quorum:
            return Outcome.WAIT_TO_REVOTE, Why.LONGER_LEDGERS
        if accepted >= self.quorum:
            return Outcome.PASSED, Why.ELECTED
        if accepted + not_ready >= self.quorum:
            return Outcome.REVOTE_IMMEDIATELY, Why.NOT_READY
        return Outcome.WAIT_TO_VOTE_NEXT, Why.LOST
