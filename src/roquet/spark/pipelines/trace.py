"""The trace topic as a table, and what it tells: latencies, failures, stuck transactions, messages that nobody consumed.

    found = events(spark, {"namesrvAddr": "127.0.0.1:9876"}, since="-1h").cache()
    messages(found).cache(), deliveries(found).cache()           # the answers use what is cached of these two
    latencies(found).show()
    never_consumed(found).show()

Clients write traces when they are told to (enableMsgTrace in Java), so what is not traced is not seen: a group without
traces tells nothing of what it consumed, and Apache's clients trace a send only when the broker answered it. Times are the
clients' own clocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roquet.errors import ClientError, NoRoute, Rejected
from roquet.spark.pipelines.administration import administrator, can_ask
from roquet.wire.names import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAME = "rocketmq_trace"
"""Of the source in trace_source.py."""
PERCENTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
ACCURACY = 10_000
"""Of percentiles: exact up to so many values, then within a ten thousandth of the rank."""

STUCK_AFTER_S = 300
GRACE_S = 60
ENDED = ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE")


class NoTraces(ClientError):
    """Nobody has written traces there."""


# Reading


def events(spark: SparkSession, where: Mapping[str, str], *, trace_topic: str = TRACE_TOPIC, since: str = "", until: str = "") -> DataFrame:
    """Every trace record as a row. `since`, `until`: when the trace was stored, as the source's startingTimestamp takes it."""
    options = {**where, **times(since, until), "subscribe": trace_topic}
    return registered(spark).read.format(NAME).options(**options).load()


def within(events: DataFrame, since_ms: int | None = None, until_ms: int | None = None) -> DataFrame:
    """Of a saved table, the events that `events` would have read."""
    if since_ms is not None:
        events = events.where(f"store_time >= timestamp_millis({since_ms})")
    return events if until_ms is None else events.where(f"store_time < timestamp_millis({until_ms})")


def need_traces(where: Mapping[str, str], trace_topic: str = TRACE_TOPIC) -> None:
    """Raises NoTraces when there is no such topic, before anything slow begins."""
    from roquet.spark.options import place_of

    place = place_of(where)
    try:
        if trace_topic not in place.topics():
            raise NoTraces(
                f"there is no topic {trace_topic!r}, so no client has written traces; switch them on "
                "(brokers: traceTopicEnable=true; Java clients: enableMsgTrace), or name the topic they write to: --trace-topic"
            )
    finally:
        place.close()


def save(spark: SparkSession, where: Mapping[str, str], directory: Path, *, trace_topic: str = TRACE_TOPIC) -> DataFrame:
    """Add to the table of events in this directory what came since the last time; the whole table.

    A stream with its checkpoint beside the data: it goes on where it stopped, also after it was killed in the middle, and
    no event is in the table twice. Read the table with Spark, which knows of the files that count.
    """
    root = directory.absolute()  # the JVM may have another working directory
    table, checkpoint = str(root / "events"), str(root / "checkpoint")
    options = {**where, "subscribe": trace_topic, "startingOffsets": "earliest"}
    found = registered(spark).readStream.format(NAME).options(**options).load()
    writing = found.writeStream.format("parquet").option("path", table).option("checkpointLocation", checkpoint)
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    from roquet.spark.pipelines.trace_source import event_ddl

    return spark.read.schema(event_ddl()).parquet(table)


def registered(spark: SparkSession) -> SparkSession:
    """With our source."""
    from roquet.spark.pipelines.trace_source import TraceEvents

    spark.dataSource.register(TraceEvents)
    return spark


# What the events tell of messages and deliveries


def messages(events: DataFrame) -> DataFrame:
    """One row for every message that was sent: topic, group (the producer's), times, and how its transaction ended."""
    from pyspark.sql import functions as F

    pub, end = F.col("kind") == "Pub", F.col("kind") == "EndTransaction"
    ended = end & F.col("transaction_state").isin(*ENDED)
    sides = events.where(F.col("kind").isin("Pub", "EndTransaction", "Recall"))
    found = sides.groupBy("unique_id").agg(
        F.max("topic").alias("topic"),
        F.max("group").alias("group"),
        F.max("tags").alias("tags"),
        F.max("keys").alias("keys"),
        F.max(F.when(pub, F.col("type"))).alias("type"),
        F.min(F.when(pub, F.col("time"))).alias("sent"),
        F.max(F.when(pub, F.col("cost_ms"))).alias("send_ms"),
        F.max(F.when(pub, F.col("success"))).alias("stored"),
        F.max(F.when(ended, F.col("transaction_state"))).alias("ended_as"),
        F.max(F.when(ended, F.col("time"))).alias("ended"),
        F.sum(F.when(end & ~ended, 1).otherwise(0)).alias("unknown_answers"),
        F.max(F.when(F.col("kind") == "Recall", F.col("success"))).alias("recalled"),
    )
    # A half message is there for consumers when it is committed.
    ready = F.when(F.col("type") == "TransHalf", F.when(F.col("ended_as") == "COMMIT_MESSAGE", F.col("ended"))).otherwise(F.col("sent"))
    return found.where("sent is not null").withColumn("ready", ready)


