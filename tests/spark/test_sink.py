"""The sink over real servers; through Spark where Spark has a part in it."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from roquet.client import Idempotent, PullConsumer, PushConsumer, ReceivedMessage
from roquet.embed import SMALL, name_server, one_broker, read_settings
from roquet.errors import SendFailed
from roquet.spark.encode import BadRow, id_prefix
from roquet.spark.options import BadOption
from roquet.spark.sink import BatchWriter, Sent, summary, write_batches
from roquet.spark.sink import read_settings as sink_settings
from tests.spark.conftest import Servers

DEADLINE_S = 600


def stored(servers: Servers, topic: str, count: int, namesrv: str | None = None) -> list[ReceivedMessage]:
    """All messages of the topic, queue by queue in their order, when there are at least so many."""

    async def work() -> list[ReceivedMessage]:
        async with PullConsumer("sink_tests", namesrv or servers.namesrv) as consumer:
            deadline = time.monotonic() + DEADLINE_S
            while True:
                found: list[ReceivedMessage] = []
                for queue in await consumer.fetch_queues(topic):
                    at, end = 0, await consumer.max_offset(queue)
                    while at < end:
                        result = await consumer.pull(queue, at)
                        found += result.messages
                        at = result.next_offset
                if len(found) >= count:
                    return found
                assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
                await asyncio.sleep(0.02)

    return servers.run(work())


def write(servers: Servers, batch: pa.RecordBatch, topic: str, *, partition: int = 0, **options: str) -> Sent:
    settings = sink_settings({"namesrvAddr": servers.namesrv, "topic": topic, **options})
    return write_batches(settings, iter([batch]), partition, id_prefix(topic, partition))


# -- through Spark


def test_every_column_of_a_frame_arrives(spark: Any, servers: Servers) -> None:
    servers.topic("sink_every", 4)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    columns: dict[str, Any] = {
        "body": [b"plain", b"full", b"placed", b"delayed", b"timed"],
        "topic": ["sink_every"] * 5,
        "tags": [None, "paid", None, None, "late"],
        "keys": [None, ["order-17", "c-3"], None, None, None],
        "properties": pa.array([None, [("region", "eu")], None, None, None], pa.map_(pa.string(), pa.string())),
        "delay_level": pa.array([None, None, None, 1, None], pa.int32()),
        "deliver_time": pa.array([None, None, None, None, soon], pa.timestamp("us", tz="UTC")),
        "order_key": [None, "k", None, None, None],
        "queue_id": pa.array([None, None, 3, 2, None], pa.int32()),
        "broker": [None, None, None, "broker-a", None],
        "flag": pa.array([None, 7, None, None, None], pa.int32()),
    }
    frame = spark.createDataFrame(pa.table(columns))
    frame.write.format("rocketmq").option("namesrvAddr", servers.namesrv).option("idempotencyKey", "every").mode("append").save()
    found = {one.body: one for one in stored(servers, "sink_every", 5)}
    assert sorted(found) == sorted(columns["body"])
    full = found[b"full"]
    assert (full.tags, full.keys, full.flag, full.properties["region"]) == ("paid", ["order-17", "c-3"], 7, "eu")
    assert full.properties["__SHARDINGKEY"] == "k"
    assert full.queue_id == ord("k") % 4
    assert found[b"placed"].queue_id == 3
    assert found[b"delayed"].queue_id == 2
    assert found[b"timed"].store_timestamp >= int(soon.timestamp() * 1000)
    assert len({one.message_id for one in found.values()}) == 5
    assert all(len(one.message_id) == 32 for one in found.values())


def test_a_replayed_batch_of_a_stream_has_the_same_ids_and_is_consumed_once(spark: Any, servers: Servers, tmp_path: Path) -> None:
    servers.topic("sink_replay", 2)
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    spark.range(0, 40, 1, 2).selectExpr("cast(id as string) as body").write.text(str(data))

    def stream() -> None:
        (
            spark.readStream.schema("body string").text(str(data))
            .writeStream.format("rocketmq").option("namesrvAddr", servers.namesrv).option("topic", "sink_replay")
            .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination(DEADLINE_S)
        )  # fmt: skip

    stream()
    first = {one.message_id: one.body for one in stored(servers, "sink_replay", 40)}
    assert len(first) == 40
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    stream()
    both = stored(servers, "sink_replay", 80)
    assert len(both) == 80
    assert {one.message_id: one.body for one in both} == first

    async def consume() -> list[bytes]:
        handled: list[bytes] = []
        listener = Idempotent(lambda one: handled.append(one.body))
        consumer = PushConsumer("sink_replay_group", servers.namesrv, consume_from="first")
        consumer.subscribe("sink_replay", function=listener)
        async with asyncio.timeout(DEADLINE_S), consumer:
            while len(handled) + listener.dropped < 80:
                await asyncio.sleep(0.01)
        return handled

    assert sorted(servers.run(consume())) == sorted(first.values())


def test_a_failure_in_a_job_names_the_row_and_a_topic_cannot_be_overwritten(spark: Any, servers: Servers) -> None:
    servers.topic("sink_bad")
    frame = spark.createDataFrame(pa.table({"keys": ["k0", "order-17"], "body": [b"x", None]})).coalesce(1)
    write = frame.write.format("rocketmq").option("namesrvAddr", servers.namesrv).option("topic", "sink_bad")
    with pytest.raises(Exception, match=r"row 1 of partition 0 \(keys 'order-17'\): the body is null"):
        write.mode("append").save()
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        write.mode("overwrite").save()
    with pytest.raises(Exception, match="the rocketmq sink has no option topics; did you mean topic"):
        write.option("topics", "x").mode("append").save()


# -- without Spark: what a task does


def test_rows_of_one_key_stay_in_their_order_over_many_batches(servers: Servers) -> None:
    servers.topic("sink_ordered", 4)
    batches = [
        pa.record_batch({"body": [f"{number}" for number in range(start, start + 500)], "order_key": [f"k{n % 7}" for n in range(500)]})
        for start in range(0, 5_000, 500)
    ]
    settings = sink_settings({"namesrvAddr": servers.namesrv, "topic": "sink_ordered", "batchBytes": "4000"})
    sent = write_batches(settings, iter(batches), 0, id_prefix("ordered"))
    assert sent.rows == 5_000
    by_key: dict[str, list[ReceivedMessage]] = defaultdict(list)
    for one in stored(servers, "sink_ordered", 5_000):
        by_key[one.properties["__SHARDINGKEY"]].append(one)
    assert len(by_key) == 7
    for found in by_key.values():
        assert len({one.queue_id for one in found}) == 1
        numbers = [int(one.body) for one in found]
        assert numbers == sorted(numbers)


def test_rows_without_a_key_are_spread_over_the_queues(servers: Servers) -> None:
    servers.topic("sink_spread", 4)
    write(servers, pa.record_batch({"body": [b"x" * 100] * 1_000}), "sink_spread", batchBytes="10000")
    assert {one.queue_id for one in stored(servers, "sink_spread", 1_000)} == {0, 1, 2, 3}


def test_a_topic_that_does_not_exist_is_created_by_the_first_row(servers: Servers) -> None:
    write(servers, pa.record_batch({"body": ["x"]}), "sink_created")
    assert [one.body for one in stored(servers, "sink_created", 1)] == [b"x"]


def test_a_row_may_be_as_large_as_a_broker_takes(servers: Servers) -> None:
    servers.topic("sink_large", 1)
    large = b"x" * (4 << 20)
    write(servers, pa.record_batch({"body": [b"1", large, b"2"], "queue_id": [0, 0, 0]}), "sink_large")
    assert [one.body for one in stored(servers, "sink_large", 3)] == [b"1", large, b"2"]


def test_a_row_that_cannot_be_sent_fails_the_task(servers: Servers) -> None:
    servers.topic("sink_misplaced", 4)
    with pytest.raises(BadRow, match="row 0 of partition 5: topic 'sink_misplaced' has no queue 9"):
        write(servers, pa.record_batch({"body": ["x"], "queue_id": [9]}), "sink_misplaced", partition=5)


def test_signed_requests_are_whole(servers: Servers) -> None:
    servers.topic("sink_signed", 1)
    batch = pa.record_batch({"body": ["1", "2"], "delay_level": [0, 1]})
    write(servers, batch, "sink_signed", accessKey="someone", secretKey="secret")
    assert sorted(one.body for one in stored(servers, "sink_signed", 2)) == [b"1", b"2"]


def test_a_task_that_is_tried_again_gets_the_key_of_its_job_and_another_job_another() -> None:
    options = {"namesrvAddr": "a:1", "topic": "t"}
    job, other = BatchWriter(sink_settings(options)), BatchWriter(sink_settings(options))
    assert pickle.loads(pickle.dumps(job)).key == job.key != other.key
    assert BatchWriter(sink_settings({**options, "idempotencyKey": "2026-11-15"})).key == "2026-11-15"


def test_a_summary_counts_rows_repetitions_and_tasks() -> None:
    text = summary("written", [Sent(0, 10, 2, 1, 0, 0.5), None, Sent(1, 5, 1, 0, 5, 1.5)])
    assert text.startswith("written: 15 rows in 3 requests by 2 tasks, the longest took 1.5 s, 1 attempts were repeated")
    assert text.endswith("5 rows were stored less safely than the broker is set to")


class Away:
    """A name server, and a broker that can be stopped and started again."""

    def __init__(self, servers: Servers, root: Path) -> None:
        self.servers = servers
        self.server, self.broker = AsyncExitStack(), AsyncExitStack()
        self.namesrv = servers.run(self.server.enter_async_context(name_server(root)))
        self.settings = read_settings(SMALL).replace(namesrv_addr=self.namesrv, store_path_root_dir=str(root / "broker"))

    def start(self) -> None:
        address = self.servers.run(self.broker.enter_async_context(one_broker(self.settings)))
        self.settings = self.settings.replace(listen_port=int(address.rpartition(":")[2]))

    def stop(self) -> None:
        self.servers.run(self.broker.aclose())

    def close(self) -> None:
        self.stop()
        self.servers.run(self.server.aclose())


@pytest.fixture
def away(servers: Servers, tmp_path: Path) -> Iterator[Away]:
    made = Away(servers, tmp_path)
    made.start()
    yield made
    made.close()


def test_a_broker_that_is_away_for_a_moment_delays_its_rows_and_no_more(away: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = time.sleep
    down = False

    def back_when_everybody_waits(seconds: float) -> None:
        nonlocal down
        if down:
            down = False
            away.start()
        sleep(seconds)

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal down
        yield pa.record_batch({"body": ["0", "1"], "order_key": ["k", "k"]})
        away.stop()
        down = True
        yield pa.record_batch({"body": ["2", "3"], "order_key": ["k", "k"]})
        yield pa.record_batch({"body": ["4", "5"], "order_key": ["k", "k"]})

    monkeypatch.setattr("roquet.spark.sending.time.sleep", back_when_everybody_waits)
    settings = sink_settings({"namesrvAddr": away.namesrv, "topic": "sink_away"})
    sent = write_batches(settings, batches(), 0, id_prefix("away"))
    assert sent.rows == 6
    assert sent.retries > 0
    found = stored(away.servers, "sink_away", 6, away.namesrv)
    once = dict.fromkeys(one.message_id for one in found)  # an answer may have been lost: a repetition has the same id
    assert len(once) == 6
    assert sorted({one.body for one in found}) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_when_a_broker_stays_away_the_rows_are_named(away: Away) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": ["0", "1"], "keys": ["a", "b"]})
        away.stop()
        yield pa.record_batch({"body": ["2", "3"], "keys": ["c", "d"]})

    settings = sink_settings({"namesrvAddr": away.namesrv, "topic": "sink_gone", "retries": "1"})
    # Whether the first two were answered in time is the broker's affair; it names those that were not.
    expected = r"2 rows, row [02] of partition 4 \(keys '[ac]'\) to row [13] of partition 4 \(keys '[bd]'\): not confirmed .* 2 attempts"
    with pytest.raises(SendFailed, match=expected):
        write_batches(settings, batches(), 4, id_prefix("gone"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "give the option namesrvAddr"),
        ({"namesrvAddr": "a:1", "maxInflight": "0"}, "maxInFlight=0: expected a whole number from 1 to 64"),
        ({"namesrvAddr": "a:1", "sendTimeout": "soon"}, "sendTimeout=soon: expected a duration"),
        ({"namesrvAddr": "a:1", "subscribe": "x"}, "the rocketmq sink has no option subscribe"),
        ({"namesrvAddr": "a:1", "groupId": "no good"}, "groupId=no good: .*illegal characters"),
        ({"namesrvAddr": "a:1", "accessKey": "x"}, "accessKey and secretKey belong together"),
    ],
)
def test_options_are_checked_by_name(options: dict[str, str], why: str) -> None:
    with pytest.raises(BadOption, match=why):
        sink_settings(options)
