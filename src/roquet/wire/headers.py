"""Typed headers: what the string fields of a command mean, per request and response.

The wire's spelling lives in this file only: each field carries upstream's name and, for sends, its one-letter form.
Past `decode` there are Python names and checked values. Fields nobody declared are ignored.

Optional fields are None when they did not come and are then not written, so a header encodes to the fields it came from.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from roquet.errors import Refused
from roquet.wire.codes import RequestCode, ResponseCode

H = TypeVar("H")

INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)


def wire(name: str, *, short: str | None = None, bits: int = 32, default: Any = dataclasses.MISSING) -> Any:
    """A field by upstream's name. Without a default it is required; `bits` bounds an int as Java's int or long does."""
    metadata = {"wire": name, "short": short, "bits": bits}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def optional(name: str, *, short: str | None = None, bits: int = 32) -> Any:
    return wire(name, short=short, bits=bits, default=None)


# ---- reading and writing ----------------------------------------------------------------------------------------------

Convert = Callable[[str, str], Any]
"""(wire name, text) -> value; None for an absent one."""


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a header class, worked out once."""

    attribute: str
    name: str
    short: str | None
    convert: Convert
    required: bool


_tables: dict[type, tuple[Column, ...]] = {}


def columns(kind: type) -> tuple[Column, ...]:
    found = _tables.get(kind)
    if found is None:
        hints = typing.get_type_hints(kind)
        found = _tables[kind] = tuple(
            Column(
                one.name,
                one.metadata["wire"],
                one.metadata["short"],
                converter(hints[one.name], one.metadata["bits"]),
                one.default is dataclasses.MISSING,
            )
            for one in dataclasses.fields(kind)
        )
    return found


def decode(kind: type[H], fields: Mapping[str, str]) -> H:
    """The typed header. Raises Refused(1) for a required field that is missing and a value that does not fit.

    Takes the long names and the one-letter names alike; a long name wins.
    """
    values: dict[str, Any] = {}
    get = fields.get
    for column in columns(kind):
        text = get(column.name)
        if text is None and column.short is not None:
            text = get(column.short)
        value = None if text is None else column.convert(column.name, text)
        if value is not None:
            values[column.attribute] = value
        elif column.required:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the custom field <{column.name}> is null, but this request needs it"
                + (f" (as {column.name} or {column.short})" if column.short else ""),
            )
    return kind(**values)


def encode(header: object, short: bool = False) -> dict[str, str]:
    """The command's fields; `short` writes the one-letter names of those that have one. What is None is left out."""
    fields: dict[str, str] = {}
    for column in columns(type(header)):
        value = getattr(header, column.attribute)
        if value is None:
            continue
        name = column.short if short and column.short is not None else column.name
        if value is True:
            fields[name] = "true"
        elif value is False:
            fields[name] = "false"
        elif isinstance(value, int):
            fields[name] = str(int(value))  # int(): an IntEnum writes its number
        else:
            fields[name] = value
    return fields


def converter(hint: Any, bits: int) -> Convert:
    if isinstance(hint, types.UnionType):  # X | None
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if hint is bool:
        return to_bool
    if hint is int:
        low, high = INT32 if bits == 32 else INT64
        return lambda name, text: to_int(name, text, low, high)
    assert hint is str, hint
    return to_text


def to_text(name: str, text: str) -> str:
    return text


def to_bool(name: str, text: str) -> bool | None:
    """Java's Boolean.parseBoolean: only "true", in any case, is true."""
    return text.lower() == "true" if text else None


NUMBER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


def to_int(name: str, text: str, low: int, high: int) -> int | None:
    """What Java's parseInt takes, and no more: not 1_000, not " 1". An empty text is absent, as the binary header has it."""
    if len(text) < 10 and text.isdigit() and text.isascii():
        return int(text)  # most are, and these fit any bound
    if not text:
        return None
    if NUMBER.fullmatch(text) is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is {text[:40]!r}, expected a whole number")
    value = int(text)
    if not low <= value <= high:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is {value}, allowed are {low} to {high}")
    return value


