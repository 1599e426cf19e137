"""Consumer offsets: asked for, remembered, copied, all of them; how far groups are behind, and members told to go on elsewhere."""

from __future__ import annotations

from dataclasses import field

from roquet.message import MessageQueue
from roquet.wire.bodies import Body, write_queue
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.groups import TopicGroupHeader
from roquet.wire.calls.queues import OffsetResponseHeader
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import RequestCode as Code
from roquet.wire.fastjson import dumps
from roquet.wire.headers import Header, optional, wire


class QueryOffsetHeader(Header):
    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    set_zero_if_not_found: bool | None = optional("setZeroIfNotFound")
    broker_name: str | None = optional("bname")


class UpdateOffsetHeader(Header):
    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    commit_offset: int = wire("commitOffset", bits=64)
    broker_name: str | None = optional("bname")


class OffsetTable(Body):
    """Also consumerOffset.json: "topic@group" -> queue -> consumer offset."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


class DelayOffsetTable(Body):
    """Also delayOffset.json: delay level -> queue offset."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


class CorrectionOffsetHeader(Header):
    compare_group: str = wire("compareGroup")
    topic: str = wire("topic")
    filter_groups: str | None = optional("filterGroups")


class CorrectionOffsets(Body):
    """Queue -> offset."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


class CloneOffsetHeader(Header):
    src_group: str = wire("srcGroup")
    dest_group: str = wire("destGroup")
    topic: str | None = optional("topic")
    offline: bool | None = optional("offline")


class ConsumeStatsHeader(Header):
    """Without a topic: of every topic that the group consumes."""

    consumer_group: str = wire("consumerGroup")
    topic: str | None = optional("topic")


class QueueProgress(Body):
    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    """Store time of the last message consumed."""
    pull_offset: int | None = None


class ConsumeStats(Body):
    offset_table: dict[MessageQueue, QueueProgress] = field(default_factory=dict)
    consume_tps: float = 0.0


class BrokerConsumeStatsHeader(Header):
    is_order: bool = wire("isOrder")


class ConsumeStatsList(Body):
    """A table of one group each, and the backlog of all."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int | None = None
    total_inflight_diff: int | None = None


class TimeSpan(Body):
    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


class TimeSpans(Body):
    consume_time_span_set: list[TimeSpan] = field(default_factory=list)


class ResetOffsetHeader(TopicGroupHeader):
    timestamp: int = wire("timestamp", bits=64)
    """-1: to the end of every queue."""
    is_force: bool | None = optional("isForce")
    queue_id: int | None = optional("queueId")
    offset: int | None = optional("offset", bits=64)


class ResetOffsetBody(Body):
    """Where each queue goes on."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    def encode_for_cpp(self) -> bytes:
        """C++ cannot read object keys and gets an array."""
        return dumps({"offsetTable": [{**write_queue(queue), "offset": offset} for queue, offset in self.offset_table.items()]})


class ConsumerStatusHeader(TopicGroupHeader):
    client_addr: str | None = optional("clientAddr")


class ConsumerStatusBody(Body):
    """The first table is a client's answer, the second (client id -> the same) a broker's."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


QUERY_CONSUMER_OFFSET = Call(Code.QUERY_CONSUMER_OFFSET, QueryOffsetHeader, Nothing, OffsetResponseHeader, Nothing)
UPDATE_CONSUMER_OFFSET = Call(Code.UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader, Nothing, Nothing, Nothing)
GET_ALL_CONSUMER_OFFSET = Call(Code.GET_ALL_CONSUMER_OFFSET, Nothing, Nothing, Nothing, OffsetTable)
GET_ALL_DELAY_OFFSET = Call(Code.GET_ALL_DELAY_OFFSET, Nothing, Nothing, Nothing, DelayOffsetTable)
QUERY_CORRECTION_OFFSET = Call(Code.QUERY_CORRECTION_OFFSET, CorrectionOffsetHeader, Nothing, Nothing, CorrectionOffsets)
CLONE_GROUP_OFFSET = Call(Code.CLONE_GROUP_OFFSET, CloneOffsetHeader, Nothing, Nothing, Nothing)
GET_CONSUME_STATS = Call(Code.GET_CONSUME_STATS, ConsumeStatsHeader, Nothing, Nothing, ConsumeStats)
GET_BROKER_CONSUME_STATS = Call(Code.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader, Nothing, Nothing, ConsumeStatsList)
QUERY_CONSUME_TIME_SPAN = Call(Code.QUERY_CONSUME_TIME_SPAN, TopicGroupHeader, Nothing, Nothing, TimeSpans)
INVOKE_BROKER_TO_RESET_OFFSET = Call(Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader, Nothing, Nothing, ResetOffsetBody)
RESET_CONSUMER_CLIENT_OFFSET = Call(Code.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetHeader, ResetOffsetBody, Nothing, Nothing)
INVOKE_BROKER_TO_GET_CONSUMER_STATUS = Call(
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader, Nothing, Nothing, ConsumerStatusBody
)
GET_CONSUMER_STATUS_FROM_CLIENT = Call(Code.GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatusHeader, Nothing, Nothing, ConsumerStatusBody)
