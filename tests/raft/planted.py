"""Eight bugs that groups like this one have had. Each is the rules with one thing wrong; the simulation must find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roquet.raft.following import Following
from roquet.raft.leading import Leading
from roquet.raft.member import Member
from roquet.raft.voting import Voter
from roquet.testing.raft_group import Rules
from roquet.wire.ledger_entry import Entry


class CountsOnlyItself(Leading):
    def majority_index(self) -> int:
        return self.member.held


class AcknowledgesBeforeTheQuorum(Member):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.leading = CountsOnlyItself(self)


class VotesWithoutComparing(Member):
    def voter(self) -> Voter:
        return super().voter()._replace(end=-1, end_term=-1)


class KeepsWhatDiffers(Following):
    def _new_ones(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return [entry for entry in entries if entry.index > self.ledger.end]


class NeverTruncates(Member):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.following = KeepsWhatDiffers(self)


class UsesATermTwice(Member):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.spent = -1

    def may_ask_in_term(self) -> bool:
        return self.vote in ("", self.options.me)


class CommitsOldTerms(Leading):
    def _count(self) -> None:
        if self.majority_index() > self.ledger.committed:
            self.ledger.note_committed(self.majority_index())


class CommitsOldTermsByCount(Member):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.leading = CommitsOldTerms(self)


class CountsWhoAnswers(Leading):
    """Who does not answer is no member, so the rest is a majority."""

    def has_quorum(self, now_ms: int) -> bool:
        return True

    def majority_index(self) -> int:
        living = [copy.match for copy in self.copies.values() if self._lives(copy, self.member.now_ms)]
        marks = sorted((self.member.held, *living), reverse=True)
        return marks[len(marks) // 2]


class GoesOnAlone(Member):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.leading = CountsWhoAnswers(self)


PLANTED = {
    "acknowledge before the quorum": Rules(AcknowledgesBeforeTheQuorum),
    "vote without the comparison": Rules(VotesWithoutComparing),
    "vote not on disk": Rules(saves_terms=False),
    "no truncation": Rules(NeverTruncates),
    "a term used twice": Rules(UsesATermTwice),
    "an old term's entries committed by count": Rules(CommitsOldTermsByCount),
    "apply before commit": Rules(applies=lambda ledger: ledger.end),
    "an isolated leader that goes on acknowledging": Rules(GoesOnAlone),
}
