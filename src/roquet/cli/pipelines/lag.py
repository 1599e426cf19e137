"""`roquet pipeline lag`: how far groups are behind, over time, and when they will have caught up."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roquet.cli.options import Commands, positive_seconds
from roquet.cli.pipeline import place_of
from roquet.cli.pipelines.report import add_report
from roquet.cli.pipelines.rows import as_table, kept, plain, rows_of
from roquet.cli.pipelines.starting import start
from roquet.cli.progress import Bar
from roquet.cli.render import counted, duration, emit, emit_json, note

if TYPE_CHECKING:
    from roquet.errors import RoquetError
    from roquet.spark.pipelines.lag import Sample

FLUSH_S = 60.0
"""Samples are written once so many seconds of them are there, and at the end."""

NOTES = """
how to read it:
  Rates are straight lines through the offsets of the last --window seconds of samples, of earlier runs too with --to.
  A group has caught up when its last queue has. "never at this rate": at least as much is produced as consumed.
  "stalled": there are messages and members, but no progress. "keeping up": less than 10 s of messages behind.
  DIR holds Parquet files: time, group, topic, broker, queue_id, broker_offset, consumer_offset, lag, last_timestamp, members.
  Any number of runs may add to it; Ctrl-C ends the sampling, not the answer.
"""


def add_command(commands: Commands) -> None:
    add_report(
        commands,
        "lag",
        "sample how far groups are behind, keep it as a table, and say when they will have caught up",
        """
        roquet pipeline lag --once
        roquet pipeline lag --group billing --every 5 --for 60
        roquet pipeline lag --every 10 --for 3600 --to ./lag
        roquet pipeline lag --once --to ./lag --json            one more sample, and a forecast from all in DIR
        """,
        NOTES,
        options,
        answer,
        store=False,
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--group", metavar="GROUP", action="append", default=[], help="only this group (may be repeated; default: all)")
    parser.add_argument("--all", action="store_true", help="show the system's own groups, too")
    parser.add_argument("--every", type=positive_seconds, default=5.0, metavar="SECONDS", help="between two samples (default: 5)")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--for", dest="for_s", type=positive_seconds, default=60.0, metavar="SECONDS", help="for this long (default: 60)")
    how_long.add_argument("--once", action="store_true", help="one sample")
    parser.add_argument("--window", type=positive_seconds, default=600.0, metavar="SECONDS", help="rates over this long (default: 600)")
    parser.add_argument("--to", metavar="DIR", type=Path, default=None, help="add the samples to the table in this directory")
    parser.add_argument("--dry-run", action="store_true", help="with --to: sample and answer, but write nothing")
    parser.add_argument("--queues", action="store_true", help="a line for each queue, not for each group and topic")


def answer(arguments: argparse.Namespace) -> int:
    from roquet.spark.pipelines import lag

    where = place_of(arguments)
    to = None if arguments.dry_run else arguments.to
    samples = take(arguments, where, to)
    if not samples:
        note("no group has read anything yet; see: roquet group list")
    if len({one.time for one in samples}) < 2 and to is None:
        return now(arguments, samples)
    spark = start("lag", arguments)
    table_over_time = lag.frame(spark, samples) if to is None else lag.of(lag.read(spark, to), arguments.group)
    with kept(lag.forecast(table_over_time, arguments.window)) as queues:
        by_queue, groups = rows_of(queues), rows_of(lag.of_groups(queues))
    if arguments.json:
        emit_json({"samples": len(samples), "groups": [plain(row) for row in groups], "queues": [plain(row) for row in by_queue]})
        return 0
    report(by_queue if arguments.queues else groups, arguments.queues)
    if to is not None:
        note(f"{counted(len(samples), 'row')} added to {to}")
    return 0


def take(arguments: argparse.Namespace, where: dict[str, str], to: Path | None) -> list[Sample]:
    """The samples of this run; written as they come, and what is there when it is interrupted."""
    from roquet.spark.pipelines import lag

    found: list[Sample] = []
    unwritten: list[Sample] = []
    for_s = 0.0 if arguments.once else arguments.for_s

    def write() -> None:
        if to is not None:
            lag.append(to, unwritten)
        unwritten.clear()

    with Bar("sampling", int(for_s / arguments.every) + 1) as bar:

        def taken(rows: list[Sample]) -> None:
            found.extend(rows)
            unwritten.extend(rows)
            if unwritten and unwritten[-1].time - unwritten[0].time >= FLUSH_S * 1000:
                write()
            bar.add()

        def missed(error: RoquetError) -> None:
            note(f"roquet: a sample was missed: {error}")
            bar.add()

        try:
            lag.watch(where, arguments.every, for_s, taken, missed, arguments.group, system=arguments.all)
        except KeyboardInterrupt:
            note("stopped; with what there is:")
        finally:
            write()
    return found


def now(arguments: argparse.Namespace, samples: list[Sample]) -> int:
    """Of one sample alone: no rates, and no Spark."""
    rows = [one._asdict() for one in samples]
    if arguments.json:
        emit_json({"samples": len(samples), "groups": [], "queues": rows})
        return 0
    if not arguments.queues:
        sums: dict[tuple[str, str], dict[str, Any]] = {}
        for one in samples:
            line = sums.setdefault((one.group, one.topic), one._asdict() | {"queues": 0, "lag": 0})
            line["queues"] += 1
            line["lag"] += one.lag
        rows = list(sums.values())
    emit(as_table(headings(arguments.queues), rows))
    return 0


def report(rows: list[dict[str, Any]], each_queue: bool) -> None:
    more = {"produce_rate": "PRODUCED/S", "consume_rate": "CONSUMED/S", "state": "STATE", "when": "CATCHES UP"}
    emit(as_table(headings(each_queue) | more, [row | {"when": when(row)} for row in rows]))


def headings(each_queue: bool) -> dict[str, str]:
    place = {"broker": "BROKER", "queue_id": "QUEUE"} if each_queue else {"queues": "QUEUES"}
    return {"group": "GROUP", "topic": "TOPIC"} | place | {"members": "MEMBERS", "lag": "LAG"}


def when(row: dict[str, Any]) -> str:
    if row["catch_up"] is None:
        return "-"
    if not row["catch_up_s"]:
        return "now"
    return f"{row['catch_up'].astimezone():%Y-%m-%d %H:%M:%S}, in {duration(row['catch_up_s'])}"
