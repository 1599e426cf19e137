"""What one member does, step by step: votes, terms, heartbeats, pushes, and what it holds back until it is on disk."""

from __future__ import annotations

import errno
from random import Random
from typing import TypeVar

import pytest

from roquet.raft.codes import Code, PushType, Role, VoteResult
from roquet.raft.ledger import HEAD
from roquet.raft.member import Ask, Member, Reply
from roquet.raft.messages import (
    Answer,
    DensePush,
    HeartBeatAnswer,
    HeartBeatRequest,
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
from roquet.raft.options import BadGroup, Options, peers_of
from roquet.raft.voting import Outcome, Poll, Why
from roquet.store.disk import Cold
from roquet.testing.memory_ledger import MemoryLedger
from roquet.wire.layout import LEDGER_MAGIC
from roquet.wire.ledger_entry import Entry

A = TypeVar("A", bound=Answer)
R = TypeVar("R", bound=Request)

PEERS = {name: f"127.0.0.1:{port}" for name, port in (("n0", 1), ("n1", 2), ("n2", 3))}
ALL = {"n1", "n2"}


class Stand:
    """A member n0 whose shell is the test: it saves at once unless told otherwise, and time goes when it is turned."""

    def __init__(
        self, ledger: MemoryLedger | None = None, saved: tuple[int, str] = (0, ""), *, ours: bool = True, **options: object
    ) -> None:
        self.ledger = ledger or MemoryLedger()
        self.now_ms = 1_000
        self.saves = True
        self.member = Member(Options("g", "n0", PEERS, **options), self.ledger, saved, Random(1), self.now_ms)  # type: ignore[arg-type]
        self.member.looking.known |= ALL
        if ours:
            self.member.ours |= ALL
        self.asked: list[Ask] = []
        self.answers: list[Answer] = []

    def is_now(self, role: Role) -> bool:
        return self.member.role is role

    def step(self) -> None:
        member = self.member
        while member.out or (self.saves and member.unsaved is not None):
            out, member.out = member.out, []
            for message in out:
                if isinstance(message, Reply):
                    self.answers.append(message.answer)
                else:
                    self.asked.append(message)
            if self.saves and member.unsaved is not None:
                member.saved(*member.unsaved, self.now_ms)

    def turn(self, ms: int) -> None:
        for _ in range(0, ms, 10):
            self.now_ms += 10
            self.member.tick(self.now_ms)
            self.step()

    def receive(self, request: Request, sender: str = "n1", *, ours: bool = True) -> None:
        request.group, request.remote_id, request.local_id, request.ours = "g", "n0", sender, int(ours)
        self.member.receive(object(), request, self.now_ms)
        self.step()

    def answer(self, kind: type[A]) -> A:
        """The only answer, of this kind."""
        (found,) = self.answers
        self.answers = []
        assert isinstance(found, kind)
        return found

    def take(self, kind: type[R], member: str = "") -> list[tuple[Ask, R]]:
        """What was asked of this kind, and of this member."""
        found = [(ask, ask.request) for ask in self.asked if isinstance(ask.request, kind) and member in ("", ask.member)]
        self.asked = [ask for ask in self.asked if not (isinstance(ask.request, kind) and member in ("", ask.member))]
        return found

    def say(self, ask: Ask, answer: Answer | None, *, ours: bool = True) -> None:
        if answer is not None:
            answer.ours = int(ours)
        ask.done(answer, self.now_ms)
        self.step()

    def elect(self) -> None:
        """Become the leader, with the votes of the others."""
        for _ in range(100):
            self.turn(20)
            for ask, vote in self.take(VoteRequest):
                self.say(ask, VoteAnswer(term=vote.term, result=VoteResult.ACCEPT), ours=ask.member in self.member.ours)
            if self.member.role is Role.LEADER:
                return
        raise AssertionError("not elected")

    def lead(self, body: bytes = b"x") -> Entry:
        entry = self.ledger.lead(self.member.term, body)
        self.member.stored(self.now_ms)
        self.step()
        return entry

    def pushes(self, member: str) -> list[tuple[Ask, PushRequest | DensePush]]:
        return [*self.take(PushRequest, member), *self.take(DensePush, member)]

    def pushed(self, member: str, index: int) -> None:
        """This follower says that it holds the entries up to this one."""
        for _ in range(20):
            for ask, request in self.pushes(member):
                last = request.last
                if isinstance(request, PushRequest) and request.kind is PushType.COMPARE and last > index:
                    self.say(
                        ask, PushAnswer(code=Code.INCONSISTENT_STATE, index=last, end_index=index, begin_index=0 if index >= 0 else -1)
                    )
                elif last <= index:
                    self.say(ask, PushAnswer(index=last, end_index=index))


def grown(*terms: int) -> MemoryLedger:
    ledger = MemoryLedger()
    for term in terms:
        ledger.lead(term, b"old")
    done = ledger.begin_flush()
    done()
    return ledger


# Votes and terms


def test_e5_a_vote_is_answered_only_when_it_is_on_disk() -> None:
    stand = Stand()
    stand.saves = False
    stand.receive(VoteRequest(leader_id="n1", term=3, ledger_end_index=-1, ledger_end_term=-1))
    assert stand.member.unsaved == (3, "n1")
    assert not stand.answers
    stand.saves = True
    stand.step()
    assert stand.answer(VoteAnswer).result is VoteResult.ACCEPT


def test_e5_a_members_own_vote_counts_only_when_it_is_on_disk() -> None:
    stand = Stand(ours=False)
    stand.saves = False
    stand.turn(500)
    assert not stand.asked
    stand.saves = True
    stand.turn(10)
    assert {ask.member for ask, _ in stand.take(VoteRequest)} == ALL


def test_the_one_that_was_voted_for_gets_its_time_from_when_it_hears_of_the_vote() -> None:
    """The disk may take longer than the pause before a vote: then this member would run at once against the one it has just elected."""
    stand = Stand(saved=(3, "n2"))
    stand.saves = False
    stand.receive(VoteRequest(leader_id="n1", term=4, ledger_end_index=-1, ledger_end_term=-1))
    stand.turn(1_000)
    stand.saves = True
    stand.step()
    assert stand.answer(VoteAnswer).result is VoteResult.ACCEPT
    stand.turn(stand.member.options.heartbeat_ms)
    assert not stand.take(VoteRequest)
    stand.turn(400)
    assert {ask.member for ask, _ in stand.take(VoteRequest)} == ALL


@pytest.mark.parametrize("disk_ms", [900, 3_000])
def test_the_time_for_the_answers_to_a_vote_begins_when_the_others_are_asked(disk_ms: int) -> None:
    stand = Stand(ours=False)
    stand.turn(500)
    for ask, _ in stand.take(VoteRequest):
        stand.say(ask, VoteAnswer(term=0, result=VoteResult.ALREADY_VOTED), ours=False)
    stand.saves = False
    stand.turn(disk_ms)
    stand.saves = True
    stand.step()
    ask, vote = stand.take(VoteRequest)[0]
    stand.turn(900)  # the other's disk
    stand.say(ask, VoteAnswer(term=vote.term, result=VoteResult.ACCEPT), ours=False)
    assert stand.is_now(Role.LEADER)


def test_e5_a_vote_for_one_candidate_is_no_vote_for_another_after_a_restart() -> None:
    stand = Stand(saved=(3, "n1"))
    stand.receive(VoteRequest(leader_id="n2", term=3, ledger_end_index=5, ledger_end_term=2), "n2")
    assert stand.answer(VoteAnswer).result is VoteResult.ALREADY_VOTED


def test_a_term_in_which_it_asked_before_the_restart_is_not_asked_for_again() -> None:
    stand = Stand(saved=(3, "n0"), ours=False)
    stand.turn(500)
    assert {vote.term for _, vote in stand.take(VoteRequest)} == {4}


def test_a_new_member_asks_in_term_0_as_javas_do() -> None:
    stand = Stand(ours=False)
    stand.turn(500)
    assert {vote.term for _, vote in stand.take(VoteRequest)} == {0}


def test_a_lost_term_file_gives_nobody_a_second_vote() -> None:
    stand = Stand(grown(1, 4), saved=(0, ""))
    stand.receive(VoteRequest(leader_id="n1", term=4, ledger_end_index=9, ledger_end_term=4))
    assert stand.answer(VoteAnswer).result is VoteResult.ALREADY_VOTED
    assert stand.member.term == 4


def test_an_isolated_member_does_not_raise_its_term() -> None:
    stand = Stand(ours=False, saved=(3, "n1"))
    for _ in range(10):
        stand.turn(1_000)
        for ask, _ in stand.take(VoteRequest):
            stand.say(ask, None, ours=False)
    assert stand.member.term == 4


def test_a_member_that_all_know_to_be_roquet_asks_on_trial_first() -> None:
    stand = Stand(saved=(3, "n1"))
    stand.turn(500)
    trials = stand.take(VoteRequest)
    assert [(vote.trial, vote.term) for _, vote in trials] == [(True, 4), (True, 4)]
    assert stand.member.term == 3
    stand.say(trials[0][0], VoteAnswer(term=3, result=VoteResult.ALREADY_HAS_LEADER))
    assert stand.member.term == 3
    stand.elect()
    assert stand.member.term == 4


def test_a_trial_changes_nothing_and_a_follower_that_hears_its_leader_says_no() -> None:
    stand = Stand(saved=(3, ""))
    stand.receive(HeartBeatRequest(leader_id="n1", term=3, every_ms=300))
    stand.answer(HeartBeatAnswer)
    trial = VoteRequest(leader_id="n2", term=4, ledger_end_index=9, ledger_end_term=3, trial=True)
    stand.receive(trial, "n2")
    assert stand.answer(VoteAnswer).result is VoteResult.ALREADY_HAS_LEADER
    stand.now_ms += 700
    stand.receive(trial, "n2")
    assert stand.answer(VoteAnswer).result is VoteResult.ACCEPT
    assert (stand.member.term, stand.member.vote, stand.member.leader) == (3, "", "n1")


def test_a_java_candidate_is_told_to_wait_for_the_term_and_accepted_at_its_second_try() -> None:
    stand = Stand(saved=(3, "n2"), ours=False)
    vote = VoteRequest(leader_id="n1", term=4, ledger_end_index=-1, ledger_end_term=-1)
    stand.receive(vote, ours=False)
    first = stand.answer(VoteAnswer)
    assert (first.result, first.term) == (VoteResult.TERM_NOT_READY, 3)
    stand.receive(vote, ours=False)
    second = stand.answer(VoteAnswer)
    assert (second.result, second.term) == (VoteResult.ACCEPT, 4)


def test_a_killed_leaders_connection_ends_and_its_follower_asks_soon() -> None:
    stand = Stand(saved=(3, ""))
    stand.receive(HeartBeatRequest(leader_id="n1", term=3, every_ms=300))
    stand.member.connection_lost("n1", stand.now_ms)
    stand.turn(200)
    assert stand.is_now(Role.CANDIDATE)
    assert stand.take(VoteRequest)


@pytest.mark.parametrize(
    ("results", "told", "outcome", "why"),
    [
        (["ACCEPT", "ACCEPT"], -1, Outcome.PASSED, Why.ELECTED),
        (["ACCEPT", "UNKNOWN", "UNKNOWN"], -1, Outcome.WAIT_TO_REVOTE, Why.NO_QUORUM),
        (["ACCEPT", "REJECT_TERM_NOT_READY", "UNKNOWN"], -1, Outcome.REVOTE_IMMEDIATELY, Why.NOT_READY),
        (["ACCEPT", "REJECT_ALREADY_VOTED", "REJECT_ALREADY_VOTED"], -1, Outcome.WAIT_TO_VOTE_NEXT, Why.LOST),
        (["ACCEPT", "REJECT_ALREADY_HAS_LEADER"], -1, Outcome.WAIT_TO_REVOTE, Why.HAS_LEADER),
        (["ACCEPT", "REJECT_EXPIRED_VOTE_TERM", "UNKNOWN"], 9, Outcome.WAIT_TO_VOTE_NEXT, Why.LARGER_TERM),
        (["ACCEPT", "REJECT_SMALL_LEDGER_END_INDEX", "REJECT_EXPIRED_LEDGER_TERM"], -1, Outcome.WAIT_TO_REVOTE, Why.LONGER_LEDGERS),
        (["ACCEPT", "ACCEPT", "REJECT_SMALL_LEDGER_END_INDEX"], -1, Outcome.PASSED, Why.ELECTED),
    ],
)
def test_answers_to_a_vote_are_judged_as_dledger_judges_them(results: list[str], told: int, outcome: Outcome, why: Why) -> None:
    poll = Poll(3, 4, 0, trial=False)
    for member, result in zip(("n0", "n1", "n2"), results, strict=False):
        poll.take(member, VoteResult(result), told)
    assert poll.decided
    assert poll.judge() == (outcome, why)


def test_a_follower_that_stood_still_reads_what_came_before_it_asks_for_votes() -> None:
    stand = Stand(saved=(3, ""))
    stand.receive(HeartBeatRequest(leader_id="n1", term=3, every_ms=300))
    stand.answers.clear()
    stand.turn(50)
    stand.now_ms += 5_000
    stand.turn(10)
    assert stand.is_now(Role.FOLLOWER)
    stand.turn(400)
    assert stand.is_now(Role.CANDIDATE)  # nothing had come


def test_a_leader_that_stood_still_reads_the_answers_before_it_steps_down() -> None:
    stand = Stand(saved=(3, ""))
    stand.elect()
    stand.turn(50)
    stand.now_ms += 5_000
    stand.turn(10)
    assert stand.is_now(Role.LEADER)
    stand.turn(400)
    assert stand.is_now(Role.CANDIDATE)


# What a leader may take for committed


def test_e4_an_old_terms_entry_is_not_committed_by_count() -> None:
    stand = Stand(grown(1, 1, 2), saved=(3, ""))
    stand.elect()
    stand.pushed("n1", 2)
    stand.pushed("n2", 2)
    assert stand.ledger.committed == -1
    assert stand.member.leading.may_append() is Code.LEADER_NOT_READY
    stand.lead(b"of the new term")
    stand.pushed("n1", 3)
    assert stand.ledger.committed == 3
    assert stand.member.leading.may_append() is Code.SUCCESS


def test_e3_under_sync_flush_a_leaders_own_entry_counts_when_it_is_flushed() -> None:
    stand = Stand(saved=(3, ""), sync_flush=True)
    stand.elect()
    stand.lead()
    stand.pushed("n1", 0)
    assert stand.ledger.committed == -1
    stand.ledger.begin_flush()()
    stand.member.stored(stand.now_ms)
    assert stand.ledger.committed == 0


def test_e3_under_sync_flush_a_follower_answers_when_it_is_flushed() -> None:
    stand = follower(sync_flush=True)
    stand.receive(PushRequest(leader_id="n1", term=3, entries=[entry_of(0, 3)]))
    assert not stand.answers
    stand.ledger.begin_flush()()
    stand.member.stored(stand.now_ms)
    stand.step()
    assert stand.answer(PushAnswer).code == Code.SUCCESS


def test_e16_an_isolated_leader_stops_being_one_and_acknowledges_nothing() -> None:
    stand = Stand(saved=(3, ""))
    stand.elect()
    stand.lead()
    stand.pushed("n1", 0)
    assert stand.ledger.committed == 0
    stand.lead()
    stand.turn(2_000)
    assert stand.is_now(Role.CANDIDATE)
    assert stand.ledger.committed == 0
    assert stand.member.leading.may_append() is Code.NOT_LEADER


def test_a_leader_that_was_deposed_does_not_lead_again_in_its_term() -> None:
    stand = Stand(saved=(3, ""), ours=False)
    stand.elect()
    term = stand.member.term
    stand.turn(2_000)
    stand.elect()
    assert stand.member.term > term


def test_too_many_entries_that_wait_for_a_majority_are_refused() -> None:
    stand = Stand(saved=(3, ""), pending_max=3)
    stand.elect()
    stand.lead()
    stand.pushed("n1", 0)
    for _ in range(3):
        stand.lead()
    assert stand.member.leading.may_append() is Code.LEADER_PENDING_FULL
    stand.pushed("n1", 3)
    assert stand.member.leading.may_append() is Code.SUCCESS


def test_a_java_follower_gets_no_dense_push_and_nothing_beyond_its_window() -> None:
    stand = Stand(saved=(3, ""), ours=False, window_entries=5, java_push_entries=2)
    stand.elect()
    for _ in range(20):
        stand.lead()
    ((ask, compare),) = stand.take(PushRequest, "n1")
    assert (compare.kind, compare.last) == (PushType.COMPARE, 0)
    stand.say(ask, PushAnswer(index=0, end_index=0), ours=False)
    pushes = [push for _, push in stand.take(PushRequest, "n1")]
    assert [(push.kind, push.first, push.last) for push in pushes] == [("APPEND", 1, 2), ("APPEND", 3, 4), ("APPEND", 5, 5)]
    assert not stand.take(DensePush)


def test_a_follower_that_does_not_answer_is_compared_with_again() -> None:
    stand = Stand(saved=(3, ""))
    stand.elect()
    stand.lead()
    stand.pushed("n1", 0)
    stand.lead()
    ((ask, _),) = stand.take(DensePush, "n1")
    stand.say(ask, None)
    stand.turn(200)
    assert [push.kind for _, push in stand.take(PushRequest, "n1")] == [PushType.COMPARE]


def test_entries_that_are_not_in_memory_are_read_elsewhere_and_pushed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(saved=(3, ""))
    stand.elect()
    stand.lead()
    stand.pushed("n1", 0)
    warm = stand.ledger.read_raw

    def cold(first: int, max_bytes: int, max_entries: int) -> tuple[int, bytes]:
        raise Cold(lambda: None)

    monkeypatch.setattr(stand.ledger, "read_raw", cold)
    stand.lead()
    assert not stand.take(DensePush, "n1")
    ((_, then),) = stand.member.reads
    monkeypatch.setattr(stand.ledger, "read_raw", warm)
    then(stand.now_ms)
    stand.step()
    assert [push.first for _, push in stand.take(DensePush, "n1")] == [1]


# A follower


def entry_of(index: int, term: int, body: bytes = b"body") -> Entry:
    size = HEAD + len(body)
    return Entry(LEDGER_MAGIC, size, index, term, index * size, 0, 0, 0, body)


def follower(*terms: int, **options: object) -> Stand:
    ledger = MemoryLedger(1 << 20)
    ledger.append([entry_of(index, term) for index, term in enumerate(terms)])
    ledger.begin_flush()()
    stand = Stand(ledger, saved=(3, ""), **options)  # type: ignore[arg-type]
    stand.receive(HeartBeatRequest(leader_id="n1", term=3, every_ms=300))
    stand.answers.clear()
    return stand


def push(kind: PushType, *entries: Entry, commit: int = -1) -> PushRequest:
    return PushRequest(leader_id="n1", term=3, kind=kind, entries=list(entries), commit_index=commit)


def test_e8_a_follower_commits_no_further_than_it_has_the_leaders_entries() -> None:
    stand = follower(1, 2, 2, 2)
    stand.receive(push(PushType.COMMIT, commit=3))
    assert stand.ledger.committed == -1  # its last entries may be others than the leader's
    stand.receive(push(PushType.COMPARE, entry_of(1, 2), commit=3))
    assert stand.ledger.committed == 1
    stand.receive(push(PushType.APPEND, entry_of(2, 3), commit=9))
    assert (stand.ledger.committed, stand.ledger.end, stand.ledger.end_term) == (2, 2, 3)


def test_e7_what_is_committed_stays_when_a_leader_cuts_below_it() -> None:
    stand = follower(1, 2, 2, 2)
    stand.receive(push(PushType.COMPARE, entry_of(2, 2), commit=2))
    stand.answers.clear()
    stand.receive(push(PushType.COMPARE, entry_of(0, 1), commit=2))
    assert stand.answer(PushAnswer).end_index == 0  # told so that a Java leader cuts nothing
    stand.receive(push(PushType.TRUNCATE, entry_of(0, 1), commit=2))
    assert stand.answer(PushAnswer).code == Code.SUCCESS
    assert (stand.ledger.end, stand.ledger.committed) == (2, 2)


def test_a_cut_that_comes_twice_takes_nothing_back_that_was_answered_since() -> None:
    """The leader has counted those entries, and its commit index has not come yet. A run from a seed found it."""
    stand = follower(1, 2)
    stand.receive(push(PushType.TRUNCATE, entry_of(0, 1)))
    stand.receive(push(PushType.APPEND, entry_of(1, 3)))
    stand.receive(push(PushType.APPEND, entry_of(2, 3)))
    stand.answers.clear()
    stand.receive(push(PushType.TRUNCATE, entry_of(0, 1)))
    assert stand.answer(PushAnswer).code == Code.SUCCESS
    assert stand.ledger.end == 2


def test_e7_a_leader_that_differs_from_what_is_committed_is_refused_and_named() -> None:
    stand = follower(1, 2, 2)
    stand.receive(push(PushType.COMPARE, entry_of(2, 2), commit=2))
    stand.answers.clear()
    stand.receive(push(PushType.TRUNCATE, entry_of(1, 1)))
    assert stand.answer(PushAnswer).code == Code.INCONSISTENT_STATE
    assert "n1 leads in term 3 and has another entry 1" in stand.member.following.conflict
    assert stand.ledger.end == 2


def test_a_follower_takes_no_push_before_the_ledgers_were_compared() -> None:
    stand = follower(1, 2)
    stand.receive(push(PushType.APPEND, entry_of(2, 3)))
    assert stand.answer(PushAnswer).code == Code.INCONSISTENT_STATE
    assert stand.ledger.end == 1


def test_what_was_compared_in_one_term_counts_for_nothing_in_the_next_of_the_same_leader() -> None:
    """It may have lost power in between, and with it entries. A run from a seed found it."""
    stand = follower(1, 2)
    stand.receive(push(PushType.COMPARE, entry_of(1, 2)))
    assert stand.member.following.matched == 1
    stand.receive(HeartBeatRequest(leader_id="n1", term=4, every_ms=300))
    assert stand.member.following.matched == -1
    later = push(PushType.COMMIT, commit=1)
    later.term = 4
    stand.receive(later)
    assert stand.ledger.committed == -1


def test_pushes_that_come_out_of_order_are_put_in_order() -> None:
    stand = follower(1)
    stand.receive(push(PushType.COMPARE, entry_of(0, 1)))
    stand.answers.clear()
    for index in (3, 2, 1):
        stand.receive(push(PushType.APPEND, entry_of(index, 3)))
    told = [answer.index for answer in stand.answers if isinstance(answer, PushAnswer)]
    assert told == [1, 2, 3]
    assert stand.ledger.end == 3


def test_a_push_whose_predecessor_never_comes_is_refused_after_a_second() -> None:
    stand = follower(1)
    stand.receive(push(PushType.COMPARE, entry_of(0, 1)))
    stand.answers.clear()
    stand.receive(push(PushType.APPEND, entry_of(5, 3)))
    stand.receive(push(PushType.APPEND, entry_of(5, 3)))
    assert stand.answer(PushAnswer).code == Code.REPEATED_PUSH
    for _ in range(11):  # its leader lives meanwhile
        stand.turn(100)
        stand.receive(HeartBeatRequest(leader_id="n1", term=3, every_ms=300))
    assert Code.INCONSISTENT_STATE in [answer.code for answer in stand.answers]


def test_memory_for_pushes_that_came_too_early_is_bounded() -> None:
    stand = follower(1, waiting_bytes=200)
    stand.receive(push(PushType.COMPARE, entry_of(0, 1)))
    stand.answers.clear()
    for index in range(5, 9):
        stand.receive(push(PushType.APPEND, entry_of(index, 3)))
    assert [answer.code for answer in stand.answers] == [Code.PUSH_REQUEST_IS_FULL]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, Code.DISK_FULL), (errno.EIO, Code.DISK_ERROR)])
