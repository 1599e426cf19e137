"""What a new broker should have of those that are there: topics, groups and access rules. Planned here, for the command and the broker.

    look(...)         everything that one broker has, over the wire
    plan(...)         what is missing on the new one. What it has stays as it is, unless that is asked for

A topic is copied when every other broker that takes messages has it. One that stands on some of them only was put there by somebody, and
one whose order matters in all of the cluster (one queue, or an order configuration) would lose that: both are left out, unless named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from roquet.errors import Refused
from roquet.routing.talks import Talk, ask
from roquet.wire.calls.access import ACCESS_COPY, AclConfig, PlainAccessConfig
from roquet.wire.calls.brokers import GET_BROKER_CONFIG
from roquet.wire.calls.groups import GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GroupConfig
from roquet.wire.calls.routes import ClusterInfo
from roquet.wire.calls.topics import GET_ALL_TOPIC_CONFIG, TopicConfig
from roquet.wire.codes import Perm, ResponseCode
from roquet.wire.names import REPLY_SUFFIX, is_system_group, is_system_topic
from roquet.wire.sealing import unseal
from roquet.wire.signing import Credentials

T = TypeVar("T")

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""Where name servers keep the order configuration of topics."""
MASTER = 0


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one broker has."""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    groups: Mapping[str, GroupConfig] = field(default_factory=dict)
    accounts: Mapping[str, PlainAccessConfig] | None = None
    """None: no access control there, or nobody is told (`silent`)."""
    white: tuple[str, ...] = ()
    writable: bool = True
    access_control: bool = False
    silent: str = ""
    """Why its accounts are not known, although it has access control."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be made, in this order: who may come in, who reads how, and last what messages come to."""

    accounts: list[PlainAccessConfig] = field(default_factory=list)
    white: list[str] = field(default_factory=list)
    """All addresses of the white list as it should be; empty: it is right."""
    groups: list[GroupConfig] = field(default_factory=list)
    topics: list[TopicConfig] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Topic -> why it is not copied."""
    differing: dict[str, str] = field(default_factory=dict)
    """What the new broker has otherwise, and keeps: "topic orders" -> how."""
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.accounts or self.white or self.groups or self.topics)


# Looking


def masters_of(info: ClusterInfo, cluster: str) -> dict[str, str]:
    """Broker name -> its master's address, of one cluster."""
    groups = info.broker_addr_table.values()
    return {group.broker_name: group.broker_addrs[MASTER] for group in groups if group.cluster == cluster and MASTER in group.broker_addrs}


