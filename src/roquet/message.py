"""The nouns everybody shares: a message to send, a queue, and a message received."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from operator import attrgetter
from typing import Any, NamedTuple, cast

from roquet.errors import InvalidMessage
from roquet.wire.compression import DECOMPRESSED_MAX, decompress
from roquet.wire.ids import offset_message_id
from roquet.wire.record import Record, decode_properties, stored_body


class Property:
    """Names of properties that mean something to brokers and clients. Anything else is the user's."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    BUYER_ID = "BUYER_ID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME = "RECONSUME_TIME"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQUE_KEY = "UNIQ_KEY"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    INSTANCE_ID = "INSTANCE_ID"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    CLUSTER = "CLUSTER"
    MESSAGE_TYPE = "MSG_TYPE"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    SHARDING_KEY = "__SHARDINGKEY"
    TRANSACTION_ID = "__transactionId__"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_CANCELLED_KEY = "TIMER_DEL_UNIQKEY"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
    START_DELIVER_TIME = "__STARTDELIVERTIME"
    DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
    FAILURE = "ROQUET_FAILURE"
    """Ours: why consuming it failed the last time."""


FAILURE_MAX = 300


def failure_text(text: str) -> str:
    """A reason as a property can hold it: one line, not long, without the bytes that separate properties."""
    return "".join(char if char.isprintable() else "?" for char in text[:FAILURE_MAX])


DELAY_LEVEL_MAX = 1_000
DELIVER_AFTER_MAX_S = 10 * 365 * 86_400


def deliver_ms(when: datetime | int) -> int:
    """Milliseconds since 1970. Raises InvalidMessage for a time without a zone, or before 1970."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidMessage(f"deliver_at={when} has no time zone; add one: datetime.now(UTC) + ..., or when.astimezone()")
        return int(when.timestamp() * 1000)
    if isinstance(when, bool) or not isinstance(when, int) or not 0 < when < 1 << 62:
        raise InvalidMessage(f"deliver_at is {when!r}; expected a datetime, or milliseconds since 1970")
    return when


def delay_ms(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= DELIVER_AFTER_MAX_S:
        raise InvalidMessage(f"deliver_after is {seconds!r}; expected more than 0 and at most {DELIVER_AFTER_MAX_S} seconds")
    return max(1, round(seconds * 1000))


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker. Sorts as rebalancing wants it: topic, broker name, number."""

    topic: str
    broker_name: str
    queue_id: int


