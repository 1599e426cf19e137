"""docs/wrong-use.md is true: every mistake in its table is made, and its message compared."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import roquet
from roquet import Message, Producer, PushConsumer, ReceivedMessage
from roquet.client import sync
from roquet.embed import Embedded
from tests.client.programs import PATIENCE_S

DOCUMENT = Path(__file__).parents[2] / "docs" / "wrong-use.md"
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")][1:]

Mistake = Callable[[Embedded], Awaitable[object]]
MISTAKES: dict[str, Mistake] = {}
anything: Any = None
"""Typed so that the mistakes may be made."""


def mistake(name: str) -> Callable[[Mistake], Mistake]:
    def keep(function: Mistake) -> Mistake:
        MISTAKES[name] = function
        return function

    return keep


def wrong(value: object) -> Any:
    return value


async def fine(message: ReceivedMessage) -> None: ...


@mistake("two handlers for one topic")
async def two_handlers(mq: Embedded) -> None:
    consumer = PushConsumer("billing", mq.namesrv)

    @consumer.on("orders")
    async def first(message: ReceivedMessage) -> None: ...

    @consumer.on("orders")
    async def second(message: ReceivedMessage) -> None: ...


@mistake("a handler without a parameter")
async def no_parameter(mq: Embedded) -> None:
    async def nothing() -> None: ...

    PushConsumer("billing", mq.namesrv).on("orders")(wrong(nothing))


@mistake("a handler with `yield`")
async def generator(mq: Embedded) -> None:
    async def produce(message: ReceivedMessage) -> AsyncIterator[int]:
        yield 1

    PushConsumer("billing", mq.namesrv).on("orders")(wrong(produce))


@mistake("`@consumer.on` without a topic")
async def no_topic(mq: Embedded) -> None:
    async def bill(message: ReceivedMessage) -> None: ...

    PushConsumer("billing", mq.namesrv).on(wrong(bill))


@mistake("a handler that is no function")
async def no_function(mq: Embedded) -> None:
    PushConsumer("billing", mq.namesrv).subscribe("orders", "*", wrong("print"))


@mistake("`start()` without a subscription")
async def no_subscription(mq: Embedded) -> None:
    await PushConsumer("billing", mq.namesrv).start()


@mistake("`poll()` without a subscription")
async def nothing_to_poll(mq: Embedded) -> None:
    async with roquet.LitePullConsumer("billing", mq.namesrv) as consumer:
        await consumer.poll()


@mistake("a wrong name server address")
async def wrong_address(mq: Embedded) -> None:
    await Producer("p", "127.0.0.1:1", start_timeout_ms=300).start()


@mistake("a broker's address in place of a name server's")
async def brokers_address(mq: Embedded) -> None:
    await Producer("p", mq.broker, start_timeout_ms=300).start()


@mistake("`await consumer.closed()` before start")
async def closed_before_start(mq: Embedded) -> None:
    await PushConsumer("billing", mq.namesrv).closed()


@mistake('`Message("orders", b"17", keys=17)`')
async def key_number(mq: Embedded) -> None:
    Message("orders", b"17", keys=wrong(17))


@mistake('`Message("orders", b"17", keys=[17])`')
async def key_numbers(mq: Embedded) -> None:
    Message("orders", b"17", keys=wrong([17]))


@mistake('`Message("orders", b"17", tags=["a"])`')
async def tag_list(mq: Embedded) -> None:
    Message("orders", b"17", tags=wrong(["a"]))


@mistake('`Message("orders", "17")`')
async def text_body(mq: Embedded) -> None:
    Message("orders", wrong("17"))


@mistake('`await producer.send("hello")`')
async def send_text(mq: Embedded) -> None:
    async with mq.producer() as producer:
        await producer.send(wrong("hello"))


@mistake("`await producer.send_batch(message)`")
async def batch_of_none(mq: Embedded) -> None:
    async with mq.producer() as producer:
        await producer.send_batch(wrong(Message("orders", b"17")))


@mistake('a handler that returns `"ok"`')
async def returns_ok_in_the_log(mq: Embedded) -> str:
    lines: list[str] = []
    told = asyncio.Event()

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            told.set()

    consumer = PushConsumer("billing", mq.namesrv, consume_from="first")
    seen: list[bytes] = []

    async def returns_ok(message: ReceivedMessage) -> str:
        seen.append(message.body)
        return "ok"

    consumer.subscribe("orders", "*", wrong(returns_ok))
    keep = Keep(logging.ERROR)
    logging.getLogger("roquet.client").addHandler(keep)
    try:
        async with consumer, mq.producer() as producer:
            for body in (b"1", b"2"):
                await producer.send(Message("orders", body))
            while len(seen) < 2:
                await asyncio.sleep(0.01)
            await told.wait()
    finally:
        logging.getLogger("roquet.client").removeHandler(keep)
    assert len(lines) == 1
    return lines[0]


def in_a_child(work: Callable[[], object]) -> str:
    """What the work raises in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "nothing was raised"
        try:
            work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, text.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


async def raised_in_a_child(work: Callable[[], object]) -> None:
    name, _, text = in_a_child(work).partition(": ")
    raise getattr(roquet, name, AssertionError)(text)


@mistake("a producer used in a forked child")
async def forked(mq: Embedded) -> None:
    async with mq.producer("p") as producer:
        await producer.send(Message("orders", b"17"))

        def use() -> None:
            producer.send(Message("orders", b"18")).send(None)

        await raised_in_a_child(use)


