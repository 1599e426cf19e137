"""Progress in a store of the user's own: what is loaded and saved, in which order, and what happens when it fails."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

import roquet
from roquet import LitePullConsumer, Message, MessageQueue, PushConsumer, ReceivedMessage
from roquet.client import sync
from roquet.client.core.lite_pull import LitePullCore, LitePullSettings
from roquet.client.core.push_consumer import FROM_FIRST
from roquet.embed import Embedded
from roquet.errors import ClientError, RoquetError
from tests.client.fakes import FakeCluster, Results
from tests.client.members import GROUP, Member, cluster_with
from tests.client.programs import PATIENCE_S


class MemoryStore:
    """A ProgressStore of the core that answers when it is told to."""

    def __init__(self, **offsets: int) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.calls: list[str] = []
        self.failure: RoquetError | None = None
        self.waits = False
        self.waiting: list[Callable[[], None]] = []

    def load(self, queue: MessageQueue, done: Callable[[int | RoquetError], None]) -> None:
        self.calls.append(f"load {queue.topic}:{queue.queue_id}")
        self._answer(lambda: done(self.failure or self.offsets.get(queue, -1)))

    def save(self, offsets: Mapping[MessageQueue, int], done: Callable[[RoquetError | None], None]) -> None:
        self.calls.append("save " + " ".join(f"{queue.topic}:{queue.queue_id}@{offset}" for queue, offset in sorted(offsets.items())))

        def answer() -> None:
            if self.failure is None:
                self.offsets.update(offsets)
            done(self.failure)

        self._answer(answer)

    def _answer(self, answer: Callable[[], None]) -> None:
        self.waiting.append(answer)
        if not self.waits:
            self.go()

    def go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer()

    def saves(self) -> list[str]:
        return [call for call in self.calls if call.startswith("save")]


# -- the core


def test_a_member_begins_where_the_store_says_and_saves_what_changed() -> None:
    cluster, [queue] = cluster_with(1)
    for number in range(5):
        cluster.append(queue, b"%d" % number)
    store = MemoryStore()
    store.offsets[queue] = 2
    member = Member(cluster, store=store).start()
    assert member.bodies == [b"2", b"3", b"4"]
    cluster.advance(5_000)
    assert store.saves() == ["save t:0@5"]
    cluster.advance(10_000)
    assert store.saves() == ["save t:0@5"], "nothing changed"
    cluster.append(queue, b"5")
    cluster.run()
    member.close()
    assert store.offsets[queue] == 6
    assert not cluster.requests(15), "brokers are not asked to keep it"
    assert not cluster.requests(14), "nor how far it was"


def test_where_the_group_never_was_consume_from_decides() -> None:
    cluster, [queue] = cluster_with(1)
    cluster.append(queue, b"before")
    store = MemoryStore()
    Member(cluster, store=store).start()
    cluster.advance(5_000)
    assert store.offsets[queue] == 1


def test_the_store_is_called_once_at_a_time_and_what_changes_meanwhile_goes_with_the_next_save() -> None:
    cluster, [queue] = cluster_with(1)
    store = MemoryStore()
    Member(cluster, store=store, persist_ms=100).start()
    store.waits = True
    for _ in range(3):
        cluster.append(queue, b"x")
        cluster.advance(500)
    assert store.saves() == ["save t:0@1"]
    store.go()
    cluster.advance(100)
    assert store.saves() == ["save t:0@1", "save t:0@3"]


def test_a_save_that_fails_is_tried_again_and_said(caplog: pytest.LogCaptureFixture) -> None:
    cluster, [queue] = cluster_with(1)
    store = MemoryStore()
    Member(cluster, store=store, persist_ms=1_000).start()
    store.failure = ClientError("save() failed")
    cluster.append(queue, b"x")
    cluster.advance(2_500)
    assert store.saves() == ["save t:0@1"] * 2
    assert "progress of group g in 1 queues is not saved: save() failed; it is tried again" in caplog.text
    store.failure = None
    cluster.advance(1_000)
    assert store.offsets[queue] == 1


def test_a_load_that_fails_is_tried_again_and_nothing_is_read_before(caplog: pytest.LogCaptureFixture) -> None:
    cluster, [queue] = cluster_with(1)
    cluster.append(queue, b"0")
    store = MemoryStore()
    store.failure = ClientError("load() failed")
    member = Member(cluster, store=store).start()
    assert not member.seen
    assert "cannot begin with" in caplog.text
    store.failure = None
    cluster.advance(4_000)
    assert member.bodies == [b"0"]


def test_a_store_that_does_not_answer_has_failed_after_thirty_seconds() -> None:
    cluster, [queue] = cluster_with(1)
    store = MemoryStore()
    store.waits = True
    member = Member(cluster, store=store)
    member.core.start()
    cluster.append(queue, b"x")
    cluster.advance(29_000, 100)
    assert len(store.calls) == 1
    store.waits, store.waiting = False, []
    cluster.advance(10_000, 100)
    assert member.bodies == [b"x"]


def test_a_queue_that_goes_is_saved_before_it_is_loaded_again() -> None:
    cluster, queues = cluster_with(2)
    store = MemoryStore()
    member = Member(cluster, store=store).start()
    for queue in queues:
        cluster.append(queue, b"x")
    cluster.run()
    store.calls.clear()
    store.waits = True
    member.core.drop(queues[0])
    member.core.rebalance()
    cluster.run()
    assert store.calls == ["save t:0@1"]
    store.go()
    cluster.run()
    assert store.calls == ["save t:0@1", "load t:0"]


def test_an_orderly_queue_moves_when_its_progress_is_saved_and_begins_exactly_there() -> None:
    cluster, queues = cluster_with(2)
    store = MemoryStore()
    one = Member(cluster, "c1", store=store, orderly=True).start()
    for queue in queues:
        for number in range(3):
            cluster.append(queue, b"%d" % number)
    cluster.run()
    two = Member(cluster, "c2", store=store, orderly=True).start()
    store.waits = True
    cluster.advance(30_000, 100)
    assert not two.share, "its last owner has not saved"
    store.waits = False
    store.go()
    cluster.advance(40_000, 100)
    assert len(one.share) == len(two.share) == 1
    assert two.seen == []
    for queue in queues:
        cluster.append(queue, b"new")
    cluster.advance(1_000)
    assert (one.bodies[6:], two.bodies) == ([b"new"], [b"new"])


def test_after_a_broken_connection_an_orderly_member_asks_the_store_whether_somebody_else_was_there() -> None:
    cluster, [queue] = cluster_with(1)
    store = MemoryStore()
    member = Member(cluster, store=store, orderly=True).start()
    cluster.append(queue, b"0")
    cluster.append(queue, b"1")
    cluster.advance(6_000, 100)
    assert member.core.locks is not None
    store.offsets[queue] = 4  # another member went on
    for number in range(2, 6):
        cluster.append(queue, b"%d" % number)
    member.core.locks.doubt("a")
    cluster.advance(25_000, 100)
    assert member.bodies == [b"0", b"1", b"4", b"5"]


def test_broadcasting_may_have_a_store_in_place_of_its_file() -> None:
    cluster, [queue] = cluster_with(1)
    store = MemoryStore()
    member = Member(cluster, store=store, broadcasting=True).start()
    cluster.append(queue, b"x")
    cluster.run()
    member.close()
    assert store.offsets[queue] == 1


def test_an_operators_reset_reaches_the_store() -> None:
    cluster, [queue] = cluster_with(1)
    for number in range(4):
        cluster.append(queue, b"%d" % number)
    store = MemoryStore()
    member = Member(cluster, store=store).start()
    cluster.advance(5_000)
    member.decide = None
    member.core._restart(queue, 1)
    cluster.run()
    assert store.offsets[queue] == 1
    assert member.bodies[4:] == [b"1", b"2", b"3"]


def lite(cluster: FakeCluster, store: MemoryStore, **changes: Any) -> LitePullCore:
    core = LitePullCore(cluster.client(), GROUP, LitePullSettings(**{"consume_from": FROM_FIRST, **changes}), store=store)
    core.subscribe("t")
    core.start()
    cluster.run()
    return core


def test_a_lite_consumer_commits_to_the_store() -> None:
    cluster, queues = cluster_with(2)
    store = MemoryStore()
    core = lite(cluster, store, auto_commit=False)
    for queue in queues:
        cluster.append(queue, b"x")
    cluster.run()
    results = Results()
    core.client.tasks.start(core.commit({queues[0]: 1, queues[1]: 1}), results.append)
    core.client.tasks.start(core.committed(queues[0]), results.append)
    cluster.run()
    assert results == [None, 1]
    assert store.saves() == ["save t:0@1 t:1@1"], "both at once"
    elsewhere = MessageQueue("t", "a", 9)
    core.client.tasks.start(core.commit({elsewhere: 3}), results.append)
    cluster.run()
    assert store.offsets[elsewhere] == 3
    assert elsewhere not in core.offsets.table
    store.failure = ClientError("no")
    core.client.tasks.start(core.commit({queues[0]: 2}), results.append)
    assert results[-1] is store.failure
    assert not cluster.requests(15)


# -- through the front door


def parts(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


class Progress:
    """What a user would write: a table in the database that has the rest, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.threads: set[str] = set()
        with sqlite3.connect(path) as database:
            database.execute(
                "create table if not exists progress (who, topic, broker, queue, next, primary key (who, topic, broker, queue))"
            )

    def load(self, group: str, queue: MessageQueue) -> int | None:
        self.threads.add(threading.current_thread().name)
        with sqlite3.connect(self.path) as database:
            found = database.execute(
                "select next from progress where who = ? and topic = ? and broker = ? and queue = ?", (group, *parts(queue))
            ).fetchone()
        return None if found is None else int(found[0])

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.threads.add(threading.current_thread().name)
        with sqlite3.connect(self.path) as database:
            rows = [(group, *parts(queue), offset) for queue, offset in offsets.items()]
            database.executemany("insert or replace into progress values (?, ?, ?, ?, ?)", rows)

    def all(self) -> dict[str, int]:
        with sqlite3.connect(self.path) as database:
            return dict(database.execute("select topic, sum(next) from progress group by topic"))


