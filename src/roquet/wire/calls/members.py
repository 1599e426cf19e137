"""Clients: who they say they are, who is in a group, what they subscribe to."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from roquet.wire.bodies import Body, int32, named
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.groups import TopicGroupHeader
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


class ConsumeType(StrEnum):
    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body):
    topic: str
    sub_string: str = "*"
    tags_set: set[str] = field(default_factory=set)
    code_set: set[int] = field(default_factory=set)
    """java_hash of each tag."""
    sub_version: int = 0
    """Later is larger; ms in Java, ns in Go, so only compared with its like."""
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ConsumerData(Body):
    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Body):
    group_name: str


class HeartbeatBody(Body):
    client_id: str = named("clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int | None = None
    without_sub: bool | None = None


class UnregisterClientHeader(Header):
    client_id: str = wire("clientID")
    producer_group: str | None = optional("producerGroup")
    consumer_group: str | None = optional("consumerGroup")


class GroupHeader(Header):
    """Any header of just a consumer group."""

    consumer_group: str = wire("consumerGroup")


class ConsumerList(Body):
    consumer_id_list: list[str] = field(default_factory=list)


class CheckClientBody(Body):
    client_id: str
    group: str
    subscription_data: SubscriptionData


class Connection(Body):
    client_id: str
    client_addr: str
    language: str = "JAVA"
    version: int = int32(0)


class ConsumerConnection(Body):
    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


class ProducerGroupHeader(Header):
    producer_group: str = wire("producerGroup")


class ProducerConnection(Body):
    connection_set: list[Connection] = field(default_factory=list)


class ProducerInfo(Body):
    client_id: str
    remote_ip: str = named("remoteIP", default="")
    language: str = "JAVA"
    version: int = int32(0)
    last_update_timestamp: int = 0


class ProducerTable(Body):
    """By group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class SubscriptionOfGroup(Body):
    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
    """None: no member subscribes to it now."""


HEART_BEAT = Call(Code.HEART_BEAT, Nothing, HeartbeatBody, Nothing, Nothing)
UNREGISTER_CLIENT = Call(Code.UNREGISTER_CLIENT, UnregisterClientHeader, Nothing, Nothing, Nothing)
GET_CONSUMER_LIST_BY_GROUP = Call(Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader, Nothing, Nothing, ConsumerList)
NOTIFY_CONSUMER_IDS_CHANGED = Call(Code.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader, Nothing, Nothing, Nothing)
CHECK_CLIENT_CONFIG = Call(Code.CHECK_CLIENT_CONFIG, Nothing, CheckClientBody, Nothing, Nothing)
GET_CONSUMER_CONNECTION_LIST = Call(Code.GET_CONSUMER_CONNECTION_LIST, GroupHeader, Nothing, Nothing, ConsumerConnection)
GET_PRODUCER_CONNECTION_LIST = Call(Code.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader, Nothing, Nothing, ProducerConnection)
GET_ALL_PRODUCER_INFO = Call(Code.GET_ALL_PRODUCER_INFO, Nothing, Nothing, Nothing, ProducerTable)
QUERY_SUBSCRIPTION_BY_CONSUMER = Call(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, TopicGroupHeader, Nothing, Nothing, SubscriptionOfGroup)
