"""Topics into an archive and back out: through real servers, in this process and on Spark."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet import Message, Producer
from roquet.cli.main import main
from roquet.errors import ConnectFailed, NoRoute
from roquet.message import MessageQueue
from roquet.spark.archive import write
from roquet.spark.archive.delta import DeltaBook
from roquet.spark.archive.jobs import OnSpark, TaskFailed, cause
from roquet.spark.archive.ledger import load
from roquet.spark.archive.manifest import ArchiveError, Gap, Span
from roquet.spark.archive.plan import chosen_topics, cut, rows_of_batch, starts
from roquet.spark.archive.typed import parse_property, value_of
from roquet.spark.offsets import Range
from roquet.spark.options import place_of
from roquet.spark.pipelines.archive import Control, Output, Selection, archive, archive_info, compact, plan, read_archive, verify_archive
from roquet.spark.places import DataGone, Wanted
from tests.spark.conftest import Servers

COUNT = 300


def messages(topic: str, count: int = COUNT, first: int = 0) -> list[Message]:
    return [
        Message(topic, b"%d" % number + os.urandom(20), keys=f"key-{number}", tags="even" if number % 2 == 0 else "odd",
                properties={"number": str(number), "region": "eu"})
        for number in range(first, first + count)
    ]  # fmt: skip


def send(servers: Servers, listed: Sequence[Message]) -> None:
    """A third to each of three queues."""

    async def work() -> None:
        async with Producer("archive_tests", servers.namesrv) as producer:
            for number in range(3):
                if listed[number::3]:
                    await producer.send_batch(listed[number::3], queue=MessageQueue(listed[0].topic, "broker-a", number))

    servers.run(work())


@pytest.fixture
def topic(servers: Servers) -> str:
    name = servers.topic(f"archive-{uuid.uuid4().hex}", queues=3)
    send(servers, messages(name))
    return name


@pytest.fixture
def where(servers: Servers) -> dict[str, str]:
    return {"namesrvAddr": servers.namesrv}


def read(path: Path) -> pa.Table:
    """As any reader of a directory with partitions would."""
    days = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.string())]), flavor="hive")
    return ds.dataset(path, partitioning=days).to_table()


def numbers(path: Path) -> list[int]:
    return sorted(int(dict(row)["number"]) for row in read(path)["properties"].to_pylist())


# ---- what is archived ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [False, True])
def test_a_topic_is_archived_once_and_the_next_run_takes_what_came_since(
    servers: Servers, topic: str, where: dict[str, str], tmp_path: Path, delta: bool
) -> None:
    assert archive(where, [topic], tmp_path / "a", output=Output(delta=delta)).rows == COUNT
    assert archive(where, [topic], tmp_path / "a", output=Output(delta=delta)).rows == 0
    send(servers, messages(topic, 50, COUNT))
    assert archive(where, [topic], tmp_path / "a", output=Output(delta=delta)).rows == 50
    assert numbers(tmp_path / "a") == list(range(COUNT + 50))
    verdict = verify_archive(tmp_path / "a")
    assert (verdict.rows, verdict.problems) == (COUNT + 50, [])


def test_a_store_s_files_give_the_same_archive_as_its_broker(servers: Servers, topic: str, where: dict[str, str], tmp_path: Path) -> None:
    archive(where, [topic], tmp_path / "broker")
    archive({"path": str(servers.store)}, [topic], tmp_path / "files")
    by = [("queue_id", "ascending"), ("queue_offset", "ascending")]
    assert read(tmp_path / "broker").drop(["broker"]).sort_by(by) == read(tmp_path / "files").drop(["broker"]).sort_by(by)


def test_batches_are_bounded_and_every_one_is_a_commit(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    summary = archive(
        where,
        [topic],
        tmp_path / "a",
        output=Output(batch_rows=70),
        control=Control(progress=lambda done, total: seen.append((done, total))),
    )
    assert summary.batches == 5
    assert seen == [(70, COUNT), (140, COUNT), (210, COUNT), (280, COUNT), (COUNT, COUNT)]
    assert load(tmp_path / "a").number == 4
    assert verify_archive(tmp_path / "a").fine


def test_a_filter_leaves_rows_out_and_the_offsets_still_go_on(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    summary = archive(where, [topic], tmp_path / "a", selection=Selection(wanted=Wanted(tags="even")))
    assert (summary.rows, summary.messages) == (COUNT // 2, COUNT)
    assert numbers(tmp_path / "a") == list(range(0, COUNT, 2))
    assert archive(where, [topic], tmp_path / "a", selection=Selection(wanted=Wanted(tags="even"))).messages == 0
    assert verify_archive(tmp_path / "a").fine


def test_latest_is_remembered_even_when_nothing_came_yet(servers: Servers, topic: str, where: dict[str, str], tmp_path: Path) -> None:
    assert archive(where, [topic], tmp_path / "a", selection=Selection(starting="latest")).rows == 0
    send(servers, messages(topic, 5, COUNT))
    assert archive(where, [topic], tmp_path / "a", selection=Selection(starting="latest")).rows == 5


def test_a_run_that_follows_goes_on_until_it_is_stopped(servers: Servers, topic: str, where: dict[str, str], tmp_path: Path) -> None:
    rounds: list[int] = []

    def wait(_seconds: float) -> None:
        rounds.append(1)
        if len(rounds) == 1:
            send(servers, messages(topic, 7, COUNT))

    def stop() -> bool:
        return len(read_rows(tmp_path / "a")) == COUNT + 7

    summary = archive(where, [topic], tmp_path / "a", control=Control(follow=True, every_s=0.01, wait=wait, stop=stop))
    assert (summary.rows, summary.batches) == (COUNT + 7, 2)


def read_rows(path: Path) -> list[int]:
    return numbers(path) if list(path.glob("topic=*")) else []


def test_a_broker_that_is_away_for_a_moment_is_waited_for(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    opened: list[int] = []

    def flaky(options: Any) -> Any:
        opened.append(1)
        place = place_of(options)
        if len(opened) == 2:  # the first task's
            place.chunks = away  # type: ignore[method-assign,assignment]
        return place

    def away(*_: object) -> Iterable[Any]:
        raise ConnectFailed("the broker is away")

    assert archive(where, [topic], tmp_path / "a", control=Control(open_place=flaky, every_s=0.01)).rows == COUNT
    assert verify_archive(tmp_path / "a").fine


def test_a_topic_that_is_forgotten_while_its_broker_is_away_is_waited_for(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    asked = iter(range(1 << 30))

    def forgetful(options: Any) -> Any:
        """As a name server that has just lost the broker; but the archive has a batch of the topic already."""
        place = place_of(options)
        real = place.topics
        place.topics = lambda: [] if next(asked) == 1 else real()  # type: ignore[method-assign]
        return place

    assert (
        archive(
            where, [topic], tmp_path / "a", output=Output(batch_rows=COUNT // 2), control=Control(open_place=forgetful, every_s=0.01)
        ).rows
        == COUNT
    )
    with pytest.raises(NoRoute):
        archive(where, [topic, "never-there"], tmp_path / "a")


def test_messages_that_are_gone_stop_the_run_unless_they_may_be_skipped(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    archive(where, [topic], tmp_path / "a", output=Output(batch_rows=3), control=Control(stop=after(1)))
    reached = load(tmp_path / "a").offsets

    def short(options: Any) -> Any:
        """As if retention had removed all but the last ten of each queue."""
        place = place_of(options)
        real = place.bounds
        place.bounds = lambda queues: {queue: (high - 10, high) for queue, (_, high) in real(queues).items()}  # type: ignore[method-assign]
        return place

    with pytest.raises(DataGone, match="was asked for"):
        archive(where, [topic], tmp_path / "a", control=Control(open_place=short))
    summary = archive(where, [topic], tmp_path / "a", selection=Selection(skip_lost=True), control=Control(open_place=short))
    assert summary.rows == 30
    assert {(gap.queue_id, gap.start) for gap in summary.gaps} == {(queue.queue_id, offset) for queue, offset in reached.items()}
    assert verify_archive(tmp_path / "a").fine
    assert len(archive_info(tmp_path / "a")["gaps"]) == 3


def after(count: int) -> Callable[[], bool]:
    asked = iter(range(1 << 30))
    return lambda: next(asked) >= count


# ---- columns --------------------------------------------------------------------------------------------------------------


def test_a_property_becomes_a_column_later_and_older_files_give_null(
    servers: Servers, topic: str, where: dict[str, str], tmp_path: Path, spark: Any
) -> None:
    archive(where, [topic], tmp_path / "a")
    send(servers, messages(topic, 20, COUNT))
    archive(where, [topic], tmp_path / "a", spark=spark, output=Output(properties=["number:bigint", "region"]))
    rows = read_archive(spark, tmp_path / "a").select("properties", "number", "region").collect()
    assert sorted(row.number for row in rows if row.number is not None) == list(range(COUNT, COUNT + 20))
    assert all(row.region == ("eu" if row.number is not None else None) for row in rows)
    with pytest.raises(ArchiveError, match="number is bigint"):
        archive(where, [topic], tmp_path / "a", output=Output(properties=["number:string"]))


def test_fewer_columns_can_be_asked_for_and_offsets_are_always_there(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    archive(where, [topic], tmp_path / "a", output=Output(columns=["topic", "body"]))
    assert set(read(tmp_path / "a").schema.names) == {"broker", "queue_id", "queue_offset", "store_time", "body", "topic", "date"}
    assert verify_archive(tmp_path / "a").fine
    with pytest.raises(ArchiveError, match="no column colour"):
        archive(where, [topic], tmp_path / "b", output=Output(columns=["colour"]))


def test_a_run_that_fails_lets_go_of_the_archive(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ArchiveError, match="no column colour"):
            archive(where, [topic], tmp_path / "a", output=Output(columns=["colour"]))
    assert archive(where, [topic], tmp_path / "a").rows == COUNT


def test_a_value_that_is_not_of_its_type_is_null() -> None:
    def column(kind: str, *texts: str | None) -> list[Any]:
        maps = pa.array([[("a", text)] if text is not None else [] for text in texts], pa.map_(pa.string(), pa.string()))
        result: list[Any] = value_of(maps, "a", kind).to_pylist()
        return result

    assert column("string", "x", None, "") == ["x", None, ""]
    assert column("bigint", "12", "-7", "+5", "x", "1.5", "9" * 30, None) == [12, -7, 5, None, None, None, None]
    assert column("double", "1.5", "-2", ".5", "1e3", "nan", "", "1,5") == [1.5, -2.0, 0.5, 1000.0, None, None, None]
    assert column("boolean", "true", "FALSE", "1", "yes") == [True, False, True, None]
    assert [str(value) for value in column("timestamp", "1700000000000", "soon")] == ["2023-11-14 22:13:20+00:00", "None"]


@pytest.mark.parametrize(
    ("text", "why"), [("a:int", "not a type"), ("body:string", "clash"), ("a b", "cannot name"), (":string", "cannot name")]
)
def test_a_property_that_cannot_be_a_column_is_refused(text: str, why: str) -> None:
    with pytest.raises(ArchiveError, match=why):
        parse_property(text)


CODECS = {"zstd": "ZSTD", "lz4": "LZ4", "snappy": "SNAPPY", "none": "UNCOMPRESSED"}


def codecs(path: Path) -> set[str]:
    """Of every column of every committed file."""
    from roquet.spark.archive.read import opened

    groups = [pq.read_metadata(path / file).row_group(0) for file in opened(path).files]
    return {group.column(at).compression for group in groups for at in range(group.num_columns)}


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("compression", CODECS)
def test_files_are_compressed_as_asked_also_when_they_are_put_together_and_by_the_next_run(
    servers: Servers, topic: str, where: dict[str, str], tmp_path: Path, compression: str, delta: bool
) -> None:
    archive(where, [topic], tmp_path / "a", output=Output(compression=compression, batch_rows=100, delta=delta))
    assert codecs(tmp_path / "a") == {CODECS[compression]}
    assert compact(tmp_path / "a") == 3
    assert codecs(tmp_path / "a") == {CODECS[compression]}
    send(servers, messages(topic, 10, COUNT))
    archive(where, [topic], tmp_path / "a", output=Output(delta=delta))
    assert codecs(tmp_path / "a") == {CODECS[compression]}
    assert archive_info(tmp_path / "a")["compression"] == compression
    assert verify_archive(tmp_path / "a").rows == COUNT + 10


def test_a_new_archive_is_compressed_with_zstd_and_can_change_to_another(
    servers: Servers, topic: str, where: dict[str, str], tmp_path: Path, spark: Any
) -> None:
    archive(where, [topic], tmp_path / "a")
    assert codecs(tmp_path / "a") == {"ZSTD"}
    for number, compression in enumerate(CODECS):
        send(servers, messages(topic, 10, COUNT + number * 10))
        archive(where, [topic], tmp_path / "a", output=Output(compression=compression))
    assert codecs(tmp_path / "a") == set(CODECS.values())
    rows = read_archive(spark, tmp_path / "a").select("properties").collect()
    assert sorted(int(row.properties["number"]) for row in rows) == list(range(COUNT + 10 * len(CODECS)))
    with pytest.raises(ArchiveError, match="no compression brotli; there are zstd, lz4, snappy, none"):
        archive(where, [topic], tmp_path / "a", output=Output(compression="brotli"))


# ---- looking after it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [False, True])
def test_small_files_are_put_together_and_the_rows_stay(topic: str, where: dict[str, str], tmp_path: Path, delta: bool) -> None:
    archive(where, [topic], tmp_path / "a", output=Output(batch_rows=50, delta=delta))
    by = [("queue_id", "ascending"), ("queue_offset", "ascending")]
    before = archive_table(tmp_path / "a").sort_by(by)
    assert archive_info(tmp_path / "a")["files"] == 6
    assert compact(tmp_path / "a") == 6
    assert archive_info(tmp_path / "a")["files"] == 1
    assert archive_table(tmp_path / "a").sort_by(by) == before
    assert verify_archive(tmp_path / "a").fine
    assert archive(where, [topic], tmp_path / "a", output=Output(delta=delta)).rows == 0
    assert compact(tmp_path / "a") == 0


def archive_table(path: Path) -> pa.Table:
    from roquet.spark.archive.read import opened

    return pa.concat_tables([pq.read_table(path / file, partitioning=None) for file in opened(path).files])


def test_a_compacted_file_is_in_the_order_of_its_queues(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    archive(where, [topic], tmp_path / "a", output=Output(batch_rows=50))
    compact(tmp_path / "a")
    table = archive_table(tmp_path / "a")
    keys = list(zip(table["queue_id"].to_pylist(), table["queue_offset"].to_pylist(), strict=True))
    assert keys == sorted(keys)


def test_a_day_with_very_many_small_files_is_compacted_unasked(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    assert archive(where, [topic], tmp_path / "a", output=Output(batch_rows=50, compact_above=10)).compacted == 0
    assert archive(where, [topic], tmp_path / "a", output=Output(compact_above=5)).compacted == 6


@pytest.mark.parametrize("delta", [False, True])
def test_a_run_that_follows_compacts_while_it_goes(topic: str, where: dict[str, str], tmp_path: Path, delta: bool) -> None:
    """It may run for months."""
    seen: list[int] = []
    summary = archive(
        where,
        [topic],
        tmp_path / "a",
        output=Output(batch_rows=20, compact_above=4, delta=delta),
        control=Control(follow=True, every_s=0.01, progress=lambda done, _: seen.append(done), stop=lambda: len(seen) == COUNT // 20),
    )
    assert summary.compacted >= 10
    assert archive_info(tmp_path / "a")["files"] <= 5
    assert len(archive_table(tmp_path / "a")) == COUNT
    assert verify_archive(tmp_path / "a").problems == []


def test_a_delta_table_keeps_a_committed_file_whatever_number_its_name_has(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    """Names of an uncommitted batch tell its number; those that optimize gives mean something else."""
    archive(where, [topic], tmp_path, output=Output(delta=True))
    with closing(DeltaBook.open(tmp_path)) as book:
        file = next(iter(book.state.files.values()))
        other = replace(file, path=file.path.replace("part-00000000", "part-00000099"))
        shutil.copy(tmp_path / file.path, tmp_path / other.path)
        book.commit("append", [other], columns=book.state.columns)
    with closing(DeltaBook.open(tmp_path)) as book:
        book.stage()
    assert (tmp_path / other.path).exists()


def test_verify_finds_what_was_done_to_the_files(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    archive(where, [topic], tmp_path / "a", output=Output(batch_rows=100))
    files = sorted((tmp_path / "a").glob("topic=*/date=*/*.parquet"))
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 1
    files[0].write_bytes(data)
    (files[1].parent / "copy.parquet").write_bytes(files[1].read_bytes())
    files[2].unlink()
    problems = "\n".join(verify_archive(tmp_path / "a").problems)
    assert "checksum" in problems
    assert "is no part of the archive" in problems
    assert "is gone" in problems
    assert "are missing" in problems


def test_an_archive_of_one_format_does_not_go_on_as_the_other(topic: str, where: dict[str, str], tmp_path: Path) -> None:
    archive(where, [topic], tmp_path / "a", output=Output(delta=True))
    with pytest.raises(ArchiveError, match="--format delta"):
        archive(where, [topic], tmp_path / "a")


class Crash(BaseException):
    pass


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("point", ["before commit", "committed"])
def test_a_crash_on_either_side_of_the_commit_loses_and_doubles_nothing(
    topic: str, where: dict[str, str], tmp_path: Path, point: str, delta: bool
) -> None:
    def fault(at: str) -> None:
        if at == point:
            raise Crash

    for _ in range(3):
        with pytest.raises(Crash):
            archive(where, [topic], tmp_path / "a", output=Output(batch_rows=60, delta=delta), control=Control(fault=fault))
    archive(where, [topic], tmp_path / "a", output=Output(delta=delta))
    assert sorted(int(dict(row)["number"]) for row in archive_table(tmp_path / "a")["properties"].to_pylist()) == list(range(COUNT))
    assert numbers(tmp_path / "a") == list(range(COUNT))
    assert verify_archive(tmp_path / "a").problems == []


CHILD = """
import sys
from roquet.spark.pipelines.archive import Output, archive
archive({"path": sys.argv[1]}, [sys.argv[2]], sys.argv[3], output=Output(batch_rows=12, delta=sys.argv[4] == "True"))
"""


@pytest.mark.parametrize("delta", [False, True])
def test_a_process_that_is_killed_again_and_again_archives_every_message_once(
    servers: Servers, topic: str, tmp_path: Path, delta: bool
) -> None:
    path = tmp_path / "a"
    log = path / ("_delta_log" if delta else "_roquet/commits")
    for _ in range(3):
        before = len(list(log.glob("0*.json")))
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(servers.store), topic, str(path), str(delta)])
        deadline = time.monotonic() + 600
        while len(list(log.glob("0*.json"))) < before + 4 and time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.001)
        child.kill()
        assert child.wait() == -signal.SIGKILL, "it was done before it could be killed"
    archive({"path": str(servers.store)}, [topic], path, output=Output(delta=delta))
    table = archive_table(path)
    assert sorted(int(dict(row)["number"]) for row in table["properties"].to_pylist()) == list(range(COUNT))
    assert verify_archive(path).problems == []
    if not delta:
        assert numbers(path) == list(range(COUNT))


# ---- plans, without anything around them ----------------------------------------------------------------------------------

QUEUES = [MessageQueue("t", "b", number) for number in range(4)]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 60))
def test_every_message_is_in_exactly_one_task_and_tasks_are_of_a_size(sizes: list[int], tasks: int, least: int) -> None:
    wanted = [Range(queue, 100, 100 + size) for queue, size in zip(QUEUES, sizes, strict=False)]
    made = cut(wanted, tasks, least)
    got = [(one.queue, offset) for task in made for one in task for offset in range(one.start, one.stop)]
    assert got == [(one.queue, offset) for one in wanted for offset in range(one.start, one.stop)]
    assert len(made) <= tasks
    lengths = [sum(one.rows for one in task) for task in made]
    assert not lengths or max(lengths) - min(lengths) <= 1


def test_a_queue_goes_on_where_the_archive_stands_and_a_new_one_at_its_first_message() -> None:
    bounds = {QUEUES[0]: (0, 50), QUEUES[1]: (20, 30)}
    assert starts({QUEUES[0]: 7}, {}, bounds) == ({QUEUES[0]: 7, QUEUES[1]: 20}, [])
    assert starts({}, {QUEUES[0]: 50}, bounds)[0] == {QUEUES[0]: 50, QUEUES[1]: 20}
    with pytest.raises(DataGone):
        starts({QUEUES[1]: 3}, {}, bounds)
    assert starts({QUEUES[1]: 3}, {}, bounds, skip_lost=True)[1] == [Gap("t", "b", 1, 3, 20)]
    with pytest.raises(ArchiveError, match="made anew"):
        starts({QUEUES[0]: 51}, {}, bounds)


def test_topics_are_named_or_picked_by_a_pattern() -> None:
    there = ["orders-eu", "orders-us", "payments", "SCHEDULE_TOPIC_XXXX"]
    assert chosen_topics(["payments", "orders-*"], there) == ["payments", "orders-eu", "orders-us"]
    assert chosen_topics(["/.*/"], there) == ["orders-eu", "orders-us", "payments"]
    assert chosen_topics(["SCHEDULE_TOPIC_XXXX"], there) == ["SCHEDULE_TOPIC_XXXX"]
    with pytest.raises(NoRoute):
        chosen_topics(["order"], there)
    with pytest.raises(NoRoute):
        chosen_topics(["x*"], there)


def test_a_batch_keeps_to_its_bytes_by_what_a_row_took_before() -> None:
    assert rows_of_batch(1_000, 1 << 20, 0, 0) == 1_000
    assert rows_of_batch(1_000_000, 1 << 20, 0, 0) == 1_024
    assert rows_of_batch(1_000_000, 1 << 20, 10, 40_960) == 256


def test_messages_of_several_days_go_to_their_days(tmp_path: Path) -> None:
    shape = write.Shape(columns=())
    parts = write.Parts(tmp_path, shape, write.staged)
    day = 86_400_000_000
    times = [0, 1, day, day + 1, day - 1, 5 * day]
    batch = pa.RecordBatch.from_pydict(
        {"broker": ["b"] * 6, "queue_id": [0] * 6, "queue_offset": range(6), "store_time": times}, schema=shape.written()
    )
    parts.add(QUEUES[0], batch)
    files = {file.date: file for file in parts.close()}
    assert {date: file.rows for date, file in files.items()} == {"1970-01-01": 3, "1970-01-02": 2, "1970-01-06": 1}
    assert files["1970-01-01"].spans == (Span("b", 0, 0, 5, 3),)
    assert (files["1970-01-02"].first_ms, files["1970-01-02"].last_ms) == (86_400_000, 86_400_000)


# ---- on Spark -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [False, True])
def test_spark_reads_from_the_archive_what_it_reads_from_the_topic(
    servers: Servers, topic: str, where: dict[str, str], tmp_path: Path, spark: Any, delta: bool
) -> None:
    assert archive(where, [topic], tmp_path / "a", spark=spark, output=Output(batch_rows=200, delta=delta)).rows == COUNT
    there = spark.read.format("rocketmq").options(**where, subscribe=topic, columns="all").load()
    kept = read_archive(spark, tmp_path / "a")
    assert kept.columns == there.columns
    order = ["queue_id", "queue_offset"]
    assert kept.orderBy(*order).collect() == there.orderBy(*order).collect()
    assert read_archive(spark, tmp_path / "a", topics=["another"]).count() == 0


def test_rows_whose_files_were_not_moved_yet_are_read_from_staging(topic: str, where: dict[str, str], tmp_path: Path, spark: Any) -> None:
    def fault(at: str) -> None:
        if at == "committed":
            raise Crash

    with pytest.raises(Crash):
        archive(where, [topic], tmp_path / "a", control=Control(fault=fault))
    assert not list((tmp_path / "a").glob("topic=*"))
    assert read_archive(spark, tmp_path / "a").where(f"topic = '{topic}'").count() == COUNT


def refuse(_task: int) -> int:
    raise ArchiveError("the disk is full of sand")


def test_what_a_task_says_when_it_fails_reaches_the_person(spark: Any) -> None:
    with pytest.raises(TaskFailed, match=r"^a task failed: the disk is full of sand \(ArchiveError\)$"):
        OnSpark(spark)(refuse, [1])
    assert cause("java.lang.Oops: something\n\tat x") == "a task failed: java.lang.Oops: something"


# ---- the command ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_read_and_makes_nothing(
    topic: str, where: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "archive", topic, "--to", str(tmp_path / "a"), "-n", where["namesrvAddr"], "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == COUNT
    assert not (tmp_path / "a").exists()
    assert plan(where, [topic], tmp_path / "a").rows == COUNT


def test_the_command_archives_and_the_next_call_finds_nothing_new(
    topic: str, where: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any
) -> None:
    call = ["pipeline", "archive", topic, "--to", str(tmp_path / "a"), "-n", where["namesrvAddr"], "--batch-rows", "100"]
    assert main([*call, "--json", "--compression", "lz4"]) == 0
    assert codecs(tmp_path / "a") == {"LZ4"}
    printed = json.loads(capsys.readouterr().out)
    assert (printed["rows"], printed["batches"]) == (COUNT, 3)
    assert printed["offsets"][topic]["broker-a"] == {"0": 100, "1": 100, "2": 100}
    assert main(call) == 0
    assert "Nothing new" in capsys.readouterr().out
    assert main(["pipeline", "archive", "--to", str(tmp_path / "a"), "--compact"]) == 0
    assert "3 small files put together" in capsys.readouterr().out
    assert main(["pipeline", "archive", topic, "--to", str(tmp_path / "a"), "--columns", "colour", "-n", where["namesrvAddr"]]) == 1
    assert "there is no column colour" in capsys.readouterr().err


def test_the_commands_that_look_at_an_archive_say_what_is_in_it(
    topic: str, where: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(where, [topic], tmp_path / "a")
    assert main(["pipeline", "archive", "--to", str(tmp_path / "a"), "--info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["topics"][topic]["rows"] == COUNT
    assert main(["pipeline", "archive", "--to", str(tmp_path / "a"), "--verify"]) == 0
    assert "all is well" in capsys.readouterr().out
    next((tmp_path / "a").glob("topic=*/date=*/*.parquet")).unlink()
    assert main(["pipeline", "archive", "--to", str(tmp_path / "a"), "--verify"]) == 1
    assert "is gone" in capsys.readouterr().out


def test_a_directory_that_is_no_archive_gives_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "archive", "--to", str(tmp_path), "--info"]) == 1
    assert "is not an archive" in capsys.readouterr().err
