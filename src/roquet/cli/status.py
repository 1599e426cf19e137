"""`roquet status`: the cluster at a glance, and what its brokers warn of."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roquet.cli.options import Commands, argument, cluster_command, positive_seconds
from roquet.cli.render import TableColumn, column_json, column_table, counted, duration, emit, emit_json, printable, size
from roquet.cli.topics import admin, belongs_to_users
from roquet.errors import RoquetError

if TYPE_CHECKING:
    from roquet.admin import Admin, Broker

WARNING_KEY = re.compile(r"roquetWarning_(\d+)")
"""Brokers of ours keep what they warned of under these keys of their runtime information."""


GROUPS_SHOWN_MAX = 10
"""The groups furthest behind; `roquet group list` shows all."""


def add_commands(commands: Commands) -> None:
    cluster_command(
        commands,
        "status",
        show_status,
        "show the cluster: brokers, versions, rates, store sizes, lag, warnings",
        """
        roquet status
        roquet status --watch 2               again every two seconds
        roquet status --json
        """,
        argument("--watch", type=positive_seconds, metavar="SECONDS", help="show it again and again, until Ctrl-C"),
    )


@dataclass(frozen=True)
class BrokerStatus:
    """One broker: where it is, and what it says of itself. `error` when it does not answer."""

    broker: Broker
    runtime: dict[str, str] = field(default_factory=dict)
    error: str = ""
    writable: bool = True
    """Name servers send producers there; not after `roquet cluster drain`."""

    @property
    def silence(self) -> str:
        """What an error means, in short: access control tells admins alone how a broker is."""
        return "refuses" if "AclException" in self.error else "does not answer"

    def number(self, key: str) -> float:
        """The first number of a value: rates come as averages over 10 s, 1 min and 10 min with blanks between."""
        words = self.runtime.get(key, "").split()
        try:
            return float(words[0]) if words else 0.0
        except ValueError:
            return 0.0

    @property
    def version(self) -> str:
        return self.runtime.get("brokerVersionDesc", "-")

    @property
    def roquet_version(self) -> str:
        """Empty: it is no Roquet, or one that does not say so yet."""
        return self.runtime.get("roquetVersion", "")

    @property
    def speedups(self) -> str:
        """Which one runs, "compiled" or "Python" and why; empty as the above."""
        return self.runtime.get("roquetSpeedups", "")

    @property
    def fast_share(self) -> str:
        """Of the send requests since the start, those that were plain: they cost a fraction of the others."""
        fast, general = self.number("roquetSendsFast"), self.number("roquetSendsGeneral")
        return f"{fast / (fast + general):.0%}" if fast + general else "-"

    @property
    def log_bytes(self) -> int:
        return max(0, int(self.number("commitLogMaxOffset") - self.number("commitLogMinOffset")))

    @property
    def disk_share(self) -> float:
        return self.number("commitLogDiskRatio")

    def uptime_s(self, now_ms: int) -> float:
        booted = self.number("bootTimestamp")
        return max(0.0, (now_ms - booted) / 1000) if booted else 0.0

    @property
    def warnings(self) -> list[str]:
        found = [(int(match[1]), text) for key, text in self.runtime.items() if (match := WARNING_KEY.fullmatch(key))]
        return [text for _, text in sorted(found)]


@dataclass(frozen=True)
class ClusterStatus:
    name_servers: tuple[str, ...]
    brokers: list[BrokerStatus]
    topics: list[str]
    lag: dict[str, int]
    """By group."""
    problems: list[str]
    """What could not be found out, and why."""
    of_name_servers: list[str] = field(default_factory=list)
    """What they warn of."""

    @property
    def warnings(self) -> list[str]:
        return [*self.of_name_servers, *(f"{one.broker.name}: {text}" for one in self.brokers for text in one.warnings)]


async def look(cluster: Admin) -> ClusterStatus:
    from roquet.wire.names import is_system_group

    brokers = await cluster.brokers()
    problems: list[str] = []

    async def one(broker: Broker) -> BrokerStatus:
        try:
            runtime, writable = await asyncio.gather(cluster.runtime(broker.address), cluster.takes_messages(broker.name))
            return BrokerStatus(broker, runtime, writable=writable)
        except RoquetError as error:
            return BrokerStatus(broker, error=str(error))

    seen = await asyncio.gather(*(one(broker) for broker in brokers))
    own_names = {broker.name for broker in brokers} | {broker.cluster for broker in brokers}
    topics = [name for name in await cluster.topic_names() if belongs_to_users(name, own_names)]
    lag: dict[str, int] = {}
    if brokers and not any(status.error for status in seen):
        try:
            groups = [name for name in await cluster.groups() if not is_system_group(name)]
            progress = await cluster.progress_of_all(groups)
            lag = {group: sum(queue.lag for queue in queues) for group, queues in progress.items()}
        except RoquetError as error:
            problems.append(f"the groups' lag is not known: {error}")
    problems += [f"{status.broker.name} at {status.broker.address} {status.silence}: {status.error}" for status in seen if status.error]
    warnings = [f"name server {address}: {text}" for address in cluster.name_server_addresses for text in await warned(cluster, address)]
    return ClusterStatus(cluster.name_server_addresses, list(seen), topics, lag, problems, warnings)


async def warned(cluster: Admin, name_server: str) -> list[str]:
    """Of what it warns. Nothing is told by Apache's, nor to somebody who is no admin, nor by one that is away."""
    try:
        return (await cluster.refused_calls(name_server)).warnings
    except RoquetError:
        return []


