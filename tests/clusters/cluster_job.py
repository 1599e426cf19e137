"""What the cluster's tests submit: a batch count, the archive pipeline and a stream into Parquet, all over one topic. Each
stops half-way until it is told to go on, so that something can be killed meanwhile.

    spark-submit cluster_job.py NAMESRV TOPIC DIRECTORY MESSAGES_A_TRIGGER

Each part has a folder in DIRECTORY: a file for every task that has begun, `go` (the test makes it), `answer.json` at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession, functions

from roquet.spark.options import place_of
from roquet.spark.pipelines.archive import Control, archive, read_archive
from roquet.spark.places import Place
from roquet.spark.session import session

HOLD_S = 300.0
COLUMNS = "topic string, queue_id int, queue_offset bigint, body binary"
STOPPED_BATCH = 1
"""Of the stream, the batch in which its tasks wait: one before it is committed, others follow."""


def hold(directory: Path) -> None:
    """Of a task: says that it has begun, and waits to be told to go on."""
    context = TaskContext.get()
    assert context is not None
    task = directory / f"task-{context.partitionId()}-{context.attemptNumber()}-{os.getpid()}"
    task.touch()
    deadline = time.monotonic() + HOLD_S
    while not (directory / "go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody said go to {task.name} in {HOLD_S:.0f} s")
        time.sleep(0.05)


def held(directory: Path, streaming: bool) -> Column:
    """A condition that is always true, and holds the task up on its rows."""

    def judge(_: int) -> bool:
        context = TaskContext.get()
        assert context is not None
        if not streaming or context.getLocalProperty("streaming.sql.batchId") == str(STOPPED_BATCH):
            hold(directory)
        return True

    # Not by Arrow, which would ask for pandas here.
    return functions.udf(judge, "boolean", useArrow=False).asNondeterministic()("queue_offset")


def held_place(directory: Path, where: Mapping[str, str]) -> Place:
    if TaskContext.get() is not None:
        hold(directory)
    return place_of(where)


def answer(frame: DataFrame) -> dict[str, int]:
    """What is equal only if every message is there, once and whole."""
    row = frame.agg(
        functions.count("*").alias("messages"),
        functions.count_distinct("queue_id", "queue_offset").alias("places"),
        functions.sum(functions.crc32("body")).alias("checksum"),
    ).first()
    assert row is not None
    return {name: int(value) for name, value in row.asDict().items()}


def publish(directory: Path, found: dict[str, int]) -> None:
    """Whole or not at all: somebody waits for the file."""
    (directory / "answer.part").write_text(json.dumps(found))
    (directory / "answer.part").rename(directory / "answer.json")


def batch(spark: SparkSession, where: dict[str, str], directory: Path) -> None:
    topic = spark.read.format("rocketmq").options(**where).schema(COLUMNS).load()
    found = answer(topic.where(held(directory, streaming=False)))
    publish(directory, found)


def pipeline(spark: SparkSession, where: dict[str, str], topic: str, directory: Path) -> None:
    """Ours: it commits files and offsets together."""
    summary = archive(where, [topic], directory / "archive", spark=spark, control=Control(open_place=partial(held_place, directory)))
    found = answer(read_archive(spark, directory / "archive"))
    publish(directory, {**found, "archived": summary.rows})


def stream(spark: SparkSession, where: dict[str, str], directory: Path, a_trigger: int) -> None:
    topic = spark.readStream.format("rocketmq").options(**where, maxOffsetsPerTrigger=str(a_trigger), startingOffsets="earliest")
    rows = topic.schema(COLUMNS).load().where(held(directory, streaming=True))
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(directory / "archive"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = answer(spark.read.schema(COLUMNS).parquet(str(directory / "archive")))
    found["batches"] = len([each for each in query.recentProgress if each["numInputRows"]])
    publish(directory, found)


def main(namesrv: str, topic: str, directory: Path, a_trigger: int) -> None:
    spark = session("cluster job")  # on the master that spark-submit was given
    assert str(spark.sparkContext.master).startswith("spark://"), spark.sparkContext.master
    place = {"namesrvAddr": namesrv}
    where = {**place, "subscribe": topic, "minPartitions": "4"}  # so few messages would fit into one task
    batch(spark, where, directory / "batch")
    pipeline(spark, place, topic, directory / "archive")
    stream(spark, where, directory / "stream", a_trigger)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
