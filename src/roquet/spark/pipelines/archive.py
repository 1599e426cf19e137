"""Topics into an archive, exactly once: batch by batch, each with one commit that holds its files and its offsets.

The driver plans ranges of queues; tasks read, decode and write them and answer with facts about files; the driver commits.
What happens in a crash stands in archive/ledger.py.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from roquet.errors import CallTimeout, ConnectFailed, NoRoute
from roquet.message import MessageQueue
from roquet.spark.archive.compact import FILES_MAX, Group, groups, rewrite
from roquet.spark.archive.delta import DeltaBook, in_place, need_delta
from roquet.spark.archive.jobs import Here, OnSpark, Runner
from roquet.spark.archive.ledger import Fault, Ledger, no_fault
from roquet.spark.archive.manifest import ArchiveError, Commit, File, Gap, Kind, State, evolved
from roquet.spark.archive.plan import chosen_topics, cut, rows_of_batch, starts
from roquet.spark.archive.read import archive_info, opened, read_archive, verify_archive
from roquet.spark.archive.typed import parse_property
from roquet.spark.archive.write import COMPRESSION, COMPRESSIONS, CannotWrite, Parts, Shape, staged, write_ranges, writing
from roquet.spark.columns import BY_NAME, COLUMNS
from roquet.spark.decode import Decoder
from roquet.spark.offsets import Offsets, Range, limited, ranges
from roquet.spark.options import place_of
from roquet.spark.places import DataGone, Place, Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Control", "Output", "Plan", "Selection", "Summary", "archive", "archive_info", "compact", "plan", "read_archive", "verify_archive",
]  # fmt: skip

log = logging.getLogger(__name__)

BATCH_ROWS = 4_000_000
BATCH_BYTES = 2 << 30
EVERY_S = 60.0
"""How long a following archive gathers messages for one commit."""
AWAY_S = 300.0
"""How long brokers may be away before a run that does not follow gives up."""
TASKS_PER_CORE = 1
DECODE_ROWS = 65_536
"""In one go: a quarter faster than 4,096, which suits Spark's rows better than files."""

EARLIEST, LATEST = "earliest", "latest"
ALL = Wanted()


class Book(Protocol):
    """Where commits go: Ledger, or a Delta table."""

    state: State

    def stage(self) -> Path: ...

    def discard(self) -> None: ...

    def commit(
        self,
        kind: Kind,
        files: Sequence[File] = (),
        *,
        removed: Sequence[str] = (),
        ranges: Sequence[tuple[MessageQueue, int, int]] = (),
        gaps: Sequence[Gap] = (),
        filtered: bool = False,
        columns: tuple[str, ...] = (),
        properties: tuple[tuple[str, str], ...] = (),
        compression: str = "",
    ) -> Commit: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of the topics."""

    starting: str | int = EARLIEST
    """earliest, latest or ms since 1970, for topics that the archive does not know yet."""
    until_ms: int | None = None
    wanted: Wanted = ALL
    skip_lost: bool = False
    """Go on when the broker removed messages before they were read."""


@dataclass(frozen=True, slots=True)
class Output:
    """How the archive is written."""

    columns: Sequence[str] | None = None
    properties: Sequence[str] = ()
    """name:type, each a column of its own."""
    compression: str | None = None
    """zstd, lz4, snappy or none; else what the archive had last."""
    delta: bool = False
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    """Of one commit, about."""
    compact_above: int | None = FILES_MAX
    """Small files of a day that may stay as they are; None: any number."""


def nothing(_done: int, _total: int) -> None:
    """Of nobody who wants to hear of progress."""


@dataclass(frozen=True, slots=True)
class Control:
    """How long a run goes on, and what it is given instead of the world."""

    follow: bool = False
    """Until `stop()` is true; else until what is there now."""
    every_s: float = EVERY_S
    stop: Callable[[], bool] = lambda: False
    wait: Callable[[float], object] = time.sleep
    progress: Callable[[int, int], None] = nothing
    open_place: Callable[[Mapping[str, str]], Place] = place_of
    fault: Fault = no_fault

    def pause(self, seconds: float) -> None:
        """Waits, in small steps, so that a signal is heard."""
        until = time.monotonic() + seconds
        while not self.stop() and (left := until - time.monotonic()) > 0:
            self.wait(min(0.2, left))


EVERYTHING, AS_BEFORE, TO_THE_END = Selection(), Output(), Control()


@dataclass(frozen=True, slots=True)
class Task:
    """What a task is given."""

    where: dict[str, str]
    ranges: tuple[Range, ...]
    wanted: Wanted
    root: str
    staging: str
    prefix: str
    """Of the names of its files: tells the batch."""
    shape: Shape
    delta: bool


@dataclass(frozen=True, slots=True)
class Answer:
    files: tuple[File, ...] = ()
    read_bytes: int = 0
    gone: DataGone | None = None
    away: str = ""
    """A server did not answer: what it said. Worth another try."""
    unwritten: str = ""
    """The disk did not take it: why. Not worth Spark's tries, which would fill it again."""


