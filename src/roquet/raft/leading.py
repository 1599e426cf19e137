"""A leader: its heartbeats, a copy of its ledger at each follower, and what a majority holds.

For each follower one `Copy`: COMPARE until the two ledgers are known to agree somewhere, then APPEND from there on, many at a time and
some under way at once. Whatever goes wrong leads back to COMPARE; answers that belong to what was before that count for nothing.

An entry is committed when a majority holds it and it is of the leader's own term (E4); what stands before it is committed with it. So that
this does not wait for a client, the leader's first act is to append an entry of its own (`noop`). DLedger commits entries of old terms by
counting, which can take back what was acknowledged; a Java leader in the group still does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roquet.raft.codes import Code, PushType, Role
from roquet.raft.messages import Answer, DensePush, HeartBeatAnswer, HeartBeatRequest, PushAnswer, PushRequest
from roquet.store.disk import Cold
from roquet.wire.ledger_entry import Entry

if TYPE_CHECKING:
    from roquet.raft.member import Member

DISK_REFUSES = (Code.DISK_FULL, Code.DISK_ERROR)
BEATS_MAX = 4
"""Heartbeats to one member that nobody has answered yet."""


@dataclass(slots=True, eq=False)
class Copy:
    """What the leader knows of one follower."""

    member: str
    mode: PushType = PushType.COMPARE
    at: int = -1
    """The entry to compare, or to cut at; -1: the last one."""
    next: int = 0
    match: int = -1
    """It holds the leader's entries up to this one, in this term."""
    stuck: int = -1
    """Its `match` when a push was refused last: refused twice at one place, the next try waits."""
    round: int = 0
    """Answers of earlier rounds count for nothing."""
    calling: bool = False
    """A COMPARE or TRUNCATE is under way, or a read from disk."""
    frames: int = 0
    entries: int = 0
    bytes: int = 0
    """Under way."""
    retry_ms: int = 0
    pushed_ms: int = 0
    told: int = -1
    """The commit index that it was told last."""
    telling: bool = False
    heard_ms: int = 0
    """When that was sent which it answered last; later, where this leader stood still and has to give it time."""
    followed_ms: int = -1
    """The same, and nothing else: then it followed this leader."""
    beats: int = 0
    cannot_write: bool = False
    """Its disk is full, or has failed, as it says."""
    second: int = 0
    sent_bytes: int = 0
    """In this second."""

    def heard(self, sent_ms: int) -> None:
        self.heard_ms = max(self.heard_ms, sent_ms)
        self.followed_ms = max(self.followed_ms, sent_ms)