# ---- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendHeader:
    """10, 310, 320, 324, 325: long names or letters, the same fields."""

    producer_group: str = wire("producerGroup", short="a")
    topic: str = wire("topic", short="b")
    default_topic: str = wire("defaultTopic", short="c")
    default_topic_queue_nums: int = wire("defaultTopicQueueNums", short="d")
    queue_id: int = wire("queueId", short="e")
    """Negative: the broker chooses."""
    sys_flag: int = wire("sysFlag", short="f")
    born_timestamp: int = wire("bornTimestamp", short="g", bits=64)
    flag: int = wire("flag", short="h")
    properties: str | None = optional("properties", short="i")
    reconsume_times: int | None = optional("reconsumeTimes", short="j")
    unit_mode: bool | None = optional("unitMode", short="k")
    max_reconsume_times: int | None = optional("maxReconsumeTimes", short="l")
    batch: bool | None = optional("batch", short="m")
    """The body is a batch. This decides, not the code: C++ sends batches as 310."""
    broker_name: str | None = optional("bname", short="n")


@dataclass(frozen=True, slots=True)
class SendResponseHeader:
    msg_id: str = wire("msgId")
    """Offset id; of a batch, all of them joined with commas."""
    queue_id: int = wire("queueId")
    queue_offset: int = wire("queueOffset", bits=64)
    """Of a batch, the first one's."""
    transaction_id: str | None = optional("transactionId")
    msg_region: str | None = optional("MSG_REGION")
    trace_on: str | None = optional("TRACE_ON")
    """ "true" as text: Go takes an empty one for off."""
    batch_uniq_id: str | None = optional("batchUniqId")
    recall_handle: str | None = optional("recallHandle")


@dataclass(frozen=True, slots=True)
class PullHeader:
    """11, and 361 of 5.x."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    queue_offset: int = wire("queueOffset", bits=64)
    max_msg_nums: int = wire("maxMsgNums")
    sys_flag: int = wire("sysFlag")
    # Upstream's class calls the next three required, its broker does without them.
    commit_offset: int = wire("commitOffset", bits=64, default=0)
    suspend_timeout_millis: int = wire("suspendTimeoutMillis", bits=64, default=0)
    sub_version: int = wire("subVersion", bits=64, default=0)
    subscription: str | None = optional("subscription")
    expression_type: str | None = optional("expressionType")
    broker_name: str | None = optional("bname")
    max_msg_bytes: int | None = optional("maxMsgBytes")
    request_source: int | None = optional("ReqT")


@dataclass(frozen=True, slots=True)
class PullResponseHeader:
    suggest_which_broker_id: int = wire("suggestWhichBrokerId", bits=64)
    next_begin_offset: int = wire("nextBeginOffset", bits=64)
    min_offset: int = wire("minOffset", bits=64)
    max_offset: int = wire("maxOffset", bits=64)


@dataclass(frozen=True, slots=True)
class QueryMessageHeader:
    """12."""

    topic: str = wire("topic")
    key: str = wire("key")
    max_num: int = wire("maxNum")
    begin_timestamp: int = wire("beginTimestamp", bits=64)
    end_timestamp: int = wire("endTimestamp", bits=64)
    unique_key_query: bool | None = optional("_UNIQUE_KEY_QUERY")
    """The key is a producer's unique id."""
    index_type: str | None = optional("indexType")


@dataclass(frozen=True, slots=True)
class QueryMessageResponseHeader:
    index_last_update_timestamp: int = wire("indexLastUpdateTimestamp", bits=64)
    index_last_update_phyoffset: int = wire("indexLastUpdatePhyoffset", bits=64)


@dataclass(frozen=True, slots=True)
class ViewMessageHeader:
    """33."""

    offset: int = wire("offset", bits=64)
    """Physical."""
    topic: str | None = optional("topic")
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class QueryOffsetHeader:
    """14."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    set_zero_if_not_found: bool | None = optional("setZeroIfNotFound")
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class UpdateOffsetHeader:
    """15."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    commit_offset: int = wire("commitOffset", bits=64)
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class CreateTopicHeader:
    """17."""

    topic: str = wire("topic")
    default_topic: str = wire("defaultTopic")
    read_queue_nums: int = wire("readQueueNums")
    write_queue_nums: int = wire("writeQueueNums")
    perm: int = wire("perm")
    topic_filter_type: str = wire("topicFilterType")
    order: bool = wire("order")
    topic_sys_flag: int | None = optional("topicSysFlag")
    attributes: str | None = optional("attributes")
    force: bool | None = optional("force")