@mistake("the same, blocking")
async def forked_blocking(mq: Embedded) -> None:
    def both() -> tuple[str, str]:
        with sync.Producer("p", mq.namesrv) as producer:
            producer.send(Message("orders", b"17"))
            return in_a_child(lambda: producer.send(Message("orders", b"18"))), in_a_child(another)

    def another() -> None:
        with sync.Producer("q", mq.namesrv) as producer:
            producer.send(Message("orders", b"19"))

    text, beside = await asyncio.to_thread(both)
    assert beside == "nothing was raised"  # one of the child's own works
    name, _, text = text.partition(": ")
    raise getattr(roquet, name, AssertionError)(text)


@mistake("a producer used in another event loop")
async def another_loop(mq: Embedded) -> None:
    async with mq.producer("p") as producer:
        with pytest.raises(roquet.NotStarted, match="is used outside of it"):
            await asyncio.to_thread(producer.send_async, Message("orders", b"17"), print)
        await asyncio.to_thread(lambda: asyncio.run(producer.send(Message("orders", b"17"))))


@mistake("`deliver_after` of 50 days")
async def too_late(mq: Embedded) -> None:
    async with mq.producer() as producer:
        await producer.send(Message("orders", b"17", deliver_after=50 * 86_400))


@mistake("a producer that is not started")
async def not_started(mq: Embedded) -> None:
    await Producer("p", mq.namesrv).send(Message("orders", b"17"))


@mistake("a blocking producer that is not started")
async def not_started_blocking(mq: Embedded) -> None:
    await asyncio.to_thread(lambda: sync.Producer("p", mq.namesrv).send(Message("orders", b"17")))


@mistake("`sql=` at a broker without `enablePropertyFilter`")
async def sql_refused(mq: Embedded) -> None:
    async with mq.producer() as producer:
        await producer.send(Message("orders", b"17"))
    consumer = PushConsumer("sql", mq.namesrv)
    consumer.subscribe("orders", function=fine, sql="a > 1")
    await consumer.start()


@mistake("tags and SQL together")
async def tags_and_sql(mq: Embedded) -> None:
    PushConsumer("billing", mq.namesrv).subscribe("orders", "a", fine, sql="b > 1")


@mistake("`run()` inside an event loop")
async def run_inside(mq: Embedded) -> None:
    PushConsumer("billing", mq.namesrv).run()


@mistake("`run()` outside the main thread")
async def run_in_a_thread(mq: Embedded) -> None:
    consumer = PushConsumer("billing", mq.namesrv)
    consumer.subscribe("orders", "*", fine)
    await asyncio.to_thread(consumer.run)


@mistake('`PushConsumer(consume_from="earliest")`')
async def earliest(mq: Embedded) -> None:
    PushConsumer("billing", mq.namesrv, consume_from=wrong("earliest"))


@mistake("`PushConsumer(consume_from=5)`")
async def a_number_to_begin(mq: Embedded) -> None:
    PushConsumer("billing", mq.namesrv, consume_from=wrong(5))


@mistake("`PushConsumer(consume_from=None)`")
async def nothing_to_begin(mq: Embedded) -> None:
    PushConsumer("billing", mq.namesrv, consume_from=wrong(None))


@mistake('`PushConsumer(concurrency="5")`')
async def a_text_for_a_number(mq: Embedded) -> None:
    PushConsumer("billing", mq.namesrv, concurrency=wrong("5"))


@mistake("`PushConsumer(close_wait_ms=-1)`")
async def a_wait_that_is_over(mq: Embedded) -> None:
    PushConsumer("billing", mq.namesrv, close_wait_ms=-1)


@mistake('`Producer("p", 9876)`')
async def no_name_server(mq: Embedded) -> None:
    Producer("p", wrong(9876))


@mistake("`producer.send(message, queue=3)`")
async def a_number_for_a_queue(mq: Embedded) -> None:
    async with mq.producer() as producer:
        await producer.send(Message("orders", b"17"), queue=wrong(3))


@mistake("`producer.send_batch([message], queue=3)`")
async def a_number_for_the_queue_of_a_batch(mq: Embedded) -> None:
    async with mq.producer() as producer:
        await producer.send_batch([Message("orders", b"17")], queue=wrong(3))


@mistake("`Producer(nonsense=5)`")
async def nonsense(mq: Embedded) -> None:
    Producer("p", mq.namesrv, **wrong({"nonsense": 5}))


@asynccontextmanager
async def bounded() -> AsyncIterator[Embedded]:
    async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq:
        yield mq


def test_the_table_and_the_mistakes_made_here_are_the_same() -> None:
    assert [row[0] for row in ROWS] == list(MISTAKES)


@pytest.mark.parametrize(("name", "error", "message"), ROWS, ids=[row[0] for row in ROWS])
def test_a_mistake_is_told_in_these_words(name: str, error: str, message: str) -> None:
    async def scenario() -> tuple[str, str]:
        async with bounded() as mq:
            try:
                said = await asyncio.wait_for(MISTAKES[name](mq), 60)
            except Exception as raised:
                return f"`{type(raised).__name__}`", str(raised)
            return "log line, once", str(said)

    kind, text = asyncio.run(scenario())
    assert re.fullmatch(".*".join(map(re.escape, message.split("..."))), text), text
    assert kind == error
    assert threading.current_thread() is threading.main_thread()
