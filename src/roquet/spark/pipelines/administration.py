"""Which places can be asked as an administrator: brokers, and not files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roquet.errors import ClientError

if TYPE_CHECKING:
    from roquet.admin import Admin


def can_ask(where: Mapping[str, str]) -> bool:
    return "namesrvAddr" in where


def must_ask(where: Mapping[str, str], what: str) -> None:
    """Raises ClientError that begins with `what` cannot be done elsewhere."""
    if not can_ask(where):
        raise ClientError(f"{what} goes through brokers; files are only read. Name a name server instead: -n HOST:PORT")


def administrator(where: Mapping[str, str]) -> Admin:
    """Of a place that can be asked, connected as its options say: use it in `async with`. Raises BadOption."""
    from roquet.admin import Admin
    from roquet.spark.options import connection_of, where_of

    return Admin(where["namesrvAddr"], connection=connection_of(where_of(where)))
