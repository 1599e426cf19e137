"""How far groups are, and how far behind."""

from __future__ import annotations

from dataclasses import field

from roquet.message import MessageQueue
from roquet.wire.bodies import Body
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.groups import TopicGroupHeader
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


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


GET_CONSUME_STATS = Call(Code.GET_CONSUME_STATS, ConsumeStatsHeader, Nothing, Nothing, ConsumeStats)
GET_BROKER_CONSUME_STATS = Call(Code.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader, Nothing, Nothing, ConsumeStatsList)
QUERY_CONSUME_TIME_SPAN = Call(Code.QUERY_CONSUME_TIME_SPAN, TopicGroupHeader, Nothing, Nothing, TimeSpans)
