"""`roquet pipeline restore`: messages of an archive, a store or a topic back to a topic."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from roquet.cli.options import Commands, command, confirmed, positive, timestamp_ms
from roquet.cli.pipeline import job_options, place_of, place_options
from roquet.cli.pipelines.starting import start
from roquet.cli.progress import Bar
from roquet.cli.render import counted, duration, emit, emit_json, size, table

if TYPE_CHECKING:
    from roquet.spark.pipelines.restore import Summary
    from roquet.spark.replay import Choice

NOTES = """
how it is known and resumed:
  A message sent again has the properties REPLAY_OF (the id of the message it was) and REPLAY_RUN (--run), and a unique id made
  of both. The same command with the same --run goes on where it stopped; the few that a crash makes it send twice have the
  same ids, so a consumer that remembers ids drops them. Progress is kept in the archive (_roquet/replays), else in --state.

who sees it:
  Every group that subscribes to the topic, as with any message. Delays are not repeated. System topics are refused.
"""


def add_command(commands: Commands) -> None:
    parser = command(
        commands,
        "restore",
        "send messages of an archive, a store or a topic again: by time, key, tag or SQL, at a rate",
        """
        roquet pipeline restore orders --archive ./archive --begin 2024-05-01 --end 2024-05-02 --dry-run
        roquet pipeline restore orders --archive ./archive --key order-17 --to-topic orders-again --yes
        roquet pipeline restore orders --archive ./archive --where "tags = 'paid' and amount > 100" --rate 500
        roquet pipeline restore orders --store ./old/broker-0 --sql "region = 'eu'" --run eu-again
        roquet pipeline replay orders --tag paid --begin 2024-05-01T10:00 --to-topic orders-test
        """,
        aliases=("replay",),
    )
    assert parser.epilog is not None
    parser.epilog += "\n" + NOTES.rstrip()
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="names, orders-* or /regular expression/")
    parser.add_argument("--archive", metavar="DIR", default=None, help="read this archive; else --store, else the cluster's topics")
    parser.add_argument("--begin", type=timestamp_ms, default=None, metavar="TIME", help="stored since then: 2024-05-01T10:00 or ms")
    parser.add_argument("--end", type=timestamp_ms, default=None, metavar="TIME", help="stored before then")
    parser.add_argument("--key", action="append", default=[], metavar="KEY", help="with this key (may be repeated)")
    parser.add_argument("--tag", default=None, metavar="EXPRESSION", help="with these tags: 'paid || shipped'")
    parser.add_argument("--sql", default=None, metavar="EXPRESSION", help="SQL92 filter over properties, as for consumers")
    parser.add_argument("--where", default=None, metavar="EXPRESSION", help="Spark SQL filter over the columns")
    parser.add_argument("--queue", type=int, default=None, metavar="N", help="only messages of this queue")
    parser.add_argument("--from-offset", type=int, default=None, metavar="N")
    parser.add_argument("--to-offset", type=int, default=None, metavar="N", help="up to this offset, which is not included")
    parser.add_argument("--to-topic", default="", metavar="TOPIC", help="send to this topic (default: the one each came from)")
    parser.add_argument("--rate", type=positive, default=None, metavar="N", help="messages a second at most, all tasks together")
    parser.add_argument("--keep-order", action="store_true", help="messages of one queue go to one queue, in their order")
    parser.add_argument("--run", dest="run_name", default="", metavar="NAME", help="the run's name, to resume it (default: by selection)")
    parser.add_argument("--state", default=None, metavar="DIR", help="for progress (default: in the archive, else ./roquet-replays)")
    parser.add_argument("--dry-run", action="store_true", help="only count, and show some")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    place_options(parser)
    job_options(parser)
    parser.set_defaults(run=run)


def choice_of(arguments: argparse.Namespace) -> Choice:
    from roquet.spark.replay import Choice

    return Choice(
        topics=tuple(arguments.topics),
        since_ms=arguments.begin,
        until_ms=arguments.end,
        keys=tuple(arguments.key),
        tags=arguments.tag,
        sql=arguments.sql,
        where=arguments.where,
        queue_id=arguments.queue,
        from_offset=arguments.from_offset,
        to_offset=arguments.to_offset,
    )


def run_name(arguments: argparse.Namespace) -> str:
    """The same selection to the same topic is the same run, unless it is named."""
    import hashlib

    selection = repr((choice_of(arguments), arguments.to_topic, arguments.archive, arguments.store))
    return arguments.run_name or "replay-" + hashlib.blake2b(selection.encode(), digest_size=6).hexdigest()


def run(arguments: argparse.Namespace) -> int:
    from roquet.spark.pipelines.restore import Run, Source, Target, check, restore

    source = Source(arguments.archive) if arguments.archive else Source(where=place_of(arguments))
    store, arguments.store = arguments.store, None
    target = place_of(arguments)
    arguments.store = store
    name = run_name(arguments)
    goal = arguments.to_topic or ", ".join(arguments.topics)
    to = Target(target, arguments.to_topic, arguments.rate, arguments.keep_order, arguments.dry_run)
    check(choice_of(arguments), source, to)
    if not arguments.dry_run and not confirmed(arguments, f"Send the selection to {goal} (run {name})? --dry-run shows it."):
        return 1
    spark = start("restore", arguments)
    with Bar("looking" if arguments.dry_run else "sending", None) as bar:
        summary = restore(
            choice_of(arguments),
            source,
            to,
            Run(name, arguments.state or (None if arguments.archive else "roquet-replays")),
            spark=spark,
            progress=lambda _seen, chosen: bar.add(chosen - bar.done),
        )
    show(arguments, summary)
    return 0


def show(arguments: argparse.Namespace, summary: Summary) -> None:
    if arguments.json:
        emit_json(
            {
                "run": summary.run,
                "dry_run": arguments.dry_run,
                "seen": summary.seen,
                "messages": summary.chosen,
                "before": summary.before,
                "bytes": summary.bytes,
                "topics": summary.topics,
                "seconds": round(summary.seconds, 3),
            }
        )
        return
    if arguments.dry_run:
        emit(table(("TOPIC", "QUEUE", "OFFSET", "KEYS", "TAGS", "BYTES"), summary.shown))
        emit(f"{counted(summary.chosen, 'message')} ({size(summary.bytes)}) of {summary.seen:,} would be sent; nothing was.")
        return
    for topic, count in sorted(summary.topics.items()):
        emit(f"{topic}: {counted(count, 'message')}")
    earlier = f" {counted(summary.before, 'message')} were sent before." if summary.before else ""
    rate = summary.chosen / max(summary.seconds, 1e-9)
    emit(f"Sent {counted(summary.chosen, 'message')} in {duration(summary.seconds)}, {rate:,.0f}/s, run {summary.run}.{earlier}")
