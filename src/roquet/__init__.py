"""Roquet: what Apache RocketMQ is, in Python.

The public names. They are loaded at first use, so that a broker does not load the client, nor a client the broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roquet.admin import Admin
    from roquet.client import (
        Idempotent,
        LitePullConsumer,
        Producer,
        PullConsumer,
        PushConsumer,
        Seen,
        TransactionProducer,
        TransactionState,
    )
    from roquet.embed import embedded
    from roquet.errors import RoquetError
    from roquet.message import Message, MessageQueue, ReceivedMessage

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "Idempotent",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RoquetError",
    "Seen",
    "TransactionProducer",
    "TransactionState",
    "__version__",
    "embedded",
]

_HOMES = {
    "Admin": "roquet.admin",
    "Idempotent": "roquet.client",
    "LitePullConsumer": "roquet.client",
    "Message": "roquet.message",
    "MessageQueue": "roquet.message",
    "Producer": "roquet.client",
    "PullConsumer": "roquet.client",
    "PushConsumer": "roquet.client",
    "ReceivedMessage": "roquet.message",
    "RoquetError": "roquet.errors",
    "Seen": "roquet.client",
    "TransactionProducer": "roquet.client",
    "TransactionState": "roquet.client",
    "embedded": "roquet.embed",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'roquet' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
