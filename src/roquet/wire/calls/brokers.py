"""One broker or name server as a whole: its settings, its counters, the values it keeps for others, and old files cleaned up."""

from __future__ import annotations

from dataclasses import field

from roquet.wire.bodies import Body
from roquet.wire.calls.call import Call, Nothing, Properties
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


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


class BrokerConfigResponseHeader(Header):
    """The DataVersion as JSON text."""

    version: str = wire("version")


class KvHeader(Header):
    """Only PUT_KV_CONFIG has a value, and must."""

    namespace: str = wire("namespace")
    key: str = wire("key")
    value: str | None = optional("value")


class KvResponseHeader(Header):
    value: str | None = optional("value")


class NamespaceHeader(Header):
    namespace: str = wire("namespace")


class KvTable(Body):
    table: dict[str, str] = field(default_factory=dict)


class KvConfig(Body):
    """kvConfig.json of a name server: namespace -> key -> value."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


GET_BROKER_RUNTIME_INFO = Call(Code.GET_BROKER_RUNTIME_INFO, Nothing, Nothing, Nothing, KvTable)
VIEW_BROKER_STATS_DATA = Call(Code.VIEW_BROKER_STATS_DATA, StatsHeader, Nothing, Nothing, BrokerStats)
CLEAN_EXPIRED_CONSUMEQUEUE = Call(Code.CLEAN_EXPIRED_CONSUMEQUEUE, Nothing, Nothing, Nothing, Nothing)
CLEAN_UNUSED_TOPIC = Call(Code.CLEAN_UNUSED_TOPIC, Nothing, Nothing, Nothing, Nothing)
DELETE_EXPIRED_COMMITLOG = Call(Code.DELETE_EXPIRED_COMMITLOG, Nothing, Nothing, Nothing, Nothing)
UPDATE_BROKER_CONFIG = Call(Code.UPDATE_BROKER_CONFIG, Nothing, Properties, Nothing, Nothing)
GET_BROKER_CONFIG = Call(Code.GET_BROKER_CONFIG, Nothing, Nothing, BrokerConfigResponseHeader, Properties)
UPDATE_NAMESRV_CONFIG = Call(Code.UPDATE_NAMESRV_CONFIG, Nothing, Properties, Nothing, Nothing)
GET_NAMESRV_CONFIG = Call(Code.GET_NAMESRV_CONFIG, Nothing, Nothing, Nothing, Properties)
PUT_KV_CONFIG = Call(Code.PUT_KV_CONFIG, KvHeader, Nothing, Nothing, Nothing)
GET_KV_CONFIG = Call(Code.GET_KV_CONFIG, KvHeader, Nothing, KvResponseHeader, Nothing)
DELETE_KV_CONFIG = Call(Code.DELETE_KV_CONFIG, KvHeader, Nothing, Nothing, Nothing)
GET_KVLIST_BY_NAMESPACE = Call(Code.GET_KVLIST_BY_NAMESPACE, NamespaceHeader, Nothing, Nothing, KvTable)
