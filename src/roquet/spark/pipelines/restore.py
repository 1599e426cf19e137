"""Messages of an archive, a store or a topic back to a topic: a selection, at a rate, marked, and resumed after a crash.

The driver cuts the input into portions (row groups of files, or ranges of queues); a task reads a portion, chooses, encodes and
sends, and has succeeded when every message was acknowledged. After each round the run's progress is saved: of every queue
the offsets that were dealt with. A run of the same name goes on from there. What a crashed round had sent already is sent
again, with the same unique ids (replay.py).
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roquet.errors import ConnectFailed
from roquet.message import MessageQueue
from roquet.spark.archive.compact import rows_of
from roquet.spark.archive.jobs import Here, OnSpark, Runner
from roquet.spark.archive.ledger import locate, replace_file
from roquet.spark.archive.manifest import File
from roquet.spark.archive.plan import chosen_topics
from roquet.spark.archive.read import columns_ddl, opened, read_archive, selected, stretches
from roquet.spark.columns import arrow_schema
from roquet.spark.decode import Decoder
from roquet.spark.offsets import Range, split
from roquet.spark.options import place_of
from roquet.spark.places import Wanted
from roquet.spark.replay import (
    COLUMNS,
    Choice,
    Done,
    Pace,
    ReplayError,
    Stretch,
    added,
    check_target,
    covers,
    of_run,
    outgoing,
    with_ids,
    within,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORTION_ROWS = 131_072
PORTIONS_PER_CORE = 4
"""In one round, after which progress is saved."""
SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class Portion:
    """A row group of a file (all queues or one), or a range of a queue."""

    topic: str
    path: str = ""
    group: int = -1
    """-1: all groups."""
    queue: MessageQueue | None = None
    range: Range | None = None
    alone: bool = False
    """No other file has offsets between those that this one has of a queue."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the messages come from: an archive, or a place (source options that name it)."""

    archive: str | Path | None = None
    where: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if (self.archive is None) == (self.where is None):
            raise ReplayError("say where the messages come from: an archive, or a store or cluster; one of them")

    @property
    def root(self) -> Path | None:
        return None if self.archive is None else Path(self.archive).absolute()

    @property
    def place(self) -> dict[str, str]:
        return dict(self.where or {})

    def __str__(self) -> str:
        return str(self.archive or self.place)


@dataclass(frozen=True, slots=True)
class Target:
    """Where they go, and how."""

    where: Mapping[str, str]
    """Source options of a cluster."""
    topic: str = ""
    """Else each to the topic that it came from."""
    rate: float | None = None
    """Messages a second, of all tasks together."""
    keep_order: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """The same name goes on where it stopped, and makes the same unique ids."""

    name: str
    state_dir: str | Path | None = None
    """Where its progress is kept; else in the archive."""


@dataclass(frozen=True, slots=True)
class Task:
    portion: Portion
    where: dict[str, str]
    """Of the source, when it is not an archive."""
    target: Target
    choice: Choice
    chosen: dict[MessageQueue, list[Stretch]] | None
    """What `where` chose; None without."""
    done: Done
    run: str


@dataclass(frozen=True, slots=True)
class Answer:
    seen: int
    chosen: int
    bytes: int
    done: dict[MessageQueue, list[Stretch]]
    shown: tuple[tuple[int, int, str | None, str | None, int], ...]
    """(queue, offset, keys, tags, size of the body) of some."""


@dataclass(slots=True)
class Summary:
    run: str
    seen: int = 0
    chosen: int = 0
    bytes: int = 0
    before: int = 0
    """Sent by earlier attempts of this run."""
    seconds: float = 0.0
    topics: dict[str, int] = field(default_factory=dict)
    """Target -> messages."""
    shown: list[tuple[str, int, int, str | None, str | None, int]] = field(default_factory=list)

    def add(self, topic: str, target: str, answer: Answer) -> None:
        self.seen += answer.seen
        self.chosen += answer.chosen
        self.bytes += answer.bytes
        self.topics[target] = self.topics.get(target, 0) + answer.chosen
        self.shown += [(topic, *row) for row in answer.shown][: SHOWN_MAX - len(self.shown)]


# ---- in a task ------------------------------------------------------------------------------------------------------------


