"""What stands in a trace topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from roquet.embed import Embedded
from roquet.message import ReceivedMessage
from roquet.wire.names import TRACE_TOPIC
from roquet.wire.trace import Malformed, TraceRecord, decode

PATIENCE_S = 120
TRACED = {"traceTopicEnable": "true"}


async def stored(mq: Embedded, topic: str = TRACE_TOPIC) -> list[ReceivedMessage]:
    """Messages of the trace topic, in the order of their queues."""
    found: list[ReceivedMessage] = []
    async with mq.pull_consumer("reader") as reader:
        for queue in await reader.fetch_queues(topic):
            offset = await reader.min_offset(queue)
            while offset < await reader.max_offset(queue):
                result = await reader.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
    return found


async def records(mq: Embedded, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
    read = [record for message in await stored(mq, topic) for record in decode(message.body)]
    assert not [record for record in read if isinstance(record, Malformed)]
    return read  # type: ignore[return-value]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)
