"""`roquet ha`: masters, slaves and DLedger groups: who copies whom, how far behind, since when and why."""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roquet.cli.options import Commands, argument, cluster_command, noun
from roquet.cli.render import TableColumn, answer, column_json, column_table, duration, emit, emit_json, printable, size
from roquet.cli.status import BrokerStatus
from roquet.cli.topics import admin
from roquet.errors import RoquetError

if TYPE_CHECKING:
    from roquet.admin import Admin, Broker


def add_commands(commands: Commands) -> None:
    nouns = noun(
        commands,
        "ha",
        "masters, slaves and DLedger groups",
        """
        roquet ha status
        roquet ha transfer-leader broker-a n1
        """,
    )
    cluster_command(
        nouns,
        "status",
        show,
        "show who leads and who follows, how far behind, since when and why",
        """
        roquet ha status
        roquet ha status --json
        """,
    )
    cluster_command(
        nouns,
        "transfer-leader",
        transfer,
        "let another member lead a DLedger group",
        """
        roquet ha transfer-leader broker-a n1
        """,
        argument("broker", metavar="BROKER", help="the group's broker name, as roquet status shows it"),
        argument("member", metavar="MEMBER", help="who is to lead: its dLegerSelfId"),
    )


@dataclass(frozen=True)
class Copy:
    """One broker beside the master of its group."""

    status: BrokerStatus
    master: BrokerStatus | None

    def said(self, key: str) -> str:
        return self.status.runtime.get(key, "")

    @property
    def role(self) -> str:
        number = self.status.broker.broker_id
        return f"slave {number}" if number else "master"

    @property
    def member(self) -> str:
        """Its name in a DLedger group."""
        return self.said("dledgerSelfId")

    @property
    def term(self) -> int | None:
        return int(self.status.number("dledgerTerm")) if self.said("dledgerTerm") else None

    @property
    def state(self) -> str:
        if self.status.error:
            return "does not answer"
        return self.said("dledgerRole").lower() or self.said("roquetCopying") or self.said("roquetRole") or "-"

    @property
    def log_end(self) -> int | None:
        return None if self.status.error else int(self.status.number("commitLogMaxOffset"))

    @property
    def behind_bytes(self) -> int | None:
        """None: not known."""
        if self.master is None or self.master.error or self.status.error:
            return None
        return max(0, int(self.master.number("commitLogMaxOffset") - self.status.number("commitLogMaxOffset")))

    @property
    def behind_s(self) -> float | None:
        """The time between the last messages that the two hold."""
        if self.behind_bytes is None or self.master is None or not self.said("roquetLastStoreTime"):
            return None
        last, here = self.master.number("roquetLastStoreTime"), self.status.number("roquetLastStoreTime")
        return max(0.0, (last - here) / 1000) if self.behind_bytes and last else 0.0

    @property
    def since_ms(self) -> int:
        return int(self.status.number("dledgerSince") or self.status.number("roquetRoleSince"))

    @property
    def why(self) -> str:
        return self.said("dledgerWhy") or self.said("roquetRoleWhy")


async def look(cluster: Admin) -> list[Copy]:
    async def one(broker: Broker) -> BrokerStatus:
        try:
            return BrokerStatus(broker, await cluster.runtime(broker.address))
        except RoquetError as error:
            return BrokerStatus(broker, error=str(error))

    seen = await asyncio.gather(*(one(broker) for broker in await cluster.brokers()))
    masters = {(status.broker.cluster, status.broker.name): status for status in seen if status.broker.is_master}
    return [Copy(status, masters.get((status.broker.cluster, status.broker.name))) for status in seen]


def columns(now_ms: int) -> list[TableColumn[Copy]]:
    def known(show: Any) -> Any:
        return lambda value: "-" if value is None else show(value)

    return [
        TableColumn("CLUSTER", "cluster", lambda one: one.status.broker.cluster),
        TableColumn("BROKER", "broker", lambda one: one.status.broker.name),
        TableColumn("ROLE", "role", lambda one: one.role),
        TableColumn("ADDRESS", "address", lambda one: one.status.broker.address),
        TableColumn("MEMBER", "member", lambda one: one.member, lambda name: name or "-"),
        TableColumn("TERM", "term", lambda one: one.term, known(str)),
        TableColumn("STATE", "state", lambda one: one.state),
        TableColumn("LOG END", "logEnd", lambda one: one.log_end, known(lambda end: f"{end:,}")),
        TableColumn("BEHIND", "behindBytes", lambda one: one.behind_bytes, known(size)),
        TableColumn("", "behindSeconds", lambda one: one.behind_s),
        TableColumn("SECONDS", "", lambda one: "-" if one.behind_s is None else f"{one.behind_s:.1f}"),
        TableColumn("", "sinceMs", lambda one: one.since_ms),
        TableColumn("SINCE", "", lambda one: duration((now_ms - one.since_ms) / 1000) if one.since_ms else "-"),
        TableColumn("WHY", "why", lambda one: one.why, lambda why: printable(why) or "-"),
    ]


def without_master(copies: list[Copy]) -> list[str]:
    """Broker names that nobody is the master of now."""
    return sorted({copy.status.broker.name for copy in copies if copy.master is None})


async def show(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        copies = await look(cluster)
    now_ms, orphans = int(time.time() * 1000), without_master(copies)
    if arguments.json:
        emit_json({"brokers": column_json(columns(now_ms), copies), "withoutMaster": orphans})
    elif copies:
        emit(column_table(columns(now_ms), copies))
        for name in map(printable, orphans):
            emit(f"{name} has no master now: it is read from its slaves, and takes no messages")
    else:
        emit("no broker is registered; start some: roquet up --slave, or roquet up --replicas 3")
    return 1 if orphans or any(copy.status.error for copy in copies) else 0


async def transfer(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        before = await cluster.transfer_leader(arguments.broker, arguments.member)
    facts = {"broker": arguments.broker, "group": before.group, "from": before.leader, "to": arguments.member}
    return answer(arguments, facts, f"{arguments.member} leads the group {before.group} now, instead of {before.leader}")