def read_portion(task: Task) -> Iterator[Any]:
    """Record batches with as many of COLUMNS as there are."""
    portion = task.portion
    if portion.range is not None:
        place = place_of(task.where)
        try:
            decoder = Decoder(arrow_schema(COLUMNS), portion.range.queue.broker_name)
            for chunk in place.chunks(portion.range.queue, portion.range.start, portion.range.stop, Wanted(task.choice.tags)):
                yield from decoder.batches(chunk)
        finally:
            place.close()
        return
    with pq.ParquetFile(portion.path, memory_map=True) as file:
        there = [name for name in COLUMNS if name in file.schema_arrow.names]
        if "body" not in there:
            raise ReplayError(f"{portion.path} has no bodies; this archive was made with --columns and cannot be sent again")
        if portion.queue is not None:
            schema = pa.schema([file.schema_arrow.field(name) for name in there])
            yield from rows_of(file, schema, portion.queue.broker_name, portion.queue.queue_id)
        else:
            yield from file.iter_batches(batch_size=4_096, row_groups=[portion.group], columns=there)


def by_queue(batch: Any, topic: str) -> dict[MessageQueue, Any]:
    """Row numbers of each queue."""
    queue_ids = batch["queue_id"].to_numpy()
    brokers = pc.fill_null(batch["broker"], "")
    found: dict[MessageQueue, Any] = {}
    for broker in pc.unique(brokers).to_pylist():
        mine = pc.equal(brokers, broker).to_numpy(zero_copy_only=False)
        for queue_id in np.unique(queue_ids[mine]).tolist():
            found[MessageQueue(topic, broker, queue_id)] = np.flatnonzero(mine & (queue_ids == queue_id))
    return found


def run_task(task: Task) -> Answer:
    from roquet.net.blocking import BlockingCaller
    from roquet.routing.name_servers import parse_name_servers
    from roquet.spark.encode import encode
    from roquet.spark.options import connection_of, where_of
    from roquet.spark.requests import requests
    from roquet.spark.sending import Sending

    where = where_of(task.target.where)
    caller = BlockingCaller(connection_of(where))
    sending = Sending(caller, parse_name_servers(where.namesrv), "roquet_replay")
    pace = Pace(task.target.rate, time.monotonic())
    topic, target = task.portion.topic, task.target.topic or task.portion.topic
    seen = chosen = size = 0
    done: dict[MessageQueue, list[Stretch]] = defaultdict(list)
    shown: list[tuple[int, int, str | None, str | None, int]] = []
    try:
        for batch in read_portion(task):
            mask = task.choice.mask(batch) & ~of_run(batch, task.run)
            offsets = batch["queue_offset"].to_numpy()
            for queue, rows in by_queue(batch, topic).items():
                mine = offsets[rows]
                done[queue] += [(int(mine.min()), int(mine.max()) + 1)] if task.portion.alone else stretches(mine)
                mask[rows] &= ~within(mine, task.done.get(queue, []))
                if task.chosen is not None:
                    mask[rows] &= within(mine, task.chosen.get(queue, []))
            seen += batch.num_rows
            batch = batch.filter(pa.array(mask))
            if not batch.num_rows:
                continue
            if len(shown) < SHOWN_MAX:
                shown += sample(batch, SHOWN_MAX - len(shown))
            size += pc.sum(pc.binary_length(batch["body"])).as_py()
            for start in range(0, batch.num_rows, pace.rows_max):
                part = batch.slice(start, pace.rows_max)
                if not task.target.dry_run:
                    time.sleep(pace.delay(part.num_rows, time.monotonic()))
                    queues = sorted(sending.queues(target)) if task.target.keep_order else None
                    table, ids = outgoing(part, topic, task.run, queues)
                    rows_out = with_ids(encode(table, partition=0, first=chosen, prefix=bytes(12), topic=target), ids)
                    sending.send(requests(rows_out, {name: sending.queues(name) for name in rows_out.topics}))
                chosen += part.num_rows
        if task.portion.range is not None:  # also what a filter left out at the source
            one = task.portion.range
            done[one.queue] = [(one.start, one.stop)]
        sending.finish()
    finally:
        caller.close()
    return Answer(seen, chosen, size, dict(done), tuple(shown))


def sample(batch: Any, count: int) -> list[tuple[int, int, str | None, str | None, int]]:
    def column(name: str) -> list[Any]:
        values: list[Any] = batch[name].slice(0, count).to_pylist() if name in batch.schema.names else [None] * min(count, batch.num_rows)
        return values

    sizes = [len(body) for body in column("body")]
    return list(zip(column("queue_id"), column("queue_offset"), column("keys"), column("tags"), sizes, strict=True))


# ---- in the driver --------------------------------------------------------------------------------------------------------


