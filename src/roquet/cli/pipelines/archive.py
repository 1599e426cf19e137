"""`roquet pipeline archive`: topics to Parquet or Delta, exactly once; and looking after what was archived."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING, Any

from roquet.cli.options import Commands, command, positive, positive_seconds, timestamp_ms
from roquet.cli.pipeline import job_options, place_of, place_options
from roquet.cli.pipelines.starting import start
from roquet.cli.progress import Bar
from roquet.cli.render import counted, duration, emit, emit_json, moment, note, size, table
from roquet.errors import ConnectFailed

if TYPE_CHECKING:
    from roquet.spark.pipelines.archive import Plan, Summary

NOTES = """
how it stays exact:
  Every batch is one commit: its files and the offsets they stand for, in one file that is created at once or not at all
  (DIR/_roquet/commits). Killed at any moment, the next run finishes or removes what was left and goes on. The same
  command again archives what came since. docs/pipeline-archive.md tells the rest.
"""


def add_command(commands: Commands) -> None:
    parser = command(
        commands,
        "archive",
        "topics to Parquet files by topic and date, each message exactly once; the next run goes on",
        """
        roquet pipeline archive orders --to ./archive                 what is there now
        roquet pipeline archive 'orders-*' payments --to ./archive --follow
        roquet pipeline archive orders --to ./archive --store ./data/broker-0      from the files, no broker
        roquet pipeline archive orders --to ./archive --property region:string --property amount:double
        roquet pipeline archive orders --to ./lake --format delta
        roquet pipeline archive --to ./archive --compact              fewer, larger files
        roquet pipeline archive --to ./archive --verify               every file and offset
        roquet pipeline archive --to ./archive --info
        """,
    )
    assert parser.epilog is not None
    parser.epilog += "\n" + NOTES.rstrip()
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="names, orders-* or /regular expression/; system topics by name only")
    parser.add_argument("--to", metavar="DIR", required=True, help="the archive; made when it is not there")
    parser.add_argument("--format", choices=("parquet", "delta"), default=None, help="of a new archive (default: parquet)")
    parser.add_argument(
        "--from", dest="starting", type=beginning, default="earliest", metavar="WHERE",
        help="earliest, latest or a time; for topics that the archive does not have yet (default: earliest)",
    )  # fmt: skip
    parser.add_argument("--until", type=ending, default=None, metavar="WHEN", help="now or a time (default: now)")
    parser.add_argument("--follow", action="store_true", help="continue until Ctrl-C or SIGTERM, which finish the batch")
    parser.add_argument("--every", type=positive_seconds, default=60.0, metavar="SECONDS", help="between commits of --follow (default: 60)")
    parser.add_argument("--tags", metavar="EXPRESSION", default=None, help="only messages with these tags: 'paid || shipped'")
    parser.add_argument("--sql", metavar="EXPRESSION", default=None, help='only messages whose properties fit: "amount > 5"')
    parser.add_argument("--columns", metavar="A,B,…", default=None, help="columns of a new archive (default: all)")
    parser.add_argument(
        "--property", action="append", default=[], metavar="NAME:TYPE",
        help="a property as a column: string, bigint, double, boolean, timestamp; may be added later, older files give null",
    )  # fmt: skip
    parser.add_argument(
        "--compression", choices=("zstd", "lz4", "snappy", "none"), default=None,
        help="compression of new files; a compacted one gets that of the newest (default: what the archive had last; of a new one zstd)",
    )  # fmt: skip
    parser.add_argument("--batch-rows", type=positive, default=4_000_000, metavar="N", help="rows of one commit (default: 4,000,000)")
    parser.add_argument("--batch-bytes", type=positive, default=2 << 30, metavar="N", help="bytes of one commit, about (default: 2 GiB)")
    parser.add_argument("--skip-lost", action="store_true", help="go on when the broker removed messages before they were archived")
    parser.add_argument("--no-compact", action="store_true", help="leave days with many small files as they are")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only show what would be read")
    what.add_argument("--compact", action="store_true", help="only merge the small files of each day")
    what.add_argument("--verify", action="store_true", help="only check every file and every offset")
    what.add_argument("--info", action="store_true", help="only show what is in the archive")
    place_options(parser)
    job_options(parser)
    parser.set_defaults(run=run, parser=parser)


def beginning(text: str) -> str | int:
    return text if text in ("earliest", "latest") else timestamp_ms(text)


def ending(text: str) -> int | None:
    return None if text in ("now", "latest") else timestamp_ms(text)


def run(arguments: argparse.Namespace) -> int:
    looking = arguments.compact or arguments.verify or arguments.info
    if looking and arguments.topics:
        arguments.parser.error("--compact, --verify and --info take the whole archive; leave the topics out")
    if not looking and not arguments.topics:
        arguments.parser.error("which topics? roquet pipeline archive orders --to DIR")
    if arguments.info:
        return show_info(arguments)
    if arguments.verify:
        return verify(arguments)
    if arguments.compact:
        return compact(arguments)
    return dry_run(arguments) if arguments.dry_run else archive(arguments)


def archive(arguments: argparse.Namespace) -> int:
    from roquet.spark.archive.compact import FILES_MAX
    from roquet.spark.pipelines import archive as pipeline
    from roquet.spark.places import Wanted

    output = pipeline.Output(
        columns=[name.strip() for name in arguments.columns.split(",")] if arguments.columns else None,
        properties=arguments.property,
        compression=arguments.compression,
        delta=is_delta(arguments),
        batch_rows=arguments.batch_rows,
        batch_bytes=arguments.batch_bytes,
        compact_above=None if arguments.no_compact else FILES_MAX,
    )
    pipeline.check(arguments.to, output)
    total = rows_planned(arguments)
    spark = start("archive", arguments)
    stopping = Stopping()
    with Bar("archiving", total) as bar, stopping:
        summary = pipeline.archive(
            place_of(arguments),
            arguments.topics,
            arguments.to,
            spark=spark,
            selection=pipeline.Selection(
                arguments.starting, arguments.until, Wanted(arguments.tags, arguments.sql), skip_lost=arguments.skip_lost
            ),
            output=output,
            control=pipeline.Control(
                follow=arguments.follow,
                every_s=arguments.every,
                stop=lambda: stopping.asked,
                progress=lambda done, _: bar.add(done - bar.done),
            ),
        )
    show_summary(arguments, summary)
    return 0


def rows_planned(arguments: argparse.Namespace) -> int | None:
    """How many there are to read; None where nobody knows. A topic that is not there is told here, before Spark starts."""
    try:
        rows = planned(arguments).rows
    except ConnectFailed:
        if not arguments.follow:
            raise
        return None  # it will wait for the broker
    return None if arguments.follow else rows


class Stopping:
    """Ctrl-C or SIGTERM asks the run to finish its batch; a second one ends it at once, which is safe too."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, _number: int, _frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        note("roquet: finishing the batch; the same signal again ends it at once")


