"""Accounts, and the rules that all of them make: who is let in, and which line of which file decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from roquet.access.addresses import AddressPattern
from roquet.access.permissions import Permission, allows, in_words, is_group
from roquet.hosts import Parts
from roquet.wire.names import (
    CHANGES_TOPIC,
    CHECK_MAX_TIME_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    retry_topic,
)
from roquet.wire.signing import Credentials

OTHERS_MESSAGES = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, TIMER_TOPIC, CHANGES_TOPIC, TRACE_TOPIC))
"""Messages of every topic, or what tells of them, are in these: a default permission, which is for topics that nobody named, does not open
them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line stands."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True, slots=True)
class Granted:
    permission: Permission
    place: Place


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    why: str
    """With the line that decides."""


@dataclass(frozen=True, slots=True)
class Account:
    access_key: str
    secret_key: bytes = field(repr=False)
    place: Place
    admin: bool = False
    white: AddressPattern | None = None
    """Whoever comes from there with this access key needs no signature, and may do everything, as in RocketMQ."""
    default_topic: Granted | None = None
    default_group: Granted | None = None
    resources: Mapping[str, Granted] = field(default_factory=dict)
    """By topic; of a group by its retry topic."""

    def allows(self, resource: str, needed: Permission) -> bool:
        """An admin without permissions of its own may do everything. Else what is said of this topic or group; else the default. Dead
        letters are their group's, as its retry topic is: who may read the one may read the other."""
        if (self.admin and not self.resources) or (resource == TRACE_TOPIC and needed == Permission.PUB):
            return True
        granted = self.resources.get(resource)
        if granted is None and not has_others_messages(resource, needed):
            if resource.startswith(DLQ_PREFIX):
                return self.allows(group_of(resource), Permission.SUB)
            granted = self.default_group if is_group(resource) else self.default_topic
        return granted is not None and allows(granted.permission, needed)

    def decides(self, resource: str, needed: Permission) -> Decision:
        """The same with the reason, which takes longer to say."""
        return Decision(self.allows(resource, needed), self._why(resource, needed))

    def _why(self, resource: str, needed: Permission) -> str:
        what = f"group {resource.removeprefix(RETRY_PREFIX)}" if is_group(resource) else f"topic {resource}"
        if resource == TRACE_TOPIC and needed == Permission.PUB:
            return f"every account may send traces to {TRACE_TOPIC}"
        if self.admin and not self.resources:
            return f"{self.access_key} is an admin without permissions of its own ({self.place})"
        granted = self.resources.get(resource)
        if granted is not None:
            return f"{what} has {in_words(granted.permission)} ({granted.place})"
        if has_others_messages(resource, needed):
            return f"{what} has what others sent: no default opens it, a line of its own would ({self.place})"
        if resource.startswith(DLQ_PREFIX):
            return f"no line for {what}, so SUB on the group decides: {self._why(group_of(resource), Permission.SUB)}"
        default, name = (self.default_group, "defaultGroupPerm") if is_group(resource) else (self.default_topic, "defaultTopicPerm")
        if default is None:
            return f"no line for {what}, and no {name}, which is DENY ({self.place})"
        return f"no line for {what}; {name} is {in_words(default.permission)} ({default.place})"


def has_others_messages(topic: str, needed: Permission) -> bool:
    """Replies are sent by everybody who answers, and the broker itself hands them out: to read them is to read others' messages."""
    return topic in OTHERS_MESSAGES or (topic.endswith(REPLY_SUFFIX) and needed == Permission.SUB and not is_group(topic))


def group_of(dead_letters: str) -> str:
    """As a resource: its retry topic."""
    return retry_topic(dead_letters.removeprefix(DLQ_PREFIX))


def may_less(before: Account, now: Account | None) -> bool:
    """Is it gone, has it another secret, or is it refused anything that it was allowed?"""
    if now is None or now.secret_key != before.secret_key or (before.admin and not now.admin):
        return True
    if before.white is not None and (now.white is None or now.white.text != before.white.text):
        return True
    names = before.resources.keys() | now.resources.keys()
    changed = {name for name in names if permission_in(before.resources, name) != permission_in(now.resources, name)}
    changed |= {*OTHERS_MESSAGES, "", RETRY_PREFIX}  # no topic and no group has the empty name: the defaults decide it
    return any(before.allows(name, one) and not now.allows(name, one) for name in changed for one in (Permission.PUB, Permission.SUB))


def permission_in(resources: Mapping[str, Granted], name: str) -> Permission | None:
    granted = resources.get(name)
    return None if granted is None else granted.permission


@dataclass(frozen=True, slots=True)
class Rules:
    """Of all files together. Never changed: a changed file makes new ones."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: tuple[AddressPattern, ...] = ()

    def lets_in(self, parts: Parts) -> bool:
        """The global white list has this address: it needs no account, and may do everything, as in RocketMQ."""
        return bool(parts) and any(one.matches(parts) for one in self.white)

    def admins(self) -> Iterator[Account]:
        return (account for account in self.accounts.values() if account.admin)


def credentials_of(account: Account) -> Credentials:
    return Credentials(account.access_key, account.secret_key.decode())
