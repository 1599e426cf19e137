"""How many calls run at a time may change while a consumer runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import roquet
from roquet import Message, ReceivedMessage
from roquet.client import sync
from roquet.client.core.verdicts import Outcome
from roquet.embed import Embedded
from roquet.errors import ClientError, NotStarted
from tests.client.members import Member, cluster_with
from tests.client.programs import PATIENCE_S


def against_a_broker(test: Callable[[Embedded], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq:
            await test(mq)

    asyncio.run(scenario())


# -- the core


@pytest.mark.parametrize("orderly", [False, True])
def test_more_begin_at_once_and_fewer_when_enough_have_ended(orderly: bool) -> None:
    cluster, queues = cluster_with(8)
    member = Member(cluster, decide=None, concurrency=2, orderly=orderly)
    for queue in queues:
        for _ in range(3):
            cluster.append(queue, b"x")
    member.start()
    assert len(member.held) == 2
    member.core.consuming.set_concurrency(6)
    cluster.run()
    assert len(member.held) == 6
    member.core.consuming.set_concurrency(1)
    held, member.held = member.held, []
    for _, judge in held[:5]:
        judge(Outcome.SUCCESS)
        cluster.run()
        assert not member.held, "others still run"
    held[5][1](Outcome.SUCCESS)
    cluster.run()
    assert len(member.held) == 1


# -- through the front door


class Crowd:
    """Functions that run until they are let go, and how many do."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = self.ended = 0
        self.threads: set[str] = set()
        self.gate = threading.Event()

    def enter(self, message: ReceivedMessage) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.threads.add(threading.current_thread().name)
        self.gate.wait()
        with self.lock:
            self.inside -= 1
            self.ended += 1

    @property
    def living(self) -> int:
        """Threads that there still are."""
        return sum(thread.name in self.threads for thread in threading.enumerate())

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.005)


def test_plain_functions_get_more_threads_and_then_fewer() -> None:
    async def test(mq: Embedded) -> None:
        crowd = Crowd()
        consumer = mq.consumer("g", concurrency=2, listener=crowd.enter, consume_from="first")
        consumer.subscribe("orders")
        try:
            async with mq.producer() as producer, consumer:
                for _ in range(40):
                    await producer.send(Message("orders", b"x"))
                await crowd.until(lambda: crowd.inside == 2)
                consumer.concurrency = 12
                assert consumer.concurrency == 12
                await crowd.until(lambda: crowd.inside == 12)
                consumer.concurrency = 3
                first, crowd.gate = crowd.gate, threading.Event()
                first.set()
                await crowd.until(lambda: crowd.ended == 12 and crowd.inside == 3)
                await crowd.until(lambda: crowd.living == 3)
                crowd.most = 0
                crowd.gate.set()
                await crowd.until(lambda: crowd.ended == 40)
                assert crowd.most <= 3
        finally:
            crowd.gate.set()

    against_a_broker(test)


def test_what_cannot_be_is_refused_and_so_is_another_thread() -> None:
    async def test(mq: Embedded) -> None:
        consumer = mq.consumer("g", listener=lambda message: None)
        consumer.subscribe("orders")
        consumer.concurrency = 5
        async with consumer:
            with pytest.raises(ClientError, match="concurrency=0; allowed are 1 to 10000"):
                consumer.concurrency = 0
            assert consumer.concurrency == 5
            with pytest.raises(NotStarted, match="was started in another event loop and is used outside of it"):
                await asyncio.to_thread(setattr, consumer, "concurrency", 7)

    against_a_broker(test)


def test_the_blocking_face_has_it_too() -> None:
    async def test(mq: Embedded) -> None:
        crowd = Crowd()

        def program() -> None:
            consumer = sync.PushConsumer("g", mq.namesrv, concurrency=1, listener=crowd.enter, consume_from="first")
            consumer.subscribe("orders")
            with consumer:
                consumer.concurrency = 4
                assert consumer.concurrency == 4
                crowd.gate.wait()

        async with mq.producer() as producer:
            for _ in range(8):
                await producer.send(Message("orders", b"x"))
        running = asyncio.ensure_future(asyncio.to_thread(program))
        try:
            await crowd.until(lambda: crowd.inside == 4)
        finally:
            crowd.gate.set()
        await running

    against_a_broker(test)
