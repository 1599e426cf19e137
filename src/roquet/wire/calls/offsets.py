"""Consumer offsets: asked for, remembered, copied, all of them."""

from __future__ import annotations

from dataclasses import field

from roquet.wire.bodies import Body
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.queues import OffsetResponseHeader
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import RequestCode as Code
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


QUERY_CONSUMER_OFFSET = Call(Code.QUERY_CONSUMER_OFFSET, QueryOffsetHeader, Nothing, OffsetResponseHeader, Nothing)
UPDATE_CONSUMER_OFFSET = Call(Code.UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader, Nothing, Nothing, Nothing)
GET_ALL_CONSUMER_OFFSET = Call(Code.GET_ALL_CONSUMER_OFFSET, Nothing, Nothing, Nothing, OffsetTable)
GET_ALL_DELAY_OFFSET = Call(Code.GET_ALL_DELAY_OFFSET, Nothing, Nothing, Nothing, DelayOffsetTable)
QUERY_CORRECTION_OFFSET = Call(Code.QUERY_CORRECTION_OFFSET, CorrectionOffsetHeader, Nothing, Nothing, CorrectionOffsets)
CLONE_GROUP_OFFSET = Call(Code.CLONE_GROUP_OFFSET, CloneOffsetHeader, Nothing, Nothing, Nothing)