@dataclass(frozen=True, slots=True)
class TopicHeader:
    """202, 300, 351: any header of just a topic."""

    topic: str = wire("topic")


@dataclass(frozen=True, slots=True)
class DeleteTopicHeader:
    """215 and 216."""

    topic: str = wire("topic")
    cluster_name: str | None = optional("clusterName")


@dataclass(frozen=True, slots=True)
class QueueHeader:
    """30, 31, 32."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    committed: bool | None = optional("committed")
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class SearchOffsetHeader:
    """29."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    timestamp: int = wire("timestamp", bits=64)
    boundary_type: str | None = optional("boundaryType")
    """5.x: LOWER or UPPER."""
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class OffsetResponseHeader:
    """14, 29, 30, 31."""

    offset: int = wire("offset", bits=64)


@dataclass(frozen=True, slots=True)
class TimestampResponseHeader:
    """32."""

    timestamp: int = wire("timestamp", bits=64)


@dataclass(frozen=True, slots=True)
class UnregisterClientHeader:
    """35."""

    client_id: str = wire("clientID")
    producer_group: str | None = optional("producerGroup")
    consumer_group: str | None = optional("consumerGroup")


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """38, 40, 203: any header of just a consumer group."""

    consumer_group: str = wire("consumerGroup")


@dataclass(frozen=True, slots=True)
class RecallMessageHeader:
    """370."""

    producer_group: str = wire("producerGroup")
    topic: str = wire("topic")
    recall_handle: str = wire("recallHandle")
    """5.x's, out of the answer to a send; Roquet also takes a message id."""
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class ProducerGroupHeader:
    """204."""

    producer_group: str = wire("producerGroup")


@dataclass(frozen=True, slots=True)
class ConsumeStatsHeader:
    """208. Without a topic: of every topic that the group consumes."""

    consumer_group: str = wire("consumerGroup")
    topic: str | None = optional("topic")


@dataclass(frozen=True, slots=True)
class GroupNameHeader:
    """352: any header of just a group under the name `group`."""

    group: str = wire("group")


@dataclass(frozen=True, slots=True)
class DeleteGroupHeader:
    """207."""

    group_name: str = wire("groupName")
    remove_offset: bool | None = optional("removeOffset")
    clean_offset: bool | None = optional("cleanOffset")


@dataclass(frozen=True, slots=True)
class SendBackHeader:
    """36."""

    offset: int = wire("offset", bits=64)
    """Physical."""
    group: str = wire("group")
    delay_level: int = wire("delayLevel")
    """Negative: dead letter at once. 0: by the number of times it was consumed."""
    origin_msg_id: str | None = optional("originMsgId")
    origin_topic: str | None = optional("originTopic")
    unit_mode: bool | None = optional("unitMode")
    max_reconsume_times: int | None = optional("maxReconsumeTimes")
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class EndTransactionHeader:
    """37."""

    producer_group: str = wire("producerGroup")
    tran_state_table_offset: int = wire("tranStateTableOffset", bits=64)
    """Queue offset in the half topic."""
    commit_log_offset: int = wire("commitLogOffset", bits=64)
    commit_or_rollback: int = wire("commitOrRollback")
    """0 unknown, 8 commit, 12 roll back."""
    msg_id: str = wire("msgId")
    from_transaction_check: bool | None = optional("fromTransactionCheck")
    transaction_id: str | None = optional("transactionId")
    topic: str | None = optional("topic")
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class CheckTransactionHeader:
    """39."""

    tran_state_table_offset: int = wire("tranStateTableOffset", bits=64)
    commit_log_offset: int = wire("commitLogOffset", bits=64)
    msg_id: str | None = optional("msgId")
    transaction_id: str | None = optional("transactionId")
    offset_msg_id: str | None = optional("offsetMsgId")
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class PushReplyHeader:
    """326: a send header, and where the reply was born and stored as "ip:port"."""

    producer_group: str = wire("producerGroup")
    topic: str = wire("topic")
    default_topic: str = wire("defaultTopic")
    default_topic_queue_nums: int = wire("defaultTopicQueueNums")
    queue_id: int = wire("queueId")
    sys_flag: int = wire("sysFlag")
    born_timestamp: int = wire("bornTimestamp", bits=64)
    flag: int = wire("flag")
    born_host: str = wire("bornHost")
    store_host: str = wire("storeHost")
    store_timestamp: int = wire("storeTimestamp", bits=64)
    properties: str | None = optional("properties")
    reconsume_times: int | None = optional("reconsumeTimes")
    unit_mode: bool | None = optional("unitMode")
    broker_name: str | None = optional("bname")


