"""Which places can be asked as an administrator: brokers, and those that take plain calls."""

from __future__ import annotations

from collections.abc import Mapping

from roquet.errors import ClientError

NOT_SPOKEN = {"accessKey": "access keys", "useTLS": "TLS"}
"""Options of a place that roquet.admin does not know of yet."""


def can_ask(where: Mapping[str, str]) -> bool:
    return "namesrvAddr" in where and not any(where.get(option) for option in NOT_SPOKEN)


def name_servers(where: Mapping[str, str], what: str) -> str:
    """For calls of roquet.admin. Raises ClientError that begins with `what` cannot be done elsewhere."""
    if "namesrvAddr" not in where:
        raise ClientError(f"{what} goes through brokers; files are only read. Name a name server instead: -n HOST:PORT")
    for option, name in NOT_SPOKEN.items():
        if where.get(option):
            raise ClientError(f"{what} does not work with {name} yet; only reading messages does")
    return where["namesrvAddr"]
