"""Any member may ask for a queue's ends, and for the offset of a time. Against a real broker."""

from __future__ import annotations

import asyncio
import time

import roquet
from roquet import Message, MessageQueue
from roquet.client import sync
from tests.client.programs import PATIENCE_S


def test_a_producer_finds_the_offset_of_a_time() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq, mq.admin() as admin, mq.producer() as producer:
            await admin.create_topic("orders", read_queues=1, write_queues=1)
            queue = MessageQueue("orders", "broker-a", 0)
            assert (await producer.min_offset(queue), await producer.max_offset(queue)) == (0, 0)
            stored: list[int] = []
            while len(stored) < 4:
                receipt = await producer.send(Message("orders", b"x"))
                stored.append((await producer.view_message(receipt.offset_message_id)).store_timestamp)
                while time.time() * 1000 < stored[-1] + 2:  # so that no two have the same time
                    await asyncio.sleep(0)
            assert (await producer.min_offset(queue), await producer.max_offset(queue)) == (0, 4)
            assert await producer.earliest_time(queue) == stored[0]
            assert [await producer.search_offset(queue, time_ms) for time_ms in stored] == [0, 1, 2, 3]
            assert await producer.search_offset(queue, 0) == 0

            consumer = mq.consumer("g", listener=lambda message: None)
            consumer.subscribe("orders")
            async with consumer:
                assert await consumer.search_offset(queue, stored[3]) == 3
            spaced = mq.producer("p", namespace="blue")
            async with spaced:
                await spaced.send(Message("orders", b"another topic"))
                [used] = [one for one in await spaced.fetch_queues("orders") if await spaced.max_offset(one)]
                assert await spaced.max_offset(used) == 1

            def program() -> list[int]:
                with sync.Producer("blocking", mq.namesrv) as blocking:
                    return [blocking.search_offset(queue, stored[2]), blocking.max_offset(queue), blocking.earliest_time(queue)]

            assert await asyncio.to_thread(program) == [2, 4, stored[0]]

    asyncio.run(scenario())
