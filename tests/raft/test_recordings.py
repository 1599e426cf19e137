"""What Java's members answered each other, asked of ours."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import pytest

from roquet.raft.codes import Call, VoteResult
from roquet.raft.ledger import HEAD
from roquet.raft.member import Member, Reply
from roquet.raft.messages import HeartBeatRequest, PushAnswer, PushRequest, VoteAnswer, VoteRequest, answer_of, body_of, request_of
from roquet.raft.options import Options
from roquet.raft.voting import Voter, verdict
from roquet.testing.memory_ledger import MemoryLedger
from roquet.wire.layout import LEDGER_MAGIC
from roquet.wire.ledger_entry import Entry
from tests.raft.recordings import Frame, frames, pairs

MEMBERS = ("n0", "n1", "n2")
FILE = 65_536

# session, phase, number of the request, and what its receiver knew then (term, vote, leader, end, end term)
VOTES = [
    ("main", "first-election", "n1", 0, Voter("n0", MEMBERS, 0, "n0", None, -1, -1)),
    ("main", "first-election", "n0", 1, Voter("n1", MEMBERS, 0, "n1", None, -1, -1)),
    ("main", "first-election", "n0", 9, Voter("n1", MEMBERS, 0, "n1", None, -1, -1)),
    ("main", "first-election", "n0", 13, Voter("n1", MEMBERS, 1, "", None, -1, -1)),
    ("main", "first-election", "n2", 0, Voter("n1", MEMBERS, 1, "n0", "n0", -1, -1)),
    ("main", "first-election", "n2", 7, Voter("n0", MEMBERS, 1, "n0", "n0", -1, -1)),
    ("main", "first-election", "n2", 8, Voter("n1", MEMBERS, 1, "n0", "n0", -1, -1)),
    ("main", "follower-back", "n1", 0, Voter("n0", MEMBERS, 1, "n0", "n0", 13, 1)),
    ("main", "leader-killed", "n1", 84, Voter("n2", MEMBERS, 1, "n0", None, 13, 1)),
    ("main", "leader-killed", "n2", 189, Voter("n1", MEMBERS, 1, "n0", None, 13, 1)),
    ("main", "leader-killed", "n2", 193, Voter("n1", MEMBERS, 2, "", None, 13, 1)),
    ("main", "leader-back", "n0", 0, Voter("n1", MEMBERS, 2, "n2", "n2", 16, 2)),
    ("main", "leader-back", "n0", 22, Voter("n1", MEMBERS, 2, "n2", "n2", 16, 2)),
    ("main", "tail", "n0", 59, Voter("n1", MEMBERS, 2, "n2", None, 16, 2)),
    ("main", "tail", "n0", 64, Voter("n1", MEMBERS, 2, "n2", None, 16, 2)),
    ("main", "tail", "n0", 67, Voter("n1", MEMBERS, 3, "", None, 16, 2)),
    ("main", "tail-back", "n2", 0, Voter("n0", MEMBERS, 3, "n0", "n0", 18, 3)),
    ("main", "tail-back", "n2", 10, Voter("n0", MEMBERS, 3, "n0", "n0", 18, 3)),
    ("main", "transfer", "n2", 106, Voter("n1", MEMBERS, 3, "n0", "n0", 19, 3)),
    ("main", "transfer", "n2", 105, Voter("n0", MEMBERS, 3, "n0", "n0", 19, 3)),
    ("main", "transfer", "n2", 109, Voter("n1", MEMBERS, 4, "", None, 19, 3)),
]


def vote_of(request: Frame, answer: Frame) -> tuple[VoteRequest, VoteAnswer]:
    asked, told = request_of(Call.VOTE, request.body.encode()), answer_of(Call.VOTE, answer.body.encode())
    assert isinstance(asked, VoteRequest)
    assert isinstance(told, VoteAnswer)
    return asked, told


@pytest.mark.parametrize(("session", "phase", "candidate", "number", "voter"), VOTES)
def test_a_vote_is_judged_as_java_judged_it(session: str, phase: str, candidate: str, number: int, voter: Voter) -> None:
    request, answer = next(
        (request, answer)
        for request, answer in pairs(session, phase)
        if (request.code, request.sender, request.receiver, request.opaque) == (Call.VOTE, candidate, voter.me, number)
    )
    asked, told = vote_of(request, answer)
    found = verdict(voter, asked)
    assert (found.result, found.term) == (told.result, told.term)


def test_votes_that_no_member_would_send_are_judged_as_java_judged_them() -> None:
    voter = Voter("n1", MEMBERS, 4, "n2", "n2", 7, 3)
    results = set()
    for request, answer in probes(Call.VOTE):
        asked, told = vote_of(request, answer)
        found = verdict(voter, asked)
        assert (found.result, found.term) == (told.result, told.term), request.body
        results.add(found.result)
    assert len(results) >= 6


@pytest.mark.parametrize(
    ("voter", "request_", "result", "term"),
    [
        (Voter("n1", MEMBERS, 4, "", None, 9, 6), VoteRequest(leader_id="n0", term=4, ledger_end_index=9, ledger_end_term=6),
         VoteResult.TERM_SMALL_THAN_LEDGER, 6),
        (Voter("n1", MEMBERS, 4, "", None, 9, 3, True), VoteRequest(leader_id="n0", term=4, ledger_end_index=9, ledger_end_term=3),
         VoteResult.TAKING_LEADERSHIP, 4),
    ],
)  # fmt: skip
def test_the_two_results_that_were_not_recorded(voter: Voter, request_: VoteRequest, result: VoteResult, term: int) -> None:
    assert verdict(voter, request_)[:2] == (result, term)


def probes(code: Call) -> list[tuple[Frame, Frame]]:
    """One connection asked one question after another, each with number 1."""
    rows = [frame for frame in frames() if frame.phase == "probes" and "probe" in (frame.sender, frame.receiver)]
    found = []
    for request, answer in pairwise(rows):
        if request.way == "request" and answer.way == "response" and request.code == code == answer.code:
            found.append((request, answer))
    return found


def follower(me: str, ledger: MemoryLedger, term: int, leader: str) -> Member:
    options = Options("broker-a", me, dict.fromkeys(MEMBERS, "127.0.0.1:1"))
    member = Member(options, ledger, (term, leader), Random(0), 0)
    ask(member, HeartBeatRequest(group="broker-a", remote_id=me, local_id=leader, leader_id=leader, term=term))
    return member


def ask(member: Member, request: HeartBeatRequest | PushRequest) -> str:
    member.receive("token", request, 0)
    if not member.out:  # it waits for what comes before it
        member.tick(member.options.hold_ms)
    (reply,) = member.out
    member.out = []
    assert isinstance(reply, Reply)
    return body_of(reply.answer).decode()


def test_heartbeats_are_answered_as_java_answered_them() -> None:
    member = follower("n1", MemoryLedger(FILE), 4, "n2")
    count = 0
    for request, answer in probes(Call.HEART_BEAT):
        if request.body and answer.status == 200:
            asked = request_of(Call.HEART_BEAT, request.body.encode())
            assert isinstance(asked, HeartBeatRequest)
            assert ask(member, asked) == answer.body
            count += 1
    assert count >= 10


def replay(member: Member, session: str, phase: str) -> int:
    """Each push to this member, in the order in which they were sent; its answers may have left in another."""
    sent = [frame for frame in frames() if (frame.session, frame.phase, frame.code) == (session, phase, Call.PUSH)]
    answers = {
        (frame.receiver, frame.opaque): frame.body for frame in sent if frame.way == "response" and frame.sender == member.options.me
    }
    count = 0
    for frame in frames():
        if (frame.session, frame.phase, frame.way, frame.receiver) == (
            session,
            phase,
            "request",
            member.options.me,
        ) and frame.code == Call.PUSH:
            request = request_of(Call.PUSH, frame.body.encode())
            assert isinstance(request, PushRequest)
            expected = json.loads(answers[frame.sender, frame.opaque])
            found = json.loads(ask(member, request))
            if request.kind == "APPEND":  # Java tells its end of the moment when it writes the answer
                assert found["endIndex"] <= expected["endIndex"]
                expected["endIndex"] = found["endIndex"]
            assert found == expected
            count += 1
    return count


def entries_of_session() -> dict[tuple[int, int], Entry]:
    """By index and term."""
    found: dict[tuple[int, int], Entry] = {}
    for frame in frames():
        if frame.session == "main" and frame.code == Call.PUSH and frame.way == "request" and not frame.shortened:
            push = request_of(Call.PUSH, frame.body.encode())
            assert isinstance(push, PushRequest)
            found |= {(entry.index, entry.term): entry for entry in push.entries}
    return found


@pytest.mark.parametrize("me", ["n1", "n2"])
def test_an_empty_follower_answers_the_first_pushes_as_java_did(me: str) -> None:
    ledger = MemoryLedger(FILE)
    assert replay(follower(me, ledger, 1, "n0"), "main", "append") >= 9
    assert ledger.begin == 0
    assert ledger.end >= 6
    assert ledger.committed >= 0
    assert all(ledger.entries[index] == entry for (index, _), entry in entries_of_session().items() if index <= ledger.end)


def test_a_follower_cuts_its_own_tail_as_java_did() -> None:
    known = entries_of_session()
    ledger = MemoryLedger(FILE)
    ledger.append([known[index, 1 if index < 14 else 2] for index in range(17)])
    for _ in range(2):  # what it took as a leader that nobody heard
        ledger.append([Entry(LEDGER_MAGIC, HEAD + 100, ledger.end + 1, 2, ledger.end_pos, 0, 0, 0, bytes(100))])
    ledger.note_committed(16)
    member = follower("n2", ledger, 3, "n0")
    assert replay(member, "main", "tail-back") >= 4
    assert (ledger.end, ledger.end_term) == (18, 3)
    assert ledger.entries[17:] == [known[17, 3], known[18, 3]]
    assert ledger.committed == 18


def test_pushes_that_no_leader_would_send_are_answered_as_java_answered_them() -> None:
    """Except those that Java keeps for a while, or forgets: ours answer at once."""
    last = next(
        request_of(Call.PUSH, request.body.encode())
        for request, _ in probes(Call.PUSH)
        if '"COMPARE"' in request.body and '"entry"' in request.body
    )
    assert isinstance(last, PushRequest)
    entry = last.entries[0]
    ledger = MemoryLedger(FILE, [*(Entry(LEDGER_MAGIC, 48, index, 2, index * 48, 0, 0, 0, b"") for index in range(7)), entry])
    ledger.note_committed(7)
    member = follower("n1", ledger, 4, "n2")
    seen = set()
    for request, answer in probes(Call.PUSH):
        if request.receiver == "n1" and answer.status == 200:
            asked = request_of(Call.PUSH, request.body.encode())
            assert isinstance(asked, PushRequest)
            told = answer_of(Call.PUSH, answer.body.encode())
            assert isinstance(told, PushAnswer)
            assert ask(member, asked) == answer.body, request.body
            seen.add((asked.kind, int(told.code)))
    assert len(seen) >= 6
