"""`roquet topic`: list, create, update, delete, route, status."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from roquet.cli.options import (
    ON_CLUSTER,
    TOPIC,
    YES,
    Commands,
    argument,
    cluster_command,
    confirmed,
    connection_of,
    noun,
    positive,
    timeout_ms,
)
from roquet.cli.render import TableColumn, answer, column_json, column_table, counted, emit, emit_json, moment, note

if TYPE_CHECKING:
    from roquet.admin import Admin, QueueStatus
    from roquet.wire.calls.routes import QueueData

PERMISSIONS = {"r": 4, "w": 2, "rw": 6, "none": 0}


def add_commands(commands: Commands) -> None:
    nouns = noun(
        commands,
        "topic",
        "list, create, change, delete and look at topics",
        """
        roquet topic list
        roquet topic create orders --queues 16
        roquet topic status orders
        """,
    )

    cluster_command(
        nouns, "list", list_topics, "list topics", "roquet topic list\nroquet topic list --all --json",
        argument("--all", action="store_true", help="show the system's own and retry topics, too"),
        argument("--cluster", metavar="NAME", help="only of this cluster"),
    )  # fmt: skip
    shape = (
        TOPIC,
        argument("--queues", type=positive, metavar="N", help="read and write queues on each broker (default: 8, or unchanged)"),
        argument("--read-queues", type=positive, metavar="N", help="queues that consumers see"),
        argument("--write-queues", type=positive, metavar="N", help="queues that producers use"),
        argument("--perm", choices=sorted(PERMISSIONS), help="permission (default: rw, or unchanged)"),
        ON_CLUSTER,
        argument("--broker", action="append", default=[], metavar="NAME", help="only on this broker (may be repeated)"),
    )
    creating = """
        roquet topic create orders
        roquet topic create orders --queues 16
        roquet topic create orders --broker broker-b     on one of several brokers
        """
    cluster_command(nouns, "create", create_topic, "create a topic on every broker of the cluster, or change it", creating, *shape)
    changing = """
        roquet topic update orders --write-queues 4      shrink: let consumers empty the other queues first
        roquet topic update orders --perm r              no more sending
        """
    cluster_command(nouns, "update", update_topic, "change a topic that there is", changing, *shape)
    cluster_command(
        nouns, "delete", delete_topic, "delete a topic and its messages", "roquet topic delete orders\nroquet topic delete orders --yes",
        TOPIC, YES, ON_CLUSTER,
    )  # fmt: skip
    cluster_command(nouns, "route", show_route, "show which brokers have a topic", "roquet topic route orders", TOPIC)
    examples = "roquet topic status orders\nroquet topic status orders --json"
    cluster_command(nouns, "status", show_status, "show every queue of a topic", examples, TOPIC)


def admin(arguments: argparse.Namespace) -> Admin:
    # Here and not above: the servers' commands need none of it, and start faster without.
    from roquet.admin import Admin

    return Admin(arguments.namesrv, timeout_ms=timeout_ms(arguments), connection=connection_of(arguments))


def belongs_to_users(topic: str, brokers: set[str]) -> bool:
    from roquet.wire.names import REPLY_SUFFIX, is_system_topic

    return not (is_system_topic(topic) or topic.startswith("%") or topic in brokers or topic.endswith(REPLY_SUFFIX))


async def list_topics(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        names = await (cluster.topic_names_of_cluster(arguments.cluster) if arguments.cluster else cluster.topic_names())
        brokers = await cluster.brokers()
    own_names = {broker.name for broker in brokers} | {broker.cluster for broker in brokers}
    shown = [name for name in names if arguments.all or belongs_to_users(name, own_names)]
    if arguments.json:
        emit_json(shown)
        return 0
    for name in shown:
        emit(name)
    if not shown:
        note("no topics yet; one is made by its first message, or by: roquet topic create NAME")
    return 0


async def update_topic(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        await cluster.route(arguments.topic)  # raises NoRoute: a slip in a name makes no topic
    return await create_topic(arguments)


async def create_topic(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        before = await present(cluster, arguments.topic)
        read = arguments.read_queues or arguments.queues or (before.read_queue_nums if before else 8)
        write = arguments.write_queues or arguments.queues or (before.write_queue_nums if before else 8)
        perm = PERMISSIONS[arguments.perm] if arguments.perm else before.perm if before else 6
        masters = await cluster.create_topic(
            arguments.topic, read_queues=read, write_queues=write, perm=perm, cluster=arguments.cluster, brokers=arguments.broker
        )
    names = [broker.name for broker in masters]
    facts = {"topic": arguments.topic, "readQueues": read, "writeQueues": write, "perm": perm, "brokers": names}
    verb = "Changed" if before else "Created"
    text = f"{verb} {arguments.topic}: {write} write and {read} read queues, {permission(perm)}, on {', '.join(names)}"
    return answer(arguments, facts, text)


async def present(cluster: Admin, topic: str) -> QueueData | None:
    """The topic as it is on its first broker; None when there is none yet."""
    from roquet.errors import NoRoute

    try:
        route = await cluster.route(topic)
    except NoRoute:
        return None
    return route.queue_datas[0] if route.queue_datas else None


async def delete_topic(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        await cluster.route(arguments.topic)  # a name nobody knows is a typing error, not a success
        if not confirmed(arguments, f"Delete topic {arguments.topic} with all its messages?"):
            return 1
        masters = await cluster.delete_topic(arguments.topic, cluster=arguments.cluster)
    names = [broker.name for broker in masters]
    return answer(arguments, {"topic": arguments.topic, "brokers": names}, f"Deleted {arguments.topic} on {', '.join(names)}")


async def show_route(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        route = await cluster.route(arguments.topic)
    brokers = {data.broker_name: data for data in route.broker_datas}
    rows = [one for one in sorted(route.queue_datas, key=lambda queues: queues.broker_name) if one.broker_name in brokers]
    columns: list[TableColumn[QueueData]] = [
        TableColumn("CLUSTER", "cluster", lambda one: brokers[one.broker_name].cluster),
        TableColumn("BROKER", "broker", lambda one: one.broker_name),
        TableColumn(
            "ADDRESSES",
            "addresses",
            lambda one: {str(number): address for number, address in sorted(brokers[one.broker_name].broker_addrs.items())},
            lambda addresses: ", ".join(f"{number}={address}" for number, address in addresses.items()),
        ),
        TableColumn("READ QUEUES", "readQueues", lambda one: one.read_queue_nums),
        TableColumn("WRITE QUEUES", "writeQueues", lambda one: one.write_queue_nums),
        TableColumn("PERMISSION", "perm", lambda one: one.perm, permission),
    ]
    return answer(arguments, {"topic": arguments.topic, "brokers": column_json(columns, rows)}, column_table(columns, rows))


QUEUE_COLUMNS: list[TableColumn[QueueStatus]] = [
    TableColumn("BROKER", "broker", lambda one: one.queue.broker_name),
    TableColumn("QUEUE", "queueId", lambda one: one.queue.queue_id),
    TableColumn("FIRST", "minOffset", lambda one: one.min_offset),
    TableColumn("END", "maxOffset", lambda one: one.max_offset),
    TableColumn("MESSAGES", "", lambda one: one.count),
    TableColumn("LAST STORED", "lastUpdateTimestamp", lambda one: one.last_update_timestamp, moment),
]


async def show_status(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        queues = await cluster.topic_status(arguments.topic)
        groups = await cluster.groups_of_topic(arguments.topic)
    if arguments.json:
        emit_json({"topic": arguments.topic, "groups": groups, "queues": column_json(QUEUE_COLUMNS, queues)})
        return 0
    emit(column_table(QUEUE_COLUMNS, queues))
    total = counted(sum(one.count for one in queues), "message")
    emit(f"{total} in {counted(len(queues), 'queue')}; consumed by: {', '.join(groups) or 'nobody yet'}")
    return 0


def permission(perm: int) -> str:
    return {0: "none", 2: "write only", 4: "read only", 6: "read, write"}.get(perm & 6, str(perm))