def deliveries(events: DataFrame) -> DataFrame:
    """One row for every time that a message was given to a consumer; its topic is known when its sending was traced."""
    from pyspark.sql import functions as F

    before = F.col("kind") == "SubBefore"
    found = events.where(F.col("kind").isin("SubBefore", "SubAfter")).groupBy("unique_id", "request_id").agg(
        F.max("group").alias("group"),
        F.max("keys").alias("keys"),
        F.min(F.when(before, F.col("time"))).alias("began"),
        F.max(F.when(~before, F.col("time"))).alias("ended"),
        F.max("cost_ms").alias("consume_ms"),
        F.max("retry_times").alias("retry_times"),
        F.max("success").alias("success"),
        F.max("outcome").alias("outcome"),
    )  # fmt: skip
    of = messages(events).select("unique_id", "topic", "tags", "type", "sent", "ready", "send_ms")
    return found.join(of, "unique_id", "left")


# Answers


def latencies(events: DataFrame) -> DataFrame:
    """Per topic and group: count, p50, p95, p99 and maximum in ms of `send`, of `wait` and of `consume`.

    `send` is of the producer's group. `wait` is from the sending (the commit, in a transaction) to the first attempt to
    consume; messages that were to be delayed have none.
    """
    from pyspark.sql import functions as F

    delivered = deliveries(events)
    first = delivered.where("retry_times = 0 and began is not null and ready is not null and type != 'Delay'")
    parts = [
        measure(messages(events).where("stored"), "send", F.col("send_ms")),
        measure(first, "wait", ms(F.col("began")) - ms(F.col("ready"))),
        measure(delivered.where("consume_ms is not null"), "consume", F.col("consume_ms")),
    ]
    all_of_them = parts[0].unionByName(parts[1]).unionByName(parts[2])
    found = all_of_them.groupBy("topic", "group", "measure").agg(
        F.count("*").alias("count"),
        F.percentile_approx("ms", list(PERCENTILES.values()), ACCURACY).alias("percentiles"),
        F.max("ms").alias("max_ms"),
    )
    named = [F.col("percentiles")[number].alias(name) for number, name in enumerate(PERCENTILES)]
    return found.select("topic", "group", "measure", "count", *named, "max_ms").orderBy("topic", "group", "measure")


def slowest(events: DataFrame, count: int = 20) -> DataFrame:
    """The messages that took longest from their sending until a group was done with them; not consumed: until they were stored."""
    from pyspark.sql import functions as F

    done = F.coalesce(ms(F.col("began")) + F.col("consume_ms"), ms(F.col("ended")), ms(F.col("began")))
    consumed = deliveries(events).groupBy("unique_id", "group").agg(
        F.min("began").alias("began"),
        F.max(done).alias("done"),
        F.sum("consume_ms").alias("consume_ms"),
        F.count("*").alias("deliveries"),
    )  # fmt: skip
    sent = messages(events).where("type != 'Delay'").withColumnRenamed("group", "producer_group")
    joined = sent.join(consumed, "unique_id", "left")
    total = F.coalesce(F.col("done") - ms(F.col("sent")), F.col("send_ms"))
    return (
        joined.select(
            "topic", "producer_group", "group", "unique_id", "keys", "sent", "send_ms",
            (ms(F.col("began")) - ms(F.col("ready"))).alias("wait_ms"),
            "consume_ms", F.coalesce("deliveries", F.lit(0)).alias("deliveries"), total.alias("total_ms"),
        )
        .orderBy(F.desc("total_ms"), "unique_id", "group")
        .limit(count)
    )  # fmt: skip


def failed(events: DataFrame) -> DataFrame:
    """Sends that were answered but not with success, and attempts to consume that failed, oldest first."""
    from pyspark.sql import functions as F

    columns = ("what", "time", "topic", "group", "unique_id", "keys", "outcome", "retry_times", "cost_ms")
    nothing = F.lit(None)
    sends = events.where("kind = 'Pub' and not success").select(
        F.lit("send").alias("what"), "time", "topic", "group", "unique_id", "keys",
        nothing.cast("string").alias("outcome"), nothing.cast("int").alias("retry_times"), "cost_ms",
    )  # fmt: skip
    consumes = deliveries(events).where("not success").select(
        F.lit("consume").alias("what"), F.coalesce("began", "ended").alias("time"), "topic", "group", "unique_id", "keys",
        "outcome", "retry_times", F.col("consume_ms").alias("cost_ms"),
    )  # fmt: skip
    return sends.unionByName(consumes).select(*columns).orderBy("time", "unique_id")