def look(address: str, credentials: Credentials | None) -> Talk[Holdings]:
    """Raises Refused, or whatever a call fails with."""
    config = (yield from ask(address, GET_BROKER_CONFIG)).body.pairs()
    topics = (yield from ask(address, GET_ALL_TOPIC_CONFIG)).body.topic_config_table
    groups = (yield from ask(address, GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body.subscription_group_table
    permission = config.get("brokerPermission", "6")
    writable = not permission.isdigit() or bool(int(permission) & Perm.WRITE)
    found = Holdings(topics, groups, writable=writable, access_control=config.get("aclEnable", "false") == "true")
    if not found.access_control:
        return found
    return (yield from _with_accounts(found, address, credentials))


def _with_accounts(found: Holdings, address: str, credentials: Credentials | None) -> Talk[Holdings]:
    if credentials is None:
        return replace(found, silent="it tells accounts to nobody but an admin who signs; give an admin's keys")
    accept = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    answer = yield from ask(address, ACCESS_COPY, accept=accept)
    if not answer.ok:
        return replace(found, silent="RocketMQ has no request that copies accounts; copy its plain_acl.yml yourself")
    try:
        told = AclConfig.decode(unseal(credentials.secret_key, answer.body.data))
    except ValueError as error:
        raise Refused(ResponseCode.NO_PERMISSION, f"the accounts of {address} cannot be read: {error}") from None
    accounts = {one.access_key: one for one in told.plain_access_configs}
    return replace(found, accounts=accounts, white=tuple(told.global_white_addrs))


# Planning


def plan(
    sources: Mapping[str, Holdings],
    there: Holdings,
    *,
    own_names: Collection[str],
    ordered: Collection[str] = (),
    named: Collection[str] = (),
    overwrite: bool = False,
) -> Plan:
    """`sources`: the other brokers by name. `own_names`: brokers and clusters, whose topics are theirs. `ordered`: topics with an order
    configuration. `named`: topics that are copied whatever is said above. `overwrite`: what differs is changed, too."""
    made = Plan()
    _plan_accounts(made, sources, there, overwrite)
    groups = first_of(one.groups for one in sources.values())
    for name, group in sorted(groups.items()):
        if not is_system_group(name):
            _add(made, made.groups, f"group {name}", group, there.groups.get(name), overwrite)
    for name, topic in sorted(widest(one.topics for one in sources.values()).items()):
        if not copied(name, own_names):
            continue
        why = "" if name in named or name in there.topics else _left_out(name, topic, sources, ordered)
        if why:
            made.left_out[name] = why
        else:
            _add(made, made.topics, f"topic {name}", topic, there.topics.get(name), overwrite)
    return made


def copied(name: str, own_names: Collection[str]) -> bool:
    """Users' topics. Retry topics and dead letters are made by their groups, where those fail."""
    return not (is_system_topic(name) or name.startswith("%") or name in own_names or name.endswith(REPLY_SUFFIX))


def first_of(tables: Iterable[Mapping[str, GroupConfig]]) -> dict[str, GroupConfig]:
    found: dict[str, GroupConfig] = {}
    for table in tables:
        found = {**table, **found}
    return found


def widest(tables: Iterable[Mapping[str, TopicConfig]]) -> dict[str, TopicConfig]:
    """Of brokers that differ the one with the most queues."""
    found: dict[str, TopicConfig] = {}
    for table in tables:
        for name, topic in table.items():
            known = found.get(name)
            if known is None or (topic.write_queue_nums, topic.read_queue_nums) > (known.write_queue_nums, known.read_queue_nums):
                found[name] = topic
    return found


def _left_out(name: str, topic: TopicConfig, sources: Mapping[str, Holdings], ordered: Collection[str]) -> str:
    holders = [broker for broker, one in sources.items() if name in one.topics]
    missing = [broker for broker, one in sources.items() if one.writable and name not in one.topics]
    if missing:
        return f"it is on {', '.join(holders)}, and not on {', '.join(missing)}"
    if topic.order or name in ordered:
        return "its order is configured, and more queues would change it"
    if len(holders) == 1 and topic.read_queue_nums == 1:
        return "it has one queue in all of the cluster, so its messages are in order; a second one would end that"
    return ""


def _add(plan: Plan, to: list[T], what: str, wanted: T, known: T | None, overwrite: bool) -> None:
    if known is None or (overwrite and known != wanted):
        to.append(wanted)
    elif known != wanted:
        plan.differing[what] = "the new broker has it with other settings"


def _plan_accounts(made: Plan, sources: Mapping[str, Holdings], there: Holdings, overwrite: bool) -> None:
    guarded = {name: one for name, one in sources.items() if one.access_control}
    if not guarded:
        return
    if not there.access_control:
        made.notes.append(
            f"access control is on at {', '.join(guarded)}, and off at the new broker: everybody may use it. Set aclEnable=true there"
        )
        return
    made.notes.extend(f"accounts of {name} are not copied: {one.silent}" for name, one in guarded.items() if one.silent)
    if there.silent:
        made.notes.append(f"no accounts are copied, those of the new broker are not known: {there.silent}")
        return
    known = there.accounts or {}
    wanted: dict[str, PlainAccessConfig] = {}
    for one in guarded.values():
        wanted = {**(one.accounts or {}), **wanted}
    for key, account in sorted(wanted.items()):
        _add(made, made.accounts, f"account {key}", account, known.get(key), overwrite)
    white = [address for one in guarded.values() for address in one.white]
    if set(white) - set(there.white):
        made.white.extend(dict.fromkeys((*there.white, *white)))
