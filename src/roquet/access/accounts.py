"""Accounts, and the rules that all of them make: who is let in, and which line of which file decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from roquet.access.addresses import AddressPattern, Parts
from roquet.access.permissions import Permission, allows, in_words, is_group
from roquet.wire.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
)
from roquet.wire.signing import Credentials

OTHERS_MESSAGES = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, TIMER_TOPIC))
"""Messages of every topic wait in these: a default permission, which is for topics that nobody named, does not open them."""


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
        """An admin without permissions of its own may do everything. Else what is said of this topic or group; else the default."""
        if (self.admin and not self.resources) or (resource == TRACE_TOPIC and needed == Permission.PUB):
            return True
        granted = self.resources.get(resource)
        if granted is None and resource not in OTHERS_MESSAGES:
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
        if resource in OTHERS_MESSAGES:
            return f"{what} holds messages of all topics: no default opens it, a line of its own would ({self.place})"
        default, name = (self.default_group, "defaultGroupPerm") if is_group(resource) else (self.default_topic, "defaultTopicPerm")
        if default is None:
            return f"no line for {what}, and no {name}, which is DENY ({self.place})"
        return f"no line for {what}; {name} is {in_words(default.permission)} ({default.place})"


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