def stuck(events: DataFrame, after_s: float = STUCK_AFTER_S, now_ms: int | None = None) -> DataFrame:
    """Half messages that nobody committed or rolled back within `after_s`, oldest first; `unknown_answers`: how often their
    producer said that it does not know."""
    from pyspark.sql import functions as F

    age = at(now_ms) - ms(F.col("sent"))
    pending = messages(events).where("type = 'TransHalf' and stored and ended_as is null")
    found = pending.select("topic", "group", "unique_id", "keys", "sent", (age / 1000).alias("age_s"), "unknown_answers")
    return found.where(F.col("age_s") >= after_s).orderBy("sent", "unique_id")


def never_consumed(
    events: DataFrame, grace_s: float = GRACE_S, now_ms: int | None = None, subscriptions: DataFrame | None = None
) -> DataFrame:
    """Messages stored at least `grace_s` ago that a group which reads their topic never began to consume, oldest first.

    `subscriptions`: rows of topic, group, tags (an array, null for all), as `subscribed` gives them. Without, every group
    counts that consumed any message of the topic. Messages that were to be delayed, were recalled, or belong to a
    transaction that is not committed are left out.
    """
    from pyspark.sql import functions as F

    begun = deliveries(events).select("unique_id", "group")
    if subscriptions is None:
        subscriptions = readers(events).withColumn("tags", F.lit(None).cast("array<string>"))
    age = at(now_ms) - ms(F.col("ready"))
    due = messages(events).where("stored and ready is not null and type != 'Delay' and not coalesce(recalled, false)")
    due = due.withColumn("age_s", age / 1000).where(F.col("age_s") >= grace_s).withColumnRenamed("group", "producer_group")
    wanted = subscriptions.withColumnRenamed("tags", "wanted_tags")
    expected = due.join(wanted, "topic").where("wanted_tags is null or array_contains(wanted_tags, tags)")
    found = expected.join(begun, ["unique_id", "group"], "left_anti")
    columns = ("topic", "group", "unique_id", "tags", "keys", "producer_group", "sent", "age_s")
    return found.select(*columns).orderBy("sent", "unique_id", "group")


def readers(events: DataFrame) -> DataFrame:
    """Topic and group, where the group consumed any message of the topic."""
    return deliveries(events).where("topic is not null and group is not null").select("topic", "group").distinct()


def of_topic(events: DataFrame, topic: str) -> DataFrame:
    """The events of one topic's messages. Traces of consuming do not name it: their messages' sending does."""
    from pyspark.sql import functions as F

    ids = events.where((F.col("kind") == "Pub") & (F.col("topic") == topic)).select("unique_id").distinct()
    return events.join(ids, "unique_id", "left_semi").select(*events.columns)


def malformed(events: DataFrame) -> DataFrame:
    """Records that could not be read, and why."""
    from roquet.spark.pipelines.trace_records import MALFORMED

    return events.where(f"kind = '{MALFORMED}'").select("problem", "broker", "queue_id", "queue_offset", "store_time")


def subscribed(spark: SparkSession, where: Mapping[str, str], events: DataFrame) -> DataFrame | None:
    """What the groups that trace are subscribed to now, as their brokers know it, else what they consumed.

    None where brokers cannot be asked.
    """
    if not can_ask(where):
        return None
    pairs = {(row.topic, row.group) for row in readers(events).collect()}
    if not pairs:
        return None
    rows = asyncio.run(_subscriptions(where, pairs))
    return spark.createDataFrame(rows, "topic string, `group` string, tags array<string>")


async def _subscriptions(where: Mapping[str, str], pairs: set[tuple[str, str]]) -> list[tuple[str, str, list[str] | None]]:
    found: dict[tuple[str, str], list[str] | None] = dict.fromkeys(pairs)
    async with administrator(where) as admin:
        for group in sorted({group for _, group in pairs}):
            try:
                members = await admin.members(group)
            except (NoRoute, Rejected):  # nobody is there, or access control does not let us see it
                continue
            for connection in members.by_broker.values():
                for topic, subscription in connection.subscription_table.items():
                    if not topic.startswith("%"):
                        tags = subscription.tags_set if subscription.expression_type == "TAG" else set()
                        found[topic, group] = sorted(tags) or None
    return [(topic, group, tags) for (topic, group), tags in sorted(found.items())]


# Small parts


def times(since: str, until: str) -> dict[str, str]:
    return {name: text for name, text in (("startingTimestamp", since), ("endingTimestamp", until)) if text}


def measure(rows: DataFrame, name: str, value: Column) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select("topic", "group", F.lit(name).alias("measure"), value.alias("ms"))


def ms(time: Column) -> Column:
    from pyspark.sql import functions as F

    return F.unix_millis(time)


def at(now_ms: int | None) -> Any:
    from pyspark.sql import functions as F

    return F.unix_millis(F.current_timestamp()) if now_ms is None else F.lit(now_ms)
