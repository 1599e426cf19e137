"""Rebuild a store's queues and index from its log: the same bytes that its broker wrote, or would have written.

1. The log is read in pieces, a task each. A task derives the entries of its records and leaves them in a part file of the
   staging directory, so the memory that is needed does not grow with the store.
2. The driver puts the parts together: of each queue the entries in order, of the index its files, filled in the log's order.
3. What was built is verified against the log. Then it takes the place of the old, which is kept beside it.

Until step 3 nothing of the store is touched; a run that was interrupted is simply started again. The store's lock is held, so
no broker can run meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roquet.errors import Damaged
from roquet.settings import BrokerSettings
from roquet.spark.pipelines import checks
from roquet.spark.pipelines import store_files as files
from roquet.spark.pipelines.parallel import Progress, silent
from roquet.spark.pipelines.verify import Read, judge_log, read_log, verify_layout
from roquet.store import derive, queue
from roquet.store.disk import RealDisk
from roquet.store.documents import Document
from roquet.store.index import IndexFile, KeyIndex, next_name
from roquet.store.recovery import Manifest
from roquet.store.segments import file_name
from roquet.wire.columns import ENTRIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGING = "rebuild"
"""Directory in the store where the new files grow."""

QUEUED = np.dtype([("number", "i8"), ("entry", ENTRIES)])
"""A queue entry of a part, with its queue offset."""
KEYED = np.dtype([("hash", "i4"), ("offset", "i8"), ("time", "i8")])
ENTRY_ONES = np.frombuffer(queue.BLANK_ENTRY, dtype=ENTRIES)[0]


class Run(NamedTuple):
    """The entries of one queue in one part: [low, high) of its file, and the lowest and highest queue offset among them."""

    part: str
    low: int
    high: int
    least: int
    most: int


@dataclass(slots=True)
class Part(Read):
    """What a task says of its piece, and where it left the entries."""

    path: str = ""
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    keys: int = 0


@dataclass(slots=True)
class Rebuilt:
    """What was written, or would be."""

    store: str
    into: str
    log_end: int
    records: int
    queues: dict[tuple[str, int], tuple[int, int]]
    """(topic, queue) -> (first offset, next offset)."""
    kept: list[tuple[str, int]]
    """Queues whose records are all gone with old log files: taken over as they are, for their numbering goes on."""
    queue_entries: int
    index_files: list[str]
    index_entries: int
    old: list[str]
    """Where what was there before is now."""
    remarks: dict[str, int]
    took_s: float
    dry_run: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "into": self.into,
            "dryRun": self.dry_run,
            "logEnd": self.log_end,
            "records": self.records,
            "queues": [
                {"topic": topic, "queue": number, "first": first, "next": after} for (topic, number), (first, after) in self.queues.items()
            ],
            "kept": [{"topic": topic, "queue": number} for topic, number in self.kept],
            "queueEntries": self.queue_entries,
            "indexFiles": self.index_files,
            "indexEntries": self.index_entries,
            "old": self.old,
            "remarks": self.remarks,
            "seconds": round(self.took_s, 3),
        }


# The work of a task


def derive_piece(layout: files.Layout, piece: files.Piece, parts: str, *, queues: bool, index: bool) -> Part:
    """`parts`: the directory for part files; "" to write none."""
    scan = files.scan(layout, piece)
    records = scan.records
    found = checks.Findings()
    found.counts["records"] = len(records)
    last_good = int(records.offsets[-1]) if len(records) else -1
    part = Part(piece, scan.first, scan.end, scan.after, scan.bad, scan.gaps, last_good, found)
    part.path = f"{parts}/{piece.start:020d}-{piece.stop:020d}" if parts else ""
    if queues:
        entries, part.runs = _queue_entries(layout, records, part.path)
        if parts:
            entries.tofile(part.path + ".queues")
    if index:
        owners, hashes = derive.key_entries(records)
        part.keys = len(owners)
        if parts:
            keys = np.empty(len(owners), dtype=KEYED)
            keys["hash"], keys["offset"], keys["time"] = hashes, records.offsets[owners], records.store_ms[owners]
            keys.tofile(part.path + ".keys")
    return part


def _queue_entries(layout: files.Layout, records: derive.RecordColumns, path: str) -> tuple[npt.NDArray[Any], dict[tuple[str, int], Run]]:
    """Queue by queue, each in the order of the log."""
    tags = derive.queue_tags(records, layout.delays_ms)
    runs: dict[tuple[str, int], Run] = {}
    chosen = [np.empty(0, dtype=np.int64)]
    at = 0
    for key, numbers in checks.by_queue(records).items():
        if key[0] in layout.deleted:
            numbers = numbers[records.offsets[numbers] >= layout.deleted[key[0]]]
        if layout.is_deleted(key[0]) or not len(numbers):
            continue
        if "/" in key[0] or key[0] in (".", ".."):
            raise Damaged(f"the record at log offset {records.offsets[numbers[0]]} is of topic {key[0]!r}, which cannot name a directory")
        offsets = records.queue_offsets[numbers]
        runs[key] = Run(path, at, at + len(numbers), int(offsets.min()), int(offsets.max()))
        at += len(numbers)
        chosen.append(numbers)
    order = np.concatenate(chosen)
    entries = np.empty(len(order), dtype=QUEUED)
    entries["number"] = records.queue_offsets[order]
    entries["entry"]["offset"] = records.offsets[order]
    entries["entry"]["size"] = records.sizes[order]
    entries["entry"]["tag"] = tags[order]
    return entries, runs


# Putting the parts together


def surviving(runs: list[Run], load: Callable[[Run], npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    """The entries that are still true, in order: a record counts unless a later one of its queue has the same offset or a lower
    one. That happens when a topic was deleted and made again; recovery truncates the queue then."""
    least_behind = [0] * len(runs)
    least = 1 << 62
    for number in range(len(runs) - 1, -1, -1):
        least_behind[number] = least
        least = min(least, runs[number].least)
    for run, bound in zip(runs, least_behind, strict=True):
        if run.least >= bound:
            continue  # all of it was replaced
        entries = load(run)
        behind = np.minimum.accumulate(np.append(entries["number"][1:], bound)[::-1])[::-1]
        yield entries[entries["number"] < np.minimum(behind, bound)]


def extent(runs: list[Run]) -> tuple[int, int]:
    """(first, next) of a queue, from its runs alone, which is exact unless its topic was made again in the middle of a part."""
    least = 1 << 62
    after = 0
    for run in reversed(runs):
        if run.least < least:
            after = max(after, min(run.most + 1, least))
            least = run.least
    return least, after


def write_queue(directory: str, size: int, pieces: Iterator[npt.NDArray[Any]]) -> tuple[int, int]:
    """The files of one queue; returns (first offset, next offset). Blanks before the first entry and in gaps, as the broker does it."""
    os.makedirs(directory, exist_ok=True)
    count = size // queue.ENTRY_SIZE
    first = after = -1
    base = 0
    page = np.zeros(count, dtype=ENTRIES)

    def blanks(to: int) -> None:
        """From `after`, over as many files as it takes."""
        nonlocal after
        while after < to:
            stop = min(to, base + count)
            page[after - base : stop - base] = ENTRY_ONES
            after = stop
            turn()

    def turn() -> None:
        nonlocal base
        if after == base + count:
            _write_page(directory, base, page, count)
            page[:] = np.zeros(1, dtype=ENTRIES)
            base += count

    for entries in pieces:
        numbers = entries["number"]
        if not len(numbers):
            continue
        if first < 0:
            first = int(numbers[0])
            base = after = first - first % count
            blanks(first)
        cuts = np.append(np.flatnonzero(np.diff(numbers) != 1) + 1, len(numbers)).tolist()
        at = 0
        for cut in cuts:  # one run without gaps, nearly always all of it
            blanks(int(numbers[at]))
            while at < cut:
                step = min(cut - at, base + count - after)
                page[after - base : after - base + step] = entries["entry"][at : at + step]
                at += step
                after += step
                turn()
    if after > base:
        _write_page(directory, base, page, after - base)
    _sync(directory)
    return first, after


def _write_page(directory: str, base: int, page: npt.NDArray[Any], filled: int) -> None:
    with open(f"{directory}/{file_name(base * queue.ENTRY_SIZE)}", "wb") as file:
        file.write(page[:filled].tobytes())
        file.truncate(page.nbytes)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: str) -> None:
    RealDisk().sync_dir(directory)


class _NoClock:
    """Index files get their names when they are full of keys; until then any will do."""

    def now_ms(self) -> int:
        return 0

    def steady_ms(self) -> int:
        return 0


def write_index(directory: str, layout: files.Layout, parts: list[Part], names: dict[int, str], watch: Progress) -> list[str]:
    """All index files, filled in the order of the log. `names`: those of the old files by the log offset they begin with."""
    disk = RealDisk()
    built = KeyIndex(disk, directory, slots_max=layout.slots, entries_max=layout.entries, clock=_NoClock())
    built.open(crashed=False, safe_ms=0)
    for part in parts:
        keys = np.fromfile(part.path + ".keys", dtype=KEYED)
        built.fill(keys["hash"], keys["offset"], keys["time"])
        watch(1)
    renamed = index_names(built.files, names)
    was = [file.name for file in built.files]
    built.close()
    for old, new in zip(was, renamed, strict=True):
        disk.rename(f"{directory}/{old}", f"{directory}/{new}")
    disk.sync_dir(directory)
    return renamed


def _tell_manifest(root: str, names: list[str]) -> None:
    """The broker's own note of which index files there are: one that it misses it would build again."""
    document = Document(RealDisk(), f"{root}/config/roquet.json")
    manifest = document.load(Manifest.decode)
    if manifest is not None and manifest.indexes != names:
        manifest.indexes = names
        document.save(manifest.encode())


