"""The outbox for programs without asyncio: with a Producer of roquet.client.sync and a plain engine.

with Producer("orders-service") as producer, Relay(outbox, engine, producer):
    ...                                        # another thread publishes what is committed
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from sqlalchemy import Engine

from roquet.client import sync
from roquet.client.core.receipt import SendReceipt
from roquet.message import Message
from roquet.outbox import relay
from roquet.outbox.outbox import Outbox, Stored

if TYPE_CHECKING:
    from roquet.outbox.relay import OnAlarm, RelayKeywords

__all__ = ["Relay", "send_or_store"]


class Relay(sync._Blocking):
    _kind: Callable[..., Any] = relay.Relay

    def __init__(
        self,
        outbox: Outbox,
        engine: Engine,
        producer: sync.Producer,
        *,
        on_alarm: OnAlarm | None = None,
        **settings: Unpack[RelayKeywords],
    ) -> None:
        super().__init__(outbox, engine, producer._inner, on_alarm=on_alarm, **settings)


def send_or_store(
    outbox: Outbox, producer: sync.Producer, engine: Engine, message: Message, *, key: str | None = None, timeout_ms: int | None = None
) -> SendReceipt | Stored:
    """Outbox.send_or_store; returns when the message is sent, or stored."""
    return sync._background.run(outbox.send_or_store(producer._inner, engine, message, key=key, timeout_ms=timeout_ms))