class Message:
    """A message to send.

        Message("orders", b"...", tags="paid", keys=["order-17"], properties={"region": "eu"})
        Message("reminders", b"...", deliver_after=90)       # seconds; or deliver_at=a datetime or ms since 1970
        Message("reminders", b"...", delay_level=3)          # the broker's third level, 10 s by default

    Tags, keys and the delay are properties under upstream's names; the attributes read and write those.
    """

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str = "",
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
        wait_store_ok: bool = True,
    ) -> None:
        if type(body) is not bytes:
            if not isinstance(body, (bytes, bytearray, memoryview)):
                raise InvalidMessage(f"body is a {type(body).__name__}, expected bytes; encode text first: text.encode()")
            body = bytes(body)
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties: dict[str, str] = {}
        if properties:
            self.properties.update(properties)
            for name, value in self.properties.items():
                if not isinstance(name, str) or not isinstance(value, str):
                    raise InvalidMessage(f"property {name!r} is {value!r}; names and values must be text")
        if tags:
            self.tags = tags
        if keys != () and keys is not None:
            self.keys = keys
        if delay_level != 0 or deliver_at is not None or deliver_after is not None:
            self._delay(delay_level, deliver_at, deliver_after)
        if not wait_store_ok:
            self.wait_store_ok = False

    def _delay(self, level: int, deliver_at: datetime | int | None, deliver_after: float | None) -> None:
        if (level != 0) + (deliver_at is not None) + (deliver_after is not None) > 1:
            raise InvalidMessage("delay_level, deliver_at and deliver_after exclude each other; give one of them")
        if level:
            self.delay_level = level
        if deliver_at is not None:
            self._put(Property.TIMER_DELIVER_MS, str(deliver_ms(deliver_at)))
        if deliver_after is not None:
            self._put(Property.TIMER_DELAY_MS, str(delay_ms(deliver_after)))

    @property
    def tags(self) -> str:
        """The tag: one word by which consumers choose; "" for none."""
        return self.properties.get(Property.TAGS, "")

    @tags.setter
    def tags(self, tags: str) -> None:
        if not isinstance(tags, str):
            first = next(iter(tags), "a") if isinstance(tags, (list, tuple, set)) else tags
            raise InvalidMessage(f'tags is {tags!r}; expected is one text, since a message has one tag: tags="{first}"')
        self._put(Property.TAGS, tags)

    @property
    def keys(self) -> list[str]:
        """The words by which the message can be found again (`roquet query key`). Takes a list, or a text with spaces between the words."""
        return self.properties.get(Property.KEYS, "").split()

    @keys.setter
    def keys(self, keys: str | Iterable[str]) -> None:
        """A text is one key, or several with spaces between, as upstream has it; in a list no key may hold a space."""
        if isinstance(keys, str):
            self._put(Property.KEYS, keys)
            return
        words = list(keys) if isinstance(keys, Iterable) else [keys]
        if not isinstance(keys, Iterable) or not all(isinstance(word, str) for word in words):
            listed = ", ".join(f'"{word}"' for word in words)
            raise InvalidMessage(f"keys is {keys!r}; expected is a text, or a list of texts: keys=[{listed}]")
        for word in words:
            if not word or word.split() != [word]:
                raise InvalidMessage(f"key {word!r} is empty or holds white space, which separates keys")
        self._put(Property.KEYS, " ".join(words))

    @property
    def delay_level(self) -> int:
        """The number of the broker's delay level after which it is delivered; 0: at once."""
        text = self.properties.get(Property.DELAY, "")
        return int(text) if text.isascii() and text.isdigit() else 0

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        """Brokers take a level above their highest for their highest."""
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= DELAY_LEVEL_MAX:
            raise InvalidMessage(f"delay_level is {level!r}, allowed are 0 (no delay) to {DELAY_LEVEL_MAX}; brokers have 18 by default")
        self._put(Property.DELAY, str(level) if level else "")

    @property
    def wait_store_ok(self) -> bool:
        """Whether the answer waits until the message is as safe as the broker's flush and replication modes promise."""
        return self.properties.get(Property.WAIT, "true").lower() == "true"

    @wait_store_ok.setter
    def wait_store_ok(self, wait: bool) -> None:
        self._put(Property.WAIT, "true" if wait else "false")

    @property
    def transaction_id(self) -> str:
        """Of the message that a TransactionProducer gives to execute(): what check() gets to see later."""
        return self.properties.get(Property.TRANSACTION_ID) or self.properties.get(Property.UNIQUE_KEY, "")

    def _put(self, name: str, value: str) -> None:
        if value:
            self.properties[name] = value
        else:
            self.properties.pop(name, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and all(getattr(self, name) == getattr(other, name) for name in Message.__slots__)

    __hash__ = None  # type: ignore[assignment] # mutable

    def __repr__(self) -> str:
        extra = f" tags={self.tags!r}" if self.tags else ""
        extra += f" keys={self.keys}" if self.keys else ""
        return f"<Message {self.topic} {len(self.body)} bytes{extra}>"


def of_record(name: str, about: str) -> Any:
    """An attribute of a ReceivedMessage that its record has under the same name."""
    return property(attrgetter(f"record.{name}"), doc=about)


class QueueReach(NamedTuple):
    """How far a queue reached when messages were pulled from it. One for all messages of an answer."""

    min_offset: int
    max_offset: int


UNKNOWN_REACH = QueueReach(-1, -1)


class ReceivedMessage:
    """A message as a consumer gets it. Read-only by agreement."""

    __slots__ = ("_began_ms", "_body", "_properties", "_record", "queue", "reach")

    topic: str = of_record("topic", "Its topic. A PushConsumer shows of a retried message the topic that it was first sent to.")
    queue_id: int = of_record("queue_id", "The number of its queue on its broker.")
    queue_offset: int = of_record("queue_offset", "Its number in that queue, counted from 0.")
    physical_offset: int = of_record("physical_offset", "Where its record begins in the broker's log, in bytes.")
    flag: int = of_record("flag", "The number that the producer gave it; brokers do not use it.")
    sys_flag: int = of_record("sys_flag", "Bits of the protocol: compression, transaction state, kind of addresses.")
    born_timestamp: int = of_record("born_timestamp", "When the producer made it, ms since 1970.")
    store_timestamp: int = of_record("store_timestamp", "When the broker stored it, ms since 1970.")
    reconsume_times: int = of_record("reconsume_times", "How often consuming it failed before.")
    prepared_transaction_offset: int = of_record(
        "prepared_transaction_offset", "Of a message of a transaction: where its half message is in the broker's log; else 0."
    )

    stored_size: int = cast(Any, property(lambda self: len(self.record.body), doc="Bytes of its body as stored: compressed, where it is."))

    _began_ms: int

    def __init__(self, record: Record, broker_name: str = "", queue: MessageQueue | None = None) -> None:
        """`queue`: the one it came from, where that is known."""
        self._record: Record | None = record
        self.queue = queue or MessageQueue(record.topic, broker_name, record.queue_id)
        self.reach = UNKNOWN_REACH
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None

    @property
    def record(self) -> Record:
        """What its broker stored."""
        assert self._record is not None
        return self._record

    @property
    def properties(self) -> dict[str, str]:
        """Names and texts that came with it."""
        if self._properties is None:
            self._properties = decode_properties(self.record.properties)
        return self._properties

    @property
    def body(self) -> bytes:
        """Decompressed, at the first look: a damaged body raises InvalidMessage in the one who consumes it, so that it
        is retried and ends as a dead letter like any other failure, and does not stop its neighbours."""
        if self._body is None:
            self._body = decompress(self.record.body, self.record.sys_flag, DECOMPRESSED_MAX)
        return self._body

    @property
    def tags(self) -> str:
        """Its tag; "" for none."""
        return self.properties.get(Property.TAGS, "")

    @property
    def keys(self) -> list[str]:
        """Its keys; an empty list for none."""
        return self.properties.get(Property.KEYS, "").split()

    @property
    def message_id(self) -> str:
        """The producer's unique id; of one without, the offset id."""
        return self.properties.get(Property.UNIQUE_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Where it is stored: broker address and physical offset."""
        return offset_message_id(self.record.store_host, self.record.physical_offset & 0xFFFFFFFFFFFFFFFF)

    @property
    def born_host(self) -> str:
        """Who sent it: "ip:port"."""
        return host_text(self.record.born_host)

    @property
    def store_host(self) -> str:
        """The broker that stored it: "ip:port"."""
        return host_text(self.record.store_host)

    @property
    def failure(self) -> str:
        """Why consuming it failed the last time, as its handler's exception said it; "" when nobody said."""
        return self.properties.get(Property.FAILURE, "")

    @property
    def attempt(self) -> int:
        """Which time it is consumed: 1 for the first."""
        return self.reconsume_times + 1

    @property
    def min_offset(self) -> int:
        """The first offset that its queue still had when it was pulled; -1 of a message that was not pulled."""
        return self.reach.min_offset

    @property
    def max_offset(self) -> int:
        """The offset that the next message of its queue was to get when it was pulled; -1 of a message that was not pulled."""
        return self.reach.max_offset

    @property
    def lag(self) -> int:
        """How many messages stood behind it in its queue when it was pulled: 0 for the last one. -1 of a message that was not pulled."""
        return self.reach.max_offset - self.queue_offset - 1 if self.reach.max_offset >= 0 else -1

    @property
    def consuming_began_ms(self) -> int:
        """When its handler was called (of a LitePullConsumer: when poll returned it), ms since 1970; 0: that has not happened."""
        return getattr(self, "_began_ms", 0)  # set by the consumer, and by nobody before

    @property
    def transaction_id(self) -> str:
        """Of a message of a transaction: the id that its producer knows it by; else its unique id."""
        return self.properties.get(Property.TRANSACTION_ID) or self.properties.get(Property.UNIQUE_KEY, "")

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.topic} {self.queue.broker_name}:{self.queue_id} @{self.queue_offset} {self.message_id}>"


class PulledMessage(ReceivedMessage):
    """One from an answer whose records were all sound and of the queue that was asked. It is read when somebody looks at it."""

    __slots__ = ("_raw", "queue_offset", "stored_size")

    def __init__(self, raw: bytes, queue_offset: int, stored_size: int, queue: MessageQueue, reach: QueueReach = UNKNOWN_REACH) -> None:
        self._raw = raw
        self.queue_offset = queue_offset
        self.stored_size = stored_size
        self.queue = queue
        self.reach = reach
        self._record = self._properties = self._body = None

    @property
    def record(self) -> Record:
        if self._record is None:
            self._record = Record.decode(self._raw, check_crc=False)
        return self._record

    @property
    def topic(self) -> str:  # type: ignore[override] # asked of every message: it is the queue's, unless it was changed
        return self.queue.topic if self._record is None else self._record.topic

    @property
    def body(self) -> bytes:
        if self._body is None:
            self._body = decompress(*stored_body(self._raw, self.stored_size), DECOMPRESSED_MAX)
        return self._body


def host_text(host: bytes) -> str:
    """ "ip:port" of a record's host; an IPv6 address stands in brackets."""
    ip = ip_address(host[:-4])
    port = int.from_bytes(host[-4:], "big")
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
