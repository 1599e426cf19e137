"""Transactional messages: prepared (half) first, then committed or rolled back by their producer, who is asked when it is silent.

Everything is in the log, in upstream's topics and forms, so either broker can open the other's directory:

    half topic    the prepared messages; REAL_TOPIC and REAL_QID say where each belongs
    op topic      one record per half message that is done with; its body is that message's queue offset as decimal text
    the offsets   of group CID_RMQ_SYS_TRANS in both: every half message before it is done with, every op record before it
                  names only such messages

A half message is pending as long as no op record names it; this and nothing else is the state. In memory it is a byte
for every half message since the oldest pending one and eight for every op record since then (`_done`, `_ops`), plus one
entry for each pending message whose producer was asked. No message is kept. The oldest pending one does not stay behind
for long: when its producer is asked it is put again at the end, with the count of the checks, and the old one is done.

What a broker killed at any moment leaves, and why it is enough (under SYNC_FLUSH "written" reads "flushed"):

    half message not written          the send was not acknowledged; the producer did not begin its transaction
    written, no end came              pending; found again at the start, and its producer is asked
    end came, nothing written         as before: the end is oneway, asking the producer replaces it
    committed message written,        these two are staged together, the message first, so it is the last record of the log, or a
    its op record not                 power loss left a hole behind it: the start looks at both places and writes what is missing
    both written                      done; op records count only when they are safe, and the message before them is then too
    offsets not yet saved             the op records since the saved offset are read again
    asked: new copy written,          both are pending and name the same original (TRAN_PREPARED_QUEUE_OFFSET): the newest counts
    the old one's op record not
    given up: written to the topic    pending again, and given up again: it stands twice in TRANS_CHECK_MAX_TIME_TOPIC
    of those, its op record not

So nothing acknowledged is lost, what was rolled back is never shown, and a message is committed once. Apache's broker
commits as often as it is told, and keeps no record of putting a message again: what it left half done in a directory can be
asked about, and so committed, a second time. An end that comes late, for a message that was put again meanwhile, ends the
newest copy. A second end of the same message changes nothing; the same holds for an end that comes after a message was
given up: code 323 puts it back for asking.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from roquet.broker import runs
from roquet.broker.handler import answers
from roquet.broker.members import Members
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.part import ColdReads, Part, Shared
from roquet.broker.portions import Work, finish, unhurried
from roquet.broker.send import Sender
from roquet.broker.stored import Stored, put_again, take_apart, take_from_log
from roquet.broker.topics import Topics
from roquet.broker.writer import Draft, StoredAt, Writer
from roquet.errors import Refused, StoreUnavailable
from roquet.message import Property
from roquet.ports import FOREVER, Peer
from roquet.store.disk import Cold, blocking
from roquet.store.fanout import tag_hash
from roquet.store.log import MovedOut
from roquet.store.queue import ConsumeQueue
from roquet.store.recovery import first_at_or_after
from roquet.store.scan import records_between
from roquet.store.staging import Row
from roquet.store.window import LogWindow
from roquet.wire.calls import transactions as calls
from roquet.wire.codes import ResponseCode
from roquet.wire.command import ONEWAY, Command
from roquet.wire.ids import offset_message_id, parse_offset_message_id
from roquet.wire.layout import FRONTS, HOST, HOSTS_V6, QUEUE_ID_MAX
from roquet.wire.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GROUP,
    check_topic,
)  # fmt: skip
from roquet.wire.record import BadRecord, Record, decode_properties, join_properties

log = logging.getLogger("roquet.broker")

UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
"""Values of commitOrRollback; the last two are also the bits of a record's sys flag."""
KINDS = 0xC
KINDS_AS_TEXT = (str(COMMIT), str(ROLLBACK))
BOOLEANS = (None, "false", "true")
DECIDING = (Property.PRODUCER_GROUP, Property.TRANSACTION_PREPARED_QUEUE_OFFSET, Property.REAL_TOPIC, Property.REAL_QUEUE_ID)
"""What is asked of a half message that ends."""
NAMES = "\x02".join(DECIDING).encode()
TIMED_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Their queues' entries carry a time."""

LOOKS_MAX = 1_000
"""Op records taken in, in one tick, of those that this broker wrote itself."""
DEAR = 8
"""To read a record, to put a half message again or to ask a producer costs as much as so many of them: some hundred microseconds."""
STAGED_MAX = 4 * 1024 * 1024
"""Bytes of half messages put again in one tick."""
NO_DELAY = ("", "0")

