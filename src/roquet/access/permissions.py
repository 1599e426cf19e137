"""What an account may do with a topic or a group."""

from __future__ import annotations

from enum import IntFlag
from functools import cache

from roquet.wire.names import RETRY_PREFIX


class Permission(IntFlag):
    """RocketMQ's numbers. DENY beside others means DENY."""

    NONE = 0
    DENY = 1
    PUB = 4
    SUB = 8
    ANY = PUB | SUB


class BadPermission(ValueError):
    """Says the word and what would fit."""


def permission_of(text: str) -> Permission:
    """Of "PUB|SUB" and its like. Raises BadPermission."""
    found = Permission.NONE
    for word in text.split("|"):
        name = word.strip()
        if name not in ("DENY", "PUB", "SUB", "ANY"):
            raise BadPermission(f"{text[:60]!r} is no permission, expected DENY, PUB, SUB or PUB|SUB")
        found |= Permission[name]
    return found


def in_words(permission: Permission) -> str:
    if permission & Permission.DENY:
        return "DENY"
    return "|".join(one.name or "" for one in (Permission.PUB, Permission.SUB) if permission & one) or "DENY"


@cache  # there are a few dozen
def allows(owned: Permission, needed: Permission) -> bool:
    """DENY wins. Of several that are needed one is enough: ANY is PUB or SUB."""
    return not owned & Permission.DENY and bool(owned & needed)


def is_group(resource: str) -> bool:
    """Permissions for a group are kept under its retry topic's name, as upstream does: no topic of a user can be called that."""
    return resource.startswith(RETRY_PREFIX)