class AsyncProgress:
    def __init__(self) -> None:
        self.kept: dict[tuple[str, MessageQueue], int] = {}
        self.fails = False

    async def load(self, group: str, queue: MessageQueue) -> int | None:
        await asyncio.sleep(0)
        return self.kept.get((group, queue))

    async def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise OSError("no space left")
        self.kept.update({(group, queue): offset for queue, offset in offsets.items()})


def against_a_broker(test: Callable[[Embedded], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq, mq.admin() as admin:
            await admin.create_topic("orders", read_queues=2, write_queues=2)
            await test(mq)

    asyncio.run(scenario())


async def send(mq: Embedded, *bodies: bytes, **options: Any) -> None:
    async with mq.producer(**options) as producer:
        for body in bodies:
            await producer.send(Message("orders", body))


async def consumed(consumer: PushConsumer, seen: list[bytes], count: int) -> None:
    async with consumer:
        while len(seen) < count:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("namespace", ["", "blue"])
def test_a_restarted_consumer_goes_on_where_its_database_says(tmp_path: Path, namespace: str) -> None:
    async def test(mq: Embedded) -> None:
        seen: list[bytes] = []
        progress = Progress(tmp_path / "mine.db")

        def consumer() -> PushConsumer:
            made = mq.consumer("g", consume_from="first", offset_store=progress, namespace=namespace)
            made.subscribe("orders", "*", lambda message: seen.append(message.body))
            return made

        await send(mq, b"1", b"2", b"3", namespace=namespace)
        await consumed(consumer(), seen, 3)
        assert progress.all()["orders"] == 3
        assert progress.all().keys() <= {"orders", "%RETRY%g"}, "in the user's names"
        await send(mq, b"4", namespace=namespace)
        await consumed(consumer(), seen, 4)
        assert sorted(seen) == [b"1", b"2", b"3", b"4"]
        assert all(name.startswith("roquet-g-own") for name in progress.threads), "plain methods do not stop the loop"
        with sqlite3.connect(progress.path) as database:
            database.execute("update progress set next = 0 where topic = 'orders'")
        await consumed(consumer(), seen, 8)
        assert sorted(seen[4:]) == [b"1", b"2", b"3", b"4"], "the database decides, not the broker"

    against_a_broker(test)


def test_a_lite_consumer_with_an_async_store(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: Embedded) -> None:
        await send(mq, b"1", b"2")
        progress = AsyncProgress()
        consumer = LitePullConsumer("g", mq.namesrv, consume_from="first", auto_commit=False, offset_store=progress)
        consumer.subscribe("orders")
        async with consumer:
            polled = 0
            while polled < 2:
                polled += len(await consumer.poll(60_000))
            await consumer.commit()
            assert sum(progress.kept.values()) == 2
            queue = consumer.assignment[0]
            assert await consumer.committed(queue) == progress.kept["g", queue]
            progress.fails = True
            with pytest.raises(ClientError, match=r"save\(\) of its offset store failed with OSError: no space left"):
                await consumer.commit()

    against_a_broker(test)


def test_the_blocking_face_takes_a_store_too(tmp_path: Path) -> None:
    async def test(mq: Embedded) -> None:
        await send(mq, b"1", b"2")
        progress = Progress(tmp_path / "mine.db")

        def program() -> None:
            consumer = sync.LitePullConsumer("g", mq.namesrv, consume_from="first", offset_store=progress)
            consumer.subscribe("orders")
            with consumer:
                polled = 0
                while polled < 2:
                    polled += len(consumer.poll(60_000))

        await asyncio.to_thread(program)
        assert progress.all() == {"orders": 2}

    against_a_broker(test)


def test_a_store_that_fails_does_not_stop_the_consumer_and_its_error_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: Embedded) -> None:
        seen: list[bytes] = []
        progress = AsyncProgress()
        progress.fails = True
        consumer = mq.consumer("g", consume_from="first", offset_store=progress, persist_ms=100)

        @consumer.on("orders")
        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        async with consumer:
            await send(mq, b"1")
            while "OSError: no space left" not in caplog.text:
                await asyncio.sleep(0.005)
            await send(mq, b"2")
            while len(seen) < 2:
                await asyncio.sleep(0.005)
            progress.fails = False
        assert sum(progress.kept.values()) == 2
        [record, *_] = [one for one in caplog.records if one.levelno == logging.WARNING and "not saved" in one.getMessage()]
        assert record.exc_info is not None, "with where it was raised"

    against_a_broker(test)


class Odd(AsyncProgress):
    async def load(self, group: str, queue: MessageQueue) -> Any:
        return "17"


def test_what_is_no_offset_is_refused_and_nothing_is_consumed(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: Embedded) -> None:
        await send(mq, b"1")
        consumer = mq.consumer("g", consume_from="first", offset_store=Odd(), listener=lambda message: None)
        consumer.subscribe("orders")
        async with consumer:
            assert consumer.queues == []
        assert "load() of its offset store returned '17'; expected is the offset of the next message, or None" in caplog.text

    against_a_broker(test)


@pytest.mark.parametrize("wrong", [Progress, object(), {}])
def test_what_is_no_store_is_refused(wrong: Any) -> None:
    for kind in (PushConsumer, LitePullConsumer):
        with pytest.raises(ClientError, match=r"offset_store is .*; expected is an object with load\(group, queue\) and save"):
            kind("g", offset_store=wrong)
