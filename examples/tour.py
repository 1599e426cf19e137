# The source of docs/tour.md: a notebook as plain Python. `make tour` runs it and writes the page; it also runs by itself.
# %% [markdown]
# # A tour of Roquet with Spark
#
# A shop sends orders. Two groups of consumers read them, and one of them is slow. We then look at what happened with
# Spark: the topic as a table, throughput, lag, latencies, an archive, and a stream of counts.
#
# This page is a notebook. `make tour` runs [examples/tour.py](../examples/tour.py) from top to bottom and writes here
# the code, what it printed and what it drew; the tests run it too. The servers, producers and consumers are real ones.
# They share one small machine with Spark, so the figures tell a story; they are no benchmark.

# %%
import asyncio
import contextlib
import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from pyspark.sql import functions as f

from roquet import Admin, LitePullConsumer, Message, Producer, embedded
from roquet.spark.pipelines import lag, trace
from roquet.spark.pipelines.analytics import analytics
from roquet.spark.pipelines.archive import archive
from roquet.spark.pipelines.sql import Topics
from roquet.spark.session import session
from roquet.wire.names import TRACE_TOPIC

SECONDS = float(os.environ.get("TOUR_SECONDS", "30"))
home, scratch = Path.cwd(), Path(tempfile.mkdtemp(prefix="roquet-tour-"))
os.chdir(scratch)  # the archive and the checkpoint go here

# %% [markdown]
# ## Servers
# A name server and a broker, in a thread of this process. With your own cluster, `where` is all you need.

# %%
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """On the servers' loop, from this thread."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


async def create_topics() -> None:
    async with Admin(mq.namesrv) as admin:
        await admin.create_topic("orders", read_queues=4, write_queues=4)
        await admin.create_topic("order-counts", read_queues=1, write_queues=1)


servers = contextlib.AsyncExitStack()
mq = run(servers.enter_async_context(embedded(settings={"traceTopicEnable": "true"})))
run(create_topics())
where = {"namesrvAddr": mq.namesrv}

# %% [markdown]
# ## Traffic
# The shop sends 40 orders a second, then 400 in a rush, then 40 again. An order is a JSON body with a tag and a key.
#
# Clients that trace write a record of every send and every delivery to the topic `RMQ_SYS_TRACE_TOPIC`: Java's with `enableMsgTrace`, ours
# with `trace=True` ([traces](traces.md)). The tour measures its own sends and deliveries and writes the same records by hand,
# so that you see what is in them.

# %%
traces: list[str] = []
sent = 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def record(*fields: object) -> None:
    """One record as Java's clients write it."""
    traces.append("\x01".join(map(str, fields)) + "\x02")


def rate(second: float) -> int:
    """Orders a second."""
    return 400 if 0.3 <= second / SECONDS < 0.5 else 40


async def order(producer: Producer, number: int) -> None:
    global sent
    country = random.choices(("DE", "FR", "JP", "BR"), (5, 3, 3, 1))[0]
    tag = random.choices(("paid", "open", "cancelled"), (8, 3, 1))[0]
    body = json.dumps({"order": number, "country": country, "amount": random.randint(500, 20_000) / 100}).encode()
    began = now_ms()
    receipt = await producer.send(Message("orders", body, tags=tag, keys=f"order-{number}"))
    facts = (tag, f"order-{number}", mq.broker, len(body), now_ms() - began, 0, receipt.offset_message_id, "true")
    record("Pub", began, "tour", "shop", "orders", receipt.message_id, *facts)
    sent += 1


async def shop(producer: Producer) -> None:
    began, due, number = loop.time(), 0.0, 0
    async with asyncio.TaskGroup() as sends:
        while due < SECONDS:
            await asyncio.sleep(began + due - loop.time())
            sends.create_task(order(producer, number))
            number, due = number + 1, due + 1 / rate(due)


# %% [markdown]
# The group `billing` is done with an order at once, `mailing` needs five milliseconds for each. They commit after every
# poll, so that their lag can be watched closely; a `PushConsumer` tells its progress every five seconds.

# %%
consumed: Counter[str] = Counter()
samples: list[lag.Sample] = []


async def consume(group: str, work_s: float, shop_closed: asyncio.Event) -> None:
    consumer = LitePullConsumer(group, mq.namesrv, auto_commit=False, consume_from="first")
    consumer.subscribe("orders")
    async with consumer:
        while not shop_closed.is_set() or consumed[group] < sent:
            for message in await consumer.poll(timeout_ms=200):
                began, delivery, key = now_ms(), f"{group}-{message.message_id}", message.keys[0]
                await asyncio.sleep(work_s)
                record("SubBefore", began, "tour", group, delivery, message.message_id, 0, key)
                record("SubAfter", delivery, message.message_id, now_ms() - began, "true", key, 0, now_ms(), group)
                consumed[group] += 1
            await consumer.commit()


async def watch(admin: Admin) -> None:
    while True:
        samples.extend(await lag.sample_with(admin))
        await asyncio.sleep(SECONDS / 60)


