"""run(): a consumer as a program, and the signals that end it. Real processes, real signals, a real broker."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from textwrap import dedent, indent
from typing import Any

import pytest

import roquet
from roquet import Message
from roquet.embed import Embedded
from tests.client.programs import PATIENCE_S, program

COUNT = 20

ASYNCIO = """
    import asyncio
    from roquet import Producer, PushConsumer, run

    consumer = PushConsumer("g", "{namesrv}", consume_from="first")
    producer = Producer("p", "{namesrv}")

    @consumer.on("t")
    async def handle(message):
        print("begins", message.body, flush=True)
        await asyncio.sleep({pause})
        print("ends", message.body, flush=True)

    {end}
    print("after run", flush=True)
"""
BLOCKING = """
    import time
    from roquet.client.sync import Producer, PushConsumer, run

    consumer = PushConsumer("g", "{namesrv}", consume_from="first")
    producer = Producer("p", "{namesrv}")

    @consumer.on("t")
    def handle(message):
        print("begins", message.body, flush=True)
        time.sleep({pause})
        print("ends", message.body, flush=True)

    {end}
    print("after run", flush=True)
"""
INSIDE = """
    import asyncio
    from roquet import PushConsumer, serve

    async def main():
        consumer = PushConsumer("g", "{namesrv}", consume_from="first")

        @consumer.on("t")
        async def handle(message):
            print("begins", message.body, flush=True)
            await asyncio.sleep({pause})
            print("ends", message.body, flush=True)

        await {end}

    asyncio.run(main())
    print("after run", flush=True)
"""
WAYS = [
    pytest.param(ASYNCIO, "consumer.run()", id="run"),
    pytest.param(ASYNCIO, "run(producer, consumer)", id="run many"),
    pytest.param(INSIDE, "consumer.serve()", id="serve"),
    pytest.param(BLOCKING, "consumer.run()", id="blocking run"),
    pytest.param(BLOCKING, "run(consumer, producer)", id="blocking run many"),
]


def against_a_broker(test: Callable[[Embedded], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq:
            async with mq.producer() as producer:
                await producer.create_topic("t", 1)
                for number in range(COUNT):
                    await producer.send(Message("t", b"%d" % number))
            await test(mq)

    asyncio.run(scenario())


async def progress(mq: Embedded) -> int:
    async with mq.pull_consumer("g") as reader:
        [queue] = await reader.fetch_queues("t")
        return await reader.fetch_offset(queue)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("face", "end"), WAYS)
def test_a_signal_ends_the_handlers_commits_and_exits_with_0(face: str, end: str, number: signal.Signals) -> None:
    async def test(mq: Embedded) -> None:
        async with program(face.format(namesrv=mq.namesrv, pause=0.3, end=end)) as consumer:
            await consumer.until("begins")
            consumer.signal(number)
            assert await consumer.end() == 0, consumer.printed
        assert "Traceback" not in consumer.printed
        assert "after run" in consumer.printed
        begun, ended = consumer.printed.count("begins"), consumer.printed.count("ends")
        assert begun == ended > 0
        assert await progress(mq) == ended
        async with mq.admin() as admin:
            assert not (await admin.members("g")).client_ids()  # it said goodbye

    against_a_broker(test)


@pytest.mark.parametrize(("face", "end"), [WAYS[1], WAYS[3]])
def test_a_second_signal_does_not_wait_for_handlers_but_commits_what_is_done(face: str, end: str) -> None:
    code = indent(dedent(face), "    ").replace('print("begins"', 'if message.body == b"0": return\n        print("begins"')

    async def test(mq: Embedded) -> None:
        async with program(code.format(namesrv=mq.namesrv, pause=600, end=end)) as consumer:
            await consumer.until("begins b'1'")
            consumer.signal(signal.SIGTERM)
            await consumer.until("again")
            consumer.signal(signal.SIGTERM)
            assert await consumer.end() == 128 + signal.SIGTERM, consumer.printed
        assert "Traceback" not in consumer.printed
        assert await progress(mq) == 1

    against_a_broker(test)


def test_a_signal_while_it_starts_ends_it_too() -> None:
    async def test(mq: Embedded) -> None:
        code = """
            import logging
            from roquet import PushConsumer
            logging.basicConfig(level=logging.INFO)
            consumer = PushConsumer("g", "{namesrv}", listener=lambda message: None)
            consumer.subscribe("t")
            logging.getLogger("roquet").info("it starts")
            import os, signal, threading
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
            consumer.run()
        """
        began = asyncio.get_running_loop().time()
        with socket.create_server(("127.0.0.1", 0)) as silent:  # a name server that takes connections and says nothing
            async with program(code.format(namesrv=f"127.0.0.1:{silent.getsockname()[1]}")) as consumer:
                assert await consumer.end() == 0, consumer.printed
        assert asyncio.get_running_loop().time() - began < 60
        assert "Traceback" not in consumer.printed

    against_a_broker(test)


def test_run_ends_when_the_consumer_is_closed_and_says_what_it_cannot_run() -> None:
    async def test(mq: Embedded) -> None:
        consumer = mq.consumer("h", consume_from="first")

        @consumer.on("t")
        async def handle(message: roquet.ReceivedMessage) -> None:
            asyncio.get_running_loop().call_soon(lambda: closing.append(asyncio.ensure_future(consumer.close())))

        closing: list[asyncio.Future[None]] = []
        await consumer.serve()
        with pytest.raises(roquet.ClientError, match="inside a running event loop"):
            consumer.run()
        with pytest.raises(roquet.ClientError, match="nothing to run"):
            await roquet.serve()

    against_a_broker(test)
