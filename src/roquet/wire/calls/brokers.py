"""One broker as a whole: its counters, and its old files cleaned up."""

from __future__ import annotations

from dataclasses import field

from roquet.wire.bodies import Body
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.kv import KvTable
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, wire


class StatsHeader(Header):
    stats_name: str = wire("statsName")
    stats_key: str = wire("statsKey")


class StatsItem(Body):
    avgpt: float = 0.0
    """Per call."""
    sum: int = 0
    tps: float = 0.0


class BrokerStats(Body):
    stats_day: StatsItem = field(default_factory=StatsItem)
    stats_hour: StatsItem = field(default_factory=StatsItem)
    stats_minute: StatsItem = field(default_factory=StatsItem)


GET_BROKER_RUNTIME_INFO = Call(Code.GET_BROKER_RUNTIME_INFO, Nothing, Nothing, Nothing, KvTable)
VIEW_BROKER_STATS_DATA = Call(Code.VIEW_BROKER_STATS_DATA, StatsHeader, Nothing, Nothing, BrokerStats)
CLEAN_EXPIRED_CONSUMEQUEUE = Call(Code.CLEAN_EXPIRED_CONSUMEQUEUE, Nothing, Nothing, Nothing, Nothing)
CLEAN_UNUSED_TOPIC = Call(Code.CLEAN_UNUSED_TOPIC, Nothing, Nothing, Nothing, Nothing)
DELETE_EXPIRED_COMMITLOG = Call(Code.DELETE_EXPIRED_COMMITLOG, Nothing, Nothing, Nothing, Nothing)