@dataclass(slots=True)
class Plan:
    """What a run would read: of every queue start and stop."""

    ranges: list[Range]
    gaps: list[Gap]
    fresh: list[tuple[MessageQueue, int]]
    """Queues that the archive does not know yet, and where they begin: recorded even when they hold nothing."""

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.ranges)


@dataclass(slots=True)
class Summary:
    messages: int = 0
    """Read; with a filter more than rows."""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    batches: int = 0
    seconds: float = 0.0
    compacted: int = 0
    gaps: list[Gap] = field(default_factory=list)
    offsets: Offsets = field(default_factory=dict)


def run_task(task: Task, open_place: Callable[[Mapping[str, str]], Place] = place_of) -> Answer:
    """In an executor. Errors that the driver should decide about come back as values."""
    place = open_place(task.where)
    parts = Parts(Path(task.staging), task.shape, in_place if task.delta else staged, prefix=task.prefix, root=Path(task.root))
    schema = task.shape.decoded()
    bytes_read = 0

    def decoded(queue: MessageQueue) -> Any:
        decoder = Decoder(schema, queue.broker_name)

        def batches(chunk: Any) -> Any:
            nonlocal bytes_read
            bytes_read += int(chunk.sizes.sum())
            return decoder.batches(chunk, DECODE_ROWS)

        return batches

    try:
        return Answer(tuple(write_ranges(place, task.ranges, task.wanted, parts, decoded)), bytes_read)
    except DataGone as gone:
        return Answer(gone=gone)
    except (ConnectFailed, CallTimeout, NoRoute) as error:
        return Answer(away=str(error))
    except CannotWrite as error:
        return Answer(unwritten=str(error))
    finally:
        parts.abandon()
        place.close()


@contextlib.contextmanager
def discarding(book: Book) -> Iterator[None]:
    """What a batch leaves behind when it fails goes at once: a full disk may have no room for what open() would do first."""
    try:
        yield
    except Exception:
        with contextlib.suppress(Exception):  # the first error is the one to tell, and open() will try again
            book.discard()
        raise


