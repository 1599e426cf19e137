"""`roquet acl`: the accounts of servers with access control; `roquet audit`: who was refused.

Each server has files of its own: what is changed is changed on all brokers, slaves too, and on the name servers that have access control.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from roquet.cli.options import DRY_RUN, ON_CLUSTER, YES, Commands, argument, cluster_command, confirmed, noun, positive
from roquet.cli.render import TableColumn, answer, column_json, column_table, emit, moment, note, printable
from roquet.cli.topics import admin
from roquet.errors import ClientError, Rejected

if TYPE_CHECKING:
    from roquet.admin import Admin, Broker
    from roquet.wire.calls.access import AccountHeader, PlainAccessConfig, RefusedCallBody

KEY = argument("key", metavar="KEY", help="the access key")
TOPICS = argument("--topic", action="append", default=[], metavar="TOPIC[=PERM]", help="PERM is PUB, SUB or PUB|SUB (may be repeated)")
GROUPS = argument("--group", action="append", default=[], metavar="GROUP", help="a consumer group (may be repeated)")
PLAN = (DRY_RUN, YES, ON_CLUSTER)
NOT_KNOWN = 3
"""What Apache's name server answers to these requests."""
WITHOUT = (1, NOT_KNOWN)
"""What a name server answers that has no access control: ours says so."""


def add_commands(commands: Commands) -> None:
    nouns = noun(
        commands,
        "acl",
        "list, add, change and check the accounts of access control",
        """
        roquet acl list
        roquet acl add billing-app --default-group SUB
        roquet acl allow billing-app --topic orders=SUB --group billing
        roquet acl deny billing-app --topic salaries
        roquet acl check billing-app orders
        """,
    )
    cluster_command(
        nouns, "list", list_accounts, "list accounts, without their secrets", "roquet acl list\nroquet acl list --json", ON_CLUSTER
    )
    cluster_command(
        nouns, "add", add_account, "make an account on every broker and name server",
        "roquet acl add billing-app\nroquet acl add ops-team --admin",
        KEY,
        argument("--new-secret", metavar="SECRET", help="its secret key (default: a new one is made, and shown once)"),
        argument("--admin", action="store_true", help="it may do everything"),
        argument("--default-topic", metavar="PERM", help="for topics without a line of their own (default: DENY)"),
        argument("--default-group", metavar="PERM", help="for groups without a line of their own (default: DENY)"),
        argument("--white", metavar="ADDRESS", help="from there it needs no signature and may do everything"),
        TOPICS, GROUPS, *PLAN,
    )  # fmt: skip
    cluster_command(
        nouns, "allow", allow, "let an account use topics and groups", "roquet acl allow billing-app --topic orders=PUB --group billing",
        KEY, TOPICS, GROUPS, *PLAN,
    )  # fmt: skip
    cluster_command(
        nouns, "deny", deny, "keep an account from topics and groups", "roquet acl deny billing-app --topic salaries",
        KEY, TOPICS, GROUPS, *PLAN,
    )  # fmt: skip
    cluster_command(nouns, "remove", remove_account, "delete an account", "roquet acl remove billing-app --yes", KEY, *PLAN)
    cluster_command(
        nouns, "check", check_account, "say what an account may do with a topic, and which line of which file decides",
        "roquet acl check billing-app orders\nroquet acl check billing-app orders --group billing",
        KEY, argument("topic", metavar="TOPIC"), argument("--group", metavar="GROUP"), ON_CLUSTER,
    )  # fmt: skip
    cluster_command(
        commands, "audit", show_audit, "show the last requests that access control refused", "roquet audit\nroquet audit --last 200 --json",
        argument("--last", type=positive, default=20, metavar="N", help="of each server so many (default: 20)"),
        argument("--name-servers", action="store_true", help="of name servers alone"),
        ON_CLUSTER,
    )  # fmt: skip


# Looking


@dataclass(frozen=True)
class Row:
    broker: str
    account: PlainAccessConfig


ACCOUNTS: list[TableColumn[Row]] = [
    TableColumn("SERVER", "broker", lambda row: row.broker),
    TableColumn("KEY", "accessKey", lambda row: row.account.access_key),
    TableColumn("ADMIN", "admin", lambda row: row.account.admin, lambda admin: "yes" if admin else ""),
    TableColumn("", "defaultTopicPerm", lambda row: row.account.default_topic_perm or "DENY"),
    TableColumn("", "defaultGroupPerm", lambda row: row.account.default_group_perm or "DENY"),
    TableColumn("ALL TOPICS", "", lambda row: everything(row.account) or row.account.default_topic_perm or "DENY"),
    TableColumn("ALL GROUPS", "", lambda row: everything(row.account) or row.account.default_group_perm or "DENY"),
    TableColumn("TOPICS", "topicPerms", lambda row: row.account.topic_perms, ", ".join),
    TableColumn("GROUPS", "groupPerms", lambda row: row.account.group_perms, ", ".join),
    TableColumn("WHITE LIST", "whiteRemoteAddress", lambda row: row.account.white_remote_address or ""),
]


