"""format("rocketmq") as a stream: checkpoints, restarts, and brokers that come and go.

Starting queries is slow, so a few stories are played once and the tests look at what happened.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from roquet import Admin, Message, Producer
from roquet.embed import SMALL, name_server, one_broker, read_settings
from roquet.message import MessageQueue
from roquet.spark import offsets_behind_latest
from tests.spark.conftest import Servers

PATIENCE_S = 600.0

Place = tuple[int, int]
"""Queue id and offset of a row."""


@dataclass
class Runs:
    """Queries that share a checkpoint, and the rows that each batch brought."""

    spark: Any
    where: dict[str, str]
    checkpoint: Path
    batches: list[tuple[int, list[Place]]] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)

    def run(self, **options: str) -> list[tuple[int, list[Place]]]:
        """All that is there now: (batch id, rows) of every batch."""
        before = len(self.batches)
        query = self.start(**options, available_now="yes")
        assert query.awaitTermination(PATIENCE_S)
        self.progress += query.recentProgress
        return self.batches[before:]

    def start(self, available_now: str = "", schema: str = "queue_id int, queue_offset bigint", **options: str) -> Any:
        reading = self.spark.readStream.format("rocketmq").options(**(self.where | options)).schema(schema).load()
        writing = reading.writeStream.foreachBatch(self.keep).option("checkpointLocation", str(self.checkpoint))
        return (writing.trigger(availableNow=True) if available_now else writing).start()

    def keep(self, frame: Any, number: int) -> None:
        self.batches.append((number, sorted((row.queue_id, row.queue_offset) for row in frame.collect())))

    @property
    def rows(self) -> list[Place]:
        return sorted(row for _, rows in self.batches for row in rows)

    def until(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.rows) < count:
            assert time.monotonic() < deadline, f"{len(self.rows)} of {count} rows came"
            time.sleep(0.05)

    def forget_last_commit(self) -> None:
        """As if the process had died before the batch was marked as done."""
        last = max(int(file.name) for file in (self.checkpoint / "commits").iterdir() if file.name.isdigit())
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def send(servers: Servers, topic: str, counts: dict[int, int], broker: str = "broker-a") -> None:
    """So many to each queue."""

    async def work() -> None:
        async with Producer("stream_tests", servers.namesrv) as producer:
            for number, count in counts.items():
                await producer.send_batch([Message(topic, b"x")] * count, queue=MessageQueue(topic, broker, number))

    servers.run(work())


def places(counts: dict[int, tuple[int, int]]) -> list[Place]:
    return [(number, offset) for number, (start, stop) in sorted(counts.items()) for offset in range(start, stop)]


# A query that is started again and again.


@dataclass
class History:
    runs: Runs
    first: list[tuple[int, list[Place]]]
    second: list[tuple[int, list[Place]]]
    replayed: list[tuple[int, list[Place]]]
    group: dict[int, int]


@pytest.fixture(scope="module")
def history(spark: Any, servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> History:
    topic = servers.topic("stream_history", 2)
    where = {"namesrvAddr": servers.namesrv, "subscribe": topic, "startingOffsets": "earliest", "groupId": "stream_group"}
    runs = Runs(spark, where | {"maxOffsetsPerTrigger": "40"}, tmp_path_factory.mktemp("history"))
    send(servers, topic, {0: 90, 1: 30})
    first = runs.run()

    async def progress() -> dict[int, int]:
        async with Admin(servers.namesrv) as admin:
            return {one.queue.queue_id: one.consumer_offset for one in await admin.progress("stream_group", topic)}

    group = servers.run(progress())
    send(servers, topic, {1: 10})
    second = runs.run()
    runs.forget_last_commit()
    return History(runs, first, second, runs.run(), group)


def test_a_run_reads_what_is_there_in_batches_within_the_limit(history: History) -> None:
    assert [number for number, _ in history.first] == [0, 1, 2]
    assert [len(rows) for _, rows in history.first] == [40, 40, 40]
    assert sorted(row for _, rows in history.first for row in rows) == places({0: (0, 90), 1: (0, 30)})


def test_the_limit_is_shared_by_backlog(history: History) -> None:
    assert history.first[0][1] == places({0: (0, 30), 1: (0, 10)})


def test_a_restart_goes_on_where_the_last_run_ended(history: History) -> None:
    assert history.second == [(3, places({1: (30, 40)}))]


def test_a_batch_that_was_not_marked_as_done_is_read_again_and_is_the_same(history: History) -> None:
    assert history.replayed == history.second


def test_the_query_shows_its_lag(history: History) -> None:
    def of(text: str) -> int:
        return sum(json.loads(text)["stream_history"]["broker-a"].values())

    sources = [one.sources[0] for one in history.runs.progress if one.numInputRows][:3]
    assert [of(one.latestOffset) - of(one.endOffset) for one in sources] == [80, 40, 0]


def test_the_query_shows_how_far_its_queues_are_behind_as_kafkas_source_does(history: History) -> None:
    reports = [one for one in history.runs.progress if one.numInputRows][:3]
    names = ("minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
    # Two queues, of 90 and 30; batches take 30 and 10.
    assert [tuple(offsets_behind_latest(one)[name] for name in names) for one in reports] == [(20, 60, 40.0), (10, 30, 20.0), (0, 0, 0.0)]
    as_json = [json.loads(one.json) for one in reports]  # as a listener outside of Python has it
    assert [offsets_behind_latest(one) for one in as_json] == [offsets_behind_latest(one) for one in reports]


def test_spark_lets_no_python_source_fill_its_metrics(history: History) -> None:
    """When this fails, Spark has learned it: report offsets_behind_latest there, and say so in docs/spark.md."""
    assert [one.sources[0].metrics for one in history.runs.progress] == [{}] * len(history.runs.progress)


def test_the_group_shows_all_that_was_read_when_the_run_ends(history: History) -> None:
    assert history.group == {0: 90, 1: 30}


def test_offsets_in_the_checkpoint_are_sorted_text(history: History) -> None:
    last = (history.runs.checkpoint / "offsets" / "2").read_text().splitlines()[-1]
    assert last == '{"stream_history": {"broker-a": {"0": 90, "1": 30}}}'


# A query that keeps running.


@dataclass
class Town:
    """A name server that stays, and a broker that can be stopped and started."""

    loop: asyncio.AbstractEventLoop
    root: Path
    namesrv: str = ""
    _broker: tuple[asyncio.Event, asyncio.Task[None]] | None = None

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def _begin(self, living: Callable[[], AbstractAsyncContextManager[str]]) -> tuple[str, asyncio.Event, asyncio.Task[None]]:
        ready: asyncio.Future[str] = self.loop.create_future()
        stop = asyncio.Event()

        async def live() -> None:
            async with living() as address:
                ready.set_result(address)
                await stop.wait()

        task = asyncio.ensure_future(live())
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        return ready.result(), stop, task

    def open(self) -> None:
        self.namesrv, self._stop, self._task = self.run(self._begin(lambda: name_server(self.root)))
        self.start_broker()

    def start_broker(self) -> None:
        settings = read_settings(SMALL).replace(namesrv_addr=self.namesrv, store_path_root_dir=str(self.root / "broker-0"))
        _, stop, task = self.run(self._begin(lambda: one_broker(settings)))
        self._broker = (stop, task)

    def stop_broker(self) -> None:
        if self._broker is None:
            return
        stop, task = self._broker
        self._broker = None

        async def end() -> None:
            stop.set()
            await task

        self.run(end())

    def close(self) -> None:
        self.stop_broker()

        async def end() -> None:
            self._stop.set()
            await self._task

        self.run(end())


@pytest.fixture(scope="module")
def town(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(servers.loop, tmp_path_factory.mktemp("town"))
    made.open()
    yield made
    made.close()


@dataclass
class Story:
    at_start: list[Place]
    added: list[Place]
    after_return: list[Place]
    still_running: bool


@pytest.fixture(scope="module")
def story(spark: Any, town: Town, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Messages, then two queues more, then the broker leaves and returns at another address, then messages again."""
    topic = "stream_story"
    servers = Servers(town.loop, town)  # type: ignore[arg-type]
    servers.topic(topic, 2)
    send(servers, topic, {0: 5})
    runs = Runs(spark, {"namesrvAddr": town.namesrv, "subscribe": topic}, tmp_path_factory.mktemp("story"))
    query = runs.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (runs.checkpoint / "offsets" / "0").exists() and not query.status["isDataAvailable"] and not query.recentProgress:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        send(servers, topic, {0: 3, 1: 4})
        runs.until(7)
        at_start = runs.rows
        servers.topic(topic, 4)
        send(servers, topic, {2: 2, 3: 1})
        runs.until(10)
        added = runs.rows[:]
        town.stop_broker()
        town.start_broker()
        send(servers, topic, {0: 1, 3: 2})
        runs.until(13)
        return Story(at_start, added, runs.rows, query.isActive)
    finally:
        query.stop()


