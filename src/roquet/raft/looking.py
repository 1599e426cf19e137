"""The first act of a member that was started: it asks the others who they are, and who leads (METADATA, which Java's members answer too).

A leader may be at work. A member that asked for votes at once would unseat it: trial votes go only to members that are known to understand
them, and after a start none is. So nobody asks for votes before a majority is known, and one who hears of a leader waits for its heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.raft.codes import Code, Role
from roquet.raft.messages import Answer, MetadataAnswer, MetadataRequest
from roquet.raft.options import JAVA_HEARTBEAT_MS

if TYPE_CHECKING:
    from roquet.raft.member import Done, Member


class Looking:
    """State: who has said anything in this life, and who is being asked."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.known: set[str] = set()
        self._asking: set[str] = set()
        self._asked = False
        self._again_ms = 0

    def is_over(self, now_ms: int) -> bool:
        """May this member ask for votes? If not, the others are asked (again)."""
        member = self.member
        if not self._asking and now_ms >= self._again_ms and not (self._asked and self.knows_majority):
            self._asked = True
            self._again_ms = now_ms + member.pause()
            for name in member.options.others:
                if name not in self.known:
                    self._asking.add(name)
                    member.ask(name, MetadataRequest(), self._taker(name), member.options.vote_wait_ms)
        return self.knows_majority and not self._asking

    @property
    def knows_majority(self) -> bool:
        return 1 + len(self.known) >= self.member.options.quorum

    def _taker(self, name: str) -> Done:
        def take(answer: Answer | None, now_ms: int) -> None:
            self._asking.discard(name)
            if isinstance(answer, MetadataAnswer) and answer.code == Code.SUCCESS:
                self._hear_of_leader(answer.leader_id, now_ms)

        return take

    def _hear_of_leader(self, leader: str | None, now_ms: int) -> None:
        member = self.member
        if leader in member.options.others and leader is not None and member.role is Role.CANDIDATE and member.poll is None:
            beat_ms = member.options.heartbeat_ms if leader in member.ours else JAVA_HEARTBEAT_MS
            member.next_vote_ms = max(member.next_vote_ms, now_ms + beat_ms * member.options.leak)
