"""Guarded handlers of real consumers, with a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

import roquet
from roquet import Message, PushConsumer, ReceivedMessage
from roquet.idempotence import MemoryStore, Once, SqlStore


async def send(producer: roquet.Producer, *keys: str) -> None:
    for key in keys:
        await producer.send(Message("orders", key.encode(), keys=[key]))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_business_key_that_was_sent_twice_takes_effect_once_and_one_that_failed_is_tried_again(tmp_path: Path) -> None:
    """Plain handlers in many threads, each in a transaction of SQLite."""
    engine = create_engine(f"sqlite:///{tmp_path}/base", connect_args={"timeout": 60})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (order_id TEXT)"))
    store = SqlStore(engine)
    store.create()
    once = Once(store, group="billing")
    attempts: list[str] = []

    async def work() -> None:
        async with asyncio.timeout(600), roquet.embedded(fast_retries=True) as mq, mq.producer() as producer:
            consumer: PushConsumer = mq.consumer("billing", consume_from="first")

            @consumer.on("orders")
            @once
            def bill(message: ReceivedMessage, connection: Connection) -> None:
                key = message.keys[0]
                attempts.append(key)
                connection.execute(text("INSERT INTO paid VALUES (:key)"), {"key": key})
                if attempts.count(key) == 1 and key == "b":
                    raise ValueError("the first time")

            await send(producer, "a", "b", "a", "c", "a", "c")
            async with consumer:
                await until(lambda: once.handled == 4 and once.dropped == 3)

    asyncio.run(work())
    assert sorted(attempts) == ["a", "b", "b", "c"]
    with engine.connect() as connection:
        assert sorted(connection.execute(text("SELECT order_id FROM paid")).scalars()) == ["a", "b", "c"]
    engine.dispose()


def test_a_duplicate_that_meets_a_running_handler_comes_again_until_it_can_be_dropped() -> None:
    once = Once(MemoryStore(), group="billing")
    handled: list[str] = []

    async def work() -> None:
        gate = asyncio.Event()
        async with asyncio.timeout(600), roquet.embedded(fast_retries=True) as mq, mq.producer() as producer:
            consumer: PushConsumer = mq.consumer("billing", consume_from="first")

            @consumer.on("orders")
            @once
            async def bill(message: ReceivedMessage) -> None:
                handled.append(message.keys[0])
                await gate.wait()

            await send(producer, "a", "a")
            async with consumer:
                await until(lambda: once.postponed >= 2)
                gate.set()
                await until(lambda: once.dropped == 1)

    asyncio.run(work())
    assert handled == ["a"]
    assert once.handled == 1


@pytest.mark.parametrize("orderly", [False, True])
def test_of_lists_each_message_is_done_once_and_an_orderly_consumer_does_them_in_order(orderly: bool) -> None:
    once = Once(MemoryStore(), group="billing", orderly=orderly)
    done: list[str] = []
    failed: list[str] = []

    async def work() -> None:
        async with asyncio.timeout(600), roquet.embedded(fast_retries=True) as mq, mq.producer() as producer:
            consumer: PushConsumer = mq.consumer("billing", consume_from="first", batch_size=4, orderly=orderly, suspend_queue_ms=10)

            @consumer.on("orders")
            @once
            async def bill(messages: list[ReceivedMessage]) -> bool:
                keys = [message.keys[0] for message in messages]
                await asyncio.sleep(0)
                if "c" in keys and not failed:
                    failed.extend(keys)
                    return False
                done.extend(keys)
                return True

            for key in "aabcdabcde":
                await producer.send(Message("orders", b"x", keys=[key]), key=0)
            async with consumer:
                await until(lambda: len(done) == 5 and once.dropped >= 5)

    asyncio.run(work())
    assert "c" in failed
    assert (done if orderly else sorted(done)) == ["a", "b", "c", "d", "e"]


def test_two_groups_of_one_program_share_a_store_and_each_handles_the_message() -> None:
    store = MemoryStore()
    handled: list[str] = []

    async def work() -> None:
        async with asyncio.timeout(600), roquet.embedded() as mq, mq.producer() as producer:
            await send(producer, "a", "a")
            guards = []
            consumers: list[PushConsumer] = []
            for group in ("billing", "shipping"):
                once = Once(store, group=group)

                async def handle(message: ReceivedMessage, group: str = group) -> None:
                    handled.append(group)

                consumer = mq.consumer(group, consume_from="first")
                consumer.subscribe("orders", function=once(handle))
                guards.append(once)
                consumers.append(consumer)
            async with consumers[0], consumers[1]:
                await until(lambda: all(once.handled + once.dropped + once.postponed >= 2 for once in guards))

    asyncio.run(work())
    assert sorted(handled) == ["billing", "shipping"]
