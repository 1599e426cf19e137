"""JSON bodies: what requests and answers carry besides their fields, as dataclasses.

    body = HeartbeatBody.decode(command.body)        raises Refused(1) with the place and the value that does not fit
    data = body.encode()                             as upstream writes it, bare numbers and object keys included

A field's name on the wire is its Python name in camel case; where it is not, `named` says it. Absent and null fields take
the default, None is not written, unknown fields are ignored. Sets travel as arrays; ours are written sorted.
What other clients do differently is taken too: C++ sends enums as numbers and a version as text.
"""

from __future__ import annotations

import dataclasses
import types
import typing
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from roquet.errors import InvalidMessage, Refused
from roquet.message import MessageQueue
from roquet.wire.codes import RequestCode, ResponseCode, SysFlag
from roquet.wire.compression import decompress
from roquet.wire.fastjson import ObjectKey, dumps, dumps_standard, loads
from roquet.wire.headers import INT32, INT64, NUMBER
from roquet.wire.record import body_crc

B = TypeVar("B", bound="Body")

# ---- how a class reads and writes itself ------------------------------------------------------------------------------


class Misfit(ValueError):
    """A value that does not fit, and the way to it. Becomes Refused at the top."""

    def __init__(self, what: str, *path: str) -> None:
        super().__init__(what)
        self.what = what
        self.path = list(path)  # innermost first


class Body:
    """Base: reading, checking and writing."""

    __slots__ = ()

    @classmethod
    def decode(cls: type[B], data: bytes) -> B:
        """Raises Refused(1) when the bytes are not JSON or not of this shape."""
        return cls.from_json(loads(data))

    @classmethod
    def from_json(cls: type[B], value: Any) -> B:
        try:
            return read_body(cls, value)
        except Misfit as misfit:
            place = ".".join(reversed(misfit.path)) or "it"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{cls.__name__}: {place} {misfit.what}") from None

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for column in columns(type(self)):
            value = getattr(self, column.attribute)
            if value is not None:
                made[column.name] = column.write(value)
        return made

    def encode(self) -> bytes:
        return dumps(self.to_json())


Read = Callable[[Any], Any]
Write = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Column:
    attribute: str
    name: str
    also: tuple[str, ...]
    required: bool
    read: Read
    write: Write


_tables: dict[type, tuple[Column, ...]] = {}


def named(name: str, *, also: tuple[str, ...] = (), bits: int = 64, default: Any = dataclasses.MISSING) -> Any:
    """A field whose name on the wire is not its Python name in camel case, or whose int is bounded to 32 bits."""
    metadata = {"name": name, "also": also, "bits": bits}
    if default is dataclasses.MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def small(default: Any = dataclasses.MISSING) -> Any:
    """An int of 32 bits."""
    return named("", bits=32, default=default)


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def columns(kind: type) -> tuple[Column, ...]:
    found = _tables.get(kind)
    if found is None:
        hints = typing.get_type_hints(kind)
        made: list[Column] = []
        for one in dataclasses.fields(kind):
            read, write = codec(hints[one.name], one.metadata.get("bits", 64))
            required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
            made.append(Column(one.name, one.metadata.get("name") or camel(one.name), one.metadata.get("also", ()), required, read, write))
        found = _tables[kind] = tuple(made)
    return found


def read_body(kind: type[B], value: Any) -> B:
    if not isinstance(value, dict):
        raise Misfit(f"is {shown(value)}, expected an object")
    values: dict[str, Any] = {}
    for column in columns(kind):
        given = value.get(column.name)
        if given is None:
            for name in column.also:
                given = value.get(name, given)
        if given is not None:
            try:
                values[column.attribute] = column.read(given)
            except Misfit as misfit:
                misfit.path.append(column.name)
                raise
        elif column.required:
            raise Misfit("is missing", column.name)
    return kind(**values)


