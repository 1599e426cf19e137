"""Idempotent consuming: a guard around a handler that lets each message take effect once although it can be delivered twice.

    store = SqlStore(engine)                              # the database that the handler writes to

    @consumer.on("orders")
    @Once(store, group="billing")
    def bill(message, connection):
        connection.execute(...)                           # committed together with the mark, or not at all

What a store remembers of a message is its mark: running (with a lease), done, or failed. A delivery whose mark is done is dropped; one that
meets a running mark comes again later; a failed mark, or a running one whose lease is over, is tried again.

    MemoryStore                      one process; a restart forgets
    SqlStore, AsyncSqlStore          the work and the mark in one transaction: exactly one effect (extra `sql`)
    RedisStore, AsyncRedisStore      many processes, quick, marks expire: work that may rarely be repeated (extra `redis`)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roquet.idempotence.guard import Once, current_session
from roquet.idempotence.keys import business_key, message_key
from roquet.idempotence.memory import MemoryStore
from roquet.idempotence.store import AsyncStore, Claim, LeaseLost, Mark, Standing, State, Store, StoreFailed

if TYPE_CHECKING:
    from roquet.idempotence.redis import AsyncRedisStore, RedisStore
    from roquet.idempotence.sql import AsyncSqlStore, SqlStore

__all__ = [
    "AsyncRedisStore",
    "AsyncSqlStore",
    "AsyncStore",
    "Claim",
    "LeaseLost",
    "Mark",
    "MemoryStore",
    "Once",
    "RedisStore",
    "SqlStore",
    "Standing",
    "State",
    "Store",
    "StoreFailed",
    "business_key",
    "current_session",
    "message_key",
]

_EXTRAS = {"SqlStore": "sql", "AsyncSqlStore": "sql", "RedisStore": "redis", "AsyncRedisStore": "redis"}
"""Loaded at first use: their libraries are extras."""


def __getattr__(name: str) -> Any:
    if name not in _EXTRAS:
        raise AttributeError(f"module 'roquet.idempotence' has no attribute {name!r}")
    extra = _EXTRAS[name]
    try:
        home = importlib.import_module(f"roquet.idempotence.{extra}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{name} needs {error.name}, which is not installed: pip install 'roquet[{extra}]'") from error
    value = globals()[name] = getattr(home, name)
    return value
