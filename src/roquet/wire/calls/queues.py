"""One queue: where it begins and ends, what lies at a time, its entries; and queues held for ordered consuming."""

from __future__ import annotations

from dataclasses import field

from roquet.message import MessageQueue
from roquet.wire.bodies import Body, int32
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.members import SubscriptionData
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


class QueueHeader(Header):
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    committed: bool | None = optional("committed")
    broker_name: str | None = optional("bname")


class SearchOffsetHeader(Header):
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    timestamp: int = wire("timestamp", bits=64)
    boundary_type: str | None = optional("boundaryType")
    """5.x: LOWER or UPPER."""
    broker_name: str | None = optional("bname")


class OffsetResponseHeader(Header):
    offset: int = wire("offset", bits=64)


class TimestampResponseHeader(Header):
    timestamp: int = wire("timestamp", bits=64)


class QueryConsumeQueueHeader(Header):
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    index: int = wire("index", bits=64)
    count: int = wire("count")
    consumer_group: str | None = optional("consumerGroup")


class QueueEntry(Body):
    physic_offset: int
    physic_size: int = int32()
    tags_code: int = 0
    eval: bool = False
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class QueueEntries(Body):
    queue_data: list[QueueEntry] = field(default_factory=list)
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class LockBody(Body):
    consumer_group: str
    client_id: str
    mq_set: set[MessageQueue] = field(default_factory=set)
    only_this_broker: bool | None = None


class LockResult(Body):
    lock_ok_mq_set: set[MessageQueue] = field(default_factory=set, metadata={"name": "lockOKMQSet"})


SEARCH_OFFSET_BY_TIMESTAMP = Call(Code.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader, Nothing, OffsetResponseHeader, Nothing)
GET_MAX_OFFSET = Call(Code.GET_MAX_OFFSET, QueueHeader, Nothing, OffsetResponseHeader, Nothing)
GET_MIN_OFFSET = Call(Code.GET_MIN_OFFSET, QueueHeader, Nothing, OffsetResponseHeader, Nothing)
GET_EARLIEST_MSG_STORETIME = Call(Code.GET_EARLIEST_MSG_STORETIME, QueueHeader, Nothing, TimestampResponseHeader, Nothing)
QUERY_CONSUME_QUEUE = Call(Code.QUERY_CONSUME_QUEUE, QueryConsumeQueueHeader, Nothing, Nothing, QueueEntries)
LOCK_BATCH_MQ = Call(Code.LOCK_BATCH_MQ, Nothing, LockBody, Nothing, LockResult)
UNLOCK_BATCH_MQ = Call(Code.UNLOCK_BATCH_MQ, Nothing, LockBody, Nothing, Nothing)
