"""Messages of one account in the order they were sent, a failure included. Run `roquet up` first, then this file."""

import asyncio
import os
from collections import defaultdict

from roquet import Message, Producer, PushConsumer, ReceivedMessage
from roquet.client import Suspend

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-ledger"
ACCOUNTS = ("ann", "ben", "cleo")
STEPS = 5


async def main() -> None:
    seen: defaultdict[str, list[int]] = defaultdict(list)
    done = asyncio.Event()
    stumbled = False
    consumer = PushConsumer("example_ledger", NAMESRV, consume_from="first")

    # The broker lets one member at a time have a queue, and this function gets a queue's messages one after the other.
    @consumer.on_orderly(TOPIC)
    async def book(message: ReceivedMessage) -> Suspend | None:
        nonlocal stumbled
        account, step = message.keys[0], int(message.body)
        if step == 2 and not stumbled:
            stumbled = True
            print(f"{account} {step}: not now")
            return Suspend(100)  # the same message again after 100 ms; nothing of its queue overtakes it
        print(f"{account} {step}")
        seen[account].append(step)
        if sum(map(len, seen.values())) == len(ACCOUNTS) * STEPS:
            done.set()
        return None

    async with Producer("example_bank", NAMESRV) as producer:
        for step in range(STEPS):
            for account in ACCOUNTS:
                # The key chooses the queue: what has the same key stays in one queue, in order.
                await producer.send(Message(TOPIC, str(step).encode(), keys=[account]), key=account)

    async with consumer, asyncio.timeout(20):
        await done.wait()
    for account in ACCOUNTS:
        if seen[account] != list(range(STEPS)):
            raise SystemExit(f"{account}'s steps came as {seen[account]}")
    print("every account's steps came in order, each once")


if __name__ == "__main__":
    asyncio.run(main())