@dataclass(slots=True)
class Job:
    """One run: what it is to do, and the place it looks at."""

    where: dict[str, str]
    topics: Sequence[str]
    to: Path
    selection: Selection
    open_place: Callable[[Mapping[str, str]], Place]
    output: Output = AS_BEFORE
    shape: Shape = field(default_factory=Shape)
    run: Runner = field(default_factory=Here)

    def plan(self, place: Place, state: State, ends: Offsets | None = None) -> Plan:
        """From where the archive stands to `ends`, or to what is there now. Raises DataGone, ArchiveError, NoRoute."""
        queues = self._queues(place, state)
        bounds = place.bounds(queues)
        away = sorted({queue.broker_name for queue in queues if queue not in bounds})
        if away:
            raise ConnectFailed(f"broker {', '.join(away)} does not answer, and has queues of these topics")
        begin, gaps = starts(state.offsets, self._first(place, state, bounds), bounds, skip_lost=self.selection.skip_lost)
        if ends is None:
            ends = {queue: high for queue, (_, high) in bounds.items()}
            if self.selection.until_ms is not None:
                until = place.offsets_at(queues, self.selection.until_ms)
                ends |= {queue: min(ends[queue], stop) for queue, stop in until.items() if queue in ends}
        return Plan(ranges(begin, ends), gaps, [(queue, at) for queue, at in begin.items() if queue not in state.offsets])

    def _queues(self, place: Place, state: State) -> list[MessageQueue]:
        there = place.topics()
        try:
            return [queue for topic in chosen_topics(self.topics, there) for queue in place.queues(topic)]
        except NoRoute as error:
            # A name server forgets a broker that goes, and its topics with it. One that was archived before will come back.
            chosen_topics(self.topics, [*there, *sorted({queue.topic for queue in state.offsets})])
            raise ConnectFailed(f"{error}, and the archive has it; its broker may be away") from None

    def _first(self, place: Place, state: State, bounds: Mapping[MessageQueue, tuple[int, int]]) -> Offsets:
        """Where queues begin that the archive does not know. A queue added to a known topic begins at its first message."""
        known = {queue.topic for queue in state.offsets}
        fresh = [queue for queue in bounds if queue.topic not in known]
        if self.selection.starting == EARLIEST or not fresh:
            return {}
        if self.selection.starting == LATEST:
            return {queue: bounds[queue][1] for queue in fresh}
        return place.offsets_at(fresh, int(self.selection.starting))

    def batch(self, book: Book, planned: Plan, rows_max: int) -> tuple[list[File], int, int]:
        """One batch of the plan, committed: its files, messages and bytes read.

        Raises DataGone, ConnectFailed, CannotWrite; then it is not in the archive, or as a whole.
        """
        with discarding(book):
            return self._batch(book, planned, rows_max)

    def _batch(self, book: Book, planned: Plan, rows_max: int) -> tuple[list[File], int, int]:
        begin = {one.queue: one.start for one in planned.ranges}
        ends = limited(begin, {one.queue: one.stop for one in planned.ranges}, rows_max)
        taken = ranges(begin, ends)
        with writing(self.to):
            staging = book.stage()
        prefix, wanted, delta = f"part-{book.state.number + 1:08d}-", self.selection.wanted, self.output.delta
        tasks = [
            Task(self.where, part, wanted, str(self.to), str(staging), prefix, self.shape, delta)
            for part in cut(taken, self.run.width * TASKS_PER_CORE)
        ]
        answers: list[Answer] = self.run(partial(run_task, open_place=self.open_place), tasks)
        for answer in answers:
            if answer.gone is not None:
                raise answer.gone
            if answer.away:
                raise ConnectFailed(answer.away)
            if answer.unwritten:
                raise CannotWrite(answer.unwritten)
        files = [file for answer in answers for file in answer.files]
        reached = {queue: (at, at) for queue, at in planned.fresh} | {one.queue: (one.start, one.stop) for one in taken}
        with writing(self.to):
            book.commit(
                "append",
                files,
                ranges=[(queue, start, stop) for queue, (start, stop) in reached.items()],
                gaps=planned.gaps,
                filtered=wanted != ALL,
                columns=self.shape.columns,
                properties=self.shape.properties,
                compression=self.shape.compression,
            )
        return files, sum(one.rows for one in taken), sum(answer.read_bytes for answer in answers)


def check(to: str | Path, output: Output) -> None:
    """Raises ArchiveError for what could not be written so, before anything slow begins. Changes nothing."""
    if output.delta:
        need_delta()
    check_format(to, delta=output.delta)
    shape_of(state_of(to), output)


def state_of(to: str | Path) -> State:
    """Of the archive there; an empty one where there is none."""
    return opened(to) if (Path(to) / "_roquet").is_dir() or (Path(to) / "_delta_log").is_dir() else State()


def check_format(path: str | Path, *, delta: bool) -> None:
    """Raises ArchiveError when the directory has the other format."""
    is_delta = (Path(path) / "_delta_log").is_dir()
    is_parquet = (Path(path) / "_roquet" / "archive.json").exists()
    if (is_delta and not delta) or (is_parquet and delta):
        has, wanted = ("delta", "parquet") if is_delta else ("parquet", "delta")
        raise ArchiveError(f"{path} is an archive of format {has} and cannot go on as {wanted}; use --format {has} or another directory")


def open_book(path: str | Path, *, delta: bool, fault: Fault = no_fault) -> Book:
    """Raises ArchiveError when the directory has the other format."""
    check_format(path, delta=delta)
    with writing(Path(path)):
        return DeltaBook.open(Path(path), fault=fault) if delta else Ledger.open(path, fault=fault)


def shape_of(state: State, output: Output) -> Shape:
    if output.compression is not None and output.compression not in COMPRESSIONS:
        raise ArchiveError(f"there is no compression {output.compression}; there are {', '.join(COMPRESSIONS)}")
    for name in output.columns or ():
        if name not in BY_NAME:
            raise ArchiveError(f"there is no column {name}; there are {', '.join(BY_NAME)}")
    chosen = tuple(output.columns) if output.columns else (() if state.columns else tuple(column.name for column in COLUMNS))
    kept = evolved(state, chosen, [parse_property(text) for text in output.properties])
    return Shape(*kept, output.compression or state.compression or COMPRESSION)


def plan(
    where: Mapping[str, str], topics: Sequence[str], to: str | Path, *, selection: Selection = EVERYTHING, control: Control = TO_THE_END
) -> Plan:
    """What `archive` would read now. Changes nothing."""
    job = Job(dict(where), topics, Path(to), selection, control.open_place)
    with closing(control.open_place(where)) as place:
        return job.plan(place, state_of(to))


