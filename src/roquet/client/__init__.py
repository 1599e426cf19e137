"""The client: producers and consumers over asyncio. The blocking face with the same names is `roquet.client.sync`.

The names are loaded at first use: Spark's tasks and the commands import one module from here, and need not wait for all of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roquet.client.core.batches import split_messages
    from roquet.client.core.failures import BadAnswer, BatchFailed, GroupTaken, SendTimedOut, ServerRejected, TooManySends
    from roquet.client.core.pulling import PullResult, PullStatus
    from roquet.client.core.receipt import SendReceipt, SendStatus
    from roquet.client.core.replies import RequestTimedOut, reply_message
    from roquet.client.core.stats import ConsumerStats, Durations, ProducerStats
    from roquet.client.core.transactions import TransactionReceipt, TransactionState
    from roquet.client.core.verdicts import COMMIT, DEAD_LETTER, RETRY_LATER, ROLLBACK, Outcome, RetryLater, Suspend
    from roquet.client.idempotent import Idempotent, Seen
    from roquet.client.lite_pull_consumer import LitePullConsumer
    from roquet.client.middleware import CallEvent, ConsumeEvent, Middleware, SendEvent, TransactionEvent
    from roquet.client.offset_store import OffsetStore
    from roquet.client.otel import OpenTelemetry
    from roquet.client.producer import Producer
    from roquet.client.pull_consumer import PullConsumer
    from roquet.client.push_consumer import OrderlyListener, PushConsumer
    from roquet.client.stopping import run, serve
    from roquet.client.tracing import Tracing
    from roquet.client.transaction_producer import TransactionProducer
    from roquet.message import Message, MessageQueue, ReceivedMessage
    from roquet.net.connection import ConnectionOptions, Tls
    from roquet.routing.sql92 import BadSql
    from roquet.routing.subscription import BadExpression
    from roquet.wire.signing import Credentials

__all__ = [
    "COMMIT",
    "DEAD_LETTER",
    "RETRY_LATER",
    "ROLLBACK",
    "BadAnswer",
    "BadExpression",
    "BadSql",
    "BatchFailed",
    "CallEvent",
    "ConnectionOptions",
    "ConsumeEvent",
    "ConsumerStats",
    "Credentials",
    "Durations",
    "GroupTaken",
    "Idempotent",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "Middleware",
    "OffsetStore",
    "OpenTelemetry",
    "OrderlyListener",
    "Outcome",
    "Producer",
    "ProducerStats",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReceivedMessage",
    "RequestTimedOut",
    "RetryLater",
    "Seen",
    "SendEvent",
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
    "reply_message",
    "run",
    "serve",
    "split_messages",
]

_HOMES = {
    "client.core.batches": ("split_messages",),
    "client.core.failures": ("BadAnswer", "BatchFailed", "GroupTaken", "SendTimedOut", "ServerRejected", "TooManySends"),
    "client.core.pulling": ("PullResult", "PullStatus"),
    "client.core.receipt": ("SendReceipt", "SendStatus"),
    "client.core.stats": ("ConsumerStats", "Durations", "ProducerStats"),
    "client.core.replies": ("RequestTimedOut", "reply_message"),
    "client.core.transactions": ("TransactionReceipt", "TransactionState"),
    "client.core.verdicts": ("COMMIT", "DEAD_LETTER", "RETRY_LATER", "ROLLBACK", "Outcome", "RetryLater", "Suspend"),
    "client.idempotent": ("Idempotent", "Seen"),
    "client.lite_pull_consumer": ("LitePullConsumer",),
    "client.middleware": ("CallEvent", "ConsumeEvent", "Middleware", "SendEvent", "TransactionEvent"),
    "client.otel": ("OpenTelemetry",),
    "client.offset_store": ("OffsetStore",),
    "client.producer": ("Producer",),
    "client.pull_consumer": ("PullConsumer",),
    "client.push_consumer": ("OrderlyListener", "PushConsumer"),
    "client.stopping": ("run", "serve"),
    "client.tracing": ("Tracing",),
    "client.transaction_producer": ("TransactionProducer",),
    "message": ("Message", "MessageQueue", "ReceivedMessage"),
    "net.connection": ("ConnectionOptions", "Tls"),
    "routing.sql92": ("BadSql",),
    "routing.subscription": ("BadExpression",),
    "wire.signing": ("Credentials",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"roquet.{home}"), name)
            return value
    raise AttributeError(f"module 'roquet.client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
