"""Looking inside an archive: as a DataFrame of exactly the committed files, as figures, and checked file by file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roquet.message import MessageQueue
from roquet.spark.archive.ledger import load, locate, read_head
from roquet.spark.archive.manifest import File, State
from roquet.spark.archive.write import COMPRESSION, KEY_COLUMNS, size_and_crc
from roquet.spark.columns import BY_NAME, COLUMNS
from roquet.spark.offsets import nested

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def opened(path: str | Path) -> State:
    """What is in it, of either format. Reads only."""
    root = Path(path)
    if (root / "_delta_log").is_dir():
        from roquet.spark.archive.delta import delta_state

        return delta_state(root)
    read_head(root)
    return load(root)


def selected(state: State, topics: Sequence[str] | None = None, since_ms: int | None = None, until_ms: int | None = None) -> list[File]:
    """Files that may have rows of these topics and times (until_ms not included), oldest first."""
    return sorted(
        (
            file
            for file in state.files.values()
            if (topics is None or file.topic in topics)
            and (since_ms is None or file.last_ms >= since_ms)
            and (until_ms is None or file.first_ms < until_ms)
        ),
        key=lambda file: (file.topic, file.date, file.spans, file.path),
    )


def columns_ddl(state: State) -> str:
    """The source's columns in the source's order, as far as the archive has them, and its properties."""
    names = [column.name for column in COLUMNS if column.name in (*state.columns, *KEY_COLUMNS, "topic")]
    return ", ".join([*(f"`{name}` {BY_NAME[name].sql}" for name in names), *(f"`{name}` {kind}" for name, kind in state.properties)])


def read_archive(
    spark: SparkSession,
    path: str | Path,
    *,
    topics: Sequence[str] | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> DataFrame:
    """The archive's rows: every committed one once, with the source's columns and values, and its property columns.

    `topics` and times only leave out files that cannot hold such rows; filter the frame for the exact ones.
    """
    from pyspark.sql import functions as f

    root, state = Path(path).absolute(), opened(path)  # the JVM may have another working directory
    ddl = columns_ddl(state)
    names = [part.split("`")[1] for part in ddl.split(", ")] if ddl else []
    places = [(file, locate(root, file)) for file in selected(state, topics, since_ms, until_ms)]
    settled = [str(place) for file, place in places if place == root / file.path]
    frames = [spark.createDataFrame([], ddl)] if not places else []
    if settled:
        frames.append(spark.read.schema(ddl).option("basePath", str(root)).parquet(*settled).select(*quoted(names)))
    for file, place in places:
        if place != root / file.path:  # committed, and its writer died before it moved the file: it has no topic in its path
            frame = spark.read.schema(ddl).parquet(str(place)).withColumn("topic", f.lit(file.topic))
            frames.append(frame.select(*quoted(names)))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def quoted(names: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def archive_info(path: str | Path) -> dict[str, Any]:
    """Figures, ready for JSON."""
    state = opened(path)
    topics: dict[str, dict[str, Any]] = {}
    for file in selected(state):
        one = topics.setdefault(file.topic, {"rows": 0, "files": 0, "bytes": 0, "dates": 0, "first_ms": file.first_ms, "last_ms": 0})
        one["rows"] += file.rows
        one["files"] += 1
        one["bytes"] += file.bytes
        one["first_ms"], one["last_ms"] = min(one["first_ms"], file.first_ms), max(one["last_ms"], file.last_ms)
    for topic, one in topics.items():
        one["dates"] = len({file.date for file in state.files.values() if file.topic == topic})
    return {
        "commits": state.number + 1,
        "rows": state.rows,
        "files": len(state.files),
        "bytes": state.bytes,
        "topics": topics,
        "offsets": nested(state.offsets),
        "gaps": [gap._asdict() for gap in state.gaps],
        "filtered": state.filtered,
        "columns": list(state.columns),
        "properties": dict(state.properties),
        "compression": state.compression or COMPRESSION,
    }


@dataclass(slots=True)
class Verdict:
    rows: int = 0
    files: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        return not self.problems


Stretch = tuple[int, int]


def verify_archive(path: str | Path) -> Verdict:
    """Reads every file: its bytes against their checksum, its rows and offsets against the manifest, and of every queue
    that no offset is missing (unless filtered, or a recorded gap) and none is there twice."""
    root = Path(path)
    state = opened(root)
    verdict = Verdict()
    held: dict[MessageQueue, list[Stretch]] = defaultdict(list)
    for file in selected(state):
        check_file(root, file, held, verdict)
    for queue, reached in sorted(state.offsets.items()):
        gaps = [(gap.start, gap.stop) for gap in state.gaps if (gap.topic, gap.broker, gap.queue_id) == astuple(queue)]
        verdict.problems.extend(check_queue(queue, state.starts[queue], reached, held.pop(queue, []), gaps, state.filtered))
    for queue in held:
        verdict.problems.append(f"{named(queue)}: rows of a queue that the archive never read")
    known = {root / name for name in state.files}
    for there in root.glob("topic=*/date=*/*.parquet"):
        if there not in known and not (root / "_delta_log").is_dir():
            verdict.problems.append(f"{there}: is no part of the archive; readers of the directories see its rows too")
    return verdict


def check_file(root: Path, file: File, held: dict[MessageQueue, list[Stretch]], verdict: Verdict) -> None:
    place = locate(root, file)
    try:
        with open(place, "rb") as opened_file:
            size, crc = size_and_crc(opened_file.fileno())
    except FileNotFoundError:
        verdict.problems.append(f"{file.path}: is gone, {file.rows:,} rows with it")
        return
    if size != file.bytes or (crc != file.crc and file.crc >= 0):
        verdict.problems.append(f"{file.path}: {size:,} bytes with checksum {crc:08x}, committed were {file.bytes:,} with {file.crc:08x}")
        return
    table = pq.read_table(place, columns=["broker", "queue_id", "queue_offset"], partitioning=None)
    verdict.files += 1
    verdict.rows += table.num_rows
    if table.num_rows != file.rows:
        verdict.problems.append(f"{file.path}: {table.num_rows:,} rows, committed were {file.rows:,}")
    for queue, offsets in by_queue(file, table):
        held[queue].extend(stretches(offsets))


def by_queue(file: File, table: Any) -> list[tuple[MessageQueue, Any]]:
    """The offsets of each queue in a file."""
    queue_ids, offsets = table["queue_id"].to_numpy(), table["queue_offset"].to_numpy()
    brokers = pc.fill_null(table["broker"], "")
    found = []
    for broker in pc.unique(brokers).to_pylist():
        mine = pc.equal(brokers, broker).to_numpy()
        for queue_id in np.unique(queue_ids[mine]).tolist():
            found.append((MessageQueue(file.topic, broker, queue_id), offsets[mine & (queue_ids == queue_id)]))
    return found


def stretches(offsets: Any) -> list[Stretch]:
    """Runs of offsets that follow each other, sorted; an offset that is there twice is in two runs."""
    if not len(offsets):
        return []
    offsets = np.sort(offsets)
    edges = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts, stops = offsets[np.r_[0, edges]], offsets[np.r_[edges - 1, len(offsets) - 1]] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def check_queue(queue: MessageQueue, start: int, stop: int, held: list[Stretch], gaps: list[Stretch], filtered: bool) -> list[str]:
    """The first thing that is wrong with a queue's offsets, as a sentence; nothing when all is well."""
    at = start
    for low, high in sorted([*held, *gaps]):
        if low < at:
            return [f"{named(queue)}: offset {low} is there twice" if low >= start else f"{named(queue)}: offset {low} is before {start}"]
        if low > at and not filtered:
            return [f"{named(queue)}: offsets {at} to {low - 1} are missing"]
        at = high
    if at > stop:
        return [f"{named(queue)}: offset {at - 1} is there, but the archive stands at {stop}"]
    return [f"{named(queue)}: offsets {at} to {stop - 1} are missing"] if at < stop and not filtered else []


def named(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.queue_id} on {queue.broker_name}"


def astuple(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id
