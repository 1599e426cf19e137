"""`roquet cluster`: drain a broker before it goes, and bring it back."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from roquet.cli.options import Commands, argument, cluster_command, noun, positive_seconds
from roquet.cli.render import answer, counted, note, printable
from roquet.cli.topics import admin
from roquet.errors import ClientError

if TYPE_CHECKING:
    from roquet.admin import Admin, Broker

PERMISSION = "brokerPermission"
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
        "drain a broker before it goes, and bring it back",
        """
        roquet cluster drain broker-b
        roquet cluster resume broker-b
        """,
    )
    cluster_command(
        nouns,
        "drain",
        drain,
        "send producers elsewhere, and wait until consumers have read what the broker holds",
        """
        roquet cluster drain broker-b                    until every group has read everything
        roquet cluster drain broker-b --no-watch         only take the write permission away
        """,
        BROKER,
        argument("--watch", action=argparse.BooleanOptionalAction, default=True, help="wait for the groups (default: yes)"),
        argument("--every", type=positive_seconds, default=2.0, metavar="SECONDS", help="between looks at the groups (default: 2)"),
        argument(
            "--settle", type=positive_seconds, default=ROUTES_S, metavar="SECONDS",
            help="how long producers that are connected may not know of it yet (default: 30)",
        ),
    )  # fmt: skip
    cluster_command(nouns, "resume", resume, "send producers to a drained broker again", "roquet cluster resume broker-b", BROKER)


async def drain(arguments: argparse.Namespace) -> int:
    """Its permission is a setting that the broker keeps: it stays drained over a restart, until `resume`."""
    name = arguments.broker
    async with admin(arguments) as cluster:
        (broker,) = await cluster.masters_named([name])
        permission = await permission_of(cluster, broker)
        if permission & WRITE:
            await cluster.update_broker_config(broker.address, {PERMISSION: str(permission & ~WRITE)})
        await until_shown(cluster, name, writable=False)
        note(f"{name} takes no new messages; producers learn it within 30 s. To undo: roquet cluster resume {name}")
        left = await watch(cluster, broker, arguments) if arguments.watch else await backlog(cluster, name)
    facts = {"broker": name, "writable": False, "backlog": left}
    if not arguments.watch:
        return answer(
            arguments, facts, f"producers are sent elsewhere; its groups have {counted(sum(left.values()), 'message')} to read now"
        )
    return answer(arguments, facts, f"{name} is drained: every group has read everything")


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
    return answer(arguments, {"broker": name, "writable": True}, f"{name} takes messages again")


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


async def backlog(cluster: Admin, name: str) -> dict[str, int]:
    """Group -> messages that it has not read yet on this broker."""
    from roquet.wire.names import is_system_group

    groups = [group for group in await cluster.groups() if not is_system_group(group)]
    progress = await cluster.progress_of_all(groups)
    lags = {group: sum(one.lag for one in rows if one.queue.broker_name == name) for group, rows in progress.items()}
    return {group: lag for group, lag in lags.items() if lag > 0}


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
        left = await backlog(cluster, broker.name)
        if left != said:
            members = await cluster.members_of_all(left)
            for group, lag in sorted(left.items()):
                alone = "" if members[group].client_ids() else "; no member runs, so nobody reads them"
                note(f"  {printable(group)}  {counted(lag, 'message')} to read{alone}")
            said = left
        if not left and now >= settled:
            return left
        await asyncio.sleep(arguments.every)