OP_PROPERTIES = f"{Property.WAIT}\x01true\x02{Property.TAGS}\x01d".encode()
OP_TAG = tag_hash("d")
"""Of every op record."""

DELAYS = (Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS, Property.START_DELIVER_TIME)


@dataclass(slots=True)
class Ending:
    """An op record that was staged and is not safe yet, and what follows when it is."""

    half: int
    copy: StoredAt | None = None
    """Where the half message was put again."""
    original: int = -1
    check: Record | None = None
    """The message to ask about, as it was before."""


class Half(NamedTuple):
    """A half message."""

    queue_offset: int
    properties: dict[str, str]
    message: Stored | Record


class Transactions(Part):
    """State: `_base` is the oldest pending half message, `_done[n]` whether message `_base + n` is done with; `_ops[n]` is the
    largest half offset that op record `_op_base + n` names. `_copies` leads from an original to its newest copy while that
    is pending, `_originals` back. `_written` are the op records that are not safe yet, by their offset. A round is one look at all
    that is pending: from `_round_at` up to `_round_end`, where the half messages ended at its start (their store times would not tell:
    the clock may be set back). What was put since, the copies it makes among them, is left for the next."""

    master_only = True

    def __init__(self, shared: Shared, topics: Topics, writer: Writer, sender: Sender, members: Members, offsets: ConsumerOffsets) -> None:
        super().__init__(shared)
        self.topics = topics
        self.writer = writer
        self.sender = sender
        self.members = members
        self.offsets = offsets
        self.may_be_told: Callable[[Peer, str], bool] = lambda peer, topic: True
        """(a producer, a topic) -> whether access control lets it see what is sent there. Anybody may say that it is of a group."""
        self.given_up = 0
        self._turn = 0
        self._reads = ColdReads(shared.fetch)
        self._window = LogWindow(self.store.log)
        self.forget()
        sender.diversions.append(self.divert)
        sender.plain.diversions[Property.TRANSACTION_PREPARED] = self.divert_plain

    # Opening

    def forget(self) -> None:
        self._base = self._op_base = 0
        self._done = bytearray()
        self._ops = array("q")
        self._copies: dict[int, int] = {}
        self._originals: dict[int, int] = {}
        self._written: dict[int, Ending] = {}
        self._ending: dict[int, int] = {}
        self._round_at = 0
        self._round_end: int | None = None
        self._rested_ms = self.clock.steady_ms()
        self._moved = MovedOut(self.store.log)
        self._cut_off: set[int] = set()  # half messages that were committed, and whose op records are missing

    def open(self) -> None:
        finish(self._find_pending())
        self._complete()

    def prepare_to_lead(self) -> Work[None]:
        self.forget()
        yield from self._find_pending()

    def became_master(self) -> None:
        self._complete()

    def _find_pending(self) -> Work[None]:
        """Reads the op records since the saved offset and every pending message."""
        self._rested_ms = self.clock.steady_ms()
        halves, ops = self.store.find_queue(HALF_TOPIC, 0), self.store.find_queue(OP_HALF_TOPIC, 0)
        if halves is None:
            return
        self._base = max(self.offsets.find(TRANSACTION_GROUP, HALF_TOPIC, 0), halves.first)
        early: dict[int, list[Record]] = {}  # what op records name below `_base`, and which do
        if ops is not None:
            self._op_base = max(self.offsets.find(TRANSACTION_GROUP, OP_HALF_TOPIC, 0), ops.first)
            while self._op_base + len(self._ops) < ops.visible:
                op = yield from unhurried(self._read, ops, self._op_base + len(self._ops))
                yield None
                named = self._named(op)
                for half in named:
                    if op is not None and half < self._base:
                        early.setdefault(half, []).append(op)
                self._take(named)
        at = self._next_pending(self._base)
        while at < halves.visible:
            record = yield from unhurried(self._read, halves, at)
            yield None
            if record is None:
                self._mark(at)
            else:
                original = original_of(decode_properties(record.properties), record.queue_offset)
                if original != at:
                    # Upstream names the original in copies that are not asked about yet, and its end then names that one.
                    self._mark(self._copies.get(original, original))
                    self._copied(original, at)
                    if not all(self._put_again_at(halves, original, op) for op in early.get(original, ())):
                        self._mark(at)
            at = self._next_pending(at + 1)
        if self.store.crashed:
            yield from self._find_cut_off(halves)

    def _complete(self) -> None:
        """Write what a crash left out, when this broker may write."""
        halves = self.store.find_queue(HALF_TOPIC, 0)
        if halves is None:
            return
        self._finish_commits()
        self._advance(halves)
        if self.pending:
            log.info("%d prepared messages wait for the end of their transaction", self.pending)

    def _named(self, record: Record | None) -> list[int]:
        """The half messages that this op record says are done with. None where a power loss may have taken what it follows from, the copy
        or the committed message before it. Where those are found they count by themselves; else the producer is asked again."""
        if record is not None and any(start < record.physical_offset < end for start, end in self.store.timeline.overtaken):
            return []
        return op_body(record)

    def _put_again_at(self, halves: ConsumeQueue, original: int, op: Record) -> bool:
        """Whether this op record names the original because it was put again: then a copy of it stands right before, of the same moment.
        Any other op record ended the transaction; Apache's broker writes none when it puts a message again."""
        at = first_at_or_after(halves, op.physical_offset) - 1
        copy = blocking(self._read, halves, at) if at >= halves.first else None
        if copy is None or copy.queue_offset == original or original_of(decode_properties(copy.properties), at) != original:
            return False
        if not copy.store_timestamp == op.store_timestamp == op.born_timestamp:
            return False
        begin = op.physical_offset - len(self.store.log.lead)
        return begin == copy.physical_offset + copy.size or begin in self.store.log.segments.bases  # the copy filled its file

    def _find_cut_off(self, halves: ConsumeQueue) -> Work[None]:
        """A crash may leave a committed message without its op record, or with one that is doubted (`_named`): it is written, so that
        the message is not committed again. It is the log's last record, or stands where the log has holes."""
        oldest = self._next_pending(self._base)
        entry = (yield from unhurried(halves.entry, oldest)) if oldest < halves.visible else None
        if entry is None:
            return
        places = [(yield from self._last_record())]
        for start, stop in self.store.timeline.overtaken:
            if stop > entry[0]:
                found = records_between(self.store.log.segments, max(start, entry[0]), stop)
                places += [one.offset for one in found if one.sys_flag & KINDS == COMMIT]
        self._cut_off = {half for half in map(self._half_of, places) if half is not None and not self._is_done(half)}

    def _finish_commits(self) -> None:
        ended, self._cut_off = self._cut_off, set()
        if ended:
            log.info("the commits of %d half messages were cut off by the crash after their messages were written: completed", len(ended))
            self.store.begin(self.clock.now_ms())
            try:
                for half in sorted(ended):
                    self._write_op(Ending(half))
                self.store.commit()
            except StoreUnavailable as error:  # a full disk must not keep it from starting; they are done with all the same
                self.store.undo()
                log.warning("their op records could not be written: %s", error)
                for half in ended:
                    self._mark(half)

    def _last_record(self) -> Work[int]:
        last = -1
        for queue in list(self.store.queues.values()):
            entry = (yield from unhurried(queue.entry, queue.next - 1)) if queue.next > queue.first else None
            last = last if entry is None else max(last, entry[0])
            yield None
        return last

    def _half_of(self, offset: int) -> int | None:
        """The half message that stands for the one which was committed with the message at this log offset."""
        try:
            message = Record.decode(blocking(self.store.record_at, offset), check_crc=False)
            half = Record.decode(blocking(self.store.record_at, message.prepared_transaction_offset), check_crc=False)
        except LookupError:
            return None
        # Copies of committed messages (retries) carry the flag too, and no offset of a half message but 0.
        properties = decode_properties(half.properties)
        topic = properties.get(Property.REAL_TOPIC)
        if message.sys_flag & KINDS != COMMIT or half.topic != HALF_TOPIC or message.topic != topic or half.body != message.body:
            return None
        return self._newest(properties, half.queue_offset)

    @property
    def pending(self) -> int:
        """Prepared messages whose transaction has not ended."""
        halves = self.store.find_queue(HALF_TOPIC, 0)
        return 0 if halves is None else max(0, halves.visible - self._base - self._done.count(1))

    def metrics(self) -> dict[str, object]:
        return {"roquetTransactionsOpen": self.pending} if self.pending else {}

    def next_due_ms(self) -> int:
        """Rounds come in steady time, so for what is pending nobody can say."""
        return 0 if self.pending else FOREVER

    def may_drop(self, end: int) -> bool:
        """Retention asks: is no prepared message pending below this log offset? One that is, is put again when its producer is asked."""
        halves = self.store.find_queue(HALF_TOPIC, 0)
        if halves is None:
            return True
        at = max(self._next_pending(self._base), halves.first)
        try:
            entry = halves.entry(at) if at < halves.visible else None
        except Cold as cold:
            self._reads.start(cold)
            return False
        if entry is not None and entry[0] < end:
            return False
        return self._moved.is_durable(end)

    # Preparing

    def divert(self, draft: Draft) -> None:
        """Send a transactional message to the half topic. Raises Refused."""
        properties = draft.properties
        if properties.get(Property.TRANSACTION_PREPARED, "").lower() != "true":
            return
        delays = [name for name in DELAYS if properties.get(name, "") not in NO_DELAY]
        if draft.reconsumed > 0 and Property.DELAY in delays:
            return  # a consumer before 4.6.1 sends a message again that once was transactional
        if self.settings.reject_transaction_message:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{self.settings.broker_ip1}] sending transaction message is forbidden")
        if delays:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a transactional message cannot be delayed or timed, but it has {delays[0]}={properties[delays[0]][:64]}: remove that",
            )
        if why := draft.lacks_room("transaction"):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal, {why}")
        self.topics.ensure(HALF_TOPIC)
        properties.pop(Property.TRANSACTION_PREPARED_QUEUE_OFFSET, None)  # ours; a client's would end another message
        draft.divert_to(HALF_TOPIC)
        draft.wait_kept = True

    def divert_plain(self, topic: str, asked: str) -> tuple[ConsumeQueue, str, int | None] | None:
        """The same for a plain send (`plain_send.PlainDiversion`)."""
        if asked != "true" or self.settings.reject_transaction_message:
            return None
        self.topics.ensure(HALF_TOPIC)
        return self.store.queue(HALF_TOPIC, 0), asked, None

    # Ending

    @answers(calls.END_TRANSACTION)
    def end(self, peer: Peer, command: Command) -> Command | None:
        """37. Oneway from every known client; whoever wants an answer gets it when the decision is safe."""
        header = calls.END_TRANSACTION.read_header(command)
        kind = header.commit_or_rollback
        if kind == UNKNOWN:
            return command.reply()  # its producer is asked when the time comes
        if kind not in (COMMIT, ROLLBACK):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"commitOrRollback field wrong: {kind}, expected {UNKNOWN}, {COMMIT} or {ROLLBACK}")
        self.sender.check_stored(self.store.trouble.refuse_own())
        half = self._prepared(header)
        if self.check_record is not None:
            self.check_record(peer, command, half.properties.get(Property.REAL_TOPIC, ""))
        at = self._newest(half.properties, half.queue_offset)
        if self._is_done(at) or self._is_ending(at):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction of {header.msg_id[:100]} has ended already, or was given up; nothing is changed by this end",
            )
        with self.store.together():  # without its op record the message would be committed again
            if kind == COMMIT:
                self._put_committed(half)
            self._write_op(Ending(at))
        self.sender.answer_when_stored(command)
        return None

    def take_ends(self, requests: list[Command]) -> int:
        """`end` of the first of these whose half messages are in memory and as they were sent (`runs.Take`)."""
        if self.store.trouble.refuse_own():
            return 0
        ends: list[tuple[int, int, bool]] = []
        for request in requests:
            end = self._end_of(request)
            if end is None:
                break
            ends.append(end)
        messages = take_from_log(self.store, self._window, [place for place, _, _ in ends], NAMES)
        queues: dict[tuple[bytes, bool, str], ConsumeQueue | None] = {}
        ended: dict[int, None] = {}
        rows: list[Row] = []
        front = self._op_front()
        for request, (place, half, commits), message in zip(requests, ends, messages, strict=False):
            key, _, queue_offset, sys_flag, reconsumed, properties, kept = message
            alike = key, commits, request.fields["producerGroup"]
            queue = queues[alike] if alike in queues else queues.setdefault(alike, self._queue_of(*alike))
            if queue is None or queue_offset != half or half in ended:
                break
            if commits:
                rows.append((queue, properties, None, sys_flag & ~KINDS | COMMIT, reconsumed, place, kept))
            rows.append(self._op_row(half, front))
            ended[half] = None
        if not ended:
            return 0
        first = self.store.queue(OP_HALF_TOPIC, 0).next
        self.store.staging.put_rows(rows)
        for at, half in enumerate(ended, first):
            self._op_written(at, Ending(half))
        self.sender.answer_all_when_stored([request for request in requests[: len(ended)] if request.flag != ONEWAY])
        return len(ended)

    def _end_of(self, request: Command) -> tuple[int, int, bool] | None:
        """(where the half message stands that this one ends, its number, whether it is committed). None: look properly."""
        get = request.fields.get
        kind, place, half = get("commitOrRollback"), runs.number(get("commitLogOffset")), runs.number(get("tranStateTableOffset"))
        if kind not in KINDS_AS_TEXT or place < 0 or get("fromTransactionCheck") not in BOOLEANS or type(get("msgId")) is not str:
            return None
        if type(get("producerGroup")) is not str or half in self._copies or self._is_done(half) or self._is_ending(half):
            return None
        return place, half, kind == KINDS_AS_TEXT[0]

    def _queue_of(self, key: bytes, commits: bool, group: str) -> ConsumeQueue | None:
        """Where half messages go (`stored.Again`, of DECIDING) that this producer group ends. What rolls back has only an op record.
        None: look properly."""
        half_topic, *properties = key.decode().split("\x02")
        if half_topic != HALF_TOPIC or len(properties) != len(DECIDING):
            return None
        of_group, original, topic, queue_id = properties
        if not of_group or of_group != group or original:
            return None
        if not commits:
            return self.store.queue(OP_HALF_TOPIC, 0)
        return None if topic in TIMED_TOPICS else self.topics.reachable(topic, number(queue_id, -1))

    def _prepared(self, header: calls.EndTransactionHeader) -> Half:
        """The half message that an end means. Raises Refused when it is none, or another one."""
        half = self._half_at(header.commit_log_offset)
        if half.properties.get(Property.PRODUCER_GROUP) != header.producer_group:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return half

    def _half_at(self, offset: int) -> Half:
        failed = "Find prepared transaction message failed"
        with contextlib.suppress(LookupError):
            stored = take_apart(self.store.raw_at(offset), offset)
            if stored is not None and stored.topic == HALF_TOPIC:
                return Half(stored.queue_offset, stored.properties, stored)
        record = Record.decode(self.record_at(offset, failed), check_crc=False)
        if record.topic != HALF_TOPIC:  # upstream would commit any message of the group
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{failed}: none begins at {offset}")
        return Half(record.queue_offset, decode_properties(record.properties), record)

    def _put_committed(self, half: Half) -> None:
        message, properties = half.message, half.properties
        if isinstance(message, Record):
            self.writer.put_as_is(committed(message))
            return
        topic, queue_id = properties.get(Property.REAL_TOPIC, ""), number(properties.get(Property.REAL_QUEUE_ID), -1)
        queue = self.topics.reachable(topic, queue_id)
        if queue is not None and (
            Property.TRANSACTION_PREPARED_QUEUE_OFFSET not in properties or Property.CHECK_IMMUNITY_SECONDS in properties
        ):
            put_again(self.store.staging, queue, message, message.sys_flag & ~KINDS | COMMIT, message.offset)
            return
        raw = self.record_at(message.offset, "Find prepared transaction message failed")
        self.writer.put_as_is(committed(Record.decode(raw, check_crc=False)))

    @answers(calls.RESUME_CHECK_HALF_MESSAGE)
    def resume(self, peer: Peer, command: Command) -> None:
        """323: a message that was given up is asked about again, from the first time on."""
        failed = f"Put message back to {HALF_TOPIC} failed."
        message_id = calls.RESUME_CHECK_HALF_MESSAGE.read_header(command).msg_id or ""
        _, offset = parse_offset_message_id(message_id)
        record = Record.decode(self.record_at(offset, f"{failed} There is no message {message_id[:100]}"), check_crc=False)
        if record.topic != CHECK_MAX_TIME_TOPIC:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{failed} {message_id} is a message of {record.topic}, not of {CHECK_MAX_TIME_TOPIC}")
        self.sender.check_stored(self.store.trouble.refuse_writes())
        self.topics.ensure(HALF_TOPIC)
        draft = Draft.of(record)
        draft.topic, draft.queue_id, draft.wait_kept = HALF_TOPIC, 0, True
        draft.properties[Property.TRANSACTION_CHECK_TIMES] = "0"
        draft.properties.pop(Property.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
        self.writer.put_as_is(draft)
        self.sender.answer_when_stored(command)

    def _write_op(self, ending: Ending) -> None:
        """Stage the record that says: this half message is done with. What follows happens when it is safe (`_settle`)."""
        row = self._op_row(ending.half, self._op_front())
        at = row[0].next
        self.store.staging.put_rows([row])
        self._op_written(at, ending)

    def _op_row(self, half: int, front: bytes) -> Row:
        return self.store.queue(OP_HALF_TOPIC, 0), OP_PROPERTIES, OP_TAG, 0, 0, 0, b"%b%d" % (front, half)

    def _op_front(self) -> bytes:
        """What op records keep, up to their bodies (`staging.Row`)."""
        now_ms, host = self.store.staging.now_ms, self.store.staging.store_host
        hosts = 0 if len(host) == HOST else HOSTS_V6
        return FRONTS[hosts].pack(0, 0, 0, 0, 0, 0, 0, hosts, now_ms, host, 0, host, 0, 0, 0)

    def _op_written(self, at: int, ending: Ending) -> None:
        overwritten = self._written.get(at)
        if overwritten is not None:
            self._ending.pop(overwritten.half, None)  # its write failed, so its place is free again
        self._written[at] = ending
        self._ending[ending.half] = at

    # Time

    def tick(self, now_ms: int) -> None:
        halves, ops = self.store.find_queue(HALF_TOPIC, 0), self.store.find_queue(OP_HALF_TOPIC, 0)
        if halves is None:
            return
        if ops is not None:
            self._settle(ops)
        self._advance(halves)
        if self._round_end is None and now_ms - self._rested_ms >= self.settings.transaction_check_interval:
            self._round_at, self._round_end = self._base, halves.visible
        if self._round_end is not None and not self._reads.busy():
            finished = True
            try:
                finished = self._look(halves, self._round_end) or bool(self.store.trouble.refuse_own())
            except Cold as cold:
                self._reads.start(cold)
                finished = False
            except Refused as refused:
                log.warning("prepared messages could not be looked through: %s", refused.remark)
            if finished:
                self._round_end = None
                self._rested_ms = now_ms

    def _settle(self, ops: ConsumeQueue) -> None:
        """Take in the op records that became safe; what follows from ours happens now."""
        left = LOOKS_MAX
        while left > 0:
            at = self._op_base + len(self._ops)
            if at >= ops.visible:
                break
            ending = self._written.pop(at, None)
            left -= DEAR if ending is None or ending.check is not None else 1
            if ending is None:
                try:
                    named = self._named(self._read(ops, at))
                except Cold as cold:
                    self._reads.start(cold)
                    break
                self._take(named)
                continue
            self._take([ending.half])
            if self._ending.get(ending.half) == at:
                del self._ending[ending.half]
            if ending.copy is not None:
                self._copied(ending.original, ending.copy.queue_offset)
                if ending.check is not None and not self._is_ending(ending.copy.queue_offset):  # it may have ended meanwhile
                    self._ask(ending.check, ending.copy)
        for at in [at for at in self._written if at >= ops.next]:  # the write was undone: pending as before
            self._ending.pop(self._written.pop(at).half, None)

    # What is pending

    def _take(self, named: list[int]) -> None:
        for half in named:
            self._mark(half)
        self._ops.append(max(named, default=-1))

    def _mark(self, half: int) -> None:
        """This half message is done with."""
        original = self._originals.pop(half, None)
        if original is not None and self._copies.get(original) == half:
            del self._copies[original]
        place = half - self._base
        halves = self.store.find_queue(HALF_TOPIC, 0)
        if place < 0 or halves is None or half >= halves.next:
            return
        if place >= len(self._done):
            self._done += bytes(place + 1 - len(self._done))
        self._done[place] = 1

    def _is_done(self, half: int) -> bool:
        place = half - self._base
        return place < 0 or (place < len(self._done) and self._done[place] == 1)

    def _is_ending(self, half: int) -> bool:
        at = self._ending.get(half)
        ops = None if at is None else self.store.find_queue(OP_HALF_TOPIC, 0)
        return at is not None and ops is not None and at < ops.next

    def _next_pending(self, half: int) -> int:
        """The first one from here on that is not done with; it may be behind the end."""
        place = max(half - self._base, 0)
        if place >= len(self._done):
            return self._base + place
        found = self._done.find(0, place)
        return self._base + (found if found >= 0 else len(self._done))

    def _copied(self, original: int, copy: int) -> None:
        self._originals.pop(self._copies.get(original, -1), None)
        if not self._is_done(copy):
            self._copies[original] = copy
            self._originals[copy] = original

    def _newest(self, properties: dict[str, str], queue_offset: int) -> int:
        """The half message that stands for this one now: itself, or the copy that was made when its producer was asked."""
        at = self._copies.get(original_of(properties, queue_offset), queue_offset)
        if self._is_ending(at):
            ending = self._written[self._ending[at]]
            if ending.copy is not None:  # put again this very moment: the copy is not safe yet, but it is what stands for it
                return ending.copy.queue_offset
        return at

    def _advance(self, halves: ConsumeQueue) -> None:
        """Forget what is done with, up to the oldest pending; note the progress."""
        base, op_base = self._base, self._op_base
        count = self._done.find(0)
        count = max(len(self._done) if count < 0 else count, halves.first - base)  # retention took what is older
        if count > 0:
            del self._done[:count]
            self._base += count
        done = 0
        while done < len(self._ops) and self._ops[done] < self._base:
            done += 1
        if done:
            del self._ops[:done]
            self._op_base += done
        if self._base != base or self._op_base != op_base:
            self.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, self._base)
            self.offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, self._op_base)

    # Asking

    def _look(self, halves: ConsumeQueue, end: int) -> bool:
        """Go on with a round; whether it is finished. Raises Cold when a message is not in memory."""
        staged = 0
        for _ in range(LOOKS_MAX // DEAR):
            if staged >= STAGED_MAX or self.store.trouble.refuse_own():
                return False
            at = self._next_pending(self._round_at)
            if at >= min(halves.visible, end):
                return True
            self._round_at = at
            if not self._is_ending(at):
                record = self._read(halves, at)
                if record is None:
                    log.error("half message %d cannot be read any more: its transaction is forgotten", at)
                    self._mark(at)
                elif not self._decide(record):
                    return True
                else:
                    staged += len(record.body) + len(record.properties)
            self._round_at = at + 1
        return False

    def _decide(self, record: Record) -> bool:
        """Ask about it, leave it for later, or give it up. False: it is too young, and so is everything behind it."""
        settings, properties = self.settings, decode_properties(record.properties)
        times = number(properties.get(Property.TRANSACTION_CHECK_TIMES), 0)
        age_ms = self.store.wall.age_ms(record.born_timestamp)  # a clock set forward makes no message old
        too_old = times > 0 and age_ms > settings.file_reserved_time * 3_600_000  # the producer's clock may be wrong: it is asked once
        if times >= settings.transaction_check_max or too_old:
            self._give_up(record, properties, times)
            return True
        immunity_s = properties.get(Property.CHECK_IMMUNITY_SECONDS)
        wanted = number(immunity_s, -1)
        immunity_ms = settings.transaction_time_out if wanted < 0 else wanted * 1_000
        if 0 <= age_ms < immunity_ms:
            if immunity_s is None:
                return False
            # It asked for patience. It is put again without asking, so that it does not hold up those behind it.
            self._put_again(record, properties)
            return True
        properties[Property.TRANSACTION_CHECK_TIMES] = str(times + 1)
        self._put_again(record, properties, ask=True)
        return True

    def _put_again(self, record: Record, properties: dict[str, str], *, ask: bool = False) -> None:
        original = original_of(decode_properties(record.properties), record.queue_offset)
        properties[Property.TRANSACTION_PREPARED_QUEUE_OFFSET] = str(original)
        draft = Draft.of(record)
        draft.properties, draft.wait_kept = properties, True
        asked = replace(record, properties=join_properties(properties).encode()) if ask else None
        try:
            with self.store.together():
                place = self.writer.put_as_is(draft)
                self._write_op(Ending(record.queue_offset, place, original, asked))
        except Refused as refused:  # only a message of Apache's with properties up to the limit
            log.error("half message %d cannot be put again: %s", record.queue_offset, refused.remark)
            self._give_up(record, decode_properties(record.properties), 0)

    def _give_up(self, record: Record, properties: dict[str, str], times: int) -> None:
        self.topics.ensure(CHECK_MAX_TIME_TOPIC)
        draft = Draft.of(record)
        draft.topic, draft.queue_id, draft.properties, draft.wait_kept = CHECK_MAX_TIME_TOPIC, 0, without_marks(properties), True
        with self.store.together():
            self.writer.put_as_is(draft)
            self._write_op(Ending(record.queue_offset))
        self.given_up += 1
        self.notices.warn(
            "transactions given up",
            f"{self.given_up} prepared messages were given up since the start and stand in {CHECK_MAX_TIME_TOPIC}. The last is "
            f"{properties.get(Property.UNIQUE_KEY, 'without an id')} for topic {properties.get(Property.REAL_TOPIC)}, of producer group "
            f"{properties.get(Property.PRODUCER_GROUP)}, which was asked {times} times and did not say commit or roll back. "
            "See that its producers run and know their transactions; request code 323 asks about a message again.",
        )

    def _ask(self, record: Record, copy: StoredAt) -> None:
        """39 to one producer of the group; any of them can answer, each in its turn."""
        properties = without_marks(decode_properties(record.properties))
        group = properties.get(Property.PRODUCER_GROUP, "")
        try:
            topic, queue_id = destination(properties)
        except Refused as refused:
            log.error("half message %d cannot be asked about: %s", copy.queue_offset, refused.remark)
            return
        producers = [peer for peer in self.members.producers(group) if not peer.closed and self.may_be_told(peer, topic)]
        key = f"transactions of {group}"
        if not producers:
            self.notices.warn(
                key,
                f"producer group {group} has prepared messages whose transactions have not ended, and no producer that could be asked is "
                f"connected. After {self.settings.transaction_check_max} times they are given up. Start a producer of this group.",
            )
            return
        self.notices.clear(key)
        unique = properties.get(Property.UNIQUE_KEY)
        header = calls.CheckTransactionHeader(
            copy.queue_offset, copy.log_offset, unique, unique, offset_message_id(record.store_host, copy.log_offset)
        )
        properties[Property.WAIT] = "false"
        body = replace(
            record, topic=topic, queue_id=queue_id, queue_offset=copy.queue_offset, physical_offset=copy.log_offset,
            properties=join_properties(properties).encode(),
        )  # fmt: skip
        self._turn += 1
        peer = producers[self._turn % len(producers)]
        peer.send(calls.CHECK_TRANSACTION_STATE.request(header, body.encode(), flag=ONEWAY).encode())

    # Reading

    def _read(self, queue: ConsumeQueue, offset: int) -> Record | None:
        """None when it is gone, or the entry is a blank one and points to somebody else's. Raises Cold."""
        entry = self.store.mender.entry(queue, offset)
        if entry is None:
            return None
        try:
            record = Record.decode(self.store.record_at(entry[0]), check_crc=False)
        except (LookupError, BadRecord):
            return None
        return record if (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, offset) else None


def committed(record: Record) -> Draft:
    """The message that consumers get for a half message. Upstream keeps all its properties, and so do we."""
    draft = Draft.of(record)
    draft.topic, draft.queue_id = destination(draft.properties)
    draft.properties = without_marks(draft.properties)
    draft.sys_flag |= COMMIT
    draft.prepared = record.physical_offset
    draft.wait_kept = True
    return draft


def destination(properties: dict[str, str]) -> tuple[str, int]:
    """Where a half message belongs. Raises Refused: the directory may be from anywhere."""
    topic, queue_id = properties.get(Property.REAL_TOPIC, ""), number(properties.get(Property.REAL_QUEUE_ID), -1)
    check_topic(topic)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"queueId {queue_id} of a prepared message, allowed are 0 to {QUEUE_ID_MAX}")
    return topic, queue_id


def without_marks(properties: dict[str, str]) -> dict[str, str]:
    """Without the name of the original, which upstream writes only into messages that asked for patience."""
    if Property.CHECK_IMMUNITY_SECONDS in properties:
        return properties
    return {name: value for name, value in properties.items() if name != Property.TRANSACTION_PREPARED_QUEUE_OFFSET}


def original_of(properties: dict[str, str], queue_offset: int) -> int:
    """The queue offset that the producer knows a half message by."""
    named = number(properties.get(Property.TRANSACTION_PREPARED_QUEUE_OFFSET), -1)
    return named if 0 <= named < queue_offset else queue_offset


def op_body(record: Record | None) -> list[int]:
    """The half messages that an op record names: one in 4.x, "1,2,3," in 5.x."""
    if record is None:
        return []
    return [int(word) for word in record.body.split(b",") if word.isdigit() and len(word) < 19]


def number(text: str | None, otherwise: int) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return otherwise
    return int(text)