def archive_portions(root: Path, choice: Choice, done: Done, keep_order: bool) -> list[list[Portion]]:
    """Lanes of portions: those of one lane are sent one after the other, lanes at the same time."""
    state = opened(root)
    files = [file for file in selected(state, choice.topics or None, choice.since_ms, choice.until_ms) if not dealt_with(file, done)]
    mixed = overlapping(state.files.values())
    if not keep_order:
        return [
            [Portion(file.topic, str(locate(root, file)), group, alone=file.path not in mixed)]
            for file in files
            for group in range(groups_of(root, file))
        ]
    lanes: dict[MessageQueue, list[tuple[int, Portion]]] = defaultdict(list)
    for file in files:
        if not file.spans:
            raise ReplayError(f"{root} does not tell which queues a file holds, so their order cannot be kept; leave --keep-order out")
        for span in file.spans:
            queue = MessageQueue(file.topic, span.broker, span.queue_id)
            lanes[queue].append((span.start, Portion(file.topic, str(locate(root, file)), queue=queue, alone=file.path not in mixed)))
    return [[portion for _, portion in sorted(lane, key=lambda one: one[0])] for _, lane in sorted(lanes.items())]


def overlapping(files: Iterable[File]) -> set[str]:
    """Files whose offsets of a queue reach between those of another: a day's first messages may be stored among the last of the
    day before. Without spans: all."""
    found: set[str] = set()
    spans: dict[MessageQueue, list[tuple[int, int, str]]] = defaultdict(list)
    for file in files:
        if not file.spans:
            found.add(file.path)
        for span in file.spans:
            spans[MessageQueue(file.topic, span.broker, span.queue_id)].append((span.start, span.stop, file.path))
    for known in spans.values():
        reach, owner = -1, ""
        for start, stop, path in sorted(known):
            if start < reach:
                found |= {path, owner}
            if stop > reach:
                reach, owner = stop, path
    return found


def groups_of(root: Path, file: File) -> int:
    return file.groups or int(pq.read_metadata(locate(root, file)).num_row_groups)


def dealt_with(file: File, done: Done) -> bool:
    return bool(file.spans) and all(
        covers(done.get(MessageQueue(file.topic, span.broker, span.queue_id), []), span.start, span.stop) for span in file.spans
    )


def place_portions(where: Mapping[str, str], choice: Choice, done: Done) -> list[list[Portion]]:
    """One lane for each queue."""
    place = place_of(where)
    try:
        queues = [queue for topic in chosen_topics(choice.topics, place.topics()) for queue in place.queues(topic)]
        queues = [queue for queue in queues if choice.queue_id in (None, queue.queue_id)]
        bounds = place.bounds(queues)
        if away := sorted({queue.broker_name for queue in queues if queue not in bounds}):
            raise ConnectFailed(f"broker {', '.join(away)} does not answer, and has queues of these topics")
        low = place.offsets_at(queues, choice.since_ms) if choice.since_ms is not None else {}
        high = place.offsets_at(queues, choice.until_ms) if choice.until_ms is not None else {}
    finally:
        place.close()
    lanes: list[list[Portion]] = []
    for queue, (first, end) in sorted(bounds.items()):
        start = max(first, low.get(queue, first), choice.from_offset or 0)
        stop = min(end, high.get(queue, end), choice.to_offset if choice.to_offset is not None else end)
        if start < stop:
            ranges = [one for one in split(Range(queue, start, stop), PORTION_ROWS) if not covers(done.get(queue, []), one.start, one.stop)]
            lanes.append([Portion(queue.topic, range=one) for one in ranges])
    return lanes


