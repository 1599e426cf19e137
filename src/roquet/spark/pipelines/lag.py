"""How far consumer groups are behind, as a table over time, and when they will have caught up.

    rows = sample({"namesrvAddr": "127.0.0.1:9876"})            # now, no Spark needed
    append(Path("lag"), rows)                                   # one more file of the table
    of_groups(forecast(spark.read.parquet("lag"))).show()

A sample is one question to the brokers for each group; nothing is consumed. The table is plain Parquet files, each made
whole under another name first, so that a reader never meets half of one and any number of runs may add to it.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from roquet.errors import ClientError, RoquetError
from roquet.spark.pipelines.administration import administrator, must_ask
from roquet.wire.names import is_system_group

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from roquet.admin import Admin

WINDOW_S = 600.0
"""Rates are those of so many last seconds of the table."""
MOVING = 0.01
"""Messages a second below which a queue counts as standing still."""

SAMPLING = "asking how far groups are"
KEEPING_UP_S = 10.0
"""Behind by no more than what was produced in so many seconds: consumers tell their progress every few seconds only."""

CAUGHT_UP, KEEPING_UP, CATCHING_UP, NEVER = "caught up", "keeping up", "catching up", "never at this rate"
STALLED, NO_MEMBERS, UNKNOWN = "stalled", "no members", "one sample"
STATES = (NO_MEMBERS, STALLED, NEVER, UNKNOWN, CATCHING_UP, KEEPING_UP, CAUGHT_UP)
"""The worst first: a group is in the worst state of its queues."""


class Sample(NamedTuple):
    """How far one group was in one queue at one moment."""

    time: int
    """ms since 1970; the same for all rows of one sample."""
    group: str
    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    lag: int
    last_timestamp: int | None
    """When the last message that was consumed had been stored, ms; None: not known."""
    members: int
    """Of the group, at that moment."""


def schema() -> pa.Schema:
    """Of the table."""
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    kinds = {"time": moment, "last_timestamp": moment, "group": pa.string(), "topic": pa.string(), "broker": pa.string()}
    kinds |= {"queue_id": pa.int32(), "members": pa.int32()}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in Sample._fields])


def as_table(rows: Sequence[Sample]) -> pa.Table:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) if rows else [()] * len(Sample._fields)
    arrays = []
    for field, values in zip(schema(), columns, strict=True):
        if pa.types.is_timestamp(field.type):
            values = tuple(None if value is None else value * 1000 for value in values)
        arrays.append(pa.array(values, field.type))
    return pa.table(arrays, schema=schema())


# Sampling


def sample(where: Mapping[str, str], groups: Collection[str] = (), *, system: bool = False) -> list[Sample]:
    """Every queue of every group that has read something, now. `groups`: only these. `system`: also the brokers' own."""
    must_ask(where, SAMPLING)
    return asyncio.run(_sample_once(where, groups, system))


async def _sample_once(where: Mapping[str, str], groups: Collection[str], system: bool) -> list[Sample]:
    async with administrator(where) as admin:
        return await sample_with(admin, groups, system=system)


async def sample_with(admin: Admin, groups: Collection[str] = (), *, system: bool = False) -> list[Sample]:
    """As `sample`, with connections that are kept between samples."""
    known = await admin.groups()
    missing = sorted(set(groups) - set(known))
    if missing:
        raise ClientError(f"no broker knows the group {missing[0]!r}; see which there are: roquet group list --all")
    names = sorted(groups) or [name for name in known if system or not is_system_group(name)]
    now_ms = int(time.time() * 1000)
    progress = await admin.progress_of_all(names)
    members = await admin.members_of_all(names)
    return [
        Sample(
            now_ms, name, one.queue.topic, one.queue.broker_name, one.queue.queue_id, one.broker_offset, one.consumer_offset,
            one.lag, one.last_timestamp or None, len(members[name].client_ids()),
        )
        for name in names
        for one in progress[name]
    ]  # fmt: skip


def watch(
    where: Mapping[str, str],
    every_s: float,
    for_s: float,
    taken: Callable[[list[Sample]], None],
    missed: Callable[[RoquetError], None],
    groups: Collection[str] = (),
    *,
    system: bool = False,
) -> None:
    """A sample at once and every `every_s` until `for_s` have passed. One that fails is missed, but the first must succeed."""

    must_ask(where, SAMPLING)

    async def work() -> None:
        clock = asyncio.get_running_loop().time
        async with administrator(where) as admin:
            started = clock()
            taken(await sample_with(admin, groups, system=system))
            for number in range(1, int(for_s / every_s) + 1):
                await asyncio.sleep(started + number * every_s - clock())
                try:
                    taken(await sample_with(admin, groups, system=system))
                except RoquetError as error:
                    missed(error)

    asyncio.run(work())


# The table


