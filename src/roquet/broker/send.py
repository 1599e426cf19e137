"""Sends: 310 and 320 (short names), 10 (long names), a batch wherever its flag says so.

The load comes as JSON 310 for a topic that is known and writable. `take` reads the few fields it needs straight from the
parsed header, stages the record and remembers the answer; anything unusual goes through `accept`, which decodes the typed
header and makes every check in upstream's order. Both end in `finish`, once per batch of frames: one log write, one socket write.

What upstream adds and strips: CLUSTER is appended to the stored properties, WAIT is honoured and not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roquet.broker.topics import Topic, Topics
from roquet.errors import Refused, StoreUnavailable
from roquet.ports import Peer
from roquet.settings import BrokerSettings
from roquet.store.fanout import KEYS_MAX, tag_hash
from roquet.store.queue import ConsumeQueue
from roquet.store.store import Store
from roquet.wire import headers
from roquet.wire.batch import split_batch
from roquet.wire.codes import Perm, RequestCode, ResponseCode
from roquet.wire.command import VERSION, Command
from roquet.wire.names import NOT_ALLOWED_SEND_TOPICS, check_topic

if TYPE_CHECKING:
    from random import Random

PROPERTIES_MAX = 32_767

SPECIAL = frozenset(
    (
        "DELAY", "TRAN_MSG", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "__STARTDELIVERTIME",
        "INNER_MULTI_DISPATCH",
    )
)  # fmt: skip
"""Properties that ask for more than storing. Each has its own issue; until then it is refused, not silently ignored."""

UNUSUAL = SPECIAL | {"WAIT"}
"""What the hot path leaves to `accept`."""

Plain = tuple[int, int, int, int]
"""A send of the hot path, to be answered: (opaque, queue id, queue offset, log offset)."""

Sent = tuple[Command, int, int, str]
"""Any other: (the request, queue id, first queue offset, message ids)."""

KNOWN_MAX = 10_000

PREFIXES = [(size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") for size in range(1024)]
"""What stands before a JSON header of this size in a frame without a body."""


class Sender:
    """State: `_plain` and `_sent` are what this batch of frames staged, `_no_wait` the part that does not wait for the flush."""

    def __init__(self, store: Store, topics: Topics, settings: BrokerSettings, random: Random) -> None:
        self.store = store
        self.topics = topics
        self.settings = settings
        self.random = random
        self.cluster_property = f"CLUSTER\x01{settings.broker_cluster_name}"
        self._plain: list[Plain] = []
        self._sent: list[Sent] = []
        self._no_wait: list[Sent] = []
        self._known: dict[str, int] = {}
        """Property texts seen before that are more than kept: a tag -> its hash. They repeat with every message."""
        self._host_id = ""
        self._answer_front = self._answer_back = b""
        self.store_host_changed()

    def store_host_changed(self) -> None:
        """The listening port became known: message ids carry it."""
        self._host_id = self.store.store_host.hex().upper()
        self._answer_front = b'{"code":0,"extFields":{"msgId":"%b' % self._host_id.encode()
        trace_on = b"true" if self.settings.trace_on else b"false"
        self._answer_back = (
            b'","MSG_REGION":"%b","TRACE_ON":"%b"},"flag":1,"language":"JAVA","serializeTypeCurrentRPC":"JSON","version":%d,"opaque":'
            % (self.settings.region_id.encode(), trace_on, VERSION)
        )

    # The hot path

    def take(self, fields: dict[str, Any], opaque: int, flag: int, body: bytes, born_host: bytes) -> bool:
        """Stage a plain send. False: not plain, or not sure; then nothing has happened and `accept` decides."""
        try:
            queue = self.topics.doors[fields["b"]][fields["e"]]
            sys_flag, born_ms, user_flag = int(fields["f"]), int(fields["g"]), int(fields["h"])
            if (
                flag or fields["m"] != "false" or fields["j"] != "0" or sys_flag & ~0x701 or not 0 <= born_ms < 1 << 63
                or not -0x80000000 <= user_flag <= 0x7FFFFFFF or type(opaque) is not int or not -0x80000000 <= opaque <= 0x7FFFFFFF
                or len(body) > self.settings.max_message_size or self.store.failed or self.store.full
            ):  # fmt: skip
                return False
            tag, known = 0, self._known
            keys: list[str] = []
            kept: list[str] = []
            for item in fields["i"].split("\x02"):
                if item[:9] == "UNIQ_KEY\x01" and len(item) > 9:
                    keys.insert(0, item[9:])
                    kept.append(item)
                elif item in known:
                    tag = known[item]
                    kept.append(item)
                elif item != "WAIT\x01true":
                    name, _, value = item.partition("\x01")
                    if name in UNUSUAL or not value or "\0" in value:
                        return False
                    if name == "TAGS":
                        tag = tag_hash(value)
                        if len(known) < KNOWN_MAX:
                            known[item] = tag
                    elif name == "KEYS":
                        keys += [word for word in value.split(" ") if word][:KEYS_MAX] if " " in value else (value,)
                    kept.append(item)
            kept.append(self.cluster_property)
            properties = "\x02".join(kept).encode()
            if len(properties) > PROPERTIES_MAX:
                return False
        except (KeyError, ValueError, AttributeError, TypeError):
            return False
        offset, queue_offset = self.store.put_derived(queue, body, properties, tag, keys, sys_flag, user_flag, born_ms, born_host)
        self._plain.append((opaque, queue.queue_id, queue_offset, offset))
        return True

    # Everything else

    def accept(self, peer: Peer, command: Command) -> None:
        """Check in upstream's order, stage, remember the answer. Raises Refused."""
        header = headers.decode(headers.SendHeader, command.fields)
        topic = self._topic_for(header, peer)
        queue_id = self._queue_for(header, topic, peer)
        why = self.store.refuse_writes()
        if why:
            raise unavailable(why)
        queue = self.store.queue(topic.name, queue_id)
        if header.batch:
            self._batch(peer, command, header, queue)
        else:
            self._single(peer, command, header, queue)

    def _single(self, peer: Peer, command: Command, header: headers.SendHeader, queue: ConsumeQueue) -> None:
        text = self._stored_properties(header.properties or "")
        self._check_size(len(command.body), text)
        sys_flag = header.sys_flag & 0x7FFFFFCF  # the host bits say what we store, not what the client thinks
        offset, queue_offset = self.store.put(
            queue,
            command.body,
            text,
            sys_flag=sys_flag & ~0xC,
            flag=header.flag,
            born_ms=header.born_timestamp,
            born_host=peer.host,
            reconsumed=header.reconsume_times or 0,
        )
        self._remember(command, queue, queue_offset, f"{self._host_id}{offset:016X}", header.properties or "")

    def _batch(self, peer: Peer, command: Command, header: headers.SendHeader, queue: ConsumeQueue) -> None:
        parts = split_batch(command.body)
        if queue.topic.startswith("%RETRY%"):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {queue.topic}")
        if len(command.body) > self.settings.max_message_size:
            raise too_large(len(command.body), self.settings.max_message_size)
        texts = []
        for _, body, raw in parts:  # all are checked before the first is staged: a batch is stored whole or not at all
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"properties in the batch are not UTF-8: {error}") from None
            text = self._stored_properties(text)
            self._check_size(len(body), text)
            texts.append(text)
        put, host_id, born_host = self.store.put, self._host_id, peer.host
        born_ms, sys_flag = header.born_timestamp, header.sys_flag & 0x701
        ids, first = [], queue.next
        for (flag, body, _), text in zip(parts, texts, strict=True):
            offset, _ = put(queue, body, text, sys_flag=sys_flag, flag=flag, born_ms=born_ms, born_host=born_host)
            ids.append(f"{host_id}{offset:016X}")
        self._remember(command, queue, first, ",".join(ids), header.properties or "")

    def _remember(self, command: Command, queue: ConsumeQueue, queue_offset: int, ids: str, properties: str) -> None:
        no_wait = "WAIT\x01false" in properties
        (self._no_wait if no_wait else self._sent).append((command, queue.queue_id, queue_offset, ids))

    def _topic_for(self, header: headers.SendHeader, peer: Peer) -> Topic:
        settings, name = self.settings, header.topic
        found = self.topics.get(name)
        if not settings.broker_permission & Perm.WRITE and (found is None or not found.order):
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

    def _queue_for(self, header: headers.SendHeader, topic: Topic, peer: Peer) -> int:
        queue_id = header.queue_id
        if queue_id >= max(topic.read_queues, topic.write_queues):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"request queueId[{queue_id}] is illegal, {topic} Producer: {peer.address}")
        return queue_id if queue_id >= 0 else self.random.randrange(max(1, topic.write_queues))

    def _stored_properties(self, text: str) -> str:
        """What is stored of a message's properties. Refuses those that ask for what this version does not do."""
        if "\0" in text:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal, its properties contain a zero character")
        kept = []
        for item in text.split("\x02"):
            name, separator, value = item.partition("\x01")
            if not separator or not value or name == "WAIT":
                continue
            if name in SPECIAL and not (name == "TRAN_MSG" and value != "true") and not (name == "DELAY" and value in ("0", "")):
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"this broker does not yet serve messages with property {name}={value[:64]}")
            kept.append(item)
        kept.append(self.cluster_property)
        return "\x02".join(kept)

    def _check_size(self, size: int, properties: str) -> None:
        length = len(properties.encode())
        if size > self.settings.max_message_size:
            raise too_large(size, self.settings.max_message_size)
        if length > PROPERTIES_MAX:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal, maybe msg properties length {length} exceeds the limit of {PROPERTIES_MAX} bytes.",
            )

    # The end of a batch of frames

    def finish(self, peer: Peer) -> None:
        """Write what was staged, and answer: at once, or when the flush that was promised is done."""
        plain, sent, no_wait = self._plain, self._sent, self._no_wait
        if plain or sent or no_wait:  # all of them: what waits for the flush below keeps these lists, also the empty ones
            self._plain, self._sent, self._no_wait = [], [], []
        try:
            self.store.commit()
        except StoreUnavailable as error:
            refusal = unavailable(str(error))
            self._answer(peer, plain, sent + no_wait, refusal.code, refusal.remark)
            return
        if self.store.sync_flush and (plain or sent):
            deadline_ms = self.store.now_ms + self.settings.sync_flush_timeout

            def flushed(reached: bool) -> None:
                if reached:
                    self._answer(peer, plain, sent)
                else:
                    self._answer(peer, plain, sent, ResponseCode.FLUSH_DISK_TIMEOUT, "the message is written, its fsync is not confirmed")

            self.store.log.flushed.when_reached(self.store.log.written, deadline_ms, flushed)
            self._answer(peer, [], no_wait)
        else:
            self._answer(peer, plain, sent + no_wait)

    def _answer(self, peer: Peer, plain: list[Plain], sent: list[Sent], code: int = 0, remark: str | None = None) -> None:
        if peer.closed:
            return
        answers: list[bytes] = []
        if code:
            sent = sent + [
                (Command(RequestCode.SEND_MESSAGE_V2, opaque=opaque), queue_id, queue_offset, f"{self._host_id}{offset:016X}")
                for opaque, queue_id, queue_offset, offset in plain
            ]
        else:
            front, back = self._answer_front, self._answer_back
            for opaque, queue_id, queue_offset, offset in plain:
                head = b'%b%016X","queueId":"%d","queueOffset":"%d%b%d}' % (front, offset, queue_id, queue_offset, back, opaque)
                answers += (PREFIXES[len(head)], head)
        for command, queue_id, queue_offset, ids in sent:
            if not command.is_oneway:
                answers.append(self._reply(command, queue_id, queue_offset, ids, code, remark).encode())
        if answers:
            peer.send(b"".join(answers))

    def _reply(self, command: Command, queue_id: int, queue_offset: int, ids: str, code: int, remark: str | None) -> Command:
        if code not in (0, ResponseCode.FLUSH_DISK_TIMEOUT):
            return command.reply(code, remark)
        header = headers.SendResponseHeader(
            ids, queue_id, queue_offset, None, self.settings.region_id, "true" if self.settings.trace_on else "false"
        )
        return command.reply(code, remark, headers.encode(header))


def unavailable(why: str) -> Refused:
    return Refused(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now. It may be caused by one of the following reasons: the broker's disk is full, "
        f"messages are put to the slave, message store has been shut down, etc. Here: {why}",
    )


def too_large(size: int, limit: int) -> Refused:
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal, maybe msg body or properties length not matched. msg body length {size}, "
        f"msg body length limit {limit}B, msg properties length limit 32KB.",
    )