def index_names(built: list[IndexFile], known: dict[int, str]) -> list[str]:
    """A file that begins with the record an old one began with has its name, any other the time of its first record. A broker
    names a file after the moment it made it, which nothing in the store tells; only the order of the names means something."""
    names: list[str] = []
    for file in built:
        last = names[-1] if names else ""
        name = known.get(file.begin_offset, "")
        names.append(name if name > last else next_name(file.begin_ms, last))
    return names


# The whole


def rebuild(
    spark: SparkSession | None,
    store: str,
    *,
    into: str | None = None,
    queues: bool = True,
    index: bool = True,
    dry_run: bool = False,
    check: bool = True,
    keep_old: bool = True,
    settings: BrokerSettings | None = None,
    piece_bytes: int = files.PIECE,
    progress: Progress = silent,
) -> Rebuilt:
    """Derive queues and index from the log again, in place or into another directory. Executors must see the store under this path.

    Raises Damaged when a broker has the store open, or when the log itself is damaged in its middle: what should be derived
    from the lost records nobody knows.
    """
    layout = files.layout_of(store, settings)
    if dry_run:
        return _rebuild(spark, layout, "", into, queues, index, check, keep_old, piece_bytes, progress)
    with contextlib.ExitStack() as stack:
        if into is None:
            stack.enter_context(_locked(layout.root))
        staging = os.path.abspath(into) if into is not None else f"{layout.root}/{STAGING}"
        if into is None:
            shutil.rmtree(staging, ignore_errors=True)  # of a run that was interrupted
        for name in ("consumequeue", "index"):
            if os.path.exists(f"{staging}/{name}"):
                raise Damaged(f"{staging}/{name} exists already; name an empty directory")
        os.makedirs(f"{staging}/parts", exist_ok=True)
        stack.callback(shutil.rmtree, f"{staging}/parts" if into is not None else staging, ignore_errors=True)
        return _rebuild(spark, layout, staging, into, queues, index, check, keep_old, piece_bytes, progress)


