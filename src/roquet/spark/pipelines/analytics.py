"""Counts by window, from a topic back into a topic: the streaming job to copy from.

    orders ──> one row per id ──> count per minute and tag ──> order-counts
               (late by up to the watermark; later ones are dropped)

Each closed window is sent once, as a small JSON message:
    {"window_start": "2026-11-15T10:00:00.000Z", "window_end": "…", "key": "paid", "count": 42}
with the key `2026-11-15T10:00:00.000Z/paid`, so that a consumer can look a window up, and the window's end as its order key.

What holds after a crash: Spark replays the batch that was under way with the same input and the same batch number; the
sink gives the replayed messages the same unique ids, so a consumer that drops repeated ids (roquet.client.Idempotent)
sees each window once. State and offsets are in the checkpoint directory: keep it, and keep it on a disk that survives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = (
    "topic string, broker string, queue_id int, queue_offset bigint, tags string, keys string, unique_id string, body binary, "
    "born_time timestamp, store_time timestamp"
)
"""All that the job reads: a narrower schema is decoded and moved faster."""


def read(spark: SparkSession, where: Mapping[str, str], topic: str, **options: str) -> DataFrame:
    """The topic as a stream."""
    source = spark.readStream.format("rocketmq").options(**where, subscribe=topic, **options)
    return source.schema(COLUMNS).load()


def windowed_counts(
    messages: DataFrame,
    *,
    by: str = "coalesce(tags, '')",
    window: str = "1 minute",
    watermark: str = "10 seconds",
    time: str = "store_time",
    unique: str = "unique_id",
) -> DataFrame:
    """Rows (window_start, window_end, key, count), one for each window and value of `by` once the window is closed.

    `by`, `time` and `unique` are SQL over the message's columns: "get_json_object(cast(body as string), '$.shop')".
    """
    from pyspark.sql import functions as f

    # A message without an id is nobody's duplicate: its place is its id.
    own = f.coalesce(f.expr(unique).cast("string"), f.concat_ws("/", "topic", "broker", "queue_id", "queue_offset"))
    events = messages.select(f.expr(time).alias("at"), f.expr(by).cast("string").alias("key"), own.alias("id"))
    if messages.isStreaming:
        once = events.withWatermark("at", watermark).dropDuplicatesWithinWatermark(["id"])
    else:
        once = events.dropDuplicates(["id"])  # a table that ends knows no "late"
    counts = once.groupBy(f.window("at", window), "key").count()
    return counts.select(f.col("window.start").alias("window_start"), f.col("window.end").alias("window_end"), "key", "count")


def as_messages(counts: DataFrame) -> DataFrame:
    """The sink's columns."""
    from pyspark.sql import functions as f

    def text(column: str) -> str:
        return f"date_format({column}, \"yyyy-MM-dd'T'HH:mm:ss.SSS'Z'\")"

    start, end = f.expr(text("window_start")), f.expr(text("window_end"))
    body = f.to_json(f.struct(start.alias("window_start"), end.alias("window_end"), "key", "count"))
    return counts.select(
        body.cast("binary").alias("body"),
        f.concat_ws("/", start, f.regexp_replace("key", " ", "_")).alias("keys"),
        f.lit("count").alias("tags"),
        end.alias("order_key"),
    )


def analytics(
    spark: SparkSession,
    where: Mapping[str, str],
    topic: str,
    to: str,
    *,
    checkpoint: str,
    by: str = "coalesce(tags, '')",
    window: str = "1 minute",
    watermark: str = "10 seconds",
    time: str = "store_time",
    unique: str = "unique_id",
    until_now: bool = False,
    every: str = "1 second",
    start: str = "earliest",
    to_where: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start the job. `until_now`: stop when everything that is there now was read (windows still open stay in the checkpoint)."""
    counts = windowed_counts(
        read(spark, where, topic, startingOffsets=start), by=by, window=window, watermark=watermark, time=time, unique=unique
    )
    target = {key: value for key, value in (to_where or where).items() if key != "path"}
    # The JVM may have another working directory; hdfs://... has none.
    kept = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
    writer = as_messages(counts).writeStream.format("rocketmq").options(**target, topic=to, checkpointLocation=kept)
    writer = writer.outputMode("append").queryName(f"{topic} to {to}")
    writer = writer.trigger(availableNow=True) if until_now else writer.trigger(processingTime=every)
    return writer.start()