async def traffic() -> None:
    shop_closed = asyncio.Event()
    async with Producer("shop", mq.namesrv) as producer, Admin(mq.namesrv) as admin:
        async with asyncio.TaskGroup() as groups:
            groups.create_task(consume("billing", 0, shop_closed))
            groups.create_task(consume("mailing", 0.005, shop_closed))
            watching = asyncio.create_task(watch(admin))
            await shop(producer)
            shop_closed.set()
        watching.cancel()
        samples.extend(await lag.sample_with(admin))
        for start in range(0, len(traces), 100):
            await producer.send(Message(TRACE_TOPIC, "".join(traces[start : start + 100]).encode()))


run(traffic())
print(f"{sent:,} orders sent, {consumed['billing']:,} billed, {consumed['mailing']:,} mailed, {len(samples):,} samples of lag")

# %% [markdown]
# ## The topic as a table
# Nothing has to be registered: where Roquet is installed, Spark knows the format `rocketmq`.
# These are the default columns; `.option("columns", "all")` gives the other fifteen.

# %%
spark = session("tour", "local[2]", {"spark.sql.shuffle.partitions": "2"})  # there is little data
orders = spark.read.format("rocketmq").options(**where, subscribe="orders").load()
orders.printSchema()

# %%
facts = orders.selectExpr("queue_id as queue", "queue_offset as offset", "tags", "keys", "cast(body as string) as body")
facts.orderBy("offset", "queue").show(5, truncate=False)
orders.groupBy("tags").count().orderBy(f.desc("count")).show()

# %% [markdown]
# ## SQL over JSON
# Every topic is a view. `json` is the body, parsed with a schema that is inferred from the newest messages.
# `roquet pipeline sql` is the same as a prompt.

# %%
by_country = """
    select json.country, count(*) as orders, round(sum(json.amount), 2) as amount
    from orders where tags = 'paid' group by json.country order by orders desc
"""
topics = Topics(spark, where)
live = topics.run(by_country).cache()
live.show()
print(topics.schemas["orders"])

# %% [markdown]
# ## Throughput over time
# What was stored comes from the topic itself, what was consumed from the traces. `billing` follows the shop; `mailing` cannot
# in the rush, and works off afterwards what it has left.

# %%
events = trace.events(spark, where).cache()
start_ms = orders.selectExpr("min(unix_millis(store_time))").collect()[0][0]


def seconds(column: str) -> str:
    """SQL: whole seconds since the first order."""
    return f"cast(floor((unix_millis({column}) - {start_ms}) / 1000) as int) as second"


stored = orders.selectExpr(seconds("store_time"), "'shop' as who")
delivered = events.where("kind = 'SubBefore'").selectExpr(seconds("time"), "`group` as who")
per_second = stored.union(delivered).groupBy("second").pivot("who", ["shop", "billing", "mailing"]).count()
rows = per_second.na.fill(0).orderBy("second").collect()
spark.createDataFrame(rows, per_second.schema).where(f"second between {SECONDS * 0.3 - 2} and {SECONDS * 0.3 + 2}").show()

# %%
COLOURS = {"shop": "#9a9a9a", "billing": "#1f77b4", "mailing": "#d9622b"}
SIZE = (8, 3.5)
plt.rcParams.update({"figure.dpi": 100, "figure.constrained_layout.use": True, "axes.titlelocation": "left"})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True})
plt.rcParams.update({"grid.color": "#e4e4e4", "legend.frameon": False})

_, axes = plt.subplots(num="throughput", figsize=SIZE)
at = [row.second for row in rows]
axes.fill_between(at, [row.shop for row in rows], step="post", color=COLOURS["shop"], alpha=0.4, label="sent by the shop")
for group in ("billing", "mailing"):
    axes.step(at, [row[group] for row in rows], where="post", color=COLOURS[group], label=f"consumed by {group}")
axes.set(title="Throughput", xlabel="seconds since the first order", ylabel="messages a second")
axes.set_xlim(left=0)
axes.set_ylim(bottom=0)
axes.legend()
plt.show()

# %% [markdown]
# ## Lag over time, and when it will be gone
# A sample asks the brokers how far each group is in each queue; `roquet pipeline lag --every 5 --to lag` keeps a table of
# them. From the last samples a forecast tells when a group will have caught up. We make it a moment after the
# rush, with only the samples that there were then. It supposes that both sides go on as in the last samples.

# %%
table = lag.frame(spark, samples).cache()
then = f"timestamp_millis({start_ms + int(0.6 * SECONDS * 1000)})"
forecast = lag.of_groups(lag.forecast(table.where(f"time <= {then}"), window_s=SECONDS / 12)).cache()
forecast.selectExpr(
    "`group`", "lag", "round(produce_rate) as produced_per_s", "round(consume_rate) as consumed_per_s", "state",
    "round(catch_up_s, 1) as catch_up_s",
).show()  # fmt: skip

