"""Handing the leadership over (51005), from both sides: the leader that gives it away, and the member that takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from roquet.raft.codes import Code, Role
from roquet.raft.messages import OURS, Answer, TransferAnswer, TransferRequest

if TYPE_CHECKING:
    from roquet.raft.member import Member

TAKE_WAIT_MS = 1_000
"""The one who is to lead waits so long for the last entries."""


class Taking(NamedTuple):
    token: object
    request: TransferRequest
    deadline_ms: int


class Handing:
    """State: to whom the leadership is being handed; what this member was told to take."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.transferee: str | None = None
        """While it is set nothing is appended."""
        self.term_to_take = -1
        self._waiting: Taking | None = None
        """For the last entries."""
        self._taking: Taking | None = None
        """For the outcome of the vote."""

    def receive(self, token: object, request: TransferRequest, now_ms: int) -> None:
        me = self.member.options.me
        if request.transfer_id == me and request.transferee_id != me:
            self._hand_over(token, request, now_ms)
        elif request.transferee_id == me and request.transfer_id != me:
            self._take(token, request, now_ms)
        else:
            self._reply(token, request, Code.UNEXPECTED_ARGUMENT)

    def _reply(self, token: object, request: TransferRequest | None, code: int, term: int | None = None) -> None:
        ours = OURS if request is not None and request.ours else 0
        self.member.reply(token, TransferAnswer(code=code, term=self.member.term if term is None else term, ours=ours))

    # The leader

    def _hand_over(self, token: object, request: TransferRequest, now_ms: int) -> None:
        member = self.member
        transferee = request.transferee_id
        if transferee is None or transferee not in member.options.peers:
            return member.reply(token, member.refusal(request, Code.UNKNOWN_MEMBER))
        if request.term != member.term:
            return member.reply(token, member.refusal(request, Code.INCONSISTENT_TERM))
        if member.role is not Role.LEADER:
            return member.reply(token, member.refusal(request, Code.NOT_LEADER))
        if member.ledger.end - member.leading.copies[transferee].match >= member.options.lag_max:
            return member.reply(token, member.refusal(request, Code.FALL_BEHIND_TOO_MUCH))
        if self.transferee is not None:
            return self._reply(token, request, Code.LEADER_TRANSFERRING)
        self.start(transferee, (token, request), now_ms)

    def start(self, transferee: str, asked: tuple[object, TransferRequest] | None, now_ms: int) -> None:
        """`asked`: whom to tell how it went; None: nobody asked."""
        member = self.member
        self.transferee, term = transferee, member.term
        request = TransferRequest(
            leader_id=member.options.me,
            term=term,
            transfer_id=member.options.me,
            transferee_id=transferee,
            take_leadership_ledger_index=member.ledger.end,
        )

        def done(answer: Answer | None, then_ms: int) -> None:
            code = Code.NETWORK_ERROR if answer is None else answer.code
            if self.transferee == transferee and (code != Code.SUCCESS or member.term == term):
                self.transferee = None
            if asked is not None:
                self._reply(asked[0], asked[1], code, member.term if answer is None else answer.term)

        member.ask(transferee, request, done)

    def stop(self) -> None:
        """This member leads no more."""
        self.transferee = None

    # The one who takes it

    def _take(self, token: object, request: TransferRequest, now_ms: int) -> None:
        member = self.member
        if request.transfer_id != member.leader:
            return self._reply(token, request, Code.INCONSISTENT_LEADER)
        if request.term != member.term:
            return self._reply(token, request, Code.INCONSISTENT_TERM)
        if self._waiting is not None or self._taking is not None:
            return self._reply(token, request, Code.LEADER_TRANSFERRING)
        self._waiting = Taking(token, request, now_ms + TAKE_WAIT_MS)
        self.tick(now_ms)

    def tick(self, now_ms: int) -> None:
        waiting, member = self._waiting, self.member
        if waiting is not None:
            if request_is_old(waiting.request, member):
                self._waiting = None
                self._reply(waiting.token, waiting.request, Code.INCONSISTENT_TERM)
            elif member.ledger.end >= waiting.request.take_leadership_ledger_index:
                self._waiting = None
                self._ask_for_it(waiting, now_ms)
            elif now_ms >= waiting.deadline_ms:
                self._waiting = None
                self._reply(waiting.token, waiting.request, Code.TAKE_LEADERSHIP_FAILED)
        if self._taking is not None and now_ms >= self._taking.deadline_ms:
            self._settle(Code.TAKE_LEADERSHIP_FAILED)

    def _ask_for_it(self, waiting: Taking, now_ms: int) -> None:
        member = self.member
        self.term_to_take = waiting.request.term + 1
        self._taking = waiting._replace(deadline_ms=now_ms + member.options.rpc_ms)
        member.become_candidate(self.term_to_take, f"{waiting.request.transfer_id} hands the leadership over", now_ms)
        member.campaign(now_ms, term=self.term_to_take)

    def decided(self) -> None:
        """The role or the term has changed."""
        member = self.member
        if self._taking is None:
            return
        if member.term > self.term_to_take:
            self._settle(Code.EXPIRED_TERM)
        elif member.term == self.term_to_take and member.role is Role.LEADER:
            self._settle(Code.SUCCESS)
        elif member.term == self.term_to_take and member.role is Role.FOLLOWER:
            self._settle(Code.TAKE_LEADERSHIP_FAILED)

    def _settle(self, code: Code) -> None:
        taking, self._taking = self._taking, None
        assert taking is not None
        self._reply(taking.token, taking.request, code)


def request_is_old(request: TransferRequest, member: Member) -> bool:
    return request.term != member.term or request.transfer_id != member.leader
