"""A follower takes over what its leader has: COMPARE finds where the two ledgers agree, APPEND copies from there on.

`matched` is the last entry of which is known, in this life and from this leader in this term, that it and all before it are the leader's.
Nothing is appended behind an entry beyond it, and nothing beyond it is taken for committed (E8). After a start it is unknown: a power loss
may have brought back a tail that was cut, so a push that would fit by its number is refused until the leader has compared.

What is committed is never given up. A Java leader may compare, and then cut, at an old entry although more agree: such an entry is
answered as if it was the last, so the leader pushes what follows, and equal entries stay where they are. A leader whose ledger differs
below the commit index is refused for good, and `conflict` says so: one of the two ledgers is wrong, and merging would hide it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from roquet.raft.codes import Code, PushType, Role
from roquet.raft.ledger import entries_of, same
from roquet.raft.messages import OURS, DensePush, PushAnswer, PushRequest
from roquet.raft.options import JAVA_HEARTBEAT_MS
from roquet.store.disk import blocking
from roquet.wire.ledger_entry import Entry, Misplaced

if TYPE_CHECKING:
    from roquet.raft.member import Member

WAITING_MAX = 1_024
"""Pushes that came too early."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Waiting(NamedTuple):
    token: object
    request: PushRequest
    since_ms: int
    size: int


class Unflushed(NamedTuple):
    """An answer that says "I have it", before it is true."""

    last: int
    token: object
    request: PushRequest | DensePush
    end: int | None