async def show_status(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        while True:
            status = await look(cluster)
            now_ms = int(time.time() * 1000)
            if arguments.json:
                emit_json(to_json(status, now_ms))
            else:
                if arguments.watch and sys.stdout.isatty():
                    sys.stdout.write("\x1b[H\x1b[J")
                emit(to_text(status, now_ms))
            if not arguments.watch:
                return 1 if status.problems else 0
            await asyncio.sleep(arguments.watch)


def columns(now_ms: int) -> list[TableColumn[BrokerStatus]]:
    return [
        TableColumn("CLUSTER", "cluster", lambda one: one.broker.cluster),
        TableColumn("BROKER", "broker", lambda one: one.broker.name),
        TableColumn("ROLE", "brokerId", lambda one: one.broker.broker_id, lambda number: f"slave {number}" if number else "master"),
        TableColumn("ADDRESS", "address", lambda one: one.broker.address),
        TableColumn("", "answers", lambda one: not one.error),
        TableColumn("", "version", lambda one: one.version),
        TableColumn("", "roquetVersion", lambda one: one.roquet_version),
        TableColumn("", "writable", lambda one: one.writable),
        TableColumn("", "speedups", lambda one: one.speedups),
        TableColumn("ROQUET", "", lambda one: one.roquet_version or "-" if not one.error else one.silence),
        TableColumn("PROTOCOL", "", lambda one: one.version),
        TableColumn("", "uptimeSeconds", lambda one: round(one.uptime_s(now_ms), 1)),
        TableColumn("UP", "", lambda one: duration(one.uptime_s(now_ms)) if not one.error else "-"),
        TableColumn("", "sendsFast", lambda one: int(one.number("roquetSendsFast"))),
        TableColumn("", "sendsGeneral", lambda one: int(one.number("roquetSendsGeneral"))),
        TableColumn("FAST", "", lambda one: one.fast_share),
        TableColumn("IN/S", "inPerSecond", lambda one: one.number("putTps")),
        TableColumn("OUT/S", "outPerSecond", lambda one: one.number("getTransferedTps")),
        TableColumn("IN", "in", lambda one: int(one.number("msgPutTotalTodayNow"))),
        TableColumn("OUT", "out", lambda one: int(one.number("msgGetTotalTodayNow"))),
        TableColumn("LOG", "logBytes", lambda one: one.log_bytes, size),
        TableColumn("DISK", "diskShare", lambda one: one.disk_share, lambda share: f"{share:.0%}"),
        TableColumn("", "warnings", lambda one: one.warnings),
    ]


def to_text(status: ClusterStatus, now_ms: int) -> str:
    lines = [f"name server  {', '.join(status.name_servers)}", ""]
    if status.brokers:
        lines.append(column_table(columns(now_ms), status.brokers))
    else:
        lines.append("no broker is registered; start one: roquet broker")
    total = counted(sum(status.lag.values()), "message")
    lines += ["", f"{counted(len(status.topics), 'topic')}, {counted(len(status.lag), 'group')}, lag {total}"]
    behind = sorted(((lag, group) for group, lag in status.lag.items() if lag), reverse=True)
    lines += [f"  {printable(group)}  {counted(lag, 'message')} behind" for lag, group in behind[:GROUPS_SHOWN_MAX]]
    lines += [f"{name} runs without the compiled speedups: {why}" for name, why in without_speedups(status)]
    drained = sorted({one.broker.name for one in status.brokers if not one.writable})
    lines += [f"{name} is drained: producers are sent elsewhere; to undo: roquet cluster resume {name}" for name in map(printable, drained)]
    if status.warnings:
        lines += ["", f"WARNINGS ({len(status.warnings)})"] + [f"  {printable(text)}" for text in status.warnings]
    if status.problems:
        lines += ["", "PROBLEMS"] + [f"  {printable(text)}" for text in status.problems]
    return "\n".join(lines)


def without_speedups(status: ClusterStatus) -> list[tuple[str, str]]:
    """(broker, why): slower than need be."""
    return sorted({(printable(one.broker.name), printable(one.speedups)) for one in status.brokers if one.speedups.startswith("Python")})


def to_json(status: ClusterStatus, now_ms: int) -> dict[str, Any]:
    return {
        "nameServers": list(status.name_servers),
        "brokers": column_json(columns(now_ms), status.brokers),
        "topics": status.topics,
        "lag": status.lag,
        "warnings": status.warnings,
        "problems": status.problems,
    }
