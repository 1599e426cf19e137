"""The broker: a value that takes frames and ticks. It holds the parts, and knows which part answers which request.

    receive(peer, frames)     what arrived in one read: decide, append, answer through peer.send or park the answer.
                              Plain sends are cheap and all taken; of the rest as much as fits into one turn of the loop
    receive_all(reads)        the same for what arrived from several peers at once: it is written together
    tick(now_ms)              time passed (steady time, which no clock step moves): flushes, long polls, expiry, registration, retention
    disconnected(peer)        a connection is gone

No socket, no clock, no thread: disk, clock, background, network and randomness are given to it, so a simulation runs the
same object. One owner calls it from one thread; there is no lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from roquet.access.signed_caller import SignedCaller
from roquet.access.signed_sends import SignedSends
from roquet.access.source import AclSource
from roquet.broker import dledger
from roquet.broker.access_control import AccessControl
from roquet.broker.admin import NOT_YET, Admin
from roquet.broker.admission import Admission
from roquet.broker.changes import Changes
from roquet.broker.copying import Copying
from roquet.broker.delay import Delays
from roquet.broker.dledger import GroupMember
from roquet.broker.filters import Filters
from roquet.broker.flow import Flow
from roquet.broker.groups import Groups
from roquet.broker.handler import Handler, Portions, Ticking, send_answer
from roquet.broker.handover import Handover
from roquet.broker.joining import Joining
from roquet.broker.locks import QueueLocks
from roquet.broker.log_pieces import LogPieces
from roquet.broker.members import Members
from roquet.broker.missing import meaning_of
from roquet.broker.newcomers import Newcomers
from roquet.broker.notices import Notices
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.part import Part, Shared
from roquet.broker.portions import Work, finish
from roquet.broker.pull import Puller
from roquet.broker.queries import Queries
from roquet.broker.register import Registration
from roquet.broker.replies import Replies
from roquet.broker.resets import Resets
from roquet.broker.retry import Retries
from roquet.broker.roles import RoleReport, SlaveGuard, is_slave
from roquet.broker.runs import Take, requests_of
from roquet.broker.send import SENDS, Sender
from roquet.broker.slaves import Slaves
from roquet.broker.spreading import Spreading
from roquet.broker.stats import Stats
from roquet.broker.timers import Timers
from roquet.broker.topics import Topics
from roquet.broker.transactions import Transactions
from roquet.broker.writer import Writer
from roquet.errors import Broken, Refused, StoreUnavailable
from roquet.ports import FOREVER, TURN_MS, Background, Caller, Clock, Dialer, Guard, Keep, Peer, Read, Receiver, Rest
from roquet.settings import BrokerSettings, Value
from roquet.store.disk import Cold, Disk, is_shortage
from roquet.store.recovery import ShowProgress
from roquet.store.store import Store
from roquet.store.wall import step_text
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import RESPONSE, Command, Head, command_of, decode
from roquet.wire.frame import Frame
from roquet.wire.signing import Credentials

if TYPE_CHECKING:
    from random import Random

log = logging.getLogger("roquet.broker")

P = TypeVar("P", bound=Part)

WITH_REGION = SENDS | {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
"""Whose answers carry the region and the trace switch, refusals too."""
ALONE = frozenset((RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.CLEAN_UNUSED_TOPIC))
"""Requests before which everything is written: what was sent to a topic in the same read is deleted with it."""
PULLS = (b'{"code":11,', b"\0\x0b")
"""How the headers of pulls begin, in either form, from clients that write the code first."""
FETCHES_MAX = 4_096
"""Reads from disk under way at once; beyond that a request is told that the broker is busy."""
AWAY_MAX = 64
"""Requests in portions that wait for the disk, or for their large answers to be written, at once."""
ATTEMPTS_MAX = 256
"""Times a request is tried again after reading from disk; a search by time in a cold queue needs some fifty."""


@dataclass(slots=True, eq=False)
class Job:
    """A request that is answered in portions."""

    peer: Peer
    command: Command
    portions: Portions
    attempt: int = 0


class Broker(Receiver):
    """Parts are made here once, with exactly what each needs; none of them knows the broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        disk: Disk,
        clock: Clock,
        background: Background,
        caller: Caller,
        random: Random,
        memory_bytes: int = 8 << 30,
        reading: Background | None = None,
        keep: Keep | None = None,
        more: Sequence[Callable[[Broker], Part]] = (),
        dialer: Dialer | None = None,
        accounts: AclSource | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`reading`: where reads from disk wait, so that slow ones do not hold up an fsync; None: with everything else.

        `keep`: where settings go that change at run time; None: they hold until the restart. `more`: makes parts beyond the usual ones.
        `dialer`: opens a slave's connection to its master; None: nothing is copied. `accounts`: needed with aclEnable.
        `credentials`: what is asked of other servers is signed with them; None: with the first admin of `accounts`, if there is one."""
        self.settings = settings
        self.clock = clock
        self.reading = reading or background
        self.notices = Notices(clock)
        self.parts: list[Part] = []
        self._fetches = 0
        self._jobs: dict[Peer, Job] = {}  # requests that need more turns; the frames behind them wait
        self._warm: deque[Job] = deque()  # of those that waited for the disk; `tick` goes on with them
        self._away = 0  # those that wait for the disk now
        self._until_ms = FOREVER
        self.store = Store(disk, settings, clock, background, dledger.place_of(settings))
        self.newcomers = Newcomers(settings, clock)
        # The parts, each behind those that it uses: so they are opened, ticked, asked and saved. Timers stand before delays, since a
        # message that asks for both is a timed one.
        add = self._add
        shared = Shared(settings, self.store, clock, disk, background, self.notices, self.newcomers, random, self._fetch, memory_bytes)
        signing = SignedCaller(caller)
        self.access = add(AccessControl(shared, accounts, signing, credentials))
        self.stats = add(Stats(clock, settings.broker_cluster_name, self.store))
        self.topics = add(Topics(shared))
        self.writer = Writer(self.store, self.topics)
        self.offsets = add(ConsumerOffsets(shared))
        self.groups = add(Groups(shared, self.offsets))
        self.members = add(Members(shared, self.groups, self.topics))
        self.filters = add(Filters(shared, self.members))
        self.locks = add(QueueLocks(settings, clock))
        self.queries = add(Queries(shared))
        self.flow = add(Flow(shared))
        self.sender = add(Sender(shared, self.topics, self.writer, self.flow, self.stats.put_times))
        self.timers = add(Timers(shared, self.topics, self.writer, self.sender))
        self.delays = add(Delays(shared, self.writer, self.sender))
        self.handover = add(Handover(shared, self.delays))
        self.retries = add(Retries(shared, self.topics, self.groups, self.writer, self.sender, self.delays, self.stats))
        self.transactions = add(Transactions(shared, self.topics, self.writer, self.sender, self.members, self.offsets))
        self.replies = add(Replies(shared, self.sender, self.members))
        self.resets = add(Resets(shared, self.topics, self.offsets, self.members))
        self.puller = add(Puller(shared, self.topics, self.groups, self.members, self.filters, self.offsets, self.stats))
        self.registration = add(Registration(shared, self.topics, signing))
        self.joining = add(Joining(shared, self.topics, self.groups, self.access, self.registration, signing))
        self.spreading = add(Spreading(shared, self.topics, self.registration, signing))
        self.role_report = add(RoleReport(shared))
        self.slaves = add(Slaves(shared))
        self.log_pieces = add(LogPieces(shared))
        if self.store.ledger is not None:
            dialer = None  # the log comes another way
        self.copying = add(Copying(shared, signing, dialer, self.registration, self.topics, self.groups, self.offsets, self.delays))
        self.copying.signs = lambda: signing.credentials is not None
        self.changes = add(Changes(shared, self.topics, self.groups, self.writer, self.copying))
        self.admin = add(Admin(shared, self.topics, self.groups, self.offsets, self.members, self.stats, self._changed, keep, self.parts))
        self.admin.filter_text = self.filters.text_of
        self.group = None
        if self.store.ledger is not None:
            self.group = add(
                GroupMember(shared, caller, signing, self._guards, self.become_slave, self.prepare_to_lead, self._become_leader)
            )
        for part in more:
            add(part(self))
        guard = self.access.guard
        self.admission = Admission(self.store, self.flow, guard)
        self._signed = None if guard is None else SignedSends(guard)
        if guard is not None:
            for user in (self.queries, self.retries, self.transactions, self.timers):
                user.check_record = guard.check_record
            self.transactions.may_be_told = guard.may_be_told
            self.slaves.lets_copy = guard.lets_copy
        self._slave_guard = SlaveGuard(self.sender)
        self.store.may_drop = self._may_drop
        self.store.derived.before_vouching = self.copying.when_topics_are_saved
        self.store.mender.on_hole = self._tell_of_hole
        self.topics.on_delete = self._topic_deleted
        self.table = self._table()
        self.runs: dict[int, Take] = {
            RequestCode.END_TRANSACTION: self.transactions.take_ends,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.retries.in_runs.take,
        }
        self._ticking: deque[Ticking] = deque((self.store, *self.parts))

    def _guards(self) -> list[Guard]:
        return self.admission.guards

    def _add(self, part: P) -> P:
        self.parts.append(part)
        return part

    def _table(self) -> dict[int, Handler]:
        table: dict[int, Handler] = {}
        for part in self.parts:
            handlers = part.handlers()
            twice = table.keys() & handlers.keys()
            assert not twice, f"answered by two parts: {twice}"
            table.update(handlers)
        return table

    # Life

    def open(self, progress: ShowProgress = lambda what, done, total: None) -> None:
        """Recover the store and load the tables. May take long; nothing is answered before.

        Raises Damaged when this store must not be opened. Nothing is written before everything that can refuse has been looked at.
        """
        for part in self._working():
            part.load()
        self.store.open(progress)
        try:
            if is_slave(self.settings):
                self._follow()
            for part in self._working():
                part.open()
        except BaseException:
            self.store.abandon()
            raise
        self._tell_of_damage()

    def _working(self) -> list[Part]:
        """The parts that work in the present role."""
        return [part for part in self.parts if not (part.master_only and is_slave(self.settings))]

    def _follow(self) -> None:
        self.store.applier.follow()
        self.admission.guards.insert(0, self._slave_guard)

    def become_slave(self, broker_id: int) -> None:
        """The log grows by another node's bytes from now on. What was put here and is not safe is forgotten by queues and index."""
        if not is_slave(self.settings):
            self.settings.broker_role, self.settings.broker_id = "SLAVE", broker_id
            self._follow()
            for part in self.parts:
                part.became_slave()
        self.settings.broker_id = broker_id
        self.registration.now()

    def prepare_to_lead(self) -> Work[None]:
        """What a slave does before it becomes a master: parts take their progress from files and queues, as at a start. In portions."""
        self.store.crashed = True  # whoever wrote this log before may have stopped anywhere
        with self.copying.ignoring_masters():
            for part in self.parts:
                yield from part.prepare_to_lead()

    def become_master(self, role: str = "SYNC_MASTER", *, prepared: bool = False) -> None:
        """Take messages from now on. Raises ValueError when not all of the log is applied. `prepared`: `prepare_to_lead` is done, and
        nothing has come since; else it is done here, and may wait for the disk."""
        if is_slave(self.settings):
            self.store.applier.lead()
            if not prepared:
                finish(self.prepare_to_lead())
            self.settings.broker_role, self.settings.broker_id = role, 0
            self.admission.guards.remove(self._slave_guard)
            self.store.begin(self.clock.now_ms())
            for part in self.parts:
                part.became_master()
        self.registration.now()

    def _become_leader(self) -> None:
        self.become_master(prepared=True)

    def _tell_of_damage(self) -> None:
        for name in self.store.missing:
            path = f"{self.settings.store_path_root_dir}/config/{name}"
            self.notices.warn(name, f"{path} is missing, and it was there when this store was last written: {meaning_of(name)}")
        if self.store.holes:
            first, size = self.store.holes[0].offset, sum(hole.size for hole in self.store.holes)
            self.notices.warn(
                "damaged log",
                f"the log has {len(self.store.holes)} damaged places, {size} bytes, the first at offset {first}. They are stepped over and "
                "kept, and the broker's own log names each. Look at the disk, and bring back from elsewhere what must not be missing.",
            )

    def _tell_of_hole(self, text: str) -> None:
        count = self.store.mender.unreadable
        self.notices.warn("unreadable messages", f"{count} messages cannot be read since the start. The last: {text}")

    def listening(self, address: str, store_host: bytes, ha_address: str = "") -> None:
        """The address that clients use is known: message ids and registrations carry it."""
        self.store.staging.store_host = store_host
        for part in self.parts:
            part.listening(address, ha_address or address)

    def close(self) -> None:
        """A clean stop: everything on disk. Connections are the shell's to close."""
        if self.store.is_open:
            try:
                self.copying.finish()  # first: topics learn of queues from it, and are saved
            except Exception:  # a mistake of ours must not keep the tables from being saved
                log.exception("! what came last could not be applied before the stop; the next start does it")
            for part in self._working():
                try:
                    part.save_now()
                except OSError as error:  # a full disk must not keep the others from being saved, nor the store from closing
                    log.error("a table could not be saved: %s; its last generation is used at the next start", error)
            self.store.close()

    @property
    def saving(self) -> bool:
        """Something is being written in the background; a clean stop waits for that."""
        return self.store.busy or any(part.busy for part in self.parts)

    def _may_drop(self, end: int) -> bool:
        """Every part is asked, so that each begins to move what it needs."""
        answers = [part.may_drop(end) for part in self._working()]
        return all(answers)

    def _topic_deleted(self, topic: str) -> None:
        for part in self.parts:
            part.topic_deleted(topic)

    def _changed(self, values: Mapping[str, Value]) -> None:
        """Settings were changed at run time: what was made from them is made again."""
        names = values.keys()
        self.store.settings_changed(names)
        for part in self.parts:
            part.settings_changed(names)

    # Work

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int = FOREVER) -> list[Frame] | None:
        """What was not taken because the turn's time (`until_ms`, steady) was over: to be handed in again in a later turn,
        before anything else of this peer, and even when it is empty. None: all is done."""
        read, at = self._take_plain_reads([(peer, frames)])
        rest = None if read else self._take(peer, frames[at:] if at else frames, until_ms)
        self.sender.write()
        return rest

    def has_begun(self, peer: Peer) -> bool:
        return peer in self._jobs

    def receive_all(self, reads: list[Read], until_ms: int = FOREVER) -> list[list[Frame] | None]:
        """`receive` of each, with one write for all of them."""
        rests: list[list[Frame] | None] = []
        while reads:
            done, at = self._take_plain_reads(reads)
            rests += [None] * done
            for peer, frames in reads[done : done + 1]:
                rests.append(self._take(peer, frames[at:] if at else frames, until_ms))
            reads = reads[done + 1 :]
        self.sender.write()
        return rests

    def _take_plain_reads(self, reads: list[Read]) -> tuple[int, int]:
        """Stage the plain sends that come first, of all these peers together: in which read the first other frame stands, and where."""
        if self.sender.plain.native is None:
            return 0, 0  # one read after another costs no more
        admission, frames = self.admission, reads[0][1]
        if admission.access is not None or not frames or frames[0][1].startswith(PULLS) or not admission.lets_plain_in():
            return 0, 0
        if self._jobs and any(peer in self._jobs for peer, _ in reads):
            return 0, 0
        self.store.begin(self.clock.now_ms())
        mark = self.store.log.end
        try:
            return self.sender.take_reads(reads)
        except Exception:  # a mistake of ours
            log.exception("! sends of %d peers, taken together, failed: they are looked at one by one", len(reads))
            self.store.undo(mark)
            return 0, 0

    def _take(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
        """`receive`, but that what was staged is not written yet."""
        sender, steady_ms, may_be_pull = self.sender, self.clock.steady_ms, True
        watched = self.admission.watches(peer)  # then all fields of each request must be seen
        gone = peer.closed  # then only sends and oneway requests are done: nobody hears an answer
        if not (watched or gone or (self._jobs and peer in self._jobs)):
            # Pulls that come first and are like those before them: they cost nothing of what a read with sends does.
            may_be_pull = bool(frames) and frames[0][1].startswith(PULLS)
            if may_be_pull:
                taken, may_be_pull = self.puller.take(peer, frames, until_ms)
                frames = frames[taken:] if taken else frames
            if not frames:
                return None
        store = self.store
        store.begin(self.clock.now_ms())
        self._until_ms = until_ms
        now_ms = store.steady_ms
        if self._jobs and (job := self._jobs.get(peer)) is not None:
            if not self._go_on(job):
                return frames
            now_ms = steady_ms()
        rest: list[Frame] | None = None
        # Looked at before a request is taken apart: one that takes a whole turn to read gets its turn.
        over = now_ms >= until_ms or peer.unread
        plain = sender.plain if self.admission.lets_plain_in() else None
        answers = sender.begin(peer)
        signed = self._signed if watched else None
        read_pull = no_pull if watched else self.puller.requests.read
        at, count = 0, len(frames)
        command: Command | None
        try:
            while at < count:
                at += 1  # whatever goes wrong from here on concerns this one
                command = read_pull(frames[at - 1]) if may_be_pull else None
                may_be_pull = True  # of the next one nothing is known
                if command is None:
                    head: Head | None = None
                    if plain is not None and signed is None:
                        at, head = plain.take(peer, frames, at - 1)
                        if at == count:
                            break
                        if head is not None and not over and (taken := self._take_run(peer, frames, at, head)):
                            at += taken
                            over = steady_ms() >= until_ms or peer.unread
                            continue
                        at += 1
                    elif plain is not None and signed is not None and (run := signed.run(peer, frames, at - 1)):
                        done = self._take_signed(peer, frames, at - 1, run)
                        if done == run:
                            at += done - 1
                            continue
                        at += done
                    frame = frames[at - 1]
                    try:
                        command = decode(frame) if head is None else command_of(head, frame[2])
                    except (Broken, ValueError, KeyError, TypeError, AttributeError) as error:
                        peer.close(f"bad header: {error!r}")
                        break
                if over:
                    rest = frames[at - 1 :]
                    break
                if gone and not command.is_oneway:
                    over = steady_ms() >= until_ms
                    continue
                if command.code in ALONE:
                    sender.finish(answers)
                    answers = sender.begin(peer)
                self.handle(peer, command)
                over = steady_ms() >= until_ms or peer.unread
                if peer.closed and not gone:
                    break  # it does not read: what else it asked for is of no use to anybody
                if self._jobs and peer in self._jobs:
                    rest = frames[at:]
                    break
        except Exception as error:  # a mistake of ours
            log.exception("! a request from %s failed: what came with it in one read is not stored", peer.address)
            sender.abandon(answers, f"{type(error).__name__}: {error}")
            at, sender.plain.failed_at = max(at, sender.plain.failed_at + 1), -1
            command = decode(frames[at - 1])
            send_answer(peer, command, command.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))
            return self._take(peer, frames[at:], until_ms)
        sender.end(answers)
        return rest

    def _take_run(self, peer: Peer, frames: list[Frame], at: int, head: Head) -> int:
        """Requests of one kind from here on, the first of which has this header, that a part takes together: how many."""
        code = head.get("code") if isinstance(head, dict) else head[0]
        take = self.runs.get(code) if type(code) is int else None
        if take is None:
            return 0
        assert type(code) is int
        self.newcomers.peer = peer
        mark = self.store.log.end
        try:
            return take(requests_of(code, frames, at))
        except (Cold, Refused, StoreUnavailable):
            pass
        except Exception:  # a mistake of ours
            log.exception("! requests %d from %s, taken together, failed: they are looked at one by one", code, peer.address)
        self.store.undo(mark)
        return 0

    def _take_signed(self, peer: Peer, frames: list[Frame], at: int, run: int) -> int:
        """Of these so many from there on are signed sends. Returns how many of them were plain, and are taken."""
        plain = self.sender.plain
        try:
            return plain.take(peer, frames[at : at + run], 0)[0]
        except BaseException:
            plain.failed_at += at
            raise

    def handle(self, peer: Peer, command: Command, attempt: int = 0) -> None:
        """One request that is not a plain send; answered now or later. Whatever goes wrong becomes an answer."""
        if command.flag & RESPONSE:
            if not self.members.answer(peer, command):
                self.admission.note_unasked(peer)
            return
        self.newcomers.peer = peer
        mark = self.store.log.end
        try:
            if not attempt:
                self.admission.check(peer, command)
            handler = self.table.get(command.code)
            result = self._unknown(command) if handler is None else handler(peer, command)
            if result is not None and not isinstance(result, Command):
                self._go_on(Job(peer, command, result))
                return
            reply = result
        except Cold as cold:
            self.store.undo(mark)
            try:
                check_attempt(attempt)
                self._fetch(cold, lambda: self._again(peer, command, attempt + 1))
                return
            except Refused as refused:
                reply = command.reply(refused.code, refused.remark)
        except Exception as error:
            self.store.undo(mark)
            reply = self._failed(peer, command, error)
        send_answer(peer, command, reply)

    def _failed(self, peer: Peer, command: Command, error: Exception) -> Command:
        if isinstance(error, StoreUnavailable):
            error = self.sender.not_stored(str(error))
        if isinstance(error, Refused):
            if command.code not in WITH_REGION:
                return command.reply(error.code, error.remark)
            self.sender.note_refused(error.code)
            return command.reply(error.code, error.remark, self.sender.region_fields())
        log.error("! request %d from %s failed", command.code, peer.address, exc_info=error)
        return command.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _go_on(self, job: Job) -> bool:
        """Do portions of it while the turn lasts. False: it needs another turn."""
        peer, command = job.peer, job.command
        self._jobs.pop(peer, None)
        try:
            while not peer.closed:
                cold = next(job.portions)
                if cold is not None:
                    self._send_away(job, cold)
                    return True  # what is behind it need not wait for the disk
                if self.clock.steady_ms() >= self._until_ms:
                    self._jobs[peer] = job
                    return False
        except StopIteration as stop:
            send_answer(peer, command, stop.value)
        except Cold as cold:
            return self._begin_anew(job, cold)
        except Exception as error:
            send_answer(peer, command, self._failed(peer, command, error))
        return True

    def _send_away(self, job: Job, cold: Cold) -> None:
        """It goes on when this was fetched. What such work holds meanwhile may be large: only so much of it waits at once."""
        if self._away >= AWAY_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._away} large answers are being made, limit is {AWAY_MAX}: try again")

        def back() -> None:
            self._away -= 1
            self._warm.append(job)

        self._away += 1
        try:
            self._fetch(cold, back)
        except Refused:
            self._away -= 1
            raise

    def _begin_anew(self, job: Job, cold: Cold) -> bool:
        """A portion met something that is not in memory and cannot go on from there."""
        job.attempt += 1
        try:
            check_attempt(job.attempt)
            again = self.table[job.command.code](job.peer, job.command)
            assert not isinstance(again, Command | None), "work in portions is always that"
            job.portions = again
            self._send_away(job, cold)
        except Refused as refused:
            send_answer(job.peer, job.command, job.command.reply(refused.code, refused.remark))
        return True

    def _go_on_warm(self) -> None:
        """With the portions whose reads came from the disk meanwhile."""
        self._until_ms = self.clock.steady_ms() + TURN_MS
        for _ in range(len(self._warm)):
            job = self._warm.popleft()
            busy = self._jobs.get(job.peer)  # the peer asked for more since
            if not self._go_on(job):
                del self._jobs[job.peer]
                self._warm.append(job)
            if busy is not None:
                self._jobs[job.peer] = busy
            if self.clock.steady_ms() >= self._until_ms:
                break

    def _again(self, peer: Peer, command: Command, attempt: int) -> None:
        if not peer.closed:
            self.store.begin(self.clock.now_ms())
            self._until_ms = FOREVER
            if self.sender.serves(peer):  # the disk was so fast that its batch is still under way
                self.handle(peer, command, attempt)
            else:
                answers = self.sender.begin(peer)
                self.handle(peer, command, attempt)
                self.sender.finish(answers)

    def _unknown(self, command: Command) -> Command:
        later = f": {NOT_YET[command.code]}" if command.code in NOT_YET else ""
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported{later}")

    def _fetch(self, cold: Cold, then: Callable[[], None]) -> None:
        """Read from disk elsewhere, then go on. The loop never waits for the disk."""
        if self._fetches >= FETCHES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._fetches} reads from disk are under way, limit is {FETCHES_MAX}: try again")
        self._fetches += 1

        def done(result: object) -> None:
            self._fetches -= 1
            if isinstance(result, Exception):
                log.error("reading from disk failed: %s", result)
            then()

        self.reading.run(cold.fetch, done)

    def disconnected(self, peer: Peer) -> None:
        self._jobs.pop(peer, None)
        for part in self.parts:
            part.disconnected(peer)

    def tick(self, now_ms: int) -> Rest | None:
        """Returns what was left when the turn's time was over. Where nobody goes on with it, it begins the next tick."""
        stepped_ms = self.store.wall.look()
        if stepped_ms:
            log.warning(
                "the clock of this machine was %s. Intervals, deadlines and locks do not follow it. Timed and delayed messages do: what "
                "is due by it is delivered, what is not due any more waits. New messages are stored with its time.",
                step_text(stepped_ms, self.clock.now_ms()),
            )
        return self._tick_parts(now_ms, len(self._ticking))

    def _tick_parts(self, now_ms: int, count: int) -> Rest | None:
        """What a part stages in its tick is committed at its end, or undone with it: it is nobody else's."""
        until_ms = self.clock.steady_ms() + TURN_MS
        self.store.begin(self.clock.now_ms())
        self.newcomers.peer = None
        if self._warm:
            self._go_on_warm()
        for left in reversed(range(count)):
            part = self._ticking[0]
            self._ticking.rotate(-1)
            if self.store.applier.following and isinstance(part, Part) and part.master_only:
                continue
            self._tick_part(part, now_ms)
            if left and self.clock.steady_ms() >= until_ms:
                break
        else:
            left = 0
        return (lambda: self._tick_parts(self.clock.steady_ms(), left)) if left or self._warm else self._rest_of_due()

    def _tick_part(self, part: Ticking, now_ms: int) -> None:
        try:
            part.tick(now_ms)
            self.store.commit()
        except StoreUnavailable as error:
            self.store.undo()
            log.warning("%s could not store what was due, it is tried again: %s", type(part).__name__, error)
        except Exception as error:
            self.store.undo()
            if is_shortage(error):
                self.store.trouble.short_of_files(error)  # it is tried again with the next tick
            else:
                log.exception("! tick of %s failed", type(part).__name__)  # the others go on

    def _rest_of_due(self) -> Rest | None:
        """For parts that have more to do than one tick may: what was read has its turn in between."""
        return self._tick_due if self._with_more() else None

    def _tick_due(self) -> Rest | None:
        self.store.begin(self.clock.now_ms())
        self.newcomers.peer = None
        for part in self._with_more():
            self._tick_part(part, self.clock.steady_ms())
        return self._rest_of_due()

    def _with_more(self) -> list[Part]:
        following = self.store.applier.following
        return [part for part in self.parts if part.more_due and not (following and part.master_only)]

    def __repr__(self) -> str:
        return f"<Broker {self.settings.broker_name} {self.registration.address or 'not listening'} {self.store!r}>"


def no_pull(frame: Frame) -> None:
    return None


def check_attempt(attempt: int) -> None:
    if attempt >= ATTEMPTS_MAX:
        raise Refused(ResponseCode.SYSTEM_BUSY, "the data could not be read from disk in time, try again")
