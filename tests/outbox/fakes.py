"""A producer without a broker, whose sends end as a test wants."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from roquet.client.core.receipt import SendReceipt, SendStatus
from roquet.message import Message, MessageQueue, Property

PATIENCE_S = 60.0


class FakeProducer:
    """Keeps what was sent, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[str | None, str, str]] = []
        """(key, body, message id) of each send that worked."""
        self.tried: Counter[str] = Counter()
        self.fails: Callable[[Message], Exception | None] = lambda message: None
        self.waits: Callable[[Message], asyncio.Event | None] = lambda message: None
        self.status = SendStatus.SEND_OK

    async def send(self, message: Message, *, key: object = None, timeout_ms: int | None = None) -> SendReceipt:
        assert key is None or isinstance(key, str)
        self.tried[message.body.decode()] += 1
        if (gate := self.waits(message)) is not None:
            await gate.wait()
        await asyncio.sleep(0)
        if (error := self.fails(message)) is not None:
            raise error
        message_id = message.properties[Property.UNIQUE_KEY]
        self.sent.append((key, message.body.decode(), message_id))
        return SendReceipt(self.status, message_id, "", MessageQueue(message.topic, "broker-a", 0), 0)

    def bodies(self, key: str | None = None) -> list[str]:
        return [body for of, body, _ in self.sent if key is None or of == key]


async def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"did not come: {what or condition}"
        await asyncio.sleep(0.005)
