"""Roquet: Apache RocketMQ 4.9 in Python.

The public names. They are loaded at first use, so that a broker does not load the client, nor a client the broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roquet.admin import Admin
    from roquet.client import (
        COMMIT,
        DEAD_LETTER,
        RETRY_LATER,
        ROLLBACK,
        BadAnswer,
        BadExpression,
        BadSql,
        BatchFailed,
        CallEvent,
        ConnectionOptions,
        ConsumeEvent,
        ConsumerStats,
        Credentials,
        Durations,
        GroupTaken,
        Idempotent,
        LitePullConsumer,
        Middleware,
        OffsetStore,
        OpenTelemetry,
        Outcome,
        Producer,
        ProducerStats,
        PullConsumer,
        PullResult,
        PullStatus,
        PushConsumer,
        RequestTimedOut,
        RetryLater,
        Seen,
        SendEvent,
        SendReceipt,
        SendStatus,
        SendTimedOut,
        ServerRejected,
        Suspend,
        Tls,
        TooManySends,
        Tracing,
        TransactionEvent,
        TransactionProducer,
        TransactionReceipt,
        TransactionState,
        reply_message,
        run,
        serve,
        split_messages,
    )
    from roquet.embed import Embedded, embedded
    from roquet.errors import (
        CallTimeout,
        ClientError,
        ConnectFailed,
        Damaged,
        InvalidMessage,
        NoRoute,
        NotStarted,
        Rejected,
        RoquetError,
        SendFailed,
    )
    from roquet.message import Message, MessageQueue, ReceivedMessage

__version__ = "0.1.0"

__all__ = [
    "COMMIT",
    "DEAD_LETTER",
    "RETRY_LATER",
    "ROLLBACK",
    "Admin",
    "BadAnswer",
    "BadExpression",
    "BadSql",
    "BatchFailed",
    "CallEvent",
    "CallTimeout",
    "ClientError",
    "ConnectFailed",
    "ConnectionOptions",
    "ConsumeEvent",
    "ConsumerStats",
    "Credentials",
    "Damaged",
    "Durations",
    "Embedded",
    "GroupTaken",
    "Idempotent",
    "InvalidMessage",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "Middleware",
    "NoRoute",
    "NotStarted",
    "OffsetStore",
    "OpenTelemetry",
    "Outcome",
    "Producer",
    "ProducerStats",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReceivedMessage",
    "Rejected",
    "RequestTimedOut",
    "RetryLater",
    "RoquetError",
    "Seen",
    "SendEvent",
    "SendFailed",
    "SendReceipt",
    "SendStatus",
    "SendTimedOut",
    "ServerRejected",
    "Suspend",
    "Tls",
    "TooManySends",
    "Tracing",
    "TransactionEvent",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "__version__",
    "embedded",
    "reply_message",
    "run",
    "serve",
    "split_messages",
]

_HOMES = {"Admin": "admin", "Embedded": "embed", "embedded": "embed"}
_HOMES |= dict.fromkeys(("Message", "MessageQueue", "ReceivedMessage"), "message")
_HOMES |= dict.fromkeys(("CallTimeout", "ClientError", "ConnectFailed", "Damaged", "InvalidMessage", "NoRoute", "NotStarted"), "errors")
_HOMES |= dict.fromkeys(("Rejected", "RoquetError", "SendFailed"), "errors")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'roquet' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"roquet.{_HOMES.get(name, 'client')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