def codec(hint: Any, bits: int = 64) -> tuple[Read, Write]:
    """Reader and writer of a type; collections are put together from those of their parts."""
    if isinstance(hint, types.UnionType):  # X | None; None never gets here
        (hint,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
    outer = typing.get_origin(hint)
    if outer is list or outer is set:
        read, write = codec(typing.get_args(hint)[0], bits)
        if outer is list:
            return lambda value: [read(one) for one in items(value)], lambda value: [write(one) for one in value]
        return lambda value: {read(one) for one in items(value)}, lambda value: [write(one) for one in sorted(value)]
    if outer is dict:
        key_hint, inner_hint = typing.get_args(hint)
        read_key, write_key = KEYS[key_hint]
        read, write = codec(inner_hint, bits)
        return (
            lambda value: read_table(value, read_key, read),
            lambda value: {write_key(key): write(inner) for key, inner in value.items()},
        )
    if hint is MessageQueue:
        return read_queue, write_queue
    if hint is int:
        low, high = INT32 if bits == 32 else INT64
        return lambda value: to_int(value, low, high), int
    if hint is bool:
        return to_bool, as_is
    if hint is float:
        return to_float, as_is
    if hint is str:
        return to_text, as_is
    if issubclass(hint, StrEnum):
        return lambda value: to_enum(hint, value), str
    assert issubclass(hint, Body), hint
    return lambda value: read_body(hint, value), lambda value: value.to_json()


def as_is(value: Any) -> Any:
    return value


def shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, (dict, list)) else f"a JSON {'object' if isinstance(value, dict) else 'array'}"
    return text if len(text) <= 60 else text[:60] + "..."


def items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Misfit(f"is {shown(value)}, expected an array")
    return value


def to_int(value: Any, low: int, high: int) -> int:
    if isinstance(value, str) and NUMBER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misfit(f"is {shown(value)}, expected a whole number")
    if not low <= value <= high:
        raise Misfit(f"is {value}, allowed are {low} to {high}")
    return value


def to_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    if isinstance(value, int):  # bool too
        return value != 0
    raise Misfit(f"is {shown(value)}, expected true or false")


