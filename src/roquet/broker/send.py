"""Sends: 310 and 320 (short names), 10 (long names), a batch wherever its flag says so.

Plain ones, which is nearly all, are taken by `plain_send`. All others go through `accept`, which decodes the typed header and makes every
check in upstream's order. Both end in `write`, once for all that came in one turn of the loop: one log write, one socket write a peer.

What upstream adds and strips: CLUSTER is appended to the stored properties, with `regionInMessages` the region too, as 5.x does; WAIT is
honoured and not stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from roquet.broker.batches import BatchSend, messages_of
from roquet.broker.flow import Flow
from roquet.broker.handler import answers
from roquet.broker.part import Part, Shared
from roquet.broker.plain_send import PREFIXES, RUN, Plain, PlainSends
from roquet.broker.put_times import PutTimes
from roquet.broker.send_properties import (
    KEPT_FLAGS,
    NOTHING_ASKED,
    REFUSED,
    SPECIAL,
    SPECIAL_MARKS,
    WAITS_NOT,
    added_properties,
    region_fields,
)
from roquet.broker.topics import Topic, Topics, spelled
from roquet.broker.writer import Diversion, Draft, Writer
from roquet.errors import Refused, StoreUnavailable
from roquet.ports import Peer, Read
from roquet.store.queue import ConsumeQueue
from roquet.wire.batch import split_batch
from roquet.wire.calls.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE, SEND_MESSAGE_V2, SendHeader, SendResponseHeader
from roquet.wire.calls.table import CALLS
from roquet.wire.codes import Perm, RequestCode, ResponseCode
from roquet.wire.command import VERSION, Command
from roquet.wire.names import NOT_ALLOWED_SEND_TOPICS, RETRY_PREFIX, check_topic

log = logging.getLogger("roquet.broker")

QUORUM_MS = 2_500
"""A member of a DLedger group waits for a majority for so long."""
NO_MAJORITY = (
    "[PC_SYNCHRONIZED]broker busy, start flow control for a while: no majority of the group has confirmed the message. It may be stored, "
    "or not"
)

SENDS = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))

Sent = tuple[Command, int, int, str, str | None]
"""A send that is not plain: (the request, queue id, first queue offset, message ids, what cancels a timed one)."""


AnsweredRun = tuple[Peer, int, bytes]
"""(who sent them, how many sends, the answers to them if they are stored)."""


class Answers:
    """What one batch of frames staged for one peer, to be answered when it is stored: `plain` by the hot path, `sent` by all
    others, `no_wait` the part that does not wait for the flush. Made for one batch, gone with its end: they can reach nobody else."""

    __slots__ = ("begun_at", "no_wait", "peer", "plain", "plain_sends", "sent")

    def __init__(self, peer: Peer, begun_at: int) -> None:
        self.peer = peer
        self.begun_at = begun_at  # the log's end before it
        self.plain: list[Plain] = []
        self.plain_sends = 0  # those that `plain` answers, known at the batch's end
        self.sent: list[Sent] = []
        self.no_wait: list[Sent] = []


STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
"""The message is stored; the last three say where it is not yet."""
ALONE = (ResponseCode.SLAVE_NOT_AVAILABLE, "the message is stored here, and no slave is near enough to have it in time")

WITH_HEADER = frozenset(code for code, call in CALLS.items() if call.answer_header_type is SendResponseHeader)
"""Requests whose answers say where the message is."""
BARE_SUCCESS = b'{"code":0,"flag":1,"language":"JAVA","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION


class Sender(Part):
    """State: `_answers` belong to the batch of frames under way, if there is one."""

    def __init__(self, shared: Shared, topics: Topics, writer: Writer, flow: Flow, times: PutTimes) -> None:
        super().__init__(shared)
        self.topics = topics
        self.writer = writer
        self.flow = flow
        self.diversions: list[Diversion] = []
        """For what clients send, before the writer's own: a transactional message is one only while it is sent."""
        self.recall_handle: Callable[[Draft], str | None] = lambda draft: None
        """What a client may cancel this message with."""
        self.on_retry_topic: Callable[[Draft, SendHeader, int], None] = lambda draft, header, version: None
        """Looks at what is sent to a retry topic, with the version of the client."""
        self.failed = 0
        """Sends that were refused because they could not be stored, or must not be."""
        self.times = times
        self.plain = PlainSends(self.store, topics, self.settings)
        self.fast = 0
        self.general = 0
        """Requests with sends that `plain` took since the start, and all others."""
        self._answers: Answers | None = None
        self._unwritten: list[Answers] = []
        """Batches that have ended since the last write."""
        self._unwritten_runs: list[AnsweredRun] = []
        """Plain sends that were taken together with those of other peers."""

    def listening(self, address: str, ha_address: str) -> None:
        self.plain.write_host()

    # Everything else

    @answers(SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE)
    def accept(self, peer: Peer, command: Command) -> None:
        """Check in upstream's order, stage, remember the answer. Raises Refused."""
        self.general += 1
        header = SEND_MESSAGE_V2.read_header(command)
        queue = self.destination(header, peer)
        if header.batch:
            self._batch(peer, command, header, queue)
        else:
            self._single(peer, command, header, queue)

    def region_fields(self) -> dict[str, str]:
        """What every answer to a send carries, one that refuses it too."""
        return region_fields(self.settings)

    def response_header(self, ids: str, queue_id: int, queue_offset: int, recall_handle: str | None = None) -> SendResponseHeader:
        region, trace_on = self.region_fields().values()
        return SendResponseHeader(ids, queue_id, queue_offset, None, region, trace_on, recall_handle=recall_handle)

    def destination(self, header: SendHeader, peer: Peer) -> ConsumeQueue:
        """The queue that this send names, made if its topic may be made. Raises Refused."""
        topic = self._topic_for(header, peer)
        queue_id = self._queue_for(header, topic, peer)
        self.check_stored(self.store.trouble.refuse_writes())
        return self.store.queue(topic.topic_name, queue_id)

    def _single(self, peer: Peer, command: Command, header: SendHeader, queue: ConsumeQueue) -> None:
        if len(command.body) > self.settings.max_message_size:
            raise too_large(len(command.body), self.settings.max_message_size)
        draft = Draft(
            queue.topic,
            queue.queue_id,
            command.body,
            self._properties(header.properties or ""),
            header.sys_flag & KEPT_FLAGS,  # the other bits say what we store, not what the client thinks
            header.flag,
            header.born_timestamp,
            peer.host,
            header.reconsume_times or 0,
        )
        if draft.topic.startswith(RETRY_PREFIX):
            self.on_retry_topic(draft, header, command.version)
        for divert in self.diversions:
            divert(draft)
        place = self.writer.put(draft)
        ids, handle = f"{self.plain.host_id}{place.log_offset:016X}", self.recall_handle(draft)
        self._remember(command, queue.queue_id, place.queue_offset, ids, header.properties or "", handle)

    def _batch(self, peer: Peer, command: Command, header: SendHeader, queue: ConsumeQueue) -> None:
        if queue.topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {queue.topic}")
        if len(command.body) > self.settings.max_message_size:
            raise too_large(len(command.body), self.settings.max_message_size)
        whole = header.properties or ""
        send = BatchSend(0, 0, queue, self.plain.suffixes.of(whole), command.body, header.sys_flag & KEPT_FLAGS, header.born_timestamp)
        placed = None
        if 0 <= header.born_timestamp < 1 << 63 and not any(mark in whole for mark in SPECIAL_MARKS):
            # As plain ones. When the broker is behind all come here, and message by message would cost three times as much.
            placed = self.plain.put_many([send], peer.host)
        if placed is not None:
            ((offset, found),) = placed
            self._remember(command, queue.queue_id, offset, found.decode(), whole)
            return
        parts = split_batch(command.body)
        for text in (whole, *(properties.decode("utf-8", "replace") for _, _, properties in parts)):
            asked = self._properties(text)
            if any(asked.get(name, "0") not in NOTHING_ASKED for name in SPECIAL):
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch can be neither delayed, timed nor transactional")
        places, first = self.store.put_batch(queue, messages_of(parts, send.suffix), send.sys_flag, send.born_ms, peer.host)
        ids = ",".join(f"{self.plain.host_id}{offset:016X}" for offset in places)
        self._remember(command, queue.queue_id, first, ids, whole)

    def answer_when_stored(self, command: Command, message_id: str = "") -> None:
        """For requests of other kinds that staged a message: success when it is as safe as a send's, else why not."""
        self._batch_under_way().sent.append((command, 0, 0, message_id, None))

    def answer_all_when_stored(self, commands: list[Command]) -> None:
        self._batch_under_way().sent += [(command, 0, 0, "", None) for command in commands]

    def _remember(
        self, command: Command, queue_id: int, queue_offset: int, ids: str, properties: str, recall_handle: str | None = None
    ) -> None:
        answers = self._batch_under_way()
        no_wait = WAITS_NOT in properties
        (answers.no_wait if no_wait else answers.sent).append((command, queue_id, queue_offset, ids, recall_handle))

    def _topic_for(self, header: SendHeader, peer: Peer) -> Topic:
        settings, name = self.settings, header.topic
        found = self.topics.get(name)
        if found is not None and found.order and not settings.broker_permission & Perm.WRITE:  # the others learn it from the route
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{settings.broker_ip1}] sending message is forbidden")
        check_topic(name)
        if name in NOT_ALLOWED_SEND_TOPICS:
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if found is None:
            found = self.topics.create_on_send(name, header.default_topic, peer.address, header.default_topic_queue_nums)
        if found is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please!\nSee http://rocketmq.apache.org/docs/faq/ for further details.",
            )
        if not found.perm & Perm.WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return found

    def _queue_for(self, header: SendHeader, topic: Topic, peer: Peer) -> int:
        queue_id = header.queue_id
        if queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"request queueId[{queue_id}] is illegal, {spelled(topic)} Producer: {peer.address}")
        return queue_id if queue_id >= 0 else self.shared.random.randrange(max(1, topic.write_queue_nums))

    def _properties(self, text: str) -> dict[str, str]:
        """A message's properties as they are stored. Refuses those that ask for what this version does not do."""
        kept: dict[str, str] = {}
        for item in text.split("\x02"):
            name, separator, value = item.partition("\x01")
            if not separator or not value:
                continue
            if name in REFUSED and value not in NOTHING_ASKED:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"this broker does not yet serve messages with property {name}={value[:64]}")
            kept[name] = value
        return kept | added_properties(self.settings)

    def check_stored(self, why: str) -> None:
        if why:
            raise self.not_stored(why)

    def not_stored(self, why: str, count: int = 1) -> Refused:
        """The answer to sends that the store cannot take, counted."""
        self.failed += count
        return Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now. It may be caused by one of the following reasons: the broker's disk is full, "
            f"messages are put to the slave, message store has been shut down, etc. Here: {why}",
        )

    def note_refused(self, code: int) -> None:
        """A send was answered with this code. One that the store cannot take counts already."""
        if code == ResponseCode.MESSAGE_ILLEGAL:
            self.failed += 1

    def metrics(self) -> dict[str, object]:
        return {
            "putMessageFailedTimes": self.failed,
            "roquetSendsCompiled": self.plain.compiled,
            "roquetSendsFast": self.fast,
            "roquetSendsGeneral": self.general,
            "sendThreadPoolQueueSize": self.flow.waiting,
            "sendThreadPoolQueueCapacity": self.settings.send_thread_pool_queue_capacity,
        }

    # A batch of frames

    def begin(self, peer: Peer) -> Answers:
        """What is staged from now on is answered to this peer, after `end` or by `abandon`, one of which must follow."""
        assert self._answers is None, "a batch of frames began inside another"
        self._answers = answers = Answers(peer, self.store.log.end)
        self.plain.answers, self.plain.in_runs = answers.plain, 0
        return answers

    def take_reads(self, reads: list[Read]) -> tuple[int, int]:
        """Stage the plain sends of several reads, up to the first frame that is something else: in which read it stands, and where there.
        They are answered after the next `write`, each peer before what else it sent in this turn."""
        at, told, _ = self.plain.take_reads(reads)
        for (peer, _), (sends, made) in zip(reads, told, strict=False):
            if sends:
                self._unwritten_runs.append((peer, sends, made))
        last = len(told) - 1
        return (last, at) if at < len(reads[last][1]) else (last + 1, 0)

    def serves(self, peer: Peer) -> bool:
        return self._answers is not None and self._answers.peer is peer

    def _batch_under_way(self) -> Answers:
        if self._answers is None:
            raise RuntimeError("a message was staged to be answered, but no batch of frames is under way")
        return self._answers

    def end(self, answers: Answers) -> None:
        """The batch is staged, and is written and answered with the next `write`: so batches of several peers share one."""
        self._answers = None
        if answers.plain or answers.sent or answers.no_wait:
            answers.plain_sends = len(answers.plain) + self.plain.in_runs
            self._unwritten.append(answers)

    def write(self) -> None:
        """Write what was staged, and answer: at once, or when the flush that was promised is done."""
        log_ = self.store.log
        if not self._unwritten and not self._unwritten_runs:
            if log_.end != log_.written:
                self._write_unanswered()
            return
        batches, self._unwritten = self._unwritten, []
        runs, self._unwritten_runs = self._unwritten_runs, []
        plain_sends = others = not_waiting = 0
        for _, sends, _ in runs:
            plain_sends += sends
        for batch in batches:
            plain_sends += batch.plain_sends
            if batch.no_wait and self.store.ledger is not None:
                batch.sent, batch.no_wait = batch.sent + batch.no_wait, []  # nothing is stored before a majority has it, whoever waits
            others += len(batch.sent)
            not_waiting += len(batch.no_wait)
        self.fast += plain_sends
        try:
            self.store.commit()
        except StoreUnavailable as error:
            for batch in batches:
                batch.sent, batch.no_wait = batch.sent + batch.no_wait, []
            refusal = self.not_stored(str(error), plain_sends + others + not_waiting)
            self._answer_all(runs, batches, refusal.code, refusal.remark)
            return
        target, waiting = log_.written, plain_sends + others
        alone = ALONE if log_.alone else ()
        if waiting and (log_.local if alone else log_.safe) < target:
            self._answer_when_safe(runs, batches, waiting, alone)
        else:
            self.times.note(self.store.write_ms, waiting + not_waiting)
            self._answer_all(runs, batches, *alone)
        for batch in batches:
            if batch.no_wait:
                self._answer_or_close(batch.peer, [], batch.no_wait)

    def _write_unanswered(self) -> None:
        """What was staged, and nobody waits for."""
        try:
            self.store.commit()
        except StoreUnavailable as error:
            self.not_stored(str(error), 0)

    def _answer_when_safe(self, runs: list[AnsweredRun], batches: list[Answers], waiting: int, alone: tuple[int, str] | tuple[()]) -> None:
        """`alone`: the answer where no other node is near enough; then it is enough that this one has them."""
        flow, log_, begun_ms = self.flow, self.store.log, self.store.steady_ms
        target = log_.written
        flow.waiting += waiting

        def safe(reached: bool) -> None:
            flow.waiting -= waiting
            self.times.note(self.clock.steady_ms() - begun_ms, waiting)
            self._answer_all(runs, batches, *(alone or (() if reached else self._not_safe(target))))

        when = log_.when_local if alone else log_.when_safe
        when(target, begun_ms + self._patience_ms(), safe)

    def finish(self, answers: Answers) -> None:
        """The end of a batch that is written at once."""
        self.end(answers)
        self.write()

    def _answer_all(self, runs: list[AnsweredRun], batches: list[Answers], code: int = 0, remark: str | None = None) -> None:
        for peer, sends, made in runs:
            if code:
                self._answer_or_close(peer, [(RUN, sends, 0, 0, made)], [], code, remark)
            elif made and not peer.closed:
                peer.send(made)
        for batch in batches:
            self._answer_or_close(batch.peer, batch.plain, batch.sent, code, remark)

    def _answer_or_close(self, peer: Peer, plain: list[Plain], sent: list[Sent], code: int = 0, remark: str | None = None) -> None:
        try:
            self._answer(peer, plain, sent, code, remark)
        except Exception:  # a mistake of ours must not keep others from hearing
            log.exception("! sends of %s could not be answered", peer.address)
            peer.close("its sends could not be answered")

    def _patience_ms(self) -> int:
        """How long a send waits until it is safe. Of two limits the longer one: each of them is kept by what it is for."""
        settings = self.settings
        if self.store.ledger is not None:
            return QUORUM_MS
        if settings.broker_role != "SYNC_MASTER":
            return settings.sync_flush_timeout
        return max(settings.slave_timeout, settings.sync_flush_timeout if settings.flush_disk_type == "SYNC_FLUSH" else 0)

    def _not_safe(self, target: int) -> tuple[int, str]:
        """What is missing of what was promised for messages up to here."""
        if self.store.ledger is not None:
            return ResponseCode.SYSTEM_ERROR, NO_MAJORITY
        if self.store.log.local < target:
            return ResponseCode.FLUSH_DISK_TIMEOUT, "the message is written, its fsync is not confirmed"
        return ResponseCode.FLUSH_SLAVE_TIMEOUT, "the message is on this disk, no other node has confirmed it"

    def abandon(self, answers: Answers, why: str) -> None:
        """Something went wrong that nobody foresaw: nothing of what was staged happens, and everybody who waits is told."""
        self._answers = None
        self.store.undo(answers.begun_at)  # batches before it, which wait to be written, are others'
        self._answer(answers.peer, answers.plain, answers.sent + answers.no_wait, ResponseCode.SYSTEM_ERROR, why)

    def _answer(self, peer: Peer, plain: list[Plain], sent: list[Sent], code: int = 0, remark: str | None = None) -> None:
        if peer.closed:
            return
        if len(plain) == 1 and plain[0][0] == RUN and not sent and not code:
            if plain[0][4]:
                peer.send(plain[0][4])
            return
        if code:
            answers = self.plain.encode_not_safe(plain, code, remark or "", place=code in STORED)
        else:
            answers = self.plain.encode(plain)
        answers += [self._encoded(one, code, remark) for one in sent if not one[0].is_oneway]
        if answers:
            peer.send(b"".join(answers))

    def _encoded(self, sent: Sent, code: int, remark: str | None) -> bytes:
        command = sent[0]
        if not code and not command.binary and command.code not in WITH_HEADER:
            head = BARE_SUCCESS % command.opaque  # what `_reply` would say: consumers in trouble send many back
            return PREFIXES[len(head)] + head
        return self._reply(sent, code, remark).encode()

    def _reply(self, sent: Sent, code: int, remark: str | None) -> Command:
        command, queue_id, queue_offset, ids, recall_handle = sent
        # Requests of other kinds store a message, too, and what is answered says nothing of it.
        if code == ResponseCode.SLAVE_NOT_AVAILABLE and command.code not in WITH_HEADER:
            return command.reply()  # it is stored, and nothing more was promised: RocketMQ does not wait for a slave with these
        if code not in STORED or command.code not in WITH_HEADER:
            return command.reply(code, remark)
        header = self.response_header(ids, queue_id, queue_offset, recall_handle)
        return SEND_MESSAGE_V2.reply(command, header, code=code, remark=remark)


def too_large(size: int, limit: int) -> Refused:
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal, maybe msg body or properties length not matched. msg body length {size}, "
        f"msg body length limit {limit}B, msg properties length limit 32KB.",
    )
