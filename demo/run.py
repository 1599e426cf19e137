"""`make demo`: Roquet at work.

Real server processes on free ports with a temporary store, driven by the Python client. Each chapter is a function that
takes the stage, shows something, leaves facts for the summary, and raises when what it shows does not hold. A new
feature brings its own chapter: write the function (a longer one in a file of its own), add it to CHAPTERS.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from data import data_pipeline
from group import kill_the_leader
from numbered import Fire, body_of, number_of, read_back
from orders import order_flow
from spark_install import SparkInstall
from stage import Broken, Stage, say

from roquet import Admin, Message, Producer, PushConsumer, ReceivedMessage
from roquet.cli.progress import Bar
from roquet.errors import RoquetError

MESSAGES = 100_000
IN_FLIGHT = 128
CONSUME_TIMEOUT_S = 60
# Chapter 1


async def many_messages(stage: Stage) -> None:
    """Many messages, sent and consumed."""
    count = stage.messages
    broker = await stage.broker("broker-fast", "FastCluster", {})
    say(f"A broker is up after {broker.boot_s:.2f} s (pid {broker.pid}).")
    async with Admin(stage.namesrv) as admin:
        await admin.create_topic("demo-fast", read_queues=8, write_queues=8, cluster="FastCluster")
    numbers = iter(range(count))
    async with Producer("demo_producer", stage.namesrv, send_timeout_ms=10_000) as producer:
        with Bar("sending", count) as bar:
            async with asyncio.TaskGroup() as senders:
                for _ in range(IN_FLIGHT):
                    senders.create_task(send_all(producer, numbers, bar))
        say(f"Sent {count:,} messages of 128 bytes, each acknowledged, {IN_FLIGHT} under way at a time: {bar.rate:,.0f}/s.")
        stage.fact("sent", f"{count:,} messages, {bar.rate:,.0f}/s")
    seen = bytearray(count)
    rate = await consume_all(stage, seen)
    if not all(seen):
        raise Broken(f"{seen.count(0):,} of {count:,} messages were never consumed")
    say(f"Consumed all of them with a push consumer: {rate:,.0f}/s.")
    stage.fact("consumed", f"{count:,} messages, {rate:,.0f}/s")
    await broker.stop()


async def send_all(producer: Producer, numbers: Iterator[int], bar: Bar) -> None:
    for number in numbers:
        await producer.send(Message("demo-fast", body_of(number)))
        bar.add()


async def consume_all(stage: Stage, seen: bytearray) -> float:
    """Mark every number in `seen`; messages a second, from the first to the last."""
    left = len(seen)
    first_at = 0.0
    done = asyncio.Event()
    consumer = PushConsumer("demo_consumer", stage.namesrv, consume_from="first", batch_size=32)

    with Bar("consuming", len(seen)) as bar:

        @consumer.on("demo-fast")
        async def mark(messages: list[ReceivedMessage]) -> None:
            nonlocal left, first_at
            first_at = first_at or time.monotonic()
            for message in messages:
                number = number_of(message)
                left -= not seen[number]
                seen[number] = 1
            bar.add(len(messages))
            if left == 0:
                done.set()

        async with consumer:
            async with asyncio.timeout(CONSUME_TIMEOUT_S):
                await done.wait()
            seconds = time.monotonic() - first_at
    return len(seen) / seconds


# Chapter 2


async def kill_the_broker(stage: Stage) -> None:
    """SIGKILL in the middle of the load, SYNC_FLUSH: nothing acknowledged is lost."""
    count = stage.messages * 3 // 10
    broker = await stage.broker("broker-safe", "SafeCluster", {"flushDiskType": "SYNC_FLUSH"})
    async with Admin(stage.namesrv) as admin:
        await admin.create_topic("demo-safe", read_queues=4, write_queues=4, cluster="SafeCluster")
    say("SYNC_FLUSH: an acknowledgement means that the message is on disk. Sending, and pulling the plug half way ...")
    fire = Fire("demo-safe", count)
    async with Producer("demo_survivor", stage.namesrv, send_timeout_ms=1_000, retries=0) as producer:
        with Bar("sending", count) as bar:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.create_task(fire.send_until_acknowledged(producer, bar))
                await fire.half_done.wait()
                # Not in the moment after an answer, when the broker has nothing to do: while it works on the next ones.
                await asyncio.sleep(random.uniform(0.005, 0.02))
                await broker.kill()
                fire.killed_at = time.monotonic()
                before = fire.acknowledged
                await broker.start()
    if not fire.back_at:
        raise Broken(f"all {count:,} messages were sent before the broker could be killed; run with more --messages")
    outage = fire.back_at - fire.killed_at
    say(f"Killed with SIGKILL after {before:,} acknowledgements; recovered and listening again in {broker.boot_s:.2f} s.")
    say(f"The first acknowledgement after the crash came {outage:.2f} s after it. {fire.failures:,} sends failed and were sent again.")
    times_stored = await read_back(stage, "demo-safe")
    lost = count - len(times_stored)
    if lost:
        raise Broken(f"{lost:,} acknowledged messages are lost")
    twice = sum(times - 1 for times in times_stored.values())
    say(f"Read back all {count:,} acknowledged messages: none lost, none damaged.")
    say(f"{twice:,} are stored twice: sends that were in doubt when the broker died, and that its producer sent again.")
    stage.fact("killed", f"SIGKILL after {before:,} of {count:,}, back in {outage:.2f} s")
    stage.fact("lost", "0 of the acknowledged messages")
    await broker.stop()


Chapter = Callable[[Stage], Awaitable[None]]
CHAPTERS: list[Chapter] = [many_messages, kill_the_broker, kill_the_leader, order_flow, data_pipeline]


async def main(messages: int, install_spark: bool) -> int:
    began, failed = time.monotonic(), False
    with tempfile.TemporaryDirectory(prefix="roquet-demo-") as directory:
        stage = Stage(Path(directory), messages, SparkInstall(install_spark))
        say(f"Roquet, the real thing: separate processes, name server {stage.namesrv}, store in {directory}")
        try:
            await stage.open()
            for number, chapter in enumerate(CHAPTERS, 1):
                say(f"\n{number}. {(chapter.__doc__ or '').splitlines()[0]}")
                await chapter(stage)
                if number == 1:  # its figures are worth a look, so the download waits for it
                    stage.spark.begin()
        except* (RoquetError, TimeoutError) as errors:
            for line in sorted({str(error) or "it took too long" for error in leaves(errors)}):
                say(f"\nThe demo failed: {line}")
            failed = True
        finally:
            await stage.close()
    if failed:
        return 1
    say("\nSummary")
    for name, value in stage.facts:
        say(f"  {name:<10} {value}")
    say(f"  {'time':<10} {time.monotonic() - began:.1f} s")
    say("\nNext: make up, or read README.md.")
    return 0


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def run() -> int:
    parser = argparse.ArgumentParser(description="Roquet at work: real processes, crashes, an order flow, a data pipeline.")
    parser.add_argument("--messages", type=int, default=MESSAGES, metavar="N", help=f"of the first chapter (default: {MESSAGES:,})")
    parser.add_argument("--install-spark", action="store_true", help="install what the chapter about Spark needs, where it is missing")
    arguments = parser.parse_args()
    # The client says what happens to its connections; here the chapters do.
    logging.basicConfig(level=logging.ERROR)
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main(arguments.messages, arguments.install_spark))


if __name__ == "__main__":
    sys.exit(run())