def archive(
    where: Mapping[str, str],
    topics: Sequence[str],
    to: str | Path,
    *,
    spark: SparkSession | None = None,
    selection: Selection = EVERYTHING,
    output: Output = AS_BEFORE,
    control: Control = TO_THE_END,
) -> Summary:
    """Messages of these topics to `to`, each exactly once, also over many runs and crashes.

    `where`: source options that name the place. `topics`: names, `orders-*`, `/regular expressions/`. Without `spark` it works
    in this process alone.
    """
    begun = time.monotonic()
    summary = Summary()
    to = Path(to).absolute()  # tasks have the JVM's working directory, which may be another
    with closing(open_book(to, delta=output.delta, fault=control.fault)) as book, closing(control.open_place(where)) as place:
        run: Runner = Here() if spark is None else OnSpark(spark)
        job = Job(dict(where), topics, to, selection, control.open_place, output, shape_of(book.state, output), run)

        def tidy() -> None:
            if output.compact_above is not None and not control.stop():
                summary.compacted += compact_book(book, to, run, more_than=output.compact_above)

        work(job, book, place, summary, control, tidy)
        tidy()
    summary.seconds = time.monotonic() - begun
    summary.offsets = dict(book.state.offsets)
    return summary


def work(job: Job, book: Book, place: Place, summary: Summary, control: Control, tidy: Callable[[], None]) -> None:
    ends: Offsets | None = None
    bytes_read = messages = total = 0
    away_since: float | None = None
    while not control.stop():
        try:
            planned = job.plan(place, book.state, ends)
            if not control.follow and ends is None:
                ends = {one.queue: one.stop for one in planned.ranges}
                total = planned.rows
            if planned.ranges or planned.gaps or planned.fresh:
                rows_max = rows_of_batch(job.output.batch_rows, job.output.batch_bytes, messages, bytes_read)
                files, read, size = job.batch(book, planned, rows_max)
                messages, bytes_read = messages + read, bytes_read + size
                summary.batches += 1
                summary.messages += read
                summary.rows += sum(file.rows for file in files)
                summary.files += len(files)
                summary.bytes += sum(file.bytes for file in files)
                summary.gaps.extend(planned.gaps)
                control.progress(messages, total)
                if control.follow:  # it may have no end
                    tidy()
            away_since = None
            if not control.follow and not planned.ranges:
                return
            if control.follow and planned.rows < job.output.batch_rows:
                control.pause(control.every_s)
        except DataGone:
            if not job.selection.skip_lost:
                raise
            # Retention was faster than the batch. Planned again, the next one begins where there is something, with a gap.
            log.warning("messages went away while they were read; planning again")
        except (ConnectFailed, CallTimeout) as error:
            away_since = time.monotonic() if away_since is None else away_since
            if not control.follow and time.monotonic() - away_since > AWAY_S:
                raise
            log.warning("%s; trying again", error)
            control.pause(min(control.every_s, 1.0))


def rewrite_task(root: str, staging: str, shape: Shape, group: Group) -> list[File]:
    return rewrite(Path(root), group, Path(staging), shape)


def compact_book(book: Book, root: Path, run: Runner, *, more_than: int = 1) -> int:
    """Small files of each day put together; how many went. Every commit replaces some, so a crash costs one at most."""
    if isinstance(book, DeltaBook):
        with writing(root):
            return book.compact(more_than)
    assert isinstance(book, Ledger)
    shape = Shape(book.state.columns, book.state.properties, book.state.compression or COMPRESSION)
    gone = 0
    waiting = groups(book.state.files.values(), more_than=more_than)
    while waiting:
        now, waiting = waiting[: run.width * 2], waiting[run.width * 2 :]
        removed = [file.path for group in now for file in group.files]
        with discarding(book):
            with writing(root):
                staging = book.stage()
            made = run(partial(rewrite_task, str(root), str(staging), shape), now)
            with writing(root):
                book.commit("replace", [file for files in made for file in files], removed=removed)
        gone += len(removed)
    return gone


def compact(path: str | Path, *, spark: SparkSession | None = None, fault: Fault = no_fault) -> int:
    """All days of an archive that have more than one small file; how many files were put together."""
    root = Path(path).absolute()
    with closing(open_book(root, delta=(root / "_delta_log").is_dir(), fault=fault)) as book:
        return compact_book(book, root, Here() if spark is None else OnSpark(spark))
