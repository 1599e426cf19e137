"""SQL for every kind of consumer, and `async for`. Against a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import roquet
from roquet import BadSql, LitePullConsumer, Message, ReceivedMessage
from roquet.cli.main import main
from roquet.client import sync
from roquet.embed import Embedded
from tests.client.programs import PATIENCE_S

COUNT = 30
LARGE = "amount > 19"


def against_a_broker(test: Callable[[Embedded], Coroutine[Any, Any, None]], filters: str = "true") -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded(settings={"enablePropertyFilter": filters}) as mq:
            async with mq.producer() as producer:
                await producer.create_topic("t", 1)
                for number in range(COUNT):
                    await producer.send(Message("t", b"%d" % number, properties={"amount": str(number)}))
            await test(mq)

    asyncio.run(scenario())


def lite(mq: Embedded, **options: Any) -> LitePullConsumer:
    return LitePullConsumer("lite", mq.namesrv, consume_from="first", **options)


def test_a_lite_pull_consumer_filters_with_sql() -> None:
    async def test(mq: Embedded) -> None:
        async with lite(mq) as consumer:
            consumer.subscribe("t", sql=LARGE)
            seen: list[bytes] = []
            while len(seen) < 10:
                seen += [message.body for message in await consumer.poll()]
            assert await consumer.poll(timeout_ms=50) == []
        assert seen == [b"%d" % number for number in range(20, 30)]
        with pytest.raises(BadSql):
            lite(mq).subscribe("t", sql="amount >")

    against_a_broker(test)


def test_a_pull_consumer_and_the_command_line_filter_with_sql(capsys: pytest.CaptureFixture[str]) -> None:
    async def test(mq: Embedded) -> None:
        async with mq.pull_consumer() as reader:
            [queue] = await reader.fetch_queues("t")
            result = await reader.pull(queue, 0, sql=LARGE)
            assert [message.body for message in result.messages] == [b"%d" % number for number in range(20, 30)]
            assert len((await reader.pull_blocking(queue, 0, sql=LARGE)).messages) == 10
            with pytest.raises(BadSql):
                await reader.pull(queue, 0, sql="amount >")
        look = ["consume", "t", "--from", "first", "--sql", LARGE, "-n", mq.namesrv]
        assert await asyncio.to_thread(main, [*look, "--once", "--json"]) == 0
        assert [json.loads(line)["body"] for line in capsys.readouterr().out.splitlines()] == [str(number) for number in range(20, 30)]
        assert await asyncio.to_thread(main, [*look, "--count", "2", "--body", "--group", "g"]) == 0
        assert capsys.readouterr().out.split() == ["20", "21"]
        assert await asyncio.to_thread(main, [*look, "--once", "--tags", "a"]) != 0
        assert "both tags='a' and sql=" in capsys.readouterr().err

    against_a_broker(test)


def test_a_broker_without_sql_says_so_to_all_of_them() -> None:
    async def test(mq: Embedded) -> None:
        consumer = lite(mq)
        consumer.subscribe("t", sql=LARGE)
        with pytest.raises(roquet.Rejected, match="enablePropertyFilter=true"):
            await consumer.start()
        async with mq.pull_consumer() as reader:
            [queue] = await reader.fetch_queues("t")
            with pytest.raises(roquet.Rejected, match="enablePropertyFilter=true"):
                await reader.pull(queue, 0, sql=LARGE)

    against_a_broker(test, "false")


async def fail_at(offset: int, consumer: LitePullConsumer) -> None:
    async with consumer:
        async for message in consumer:
            if message.queue_offset == offset:
                raise ZeroDivisionError


async def progress(mq: Embedded) -> int:
    async with mq.pull_consumer("lite") as reader:
        [queue] = await reader.fetch_queues("t")
        return await reader.fetch_offset(queue)


def test_messages_can_be_iterated_and_those_not_reached_come_again() -> None:
    async def test(mq: Embedded) -> None:
        seen: list[ReceivedMessage] = []
        consumer = lite(mq)
        consumer.subscribe("t")
        async with consumer:
            async for message in consumer:
                seen.append(message)
                if len(seen) == 15:  # in the middle of a poll of 10
                    break
        assert [message.queue_offset for message in seen] == list(range(15))
        assert await progress(mq) == 15

        consumer = lite(mq)
        consumer.subscribe("t")
        with pytest.raises(ZeroDivisionError):
            await fail_at(20, consumer)
        assert await progress(mq) <= 20, "the one that failed comes again"

        by_hand = lite(mq, auto_commit=False)
        by_hand.subscribe("t")
        async with by_hand:
            async for message in by_hand:
                if message.queue_offset == 23:
                    await by_hand.commit()
                    break
        assert await progress(mq) == 24

    against_a_broker(test)


def test_a_commit_while_iterating_leaves_a_queue_alone_that_is_read_here_no_longer() -> None:
    async def test(mq: Embedded) -> None:
        async with lite(mq, auto_commit=False) as consumer:
            queues = await consumer.fetch_queues("t")
            consumer.assign(queues)
            async for message in consumer:
                if message.queue_offset == 3:  # in the middle of a poll of 10
                    break
            consumer.assign([])
            await consumer.commit(dict.fromkeys(queues, 7))  # as another member does that reads it now
            await consumer.commit()
        assert await progress(mq) == 7

    against_a_broker(test)


def test_iterating_ends_when_the_consumer_is_closed_and_blocks_without_asyncio() -> None:
    async def test(mq: Embedded) -> None:
        consumer = lite(mq)
        consumer.subscribe("t")
        await consumer.start()
        count = 0
        closing: list[asyncio.Task[None]] = []
        async for _ in consumer:
            count += 1
            if count == COUNT:
                closing.append(asyncio.create_task(consumer.close()))
        await closing[0]
        assert count == COUNT

        def blocking() -> list[bytes]:
            bodies: list[bytes] = []
            with sync.LitePullConsumer("others", mq.namesrv, consume_from="first") as other:
                other.subscribe("t")
                for message in other:
                    bodies.append(message.body)
                    if len(bodies) == 3:
                        break
            return bodies

        assert await asyncio.to_thread(blocking) == [b"0", b"1", b"2"]

    against_a_broker(test)
