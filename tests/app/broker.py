"""An app against a real broker inside the test's process, and what a test waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import roquet
from roquet.app import App
from roquet.app.app import ConsumerKeywords
from roquet.embed import Embedded
from roquet.errors import NoRoute
from roquet.message import ReceivedMessage
from roquet.wire.names import dead_letter_topic

PATIENCE_S = 600.0
"""Deadline of what must happen at all; the machine may be busy."""
SOON = 0.005


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(SOON)


def against_a_broker(test: Callable[[Embedded], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded(fast_retries=True) as mq:
            await test(mq)

    asyncio.run(scenario())


def app_of(mq: Embedded, *, offsets_directory: Path | None = None, **options: Any) -> App:
    consumer: ConsumerKeywords = {"consume_from": "first", "suspend_queue_ms": 10, "offsets_directory": offsets_directory}
    return App(mq.namesrv, consumer=consumer, **options)


@asynccontextmanager
async def sent(mq: Embedded, topic: str, *messages: roquet.Message, queues: int = 1) -> AsyncIterator[None]:
    """The messages stand in the topic when the block begins."""
    async with mq.producer() as producer:
        await producer.create_topic(topic, queues)
        for message in messages:
            await producer.send(message)
    yield


async def dead_letters(mq: Embedded, group: str, count: int) -> list[ReceivedMessage]:
    """Those of a group, once there are so many, in the order in which they came."""
    return await stored(mq, dead_letter_topic(group), count)


async def stored(mq: Embedded, topic: str, count: int) -> list[ReceivedMessage]:
    """The messages of a topic, once there are so many. A test that expects no more looks when all is over."""
    async with asyncio.timeout(PATIENCE_S), mq.pull_consumer("reader") as reader:
        while True:
            found: list[ReceivedMessage] = []
            try:
                for queue in await reader.fetch_queues(topic):
                    found += (await reader.pull(queue, 0)).messages
            except NoRoute:
                pass  # nobody has sent there yet
            if len(found) >= count:
                assert len(found) == count
                return sorted(found, key=lambda message: (message.store_timestamp, message.physical_offset))
            await asyncio.sleep(SOON)
