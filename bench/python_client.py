"""Our Python client as load, beside Apache's benchmark programs: it sends or consumes until it is ended.

    python bench/python_client.py send --namesrv 127.0.0.1:9876 --topic Bench --inflight 64 [--linger-ms 5]
    python bench/python_client.py batch --namesrv ... --topic Bench --inflight 16 --size 32
    python bench/python_client.py push --namesrv ... --topic Bench --group bench_python_consumer

What it did is counted in the broker, as with Apache's. Ended by SIGTERM, a sender prints how many messages were acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine, Iterable

from roquet.client import Message, Producer, PushConsumer, ReceivedMessage
from roquet.system import fast_loop

BODY = b"x" * 128


async def send(options: argparse.Namespace) -> None:
    async with Producer("bench_python", options.namesrv, linger_ms=options.linger_ms, compress_over=0) as producer:
        acknowledged = 0

        async def one() -> None:
            nonlocal acknowledged
            while True:
                await producer.send(Message(options.topic, BODY))
                acknowledged += 1

        await until_ended(one() for _ in range(options.inflight))
    print(acknowledged)


async def batch(options: argparse.Namespace) -> None:
    async with Producer("bench_python", options.namesrv) as producer:
        acknowledged = 0

        async def one() -> None:
            nonlocal acknowledged
            while True:
                receipts = await producer.send_batch([Message(options.topic, BODY) for _ in range(options.size)])
                acknowledged += len(receipts)  # not in one line with the await: others count meanwhile

        await until_ended(one() for _ in range(options.inflight))
    print(acknowledged)


async def until_ended(works: Iterable[Coroutine[None, None, None]]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    tasks = [asyncio.create_task(work) for work in works]
    waits = asyncio.create_task(ended.wait())
    await asyncio.wait([waits, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def push(options: argparse.Namespace) -> None:
    async def consume(_: ReceivedMessage) -> None:
        pass

    consumer = PushConsumer(options.group, options.namesrv, consume_from="first", listener=consume)
    consumer.subscribe(options.topic)
    async with consumer:
        await consumer.closed()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("send", "batch", "push"))
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="bench_python_consumer")
    parser.add_argument("--inflight", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--linger-ms", type=int, default=None)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=fast_loop()) as runner:  # uvloop's, as docs/faq.md says
        runner.run({"send": send, "batch": batch, "push": push}[options.what](options))


if __name__ == "__main__":
    main()
