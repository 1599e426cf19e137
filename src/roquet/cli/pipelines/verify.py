"""`roquet pipeline verify`: is every record of a store whole, and does every entry fit?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from roquet.cli.options import Commands, command
from roquet.cli.pipeline import job_options
from roquet.cli.pipelines.starting import start
from roquet.cli.progress import Bar
from roquet.cli.render import counted, emit, emit_json, size, table
from roquet.cli.servers import read_settings
from roquet.settings import BrokerSettings

if TYPE_CHECKING:
    from roquet.spark.pipelines.verify import Report

NOTES = """
what is checked:
  Each record: its lengths, its own offset, the checksum of its body. Each queue entry against its record and each record
  against its entry. Each index file: header, slots, chains; each key of each record is there, each entry leads to a key.
  Nothing is written, and a broker may be running: then what came after the log was read does not count.

exit codes:
  0 nothing is wrong; 1 there are problems, or the store cannot be read.
"""


def add_command(commands: Commands) -> None:
    parser = command(
        commands,
        "verify",
        "check a whole store: every record, queue entry and index entry",
        """
        roquet pipeline verify --store ./data/broker-0
        roquet pipeline verify --store ./data/broker-0 --queues        not the index
        roquet pipeline verify --store ./data/broker-0 --json
        """,
    )
    assert parser.epilog is not None
    parser.epilog += "\n" + NOTES.rstrip()
    store_options(parser)
    job_options(parser)
    parser.set_defaults(run=run)


def store_options(parser: argparse.ArgumentParser) -> None:
    """Which store, how its files are shaped, and which of them."""
    parser.add_argument("--store", metavar="DIR", required=True, help="the store's directory (storePathRootDir)")
    parser.add_argument("--queues", action="store_true", help="the consume queues (default: queues and index)")
    parser.add_argument("--index", action="store_true", help="the index (default: queues and index)")
    parser.add_argument("-c", "--config", metavar="FILE", help="the broker's settings; needed when sizes or delay levels were changed")
    parser.set_defaults(set=[])


def chosen(arguments: argparse.Namespace) -> tuple[bool, bool]:
    """(queues, index)."""
    both = arguments.queues == arguments.index
    return both or arguments.queues, both or arguments.index


def run(arguments: argparse.Namespace) -> int:
    from roquet.spark.pipelines.store_files import PIECE, layout_of, pieces_of
    from roquet.spark.pipelines.verify import verify

    settings = read_settings(BrokerSettings, arguments)
    pieces = len(pieces_of(layout_of(arguments.store, settings)))
    queues, index = chosen(arguments)
    spark = start("verify", arguments)
    with Bar("verifying, bytes of log", pieces * PIECE) as bar:
        report = verify(spark, arguments.store, settings=settings, queues=queues, index=index, progress=lambda done: bar.add(done * PIECE))
    if arguments.json:
        emit_json(report.as_json())
    else:
        show(report)
    return 0 if report.ok else 1


def show(report: Report) -> None:
    from roquet.spark.pipelines.checks import PROBLEMS, REMARKS

    counts = report.counts
    rate = counts.get("records", 0) / max(report.took_s, 1e-9)
    emit(f"{report.store}: log {report.log_start} to {report.log_end}, " + ("stopped cleanly" if report.finished else "running or killed"))
    names = [("records", "records"), ("queues", "queues"), ("queue entries", "queue entries")]
    names += [("index files", "index files"), ("index entries", "index entries")]
    rows: list[list[str | int]] = [[shown, counts.get(name, 0)] for name, shown in names]
    emit(table(["checked", "count"], rows, indent="  "))
    emit(f"  {size(counts.get('bytes', 0))} of records in {report.took_s:.1f} s, {rate:,.0f} records/s")
    if report.remarks:
        emit("\nnormal:")
        emit(table(["count", "what"], [[count, REMARKS[kind]] for kind, count in report.remarks.items()], indent="  "))
    if report.ok:
        emit("\nNothing is wrong.")
        return
    emit("\nproblems:")
    emit(table(["count", "kind", "meaning"], [[count, kind, PROBLEMS[kind]] for kind, count in report.problems.items()], indent="  "))
    for kind in report.problems:
        for place in report.places.get(kind, []):
            emit(f"  {kind}: {place}")
        left = report.problems[kind] - len(report.places.get(kind, []))
        if left > 0:
            emit(f"  {kind}: and {counted(left, 'more place')}")
    if any(kind.startswith(("queue", "index")) for kind in report.problems):
        emit("\nQueues and index are derived from the log; with the broker stopped: roquet pipeline rebuild --store " + report.store)
