"""Sending fast: many sends under way at once, and batches. Run `roquet up` first, then this file."""

import asyncio
import os
import time

from roquet import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
COUNT = 10_000
UNDER_WAY = 64
BATCH = 32


async def main() -> None:
    async with Producer("example_fast_producer", NAMESRV) as producer:
        numbers = iter(range(COUNT))

        async def sender() -> None:
            # Every sender takes the next number: one slow answer holds up one sender, not all.
            for number in numbers:
                await producer.send(Message("example-fast", b"message %d" % number))

        began = time.perf_counter()
        async with asyncio.TaskGroup() as senders:
            for _ in range(UNDER_WAY):
                senders.create_task(sender())
        print(f"one message a request, {UNDER_WAY} under way: {COUNT / (time.perf_counter() - began):,.0f}/s")

        began = time.perf_counter()
        for start in range(0, COUNT, BATCH):
            await producer.send_batch([Message("example-fast", b"message %d" % number) for number in range(start, start + BATCH)])
        print(f"{BATCH} messages a request, one under way: {COUNT / (time.perf_counter() - began):,.0f}/s")


if __name__ == "__main__":
    asyncio.run(main())
