"""Sends: 310 and 320 (short names), 10 (long names), a batch wherever its flag says so.

The load comes as JSON 310 for a topic that is known and writable. `take` reads the few fields it needs straight from the
parsed header, stages the record and remembers the answer; anything unusual goes through `accept`, which decodes the typed
header and makes every check in upstream's order. Both end in `finish`, once per batch of frames: one log write, one socket write.

What upstream adds and strips: CLUSTER is appended to the stored properties, WAIT is honoured and not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from roquet.broker.flow import Flow
from roquet.broker.handler import answers
from roquet.broker.part import Part, Shared
from roquet.broker.topics import Topic, Topics, spelled
from roquet.broker.writer import Diversion, Draft, Writer
from roquet.errors import Refused, StoreUnavailable
from roquet.message import Property
from roquet.ports import Peer
from roquet.store.batch import Batch, Longs
from roquet.store.fanout import (
    KEYS_BYTES,
    KEYS_MARK,
    KEYS_MAX,
    TAGS_BYTES,
    TAGS_MARK,
    UNIQUE_KEY_BYTES,
    UNIQUE_KEY_MARK,
    index_keys,
    property_of,
    tag_hash,
)
from roquet.store.queue import ConsumeQueue
from roquet.store.staging import BatchedMessage
from roquet.store.texts import Texts
from roquet.wire.batch import InnerMessage, split_batch
from roquet.wire.calls.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE, SEND_MESSAGE_V2, SendHeader, SendResponseHeader
from roquet.wire.calls.table import CALLS
from roquet.wire.codes import Perm, RequestCode, ResponseCode
from roquet.wire.columns import batch_columns
from roquet.wire.command import VERSION, Command
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.names import NOT_ALLOWED_SEND_TOPICS, RETRY_PREFIX, check_topic

TAGS, KEYS = Property.TAGS, Property.KEYS
SPECIAL = frozenset(
    (
        Property.DELAY, Property.TRANSACTION_PREPARED, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS,
        Property.START_DELIVER_TIME, Property.TIMER_CANCELLED_KEY, Property.INNER_MULTI_DISPATCH,
    )
)  # fmt: skip
"""Properties that ask for more than storing."""

NOTHING_ASKED = ("0", "false")
"""Values with which they ask for nothing."""

REFUSED = frozenset((Property.INNER_MULTI_DISPATCH,))
"""Those that no part of this broker serves: refused, not silently ignored."""
SENDS = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
SPECIAL_MARKS = [name + "\x01" for name in SPECIAL]
SPECIAL_BYTES = [mark.encode() for mark in SPECIAL_MARKS]
SEPARATOR = 2

MANY = 48
"""Messages in a batch from which on columns cost less than one message after another."""

WAITS, WAITS_NOT = Property.WAIT + "\x01true", Property.WAIT + "\x01false"
UNUSUAL = SPECIAL | {Property.WAIT, Property.CLUSTER}
"""What the hot path leaves to `accept`."""

Plain = tuple[int, int, int, bytes]
"""A send of the hot path, to be answered: (opaque, queue id, first queue offset, message ids)."""

Sent = tuple[Command, int, int, str, str | None]
"""Any other: (the request, queue id, first queue offset, message ids, what cancels a timed one)."""

KEPT_FLAGS = 0x703
"""Of a client's system flags: compression and its kind, several tags."""

KNOWN_MAX = 10_000


def prefix(size: int) -> bytes:
    """What stands before a JSON header of this size in a frame without a body."""
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big")


PREFIXES = [prefix(size) for size in range(1_500)]


class Answers:
    """What one batch of frames staged for one peer, to be answered when it is stored: `plain` by the hot path, `sent` by all
    others, `no_wait` the part that does not wait for the flush. Made for one batch, gone with its end: they can reach nobody else."""

    __slots__ = ("no_wait", "peer", "plain", "sent")

    def __init__(self, peer: Peer | None) -> None:
        self.peer = peer
        self.plain: list[Plain] = []
        self.sent: list[Sent] = []
        self.no_wait: list[Sent] = []

    def __bool__(self) -> bool:
        return bool(self.plain or self.sent or self.no_wait)


