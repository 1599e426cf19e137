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

_HOMES = {"Admin": "admin", "embedded": "embed", "RoquetError": "errors"}
_HOMES |= dict.fromkeys(("Message", "MessageQueue", "ReceivedMessage"), "message")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'roquet' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"roquet.{_HOMES.get(name, 'client')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
