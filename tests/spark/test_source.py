"""format("rocketmq") as a table: against a real broker and against its files."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from roquet import Admin, Message, Producer
from roquet.message import MessageQueue
from roquet.spark.columns import COLUMNS, arrow_schema
from roquet.spark.offsets import Range
from roquet.spark.options import BadOption, place_of, read_options
from roquet.spark.projection import Projection, check_schema
from roquet.spark.scan import DataLost, batches, matching, opened, plan
from roquet.wire.calls.brokers import CLEAN_EXPIRED_CONSUMEQUEUE, DELETE_EXPIRED_COMMITLOG
from tests.docs.snippets import ROOT, section, snippets
from tests.spark.conftest import Servers
from tests.spark.printed import Printed

NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def topic(servers: Servers) -> str:
    """1,000 messages in 4 queues, 250 each."""
    name = servers.topic("source_orders", 4)
    messages = [
        Message(name, b"body %d" % n, tags="odd" if n % 2 else "even", keys=f"key-{n}", properties={"n": str(n)}) for n in range(1_000)
    ]
    spread(servers, name, messages)
    return name


@pytest.fixture(scope="module")
def filtering(start_servers: Callable[..., Servers]) -> Servers:
    return start_servers(settings={"enablePropertyFilter": "true"})


def spread(servers: Servers, topic: str, messages: list[Message], queues: int = 4) -> None:
    """Evenly over the queues, in order."""

    async def work() -> None:
        async with Producer("source_tests", servers.namesrv) as producer:
            for number in range(queues):
                part = messages[number::queues]
                if part:
                    await producer.send_batch(part, queue=MessageQueue(topic, "broker-a", number))

    servers.run(work())


def brokers(servers: Servers, topic: str, **more: str) -> dict[str, str]:
    return {"namesrvAddr": servers.namesrv, "subscribe": topic, **more}


def files(servers: Servers, topic: str, **more: str) -> dict[str, str]:
    return {"path": str(servers.store), "subscribe": topic, **more}


def planned(given: dict[str, str], now_ms: int = NOW_MS) -> list[Range]:
    options = read_options(given)
    with contextlib.closing(place_of(options.where)) as place:
        return plan(place, options, now_ms)


def planned_ranges(where: Callable[..., dict[str, str]], servers: Servers, topic: str, **given: Any) -> dict[int, tuple[int, int]]:
    """(start, stop) of each queue. Options may be given as what their JSON says."""
    options = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    return {one.queue.queue_id: (one.start, one.stop) for one in planned(where(servers, topic, **options))}


def numbers(given: dict[str, str]) -> list[int]:
    """What a read gives, without Spark: the number in the key of every message, sorted."""
    options = read_options(given)
    found: list[int] = []
    with opened(options.where) as place:
        for one in planned(given):
            for batch in batches(place, one, options, arrow_schema(["keys"])):
                found += [int(key.removeprefix("key-")) for key in batch.column(0).to_pylist()]
    return sorted(found)


# Through Spark.


def test_brokers_and_files_give_the_same_table(spark: Any, servers: Servers, topic: str) -> None:
    tables = [
        spark.read.format("rocketmq").options(**where(servers, topic, columns="all")).load().orderBy("queue_id", "queue_offset").collect()
        for where in (brokers, files)
    ]
    assert tables[0] == tables[1]
    assert sorted(bytes(row.body) for row in tables[0]) == sorted(b"body %d" % n for n in range(1_000))
    row = tables[0][0]
    assert (row.topic, row.broker, row.queue_id, row.queue_offset) == (topic, "broker-a", 0, 0)
    assert row.properties["n"] == row.keys.removeprefix("key-")
    assert list(row.asDict()) == [column.name for column in COLUMNS]


FEW = ["topic", "broker", "queue_id", "queue_offset", "body", "keys", "tags", "born_time", "store_time", "unique_id"]


def test_a_table_and_a_stream_have_few_columns_unless_more_are_asked_for(spark: Any, servers: Servers, topic: str) -> None:
    everything = [column.name for column in COLUMNS]
    for reading in (spark.read, spark.readStream):
        for columns, expected in (({}, FEW), ({"columns": "ALL"}, everything), ({"columns": "properties, Tags"}, ["properties", "tags"])):
            assert reading.format("rocketmq").options(**brokers(servers, topic), **columns).load().columns == expected
    row = spark.read.format("rocketmq").options(**brokers(servers, topic)).load().where("queue_id = 1 and queue_offset = 7").collect()[0]
    assert (row.topic, row.broker, bytes(row.body), row.keys, row.tags) == (topic, "broker-a", b"body 29", "key-29", "odd")
    assert row.born_time <= row.store_time
    assert len(row.unique_id) == 32
    chosen = spark.read.format("rocketmq").options(**files(servers, topic, columns="tags,stored_size")).load()
    assert {row.tags for row in chosen.where("stored_size > 0").collect()} == {"odd", "even"}


def test_columns_of_a_view_are_chosen_by_its_options(spark: Any, servers: Servers, topic: str) -> None:
    for columns, expected in (("", FEW), (", columns 'keys,properties'", ["keys", "properties"])):
        options = f"namesrvAddr '{servers.namesrv}', subscribe '{topic}'{columns}"
        spark.sql(f"create or replace temporary view source_few using rocketmq options ({options})")
        assert spark.table("source_few").columns == expected


def test_a_users_schema_chooses_orders_and_spells_the_columns(spark: Any, servers: Servers, topic: str) -> None:
    chosen = "TAGS string, queue_offset bigint not null, properties map<string,string>"
    frame = spark.read.format("rocketmq").options(**brokers(servers, topic)).schema(chosen).load()
    assert frame.columns == ["TAGS", "queue_offset", "properties"]
    rows = frame.where("queue_offset < 2").collect()
    assert len(rows) == 8
    assert {row.TAGS for row in rows} == {"odd", "even"}
    assert all("n" in row.properties for row in rows)


def test_a_topic_is_a_view_and_a_split_table_in_sql(spark: Any, servers: Servers, topic: str) -> None:
    given = ", ".join(f"{name} '{value}'" for name, value in brokers(servers, topic, minPartitions="6").items())
    spark.sql(f"create or replace temporary view source_orders using rocketmq options ({given})")
    counted = spark.sql("select tags, count(*) as n from source_orders group by tags order by tags")
    assert [tuple(row) for row in counted.collect()] == [("even", 500), ("odd", 500)]
    # Four queues of 250 rows, at least six tasks: pieces of 125 and 125.
    assert spark.table("source_orders").rdd.getNumPartitions() == 8


def test_mistakes_show_as_a_sentence(spark: Any, servers: Servers, topic: str) -> None:
    reading = spark.read.format("rocketmq")
    with pytest.raises(Exception, match=r"BadOption: the rocketmq source has no option subscribed; did you mean subscribe\?"):
        reading.options(namesrvAddr=servers.namesrv, subscribed=topic).load()
    with pytest.raises(Exception, match=r"BadOption: the schema names tag, which is no column of a topic; did you mean tags\?"):
        spark.read.format("rocketmq").options(**brokers(servers, topic)).schema("tag string").load().collect()
    for reading in (spark.read, spark.readStream):
        with pytest.raises(
            Exception, match=r"columns=body,tag names tag, which is no column of a topic; did you mean tags\? There are topic, broker"
        ):
            reading.format("rocketmq").options(**brokers(servers, topic, columns="body,tag")).load()
    with pytest.raises(Exception, match="a schema and the option columns both say which columns to read"):
        spark.read.format("rocketmq").options(**brokers(servers, topic, columns="body")).schema("tags string").load().collect()


def test_an_empty_topic_is_an_empty_table(spark: Any, servers: Servers) -> None:
    name = servers.topic("source_empty", 2)
    assert spark.read.format("rocketmq").options(**brokers(servers, name)).load().collect() == []


def test_filters_narrow_what_is_read_when_asked_to(spark: Any, servers: Servers, topic: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        # A DataFrame for each query: Spark 4.3 keeps the filters of the last one (docs/spark.md).
        frames = [
            spark.read.format("rocketmq").options(**brokers(servers, topic, pushdown="true", minPartitions="4")).load() for _ in range(3)
        ]
        chosen = frames[0].where("queue_id = 1 and queue_offset between 10 and 19 and store_time > '2020-01-01' and tags is not null")
        assert chosen.count() == 10
        assert frames[1].count() == 1_000
        assert frames[2].where("store_time < '2020-01-01'").rdd.getNumPartitions() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_package_that_spark_looks_for_is_light() -> None:
    code = "import sys, pyspark.sql.datasource, pyspark_rocketmq as p; print(p.DefaultSource.name(), 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "rocketmq False\n"


# Which messages: the same for Spark, without its cost.


def test_several_topics_are_read_and_one_that_is_not_there_is_named(servers: Servers, topic: str) -> None:
    other = servers.topic("source_other", 1)
    spread(servers, other, [Message(other, b"x", keys="key-7")], 1)
    for where in (brokers, files):
        assert len(numbers(where(servers, f"{topic},{other}"))) == 1_001
        with pytest.raises(Exception, match="source_nowhere"):
            planned(where(servers, f"{topic},source_nowhere"))


def test_a_pattern_means_whole_names_and_no_system_topics() -> None:
    there = ["orders", "orders2", "my_orders", "RMQ_SYS_TRACE_TOPIC", "TBW102", "%DLQ%orders", "%RETRY%g", "DefaultCluster_REPLY_TOPIC"]
    assert matching(there, "orders.*") == ["orders", "orders2"]
    assert matching(there, ".*") == ["my_orders", "orders", "orders2"]
    assert matching(there, "%DLQ%.*") == ["%DLQ%orders"]


def test_a_pattern_is_read_from_brokers_and_files(servers: Servers, topic: str) -> None:
    for place in ({"namesrvAddr": servers.namesrv}, {"path": str(servers.store)}):
        assert len(numbers({**place, "subscribePattern": "source_ord.*"})) == 1_000


def test_assigned_queues_are_read_and_no_others(servers: Servers, topic: str) -> None:
    where = {"namesrvAddr": servers.namesrv}
    given = where | {"assign": json.dumps({topic: {"broker-a": [3, 1]}})}
    assert [(one.queue.queue_id, one.rows) for one in planned(given)] == [(1, 250), (3, 250)]
    with pytest.raises(BadOption, match=f"assign names {topic}/9, which is not there; there are 0 on broker-a, 1 on broker-a"):
        planned(where | {"assign": json.dumps({topic: [9]})})


def test_offsets_may_name_some_queues_and_words(servers: Servers, topic: str) -> None:
    given = {
        "startingOffsets": json.dumps({topic: {"broker-a": {"0": 10, "1": -1, "2": -2}}}),
        "endingOffsets": json.dumps({topic: {"broker-a": {"0": 20, "3": 5}}}),
    }
    for where in (brokers, files):
        found = {one.queue.queue_id: (one.start, one.stop) for one in planned(where(servers, topic, **given))}
        assert found == {0: (10, 20), 2: (0, 250), 3: (0, 5)}


def test_a_batch_from_latest_would_be_empty_and_is_refused(servers: Servers, topic: str) -> None:
    with pytest.raises(BadOption, match="startingOffsets=latest would read nothing"):
        planned(brokers(servers, topic, startingOffsets="latest"))


def test_times_choose_messages(servers: Servers) -> None:
    name = servers.topic("source_times", 1)
    spread(servers, name, [Message(name, b"x", keys=f"key-{n}") for n in range(5)], 1)
    middle = time.time_ns() // 1_000_000 + 2
    while time.time_ns() // 1_000_000 < middle + 2:
        pass  # so that the clock is past the middle
    spread(servers, name, [Message(name, b"x", keys=f"key-{n}") for n in range(5, 8)], 1)
    for where in (brokers, files):
        assert numbers(where(servers, name, startingTimestamp=str(middle))) == [5, 6, 7]
        assert numbers(where(servers, name, endingTimestamp=str(middle))) == [0, 1, 2, 3, 4]
        assert len(planned(where(servers, name, startingTimestamp="-10 minutes"), middle)) == 1
        assert planned(where(servers, name, startingTimestamp="-1 ms"), middle + 3_600_000) == []


def test_each_queue_may_begin_and_end_at_a_time_of_its_own(servers: Servers, spark: Any) -> None:
    name = servers.topic("source_own_times", 3)
    spread(servers, name, [Message(name, b"x", keys=f"key-{n}") for n in range(6)], 3)  # two in each queue
    middle = time.time_ns() // 1_000_000 + 2
    while time.time_ns() // 1_000_000 < middle + 2:
        pass  # so that the clock is past the middle
    spread(servers, name, [Message(name, b"x", keys=f"key-{n}") for n in range(6, 12)], 3)
    far = middle + 3_600_000
    for where in (brokers, files):
        found = partial(planned_ranges, where, servers, name)
        assert found(startingOffsetsByTimestamp={name: middle}) == {0: (2, 4), 1: (2, 4), 2: (2, 4)}
        assert found(startingOffsetsByTimestamp={name: {"1": middle}}) == {0: (0, 4), 1: (2, 4), 2: (0, 4)}
        own = {name: {"broker-a": {"0": middle, "1": "2001-01-01T00:00:00Z", "2": far}}}
        assert found(startingOffsetsByTimestamp=own) == {0: (2, 4), 1: (0, 4)}
        assert found(endingOffsetsByTimestamp={name: {"broker-a": {"0": middle}}}) == {0: (0, 2), 1: (0, 4), 2: (0, 4)}
        assert found(startingOffsetsByTimestamp={name: {"0": middle}}, endingOffsetsByTimestamp={name: {"1": middle}}) == {
            0: (2, 4), 1: (0, 2), 2: (0, 4)
        }  # fmt: skip
        for wrong, told in (
            ({name: {"9": middle}}, f"startingOffsetsByTimestamp names {name}/9, which is not read; there are 0 on broker-a"),
            ({name: {"broker-x": {"0": middle}}}, f"names {name}/0 on broker-x, which is not read"),
            ({"source_own": middle}, f"names source_own, which is not read; topics that are read: {name}"),
        ):
            with pytest.raises(BadOption, match=told):
                found(startingOffsetsByTimestamp=wrong)
        strict = {"startingOffsetsByTimestampStrategy": "error"}
        with pytest.raises(BadOption, match=f"{name}/2 on broker-a has no message that was stored at {far} or later"):
            found(startingOffsetsByTimestamp=own, **strict)
        with pytest.raises(BadOption, match="or later; choose an earlier time"):
            found(startingTimestamp=str(far), **strict)
    table = spark.read.format("rocketmq").options(**brokers(servers, name, startingOffsetsByTimestamp=json.dumps({name: {"1": middle}})))
    assert table.load().count() == 10


def test_tags_and_sql_leave_gaps_and_lose_nothing(filtering: Servers) -> None:
    name = filtering.topic("source_filtered", 2)
    spread(filtering, name, [Message(name, b"x", keys=f"key-{n}", tags=f"t{n % 7}", properties={"n": str(n)}) for n in range(700)], 2)
    for where in (brokers, files):
        assert numbers(where(filtering, name, tags="t1 || t3")) == [n for n in range(700) if n % 7 in (1, 3)]
        assert numbers(where(filtering, name, sql="n > 650 AND TAGS = 't1'")) == [n for n in range(651, 700) if n % 7 == 1]


def test_checksums_are_checked_when_asked_for(servers: Servers, topic: str) -> None:
    for where in (brokers, files):
        assert len(numbers(where(servers, topic, checkCrc="true"))) == 1_000


def test_a_place_is_kept_open_for_the_next_task_and_dropped_after_an_error(servers: Servers, topic: str) -> None:
    where = read_options(brokers(servers, topic)).where
    with opened(where) as first:
        pass
    with opened(where) as again:
        assert again is first
        with opened(where) as other:  # used by one at a time
            assert other is not first
    with pytest.raises(ValueError), opened(where) as last:
        raise ValueError
    with opened(where) as new:
        assert new is not last


def test_a_schema_is_checked_before_anything_is_read() -> None:
    from pyspark.sql.types import BinaryType, IntegerType, MapType, StringType, StructField, StructType

    def of(*fields: StructField) -> StructType:
        return StructType(list(fields))

    check_schema(of(StructField("Body", BinaryType())))
    for schema, words in (
        (of(), "no columns"),
        (of(StructField("queue_id", StringType())), "queue_id as string; it is int"),
        (of(StructField("tags", StringType()), StructField("TAGS", StringType())), "TAGS twice"),
        (of(StructField("properties", MapType(StringType(), IntegerType()))), "map<string,int>; it is map<string,string>"),
    ):
        with pytest.raises(BadOption, match=words):
            check_schema(schema)
    strict = of(StructField("properties", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False))
    field = Projection.of(strict).wanted.field(0)
    assert (field.nullable, field.type.item_field.nullable) == (False, False)


# What is gone.


@pytest.fixture(scope="module")
def shortened(start_servers: Callable[..., Servers]) -> tuple[Servers, str, int]:
    """A topic of one queue whose oldest messages retention has removed; (servers, topic, its first offset)."""
    servers = start_servers(settings={"mappedFileSizeCommitLog": "16384", "mappedFileSizeConsumeQueue": "2000"})
    name = servers.topic("source_shortened", 1)
    spread(servers, name, [Message(name, b"x" * 200, keys=f"key-{n}") for n in range(400)], 1)
    old = sorted((servers.store / "commitlog").iterdir())[:2]
    for file in old:
        os.utime(file, (1, 1))

    async def work() -> int:
        queue = MessageQueue(name, "broker-a", 0)
        async with Admin(servers.namesrv) as admin:
            address = (await admin.masters())[0].address
            for call in (DELETE_EXPIRED_COMMITLOG, CLEAN_EXPIRED_CONSUMEQUEUE):
                await admin.call(address, call)
            return await admin.min_offset(queue)

    first = 0
    deadline = time.monotonic() + 600
    # The broker knows that they are gone before they are: files are unlinked in the background, one after another.
    while (first == 0 or any(file.exists() for file in old)) and time.monotonic() < deadline:
        first = servers.run(work())
    assert 0 < first < 400
    return servers, name, first


def test_messages_that_are_gone_fail_the_read(shortened: tuple[Servers, str, int]) -> None:
    servers, name, first = shortened
    given = {"startingOffsets": json.dumps({name: {"broker-a": {"0": 3}}})}
    for where in (brokers, files):
        with pytest.raises(DataLost, match=rf"{name}/0 on broker-a: messages 3 to {first - 1} were to be read .* failOnDataLoss=false"):
            planned(where(servers, name, **given))
        assert numbers(where(servers, name)) == list(range(first, 400))


def test_a_beginning_behind_the_end_fails_the_read_unless_told_otherwise(
    servers: Servers, topic: str, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    far = json.dumps({topic: {"broker-a": {"2": 251}}})
    told = (
        rf"{topic}/2 on broker-a: the read is to begin at 251, and the queue has 0 to 249\. Check startingOffsets; .*failOnDataLoss=false"
    )
    for where in (brokers, files):
        with pytest.raises(DataLost, match=told):
            planned(where(servers, topic, startingOffsets=far))
        caplog.clear()
        found = planned(where(servers, topic, startingOffsets=far, failOnDataLoss="false"))
        assert [(one.queue.queue_id, one.rows) for one in found] == [(0, 250), (1, 250), (3, 250)]
        assert "the read is to begin at 251" in caplog.text
        at_the_end = json.dumps({topic: {"broker-a": {"2": 250}}})  # the next that comes: nothing is missing
        assert len(planned(where(servers, topic, startingOffsets=at_the_end))) == 3
    with pytest.raises(Exception, match=told):
        spark.read.format("rocketmq").options(**brokers(servers, topic, startingOffsets=far)).load().count()


def test_an_end_before_the_beginning_is_refused(servers: Servers, topic: str) -> None:
    given = {
        "startingOffsets": json.dumps({topic: {"broker-a": {"1": 100}}}),
        "endingOffsets": json.dumps({topic: {"broker-a": {"1": 40}}}),
    }
    for where in (brokers, files):
        for fail in ("true", "false"):
            with pytest.raises(BadOption, match=rf"{topic}/1 on broker-a: startingOffsets begins at 100 and endingOffsets ends before 40"):
                planned(where(servers, topic, **given, failOnDataLoss=fail))


def test_offsets_of_what_is_not_read_are_refused(servers: Servers, topic: str) -> None:
    for option in ("startingOffsets", "endingOffsets"):
        for queue, told in (
            ((topic, "broker-a", "9"), rf"{option} names {topic}/9 on broker-a, which is not read; there are 0 on broker-a"),
            ((topic, "broker-b", "0"), rf"{option} names {topic}/0 on broker-b, which is not read; there are 0 on broker-a"),
            (("source_ordres", "broker-a", "0"), rf"{option} names source_ordres/0 .* topics that are read: {topic}"),
        ):
            with pytest.raises(BadOption, match=told):
                planned(brokers(servers, topic, **{option: json.dumps({queue[0]: {queue[1]: {queue[2]: 5}}})}))


def test_or_are_left_out_when_told_so(shortened: tuple[Servers, str, int], caplog: pytest.LogCaptureFixture) -> None:
    servers, name, first = shortened
    given = {
        "startingOffsets": json.dumps({name: {"broker-a": {"0": 3}}}),
        "endingOffsets": json.dumps({name: {"broker-a": {"0": 500}}}),
        "failOnDataLoss": "false",
    }
    for where in (brokers, files):
        caplog.clear()
        assert numbers(where(servers, name, **given)) == list(range(first, 400))
        assert f"messages 3 to {first - 1} " in caplog.text
        assert "messages 400 to 499 " in caplog.text


def test_messages_that_go_after_planning_are_seen_by_the_task(
    shortened: tuple[Servers, str, int], caplog: pytest.LogCaptureFixture
) -> None:
    servers, name, first = shortened
    late = Range(MessageQueue(name, "broker-a", 0), 0, 400)
    for where in (brokers, files):
        for fail in ("true", "false"):
            options = read_options(where(servers, name, failOnDataLoss=fail))
            place = place_of(options.where)
            try:
                reading = batches(place, late, options, arrow_schema(["queue_offset"]))
                if fail == "true":
                    with pytest.raises(DataLost, match="messages 0 to"):
                        list(reading)
                else:
                    assert [n for batch in reading for n in batch.column(0).to_pylist()] == list(range(first, 400))
            finally:
                place.close()


def test_the_store_may_be_a_path_of_load(spark: Any, shortened: tuple[Servers, str, int]) -> None:
    servers, name, first = shortened
    assert spark.read.format("rocketmq").option("subscribe", name).load(str(servers.store)).count() == 400 - first


def test_the_snippets_of_the_document_run_as_printed(spark: Any, servers: Servers, topic: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    of_the_sink = snippets(section(text, "Writing to a topic"))  # test_sink_docs.py runs those
    of_the_source = [snippet for snippet in snippets(text) if snippet not in of_the_sink]
    assert len(of_the_source) == 6
    printed = Printed(servers, tmp_path, {"orders": topic}, spark=spark)
    for snippet in of_the_source:
        printed.run(snippet)
    assert spark.read.parquet(f"{tmp_path}/orders.parquet").count() == 1_000


def test_a_worker_that_has_read_is_not_looked_through_for_garbage_again(servers: Servers, topic: str) -> None:
    """Spark does that after every task."""
    code = """
import gc
from pyspark.sql.types import BinaryType, StructField, StructType
from roquet.spark.source import RocketMQ
options = {"namesrvAddr": %r, "subscribe": %r}
reader = RocketMQ(options).reader(schema=StructType([StructField("body", BinaryType())]))
rows = [sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) for _ in range(2)]
print(*rows, gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 10_000)
"""
    done = subprocess.run([sys.executable, "-c", code % (servers.namesrv, topic)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["1000", "1000", "True", "True"], done.stderr
