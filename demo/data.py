"""Chapter 5: the same messages as a table. A live stream with counts, an archive, and one query in SQL, all on Spark."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import orjson
from stage import Broken, Stage, say

from roquet import Admin, Message, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SALES = "demo-sales"
SHOPS = ("Bergen", "Lyon", "Porto", "Turin")
TAGS = ("paid", "open", "paid", "cancelled")
ROUNDS = 8
PAUSE_S = 0.5
PATIENCE_S = 90
QUERY = f"""\
select json.shop, count(*) as sales, round(sum(json.amount)) as revenue
from `{SALES}` where tags = 'paid' group by 1 order by 1"""


class Sales:
    """What was sent, so that what Spark says can be checked."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.revenue: Counter[str] = Counter()

    def message(self, number: int) -> Message:
        # Remainders of 4, 7 and 89 have nothing to do with each other: every shop has sales of every tag and amount.
        shop, tag, amount = SHOPS[number % 7 % 4], TAGS[number % 4], number % 89 + 10
        if tag == "paid":
            self.revenue[shop] += amount
        return Message(SALES, orjson.dumps({"shop": shop, "amount": amount}), tags=tag, keys=f"sale-{number}")

    def rounds(self) -> Iterator[list[Message]]:
        """Not all at once, so that there is something to watch."""
        step = -(-self.count // ROUNDS)
        for first in range(0, self.count, step):
            yield [self.message(number) for number in range(first, min(first + step, self.count))]


class LiveCounts:
    """The stream's running counts by tag, and a line for every batch."""

    def __init__(self) -> None:
        self.by_tag: dict[str, int] = {}
        self.changed = threading.Event()

    def take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        self.by_tag |= {row["tags"]: row["count"] for row in rows}
        if rows:
            shown = ", ".join(f"{tag} {count:,}" for tag, count in sorted(self.by_tag.items()))
            say(f"   batch {batch}: {self.total:,} messages so far ({shown})")
        self.changed.set()

    @property
    def total(self) -> int:
        return sum(self.by_tag.values())


async def data_pipeline(stage: Stage) -> None:
    """The data pipeline: a topic as a live stream, an archive and a table, on Spark."""
    from roquet.spark.session import session

    if why_not := await stage.spark.ready():
        say(f"Left out: {why_not}")
        stage.fact("spark", "left out, see above")
        return
    broker = await stage.broker("broker-data", "DataCluster", {})
    async with Admin(stage.namesrv) as admin:
        await admin.create_topic(SALES, read_queues=4, write_queues=4, cluster="DataCluster")
    began = time.monotonic()
    with own_log(stage.directory / "spark.log"):
        spark = await asyncio.to_thread(session, "roquet demo", "local[2]")
    say(f'Spark {spark.version} is up after {time.monotonic() - began:.1f} s. spark.readStream.format("rocketmq") counts while we send:')
    try:
        sales = Sales(stage.messages)
        await live_stream(stage, spark, sales)
        await archive_it(stage, spark, sales)
        await query_it(stage, spark, sales)
    finally:
        await asyncio.to_thread(spark.stop)
    await broker.stop()


async def live_stream(stage: Stage, spark: SparkSession, sales: Sales) -> None:
    counts = LiveCounts()
    source = spark.readStream.format("rocketmq").options(namesrvAddr=stage.namesrv, subscribe=SALES, startingOffsets="earliest")
    by_tag = source.schema("tags string").load().groupBy("tags").count()
    writer = by_tag.writeStream.outputMode("update").foreachBatch(counts.take)
    query = await asyncio.to_thread(writer.option("checkpointLocation", str(stage.directory / "stream")).start)
    try:
        async with Producer("demo_shops", stage.namesrv) as producer:
            for messages in sales.rounds():
                await producer.send_batch(messages)
                if not counts.total:  # Spark's first batch takes seconds, which is long for those who watch; the others do not
                    await asyncio.to_thread(until, lambda: counts.total or not query.isActive, counts.changed)
                await asyncio.sleep(PAUSE_S)
        await asyncio.to_thread(until, lambda: counts.total >= sales.count or not query.isActive, counts.changed)
    finally:
        await asyncio.to_thread(query.stop)
    if counts.total != sales.count:
        raise Broken(f"{sales.count:,} messages were sent, the stream counted {counts.total:,}: {query.exception() or 'it took too long'}")
    say(f"The stream counted every one of the {sales.count:,} messages, each once.")
    stage.fact("stream", f"{sales.count:,} messages counted live, each once")


async def archive_it(stage: Stage, spark: SparkSession, sales: Sales) -> None:
    from roquet.spark.archive.read import verify_archive
    from roquet.spark.pipelines.archive import archive

    where, to = {"namesrvAddr": stage.namesrv}, stage.directory / "archive"
    done = await asyncio.to_thread(lambda: archive(where, [SALES], to, spark=spark))
    again = await asyncio.to_thread(lambda: archive(where, [SALES], to, spark=spark))
    checked = await asyncio.to_thread(verify_archive, to)
    if not checked.fine or (done.rows, again.rows) != (sales.count, 0):
        raise Broken(f"archived were {done.rows:,} and then {again.rows:,} of {sales.count:,} messages; {checked.problems[:3]}")
    say(
        f"Archived {done.rows:,} messages as Parquet ({size_of(to) / 1e6:.1f} MB) in {done.seconds:.1f} s, files and offsets in one commit."
    )
    say("A second run found nothing new, and every checksum of the archive holds.")
    stage.fact("archive", f"{done.rows:,} rows of Parquet, exactly once")


async def query_it(stage: Stage, spark: SparkSession, sales: Sales) -> None:
    from roquet.cli.render import table
    from roquet.spark.pipelines.sql import Topics

    say("And a question in SQL. Every topic is a table, and a JSON body has columns:")
    say(indent(QUERY, "   ") + "\n")
    began = time.monotonic()
    topics = Topics(spark, {"namesrvAddr": stage.namesrv})
    rows: list[Any] = await asyncio.to_thread(lambda: topics.run(QUERY).collect())
    say(table(["shop", "sales", "revenue"], [[row[0], row[1], int(row[2])] for row in rows], indent="   "))
    if {row[0]: int(row[2]) for row in rows} != dict(sales.revenue):
        raise Broken(f"the query answered {rows}, sold was {dict(sales.revenue)}")
    seconds = time.monotonic() - began
    say(f"Answered in {seconds:.1f} s from the broker itself, and it is what was sold.")
    stage.fact("sql", f"{len(rows)} rows over {sales.count:,} messages in {seconds:.1f} s")


@contextlib.contextmanager
def own_log(path: Path) -> Iterator[None]:
    """What is started in here writes its standard error to this file, all its life: Java and Spark's workers talk to themselves."""
    screen = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    except Exception as error:
        raise Broken(f"Spark did not start: {error}\nIts log ends with:\n{path.read_text(errors='replace')[-2000:]}") from error
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.parquet"))


def until(holds: Any, changed: threading.Event) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        changed.wait(1)
        changed.clear()