@dataclass(frozen=True, slots=True)
class RegisterBrokerHeader:
    """103."""

    broker_name: str = wire("brokerName")
    broker_addr: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    ha_server_addr: str = wire("haServerAddr")
    broker_id: int = wire("brokerId", bits=64)
    compressed: bool | None = optional("compressed")
    body_crc32: int | None = optional("bodyCrc32")
    """0 or absent: do not check."""
    heartbeat_timeout_millis: int | None = optional("heartbeatTimeoutMillis", bits=64)
    enable_acting_master: bool | None = optional("enableActingMaster")


@dataclass(frozen=True, slots=True)
class RegisterBrokerResponseHeader:
    """Both only for a slave whose master is alive."""

    ha_server_addr: str | None = optional("haServerAddr")
    master_addr: str | None = optional("masterAddr")


@dataclass(frozen=True, slots=True)
class UnregisterBrokerHeader:
    """104."""

    broker_name: str = wire("brokerName")
    broker_addr: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    broker_id: int = wire("brokerId", bits=64)


@dataclass(frozen=True, slots=True)
class RouteHeader:
    """105."""

    topic: str = wire("topic")
    accept_standard_json_only: bool | None = optional("acceptStandardJsonOnly")


@dataclass(frozen=True, slots=True)
class KvHeader:
    """100, 101, 102; only 100 has a value, and must."""

    namespace: str = wire("namespace")
    key: str = wire("key")
    value: str | None = optional("value")


@dataclass(frozen=True, slots=True)
class KvResponseHeader:
    """101."""

    value: str | None = optional("value")


@dataclass(frozen=True, slots=True)
class NamespaceHeader:
    """219."""

    namespace: str = wire("namespace")


@dataclass(frozen=True, slots=True)
class BrokerNameHeader:
    """205 and 327."""

    broker_name: str = wire("brokerName")


@dataclass(frozen=True, slots=True)
class WipePermResponseHeader:
    """205."""

    wipe_topic_count: int = wire("wipeTopicCount")


@dataclass(frozen=True, slots=True)
class AddPermResponseHeader:
    """327."""

    add_topic_count: int = wire("addTopicCount")


@dataclass(frozen=True, slots=True)
class ClusterHeader:
    """224."""

    cluster: str = wire("cluster")


@dataclass(frozen=True, slots=True)
class DataVersionHeader:
    """322."""

    broker_name: str = wire("brokerName")
    broker_addr: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    broker_id: int = wire("brokerId", bits=64)


@dataclass(frozen=True, slots=True)
class DataVersionResponseHeader:
    changed: bool = wire("changed")


@dataclass(frozen=True, slots=True)
class BrokerConfigResponseHeader:
    """26: the DataVersion as JSON text."""

    version: str = wire("version")


@dataclass(frozen=True, slots=True)
class StatsHeader:
    """315."""

    stats_name: str = wire("statsName")
    stats_key: str = wire("statsKey")


@dataclass(frozen=True, slots=True)
class BrokerConsumeStatsHeader:
    """317."""

    is_order: bool = wire("isOrder")


