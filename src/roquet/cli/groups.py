"""`roquet group`: list, create, delete, progress, members; moving a group's progress is in offsets.py."""

from __future__ import annotations

import argparse
from collections import defaultdict

from roquet.cli import offsets
from roquet.cli.options import Commands, cluster_options, command, confirmed, noun, positive
from roquet.cli.render import counted, emit, emit_json, moment, note, table
from roquet.cli.topics import admin


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

    listing = command(nouns, "list", "list groups with their members and lag", "roquet group list\nroquet group list --all --json")
    listing.add_argument("--all", action="store_true", help="with the system's own")
    cluster_options(listing)
    listing.set_defaults(run=list_groups)

    create = command(
        nouns,
        "create",
        "create a group on every broker of the cluster, or change it",
        """
        roquet group create billing
        roquet group update billing --no-consume         stop all its members from pulling
        """,
        aliases=("update",),
    )
    create.add_argument("group", metavar="GROUP")
    create.add_argument("--consume", action=argparse.BooleanOptionalAction, default=True, help="may its members pull")
    create.add_argument("--broadcast", action=argparse.BooleanOptionalAction, default=True, help="may its members broadcast")
    create.add_argument("--retry-queues", type=positive, default=1, metavar="N", help="queues of its retry topic (default: 1)")
    create.add_argument("--retry-max", type=int, default=16, metavar="N", help="attempts before a message is a dead letter (default: 16)")
    create.add_argument("--cluster", metavar="NAME", help="only on this cluster's brokers (default: all)")
    cluster_options(create)
    create.set_defaults(run=create_group)

    delete = command(nouns, "delete", "delete a group", "roquet group delete billing --yes\nroquet group delete billing --offsets")
    delete.add_argument("group", metavar="GROUP")
    delete.add_argument("--offsets", action="store_true", help="forget its progress too; a group of that name then starts anew")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.add_argument("--cluster", metavar="NAME", help="only on this cluster's brokers (default: all)")
    cluster_options(delete)
    delete.set_defaults(run=delete_group)

    progress = command(
        nouns,
        "progress",
        "show how far a group is in every queue",
        "roquet group progress billing\nroquet group progress billing --topic pay",
    )
    progress.add_argument("group", metavar="GROUP")
    progress.add_argument("--topic", metavar="TOPIC", help="only in this topic")
    cluster_options(progress)
    progress.set_defaults(run=show_progress)

    members = command(nouns, "members", "show who consumes in a group now", "roquet group members billing")
    members.add_argument("group", metavar="GROUP")
    cluster_options(members)
    members.set_defaults(run=show_members)

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

    config = GroupConfig(
        group_name=arguments.group,
        consume_enable=arguments.consume,
        consume_broadcast_enable=arguments.broadcast,
        retry_queue_nums=arguments.retry_queues,
        retry_max_times=arguments.retry_max,
    )
    async with admin(arguments) as cluster:
        masters = await cluster.create_group(config, cluster=arguments.cluster)
    names = [broker.name for broker in masters]
    if arguments.json:
        emit_json({"group": arguments.group, "brokers": names})
    else:
        emit(f"Group {arguments.group} is set on {', '.join(names)}")
    return 0


async def delete_group(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        if arguments.group not in await cluster.groups():
            note(f"roquet: no broker has a group {arguments.group!r}; see which there are: roquet group list --all")
            return 1
        if not confirmed(arguments, f"Delete group {arguments.group}{' and its progress' if arguments.offsets else ''}?"):
            return 1
        masters = await cluster.delete_group(arguments.group, remove_offsets=arguments.offsets, cluster=arguments.cluster)
    names = [broker.name for broker in masters]
    if arguments.json:
        emit_json({"group": arguments.group, "brokers": names, "offsetsRemoved": arguments.offsets})
    else:
        emit(f"Deleted group {arguments.group} on {', '.join(names)}")
    return 0


async def show_progress(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        queues = await cluster.progress(arguments.group, arguments.topic)
    if arguments.json:
        emit_json(
            {
                "group": arguments.group,
                "lag": sum(one.lag for one in queues),
                "queues": [
                    {
                        "topic": one.queue.topic,
                        "broker": one.queue.broker_name,
                        "queueId": one.queue.queue_id,
                        "brokerOffset": one.broker_offset,
                        "consumerOffset": one.consumer_offset,
                        "lag": one.lag,
                        "lastTimestamp": one.last_timestamp,
                    }
                    for one in queues
                ],
            }
        )
        return 0
    if not queues:
        note(f"group {arguments.group} has no progress yet; are its members running? roquet group members {arguments.group}")
        return 0
    emit(
        table(
            ["TOPIC", "BROKER", "QUEUE", "END", "CONSUMED", "LAG", "LAST CONSUMED WAS STORED"],
            [
                [
                    one.queue.topic,
                    one.queue.broker_name,
                    one.queue.queue_id,
                    one.broker_offset,
                    one.consumer_offset,
                    one.lag,
                    moment(one.last_timestamp),
                ]
                for one in queues
            ],
        )
    )
    emit(f"lag: {counted(sum(one.lag for one in queues), 'message')}")
    return 0


async def show_members(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        members = await cluster.members(arguments.group)
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
