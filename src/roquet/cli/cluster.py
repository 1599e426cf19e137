"""`roquet cluster`: give a new broker what the others have, drain a broker before it goes, and bring it back."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roquet.cli.options import DRY_RUN, YES, Commands, argument, cluster_command, confirmed, noun, positive_seconds
from roquet.cli.render import TableColumn, answer, column_json, column_table, counted, emit, note, printable
from roquet.cli.topics import admin, belongs_to_users
from roquet.errors import ClientError, Rejected

if TYPE_CHECKING:
    from roquet.admin import Admin, Broker
    from roquet.routing.expansion import Plan

PERMISSION = "brokerPermission"
REGISTER = "registerBroker"
WRITE = 2
SHOWN_S = 30.0
"""How long the name servers may take to show a changed permission."""

ROUTES_S = 30.0
"""Clients ask for routes this often, and a broker takes what they send until then."""

BROKER = argument("broker", metavar="BROKER", help="its name, as roquet status shows it")


def add_commands(commands: Commands) -> None:
    nouns = noun(
        commands,
        "cluster",
        "give a new broker what the others have, drain one before it goes, and bring it back",
        """
        roquet cluster expand broker-d --dry-run
        roquet cluster drain broker-b
        roquet cluster resume broker-b
        """,
    )
    cluster_command(
        nouns,
        "expand",
        expand,
        "copy topics, groups and accounts of the other brokers to a new one",
        """
        roquet cluster expand broker-d --dry-run          show what would be copied
        roquet cluster expand broker-d --yes
        roquet cluster expand broker-d --topic invoices   a topic that is not on all the others, too
        """,
        argument("broker", metavar="BROKER", help="the new one, as roquet status shows it"),
        argument("--from", dest="sources", action="append", default=[], metavar="NAME",
                 help="copy from this broker alone (may be repeated; default: all others of its cluster)"),
        argument("--topic", action="append", default=[], metavar="TOPIC",
                 help="copy this topic although a rule leaves it out (may be repeated)"),
        argument("--overwrite", action="store_true", help="change what the new broker has with other settings, too"),
        DRY_RUN,
        YES,
    )  # fmt: skip
    cluster_command(
        nouns,
        "drain",
        drain,
        "send producers elsewhere, and wait until consumers have read what the broker holds",
        """
        roquet cluster drain broker-b                    until every group has read everything
        roquet cluster drain broker-b --no-watch         only take the write permission away
        roquet cluster drain broker-b --remove           then withdraw it from the name servers
        """,
        BROKER,
        argument("--remove", action="store_true", help="when everything is read, let name servers forget the broker"),
        argument("--watch", action=argparse.BooleanOptionalAction, default=True, help="wait for the groups (default: yes)"),
        argument("--every", type=positive_seconds, default=2.0, metavar="SECONDS", help="between looks at the groups (default: 2)"),
        argument(
            "--settle", type=positive_seconds, default=ROUTES_S, metavar="SECONDS",
            help="how long producers that are connected may not know of it yet (default: 30)",
        ),
    )  # fmt: skip
    cluster_command(nouns, "resume", resume, "send producers to a drained broker again", "roquet cluster resume broker-b", BROKER)


# Growing


@dataclass(frozen=True)
class Row:
    """One thing to make."""

    kind: str
    name: str
    how: str


PLANNED: list[TableColumn[Row]] = [
    TableColumn("WHAT", "kind", lambda row: row.kind),
    TableColumn("NAME", "name", lambda row: row.name, printable),
    TableColumn("AS", "as", lambda row: row.how, printable),
]


def rows_of(plan: Plan) -> list[Row]:
    """In the order in which they are made. Secrets are no part of it."""
    rows = [Row("account", one.access_key, "an admin" if one.admin else "its permissions and its secret") for one in plan.accounts]
    if plan.white:
        rows.append(Row("white list", ", ".join(plan.white), "these need no key"))
    rows += [Row("group", one.group_name, f"{one.retry_max_times} retries") for one in plan.groups]
    return rows + [Row("topic", one.topic_name, queues_of(one.write_queue_nums, one.read_queue_nums)) for one in plan.topics]


def queues_of(write: int, read: int) -> str:
    return counted(write, "queue") if write == read else f"{write} write and {read} read queues"


async def expand(arguments: argparse.Namespace) -> int:
    """Plan, show, ask, do, and look again: what a killed one left is what the next one plans."""
    name = arguments.broker
    async with admin(arguments) as cluster:

        async def look() -> Plan:
            return await cluster.plan_expansion(name, sources=arguments.sources, topics=arguments.topic, overwrite=arguments.overwrite)

        plan = await look()
        rows = rows_of(plan)
        if not arguments.json:
            if rows:
                emit(column_table(PLANNED, rows))
            for topic, why in plan.left_out.items():
                emit(f"left out: topic {printable(topic)}: {why}. To copy it, too: --topic {printable(topic)}")
            for what, how in plan.differing.items():
                emit(f"kept: {printable(what)}: {how}. To change it to the others': --overwrite")
            for text in plan.notes:
                emit(f"note: {text}")
        if rows and not arguments.dry_run:
            if not confirmed(arguments, f"Make {counted(len(rows), 'thing')} on {name}?"):
                return 1
            await cluster.expand(name, plan, overwrite=arguments.overwrite)
            missing = rows_of(await look())
            if missing:
                raise ClientError(
                    f"{name} still lacks {missing[0].kind} {missing[0].name} after it was made; see its log, and run this again"
                )
        writable = await cluster.takes_messages(name)
    facts = {
        "broker": name, "plan": column_json(PLANNED, rows), "leftOut": plan.left_out, "kept": plan.differing, "notes": plan.notes,
        "done": not arguments.dry_run, "writable": writable,
    }  # fmt: skip
    if arguments.dry_run:
        return answer(arguments, facts, f"Nothing was changed; {counted(len(rows), 'thing')} would be made on {name}.")
    ends = "" if writable else f" It takes no messages yet: roquet cluster resume {name}"
    return answer(arguments, facts, (f"{name} has what the others have." if rows else f"{name} lacks nothing.") + ends)


# Shrinking


async def drain(arguments: argparse.Namespace) -> int:
    """Its permission is a setting that the broker keeps: it stays drained over a restart, until `resume`."""
    name = arguments.broker
    if arguments.remove and not arguments.watch:
        raise ClientError("--remove and --no-watch exclude each other: a broker may go when everything is read")
    async with admin(arguments) as cluster:
        (broker,) = await cluster.masters_named([name])
        permission = await permission_of(cluster, broker)
        if permission & WRITE:
            await cluster.update_broker_config(broker.address, {PERMISSION: str(permission & ~WRITE)})
        await until_shown(cluster, name, writable=False)
        note(f"{name} takes no new messages; producers learn it within 30 s. To undo: roquet cluster resume {name}")
        left = await watch(cluster, broker, arguments) if arguments.watch else await backlog(cluster, broker)
        if not arguments.watch:
            facts = {"broker": name, "writable": False, "backlog": left, "removed": False}
            text = f"producers are sent elsewhere; its groups have {counted(sum(left.values()), 'message')} to read now"
            return answer(arguments, facts, text)
        nobody = await read_by_nobody(cluster, broker)
        for topic, count in nobody.items():
            note(f"  no group reads {printable(topic)}: its {counted(count, 'message')} stay in this broker's files alone")
        gone = arguments.remove and await withdraw(cluster, broker)
    facts = {"broker": name, "writable": False, "backlog": left, "readByNobody": nobody, "removed": gone}
    text = f"{name} is drained: every group has read everything"
    if arguments.remove and not gone:
        note(f"{name} does not withdraw itself, as Roquet's brokers do; name servers forget it when its process is stopped")
    ending = f"; it is withdrawn from the name servers. Its process at {broker.address} can be stopped now" if gone else ""
    return answer(arguments, facts, text + (ending or f". It can be stopped now, at {broker.address}"))


async def withdraw(cluster: Admin, broker: Broker) -> bool:
    """Whether no name server knows it any more."""
    try:
        await cluster.update_broker_config(broker.address, {REGISTER: "false"})
    except Rejected:
        return False
    deadline = asyncio.get_running_loop().time() + SHOWN_S
    for address in cluster.name_server_addresses:
        while broker.address in await known_to(cluster, address):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.02)
    return True


async def known_to(cluster: Admin, name_server: str) -> set[str]:
    from roquet.wire.calls.routes import GET_BROKER_CLUSTER_INFO

    info = (await cluster.call(name_server, GET_BROKER_CLUSTER_INFO)).body
    return {address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()}


async def resume(arguments: argparse.Namespace) -> int:
    name = arguments.broker
    async with admin(arguments) as cluster:
        (broker,) = await cluster.masters_named([name])
        permission = await permission_of(cluster, broker)
        if not permission & WRITE:
            await cluster.update_broker_config(broker.address, {PERMISSION: str(permission | WRITE)})
        elif not await cluster.takes_messages(name):
            await cluster.add_write_permission(name)  # it was taken at the name servers alone (mqadmin wipeWritePerm)
        await until_shown(cluster, name, writable=True)
        missed = await topics_missed(cluster, name)
    if missed:
        note(f"{counted(missed, 'topic')} of the other brokers are not on it, made while it was away: roquet cluster expand {name}")
    return answer(arguments, {"broker": name, "writable": True, "topicsMissed": missed}, f"{name} takes messages again")


async def topics_missed(cluster: Admin, name: str) -> int:
    """0 too where nobody tells: that is not what was asked for."""
    try:
        return len((await cluster.plan_expansion(name)).topics)
    except ClientError:
        return 0


async def permission_of(cluster: Admin, broker: Broker) -> int:
    text = (await cluster.broker_config(broker.address)).get(PERMISSION, "")
    if not text.isdigit():
        raise ClientError(f"{broker.name} at {broker.address} says {PERMISSION}={text!r}, and a number was expected")
    return int(text)


async def until_shown(cluster: Admin, name: str, *, writable: bool) -> None:
    deadline = asyncio.get_running_loop().time() + SHOWN_S
    while await cluster.takes_messages(name) != writable:
        if asyncio.get_running_loop().time() > deadline:
            raise ClientError(f"{name} has its new permission, but the name servers do not show it after {SHOWN_S:g} s; see roquet status")
        await asyncio.sleep(0.02)


async def backlog(cluster: Admin, broker: Broker) -> dict[str, int]:
    """Group -> messages that it has not read yet on this broker; and, in parentheses, what waits there for its time or its end."""
    from roquet.wire.names import is_system_group

    groups = [group for group in await cluster.groups() if not is_system_group(group)]
    progress = await cluster.progress_of_all(groups)
    lags = {group: sum(one.lag for one in rows if one.queue.broker_name == broker.name) for group, rows in progress.items()}
    return {what: count for what, count in {**lags, **waiting_in(await cluster.runtime(broker.address))}.items() if count > 0}


def waiting_in(runtime: Mapping[str, str]) -> dict[str, int]:
    """Messages that no group can read yet, as a broker counts them. RocketMQ's counts the delayed ones."""
    delayed = [text.split(",") for key, text in runtime.items() if key.startswith("scheduleMessageOffset_")]
    return {
        "(delayed)": sum(int(end) - int(at) for at, end in delayed),
        "(timed)": int(runtime.get("roquetTimedWaiting", "0")),
        "(in open transactions)": int(runtime.get("roquetTransactionsOpen", "0")),
    }