def is_delta(arguments: argparse.Namespace) -> bool:
    """What was asked for, or else what is there."""
    from pathlib import Path

    return arguments.format == "delta" if arguments.format else (Path(arguments.to) / "_delta_log").is_dir()


def show_summary(arguments: argparse.Namespace, summary: Summary) -> None:
    from roquet.spark.offsets import nested

    if arguments.json:
        emit_json(
            {
                "messages": summary.messages,
                "rows": summary.rows,
                "files": summary.files,
                "bytes": summary.bytes,
                "batches": summary.batches,
                "compacted": summary.compacted,
                "seconds": round(summary.seconds, 3),
                "gaps": [gap._asdict() for gap in summary.gaps],
                "offsets": nested(summary.offsets),
            }
        )
        return
    for gap in summary.gaps:
        note(f"roquet: {gap.topic}/{gap.queue_id} on {gap.broker}: offsets {gap.start} to {gap.stop - 1} are gone: a gap is recorded")
    if not summary.rows:
        emit("Nothing new.")
        return
    rate = summary.messages / max(summary.seconds, 1e-9)
    emit(
        f"{counted(summary.rows, 'row')} in {counted(summary.files, 'file')} ({size(summary.bytes)}), "
        f"{counted(summary.batches, 'commit')}, {duration(summary.seconds)}, {rate:,.0f}/s."
        + (f" {counted(summary.compacted, 'small file')} put together." if summary.compacted else "")
    )


def planned(arguments: argparse.Namespace) -> Plan:
    from roquet.spark.pipelines.archive import Selection, plan

    selection = Selection(arguments.starting, arguments.until, skip_lost=arguments.skip_lost)
    return plan(place_of(arguments), arguments.topics, arguments.to, selection=selection)


def dry_run(arguments: argparse.Namespace) -> int:
    plan = planned(arguments)
    rows = [(one.queue.topic, one.queue.broker_name, one.queue.queue_id, one.start, one.stop, one.rows) for one in plan.ranges]
    if arguments.json:
        names = ("topic", "broker", "queue", "start", "stop", "messages")
        emit_json({"messages": plan.rows, "ranges": [dict(zip(names, row, strict=True)) for row in rows]})
        return 0
    emit(table(("TOPIC", "BROKER", "QUEUE", "FROM", "TO", "MESSAGES"), rows))
    emit(f"{counted(plan.rows, 'message')} would be read into {arguments.to}; nothing was written.")
    return 0


def show_info(arguments: argparse.Namespace) -> int:
    from roquet.spark.archive.read import archive_info

    info = archive_info(arguments.to)
    if arguments.json:
        emit_json(info)
        return 0
    rows = [
        (topic, one["rows"], one["files"], size(one["bytes"]), one["dates"], moment(one["first_ms"]), moment(one["last_ms"]))
        for topic, one in info["topics"].items()
    ]
    emit(table(("TOPIC", "ROWS", "FILES", "SIZE", "DAYS", "OLDEST", "NEWEST"), rows))
    for gap in info["gaps"]:
        emit(f"gap: {gap['topic']}/{gap['queue_id']} on {gap['broker']}, offsets {gap['start']} to {gap['stop'] - 1}")
    if info["filtered"]:
        emit("Some of it was filtered: offsets have holes.")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    from roquet.spark.archive.read import verify_archive

    verdict = verify_archive(arguments.to)
    if arguments.json:
        emit_json({"rows": verdict.rows, "files": verdict.files, "problems": verdict.problems})
    else:
        for problem in verdict.problems:
            emit(problem)
        found = "all is well." if verdict.fine else f"{counted(len(verdict.problems), 'problem')}."
        emit(f"{counted(verdict.rows, 'row')} in {counted(verdict.files, 'file')}: {found}")
    return 0 if verdict.fine else 1


def compact(arguments: argparse.Namespace) -> int:
    from roquet.spark.archive.read import archive_info
    from roquet.spark.pipelines import archive as pipeline

    archive_info(arguments.to)  # says so where there is none
    spark = start("archive", arguments)
    gone = pipeline.compact(arguments.to, spark=spark)
    if arguments.json:
        emit_json({"compacted": gone})
    else:
        emit(f"{counted(gone, 'small file')} put together." if gone else "No day has more than one small file.")
    return 0