@dataclass(frozen=True, slots=True)
class ResetOffsetHeader:
    """220 and 222."""

    topic: str = wire("topic")
    group: str = wire("group")
    timestamp: int = wire("timestamp", bits=64)
    """-1: to the end of every queue."""
    is_force: bool | None = optional("isForce")
    queue_id: int | None = optional("queueId")
    offset: int | None = optional("offset", bits=64)


@dataclass(frozen=True, slots=True)
class ConsumerStatusHeader:
    """221 and 223."""

    topic: str = wire("topic")
    group: str = wire("group")
    client_addr: str | None = optional("clientAddr")


@dataclass(frozen=True, slots=True)
class TopicGroupHeader:
    """303."""

    topic: str = wire("topic")
    group: str = wire("group")


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfoHeader:
    """307, from the tool and on to the client."""

    consumer_group: str = wire("consumerGroup")
    client_id: str = wire("clientId")
    jstack_enable: bool | None = optional("jstackEnable")


@dataclass(frozen=True, slots=True)
class CorrectionOffsetHeader:
    """308."""

    compare_group: str = wire("compareGroup")
    topic: str = wire("topic")
    filter_groups: str | None = optional("filterGroups")


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyHeader:
    """309."""

    consumer_group: str = wire("consumerGroup")
    client_id: str | None = optional("clientId")
    msg_id: str | None = optional("msgId")
    broker_name: str | None = optional("brokerName")


