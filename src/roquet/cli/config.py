"""`roquet config`: the settings of running servers, looked at and changed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roquet.cli.options import ON_CLUSTER, Commands, argument, cluster_command, noun, pair
from roquet.cli.render import TableColumn, answer, column_json, column_table
from roquet.cli.topics import admin
from roquet.settings import BrokerSettings, NameServerSettings, Settings, table

if TYPE_CHECKING:
    from roquet.admin import Admin

WHERE = (
    argument("--broker", action="append", default=[], metavar="NAME", help="only of this broker (may be repeated; default: all)"),
    ON_CLUSTER,
    argument("--name-servers", action="store_true", help="of the name servers instead of the brokers"),
)


def add_commands(commands: Commands) -> None:
    nouns = noun(
        commands,
        "config",
        "look at settings of running servers, and change them",
        """
        roquet config get
        roquet config get fileReservedTime --broker broker-a
        roquet config set fileReservedTime=48
        """,
    )
    cluster_command(
        nouns,
        "get",
        get_config,
        "show settings of running servers, and which of them can change at run time",
        """
        roquet config get
        roquet config get fileReservedTime flushDiskType
        roquet config get --all --json                   also those of RocketMQ that have no effect here
        roquet config get --name-servers
        """,
        argument("keys", nargs="*", metavar="KEY", help="under RocketMQ's names (default: all that Roquet serves)"),
        argument("--all", action="store_true", help="with all that the server names"),
        *WHERE,
    )
    cluster_command(
        nouns,
        "set",
        set_config,
        "change settings of running servers; they hold after a restart too",
        """
        roquet config set fileReservedTime=48
        roquet config set autoCreateTopicEnable=false maxMessageSize=1048576 --broker broker-a
        roquet config set orderMessageEnable=true --name-servers
        """,
        argument("pairs", nargs="+", type=pair, metavar="KEY=VALUE", help="all or nothing; what cannot change at run time is refused"),
        *WHERE,
    )


@dataclass(frozen=True)
class Server:
    name: str
    address: str


@dataclass(frozen=True)
class Row:
    server: str
    key: str
    value: str
    at_run_time: bool


COLUMNS: list[TableColumn[Row]] = [
    TableColumn("SERVER", "server", lambda row: row.server),
    TableColumn("KEY", "key", lambda row: row.key),
    TableColumn("VALUE", "value", lambda row: row.value),
    TableColumn("CHANGES", "changesAtRunTime", lambda row: row.at_run_time, lambda can: "at run time" if can else "at a restart"),
]


def kind_of(arguments: argparse.Namespace) -> type[Settings]:
    return NameServerSettings if arguments.name_servers else BrokerSettings


async def servers_of(cluster: Admin, arguments: argparse.Namespace) -> list[Server]:
    if arguments.name_servers:
        return [Server(address, address) for address in cluster.name_server_addresses]
    found = await (cluster.masters_named(arguments.broker, arguments.cluster) if arguments.broker else cluster.masters(arguments.cluster))
    return [Server(broker.name, broker.address) for broker in found]


async def settings_of(cluster: Admin, server: Server, arguments: argparse.Namespace) -> dict[str, str]:
    return await (cluster.namesrv_config if arguments.name_servers else cluster.broker_config)(server.address)


async def get_config(arguments: argparse.Namespace) -> int:
    specs = table(kind_of(arguments))
    rows: list[Row] = []
    async with admin(arguments) as cluster:
        for server in await servers_of(cluster, arguments):
            shown = await settings_of(cluster, server, arguments)
            for key in arguments.keys:
                if key not in shown:
                    kind_of(arguments).must_know(key)
            keys = arguments.keys or [key for key in shown if arguments.all or key in specs]
            rows += [Row(server.name, key, shown.get(key, ""), key in specs and specs[key].mutable) for key in keys]
    return answer(arguments, column_json(COLUMNS, rows), column_table(COLUMNS, rows))


async def set_config(arguments: argparse.Namespace) -> int:
    pairs = dict(arguments.pairs)
    lines: list[str] = []
    changes: list[dict[str, str]] = []
    for key in pairs:
        kind_of(arguments).must_know(key)
    async with admin(arguments) as cluster:
        servers = await servers_of(cluster, arguments)
        before = {server: await settings_of(cluster, server, arguments) for server in servers}
        if arguments.name_servers:
            await cluster.update_namesrv_config(pairs)
        else:
            await cluster.update_configs([server.address for server in servers], pairs)
        for server in servers:
            after = await settings_of(cluster, server, arguments)
            for key in pairs:
                was, now = before[server].get(key, ""), after.get(key, "")
                lines.append(f"{server.name}: {key}={now} (was {was})")
                changes.append({"server": server.name, "key": key, "was": was, "now": now})
            if after.get("configStorePath"):
                lines.append(f"{server.name}: kept in {after['configStorePath']} for the next start")
    return answer(arguments, changes, "\n".join(lines))