def everything(account: PlainAccessConfig) -> str:
    """An admin without permissions of its own may do everything."""
    return "all" if account.admin and not account.topic_perms and not account.group_perms else ""


async def places(cluster: Admin, name: str | None) -> list[Broker]:
    """Every server that has accounts: the brokers of this cluster, and the name servers with access control."""
    from roquet.admin import Broker

    found = [Broker(one.cluster, label(one), one.broker_id, one.address) for one in await cluster.brokers(name)]
    if not found:
        await cluster.masters(name)  # which says what to do
    for address in cluster.name_server_addresses:
        try:
            await cluster.acl(address)
        except Rejected as refused:
            if refused.code not in WITHOUT or "AclException" in refused.remark:
                raise
            continue
        found.append(Broker("", f"name server {address}", 0, address))
    return found


def label(broker: Broker) -> str:
    return broker.name if broker.is_master else f"{broker.name} slave {broker.broker_id}"


async def list_accounts(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        found = [(broker.name, await cluster.acl(broker.address)) for broker in await places(cluster, arguments.cluster)]
    rows = [Row(name, account) for name, config in found for account in config.plain_access_configs]
    white = {name: config.global_white_addrs for name, config in found}
    facts = {"accounts": column_json(ACCOUNTS, rows), "globalWhiteRemoteAddresses": white}
    lines = [f"{name}: {', '.join(addresses)} need no key, and may do everything" for name, addresses in white.items() if addresses]
    return answer(arguments, facts, "\n".join([column_table(ACCOUNTS, rows), *lines]))


async def check_account(arguments: argparse.Namespace) -> int:
    lines: list[str] = []
    facts: list[dict[str, object]] = []
    async with admin(arguments) as cluster:
        for broker in await cluster.brokers(arguments.cluster) or await cluster.masters(arguments.cluster):
            for one in await cluster.check_account(broker.address, arguments.key, arguments.topic, arguments.group):
                verdict = "may" if one.allowed else "may not"
                lines.append(f"{label(broker)}: {arguments.key} {verdict} {one.permission} {one.resource}: {one.why}")
                facts.append({"broker": label(broker), **asdict(one)})
    return answer(arguments, facts, "\n".join(lines))


@dataclass(frozen=True)
class RefusedRow:
    server: str
    call: RefusedCallBody


REFUSED: list[TableColumn[RefusedRow]] = [
    TableColumn("SERVER", "server", lambda row: row.server),
    TableColumn("TIME", "timeMs", lambda row: row.call.time_ms, moment),
    TableColumn("KEY", "accessKey", lambda row: row.call.access_key, lambda key: printable(key) or "-"),
    TableColumn("FROM", "address", lambda row: row.call.address),
    TableColumn("REQUEST", "code", lambda row: row.call.code),
    TableColumn("RESOURCE", "resource", lambda row: row.call.resource, printable),
    TableColumn("WHY", "why", lambda row: row.call.why, printable),
]


async def show_audit(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        brokers = [] if arguments.name_servers else await cluster.brokers(arguments.cluster)
        found = [(label(broker), await cluster.refused_calls(broker.address)) for broker in brokers]
        for address in cluster.name_server_addresses:
            try:
                found.append((f"name server {address}", await cluster.refused_calls(address)))
            except Rejected as refused:
                if refused.code != NOT_KNOWN or arguments.name_servers:
                    raise
    rows = [RefusedRow(name, call) for name, calls in found for call in calls.calls[-arguments.last :]]
    if not rows and not arguments.json:
        note("no request was refused since the servers started")
        return 0
    return answer(arguments, column_json(REFUSED, rows), column_table(REFUSED, rows))


# Changing


async def add_account(arguments: argparse.Namespace) -> int:
    from roquet.wire.calls.access import AccountHeader

    secret = arguments.new_secret or secrets.token_urlsafe(24)
    header = AccountHeader(
        arguments.key,
        secret,
        arguments.white,
        arguments.admin,
        arguments.default_topic,
        arguments.default_group,
        ",".join(permissions(arguments.topic, "")) or None,
        ",".join(f"{group}=SUB" for group in arguments.group) or None,
    )
    async with admin(arguments) as cluster:
        servers = await places(cluster, arguments.cluster)
        for broker in servers:
            if await account_on(cluster, broker, arguments.key) is not None:
                raise ClientError(f"{broker.name} has an account {arguments.key!r} already; change it with: roquet acl allow, deny")
        code = await carry_out(arguments, cluster, [(broker, header) for broker in servers], "new")
    if code == 0 and not arguments.dry_run and arguments.new_secret is None:
        # With --json to standard error: what programs read is kept, in logs and pipes.
        (note if arguments.json else emit)(f"Its secret key, which is shown this once: {secret}")
    return code


async def allow(arguments: argparse.Namespace) -> int:
    return await change(arguments, permissions(arguments.topic, ""), [f"{group}=SUB" for group in arguments.group])


async def deny(arguments: argparse.Namespace) -> int:
    return await change(arguments, permissions(arguments.topic, "DENY"), [f"{group}=DENY" for group in arguments.group])


async def change(arguments: argparse.Namespace, topics: list[str], groups: list[str]) -> int:
    from roquet.wire.calls.access import AccountHeader

    if not topics and not groups:
        raise ClientError("nothing to change: say --topic or --group")
    async with admin(arguments) as cluster:
        wanted: list[tuple[Broker, AccountHeader]] = []
        for broker in await places(cluster, arguments.cluster):
            account = await account_on(cluster, broker, arguments.key)
            if account is None:
                raise ClientError(f"{broker.name} has no account {arguments.key!r}; see which there are: roquet acl list")
            header = AccountHeader(
                arguments.key,
                topic_perms=",".join(with_lines(account.topic_perms, topics)),
                group_perms=",".join(with_lines(account.group_perms, groups)),
            )
            wanted.append((broker, header))
        return await carry_out(arguments, cluster, wanted, "changed")


async def remove_account(arguments: argparse.Namespace) -> int:
    async with admin(arguments) as cluster:
        masters = [one for one in await places(cluster, arguments.cluster) if await account_on(cluster, one, arguments.key) is not None]
        if not masters:
            raise ClientError(f"no server has an account {arguments.key!r}; see which there are: roquet acl list")
        names = ", ".join(broker.name for broker in masters)
        facts = {"account": arguments.key, "brokers": [broker.name for broker in masters], "done": not arguments.dry_run}
        if arguments.dry_run:
            return answer(arguments, facts, f"Account {arguments.key} would be deleted on {names}")
        if not confirmed(arguments, f"Delete account {arguments.key} on {names}? Who uses it is refused at the next request."):
            return 1
        await cluster.delete_account(masters, arguments.key)
    return answer(arguments, facts, f"Account {arguments.key} is deleted on {names}")


async def carry_out(arguments: argparse.Namespace, cluster: Admin, wanted: Sequence[tuple[Broker, AccountHeader]], what: str) -> int:
    """Show the plan, ask, do it."""
    plan = [f"{broker.name}: account {header.access_key}, {what}: {in_words(header)}" for broker, header in wanted]
    if not arguments.json:
        emit("\n".join(plan))
    if not arguments.dry_run:
        if not confirmed(arguments, "Do that?"):
            return 1
        for broker, header in wanted:
            await cluster.change_account([broker], header)
    if arguments.json:
        return answer(arguments, {"account": arguments.key, "plan": plan, "done": not arguments.dry_run}, "")
    emit("Nothing was changed." if arguments.dry_run else f"Account {arguments.key} is {what}.")
    return 0


async def account_on(cluster: Admin, broker: Broker, key: str) -> PlainAccessConfig | None:
    return next((one for one in (await cluster.acl(broker.address)).plain_access_configs if one.access_key == key), None)


def permissions(topics: Sequence[str], permission: str) -> list[str]:
    """Each as topic=PERM. `permission`: for all of them, whatever they say; "": as they say, else PUB|SUB."""
    found = [one.partition("=") for one in topics]
    return [f"{topic}={permission or said or 'PUB|SUB'}" for topic, _, said in found]


def with_lines(lines: Sequence[str], fresh: Sequence[str]) -> list[str]:
    """What is said of the same topic or group is replaced."""
    named = dict([line.split("=", 1) for line in (*lines, *fresh)])
    return [f"{name}={permission}" for name, permission in named.items()]


def in_words(header: AccountHeader) -> str:
    """Without the secret."""
    said = {
        "admin": "yes" if header.admin else None, "all topics": header.default_topic_perm, "all groups": header.default_group_perm,
        "topics": header.topic_perms, "groups": header.group_perms, "white list": header.white_remote_address,
    }  # fmt: skip
    return "; ".join(f"{name} {value}" for name, value in said.items() if value) or "nothing allowed yet"
