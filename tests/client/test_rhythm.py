"""How often a client polls, greets, rebalances and locks: as its members ask, and the shortest pause of all holds."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import roquet
from roquet.client.core.inner_producer import inner_producer
from roquet.client.core.instance import ClientCore
from roquet.client.core.lite_pull import LitePullSettings
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.push_consumer import PushConsumerSettings
from roquet.errors import ClientError
from roquet.message import Message
from tests.client.fakes import FakeCluster
from tests.client.members import Member, cluster_with
from tests.client.programs import PATIENCE_S

ROUTE, HEARTBEAT, MEMBERS, LOCK, PROGRESS = 105, 34, 38, 41, 15
A_MINUTE = 60_000


def count(cluster: FakeCluster, code: int, ms: int = A_MINUTE) -> int:
    """Requests of this code in the time that comes."""
    cluster.asked.clear()
    cluster.advance(ms, 100)
    return len(cluster.requests(code))


def sender(client: ClientCore, cluster: FakeCluster, group: str = "p", **settings: Any) -> ProducerCore:
    """A producer that has sent to topic t."""
    made = ProducerCore(client, group, ProducerSettings(**settings))
    made.start()
    made.send(Message("t", b"x"), lambda result: None)
    cluster.run()
    return made


def close(cluster: FakeCluster, producer: ProducerCore) -> None:
    producer.client.tasks.start(producer.close())
    cluster.run()


def test_usually_routes_are_polled_and_brokers_greeted_twice_a_minute() -> None:
    cluster, _ = cluster_with(1)
    sender(cluster.client(), cluster)
    assert (count(cluster, ROUTE), count(cluster, HEARTBEAT)) == (2, 2)


def test_a_member_may_ask_for_more_and_then_all_of_its_client_have_it() -> None:
    cluster, _ = cluster_with(1)
    client = cluster.client()
    sender(client, cluster, "slow")
    cluster.advance(29_000, 100)
    quick = sender(client, cluster, "quick", route_poll_ms=500, heartbeat_ms=1_000)
    assert (count(cluster, ROUTE), count(cluster, HEARTBEAT)) == (120, 60)
    close(cluster, quick)
    assert (count(cluster, ROUTE), count(cluster, HEARTBEAT)) == (2, 2), "when it has gone, its rhythm has too"


def test_a_rhythm_is_not_late_because_others_come_and_go() -> None:
    cluster, _ = cluster_with(1)
    client = cluster.client()
    sender(client, cluster, "usual")
    cluster.asked.clear()
    for _ in range(12):
        cluster.advance(4_000, 100)
        close(cluster, sender(client, cluster, "guest", route_poll_ms=3_600_000 - 1))
        cluster.advance(1_000, 100)
        close(cluster, sender(client, cluster, "guest", route_poll_ms=29_999))
    assert len(cluster.requests(ROUTE)) == 2


def test_a_longer_pause_holds_although_a_consumer_has_a_producer_of_its_own() -> None:
    cluster, _ = cluster_with(1)
    member = Member(cluster, route_poll_ms=120_000, heartbeat_ms=60_000).start()
    inner_producer(member.core.client)
    cluster.run()
    assert count(cluster, HEARTBEAT) == 1
    assert count(cluster, ROUTE) == 2, "one of each topic"
    assert count(cluster, ROUTE) == 0


def test_a_consumer_rebalances_as_often_as_it_is_told() -> None:
    cluster, _ = cluster_with(1)
    Member(cluster, rebalance_ms=1_000).start()
    cluster.advance(500)  # as it starts it does so out of turn, too
    assert count(cluster, MEMBERS) == 120, "for its topic, and for its retry topic"


def test_it_writes_its_progress_as_often_as_it_is_told() -> None:
    cluster, [queue] = cluster_with(1)
    Member(cluster, persist_ms=300).start()
    cluster.append(queue, b"x")
    cluster.advance(200)
    assert not cluster.requests(PROGRESS)
    cluster.advance(100)
    assert len(cluster.requests(PROGRESS)) == 1


def test_an_orderly_one_confirms_its_locks_as_often_as_it_is_told() -> None:
    cluster, _ = cluster_with(1)
    Member(cluster, orderly=True, lock_ms=2_000).start()
    cluster.advance(1_000)
    assert count(cluster, LOCK, 20_000) == 10, "all queues of a broker in one request"


@pytest.mark.parametrize(
    ("kind", "name", "value", "allowed"),
    [
        (ProducerSettings, "route_poll_ms", 99, "100 to 3600000"),
        (ProducerSettings, "heartbeat_ms", 60_001, "100 to 60000"),
        (PushConsumerSettings, "rebalance_ms", 0, "100 to 3600000"),
        (PushConsumerSettings, "lock_ms", 30_000, "100 to 25000"),
        (LitePullSettings, "persist_ms", -1, "100 to 3600000"),
        (LitePullSettings, "route_poll_ms", 1, "100 to 3600000"),
    ],
)
def test_a_pause_that_cannot_work_is_refused(kind: type, name: str, value: int, allowed: str) -> None:
    with pytest.raises(ClientError, match=f"{name}={value}; allowed are {allowed}"):
        kind(**{name: value})


# -- through the front door


def test_a_producer_that_polls_often_soon_finds_a_queue_that_was_added() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq, mq.admin() as admin:
            await admin.create_topic("orders", read_queues=1, write_queues=1)
            async with mq.producer(route_poll_ms=100, heartbeat_ms=500) as producer:
                assert (await producer.send(Message("orders", b"x"))).queue.queue_id == 0
                await admin.create_topic("orders", read_queues=2, write_queues=2)
                begun = time.monotonic()
                while (await producer.send(Message("orders", b"x"))).queue.queue_id == 0:
                    await asyncio.sleep(0.01)
                assert time.monotonic() - begun < 25, "usually it takes up to half a minute"

    asyncio.run(scenario())