class Following:
    """State: `matched`, pushes that came before those in front of them, answers that wait for the disk."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.ledger = member.ledger
        self.matched = -1
        self.conflict = ""
        """What differs although it is committed here; "" when nothing does."""
        self._waiting: dict[int, Waiting] = {}
        self._waiting_bytes = 0
        self._unflushed: list[Unflushed] = []
        self.refused_until_ms = 0
        """So long after the disk refused a write this member counts as one that cannot write."""

    def forget(self) -> None:
        """Another leader, or none: nothing is known of its ledger."""
        self.matched = -1
        self._drop_waiting()
        self._unflushed.clear()

    def tick(self, now_ms: int) -> None:
        late = [first for first, each in self._waiting.items() if now_ms - each.since_ms >= self.member.options.hold_ms]
        for first in late:
            each = self._pop(first)
            self._answer(each.token, each.request, Code.INCONSISTENT_STATE)

    def stored(self) -> None:
        """More is written or flushed here."""
        if self._unflushed:
            held = self.member.held
            waiting, self._unflushed = self._unflushed, []
            for each in waiting:
                if each.last <= held:
                    self._answer(each.token, each.request, Code.SUCCESS, each.end)
                else:
                    self._unflushed.append(each)

    # Requests

    def push(self, token: object, request: PushRequest, now_ms: int) -> None:
        member = self.member
        if request.kind is not PushType.COMMIT and not request.entries:
            return member.reply(token, member.refusal(request, Code.UNEXPECTED_ARGUMENT))
        code = self._follow(request, now_ms)
        if code is not Code.SUCCESS:
            if code is Code.EXPIRED_TERM and request.kind is PushType.COMMIT:
                code = Code.SUCCESS  # without effect, as DLedger's
            return self._answer(token, request, code)
        match request.kind:
            case PushType.COMPARE:
                self._compare(token, request)
            case PushType.TRUNCATE:
                self._truncate(token, request)
            case PushType.APPEND:
                self._append(token, request, now_ms)
            case PushType.COMMIT:
                self._note_committed(request.commit_index)
                self._answer(token, request, Code.SUCCESS)

    def dense(self, token: object, request: DensePush, now_ms: int) -> None:
        code = self._follow(request, now_ms)
        if code is not Code.SUCCESS:
            return self._answer(token, request, code)
        if request.first > self.matched + 1:
            return self._answer(token, request, Code.INCONSISTENT_STATE)
        try:
            if request.first == self.ledger.end + 1 and self.ledger.end_term == request.before_term:
                last = self.ledger.append_raw(request.data)
            else:
                last = self._take(entries_of(request.data))
        except (Misplaced, OSError) as error:
            return self._failed(token, request, error)
        self._taken(token, request, last)

    def _follow(self, request: PushRequest | DensePush, now_ms: int) -> Code:
        """A push is as good as a heartbeat: who sends it leads in its term."""
        member, leader = self.member, request.leader_id
        if leader is None or leader not in member.options.peers:
            return Code.UNKNOWN_MEMBER
        if request.term < member.term:
            return Code.EXPIRED_TERM
        if leader == member.options.me or (request.term == member.term and member.role is Role.LEADER):
            return Code.NOT_FOLLOWER
        if request.term == member.term and member.leader not in (None, leader):
            return Code.INCONSISTENT_LEADER
        if request.term > member.term or member.leader is None:
            member.become_follower(leader, request.term, now_ms, 0 if request.ours else JAVA_HEARTBEAT_MS)
        else:
            member.hear(now_ms)
        return Code.SUCCESS

    # COMPARE and TRUNCATE

    def _entry(self, index: int) -> Entry | None:
        """The entry that is held; None when there is none. Raises Cold."""
        if not self.ledger.begin <= index <= self.ledger.written_index or self.ledger.end < 0:
            return None
        try:
            return self.ledger.read(index, 1, 1)[0]
        except LookupError:
            return None

    def _compare(self, token: object, request: PushRequest) -> None:
        entry = request.entries[0]
        held = self._entry(entry.index)
        self._drop_waiting()
        if held is None or not same(held, entry):
            return self._answer(token, request, Code.INCONSISTENT_STATE)
        self.matched = max(self.matched, entry.index)
        self._note_committed(request.commit_index)
        end = entry.index if entry.index < self.ledger.committed else None
        self._when_held(entry.index, token, request, end)

    def _truncate(self, token: object, request: PushRequest) -> None:
        entry, ledger = request.entries[0], self.ledger
        held = self._entry(entry.index)
        equal = held is not None and same(held, entry)
        kept = max(ledger.committed, self.matched)  # the same request may come twice: what was answered since then is the leader's own
        last = self._entry(kept) if equal and kept > entry.index else entry
        self._drop_waiting()
        if not equal and ledger.end >= 0 and entry.index <= kept:
            return self._conflicts(token, request, entry)
        assert last is not None
        try:
            self._cut(last)
        except (Misplaced, OSError) as error:
            return self._failed(token, request, error)
        self.matched = max(self.matched, entry.index)
        self._note_committed(request.commit_index)
        self._when_held(entry.index, token, request)

    def _cut(self, last: Entry) -> None:
        """This is the last entry from now on."""
        self.ledger.truncate(last)
        self.matched = min(self.matched, last.index)
        self._unflushed = [each for each in self._unflushed if each.last <= last.index]

    def _conflicts(self, token: object, request: PushRequest, entry: Entry) -> None:
        self.conflict = (
            f"{request.leader_id} leads in term {request.term} and has another entry {entry.index} than this member, which knows that a "
            f"majority held its own: it has committed {self.ledger.committed}. Nothing is copied. Find out which ledger is right; "
            "a member that is wrong starts again with an empty directory."
        )
        self._answer(token, request, Code.INCONSISTENT_STATE)

    # APPEND

    def _append(self, token: object, request: PushRequest, now_ms: int) -> None:
        if request.first > self.matched + 1:
            return self._wait(token, request, now_ms)
        self._append_now(token, request)
        while (early := self._waiting.get(self.matched + 1)) is not None:
            self._pop(early.request.first)
            self._append_now(early.token, early.request)

    def _append_now(self, token: object, request: PushRequest) -> None:
        try:
            last = self._take(request.entries)
        except (Misplaced, OSError) as error:
            return self._failed(token, request, error)
        self._taken(token, request, last)

    def _taken(self, token: object, request: PushRequest | DensePush, last: int) -> None:
        self.matched = max(self.matched, last)
        self._note_committed(request.commit_index)
        self._when_held(last, token, request)

    def _take(self, entries: Sequence[Entry]) -> int:
        """Entries that begin at most one behind what is matched. Those that are here already stay; others in their place go."""
        if entries[0].index <= self.ledger.end:
            entries = self._new_ones(entries) or entries[-1:]
        if entries[-1].index > self.ledger.end:
            self.ledger.append(entries)
        return entries[-1].index

    def _new_ones(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Those that this ledger lacks, after the first that differs was taken away with all behind it."""
        for at, entry in enumerate(entries):
            if entry.index > self.ledger.end:
                return entries[at:]
            held = blocking(self._entry, entry.index)
            if held is None or not same(held, entry):
                self._take_away(entry)
                return entries[at + (self.ledger.end == entry.index) :]
        return ()

    def _take_away(self, entry: Entry) -> None:
        """What stands in this entry's place, and all behind it."""
        if entry.index <= max(self.ledger.committed, self.matched):
            raise Misplaced(f"entry {entry.index} differs from the leader's, and {self.ledger.committed} is committed here")
        before = blocking(self._entry, entry.index - 1)
        if before is not None and (entry.term < before.term or entry.pos < before.pos + before.size):
            raise Misplaced(f"entry {entry.index} of term {entry.term} at {entry.pos} cannot follow {before.term} at {before.pos}")
        self._cut(entry if before is None else before)

    def _wait(self, token: object, request: PushRequest, now_ms: int) -> None:
        """It came before those in front of it. Nothing was compared yet: then it cannot wait for anything but a COMPARE."""
        if self.matched < 0:
            return self._answer(token, request, Code.INCONSISTENT_STATE)
        if request.first in self._waiting:
            return self._answer(token, request, Code.REPEATED_PUSH)
        size = sum(entry.size for entry in request.entries)
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes + size > self.member.options.waiting_bytes:
            return self._answer(token, request, Code.PUSH_REQUEST_IS_FULL)
        self._waiting[request.first] = Waiting(token, request, now_ms, size)
        self._waiting_bytes += size

    def _pop(self, first: int) -> Waiting:
        each = self._waiting.pop(first)
        self._waiting_bytes -= each.size
        return each

    def _drop_waiting(self) -> None:
        """A leader that compares anew expects no answer to these any more."""
        self._waiting.clear()
        self._waiting_bytes = 0

    # Answers

    def _note_committed(self, index: int) -> None:
        index = min(index, self.matched)
        if index > self.ledger.committed:
            self.ledger.note_committed(index)

    def _failed(self, token: object, request: PushRequest | DensePush, error: Misplaced | OSError) -> None:
        if isinstance(error, Misplaced):
            self._answer(token, request, Code.INCONSISTENT_STATE)
        else:
            self.refused_until_ms = self.member.now_ms + self.member.options.cannot_write_ms
            self._answer(token, request, Code.DISK_FULL if error.errno in NO_ROOM else Code.DISK_ERROR)

    def _when_held(self, last: int, token: object, request: PushRequest | DensePush, end: int | None = None) -> None:
        """Answer when the entry counts here."""
        if last <= self.member.held:
            self._answer(token, request, Code.SUCCESS, end)
        else:
            self._unflushed.append(Unflushed(last, token, request, end))

    def _answer(self, token: object, request: PushRequest | DensePush, code: Code, end: int | None = None) -> None:
        """`end`: told instead of the ledger's own."""
        ledger = self.ledger
        is_commit = isinstance(request, PushRequest) and request.kind is PushType.COMMIT
        first, count = (request.last, request.count) if isinstance(request, DensePush) else (request.first, len(request.entries))
        self.member.reply(
            token,
            PushAnswer(
                group=request.group,
                code=code,
                term=request.term,
                index=None if is_commit else first,
                count=count,
                begin_index=ledger.begin,
                end_index=ledger.end if end is None else end,
                committed=ledger.committed,
                ours=OURS if request.ours else 0,
            ),
        )