@dataclass(frozen=True, slots=True)
class CloneOffsetHeader:
    """314."""

    src_group: str = wire("srcGroup")
    dest_group: str = wire("destGroup")
    topic: str | None = optional("topic")
    offline: bool | None = optional("offline")


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueHeader:
    """321."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    index: int = wire("index", bits=64)
    count: int = wire("count")
    consumer_group: str | None = optional("consumerGroup")


@dataclass(frozen=True, slots=True)
class ResumeCheckHeader:
    """323."""

    msg_id: str = wire("msgId")
    topic: str | None = optional("topic")


@dataclass(frozen=True, slots=True)
class EmptyHeader:
    """A command whose fields mean nothing."""


_R = RequestCode

REQUEST_HEADERS: dict[RequestCode, type] = {
    _R.SEND_MESSAGE: SendHeader,
    _R.SEND_MESSAGE_V2: SendHeader,
    _R.SEND_BATCH_MESSAGE: SendHeader,
    _R.SEND_REPLY_MESSAGE: SendHeader,
    _R.SEND_REPLY_MESSAGE_V2: SendHeader,
    _R.PULL_MESSAGE: PullHeader,
    _R.LITE_PULL_MESSAGE: PullHeader,
    _R.QUERY_MESSAGE: QueryMessageHeader,
    _R.QUERY_CONSUMER_OFFSET: QueryOffsetHeader,
    _R.UPDATE_CONSUMER_OFFSET: UpdateOffsetHeader,
    _R.UPDATE_AND_CREATE_TOPIC: CreateTopicHeader,
    _R.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetHeader,
    _R.GET_MAX_OFFSET: QueueHeader,
    _R.GET_MIN_OFFSET: QueueHeader,
    _R.GET_EARLIEST_MSG_STORETIME: QueueHeader,
    _R.VIEW_MESSAGE_BY_ID: ViewMessageHeader,
    _R.UNREGISTER_CLIENT: UnregisterClientHeader,
    _R.CONSUMER_SEND_MSG_BACK: SendBackHeader,
    _R.END_TRANSACTION: EndTransactionHeader,
    _R.GET_CONSUMER_LIST_BY_GROUP: GroupHeader,
    _R.CHECK_TRANSACTION_STATE: CheckTransactionHeader,
    _R.NOTIFY_CONSUMER_IDS_CHANGED: GroupHeader,
    _R.PUT_KV_CONFIG: KvHeader,
    _R.GET_KV_CONFIG: KvHeader,
    _R.DELETE_KV_CONFIG: KvHeader,
    _R.REGISTER_BROKER: RegisterBrokerHeader,
    _R.UNREGISTER_BROKER: UnregisterBrokerHeader,
    _R.GET_ROUTEINFO_BY_TOPIC: RouteHeader,
    _R.GET_TOPIC_STATS_INFO: TopicHeader,
    _R.GET_CONSUMER_CONNECTION_LIST: GroupHeader,
    _R.GET_PRODUCER_CONNECTION_LIST: ProducerGroupHeader,
    _R.WIPE_WRITE_PERM_OF_BROKER: BrokerNameHeader,
    _R.ADD_WRITE_PERM_OF_BROKER: BrokerNameHeader,
    _R.DELETE_SUBSCRIPTIONGROUP: DeleteGroupHeader,
    _R.GET_CONSUME_STATS: ConsumeStatsHeader,
    _R.DELETE_TOPIC_IN_BROKER: DeleteTopicHeader,
    _R.DELETE_TOPIC_IN_NAMESRV: DeleteTopicHeader,
    _R.GET_KVLIST_BY_NAMESPACE: NamespaceHeader,
    _R.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetHeader,
    _R.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatusHeader,
    _R.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetHeader,
    _R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ConsumerStatusHeader,
    _R.GET_TOPICS_BY_CLUSTER: ClusterHeader,
    _R.QUERY_TOPIC_CONSUME_BY_WHO: TopicHeader,
    _R.QUERY_CONSUME_TIME_SPAN: TopicGroupHeader,
    _R.GET_CONSUMER_RUNNING_INFO: ConsumerRunningInfoHeader,
    _R.QUERY_CORRECTION_OFFSET: CorrectionOffsetHeader,
    _R.CONSUME_MESSAGE_DIRECTLY: ConsumeDirectlyHeader,
    _R.CLONE_GROUP_OFFSET: CloneOffsetHeader,
    _R.VIEW_BROKER_STATS_DATA: StatsHeader,
    _R.GET_BROKER_CONSUME_STATS: BrokerConsumeStatsHeader,
    _R.QUERY_CONSUME_QUEUE: QueryConsumeQueueHeader,
    _R.QUERY_DATA_VERSION: DataVersionHeader,
    _R.RESUME_CHECK_HALF_MESSAGE: ResumeCheckHeader,
    _R.PUSH_REPLY_MESSAGE_TO_CLIENT: PushReplyHeader,
    _R.GET_TOPIC_CONFIG: TopicHeader,
    _R.GET_SUBSCRIPTIONGROUP_CONFIG: GroupNameHeader,
}
"""Requests that have fields. Those not listed carry none that mean anything."""

RESPONSE_HEADERS: dict[RequestCode, type] = {
    _R.SEND_MESSAGE: SendResponseHeader,
    _R.SEND_MESSAGE_V2: SendResponseHeader,
    _R.SEND_BATCH_MESSAGE: SendResponseHeader,
    _R.SEND_REPLY_MESSAGE: SendResponseHeader,
    _R.SEND_REPLY_MESSAGE_V2: SendResponseHeader,
    _R.PULL_MESSAGE: PullResponseHeader,
    _R.LITE_PULL_MESSAGE: PullResponseHeader,
    _R.QUERY_MESSAGE: QueryMessageResponseHeader,
    _R.QUERY_CONSUMER_OFFSET: OffsetResponseHeader,
    _R.SEARCH_OFFSET_BY_TIMESTAMP: OffsetResponseHeader,
    _R.GET_MAX_OFFSET: OffsetResponseHeader,
    _R.GET_MIN_OFFSET: OffsetResponseHeader,
    _R.GET_EARLIEST_MSG_STORETIME: TimestampResponseHeader,
    _R.GET_KV_CONFIG: KvResponseHeader,
    _R.REGISTER_BROKER: RegisterBrokerResponseHeader,
    _R.WIPE_WRITE_PERM_OF_BROKER: WipePermResponseHeader,
    _R.ADD_WRITE_PERM_OF_BROKER: AddPermResponseHeader,
    _R.GET_BROKER_CONFIG: BrokerConfigResponseHeader,
    _R.QUERY_DATA_VERSION: DataVersionResponseHeader,
}
"""Successful answers that have fields, by the request's code."""
