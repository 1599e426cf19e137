"""Messages by key and by id."""

from __future__ import annotations

from roquet.wire.calls.call import Call, Nothing, Records
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


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


QUERY_MESSAGE = Call(Code.QUERY_MESSAGE, QueryMessageHeader, Nothing, QueryMessageResponseHeader, Records)
VIEW_MESSAGE_BY_ID = Call(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader, Nothing, Nothing, Records)
