"""Which places can be asked as an administrator: brokers, and those that take calls without access keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roquet.errors import ClientError

if TYPE_CHECKING:
    from roquet.admin import Admin

NOT_SPOKEN = {"accessKey": "access keys"}
"""Options of a place that roquet.admin does not know of yet."""


def can_ask(where: Mapping[str, str]) -> bool:
    return "namesrvAddr" in where and not any(where.get(option) for option in NOT_SPOKEN)


def must_ask(where: Mapping[str, str], what: str) -> None:
    """Raises ClientError that begins with `what` cannot be done elsewhere."""
    if "namesrvAddr" not in where:
        raise ClientError(f"{what} goes through brokers; files are only read. Name a name server instead: -n HOST:PORT")
    for option, name in NOT_SPOKEN.items():
        if where.get(option):
            raise ClientError(f"{what} does not work with {name} yet; only reading messages does")


def administrator(where: Mapping[str, str]) -> Admin:
    """Of a place that can be asked, connected as its options say: use it in `async with`. Raises BadOption."""
    from roquet.admin import Admin
    from roquet.spark.options import connection_of, where_of

    return Admin(where["namesrvAddr"], connection=connection_of(where_of(where)))
