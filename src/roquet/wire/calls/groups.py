"""Consumer groups: made, changed, deleted, listed."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from roquet.wire.bodies import REST, Body, int32
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.topics import TopicList
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import RequestCode as Code
from roquet.wire.codes import refused
from roquet.wire.headers import Header, optional, wire

LIST_MAX = 2_000
"""Groups that one request may create or change."""


class GroupConfig(Body):
    """Settings of a consumer group."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = int32(1)
    retry_max_times: int = int32(16)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    unknown: dict[str, Any] = field(default_factory=dict, metadata=REST)
    """What 5.x keeps in a group besides."""


class GroupTable(Body):
    """Also subscriptionGroup.json."""

    subscription_group_table: dict[str, GroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: dict[str, Any] = field(default_factory=dict, metadata=REST)


class GroupConfigList(Body):
    group_config_list: list[GroupConfig] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: Any) -> GroupConfigList:
        """An object, or just the array. Its length is looked at before its members are."""
        configs = value.get("groupConfigList") if isinstance(value, dict) else value
        if not isinstance(configs, list) or len(configs) > LIST_MAX:
            raise refused(f"expected an array of at most {LIST_MAX} group settings")
        return cls([GroupConfig.from_json(one) for one in configs])


class GroupNameHeader(Header):
    """Any header of just a group under the name `group`."""

    group: str = wire("group")


class TopicGroupHeader(Header):
    topic: str = wire("topic")
    group: str = wire("group")


class DeleteGroupHeader(Header):
    group_name: str = wire("groupName")
    remove_offset: bool | None = optional("removeOffset")
    clean_offset: bool | None = optional("cleanOffset")


UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = Call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Nothing, GroupConfig, Nothing, Nothing)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = Call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Nothing, GroupConfigList, Nothing, Nothing)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = Call(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Nothing, Nothing, Nothing, GroupTable)
GET_SUBSCRIPTIONGROUP_CONFIG = Call(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GroupNameHeader, Nothing, Nothing, GroupConfig)
DELETE_SUBSCRIPTIONGROUP = Call(Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader, Nothing, Nothing, Nothing)
QUERY_TOPICS_BY_CONSUMER = Call(Code.QUERY_TOPICS_BY_CONSUMER, GroupNameHeader, Nothing, Nothing, TopicList)
