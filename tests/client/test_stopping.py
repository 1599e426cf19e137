"""run(): a consumer as a program, and the signals that end it. Real processes, real signals, a real broker."""

from __future__ import annotations

import asyncio
import re
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

SAY = """
    import os

    def say(what, message):  # one write: what threads print in two pieces comes out mixed
        os.write(1, b"%s %r\\n" % (what, message.body))
"""
ASYNCIO = (
    SAY
    + """
    import asyncio
    from roquet import Producer, PushConsumer, run

    consumer = PushConsumer("g", "{namesrv}", consume_from="first")
    producer = Producer("p", "{namesrv}")

    @consumer.on("t")
    async def handle(message):
        say(b"begins", message)
        await asyncio.sleep({pause})
        say(b"ends", message)

    {end}
    print("after run", flush=True)
"""
)
BLOCKING = (
    SAY
    + """
    import time
    from roquet.client.sync import Producer, PushConsumer, run

    consumer = PushConsumer("g", "{namesrv}", consume_from="first")
    producer = Producer("p", "{namesrv}")

    @consumer.on("t")
    def handle(message):
        say(b"begins", message)
        time.sleep({pause})
        say(b"ends", message)

    {end}
    print("after run", flush=True)
"""
)
INSIDE = (
    SAY
    + """
    import asyncio
    from roquet import PushConsumer, serve

    async def main():
        consumer = PushConsumer("g", "{namesrv}", consume_from="first")

        @consumer.on("t")
        async def handle(message):
            say(b"begins", message)
            await asyncio.sleep({pause})
            say(b"ends", message)

        await {end}

    asyncio.run(main())
    print("after run", flush=True)
"""
)
WAYS = [
    pytest.param(ASYNCIO, "consumer.run()", id="run"),
    pytest.param(ASYNCIO, "run(producer, consumer)", id="run many"),
    pytest.param(INSIDE, "consumer.serve()", id="serve"),
    pytest.param(BLOCKING, "consumer.run()", id="blocking run"),
    pytest.param(BLOCKING, "consumer.serve()", id="blocking serve"),
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
    code = indent(dedent(face), "    ").replace('say(b"begins"', 'if message.body == b"0": return\n        say(b"begins"')

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


def before_the_end(face: str, statement: str) -> str:
    """The program whose handler does this with the first message."""
    return re.sub(r'^( *)(say\(b"ends".*)$', rf'\1if message.body == b"0": {statement}\n\1\2', face, flags=re.MULTILINE)


@pytest.mark.parametrize(("raised", "code"), [("raise SystemExit(3)", 3), ("raise KeyboardInterrupt", -signal.SIGINT)])
@pytest.mark.parametrize(("face", "end"), [WAYS[0], WAYS[2], WAYS[3]])
def test_a_handler_that_ends_the_program_ends_it_and_its_message_comes_again(face: str, end: str, raised: str, code: int) -> None:
    """Asyncio lets such an exception end the loop, with every task in it; in the blocking classes that was a thread, and nobody noticed."""
    failing = before_the_end(face, raised)

    async def test(mq: Embedded) -> None:
        async with program(failing.format(namesrv=mq.namesrv, pause=0, end=end)) as consumer:
            assert await consumer.end() == code, consumer.printed
        assert "after run" not in consumer.printed
        assert "attempt 1; it comes again after delay level 3 (10 s, unless its broker has other levels)" in consumer.printed
        assert "calls of its listener run" not in consumer.printed, "nothing was waited for in vain"
        async with mq.pull_consumer("g") as reader:
            assert await reader.max_offset((await reader.fetch_queues("%RETRY%g"))[0]) == 0
        assert await progress(mq) >= 1

    against_a_broker(test)


@pytest.mark.parametrize(("face", "end"), [WAYS[0], WAYS[2], WAYS[3]])
def test_a_handler_may_close_its_consumer_which_ends_the_program(face: str, end: str) -> None:
    code = before_the_end(face, "consumer.close()" if "client.sync" in face else "await consumer.close()")

    async def test(mq: Embedded) -> None:
        async with program(code.format(namesrv=mq.namesrv, pause=0, end=end)) as consumer:
            assert await consumer.end() == 0, consumer.printed
        assert "Traceback" not in consumer.printed
        assert "ends b'0'" in consumer.printed
        assert "calls of its listener run" not in consumer.printed, "the handler was not waited for by itself"
        assert await progress(mq) == consumer.printed.count("ends")

    against_a_broker(test)


def test_a_consumer_runs_again_in_another_loop() -> None:
    code = """
        import os, signal, threading
        from roquet import PushConsumer

        consumer = PushConsumer("g", "{namesrv}", listener=print)
        consumer.subscribe("t")
        for number in range(2):
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            consumer.run()
            print("ran", number, flush=True)
    """

    async def test(mq: Embedded) -> None:
        async with program(code.format(namesrv=mq.namesrv)) as consumer:
            assert await consumer.end() == 0, consumer.printed
        assert "ran 1" in consumer.printed, consumer.printed

    against_a_broker(test)


def test_a_handler_that_catches_its_cancellation_does_not_keep_the_program_alive() -> None:
    code = """
        import asyncio
        from roquet import PushConsumer
        consumer = PushConsumer("g", "{namesrv}", consume_from="first", close_wait_ms=100)

        @consumer.on("t")
        async def handle(message):
            print("begins", flush=True)
            while True:
                try:
                    await asyncio.sleep(600)
                except BaseException:
                    pass

        consumer.run()
    """

    async def test(mq: Embedded) -> None:
        async with program(code.format(namesrv=mq.namesrv)) as consumer:
            await consumer.until("begins")
            consumer.signal(signal.SIGTERM)
            async with asyncio.timeout(120):
                assert await consumer.end() == 1, consumer.printed
        assert "calls of handlers run on although the consumer is closed; the program ends without them" in consumer.printed

    against_a_broker(test)
