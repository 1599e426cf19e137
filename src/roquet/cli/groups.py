"""`roquet group`: list, create, delete, progress, members; moving a group's progress is in offsets.py."""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from roquet.cli import offsets
from roquet.cli.options import GROUP, ON_CLUSTER, YES, Commands, argument, cluster_command, confirmed, noun, positive
from roquet.cli.render import TableColumn, answer, column_json, column_table, counted, emit, emit_json, moment, note, table
from roquet.cli.topics import admin
from roquet.errors import ClientError

if TYPE_CHECKING:
    from roquet.admin import Admin, QueueProgress


def add_commands(commands: Commands) -> None:
    nouns = noun(
        commands,
        "group",
        "list, create, delete and look at consumer groups",
        """
        roquet group list
        roquet group progress billing
        roquet group members billing
        roquet group reset billing pay --to 2024-05-01T10:00 --dry-run
        """,
    )

    cluster_command(
        nouns, "list", list_groups, "list groups with their members and lag", "roquet group list\nroquet group list --all --json",
        argument("--all", action="store_true", help="show the system's own groups, too"),
    )  # fmt: skip
    shape = (
        GROUP,
        argument("--consume", action=argparse.BooleanOptionalAction, help="whether its members may pull (default: yes, or as it is)"),
        argument(
            "--broadcast", action=argparse.BooleanOptionalAction, help="whether its members may broadcast (default: yes, or as it is)"
        ),
        argument("--retry-queues", type=positive, metavar="N", help="queues of its retry topic (default: 1, or as it is)"),
        argument(
            "--retry-max",
            type=int,
            metavar="N",
            help="retries before a message is a dead letter, where its consumer sets no limit (default: 16)",
        ),
        ON_CLUSTER,
    )
    creating = "roquet group create billing\nroquet group create billing --retry-max 3"
    cluster_command(nouns, "create", create_group, "create a group on every broker of the cluster, or change it", creating, *shape)
    changing = "roquet group update billing --no-consume         stop all its members from pulling"
    cluster_command(nouns, "update", update_group, "change a group that there is", changing, *shape)
    cluster_command(
        nouns, "delete", delete_group, "delete a group", "roquet group delete billing --yes\nroquet group delete billing --offsets",
        GROUP,
        argument("--offsets", action="store_true", help="forget its progress too; a group of that name then starts anew"),
        YES, ON_CLUSTER,
    )  # fmt: skip
    cluster_command(
        nouns, "progress", show_progress, "show how far a group is in every queue",
        "roquet group progress billing\nroquet group progress billing --topic pay",
        GROUP, argument("--topic", metavar="TOPIC", help="only in this topic"),
    )  # fmt: skip
    cluster_command(nouns, "members", show_members, "show who consumes in a group now", "roquet group members billing", GROUP)
    offsets.add_commands(nouns)


async def list_groups(arguments: argparse.Namespace) -> int:
    from roquet.wire.names import is_system_group

    async with admin(arguments) as cluster:
        names = [name for name in await cluster.groups() if arguments.all or not is_system_group(name)]
        members = await cluster.members_of_all(names)
        progress = await cluster.progress_of_all(names)
    rows = [
        (
            name,
            len(members[name].client_ids()),
            sum(one.lag for one in progress[name]),
            sorted({one.queue.topic for one in progress[name] if not one.queue.topic.startswith("%RETRY%")}),
        )
        for name in names
    ]
    if arguments.json:
        emit_json([{"group": name, "members": count, "lag": lag, "topics": topics} for name, count, lag, topics in rows])
        return 0
    if not rows:
        note("no groups yet; one is made by its first consumer, or by: roquet group create NAME")
        return 0
    emit(table(["GROUP", "MEMBERS", "LAG", "TOPICS"], [[name, count, lag, ", ".join(topics)] for name, count, lag, topics in rows]))
    return 0


async def create_group(arguments: argparse.Namespace) -> int:
    from roquet.wire.calls.groups import GroupConfig

    wanted = {
        "consume_enable": arguments.consume,
        "consume_broadcast_enable": arguments.broadcast,
        "retry_queue_nums": arguments.retry_queues,
        "retry_max_times": arguments.retry_max,
    }
    async with admin(arguments) as cluster:
        before = (await cluster.groups(arguments.cluster)).get(arguments.group) or GroupConfig(arguments.group)
        config = replace(before, **{name: value for name, value in wanted.items() if value is not None})
        masters = await cluster.create_group(config, cluster=arguments.cluster)
    names = [broker.name for broker in masters]
    return answer(arguments, {"group": arguments.group, "brokers": names}, f"Group {arguments.group} is set on {', '.join(names)}")


