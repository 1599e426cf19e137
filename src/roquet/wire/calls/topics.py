"""Topics: made, changed, deleted, listed."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from roquet.message import MessageQueue
from roquet.wire.bodies import Body, int32
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import RequestCode as Code
from roquet.wire.codes import refused
from roquet.wire.headers import Header, optional, wire


class TopicConfig(Body):
    topic_name: str
    read_queue_nums: int = int32(16)
    write_queue_nums: int = int32(16)
    perm: int = int32(6)
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = int32(0)
    order: bool = False
    attributes: dict[str, str] | None = None


class TopicTable(Body):
    """Also topics.json."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def from_json(cls, value: Any) -> TopicTable:
        """A table may hold tens of thousands of topics: those that look as usual are read without the machinery, three times faster."""
        table = value.get("topicConfigTable") if isinstance(value, dict) else None
        if not isinstance(table, dict):
            return super().from_json(value)
        made: dict[str, TopicConfig] = {}
        odd: dict[str, Any] = {}
        for key, one in table.items():
            config = usual_topic(one)
            if config is None:
                odd[key] = one
            made[key] = config  # type: ignore[assignment]  # its place in the order; an odd one is filled in below
        rest = super().from_json({**value, "topicConfigTable": odd})
        made.update(rest.topic_config_table)
        return cls(made, rest.data_version)


def usual_topic(one: Any) -> TopicConfig | None:
    """None: something about it is not as upstream writes it, and the machinery says whether it will do."""
    try:
        name, kind, attributes = one["topicName"], one.get("topicFilterType", "SINGLE_TAG"), one.get("attributes")
        read, write, perm, flag = one["readQueueNums"], one["writeQueueNums"], one["perm"], one.get("topicSysFlag", 0)
        order = one.get("order", False)
    except (KeyError, TypeError, AttributeError):
        return None
    if type(name) is not str or type(kind) is not str or type(order) is not bool or attributes is not None:
        return None
    if type(read) is not int or type(write) is not int or type(perm) is not int or type(flag) is not int:
        return None
    if not (-SMALL <= read < SMALL and -SMALL <= write < SMALL and -SMALL <= perm < SMALL and -SMALL <= flag < SMALL):
        return None
    return TopicConfig(name, read, write, perm, kind, flag, order)


SMALL = 1 << 31
LIST_MAX = 2_000
"""Topics that one request may create or change."""


class TopicConfigList(Body):
    topic_config_list: list[TopicConfig] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: Any) -> TopicConfigList:
        """Its length is looked at before its members are."""
        configs = value.get("topicConfigList") if isinstance(value, dict) else None
        if not isinstance(configs, list):
            raise refused("the body holds no topicConfigList")
        if len(configs) > LIST_MAX:
            raise refused(f"{len(configs)} topics in one request, limit is {LIST_MAX}: send several")
        return cls([TopicConfig.from_json(config) for config in configs])


class CreateTopicHeader(Header):
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
    only_if_absent: bool | None = optional("roquetOnlyIfAbsent")
    """A topic that is there stays as it is. Of Roquet's brokers."""


class TopicHeader(Header):
    """Any header of just a topic."""

    topic: str = wire("topic")


class DeleteTopicHeader(Header):
    topic: str = wire("topic")
    cluster_name: str | None = optional("clusterName")


class ClusterHeader(Header):
    cluster: str = wire("cluster")


class TopicList(Body):
    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class GroupList(Body):
    group_list: list[str] = field(default_factory=list)


class QueueRange(Body):
    """What a queue holds: min_offset up to, but not with, max_offset."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStats(Body):
    offset_table: dict[MessageQueue, QueueRange] = field(default_factory=dict)


UPDATE_AND_CREATE_TOPIC = Call(Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader, Nothing, Nothing, Nothing)
UPDATE_AND_CREATE_TOPIC_LIST = Call(Code.UPDATE_AND_CREATE_TOPIC_LIST, Nothing, TopicConfigList, Nothing, Nothing)
GET_ALL_TOPIC_CONFIG = Call(Code.GET_ALL_TOPIC_CONFIG, Nothing, Nothing, Nothing, TopicTable)
GET_TOPIC_CONFIG = Call(Code.GET_TOPIC_CONFIG, TopicHeader, Nothing, Nothing, TopicConfig)
GET_TOPIC_STATS_INFO = Call(Code.GET_TOPIC_STATS_INFO, TopicHeader, Nothing, Nothing, TopicStats)
DELETE_TOPIC_IN_BROKER = Call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader, Nothing, Nothing, Nothing)
DELETE_TOPIC_IN_NAMESRV = Call(Code.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader, Nothing, Nothing, Nothing)
REGISTER_TOPIC_IN_NAMESRV = Call(Code.REGISTER_TOPIC_IN_NAMESRV, Nothing, Nothing, Nothing, Nothing)
GET_ALL_TOPIC_LIST_FROM_NAMESERVER = Call(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Nothing, Nothing, Nothing, TopicList)
GET_TOPICS_BY_CLUSTER = Call(Code.GET_TOPICS_BY_CLUSTER, ClusterHeader, Nothing, Nothing, TopicList)
GET_SYSTEM_TOPIC_LIST_FROM_NS = Call(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Nothing, Nothing, Nothing, TopicList)
GET_SYSTEM_TOPIC_LIST_FROM_BROKER = Call(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Nothing, Nothing, Nothing, TopicList)
GET_UNIT_TOPIC_LIST = Call(Code.GET_UNIT_TOPIC_LIST, Nothing, Nothing, Nothing, TopicList)
GET_HAS_UNIT_SUB_TOPIC_LIST = Call(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, Nothing, Nothing, Nothing, TopicList)
GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = Call(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Nothing, Nothing, Nothing, TopicList)
QUERY_TOPIC_CONSUME_BY_WHO = Call(Code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader, Nothing, Nothing, GroupList)
