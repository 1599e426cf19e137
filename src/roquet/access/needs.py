"""The one table: what each request code needs. A code without a line is refused, whoever asks.

Everything needs a key: a valid signature, an address of a white list, or a certificate whose subject is an account. Beyond that

    KEY                          nothing more
    ADMIN                        an account with admin: true
    wants(...)                   PUB or SUB on the topics and groups that the request names

Some requests name a place in the log or an id, and not its topic (33, 36, 37, 370): `record` says what is needed on the topic of the
message that is found, and whoever reads it asks for that (`AccessGuard.check_record`). Without that, 36 would copy a message of any topic
into one's own retry topic, and 370 would cancel timed messages of others.

Heartbeats and locks name theirs in a body. It is read here before the handler sees it, and not elsewhere as a large one is there: only so
large a body is looked into, and nothing of it but the names.

RocketMQ 4.9 checks 10, 310, 11, 12, 15, 34, 35, 36 and 38, and asks for an admin for 17, 25, 200, 207 and 215; all else is open there to
every valid key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from roquet.access.permissions import Permission
from roquet.wire import fastjson
from roquet.wire.bodies import Misfit, items, shown, to_text
from roquet.wire.calls import groups, members, offsets, pulls, queues, sends, topics
from roquet.wire.calls.call import AnyCall
from roquet.wire.codes import RequestCode as Code
from roquet.wire.codes import refused
from roquet.wire.command import Command
from roquet.wire.names import RETRY_PREFIX, retry_topic

Wanted = tuple[str, Permission]
"""(topic, or a group's retry topic; what is needed on it)."""
Wants = Callable[[Command], Iterable[Wanted]]
"""Raises Refused when the request does not say."""

BODY_MAX = 1 << 20
"""Bytes of a body that names topics or groups: a heartbeat with eight thousand subscriptions."""
STRICT = 8 * 1024
"""Bytes of a body from which on it must be JSON that orjson reads, as that of every client is: the forgiving reader is slow."""
OBJECTS_MAX = 30_000
"""Objects and lists in one body. A subscription is three of them, in some 130 bytes."""
NAMES_MAX = 10_000
"""Topics and groups that one body may name. With these limits to read one takes some 20 ms at most."""

PUB, SUB, ANY = Permission.PUB, Permission.SUB, Permission.ANY


@dataclass(frozen=True, slots=True)
class Need:
    words: str
    admin: bool = False
    wants: Wants | None = None
    record: Permission = Permission.NONE
    """What is needed on the topic of the message that the request names by its place."""


KEY = Need("a key")
ADMIN = Need("an admin's key", admin=True)


def topic_of(call: AnyCall, permission: Permission, record: Permission = Permission.NONE) -> Need:
    def wants(command: Command) -> Iterable[Wanted]:
        return ((call.read_header(command).topic, permission),)

    return Need(f"{permission_words(permission)} on the topic", wants=wants, record=record)


def group_of(call: AnyCall, name: str = "consumer_group", *, topic: bool = False, record: Permission = Permission.NONE) -> Need:
    """SUB on the group; with `topic` on the topic too, where the request names one."""

    def wants(command: Command) -> Iterable[Wanted]:
        header = call.read_header(command)
        group = getattr(header, name)
        if topic and header.topic is not None:
            yield header.topic, SUB
        if group is not None:
            yield retry_topic(group), SUB

    return Need("SUB on the group" + (" and the topic" if topic else ""), wants=wants, record=record)


def sent_to(call: AnyCall) -> Need:
    """PUB on the topic. A consumer that cannot send a message back sends it to its retry topic itself: SUB on the group is enough."""

    def wants(command: Command) -> Iterable[Wanted]:
        topic = call.read_header(command).topic
        return ((topic, SUB if topic.startswith(RETRY_PREFIX) else PUB),)

    return Need("PUB on the topic; for a retry topic SUB on the group", wants=wants)


def named_in_body(read: Callable[[Any], Iterable[str]]) -> Need:
    """SUB on each topic, and on each group under its retry topic, that `read` finds in the body's JSON. It raises Misfit."""

    def wants(command: Command) -> Iterable[Wanted]:
        try:
            names = dict.fromkeys(read(json_of(command)))
        except Misfit as misfit:
            raise refused(f"the body of request {command.code}: {' '.join((*misfit.path, misfit.what))}") from None
        if len(names) > NAMES_MAX:
            raise refused(f"the body of request {command.code} names {len(names)} topics and groups, limit is {NAMES_MAX}")
        return [(name, SUB) for name in names]

    return Need("SUB on the groups and topics that it names", wants=wants)


def json_of(command: Command) -> Any:
    """Raises Refused."""
    size = len(command.body)
    if size > BODY_MAX:
        raise refused(f"the body of request {command.code} has {size} bytes, limit is {BODY_MAX}")
    inner = command.body.count(b"{") + command.body.count(b"[")
    if inner > OBJECTS_MAX:
        raise refused(f"the body of request {command.code} has {inner} objects and lists, limit is {OBJECTS_MAX}")
    if size < STRICT:
        return fastjson.loads(command.body)
    try:
        return orjson.loads(command.body)
    except orjson.JSONDecodeError as error:
        raise fastjson.wrong(str(error)) from None


def heartbeat(body: Any) -> Iterable[str]:
    consumers = objects(body, "consumerDataSet")
    if len(consumers) > NAMES_MAX:
        raise Misfit(f"has {len(consumers)} objects, limit is {NAMES_MAX}", "consumerDataSet")
    yield from texts([one for consumer in consumers for one in objects(consumer, "subscriptionDataSet")], "topic")
    yield from map(retry_topic, texts(consumers, "groupName"))


def locks(body: Any) -> Iterable[str]:
    yield from map(retry_topic, texts([body], "consumerGroup"))
    yield from texts(objects(body, "mqSet"), "topic")


def subscription(body: Any) -> Iterable[str]:
    yield from map(retry_topic, texts([body], "group"))
    yield from texts([body.get("subscriptionData")], "topic")


def objects(holder: Any, name: str) -> list[Any]:
    """Those of a list that may be absent."""
    if not isinstance(holder, dict):
        raise Misfit(f"is {shown(holder)}, expected an object", name)
    found = holder.get(name)
    return [] if found is None else items(found)


def texts(holders: list[Any], name: str) -> list[str]:
    """The value of this name in each, as the handler reads it: a number is its text."""
    try:
        found = [holder[name] for holder in holders]
    except (KeyError, TypeError):
        raise Misfit("is missing", name) from None
    return found if {*map(type, found)} <= {str} else [to_text(one) for one in found]


def permission_words(permission: Permission) -> str:
    return "PUB or SUB" if permission == ANY else permission.name or ""


NEEDS: Mapping[int, Need] = {
    # messages
    Code.SEND_MESSAGE: sent_to(sends.SEND_MESSAGE),
    Code.SEND_MESSAGE_V2: sent_to(sends.SEND_MESSAGE_V2),
    Code.SEND_BATCH_MESSAGE: sent_to(sends.SEND_BATCH_MESSAGE),
    Code.SEND_REPLY_MESSAGE: sent_to(sends.SEND_REPLY_MESSAGE),
    Code.SEND_REPLY_MESSAGE_V2: sent_to(sends.SEND_REPLY_MESSAGE_V2),
    Code.RECALL_MESSAGE: topic_of(sends.RECALL_MESSAGE, PUB, record=PUB),
    Code.END_TRANSACTION: Need("PUB on the topic of the half message", record=PUB),
    Code.PULL_MESSAGE: group_of(pulls.PULL_MESSAGE, topic=True),
    Code.LITE_PULL_MESSAGE: group_of(pulls.LITE_PULL_MESSAGE, topic=True),
    Code.QUERY_MESSAGE: topic_of(pulls.QUERY_MESSAGE, SUB),
    Code.VIEW_MESSAGE_BY_ID: Need("SUB on the topic of the message", record=SUB),
    Code.CONSUMER_SEND_MSG_BACK: group_of(sends.CONSUMER_SEND_MSG_BACK, "group", record=SUB),
    # queues
    Code.SEARCH_OFFSET_BY_TIMESTAMP: topic_of(queues.SEARCH_OFFSET_BY_TIMESTAMP, ANY),
    Code.GET_MAX_OFFSET: topic_of(queues.GET_MAX_OFFSET, ANY),
    Code.GET_MIN_OFFSET: topic_of(queues.GET_MIN_OFFSET, ANY),
    Code.GET_EARLIEST_MSG_STORETIME: topic_of(queues.GET_EARLIEST_MSG_STORETIME, ANY),
    Code.LOCK_BATCH_MQ: named_in_body(locks),
    Code.UNLOCK_BATCH_MQ: named_in_body(locks),
    Code.QUERY_CONSUME_QUEUE: ADMIN,
    # clients and groups
    Code.HEART_BEAT: named_in_body(heartbeat),
    Code.UNREGISTER_CLIENT: group_of(members.UNREGISTER_CLIENT),
    Code.GET_CONSUMER_LIST_BY_GROUP: group_of(members.GET_CONSUMER_LIST_BY_GROUP),
    Code.CHECK_CLIENT_CONFIG: named_in_body(subscription),
    Code.QUERY_CONSUMER_OFFSET: group_of(offsets.QUERY_CONSUMER_OFFSET, topic=True),
    Code.UPDATE_CONSUMER_OFFSET: group_of(offsets.UPDATE_CONSUMER_OFFSET, topic=True),
    Code.GET_CONSUMER_CONNECTION_LIST: group_of(members.GET_CONSUMER_CONNECTION_LIST),
    Code.GET_CONSUME_STATS: group_of(offsets.GET_CONSUME_STATS, topic=True),
    Code.QUERY_CONSUME_TIME_SPAN: group_of(offsets.QUERY_CONSUME_TIME_SPAN, "group", topic=True),
    Code.QUERY_TOPICS_BY_CONSUMER: group_of(groups.QUERY_TOPICS_BY_CONSUMER, "group"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: group_of(members.QUERY_SUBSCRIPTION_BY_CONSUMER, "group", topic=True),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: group_of(groups.GET_SUBSCRIPTIONGROUP_CONFIG, "group"),
    # topics
    Code.GET_TOPIC_STATS_INFO: topic_of(topics.GET_TOPIC_STATS_INFO, ANY),
    Code.GET_TOPIC_CONFIG: topic_of(topics.GET_TOPIC_CONFIG, ANY),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: topic_of(topics.QUERY_TOPIC_CONSUME_BY_WHO, ANY),
    # of a name server, for clients
    Code.GET_ROUTEINFO_BY_TOPIC: KEY,
    Code.GET_BROKER_CLUSTER_INFO: KEY,
    Code.GET_KV_CONFIG: KEY,
    Code.GET_KVLIST_BY_NAMESPACE: KEY,
    Code.REGISTER_TOPIC_IN_NAMESRV: KEY,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: KEY,
    Code.GET_TOPICS_BY_CLUSTER: KEY,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: KEY,
    Code.GET_UNIT_TOPIC_LIST: KEY,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: KEY,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: KEY,
    # operators, slaves and other servers
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_TOPIC_IN_NAMESRV,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Code.DELETE_SUBSCRIPTIONGROUP,
            Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET,
            Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG, Code.GET_NAMESRV_CONFIG,
            Code.GET_BROKER_RUNTIME_INFO, Code.VIEW_BROKER_STATS_DATA, Code.GET_BROKER_CONSUME_STATS,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_ALL_PRODUCER_INFO, Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY,
            Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, Code.CLONE_GROUP_OFFSET,
            Code.QUERY_CORRECTION_OFFSET, Code.RESUME_CHECK_HALF_MESSAGE, Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC,
            Code.DELETE_EXPIRED_COMMITLOG, Code.LOG_PIECE,
            Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO,
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, Code.GET_BROKER_CLUSTER_ACL_CONFIG, Code.ACCESS_AUDIT, Code.ACCESS_CHECK,
            Code.ACCESS_COPY,
            Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.QUERY_DATA_VERSION, Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG,
            Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER,
        ),
        ADMIN,
    ),
}  # fmt: skip