def to_float(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise Misfit(f"is {shown(value)}, expected a number")


def to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise Misfit(f"is {shown(value)}, expected text")


def to_enum(kind: type[StrEnum], value: Any) -> StrEnum:
    """By name, or by position as C++ sends it."""
    members = list(kind)
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < len(members):
            return members[value]
    elif isinstance(value, str) and value in kind.__members__:
        return kind[value]
    raise Misfit(f"is {shown(value)}, expected one of {', '.join(members)} or its position")


def read_table(value: Any, read_key: Read, read: Read) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise Misfit(f"is {shown(value)}, expected an object")
    made: dict[Any, Any] = {}
    for key, inner in value.items():
        try:
            if inner is None:
                raise Misfit("is null")
            made[read_key(key)] = read(inner)
        except Misfit as misfit:
            misfit.path.append(str(key)[:60])
            raise
    return made


def read_queue(value: Any) -> MessageQueue:
    if not isinstance(value, dict):
        raise Misfit(f"is {shown(value)}, expected a queue: brokerName, queueId, topic")
    topic, broker_name, queue_id = value.get("topic"), value.get("brokerName"), value.get("queueId")
    if not isinstance(topic, str) or not isinstance(broker_name, str):
        raise Misfit(f"has topic {shown(topic)} and brokerName {shown(broker_name)}, expected texts")
    return MessageQueue(topic, broker_name, to_int(queue_id, *INT32))


def write_queue(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def read_text_key(key: Any) -> str:
    if not isinstance(key, str):
        raise Misfit("is an object that stands as a key, expected a text")
    return key


def read_int_key(key: Any) -> int:
    return to_int(key, *INT64)


def read_queue_key(key: Any) -> MessageQueue:
    return read_queue(key.as_dict() if isinstance(key, ObjectKey) else key)


KEYS: dict[Any, tuple[Read, Write]] = {
    str: (read_text_key, as_is),
    int: (read_int_key, int),
    MessageQueue: (read_queue_key, as_is),
}

# ---- topics -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """Which state a table is in: when it last changed, and how often it has. 5.x adds a state version."""

    timestamp: int = 0
    counter: int = 0
    state_version: int | None = None

    def next(self, now_ms: int) -> DataVersion:
        """Of the table after one more change."""
        return dataclasses.replace(self, timestamp=now_ms, counter=self.counter + 1)


@dataclass(slots=True)
class TopicConfig(Body):
    topic_name: str
    read_queue_nums: int = small(16)
    write_queue_nums: int = small(16)
    perm: int = small(6)
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = small(0)
    order: bool = False
    attributes: dict[str, str] | None = None


@dataclass(slots=True)
class TopicTable(Body):
    """Answer of 21; topics.json."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def from_json(cls, value: Any) -> TopicTable:
        """A table may hold tens of thousands of topics: those that look as usual are read without the machinery, three times faster."""
        table = value.get("topicConfigTable") if isinstance(value, dict) else None
        if not isinstance(table, dict):
            return super(TopicTable, cls).from_json(value)
        made: dict[str, TopicConfig] = {}
        odd: dict[str, Any] = {}
        for key, one in table.items():
            config = usual_topic(one)
            if config is None:
                odd[key] = one
            made[key] = config  # type: ignore[assignment]  # its place in the order; an odd one is filled in below
        rest = super(TopicTable, cls).from_json({**value, "topicConfigTable": odd})
        made.update(rest.topic_config_table)
        return cls(made, rest.data_version)


def usual_topic(one: Any) -> TopicConfig | None:
    """None: something about it is not as upstream writes it, and the machinery says whether it will do."""
    try:
        name, kind, attributes = one["topicName"], one.get("topicFilterType", "SINGLE_TAG"), one.get("attributes")
        read, write, perm, flag = one["readQueueNums"], one["writeQueueNums"], one["perm"], one.get("topicSysFlag", 0)
        order = one.get("order", False)
    except (KeyError, TypeError, AttributeError):
        return None
    if type(name) is not str or type(kind) is not str or type(order) is not bool or attributes is not None:
        return None
    if type(read) is not int or type(write) is not int or type(perm) is not int or type(flag) is not int:
        return None
    if not (-SMALL <= read < SMALL and -SMALL <= write < SMALL and -SMALL <= perm < SMALL and -SMALL <= flag < SMALL):
        return None
    return TopicConfig(name, read, write, perm, kind, flag, order)


SMALL = 1 << 31
COMPRESSED_LIMIT = 64 * 1024 * 1024


@dataclass(slots=True)
class RegisterBrokerBody(Body):
    """103. From brokers before 3.0.11 (version 37) the body is a TopicTable."""

    topics: TopicTable = field(default_factory=TopicTable, metadata={"name": "topicConfigSerializeWrapper"})
    filter_server_list: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: Any) -> RegisterBrokerBody:
        table = value.get("topicConfigSerializeWrapper") if isinstance(value, dict) else None
        if table is None:
            return super(RegisterBrokerBody, cls).from_json(value)
        rest = super(RegisterBrokerBody, cls).from_json({**value, "topicConfigSerializeWrapper": None})
        return cls(TopicTable.from_json(table), rest.filter_server_list)

    def encode_compressed(self) -> bytes:
        """The form that goes with compressed=true: zlib over length-prefixed texts, a topic as five words.

        Attributes of a topic are not in it, as in 4.9.
        """
        lines = [
            f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} {topic.topic_filter_type}".encode()
            for topic in self.topics.topic_config_table.values()
        ]
        parts = [prefixed(self.topics.data_version.encode()), len(lines).to_bytes(4, "big")]
        parts += map(prefixed, lines)
        parts.append(prefixed(dumps(self.filter_server_list)))
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def decode_compressed(cls, data: bytes) -> RegisterBrokerBody:
        """Raises Refused(1). topicSysFlag and order are not in this form and get their defaults."""
        try:
            raw = decompress(data, SysFlag.COMPRESSED, COMPRESSED_LIMIT)
        except InvalidMessage as error:
            raise refused(f"registration: {error}") from None
        at = 0

        def take(size: int, what: str) -> bytes:
            nonlocal at
            if size < 0 or at + size > len(raw):
                raise refused(f"registration: {what} of {size} bytes, {len(raw) - at} are left")
            at += size
            return raw[at - size : at]

        def number(what: str) -> int:
            return int.from_bytes(take(4, what), "big", signed=True)

        version = DataVersion.decode(take(number("length of the version"), "the version"))
        count = number("the number of topics")
        if count < 0 or count * 4 > len(raw) - at:
            raise refused(f"registration: {count} topics in {len(raw) - at} bytes")
        table: dict[str, TopicConfig] = {}
        for _ in range(count):
            line = take(number("length of a topic"), "a topic")
            words = line.decode("utf-8", "replace").split(" ")
            if len(words) < 5:
                raise refused(f"registration: topic {line[:80]!r} has {len(words)} words, expected name read write perm filter")
            name, read, write, perm, kind = words[:5]
            table[name] = TopicConfig.from_json(
                {"topicName": name, "readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicFilterType": kind}
            )
        servers = loads(take(number("length of the filter servers"), "the filter servers"))
        if at != len(raw):
            raise refused(f"registration: {len(raw) - at} bytes behind its end")
        return dataclasses.replace(cls.from_json({"filterServerList": servers}), topics=TopicTable(table, version))

    @staticmethod
    def crc(data: bytes) -> int:
        """bodyCrc32 of the body as sent: CRC-32 without its top bit. 0 in a header means "do not check"."""
        return body_crc(data)


def prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def refused(remark: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, remark)


# ---- routes -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class QueueData(Body):
    broker_name: str
    read_queue_nums: int = small(0)
    write_queue_nums: int = small(0)
    perm: int = small(0)
    topic_sys_flag: int = named("topicSysFlag", also=("topicSynFlag",), bits=32, default=0)  # spelled with an n up to 4.8


@dataclass(slots=True)
class BrokerData(Body):
    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    """Broker id -> "ip:port"; 0 is the master."""


@dataclass(slots=True)
class RouteInfo(Body):
    """Answer of 105."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None

    def encode(self, standard: bool = False) -> bytes:
        """`standard`: quoted keys, for those that ask for it and clients of version 401 and later."""
        return dumps_standard(self.to_json()) if standard else dumps(self.to_json())


@dataclass(slots=True)
class ClusterInfo(Body):
    """Answer of 106."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)
    """Cluster -> broker names."""


@dataclass(slots=True)
class TopicList(Body):
    """Answer of 206, 224, 304, 305, 311, 312, 313."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@dataclass(slots=True)
class GroupList(Body):
    """Answer of 300."""

    group_list: list[str] = field(default_factory=list)


@dataclass(slots=True)
class KvTable(Body):
    """Answer of 28, 103 and 219."""

    table: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class KvConfig(Body):
    """kvConfig.json of a name server: namespace -> key -> value."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


# ---- clients ----------------------------------------------------------------------------------------------------------


class ConsumeType(StrEnum):
    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(slots=True)
class SubscriptionData(Body):
    topic: str
    sub_string: str = "*"
    tags_set: set[str] = field(default_factory=set)
    code_set: set[int] = field(default_factory=set)
    """java_hash of each tag."""
    sub_version: int = 0
    """Later is larger; ms in Java, ns in Go, so only compared with its like."""
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@dataclass(slots=True)
class ConsumerData(Body):
    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@dataclass(slots=True)
class ProducerData(Body):
    group_name: str


@dataclass(slots=True)
class HeartbeatBody(Body):
    """34."""

    client_id: str = named("clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int | None = None
    without_sub: bool | None = None


@dataclass(slots=True)
class ConsumerList(Body):
    """Answer of 38."""

    consumer_id_list: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CheckClientBody(Body):
    """46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


@dataclass(slots=True)
class LockBody(Body):
    """41 and 42."""

    consumer_group: str
    client_id: str
    mq_set: set[MessageQueue] = field(default_factory=set)
    only_this_broker: bool | None = None


@dataclass(slots=True)
class LockResult(Body):
    """Answer of 41."""

    lock_ok_mq_set: set[MessageQueue] = field(default_factory=set, metadata={"name": "lockOKMQSet"})


@dataclass(slots=True)
class GroupConfig(Body):
    """200: settings of a consumer group."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = small(1)
    retry_max_times: int = small(16)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


@dataclass(slots=True)
class GroupTable(Body):
    """Answer of 201; subscriptionGroup.json."""

    subscription_group_table: dict[str, GroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(slots=True)
class Connection(Body):
    client_id: str
    client_addr: str
    language: str = "JAVA"
    version: int = small(0)


@dataclass(slots=True)
class ConsumerConnection(Body):
    """Answer of 203."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@dataclass(slots=True)
class ProducerConnection(Body):
    """Answer of 204."""

    connection_set: list[Connection] = field(default_factory=list)


@dataclass(slots=True)
class ProducerInfo(Body):
    client_id: str
    remote_ip: str = named("remoteIP", default="")
    language: str = "JAVA"
    version: int = small(0)
    last_update_timestamp: int = 0


@dataclass(slots=True)
class ProducerTable(Body):
    """Answer of 328: by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


# ---- progress ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class QueueRange(Body):
    """What a queue holds: min_offset up to, but not with, max_offset."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(slots=True)
class TopicStats(Body):
    """Answer of 202."""

    offset_table: dict[MessageQueue, QueueRange] = field(default_factory=dict)


@dataclass(slots=True)
class QueueProgress(Body):
    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    """Store time of the last message consumed."""
    pull_offset: int | None = None


@dataclass(slots=True)
class ConsumeStats(Body):
    """Answer of 208."""

    offset_table: dict[MessageQueue, QueueProgress] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(slots=True)
class ConsumeStatsList(Body):
    """Answer of 317: a table of one group each, and the backlog of all."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int | None = None
    total_inflight_diff: int | None = None


@dataclass(slots=True)
class OffsetTable(Body):
    """Answer of 43; consumerOffset.json: "topic@group" -> queue -> consumer offset."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(slots=True)
class DelayOffsetTable(Body):
    """Answer of 45; delayOffset.json: delay level -> queue offset."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(slots=True)
class ResetOffsetBody(Body):
    """220 and the answer of 222."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    def encode_for_cpp(self) -> bytes:
        """C++ cannot read object keys and gets an array."""
        return dumps({"offsetTable": [{**write_queue(queue), "offset": offset} for queue, offset in self.offset_table.items()]})


@dataclass(slots=True)
class ConsumerStatusBody(Body):
    """Answers of 221 (the first table) and 223 (client id -> the same)."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


@dataclass(slots=True)
class TimeSpan(Body):
    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


@dataclass(slots=True)
class TimeSpans(Body):
    """Answer of 303."""

    consume_time_span_set: list[TimeSpan] = field(default_factory=list)


@dataclass(slots=True)
class CorrectionOffsets(Body):
    """Answer of 308: queue -> offset."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


# ---- for operators ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StatsItem(Body):
    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(slots=True)
class BrokerStats(Body):
    """Answer of 315."""

    stats_minute: StatsItem = field(default_factory=StatsItem)
    stats_hour: StatsItem = field(default_factory=StatsItem)
    stats_day: StatsItem = field(default_factory=StatsItem)


@dataclass(slots=True)
class QueueEntry(Body):
    physic_offset: int
    physic_size: int = small()
    tags_code: int = 0
    eval: bool = False
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


@dataclass(slots=True)
class QueueEntries(Body):
    """Answer of 321."""

    queue_data: list[QueueEntry] = field(default_factory=list)
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


@dataclass(slots=True)
class ProcessQueueInfo(Body):
    """A queue as one consumer sees it. `droped` is upstream's spelling."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = small(0)
    cached_msg_size_in_mib: int = named("cachedMsgSizeInMiB", bits=32, default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = small(0)
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(slots=True)
class ConsumeStatus(Body):
    pull_rt: float = named("pullRT", default=0.0)
    pull_tps: float = named("pullTPS", default=0.0)
    consume_rt: float = named("consumeRT", default=0.0)
    consume_ok_tps: float = named("consumeOKTPS", default=0.0)
    consume_failed_tps: float = named("consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


@dataclass(slots=True)
class ConsumerRunningInfo(Body):
    """Answer of 307, from the client and on to the tool."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


@dataclass(slots=True)
class ConsumeDirectlyResult(Body):
    """Answer of 309."""

    SUCCESS: ClassVar[str] = "CR_SUCCESS"
    LATER: ClassVar[str] = "CR_LATER"
    THROW_EXCEPTION: ClassVar[str] = "CR_THROW_EXCEPTION"

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0


# ---- which body goes with which code ----------------------------------------------------------------------------------

_R = RequestCode

REQUEST_BODIES: dict[RequestCode, type[Body]] = {
    _R.HEART_BEAT: HeartbeatBody,
    _R.LOCK_BATCH_MQ: LockBody,
    _R.UNLOCK_BATCH_MQ: LockBody,
    _R.CHECK_CLIENT_CONFIG: CheckClientBody,
    _R.REGISTER_BROKER: RegisterBrokerBody,
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: GroupConfig,
    _R.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetBody,
    _R.QUERY_DATA_VERSION: DataVersion,
}
"""Requests whose body is JSON. Others: a message (10, 310, 324, 325, 326), a batch (320), a record (39, 309), properties text (25, 318)."""

RESPONSE_BODIES: dict[RequestCode, type[Body]] = {
    _R.GET_ALL_TOPIC_CONFIG: TopicTable,
    _R.GET_BROKER_RUNTIME_INFO: KvTable,
    _R.GET_CONSUMER_LIST_BY_GROUP: ConsumerList,
    _R.LOCK_BATCH_MQ: LockResult,
    _R.GET_ALL_CONSUMER_OFFSET: OffsetTable,
    _R.GET_ALL_DELAY_OFFSET: DelayOffsetTable,
    _R.REGISTER_BROKER: KvTable,
    _R.GET_ROUTEINFO_BY_TOPIC: RouteInfo,
    _R.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    _R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GroupTable,
    _R.GET_TOPIC_STATS_INFO: TopicStats,
    _R.GET_CONSUMER_CONNECTION_LIST: ConsumerConnection,
    _R.GET_PRODUCER_CONNECTION_LIST: ProducerConnection,
    _R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    _R.GET_CONSUME_STATS: ConsumeStats,
    _R.GET_KVLIST_BY_NAMESPACE: KvTable,
    _R.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatusBody,
    _R.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetBody,
    _R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ConsumerStatusBody,
    _R.GET_TOPICS_BY_CLUSTER: TopicList,
    _R.QUERY_TOPIC_CONSUME_BY_WHO: GroupList,
    _R.QUERY_CONSUME_TIME_SPAN: TimeSpans,
    _R.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList,
    _R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: TopicList,
    _R.GET_CONSUMER_RUNNING_INFO: ConsumerRunningInfo,
    _R.QUERY_CORRECTION_OFFSET: CorrectionOffsets,
    _R.CONSUME_MESSAGE_DIRECTLY: ConsumeDirectlyResult,
    _R.GET_UNIT_TOPIC_LIST: TopicList,
    _R.GET_HAS_UNIT_SUB_TOPIC_LIST: TopicList,
    _R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: TopicList,
    _R.VIEW_BROKER_STATS_DATA: BrokerStats,
    _R.GET_BROKER_CONSUME_STATS: ConsumeStatsList,
    _R.QUERY_CONSUME_QUEUE: QueueEntries,
    _R.QUERY_DATA_VERSION: DataVersion,
    _R.GET_ALL_PRODUCER_INFO: ProducerTable,
    _R.GET_TOPIC_CONFIG: TopicConfig,
    _R.GET_SUBSCRIPTIONGROUP_CONFIG: GroupConfig,
}
"""Answers whose body is JSON, by the request's code. Others: records (11, 12, 33), properties text (26, 319)."""
