"""Which brokers there are, which of them hold a topic, and which may be written to."""

from __future__ import annotations

from dataclasses import field

from roquet.wire.bodies import Body, int32, named
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.codes import RequestCode as Code
from roquet.wire.fastjson import dumps, dumps_standard
from roquet.wire.headers import Header, optional, wire


class RouteHeader(Header):
    topic: str = wire("topic")
    accept_standard_json_only: bool | None = optional("acceptStandardJsonOnly")


class QueueData(Body):
    broker_name: str
    read_queue_nums: int = int32(0)
    write_queue_nums: int = int32(0)
    perm: int = int32(0)
    topic_sys_flag: int = named("topicSysFlag", also=("topicSynFlag",), bits=32, default=0)  # spelled with an n up to 4.8


class BrokerData(Body):
    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    """Broker id -> "ip:port"; 0 is the master."""


class RouteInfo(Body):
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None

    def encode(self, standard: bool = False) -> bytes:
        """`standard`: quoted keys, for those that ask for it and clients of version 401 and later."""
        return dumps_standard(self.to_json()) if standard else dumps(self.to_json())


class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)
    """Cluster -> broker names."""


class BrokerNameHeader(Header):
    broker_name: str = wire("brokerName")


class WipePermResponseHeader(Header):
    wipe_topic_count: int = wire("wipeTopicCount")


class AddPermResponseHeader(Header):
    add_topic_count: int = wire("addTopicCount")


GET_ROUTEINFO_BY_TOPIC = Call(Code.GET_ROUTEINFO_BY_TOPIC, RouteHeader, Nothing, Nothing, RouteInfo)
GET_BROKER_CLUSTER_INFO = Call(Code.GET_BROKER_CLUSTER_INFO, Nothing, Nothing, Nothing, ClusterInfo)
WIPE_WRITE_PERM_OF_BROKER = Call(Code.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader, Nothing, WipePermResponseHeader, Nothing)
ADD_WRITE_PERM_OF_BROKER = Call(Code.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader, Nothing, AddPermResponseHeader, Nothing)