@contextlib.contextmanager
def _locked(root: str) -> Iterator[None]:
    """As a broker locks it, so that none is running and none starts."""
    try:
        release = RealDisk().lock(f"{root}/lock")
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise Damaged(f"{root} is in use by a broker: stop it first, or build beside it with --into DIR") from None
    try:
        yield
    finally:
        release()


def _rebuild(
    spark: SparkSession | None,
    layout: files.Layout,
    staging: str,
    into: str | None,
    queues: bool,
    index: bool,
    check: bool,
    keep_old: bool,
    piece_bytes: int,
    progress: Progress,
) -> Rebuilt:
    began = time.monotonic()
    parts_in = f"{staging}/parts" if staging else ""

    def work(piece: files.Piece) -> Part:
        return derive_piece(layout, piece, parts_in, queues=queues, index=index)

    parts: list[Part] = read_log(spark, layout, piece_bytes, work, progress)
    found, log_end = judge_log(layout, list(parts))
    for kind, places in found.places.items():
        raise Damaged(f"{kind}, {places[0]}; nothing was rebuilt: see all of it with roquet pipeline verify, and restore the log first")
    runs: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for part in parts:
        for key, run in part.runs.items():
            runs[key].append(run)
    kept = _only_numbers(layout, set(runs)) if queues else []
    extents = {key: extent(runs[key]) for key in sorted(runs)}
    names: list[str] = []
    old: list[str] = []
    if staging:
        if queues:
            extents = {key: _one_queue(layout, f"{staging}/consumequeue", key, runs[key]) for key in sorted(runs)}
            for topic, number in kept:
                shutil.copytree(f"{layout.root}/consumequeue/{topic}/{number}", f"{staging}/consumequeue/{topic}/{number}")
            os.makedirs(f"{staging}/consumequeue", exist_ok=True)
        if index:
            known = {table.begin_offset: table.name for table in files.index_tables(layout) if table.number > 1}
            os.makedirs(f"{staging}/index")
            names = write_index(f"{staging}/index", layout, parts, known, silent)
        if check:
            _check(spark, replace(layout, root=staging, finished=True), queues, index, piece_bytes)
        if into is None:
            wanted = [name for name, chosen in (("consumequeue", queues), ("index", index)) if chosen]
            old = _take_place(layout.root, staging, wanted, keep_old)
            if index:
                _tell_manifest(layout.root, names)
    return Rebuilt(
        layout.root,
        os.path.abspath(into) if into is not None else layout.root,
        log_end,
        sum(part.findings.counts["records"] for part in parts),
        extents,
        kept,
        sum(after - first for first, after in extents.values()),
        names,
        sum(part.keys for part in parts),
        old,
        dict(+found.remarks),
        time.monotonic() - began,
        dry_run=not staging,
    )