# %%
elapsed = f"(unix_millis(time) - {start_ms}) / 1000 as second"
over_time = table.groupBy("time", "group").agg(f.sum("lag").alias("lag")).selectExpr(elapsed, "`group`", "lag").orderBy("second")
behind: dict[str, list[tuple[float, int]]] = {"billing": [], "mailing": []}
for row in over_time.collect():
    behind[row.group].append((row.second, row.lag))

_, axes = plt.subplots(num="lag", figsize=SIZE)
for group, points in behind.items():
    axes.plot(*zip(*points, strict=True), color=COLOURS[group], label=group)
late = forecast.selectExpr(elapsed, "`group`", "lag", "catch_up_s").where("catch_up_s > 0")
for told in late.where("`group` = 'mailing'").collect():
    gone = told.second + told.catch_up_s
    label = f"forecast for mailing at {told.second:.0f} s"
    axes.plot((told.second, gone), (told.lag, 0), color="#333333", linestyle="--", marker="o", markersize=4, label=label)
    in_fact = next(second for second, count in behind["mailing"] if second > told.second and count < rate(0))
    print(f"forecast: mailing has caught up at {gone:.1f} s; in fact it was less than a second behind at {in_fact:.1f} s")
axes.set(title="Lag", xlabel="seconds since the first order", ylabel="messages not consumed yet")
axes.set_xlim(left=0)
axes.set_ylim(bottom=0)
axes.legend()
plt.show()

# %% [markdown]
# ## Latencies
# From the traces: `send` is how long the producer waited for the broker, `wait` the time from the sending until a group
# began with the message, `consume` how long the group worked on it. What makes `mailing` late is the waiting, not the work.

# %%
trace.messages(events).cache()  # the answers below are made of these two
trace.deliveries(events).cache()
latencies = trace.latencies(events).cache()
latencies.show()
trace.slowest(events, 3).select("keys", "group", "send_ms", "wait_ms", "consume_ms", "total_ms").show(truncate=False)

# %%
MARKERS = {"p50": "o", "p95": "s", "p99": "D"}
_, axes = plt.subplots(num="latency", figsize=SIZE)
steps = ("consume", "wait", "send")  # from the bottom up
measured = sorted(latencies.collect(), key=lambda row: (steps.index(row.measure), row.group))
for y, row in enumerate(measured):
    colour = COLOURS[row.group]
    axes.plot((row.p50_ms, row.p99_ms), (y, y), color=colour, linewidth=3, alpha=0.4)
    for name, marker in MARKERS.items():
        axes.plot(row[f"{name}_ms"], y, marker, color=colour)
for name, marker in MARKERS.items():
    axes.plot([], [], marker, color="#333333", label=name)
axes.set_yticks(range(len(measured)), [f"{row.group}: {row.measure}" for row in measured])
axes.set_xscale("symlog", linthresh=1)
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.set_xlim(-0.1, 2 * max(row.p99_ms for row in measured))
axes.set_ylim(-0.6, len(measured) - 0.4)
axes.set(title="Latency percentiles of the topic orders", xlabel="milliseconds (log scale above 1)")
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
# ## An archive
# Parquet files by topic and date. Every message is in them exactly once, however often the command runs and whenever it
# is killed: a second run adds what is new. The command is `roquet pipeline archive`.

# %%
first = archive(where, ["orders"], "archive", spark=spark)
again = archive(where, ["orders"], "archive", spark=spark)
print(f"first run: {first.rows:,} rows, {first.bytes / 1024:,.0f} KiB of Parquet; second run: {again.rows} rows")
for file in sorted(Path("archive").rglob("*.parquet")):
    print(file.parent)

# %% [markdown]
# The same query over the archive gives the same answer. The brokers are not needed for it, and may have forgotten the messages.

# %%
archived = Topics(spark, {"archive": "archive"}).run(by_country).cache()
archived.show()
print("the same as from the brokers:", archived.collect() == live.collect())

# %% [markdown]
# ## A stream of counts
# The streaming job to copy from: orders are counted by tag and window, each id once, and every closed window is sent as a
# message to another topic. Here it stops when it has read what is there. Windows that are still open stay in the checkpoint.

# %%
window = f"{max(1, round(SECONDS / 6))} seconds"
query = analytics(
    spark, where, "orders", "order-counts", checkpoint="checkpoint", window=window, watermark="0 seconds", until_now=True
)  # fmt: skip
query.awaitTermination()
counts = topics.run("select json.window_start, json.key as tag, json.count as orders from `order-counts`")
counts.groupBy("window_start").pivot("tag", ["paid", "open", "cancelled"]).sum("orders").orderBy("window_start").show(truncate=False)

# %% [markdown]
# That is all. [Topics in Spark](spark.md) has every option and column, [the archive](pipeline-archive.md) and
# [jobs on a cluster](spark-cluster.md) have pages of their own.

# %%
spark.stop()
run(servers.aclose())
os.chdir(home)
shutil.rmtree(scratch)
