"""`roquet query`: find messages by id, key or unique key."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from roquet.cli.messages import as_json, describe
from roquet.cli.options import TOPIC, Commands, argument, cluster_command, noun, positive, timestamp_ms
from roquet.cli.progress import Bar
from roquet.cli.render import emit, emit_json, note
from roquet.cli.topics import admin, belongs_to_users
from roquet.errors import ClientError, NoRoute

if TYPE_CHECKING:
    from roquet.admin import Admin
    from roquet.message import ReceivedMessage


def add_commands(commands: Commands) -> None:
    nouns = noun(
        commands,
        "query",
        "find messages by id, key or unique key",
        """
        roquet query id 7F00000100002A9F0000000000000000
        roquet query key orders order-17
        roquet query unique orders C0000202000A2A139F1E6D2BAE4F0000
        """,
    )

    cluster_command(
        nouns,
        "id",
        query_id,
        "one message by its id",
        """
        roquet query id 7F00000100002A9F0000000000000000         the broker's id: its address and the place in its log
        roquet query id C0000202000A2A139F1E6D2BAE4F0000         the producer's id, which `roquet send` prints: looked for in all topics
        roquet query id C0000202000A2A139F1E6D2BAE4F0000 --topic orders   faster, where there are many topics
        """,
        argument("id", metavar="ID"),
        argument("--topic", metavar="TOPIC", help="look for the producer's id in this topic"),
    )
    cluster_command(
        nouns,
        "key",
        query_key,
        "messages that have a key",
        """
        roquet query key orders order-17
        roquet query key orders order-17 --begin 2024-05-01 --end 2024-05-02
        """,
        TOPIC,
        argument("key", metavar="KEY"),
        argument("--max", type=positive, default=64, metavar="N", help="at most this many from each broker (default: 64)"),
        argument("--begin", type=timestamp_ms, default=0, metavar="TIME", help="messages stored then or later: 2024-05-01T10:00 or ms"),
        argument("--end", type=timestamp_ms, default=(1 << 63) - 1, metavar="TIME", help="only messages stored before this time"),
    )
    cluster_command(
        nouns, "unique", query_unique, "by the producer's unique key", "roquet query unique orders C0000202000A2A139F1E6D2BAE4F0000",
        TOPIC, argument("key", metavar="UNIQUE_KEY"),
    )  # fmt: skip


async def query_id(arguments: argparse.Namespace) -> int:
    """Both kinds of id have 32 digits. It is the broker's when the address in it is one of this cluster's, else the producer's."""
    async with admin(arguments) as cluster:
        if arguments.topic:
            found = await cluster.query_by_unique_key(arguments.topic, arguments.id)
        else:
            found = await by_any_id(cluster, arguments.id)
    return show(found, arguments)


async def by_any_id(cluster: Admin, text: str) -> list[ReceivedMessage]:
    from roquet.errors import Refused
    from roquet.message import host_text
    from roquet.wire.ids import parse_offset_message_id

    try:
        address = host_text(parse_offset_message_id(text)[0])
    except Refused as error:
        raise ClientError(error.remark) from None
    # An id names an address that we would connect to: only to brokers of this cluster.
    if address in {broker.address for broker in await cluster.brokers()}:
        return [await cluster.view_message(text)]
    return await in_all_topics(cluster, text)


async def in_all_topics(cluster: Admin, unique_key: str) -> list[ReceivedMessage]:
    """Those of users first: a message that failed, or waits for its time, has the same id in topics of the system."""
    from roquet.admin.asking import gather_bounded

    names = await cluster.topic_names()
    own = [name for name in names if belongs_to_users(name, set())]
    for some in (own, sorted(set(names) - set(own))):
        with Bar("looking into topics", len(some)) as bar:

            async def one(topic: str, bar: Bar = bar) -> list[ReceivedMessage]:
                try:
                    return await cluster.query_by_unique_key(topic, unique_key)
                except NoRoute:  # deleted meanwhile
                    return []
                finally:
                    bar.add()

            found = [message for messages in (await gather_bounded(some, one)).values() for message in messages]
        if found:
            return found
    return []


async def query_key(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        found = await cluster.query_by_key(
            arguments.topic, arguments.key, count_max=arguments.max, begin_ms=arguments.begin, end_ms=arguments.end
        )
    return show(found, arguments)


async def query_unique(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        found = await cluster.query_by_unique_key(arguments.topic, arguments.key)
    return show(found, arguments)


def show(messages: list[ReceivedMessage], arguments: argparse.Namespace) -> int:
    if arguments.json:
        emit_json([as_json(message) for message in messages])
    elif messages:
        emit("\n\n".join(map(describe, messages)))
    if not messages:
        note("no message found")
    return 0 if messages else 1