def test_a_follower_whose_disk_fails_says_so_and_takes_nothing(number: int, code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = follower(1)
    stand.receive(push(PushType.COMPARE, entry_of(0, 1)))
    stand.answers.clear()

    def fail(entries: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(stand.ledger, "append", fail)
    stand.receive(push(PushType.APPEND, entry_of(1, 3)))
    assert stand.answer(PushAnswer).code == code
    assert stand.member.following.matched == 0


def test_a_push_of_an_old_term_changes_nothing() -> None:
    stand = follower(1)
    stale = push(PushType.APPEND, entry_of(1, 2), commit=0)
    stale.term = 2
    stand.receive(stale)
    assert stand.answer(PushAnswer).code == Code.EXPIRED_TERM
    assert (stand.ledger.end, stand.ledger.committed) == (0, -1)


# Handing over


def leader_with(*, ours: bool) -> Stand:
    stand = Stand(saved=(3, ""), ours=ours)
    stand.elect()
    stand.lead()
    for member in ALL:
        for _ in range(10):
            for ask, request in stand.pushes(member):
                stand.say(ask, PushAnswer(index=request.last, end_index=0), ours=ours)
    return stand


def hand_over(stand: Stand) -> Ask:
    stand.receive(TransferRequest(transfer_id="n0", transferee_id="n2", term=stand.member.term), "tool", ours=False)
    ((ask, request),) = stand.take(TransferRequest)
    assert (ask.member, request.take_leadership_ledger_index) == ("n2", stand.ledger.end)
    return ask


def test_while_the_leadership_is_handed_over_nothing_is_appended() -> None:
    stand = leader_with(ours=True)
    ask = hand_over(stand)
    assert stand.member.leading.may_append() is Code.LEADER_TRANSFERRING
    stand.say(ask, None)
    assert stand.answer(TransferAnswer).code == Code.NETWORK_ERROR
    assert stand.member.leading.may_append() is Code.SUCCESS


def test_a_leader_does_not_run_against_the_java_member_that_it_hands_over_to() -> None:
    """That one has the next term already, and asks for votes up to a second later."""
    stand = leader_with(ours=False)
    hand_over(stand)
    for _ in range(10):
        stand.turn(100)
        for ask, _ in stand.take(HeartBeatRequest):
            told = HeartBeatAnswer(code=Code.EXPIRED_TERM, term=stand.member.term + 1) if ask.member == "n2" else HeartBeatAnswer()
            stand.say(ask, told, ours=False)
    assert stand.is_now(Role.LEADER)
    assert not stand.take(VoteRequest)


def test_the_one_who_takes_the_leadership_waits_for_the_last_entry_and_asks_at_once() -> None:
    stand = follower(1)
    stand.receive(push(PushType.COMPARE, entry_of(0, 1)))
    stand.answers.clear()
    stand.receive(TransferRequest(transfer_id="n1", transferee_id="n0", term=3, take_leadership_ledger_index=1))
    assert not stand.answers
    stand.receive(push(PushType.APPEND, entry_of(1, 3)))
    stand.answers.clear()
    stand.turn(10)
    votes = stand.take(VoteRequest)
    assert [(vote.term, vote.trial) for _, vote in votes] == [(4, False), (4, False)]
    stand.say(votes[0][0], VoteAnswer(term=4, result=VoteResult.ACCEPT))
    told = stand.answer(TransferAnswer)
    assert (told.code, told.term) == (Code.SUCCESS, 4)


def test_a_preferred_member_is_handed_the_leadership() -> None:
    stand = Stand(saved=(3, ""), preferred=("n2",))
    stand.elect()
    stand.lead()
    for _ in range(15):
        stand.turn(100)
        stand.pushed("n1", 0)
        stand.pushed("n2", 0)
        for ask, _ in stand.take(HeartBeatRequest):
            stand.say(ask, HeartBeatAnswer())
    assert [ask.member for ask, _ in stand.take(TransferRequest)][:1] == ["n2"]


# Settings


@pytest.mark.parametrize("text", ["n0", "n0-host", "n0-host:0", "n0-host:x", "0-host:1", "nx-host:1", "n0-a:1;n0-b:2", "n-host:1"])
def test_peers_that_make_no_group_are_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(BadGroup, match="expected"):
        peers_of(text)


def test_peers_are_read_as_java_reads_them() -> None:
    assert peers_of("n0-127.0.0.1:40911; n1-my-host:40912;") == {"n0": "127.0.0.1:40911", "n1": "my-host:40912"}
    with pytest.raises(BadGroup, match="dLegerSelfId is 'n7'"):
        Options("g", "n7", PEERS)
    with pytest.raises(BadGroup, match="preferredLeaderId names 'n9'"):
        Options("g", "n0", PEERS, ("n9",))


def started_anew() -> Stand:
    """A member that was in term 3 and voted for n1 in it, and has heard of nobody since its start."""
    stand = Stand(saved=(3, "n1"), ours=False)
    stand.member.looking.known.clear()
    return stand


def test_a_member_that_was_started_asks_who_leads_before_it_asks_for_votes() -> None:
    stand = started_anew()
    stand.turn(500)
    assert not stand.take(VoteRequest)
    assert {ask.member for ask, _ in stand.take(MetadataRequest)} == ALL
    assert stand.member.term == 3


@pytest.mark.parametrize(("ours", "heartbeat_ms"), [(True, 300), (False, 2_000)], ids=["Roquet's", "Java's"])
def test_who_hears_of_a_leader_waits_for_three_of_its_heartbeats(ours: bool, heartbeat_ms: int) -> None:
    stand = started_anew()
    stand.turn(10)
    for ask, _ in stand.take(MetadataRequest):
        stand.say(ask, MetadataAnswer(code=Code.SUCCESS, leader_id="n1"), ours=ours)
    stand.turn(3 * heartbeat_ms - 100)
    assert not stand.take(VoteRequest)
    stand.turn(500)
    assert stand.take(VoteRequest)


def test_a_member_that_reaches_no_majority_after_its_start_never_raises_its_term() -> None:
    stand = started_anew()
    for _ in range(50):
        stand.turn(100)
        for ask, _ in stand.take(MetadataRequest):
            stand.say(ask, None)
    assert (stand.member.term, stand.member.vote) == (3, "n1")
    assert not stand.take(VoteRequest)


def test_a_trial_goes_only_to_members_that_are_known_to_understand_it() -> None:
    """n2 was never heard: it may be Java's, and would take the trial for a vote."""
    stand = started_anew()
    stand.turn(10)
    for ask, _ in stand.take(MetadataRequest):
        stand.say(ask, MetadataAnswer(code=Code.SUCCESS) if ask.member == "n1" else None)
    stand.turn(200)
    ((ask, vote),) = stand.take(VoteRequest)
    assert (ask.member, vote.trial) == ("n1", True)
    stand.say(ask, VoteAnswer(term=3, result=VoteResult.ACCEPT))
    assert {ask.member: vote.trial for ask, vote in stand.take(VoteRequest)} == {"n1": False, "n2": False}
    assert stand.member.term == 4


@pytest.mark.parametrize(
    "request_",
    [
        VoteRequest(leader_id="n1", term=1 << 62, ledger_end_index=9, ledger_end_term=1 << 61),
        HeartBeatRequest(leader_id="n1", term=1 << 62),
        PushRequest(leader_id="n1", term=1 << 62, kind=PushType.COMMIT, commit_index=1 << 62),
        DensePush(leader_id="n1", term=1 << 62, first=0, count=1, data=b"x"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_term_that_nobody_can_have_reached_is_refused(request_: Request) -> None:
    """Else one message would use up all terms that there are."""
    stand = Stand(saved=(3, ""))
    stand.receive(request_)
    assert stand.answers[0].code == Code.UNEXPECTED_ARGUMENT
    assert stand.member.term == 3
    assert stand.member.unsaved is None


def test_an_answer_with_a_term_that_nobody_can_have_reached_counts_as_none() -> None:
    stand = Stand(saved=(3, ""))
    stand.elect()
    term = stand.member.term
    stand.turn(400)
    for ask, _ in stand.take(HeartBeatRequest):
        stand.say(ask, HeartBeatAnswer(code=Code.EXPIRED_TERM, term=1 << 62))
    assert (stand.member.role, stand.member.term, stand.member.known_max) == (Role.LEADER, term, -1)


def sent_in_seconds(stand: Stand, member: str, seconds: int) -> list[int]:
    """Bytes of entries that this follower, which takes all at once, is sent in each second of the clock."""
    sent: list[int] = []
    stand.turn(-stand.now_ms % 1_000)
    for _ in range(seconds):
        sent.append(0)
        for _ in range(100):
            while asks := stand.take(DensePush, member):
                for ask, push in asks:
                    sent[-1] += len(push.data)
                    stand.say(ask, PushAnswer(index=push.last, count=push.count, end_index=push.last))
            for ask, beat in stand.take(HeartBeatRequest):
                stand.say(ask, HeartBeatAnswer(code=Code.SUCCESS, term=beat.term))
            stand.turn(10)
    return sent


def test_a_follower_that_is_far_behind_is_sent_so_much_a_second_and_one_that_is_near_all_there_is() -> None:
    """DLedger's rule, with other numbers: more than 1,000 entries and 300 MiB behind, 20 MiB a second."""
    stand = Stand(saved=(3, ""), throttle_behind=20_000, throttle_bytes=3_000, lag_max=10, push_bytes=500)
    stand.elect()
    for _ in range(200):
        stand.lead(b"x" * 200)
    stand.pushed("n1", 0)
    ((ask, compare),) = stand.take(PushRequest, "n2")
    stand.say(ask, PushAnswer(index=compare.last, end_index=0))
    copy, sent = stand.member.leading.copies["n2"], sent_in_seconds(stand, "n2", 3)
    assert all(3_000 <= each < 3_500 for each in sent[1:])
    while copy.match < stand.ledger.end:
        behind = stand.ledger.end_pos - stand.ledger.place_of(copy.next)[0]
        (sent_bytes,) = sent_in_seconds(stand, "n2", 1)
        assert sent_bytes < 3_500 or behind < 20_000 + 3_500
        assert len(sent) < 50
        sent.append(sent_bytes)
    assert len(sent) > 5
    assert sent[-1] > 15_000  # the last 20,000 came at once
