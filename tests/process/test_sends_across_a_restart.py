"""A producer whose only broker is killed and comes back: sends wait for it instead of failing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from roquet import Message, Producer, PullConsumer, ReceivedMessage
from tests.process.programs import PATIENCE_S, Broker, Nursery, Server

COUNT = 400
AWAY_S = 5.0
PACE_S = 0.02


async def bodies(name_server: str, topic: str) -> list[bytes]:
    found: list[ReceivedMessage] = []
    async with PullConsumer("readers", name_server) as reader:
        for queue in await reader.fetch_queues(topic):
            offset = 0
            while (result := await reader.pull(queue, offset)).next_offset > offset:
                found += result.messages
                offset = result.next_offset
    return [message.body for message in sorted(found, key=lambda one: one.physical_offset)]


class Cluster:
    """A name server and a broker that can be taken away and brought back."""

    def __init__(self, nursery: Nursery, path: Path) -> None:
        self.nursery = nursery
        self.path = path
        self.name_server: Server = nursery.name_server(path / "names")
        self.address = "{}:{}".format(*self.name_server.address)
        self.broker = self.start()

    def start(self) -> Broker:
        return self.nursery.broker(self.path / "broker", {"namesrvAddr": self.address, "registerBrokerTimeoutMills": "6000"})

    async def restart(self, after_s: float) -> None:
        self.broker.kill()
        await asyncio.sleep(after_s)  # it is away for so long: that is the fault
        self.broker = await asyncio.to_thread(self.start)

    def stop(self) -> None:
        self.broker.kill()
        self.name_server.kill()


async def registered(address: str, topic: str) -> None:
    async with asyncio.timeout(PATIENCE_S), Producer("maker", address) as maker:
        while True:
            try:
                await maker.create_topic(topic, 4)
                return
            except Exception:
                await asyncio.sleep(0.05)


def test_a_broker_that_is_away_for_five_seconds_loses_no_send(nursery: Nursery, tmp_path: Path) -> None:
    cluster = Cluster(nursery, tmp_path)

    async def scenario() -> None:
        await registered(cluster.address, "t")
        async with asyncio.timeout(PATIENCE_S), Producer("p", cluster.address, delivery_timeout_ms=300_000) as producer:
            await producer.send(Message("t", b"first"))
            sends = []
            for number in range(COUNT):
                if number == COUNT // 4:
                    restarting = asyncio.create_task(cluster.restart(AWAY_S))
                sends.append(asyncio.create_task(producer.send(Message("t", b"%d" % number))))
                await asyncio.sleep(PACE_S)
            await restarting
            receipts = await asyncio.gather(*sends)
        assert all(receipt.ok for receipt in receipts)
        assert set(await bodies(cluster.address, "t")) == {b"first", *(b"%d" % number for number in range(COUNT))}

    try:
        asyncio.run(scenario())
    finally:
        cluster.stop()


def test_sends_with_one_key_wait_too_and_stay_in_order(nursery: Nursery, tmp_path: Path) -> None:
    cluster = Cluster(nursery, tmp_path)

    async def scenario() -> None:
        await registered(cluster.address, "t")
        async with asyncio.timeout(PATIENCE_S), Producer("p", cluster.address, delivery_timeout_ms=300_000) as producer:
            await producer.send(Message("t", b"0"), key="account")
            restarting = asyncio.create_task(cluster.restart(1.0))
            sends = []
            for number in range(1, COUNT):
                sends.append(asyncio.create_task(producer.send(Message("t", b"%d" % number), key="account")))
                await asyncio.sleep(0.005)
            await restarting
            receipts = await asyncio.gather(*sends)
        assert len({receipt.queue for receipt in receipts}) == 1
        found = await bodies(cluster.address, "t")
        # A send whose answer got lost is stored twice; what came first for each is in order.
        assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(COUNT)]

    try:
        asyncio.run(scenario())
    finally:
        cluster.stop()