def chosen_by(spark: SparkSession, frame: Any, choice: Choice) -> dict[MessageQueue, list[Stretch]]:
    """What a Spark SQL expression chooses, as offsets: only the columns it names are read, no body unless it asks for one."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    try:
        rows = (
            frame.where(f.col("topic").isin(*choice.topics))
            .where(f.expr(choice.where or "true"))
            .groupBy("topic", "broker", "queue_id")
            .agg(f.collect_list("queue_offset").alias("offsets"))
            .collect()
        )
    except (AnalysisException, ParseException) as error:
        raise ReplayError(f"--where {choice.where}: {str(error).splitlines()[0]}") from None
    return {MessageQueue(row.topic, row.broker or "", row.queue_id): joined_offsets(np.array(row.offsets, dtype=np.int64)) for row in rows}


def joined_offsets(offsets: Any) -> list[Stretch]:
    return stretches(np.unique(offsets))


def check(choice: Choice, source: Source, target: Target) -> None:
    """Raises NoRoute, ReplayError or what else is wrong, before anything slow begins."""
    if source.root is not None:
        from_archive(source.root, choice)
    else:
        place = place_of(source.place)
        try:
            chosen_topics(choice.topics, place.topics())
        finally:
            place.close()
    for topic in {target.topic} if target.topic else set(choice.topics):
        check_target(topic)


def restore(
    choice: Choice,
    source: Source,
    target: Target,
    run: Run,
    *,
    spark: SparkSession | None = None,
    progress: Callable[[int, int], None] = lambda seen, chosen: None,
) -> Summary:
    """Send what `choice` says. Raises ReplayError."""
    begun = time.monotonic()
    if choice.where is not None and spark is None:
        raise ReplayError("where is a Spark SQL expression and needs a Spark session")
    root = source.root
    if root is not None:
        choice = from_archive(root, choice)
    for topic in {target.topic} if target.topic else set(choice.topics):
        check_target(topic)
    book = RunFile(run_path(root, run), run.name, choice, target.topic, str(source))
    runner: Runner = Here() if spark is None else OnSpark(spark)
    lanes = archive_portions(root, choice, book.done, target.keep_order) if root else place_portions(source.place, choice, book.done)
    chosen = None
    if choice.where is not None and spark is not None:
        frame = read_archive(spark, root, topics=choice.topics) if root else topics_frame(spark, source.place, choice)
        chosen = chosen_by(spark, frame, choice)
    summary = Summary(run.name, before=book.sent)
    for portions in rounds(lanes, runner.width * PORTIONS_PER_CORE, target.keep_order):
        share = None if target.rate is None else target.rate / min(len(portions), runner.width)
        mine = replace(target, where=dict(target.where), rate=share)
        tasks = [Task(portion, source.place, mine, choice, chosen, book.done, run.name) for portion in portions]
        answers: list[Answer] = runner(partial(run_task), tasks)
        for portion, answer in zip(portions, answers, strict=True):
            summary.add(portion.topic, target.topic or portion.topic, answer)
        if not target.dry_run:
            book.save(answers)
        progress(summary.seen, summary.chosen)
    summary.seconds = time.monotonic() - begun
    return summary


def rounds(lanes: Sequence[Sequence[Portion]], count: int, keep_order: bool) -> Iterator[list[Portion]]:
    """Pieces that are sent at the same time. Kept in order: no two of one lane."""
    if not keep_order:
        portions = [portion for lane in lanes for portion in lane]
        for start in range(0, len(portions), count):
            yield portions[start : start + count]
        return
    for step in range(max(map(len, lanes), default=0)):
        now = [lane[step] for lane in lanes if step < len(lane)]
        for start in range(0, len(now), count):
            yield now[start : start + count]


def from_archive(root: Path, choice: Choice) -> Choice:
    """With the archive's own names of topics. Raises NoRoute, ReplayError."""
    state = opened(root)
    if "body" not in columns_ddl(state):
        raise ReplayError(f"{root} has no bodies; it was made with --columns and cannot be sent again")
    if choice.sql is not None and "properties" not in state.columns:
        raise ReplayError(f"{root} has no properties, which --sql needs; use --where over its columns")
    return replace(choice, topics=tuple(chosen_topics(choice.topics, sorted({file.topic for file in state.files.values()}))))


def topics_frame(spark: SparkSession, where: Mapping[str, str], choice: Choice) -> Any:
    return spark.read.format("rocketmq").options(**where, subscribe=",".join(choice.topics), columns="all").load()


def run_path(root: Path | None, run: Run) -> Path:
    if not run.name or any(sign in run.name for sign in "/\\\0") or run.name.startswith("."):
        raise ReplayError(f"run {run.name!r} cannot name a file; use letters, digits, - and _")
    if run.state_dir is None and root is None:
        raise ReplayError("progress has no place: give a state directory")
    home = Path(run.state_dir) if run.state_dir is not None else (root or Path()) / "_roquet" / "replays"
    return home / f"{run.name}.json"


class RunFile:
    """How far a run is: one small file, replaced at once after every round."""

    def __init__(self, path: Path, run: str, choice: Choice, to_topic: str, source: str) -> None:
        """Raises ReplayError when the file is of a run that does something else."""
        self.path = path
        self.asked = {"run": run, "choice": json.loads(json.dumps(asdict(choice))), "to_topic": to_topic, "source": source}
        self.done: Done = {}
        self.sent = 0
        if path.exists():
            value = json.loads(path.read_bytes())
            other = [name for name in self.asked if value["asked"].get(name) != self.asked[name]]
            if other:
                raise ReplayError(
                    f"run {run} was begun with another {', '.join(other)} ({path}); use another --run name, or the same selection"
                )
            self.sent = value["sent"]
            self.done = {MessageQueue(*queue): [(start, stop) for start, stop in pairs] for *queue, pairs in value["done"]}

    def save(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self.done = added(self.done, answer.done)
            self.sent += answer.chosen
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = [[queue.topic, queue.broker_name, queue.queue_id, pairs] for queue, pairs in sorted(self.done.items())]
        replace_file(self.path, json.dumps({"asked": self.asked, "sent": self.sent, "done": done}).encode())