def _one_queue(layout: files.Layout, directory: str, key: tuple[str, int], runs: list[Run]) -> tuple[int, int]:
    def load(run: Run) -> npt.NDArray[Any]:
        return np.fromfile(run.part + ".queues", dtype=QUEUED, count=run.high - run.low, offset=run.low * QUEUED.itemsize)

    topic, number = key
    return write_queue(f"{directory}/{topic}/{number}", layout.queue_file, surviving(runs, load))


def _only_numbers(layout: files.Layout, built: set[tuple[str, int]]) -> list[tuple[str, int]]:
    """Queues that have entries, all of them older than the log."""
    directory = f"{layout.root}/consumequeue"
    return [
        key
        for key in files.queues_in(directory)
        if key not in built and 0 <= files.QueueFiles(directory, *key, layout.queue_file).last_position < layout.start
    ]


def _check(spark: SparkSession | None, layout: files.Layout, queues: bool, index: bool, piece_bytes: int) -> None:
    """The checksums were checked when the log was read for building. A torn end is no news either."""
    report = verify_layout(spark, layout, queues=queues, index=index, check_crc=False, piece_bytes=piece_bytes)
    wrong = {kind: places for kind, places in report.places.items() if kind != "record damaged"}
    if wrong:
        kind, places = next(iter(wrong.items()))
        raise Damaged(f"what was built does not fit the log ({kind}, {places[0]}); the store is as it was. This is a bug of Roquet")


def _take_place(root: str, staging: str, names: list[str], keep_old: bool) -> list[str]:
    """The new directories for the old. A crash in between leaves the old under its new name, and the run can be started again."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    disk = RealDisk()
    old: list[str] = []
    for name in names:
        aside = f"{root}/{name}.old-{stamp}"
        if os.path.exists(f"{root}/{name}"):
            os.rename(f"{root}/{name}", aside)
            old.append(aside)
        os.rename(f"{staging}/{name}", f"{root}/{name}")
        disk.sync_dir(root)
    if not keep_old:
        for aside in old:
            shutil.rmtree(aside)
        old = []
    return old
