"""Sends numbered messages all the time, from a thread of its own, and keeps its own record of what was acknowledged."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from roquet import Message, Producer
from roquet.client.core.receipt import SendReceipt
from roquet.errors import RoquetError
from soak.rows import Row

LANES = 8
"""Sends that are under way at the same time."""
TIMEOUT_MS = 3_000
AGAIN_S = 0.05
"""A broker that was killed is knocked at so often."""


@dataclass
class Record:
    """What the sender may claim. A number that was sent in vain is sent again, so the topic may hold it twice; its
    acknowledgement names one of them."""

    acknowledged: list[Row] = field(default_factory=list)
    doubtful: int = 0
    """Sends without an answer, or with one that does not promise the disk: each may be in the topic or not."""


class Sender:
    """`with` runs it. `rate`: messages a second, about."""

    def __init__(self, namesrv: str, topics: Sequence[str], rate: int, seed: int) -> None:
        self.record = Record()
        self._namesrv, self._topics, self._rate = namesrv, topics, rate
        self._random = Random(seed)
        self._next = 0
        self._stop = threading.Event()
        self._began = 0.0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), name="sender")
        self.error: BaseException | None = None

    def __enter__(self) -> Sender:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> Record:
        """Every number that was begun is acknowledged afterwards. Needs the broker."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self.record

    async def _work(self) -> None:
        try:
            # Each attempt is ours: one that the client makes by itself would be a doubt that nobody counts.
            async with Producer("soak", self._namesrv, retries=0, send_timeout_ms=TIMEOUT_MS) as producer:
                await asyncio.gather(*(self._lane(producer) for _ in range(LANES)))
        except BaseException as error:
            self.error = error

    async def _lane(self, producer: Producer) -> None:
        while not self._stop.is_set():
            ahead = self._next / self._rate - (time.monotonic() - self._began)
            if ahead > 0:
                await asyncio.sleep(min(ahead, 0.2))
                continue
            count = 1 if self._random.random() < 0.7 else self._random.randrange(2, 30)
            topic = self._random.choice(self._topics)
            first, self._next = self._next, self._next + count
            await self._send(producer, topic, [body(number, self._random) for number in range(first, first + count)])

    async def _send(self, producer: Producer, topic: str, bodies: list[bytes]) -> None:
        """Until it is acknowledged; a message is made anew for every attempt, and with it its unique id."""
        while True:
            try:
                made = [Message(topic, body, keys=body[:12].decode()) for body in bodies]
                receipts = [await producer.send(made[0])] if len(made) == 1 else await producer.send_batch(made)
            except RoquetError:
                receipts = []
            if receipts and all(receipt.ok for receipt in receipts):
                self.record.acknowledged += map(row_of, receipts, bodies)
                return
            self.record.doubtful += len(bodies)
            await asyncio.sleep(AGAIN_S)


def body(number: int, random: Random) -> bytes:
    """The number and some bytes; now and then many that are alike, which the client compresses."""
    head = b"%012d" % number
    return head + (head * 500 if random.random() < 0.02 else random.randbytes(random.randrange(200)))


def row_of(receipt: SendReceipt, body: bytes) -> Row:
    return Row(receipt.queue.topic, receipt.queue.queue_id, receipt.queue_offset, zlib.crc32(body))