async def update_group(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        await must_exist(cluster, arguments.group)
    return await create_group(arguments)


async def must_exist(cluster: Admin, group: str) -> None:
    """Raises ClientError for a group that no broker has, which is a slip in its name most of the time."""
    groups = await cluster.groups()
    if group not in groups:
        from roquet.settings import did_you_mean

        raise ClientError(f"no broker has a group {group!r}{did_you_mean(group, groups)}\n  See which there are: roquet group list --all")


async def delete_group(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        await must_exist(cluster, arguments.group)
        if not confirmed(arguments, f"Delete group {arguments.group}{' and its progress' if arguments.offsets else ''}?"):
            return 1
        masters = await cluster.delete_group(arguments.group, remove_offsets=arguments.offsets, cluster=arguments.cluster)
    names = [broker.name for broker in masters]
    facts = {"group": arguments.group, "brokers": names, "offsetsRemoved": arguments.offsets}
    return answer(arguments, facts, f"Deleted group {arguments.group} on {', '.join(names)}")


PROGRESS_COLUMNS: list[TableColumn[QueueProgress]] = [
    TableColumn("TOPIC", "topic", lambda one: one.queue.topic),
    TableColumn("BROKER", "broker", lambda one: one.queue.broker_name),
    TableColumn("QUEUE", "queueId", lambda one: one.queue.queue_id),
    TableColumn("END", "brokerOffset", lambda one: one.broker_offset),
    TableColumn("CONSUMED", "consumerOffset", lambda one: one.consumer_offset),
    TableColumn("LAG", "lag", lambda one: one.lag),
    TableColumn("LAST CONSUMED WAS STORED", "lastTimestamp", lambda one: one.last_timestamp, moment),
]


async def show_progress(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        queues = await cluster.progress(arguments.group, arguments.topic)
        if not queues:
            await must_exist(cluster, arguments.group)
    lag = sum(one.lag for one in queues)
    if arguments.json:
        emit_json({"group": arguments.group, "lag": lag, "queues": column_json(PROGRESS_COLUMNS, queues)})
    elif not queues:
        note(f"group {arguments.group} has no progress yet; are its members running? roquet group members {arguments.group}")
    else:
        emit(column_table(PROGRESS_COLUMNS, queues))
        emit(f"lag: {counted(lag, 'message')}")
    return 0


async def show_members(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        members = await cluster.members(arguments.group)
        if not members.by_broker:
            await must_exist(cluster, arguments.group)
    brokers: dict[str, list[str]] = defaultdict(list)
    about: dict[str, tuple[str, str, int]] = {}
    subscriptions: dict[str, str] = {}
    for broker, connection in sorted(members.by_broker.items()):
        subscriptions |= {topic: one.sub_string for topic, one in connection.subscription_table.items()}
        for one in connection.connection_set:
            brokers[one.client_id].append(broker)
            about[one.client_id] = (one.client_addr, one.language, one.version)
    kinds = sorted({(str(one.message_model), str(one.consume_type), str(one.consume_from_where)) for one in members.by_broker.values()})
    if arguments.json:
        emit_json(
            {
                "group": arguments.group,
                "members": [
                    {"clientId": name, "address": address, "language": language, "version": version, "brokers": brokers[name]}
                    for name, (address, language, version) in sorted(about.items())
                ],
                "subscriptions": subscriptions,
                "messageModel": [kind[0] for kind in kinds],
                "consumeType": [kind[1] for kind in kinds],
                "consumeFromWhere": [kind[2] for kind in kinds],
            }
        )
        return 0
    if not about:
        note(f"nobody consumes in group {arguments.group} now")
        return 0
    emit(
        table(
            ["CLIENT", "ADDRESS", "LANGUAGE", "VERSION", "BROKERS"],
            [[name, about[name][0], about[name][1], str(about[name][2]), ", ".join(brokers[name])] for name in sorted(about)],
        )
    )
    for topic, expression in sorted(subscriptions.items()):
        emit(f"subscribed: {topic}  {expression}")
    for model, kind, where in kinds:
        emit(f"{model}, {kind}, {where}")
    return 0
