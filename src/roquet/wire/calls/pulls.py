"""Messages on their way out: pulled, or found by key and by id."""

from __future__ import annotations

from roquet.wire.calls.call import Call, Nothing, Records
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


class PullHeader(Header):
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
    # Roquet's own, see broker/scans.py; texts, since it says itself what does not fit.
    scan_bytes: str | None = optional("scanBytes")
    scan_stop: str | None = optional("scanStop")


class PullResponseHeader(Header):
    suggest_which_broker_id: int = wire("suggestWhichBrokerId", bits=64)
    next_begin_offset: int = wire("nextBeginOffset", bits=64)
    min_offset: int = wire("minOffset", bits=64)
    max_offset: int = wire("maxOffset", bits=64)
    scan_count: int | None = optional("scanCount")
    """Roquet's own: records in the answer to a scan."""


class QueryMessageHeader(Header):
    topic: str = wire("topic")
    key: str = wire("key")
    max_num: int = wire("maxNum")
    begin_timestamp: int = wire("beginTimestamp", bits=64)
    end_timestamp: int = wire("endTimestamp", bits=64)
    unique_key_query: bool | None = optional("_UNIQUE_KEY_QUERY")
    """The key is a producer's unique id."""
    index_type: str | None = optional("indexType")


class QueryMessageResponseHeader(Header):
    index_last_update_timestamp: int = wire("indexLastUpdateTimestamp", bits=64)
    index_last_update_phyoffset: int = wire("indexLastUpdatePhyoffset", bits=64)


class ViewMessageHeader(Header):
    offset: int = wire("offset", bits=64)
    """Physical."""
    topic: str | None = optional("topic")
    broker_name: str | None = optional("bname")


PULL_MESSAGE = Call(Code.PULL_MESSAGE, PullHeader, Nothing, PullResponseHeader, Records)
LITE_PULL_MESSAGE = Call(Code.LITE_PULL_MESSAGE, PullHeader, Nothing, PullResponseHeader, Records)
QUERY_MESSAGE = Call(Code.QUERY_MESSAGE, QueryMessageHeader, Nothing, QueryMessageResponseHeader, Records)
VIEW_MESSAGE_BY_ID = Call(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader, Nothing, Nothing, Records)