class Leading:
    """State: a Copy for each follower, and where this leader's term begins in its ledger."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.ledger = member.ledger
        self.options = member.options
        self.copies: dict[str, Copy] = {}
        self.term_start = 0
        self.since_ms = 0
        self._beat_ms = 0
        self._prefer_ms = 0
        self._could_not_write = False

    def begins(self, now_ms: int) -> None:
        """Elected. Whoever runs this member appends an entry of this term now."""
        self.term_start = self.ledger.end + 1
        self.since_ms = self._beat_ms = now_ms
        self._prefer_ms = now_ms + 1_000
        self.copies = {member: Copy(member, heard_ms=now_ms) for member in self.options.others}
        self.tick(now_ms)
        self._count()

    def ends(self, now_ms: int) -> None:
        self.copies = {}
        self.member.handing.stop()

    @property
    def ready(self) -> bool:
        """Has an entry of its own term been committed? Before that it does not know what is."""
        return self.ledger.committed >= self.term_start

    def may_append(self) -> Code:
        if self.member.role is not Role.LEADER:
            return Code.NOT_LEADER
        if self.member.handing.transferee is not None:
            return Code.LEADER_TRANSFERRING
        if not self.ready:
            return Code.LEADER_NOT_READY
        if self.ledger.end - self.ledger.committed >= self.options.pending_max:
            return Code.LEADER_PENDING_FULL
        return Code.SUCCESS

    def tick(self, now_ms: int) -> None:
        if not self.has_quorum(now_ms):
            silent = [copy.member for copy in self.copies.values() if not self._lives(copy, now_ms)]
            why = f"no majority answers: {', '.join(silent)} did not for {self.lease_ms} ms"
            return self.member.become_candidate(self.member.term, why, now_ms)
        if now_ms >= self._beat_ms:
            self._beat_ms = now_ms + self.options.heartbeat_ms
            for copy in list(self.copies.values()):
                self._beat(copy, now_ms)
        for copy in list(self.copies.values()):
            self.pump(copy, now_ms)
        if now_ms >= self._prefer_ms or (self.member.cannot_write and not self._could_not_write):
            self._prefer_ms = now_ms + 1_000
            self._prefer(now_ms)
        self._could_not_write = self.member.cannot_write

    def stored(self, now_ms: int) -> None:
        for copy in self.copies.values():
            self.pump(copy, now_ms)
        self._count()

    # Heartbeats, and the majority that must answer

    @property
    def lease_ms(self) -> int:
        """Twice as long as followers wait: one that is only slow must not unseat its leader. If they have elected another one meanwhile,
        this one cannot commit anything more."""
        return 2 * self.options.heartbeat_ms * self.options.leak

    def stood_still(self, now_ms: int) -> None:
        for copy in self.copies.values():
            copy.heard_ms = max(copy.heard_ms, now_ms - self.lease_ms + self.options.heartbeat_ms)

    def _lives(self, copy: Copy, now_ms: int) -> bool:
        return now_ms - copy.heard_ms < self.lease_ms

    def has_quorum(self, now_ms: int) -> bool:
        return 1 + sum(self._lives(copy, now_ms) for copy in self.copies.values()) >= self.options.quorum

    @property
    def led_ms(self) -> int:
        """Until then this member surely led: a majority followed it. Nobody knows of later."""
        marks = sorted((copy.followed_ms for copy in self.copies.values()), reverse=True)
        return marks[self.options.quorum - 2] if self.options.quorum > 1 else self.member.now_ms

    def _beat(self, copy: Copy, now_ms: int) -> None:
        if copy.beats >= BEATS_MAX:
            return
        copy.beats += 1
        request = HeartBeatRequest(leader_id=self.options.me, term=self.member.term, every_ms=self.options.heartbeat_ms)

        def done(answer: Answer | None, then_ms: int) -> None:
            copy.beats -= 1
            if not self._current(copy) or answer is None:
                return
            copy.cannot_write = isinstance(answer, HeartBeatAnswer) and answer.cannot_write
            if answer.code == Code.SUCCESS:
                copy.heard(now_ms)
            elif answer.code == Code.TERM_NOT_READY:
                copy.heard_ms = max(copy.heard_ms, now_ms)
                self._beat_ms = then_ms
            elif answer.code == Code.EXPIRED_TERM and answer.term > self.member.term:
                if self.member.handing.transferee == copy.member and self.has_quorum(then_ms):
                    return  # it was told to take that term; it asks for votes in a moment
                self.member.become_candidate(answer.term, f"{copy.member} has term {answer.term}", then_ms)
            elif answer.code == Code.INCONSISTENT_LEADER:
                self.member.become_candidate(self.member.term, f"{copy.member} has another leader in this term", then_ms)

        self.member.ask(copy.member, request, done)

    def _current(self, copy: Copy) -> bool:
        """Is this still the same leadership?"""
        return self.copies.get(copy.member) is copy

    # Copying

    def pump(self, copy: Copy, now_ms: int) -> None:
        """Send what can be sent to this follower now."""
        if copy.calling or self.ledger.end < 0 or now_ms < copy.retry_ms:
            return
        try:
            if copy.mode is PushType.APPEND:
                while self._push(copy, now_ms):
                    pass
                self._tell(copy, now_ms)
            else:
                self._compare(copy, now_ms)
        except Cold as cold:
            self._read(copy, cold)
        except LookupError:  # its files were dropped meanwhile
            self._back(copy, now_ms)

    def _read(self, copy: Copy, cold: Cold) -> None:
        copy.calling = True
        number = copy.round

        def then(now_ms: int) -> None:
            if self._current(copy) and copy.round == number:
                copy.calling = False
                self.pump(copy, now_ms)

        self.member.reads.append((cold, then))

    def _back(self, copy: Copy, now_ms: int, pause_ms: int = 0, at: int = -1) -> None:
        """Compare anew, from this entry on."""
        copy.round += 1
        copy.mode, copy.at = PushType.COMPARE, at
        copy.calling = copy.telling = False
        copy.frames = copy.entries = copy.bytes = 0
        copy.retry_ms = now_ms + pause_ms

    def _pause(self, copy: Copy) -> int:
        return self.options.retry_ms if copy.member in self.member.ours else self.options.java_retry_ms

    def _entry(self, index: int) -> Entry:
        return self.ledger.read(index, 1, 1)[0]

    def _compare(self, copy: Copy, now_ms: int) -> None:
        """COMPARE, or TRUNCATE where that is what must happen."""
        end = self.ledger.written_index
        if copy.mode is PushType.COMPARE and not self.ledger.begin <= copy.at <= end:
            copy.at = end
        if copy.at < 0:
            return
        entry, mode = self._entry(max(copy.at, self.ledger.begin)), copy.mode

        def done(answer: PushAnswer, then_ms: int) -> None:
            copy.calling = False
            if mode is PushType.TRUNCATE:
                if answer.code == Code.SUCCESS:
                    self._appends_from(copy, entry.index, then_ms)
                else:
                    self._back(copy, then_ms, self._pause(copy))
            else:
                self._compared(copy, entry.index, answer, then_ms)

        copy.calling = True
        self._ask(copy, PushRequest(kind=mode, entries=[entry]), done, now_ms)

    def _compared(self, copy: Copy, index: int, answer: PushAnswer, now_ms: int) -> None:
        ledger = self.ledger
        if answer.code == Code.SUCCESS:
            if answer.end_index <= index or answer.ours:  # a Roquet follower cuts by itself what differs
                return self._appends_from(copy, index, now_ms)
            copy.mode, copy.at = PushType.TRUNCATE, index
        elif answer.code != Code.INCONSISTENT_STATE:
            return self._back(copy, now_ms, self._pause(copy), copy.at)
        elif answer.end_index < ledger.begin or answer.begin_index > ledger.end or index < answer.begin_index:
            copy.mode, copy.at = PushType.TRUNCATE, ledger.begin
        else:
            lower = min(index - 1, answer.end_index)
            if answer.ours and ledger.begin <= answer.committed < lower:
                lower = answer.committed
            if lower < ledger.begin:
                copy.mode, copy.at = PushType.TRUNCATE, ledger.begin
            else:
                copy.at = lower
        self.pump(copy, now_ms)

    def _appends_from(self, copy: Copy, index: int, now_ms: int) -> None:
        """It holds this entry and all before it."""
        copy.mode, copy.next = PushType.APPEND, index + 1
        self._matches(copy, index)
        self.pump(copy, now_ms)

    def _matches(self, copy: Copy, index: int) -> None:
        if index > copy.match:
            copy.match = index
            self._count()

    def _push(self, copy: Copy, now_ms: int) -> bool:
        """One push of what it lacks. Was there something, and room for it under way?"""
        options, ledger = self.options, self.ledger
        if copy.next > ledger.written_index or copy.bytes >= options.window_bytes or self._throttled(copy, now_ms):
            return False
        dense = copy.member in self.member.ours
        request: DensePush | PushRequest
        if dense:
            if copy.frames >= options.frames_max:
                return False
            before = -1 if copy.next == 0 else ledger.term_of(copy.next - 1)
            count, data = ledger.read_raw(copy.next, options.push_bytes, options.push_entries)
            size = len(data)
            request = DensePush(first=copy.next, count=count, before_term=before, data=data)
        else:
            room = options.window_entries - copy.entries
            if room <= 0:
                return False
            entries = ledger.read(copy.next, options.java_push_bytes, min(room, options.java_push_entries))
            count, size = len(entries), sum(entry.size for entry in entries)
            request = PushRequest(entries=entries, batch=count > 1)
        last = copy.next + count - 1

        def done(answer: PushAnswer, then_ms: int) -> None:
            copy.frames -= 1
            copy.entries -= count
            copy.bytes -= size
            if answer.code == Code.SUCCESS:
                self._matches(copy, last)
                self.pump(copy, then_ms)
            elif answer.code != Code.REPEATED_PUSH:
                at_once = answer.code == Code.INCONSISTENT_STATE and copy.match > copy.stuck
                copy.stuck = copy.match
                pause_ms = self.options.cannot_write_ms if answer.code in DISK_REFUSES else self._pause(copy)
                self._back(copy, then_ms, 0 if at_once else pause_ms)
                self.pump(copy, then_ms)

        copy.next = last + 1
        copy.frames += 1
        copy.entries += count
        copy.bytes += size
        copy.sent_bytes += size
        self._ask(copy, request, done, now_ms)
        return True

    def _throttled(self, copy: Copy, now_ms: int) -> bool:
        """A follower that is far behind gets so much a second, for the others' sake."""
        options, ledger = self.options, self.ledger
        second = now_ms // 1_000
        if second != copy.second:
            copy.second, copy.sent_bytes = second, 0
        if copy.sent_bytes < options.throttle_bytes or ledger.end - copy.next <= options.lag_max:
            return False
        return ledger.end_pos - ledger.place_of(copy.next)[0] >= options.throttle_behind

    def _tell(self, copy: Copy, now_ms: int) -> None:
        """COMMIT, when no entry carries the commit index to this follower."""
        committed = self.ledger.committed
        wait_ms = self.options.commit_soon_ms if committed > copy.told else self.options.commit_ms
        if copy.frames or copy.telling or now_ms - copy.pushed_ms < wait_ms:
            return

        def done(answer: PushAnswer, then_ms: int) -> None:
            copy.telling = False
            if answer.ours and answer.code == Code.SUCCESS and answer.committed < min(committed, copy.match):
                self._back(copy, then_ms, self._pause(copy))  # it started anew, and does not know that these entries are the leader's

        copy.telling = True
        self._ask(copy, PushRequest(kind=PushType.COMMIT), done, now_ms)

    def _ask(
        self,
        copy: Copy,
        request: PushRequest | DensePush,
        done: Callable[[PushAnswer, int], None],
        now_ms: int,
    ) -> None:
        request.leader_id, request.term = self.options.me, self.member.term
        request.commit_index = copy.told = self.ledger.committed
        copy.pushed_ms = now_ms
        number = copy.round

        def answered(answer: Answer | None, then_ms: int) -> None:
            if not self._current(copy) or copy.round != number:
                return
            if not isinstance(answer, PushAnswer):  # nothing came: it may have started anew meanwhile, and know less than it did
                return self._back(copy, then_ms, self._pause(copy))
            if answer.code == Code.SUCCESS:
                copy.heard(now_ms)
            done(answer, then_ms)

        self.member.ask(copy.member, request, answered)

    # What a majority holds

    def majority_index(self) -> int:
        """The last entry that a majority holds."""
        marks = sorted((self.member.held, *(copy.match for copy in self.copies.values())), reverse=True)
        return marks[self.options.quorum - 1]

    def _count(self) -> None:
        if self.member.role is not Role.LEADER:
            return
        index = self.majority_index()
        if index >= self.term_start and index > self.ledger.committed:
            self.ledger.note_committed(index)

    # Who should lead instead

    def could_lead(self, copy: Copy, now_ms: int) -> bool:
        """It has answered this leader, not long ago, and can write."""
        return copy.match >= 0 and self._lives(copy, now_ms) and not copy.cannot_write

    def _prefer(self, now_ms: int) -> None:
        """A preferred member, or any other when this one cannot write."""
        options, handing, wanted = self.options, self.member.handing, self.options.preferred
        if self.member.cannot_write:
            wanted = tuple(options.others)
        elif options.me in wanted or not self.ready:
            return
        if not wanted or handing.transferee is not None:
            return
        able = [copy for copy in self.copies.values() if copy.member in wanted and self.could_lead(copy, now_ms)]
        best = max(able, key=lambda copy: copy.match, default=None)
        if best is not None and self.ledger.end - best.match < options.lag_max:
            handing.start(best.member, None, now_ms)