async def read_by_nobody(cluster: Admin, broker: Broker) -> dict[str, int]:
    """Topic -> messages of it here, where no group has ever read them."""
    from roquet.admin.asking import gather_bounded
    from roquet.wire.calls import topics as calls

    own = {one.name for one in await cluster.brokers()} | {broker.cluster}
    topics = [name for name in (await cluster.topic_table(broker.address)).topic_config_table if belongs_to_users(name, own)]

    async def unread(topic: str) -> int:
        header = calls.TopicHeader(topic)
        if (await cluster.call(broker.address, calls.QUERY_TOPIC_CONSUME_BY_WHO, header)).body.group_list:
            return 0
        stats = (await cluster.call(broker.address, calls.GET_TOPIC_STATS_INFO, header)).body.offset_table
        return sum(one.max_offset - one.min_offset for one in stats.values())

    return {topic: count for topic, count in (await gather_bounded(sorted(topics), unread)).items() if count}


async def producers_of(cluster: Admin, broker: Broker) -> int:
    from roquet.wire.calls.members import GET_ALL_PRODUCER_INFO

    table = (await cluster.call(broker.address, GET_ALL_PRODUCER_INFO)).body.data
    return len({member.client_id for members in table.values() for member in members})


async def watch(cluster: Admin, broker: Broker, arguments: argparse.Namespace) -> dict[str, int]:
    """Until nothing is left, and nothing more can come. Ctrl-C ends the watching; the broker stays drained."""
    said: dict[str, int] = {}
    settled = asyncio.get_running_loop().time()
    connected = await producers_of(cluster, broker)
    if connected:
        settled += arguments.settle
        many = "producer is connected: what it sends" if connected == 1 else "producers are connected: what they send"
        note(f"  {connected} {many} in the next {arguments.settle:g} s counts too")
    while True:
        now = asyncio.get_running_loop().time()
        left = await backlog(cluster, broker)
        if left != said:
            members = await cluster.members_of_all(group for group in left if not group.startswith("("))
            for group, lag in sorted(left.items()):
                if group not in members:
                    note(f"  {counted(lag, 'message')} {group} to wait for")
                    continue
                alone = "" if members[group].client_ids() else "; no member runs, so nobody reads them"
                note(f"  {printable(group)}  {counted(lag, 'message')} to read{alone}")
            said = left
        if not left and now >= settled:
            return left
        await asyncio.sleep(arguments.every)