NOBODY = Answers(None)
"""Between batches."""


class Sender(Part):
    """State: `_answers` belong to the batch of frames under way."""

    def __init__(self, shared: Shared, topics: Topics, writer: Writer, flow: Flow) -> None:
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
        """Sends that were refused because they could not be stored."""
        self.cluster_property = f"{Property.CLUSTER}\x01{self.settings.broker_cluster_name}"
        self._usual_suffix = f"\x02{WAITS}\x02{self.cluster_property}"
        self._answers = NOBODY
        self._known: dict[str, int] = {}
        """Property texts seen before that are more than kept: a tag -> its hash. They repeat with every message."""
        self._host_id = ""
        self._id = self._answer_back = b""
        self._write_host()

    def listening(self, address: str, ha_address: str) -> None:
        self._write_host()

    def _write_host(self) -> None:
        self._host_id = self.store.staging.store_host.hex().upper()
        self._id = self._host_id.encode() + b"%016X"
        trace_on = b"true" if self.settings.trace_on else b"false"
        self._answer_back = (
            b'","MSG_REGION":"%b","TRACE_ON":"%b"},"flag":1,"language":"JAVA","serializeTypeCurrentRPC":"JSON","version":%d,"opaque":'
            % (self.settings.region_id.encode(), trace_on, VERSION)
        )

    # The hot path

    def take(self, fields: dict[str, Any], opaque: int, flag: int, body: bytes, born_host: bytes) -> bool:
        """Stage a plain send. False: not plain, or not sure; then nothing has happened and `accept` decides."""
        try:
            queue = self.topics.plain_queues[fields["b"]][fields["e"]]
            sys_flag, born_ms = int(fields["f"]), int(fields["g"])
            if (
                flag or fields["j"] != "0" or sys_flag & ~KEPT_FLAGS or not 0 <= born_ms < 1 << 63
                or type(opaque) is not int or not -0x80000000 <= opaque <= 0x7FFFFFFF
                or len(body) > self.settings.max_message_size
            ):  # fmt: skip
                return False
            if fields["m"] != "false":
                return fields["m"] == "true" and self._take_batch(queue, fields["i"], opaque, body, sys_flag, born_ms, born_host)
            tag, known = 0, self._known
            keys: list[str] = []
            kept: list[str] = []
            text = fields["i"]
            for item in (text[:-1] if text[-1:] == "\x02" else text).split("\x02"):  # 5.x ends them with a separator
                if item[:9] == UNIQUE_KEY_MARK and len(item) > 9:
                    keys.insert(0, item[9:])
                    kept.append(item)
                elif item in known:
                    tag = known[item]
                    kept.append(item)
                elif item != WAITS:
                    name, _, value = item.partition("\x01")
                    if name in UNUSUAL or not value:
                        return False
                    if name == TAGS:
                        tag = tag_hash(value)
                        if len(known) < KNOWN_MAX:
                            known[item] = tag
                    elif name == KEYS:
                        keys += [word for word in value.split(" ") if word][:KEYS_MAX] if " " in value else (value,)
                    kept.append(item)
            kept.append(self.cluster_property)
            properties = "\x02".join(kept).encode()
            user_flag = int(fields["h"])
            if not -0x80000000 <= user_flag <= 0x7FFFFFFF:
                return False
        except (KeyError, ValueError, AttributeError, TypeError):
            return False
        except (Refused, StoreUnavailable):  # of a batch
            return False
        try:
            offset, queue_offset = self.store.put_derived(queue, body, properties, tag, keys, sys_flag, user_flag, born_ms, born_host)
        except (Refused, StoreUnavailable):
            return False
        self._answers.plain.append((opaque, queue.queue_id, queue_offset, self._id % offset))
        return True

    def _take_batch(
        self, queue: ConsumeQueue, header_properties: str, opaque: int, body: bytes, sys_flag: int, born_ms: int, born_host: bytes
    ) -> bool:
        """The same for a batch. Upstream stores each message's properties as they came, and adds those of the whole batch."""
        if WAITS_NOT in header_properties:
            return False
        for name in SPECIAL_MARKS:
            if name in header_properties:
                return False
        suffix = self._suffix(header_properties)
        placed = self._put_many(queue, body, suffix, sys_flag, born_ms, born_host)
        if placed is not None:
            offsets, first = placed
            self._answers.plain.append((opaque, queue.queue_id, first, self._ids(offsets)))
            return True
        parts = split_batch(body)
        if asks_for_more(b"\x02".join([properties for _, _, properties in parts])):
            return False
        messages = self._messages(parts, suffix)
        places, first = self.store.put_batch(queue, messages, sys_flag, born_ms, born_host)
        self._answers.plain.append((opaque, queue.queue_id, first, b",".join([self._id % offset for offset in places])))
        return True

    def _put_many(
        self, queue: ConsumeQueue, body: bytes, suffix: str, sys_flag: int, born_ms: int, born_host: bytes
    ) -> tuple[Longs, int] | None:
        """A batch of many, as columns. None: of few, or not sure; then nothing has happened, and one message goes after another."""
        if len(body) < MANY * int.from_bytes(body[:4], "big"):  # by the size of its first message; any answer is right
            return None
        batch = self._columns(body, suffix)
        return None if batch is None else self.store.put_columns(queue, batch, sys_flag, born_ms, born_host)

    def _columns(self, body: bytes, suffix: str) -> Batch | None:
        """What `_messages` does, for many. None: something about it is unusual, so look at one message after another."""
        columns = batch_columns(body)
        if columns is None or TAGS_MARK in suffix or KEYS_MARK in suffix:
            return None
        texts = Texts.of(columns.properties)
        if not texts.sound or asks_for_more(texts.raw) or int(columns.property_sizes.max()) > PROPERTIES_MAX - len(suffix.encode()):
            return None
        if property_of(suffix, Property.UNIQUE_KEY):  # of the whole batch, from 5.x: each keeps its own
            whose, starts, stops = texts.values(Property.UNIQUE_KEY)
            if len(whose) < len(texts) or not (stops > starts).all():
                return None
            suffix = without_unique_key(suffix)
        bare = (columns.property_sizes == 0) | (texts.last_bytes() == SEPARATOR)
        if bare.any():
            if not bare.all():
                return None
            suffix = suffix[1:]
        return Batch.of(columns, texts, suffix.encode())

    def _ids(self, offsets: Longs) -> bytes:
        """Message ids of these places in the log, with commas between."""
        ids = np.empty((len(offsets), 33), dtype=np.uint8)
        ids[:, :16] = np.frombuffer(self._host_id.encode(), dtype=np.uint8)
        ids[:, 16:32] = np.frombuffer(offsets.astype(">u8").tobytes().hex().upper().encode(), dtype=np.uint8).reshape(-1, 16)
        ids[:, 32] = ord(",")
        return ids.tobytes()[:-1]

    def _suffix(self, header_properties: str) -> str:
        """What a batch's own properties add to those of each message."""
        if header_properties == WAITS:  # from 4.x, always
            return self._usual_suffix
        return "\x02" + "\x02".join([item for item in header_properties.split("\x02") if "\x01" in item] + [self.cluster_property])

    def _messages(self, parts: list[InnerMessage], suffix: str) -> list[BatchedMessage]:
        """The messages of a batch, checked and ready to store. Raises Refused, and then none is stored.

        A name that stands in a message and in `suffix` has the latter's value, as in Java's map; but a message keeps its own
        unique key (5.x gives the whole batch one too): as 5.x brokers do, and else who drops repeated ids would lose messages.
        """
        messages: list[BatchedMessage] = []
        # Looked for once in the whole, not in every message: most batches have neither.
        every = b"\x02".join([properties for _, _, properties in parts])
        tagged, keyed = TAGS_BYTES in every, KEYS_BYTES in every
        unique, odd = property_of(suffix, Property.UNIQUE_KEY), TAGS_MARK in suffix or KEYS_MARK in suffix
        added = suffix.encode()
        keyless = without_unique_key(suffix) if unique and UNIQUE_KEY_BYTES in every else ""
        for flag, one, raw in parts:
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"properties in the batch are not UTF-8: {error}") from None
            more = keyless if keyless and property_of(text, Property.UNIQUE_KEY) else suffix
            tail = added if more is suffix else more.encode()
            properties = raw + tail if raw and raw[-1] != 2 else raw + tail[1:]
            keys: Iterable[str]
            if odd or more is not suffix or (keyed and unique):
                text += more
                tag, keys = tag_hash(property_of(text, TAGS)), index_keys(text)
            else:
                tag = tag_hash(property_of(text, TAGS)) if tagged else 0
                keys = index_keys(text) if keyed else (unique or property_of(text, Property.UNIQUE_KEY),)
            messages.append((flag, one, properties, tag, keys))
        return messages

    # Everything else

    @answers(SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE)
    def accept(self, peer: Peer, command: Command) -> None:
        """Check in upstream's order, stage, remember the answer. Raises Refused."""
        header = SEND_MESSAGE_V2.read_header(command)
        queue = self.destination(header, peer)
        if header.batch:
            self._batch(peer, command, header, queue)
        else:
            self._single(peer, command, header, queue)

    def region_fields(self) -> dict[str, str]:
        """What every answer to a send carries, one that refuses it too."""
        return {Property.MSG_REGION: self.settings.region_id, Property.TRACE_ON: "true" if self.settings.trace_on else "false"}

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
        ids, handle = f"{self._host_id}{place.log_offset:016X}", self.recall_handle(draft)
        self._remember(command, queue.queue_id, place.queue_offset, ids, header.properties or "", handle)

    def _batch(self, peer: Peer, command: Command, header: SendHeader, queue: ConsumeQueue) -> None:
        if queue.topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {queue.topic}")
        if len(command.body) > self.settings.max_message_size:
            raise too_large(len(command.body), self.settings.max_message_size)
        whole = header.properties or ""
        suffix, sys_flag = self._suffix(whole), header.sys_flag & KEPT_FLAGS
        placed = None
        if 0 <= header.born_timestamp < 1 << 63 and not any(mark in whole for mark in SPECIAL_MARKS):
            # As the hot path has it. When the broker is behind all come here, and message by message would cost three times as much.
            placed = self._put_many(queue, command.body, suffix, sys_flag, header.born_timestamp, peer.host)
        if placed is not None:
            offsets, first = placed
            self._remember(command, queue.queue_id, first, self._ids(offsets).decode(), whole)
            return
        parts = split_batch(command.body)
        for text in (whole, *(properties.decode("utf-8", "replace") for _, _, properties in parts)):
            asked = self._properties(text)
            if any(asked.get(name, "0") not in NOTHING_ASKED for name in SPECIAL):
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch can be neither delayed, timed nor transactional")
        places, first = self.store.put_batch(queue, self._messages(parts, suffix), sys_flag, header.born_timestamp, peer.host)
        ids = ",".join(f"{self._host_id}{offset:016X}" for offset in places)
        self._remember(command, queue.queue_id, first, ids, whole)

    def answer_when_stored(self, command: Command, message_id: str = "") -> None:
        """For requests of other kinds that staged a message: success when it is as safe as a send's, else why not."""
        self._batch_under_way().sent.append((command, 0, 0, message_id, None))

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
        kept[Property.CLUSTER] = self.settings.broker_cluster_name
        return kept

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

    def metrics(self) -> dict[str, object]:
        return {
            "putMessageFailedTimes": self.failed,
            "sendThreadPoolQueueSize": self.flow.waiting,
            "sendThreadPoolQueueCapacity": self.settings.send_thread_pool_queue_capacity,
        }

    # A batch of frames

    def begin(self, peer: Peer) -> Answers:
        """What is staged from now on is answered to this peer, by `finish` or `abandon`, one of which must follow."""
        assert self._answers is NOBODY, "a batch of frames began inside another"
        self._answers = Answers(peer)
        return self._answers

    def serves(self, peer: Peer) -> bool:
        return self._answers.peer is peer

    def _batch_under_way(self) -> Answers:
        if self._answers is NOBODY:
            raise RuntimeError("a message was staged to be answered, but no batch of frames is under way")
        return self._answers

    def finish(self, answers: Answers) -> None:
        """Write what was staged, and answer: at once, or when the flush that was promised is done."""
        self._answers = NOBODY
        peer, plain, sent, no_wait = answers.peer, answers.plain, answers.sent, answers.no_wait
        assert peer is not None
        try:
            self.store.commit()
        except StoreUnavailable as error:
            refusal = self.not_stored(str(error), len(plain) + len(sent) + len(no_wait))
            self._answer(peer, plain, sent + no_wait, refusal.code, refusal.remark)
            return
        log_ = self.store.log
        target = log_.written
        if log_.safe < target and (plain or sent):
            flow, count = self.flow, len(plain) + len(sent)
            flow.waiting += count

            def safe(reached: bool) -> None:
                flow.waiting -= count
                if reached:
                    self._answer(peer, plain, sent)
                else:
                    self._answer(peer, plain, sent, *self._not_safe(target))

            log_.when_safe(target, self.store.steady_ms + self.settings.sync_flush_timeout, safe)
            self._answer(peer, [], no_wait)
        elif answers:
            self._answer(peer, plain, sent + no_wait)

    def _not_safe(self, target: int) -> tuple[int, str]:
        """What is missing of what was promised for messages up to here."""
        if self.store.log.flushed < target:
            return ResponseCode.FLUSH_DISK_TIMEOUT, "the message is written, its fsync is not confirmed"
        return ResponseCode.FLUSH_SLAVE_TIMEOUT, "the message is on this disk, no other node has confirmed it"

    def abandon(self, answers: Answers, why: str) -> None:
        """Something went wrong that nobody foresaw: nothing of what was staged happens, and everybody who waits is told."""
        self._answers = NOBODY
        self.store.undo()
        if answers.peer is not None:
            self._answer(answers.peer, answers.plain, answers.sent + answers.no_wait, ResponseCode.SYSTEM_ERROR, why)

    def _answer(self, peer: Peer, plain: list[Plain], sent: list[Sent], code: int = 0, remark: str | None = None) -> None:
        if peer.closed:
            return
        answers: list[bytes] = []
        if code:
            sent = sent + [
                (Command(RequestCode.SEND_MESSAGE_V2, opaque=opaque), queue_id, queue_offset, ids.decode(), None)
                for opaque, queue_id, queue_offset, ids in plain
            ]
        else:
            back = self._answer_back
            for opaque, queue_id, queue_offset, ids in plain:
                head = b'{"code":0,"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d%b%d}' % (
                    ids, queue_id, queue_offset, back, opaque,
                )  # fmt: skip
                answers += (PREFIXES[len(head)], head) if len(head) < len(PREFIXES) else (prefix(len(head)), head)
        answers += [self._reply(one, code, remark).encode() for one in sent if not one[0].is_oneway]
        if answers:
            peer.send(b"".join(answers))

    def _reply(self, sent: Sent, code: int, remark: str | None) -> Command:
        command, queue_id, queue_offset, ids, recall_handle = sent
        # Requests of other kinds store a message, too, and what is answered says nothing of it.
        if code not in (0, ResponseCode.FLUSH_DISK_TIMEOUT) or CALLS[command.code].answer_header_type is not SendResponseHeader:
            return command.reply(code, remark)
        header = self.response_header(ids, queue_id, queue_offset, recall_handle)
        return SEND_MESSAGE_V2.reply(command, header, code=code, remark=remark)


def asks_for_more(properties: bytes) -> bool:
    """May one of these ask for more than storing?"""
    return any(mark in properties for mark in SPECIAL_BYTES)


def without_unique_key(suffix: str) -> str:
    return "".join(["\x02" + item for item in suffix[1:].split("\x02") if not item.startswith(UNIQUE_KEY_MARK)])


def too_large(size: int, limit: int) -> Refused:
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal, maybe msg body or properties length not matched. msg body length {size}, "
        f"msg body length limit {limit}B, msg properties length limit 32KB.",
    )
