"""`roquet pipeline rebuild`: a store's queues and index, made again from its log."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from roquet.cli.options import Commands, command, confirmed
from roquet.cli.pipeline import job_options
from roquet.cli.pipelines.starting import start
from roquet.cli.pipelines.verify import chosen, store_options
from roquet.cli.progress import Bar
from roquet.cli.render import counted, emit, emit_json, note, table
from roquet.cli.servers import read_settings
from roquet.settings import BrokerSettings

if TYPE_CHECKING:
    from roquet.spark.pipelines.rebuild import Rebuilt

SHOWN_MAX = 40

NOTES = """
what happens:
  The files grow in DIR/rebuild, are verified against the log, and then take the place of the old ones, which stay as
  DIR/consumequeue.old-TIME and DIR/index.old-TIME. Until then nothing is touched: an interrupted run is started again.
  The broker must be stopped; its lock is taken. With --into a broker may run, and nothing in the store is changed.
"""


def add_command(commands: Commands) -> None:
    parser = command(
        commands,
        "rebuild",
        "make a store's consume queues and index again from its log, the same bytes as the broker's",
        """
        roquet pipeline rebuild --store ./data/broker-0 --dry-run
        roquet pipeline rebuild --store ./data/broker-0 --yes
        roquet pipeline rebuild --store ./data/broker-0 --index --yes
        roquet pipeline rebuild --store ./data/broker-0 --into ./rebuilt
        """,
    )
    assert parser.epilog is not None
    parser.epilog += "\n" + NOTES.rstrip()
    store_options(parser)
    parser.add_argument("--into", metavar="DIR", default=None, help="write consumequeue/ and index/ there, leave the store as it is")
    parser.add_argument("--dry-run", action="store_true", help="read the log and say what would be written")
    parser.add_argument("--no-check", action="store_true", help="do not verify what was built (saves about half of the time)")
    parser.add_argument("--discard-old", action="store_true", help="remove the old files at the end; this cannot be undone")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    job_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from roquet.spark.pipelines.rebuild import rebuild
    from roquet.spark.pipelines.store_files import PIECE, layout_of, pieces_of

    settings = read_settings(BrokerSettings, arguments)
    pieces = len(pieces_of(layout_of(arguments.store, settings)))
    queues, index = chosen(arguments)
    names = " and ".join(name for name, wanted in (("consumequeue", queues), ("index", index)) if wanted)
    if not arguments.dry_run and arguments.into is None:
        what = "removes" if arguments.discard_old else "sets aside"
        if not confirmed(arguments, f"This {what} {names} of {arguments.store} and puts new ones there. Go on?"):
            return 1
    spark = start("rebuild", arguments)
    with Bar("reading, bytes of log", pieces * PIECE) as bar:
        rebuilt = rebuild(
            spark,
            arguments.store,
            into=arguments.into,
            queues=queues,
            index=index,
            dry_run=arguments.dry_run,
            check=not arguments.no_check,
            keep_old=not arguments.discard_old,
            settings=settings,
            progress=lambda done: bar.add(done * PIECE),
        )
    if arguments.json:
        emit_json(rebuilt.as_json())
    else:
        show(rebuilt)
    return 0


def show(rebuilt: Rebuilt) -> None:
    rows: list[list[str | int]] = [[topic, number, first, after] for (topic, number), (first, after) in rebuilt.queues.items()]
    if rows:
        emit(table(["topic", "queue", "first", "next"], rows[:SHOWN_MAX], indent="  "))
        if len(rows) > SHOWN_MAX:
            emit(f"  and {counted(len(rows) - SHOWN_MAX, 'more queue')}")
    for topic, number in rebuilt.kept:
        emit(f"  {topic}/{number}: no record of it is left; its files are taken over, so that its offsets go on")
    made = "would be made" if rebuilt.dry_run else "made"
    emit(
        f"{counted(rebuilt.records, 'record')} read; {made}: {rebuilt.queue_entries:,} queue entries of {counted(len(rows), 'queue')}, "
        f"{rebuilt.index_entries:,} index entries; {rebuilt.took_s:.1f} s, {rebuilt.records / max(rebuilt.took_s, 1e-9):,.0f} records/s"
    )
    for path in rebuilt.old:
        note(f"the old one is {path}; remove it when you no longer need it")
    if rebuilt.dry_run:
        note("dry run: nothing was written")
