"""Verify a store: every record's checksum, and every queue and index entry against the log. Only reads, also while a broker runs.

The log is read in pieces, a task each; the task also reads the entries that its records should have. Then each queue and each
index file is looked at by a task of its own. What comes back to the driver are counts and the first places of each problem.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roquet.settings import BrokerSettings
from roquet.spark.pipelines import checks
from roquet.spark.pipelines import store_files as files
from roquet.spark.pipelines.checks import Findings
from roquet.spark.pipelines.parallel import Progress, each, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Report:
    """What was found. `ok` when there is no problem; remarks are what a normal life leaves behind."""

    store: str
    log_start: int
    log_end: int
    finished: bool
    counts: dict[str, int]
    remarks: dict[str, int]
    problems: dict[str, int]
    places: dict[str, list[str]]
    took_s: float

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "ok": self.ok,
            "log": {"start": self.log_start, "end": self.log_end},
            "cleanlyStopped": self.finished,
            "counts": self.counts,
            "remarks": self.remarks,
            "problems": {kind: {"count": count, "first": self.places.get(kind, [])} for kind, count in self.problems.items()},
            "seconds": round(self.took_s, 3),
        }


@dataclass(slots=True)
class Read:
    """What a task says of its piece: the ends of its scan, and what it found."""

    piece: files.Piece
    first: int
    end: int
    after: str
    bad: list[tuple[int, str]]
    gaps: list[tuple[int, int]]
    last_good: int
    """Where the last record begins that is whole, -1 without one."""
    findings: Findings
    matched: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def is_doubtful(self) -> bool:
        return bool(self.bad or self.gaps) or self.after in ("zeros", "damage")


def read_piece(layout: files.Layout, piece: files.Piece, *, queues: bool, index: bool, check_crc: bool = True) -> Read:
    """The work of a task."""
    findings = Findings()
    try:
        scan = files.scan(layout, piece, check_crc=check_crc)
    except FileNotFoundError:
        findings.remarks["expired meanwhile"] += 1
        return Read(piece, -1, piece.start, "zeros", [], [], -1, findings)
    records = scan.records
    findings.counts["records"] += len(records)
    findings.counts["bytes"] += int(records.sizes.sum())
    findings.remarks["not queued"] += len(records) - int(records.queued.sum())
    matched = checks.records_are_queued(layout, records, findings) if queues else {}
    if index:
        # A broker that runs goes on behind the end that was seen.
        stop = piece.stop if layout.finished or scan.after == "record" else scan.end
        checks.records_are_indexed(layout, scan, piece.start, stop, findings)
    last_good = int(records.offsets[-1]) if len(records) else -1
    return Read(piece, scan.first, scan.end, scan.after, scan.bad, scan.gaps, last_good, findings, matched)


def judge_log(layout: files.Layout, reads: list[Read]) -> tuple[Findings, int]:
    """(problems of the log itself, its end). Damage with whole records behind it is a problem; at the end of a store whose
    broker did not stop cleanly it is an unfinished write."""
    findings = Findings()
    for gap in layout.gaps:
        findings.problem("log file missing", f"{layout.log}: no file begins at {gap}")
    last_good = max((one.last_good for one in reads), default=-1)
    end = max((one.end for one in reads if one.first >= 0), default=layout.start)
    before: Read | None = None
    for one in reads:
        spots = [*one.bad, *((at, f"{to - at} bytes up to {to} are no record") for at, to in one.gaps)]
        # A hole over many pieces is reported once, where it begins.
        reported = before is not None and before.piece.base == one.piece.base and before.after in ("zeros", "damage") and one.first < 0
        if one.after == "damage" and not reported:
            spots.append((one.end, "what follows is no record"))
        elif one.after == "zeros" and one.end < last_good and not reported:
            spots.append((one.end, "zeros, and records behind them"))
        for at, why in spots:
            if at > last_good and not layout.finished:
                findings.remarks["unfinished end"] += 1
                end = min(end, at)
            else:
                findings.problem("record damaged", f"log offset {at}: {why}")
        before = one
    return findings, end


def without_what_follows_blanks(reads: list[Any]) -> list[Any]:
    """Behind a blank record the rest of a file means nothing, whatever stands there."""
    kept: list[Any] = []
    closed = -1
    for one in reads:
        if one.piece.base != closed:
            kept.append(one)
        if one.after == "blank":
            closed = one.piece.base
    return kept


def read_log(
    spark: SparkSession | None,
    layout: files.Layout,
    piece_bytes: int,
    work: Callable[[files.Piece], Any],
    progress: Progress = silent,
) -> list[Any]:
    """All pieces, each as the Read or its like that `work` makes of it."""
    reads = each(spark, files.pieces_of(layout, piece_bytes), work, progress)
    if not layout.finished:
        # Where a running broker wrote just now, a look too early saw half of it. If there are records behind, it is done by now.
        last_good = max((one.last_good for one in reads), default=-1)
        reads = _again(spark, reads, [one.piece for one in reads if one.is_doubtful and one.end < last_good], work)
    wrong = files.misfits(reads)
    while wrong:  # a record inside a body looked like one: read those again from where the piece before them ended
        reads = _again(spark, reads, wrong, work)
        wrong = files.misfits(reads)
    return without_what_follows_blanks(reads)


def _again(spark: SparkSession | None, reads: list[Any], pieces: list[files.Piece], work: Callable[[files.Piece], Any]) -> list[Any]:
    """The same list, with these pieces read once more."""
    newer = {(one.piece.base, one.piece.stop): one for one in each(spark, pieces, work)}
    return [newer.get((one.piece.base, one.piece.stop), one) for one in reads]


def verify(
    spark: SparkSession | None,
    store: str,
    *,
    settings: BrokerSettings | None = None,
    queues: bool = True,
    index: bool = True,
    piece_bytes: int = files.PIECE,
    progress: Progress = silent,
) -> Report:
    """Check the store in this directory, which every executor must see under the same path."""
    return verify_layout(spark, files.layout_of(store, settings), queues=queues, index=index, piece_bytes=piece_bytes, progress=progress)


def verify_layout(
    spark: SparkSession | None,
    layout: files.Layout,
    *,
    queues: bool = True,
    index: bool = True,
    check_crc: bool = True,
    piece_bytes: int = files.PIECE,
    progress: Progress = silent,
) -> Report:
    began = time.monotonic()

    def work(piece: files.Piece) -> Read:
        return read_piece(layout, piece, queues=queues, index=index, check_crc=check_crc)

    reads: list[Read] = read_log(spark, layout, piece_bytes, work, progress)
    found, log_end = judge_log(layout, reads)
    matched: Counter[tuple[str, int]] = Counter()
    for one in reads:
        found.add(one.findings)
        matched.update(one.matched)
    tasks: list[tuple[str, int]] = files.queues_in(f"{layout.root}/consumequeue") if queues else []
    tasks += [(name, -1) for name in files.index_names(f"{layout.root}/index")] if index else []

    def look(task: tuple[str, int]) -> Findings:
        name, queue_id = task
        if queue_id < 0:
            return checks.index_file_is_whole(layout, name)
        return checks.queue_is_whole(layout, name, queue_id, matched[task], log_end)

    for findings in each(spark, tasks, look, small=True):
        found.add(findings)
    return Report(
        layout.root,
        layout.start,
        log_end,
        layout.finished,
        dict(found.counts),
        dict(+found.remarks),
        dict(+found.problems),
        found.places,
        time.monotonic() - began,
    )