def test_a_new_stream_begins_with_what_comes_after_it(story: Story) -> None:
    assert story.at_start == places({0: (5, 8), 1: (0, 4)})


def test_a_queue_that_is_added_is_read_from_its_first_message(story: Story) -> None:
    assert story.added == places({0: (5, 8), 1: (0, 4), 2: (0, 2), 3: (0, 1)})


def test_a_broker_that_leaves_and_returns_elsewhere_is_read_on(story: Story) -> None:
    assert story.after_return == places({0: (5, 9), 1: (0, 4), 2: (0, 2), 3: (0, 3)})
    assert story.still_running


# What goes wrong.


def test_a_topic_made_anew_fails_the_query_or_is_read_on(spark: Any, servers: Servers, tmp_path: Path) -> None:
    topic = servers.topic("stream_anew", 1)
    send(servers, topic, {0: 10})
    runs = Runs(spark, {"namesrvAddr": servers.namesrv, "subscribe": topic, "startingOffsets": "earliest"}, tmp_path / "checkpoint")
    assert len(runs.run()) == 1

    async def remove() -> None:
        async with Admin(servers.namesrv) as admin:
            await admin.delete_topic(topic)

    servers.run(remove())
    servers.topic(topic, 1)
    send(servers, topic, {0: 3})
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "spare")
    with pytest.raises(Exception, match=f"DataLost: {topic}/0 on broker-a: messages 3 to 9 were to be read .* failOnDataLoss=false"):
        runs.run()
    lenient = Runs(spark, runs.where | {"failOnDataLoss": "false"}, tmp_path / "spare")
    lenient.run()
    send(servers, topic, {0: 2})
    lenient.run()
    assert lenient.rows == [(0, 3), (0, 4)]


def test_files_are_a_stream_too(spark: Any, servers: Servers, tmp_path: Path) -> None:
    topic = servers.topic("stream_files", 2)
    send(servers, topic, {0: 6, 1: 4})
    where = {"path": str(servers.store), "subscribe": topic, "startingTimestamp": "-1 hour", "maxBytesPerTrigger": "600"}
    runs = Runs(spark, where, tmp_path / "checkpoint")
    batches = runs.run()
    assert runs.rows == places({0: (0, 6), 1: (0, 4)})
    assert len(batches) > 1


def test_mistakes_in_a_stream_show_as_a_sentence(spark: Any, servers: Servers, tmp_path: Path) -> None:
    runs = Runs(spark, {"namesrvAddr": servers.namesrv, "subscribe": "x", "maxOffsetsPerTrigger": "few"}, tmp_path)
    with pytest.raises(Exception, match="BadOption: maxOffsetsPerTrigger=few: expected a whole number of at least 1") as caught:
        runs.run()
    assert "UnboundLocalError" not in str(caught.value)
