"""Numbered messages: sent until each is acknowledged, and read back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from stage import Broken, Stage

from roquet import Message, MessageQueue, Producer, PullConsumer, ReceivedMessage
from roquet.cli.progress import Bar
from roquet.errors import RoquetError

BODY = b"x" * 116


def body_of(number: int) -> bytes:
    """128 bytes: the number, and filling."""
    return b"%012d" % number + BODY


def number_of(message: ReceivedMessage) -> int:
    body = message.body
    if len(body) != 12 + len(BODY) or not body.endswith(BODY):
        raise Broken(f"{message} came back damaged")
    return int(body[:12])


class Fire:
    """Senders that do not give up: a send that fails is in doubt, so it is sent again until it is acknowledged."""

    def __init__(self, topic: str, count: int) -> None:
        self.topic = topic
        self.count = count
        self.numbers = iter(range(count))
        self.acknowledged = 0
        self.failures = 0
        self.half_done = asyncio.Event()
        self.killed_at = 0.0
        self.back_at = 0.0
        self.longest_gap = 0.0
        """Seconds between two acknowledgements, one after the other."""
        self._last_at = 0.0

    async def send_until_acknowledged(self, producer: Producer, bar: Bar) -> None:
        for number in self.numbers:
            while not await self._sent(producer, number):
                await asyncio.sleep(0.02)
            self.acknowledged += 1
            bar.add()
            if self.acknowledged == self.count // 2:
                self.half_done.set()

    async def _sent(self, producer: Producer, number: int) -> bool:
        try:
            receipt = await producer.send(Message(self.topic, body_of(number)))
        except RoquetError:
            self.failures += 1
            return False
        now = time.monotonic()
        if self.killed_at and not self.back_at:
            self.back_at = now
        self.longest_gap = max(self.longest_gap, now - (self._last_at or now))
        self._last_at = now
        return receipt.ok


async def read_back(stage: Stage, topic: str) -> Counter[int]:
    """How often each number is stored."""
    found: Counter[int] = Counter()

    async def read(consumer: PullConsumer, queue: MessageQueue) -> None:
        offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
        while offset < end:
            result = await consumer.pull(queue, offset)
            found.update(number_of(message) for message in result.messages)
            offset = result.next_offset

    async with PullConsumer("demo_auditor", stage.namesrv) as consumer:
        await asyncio.gather(*(read(consumer, queue) for queue in await consumer.fetch_queues(topic)))
    return found