def append(directory: Path, rows: Sequence[Sample]) -> Path | None:
    """One more file, there as a whole or not at all; None when there is nothing to write."""
    import pyarrow.parquet as pq

    if not rows:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    name = f"lag-{rows[0].time}-{uuid.uuid4().hex[:8]}.parquet"
    partial = directory / f".{name}.tmp"  # readers pass over names with a dot
    try:
        with partial.open("wb") as file:
            pq.write_table(as_table(rows), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(directory / name)
    finally:
        partial.unlink(missing_ok=True)
    return directory / name


def read(spark: SparkSession, directory: Path) -> DataFrame:
    """The table over time: a row for every sample, group and queue."""
    if not any(directory.glob("*.parquet")):
        raise ClientError(f"{directory} holds no samples; make some: roquet pipeline lag --every 5 --for 60 --to {directory}")
    return spark.read.parquet(str(directory.absolute())).dropDuplicates(["time", "group", "topic", "broker", "queue_id"])


def of(samples: DataFrame, groups: Collection[str]) -> DataFrame:
    """Of these groups; of all when there are none."""
    from pyspark.sql import functions as F

    return samples.where(F.col("group").isin(*groups)) if groups else samples


def frame(spark: SparkSession, rows: Sequence[Sample]) -> DataFrame:
    """Samples that are in no file."""
    return spark.createDataFrame(as_table(rows))


# What it tells


def forecast(samples: DataFrame, window_s: float = WINDOW_S) -> DataFrame:
    """Per group and queue: lag now, rates, and the moment it will have caught up if both go on as in the last `window_s`.

    Rates are the slopes of straight lines through the offsets (least squares). `state` says what to make of it (STATES);
    `catch_up` is null when it will not, and the moment of the last sample when it already has.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    seconds = F.unix_micros("time") / 1e6
    latest = Window.partitionBy("group")
    recent = samples.withColumn("newest", F.max("time").over(latest)).where(seconds >= F.unix_micros("newest") / 1e6 - window_s)
    newest = {name: F.max_by(name, "time").alias(name) for name in ("broker_offset", "consumer_offset", "lag", "last_timestamp", "members")}
    found = recent.groupBy("group", "topic", "broker", "queue_id").agg(
        F.max("time").alias("time"),
        *newest.values(),
        F.coalesce(F.regr_slope(F.col("broker_offset").cast("double"), seconds), F.lit(0.0)).alias("produce_rate"),
        F.coalesce(F.regr_slope(F.col("consumer_offset").cast("double"), seconds), F.lit(0.0)).alias("consume_rate"),
        F.countDistinct("time").alias("samples"),
    )
    gain = F.col("consume_rate") - F.col("produce_rate")
    state = (
        F.when(F.col("lag") <= 0, CAUGHT_UP)
        .when(F.col("members") == 0, NO_MEMBERS)
        .when(F.col("samples") < 2, UNKNOWN)
        .when(F.abs("consume_rate") < MOVING, STALLED)
        .when(F.col("lag") <= F.col("produce_rate") * KEEPING_UP_S, KEEPING_UP)
        .when(gain < MOVING, NEVER)
        .otherwise(CATCHING_UP)
    )
    left = F.when(F.col("state") == CATCHING_UP, F.col("lag") / gain).when(F.col("state").isin(KEEPING_UP, CAUGHT_UP), 0.0)
    moment = F.timestamp_micros((F.unix_micros("time") + F.col("catch_up_s") * 1e6).cast("bigint"))
    order = ("group", "topic", "broker", "queue_id")
    return found.withColumn("state", state).withColumn("catch_up_s", left).withColumn("catch_up", moment).orderBy(*order)


def of_groups(queues: DataFrame) -> DataFrame:
    """A forecast per group and topic: sums over its queues; it has caught up when the last of them has."""
    from pyspark.sql import functions as F

    worst = F.array(*(F.lit(state) for state in STATES))
    found = queues.groupBy("group", "topic").agg(
        F.max("time").alias("time"),
        F.count("*").alias("queues"),
        F.max("members").alias("members"),
        F.sum("lag").alias("lag"),
        F.sum("produce_rate").alias("produce_rate"),
        F.sum("consume_rate").alias("consume_rate"),
        F.min(F.array_position(worst, F.col("state"))).alias("worst"),
        F.max("catch_up_s").alias("last_s"),
        F.max("catch_up").alias("last"),
    )
    state = F.element_at(worst, F.col("worst").cast("int"))
    known = F.col("state").isin(CATCHING_UP, KEEPING_UP, CAUGHT_UP)
    named = found.withColumn("state", state)
    named = named.withColumn("catch_up_s", F.when(known, F.col("last_s"))).withColumn("catch_up", F.when(known, F.col("last")))
    return named.drop("worst", "last_s", "last").orderBy("group", "topic")
