"""`roquet pipeline analytics`: counts by window, from a topic back into a topic."""

from __future__ import annotations

import argparse
import contextlib
import re
from typing import Any

from roquet.cli.options import Commands, command
from roquet.cli.pipeline import cluster_of, job_options, place_of, place_options, sentence
from roquet.cli.pipelines.rows import ms
from roquet.cli.pipelines.starting import start
from roquet.cli.render import counted, duration, emit, emit_json, note
from roquet.errors import ClientError


def add_command(commands: Commands) -> None:
    parser = command(
        commands,
        "analytics",
        "count messages by window, each id once, from a topic back into a topic",
        """
        roquet pipeline analytics orders --to order-counts --checkpoint ./checkpoints/order-counts
        roquet pipeline analytics orders --to by-shop --by "get_json_object(cast(body as string), '$.shop')" --checkpoint ./c
        roquet pipeline analytics orders --to order-counts --window "5 minutes" --late "30 seconds" --until-now --checkpoint ./c
        """,
    )
    parser.add_argument("topic", help="counted")
    parser.add_argument("--to", metavar="TOPIC", required=True, help="gets one message for each closed window")
    parser.add_argument("--checkpoint", metavar="DIR", required=True, help="state and progress; the same directory resumes the run")
    parser.add_argument("--by", metavar="SQL", default="coalesce(tags, '')", help="what is counted apart (default: the tag)")
    parser.add_argument("--window", metavar="DURATION", default="1 minute", help='length of a window (default: "1 minute")')
    parser.add_argument("--late", metavar="DURATION", default="10 seconds", help='how late a message may be (default: "10 seconds")')
    parser.add_argument("--time", metavar="SQL", default="store_time", help="a message's time (default: store_time)")
    parser.add_argument("--unique", metavar="SQL", default="unique_id", help="rows with one value count once (default: unique_id)")
    parser.add_argument("--until-now", action="store_true", help="stop when what is there now was read; else until Ctrl-C")
    parser.add_argument("--dry-run", action="store_true", help="show the counts of what is there now, send nothing")
    place_options(parser)
    parser.add_argument("--to-namesrv", metavar="HOST:PORT", default=None, help="cluster of --to, where it is another (the same keys)")
    job_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from roquet.spark.pipelines.analytics import analytics

    where = place_of(arguments)
    if arguments.store and not arguments.to_namesrv and not arguments.dry_run:
        raise ClientError("--store has no broker to send to; name its cluster: --to-namesrv HOST:PORT")
    to_where = cluster_of(arguments, arguments.to_namesrv) if arguments.to_namesrv else None
    for option in ("window", "late"):
        check_duration(option, getattr(arguments, option))
    need_topic(where, arguments.topic)
    spark = start("analytics", arguments)
    if arguments.dry_run:
        return dry_run(spark, where, arguments)
    query = analytics(
        spark,
        where,
        arguments.topic,
        arguments.to,
        checkpoint=arguments.checkpoint,
        by=arguments.by,
        window=arguments.window,
        watermark=arguments.late,
        time=arguments.time,
        unique=arguments.unique,
        until_now=arguments.until_now,
        to_where=to_where,
    )
    seen, rows = -1, 0
    try:
        while query.isActive or (query.lastProgress and query.lastProgress["batchId"] > seen):
            ended = query.awaitTermination(1)
            for progress in query.recentProgress:
                if progress["batchId"] <= seen:
                    continue
                seen = progress["batchId"]
                rows += progress["numInputRows"]
                if progress["numInputRows"]:
                    note(f"batch {seen}: {counted(progress['numInputRows'], 'message')}, {rows_a_second(progress)}")
            if ended:
                break
    except KeyboardInterrupt:
        note("stopping; the same --checkpoint goes on from here")
        query.stop()
    if query.exception() is not None:
        raise ClientError(sentence(str(query.exception())))
    facts = {"topic": arguments.topic, "to": arguments.to, "messages": rows, "batches": seen + 1, "checkpoint": arguments.checkpoint}
    if arguments.json:
        emit_json(facts)
    else:
        emit(f"{counted(rows, 'message')} of {arguments.topic} counted; windows go to {arguments.to}.")
    return 0


INTERVAL = re.compile(r"(interval\s+)?(\d+\s*(microsecond|millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE | re.ASCII)


def check_duration(option: str, text: str) -> None:
    if not INTERVAL.fullmatch(text.strip()):
        raise ClientError(f'--{option} {text}: expected a number and a unit, as in "30 seconds", "5 minutes" or "1 hour"')


def need_topic(where: dict[str, str], topic: str) -> None:
    """Raises NoRoute: Spark would look for it for two minutes, in case its broker just restarts."""
    from roquet.spark.options import place_of as opened

    with contextlib.closing(opened(where)) as place:
        place.queues(topic)


def rows_a_second(progress: dict[str, Any]) -> str:
    spent = progress.get("durationMs", {}).get("triggerExecution", 0) / 1000
    return f"{progress['numInputRows'] / spent:,.0f}/s" if spent else duration(0)


def dry_run(spark: Any, where: dict[str, str], arguments: argparse.Namespace) -> int:
    """The same counts over what is there now, as a batch."""
    from roquet.cli.render import table
    from roquet.spark.pipelines.analytics import COLUMNS, windowed_counts

    messages = spark.read.format("rocketmq").options(**where, subscribe=arguments.topic).schema(COLUMNS).load()
    counts = windowed_counts(
        messages, by=arguments.by, window=arguments.window, watermark=arguments.late, time=arguments.time, unique=arguments.unique
    )
    found = counts.orderBy("window_start", "key").limit(1_000).collect()
    if arguments.json:
        emit_json([{**row.asDict(), "window_start": ms(row[0]), "window_end": ms(row[1])} for row in found])
    else:
        emit(table(["window", "until", "key", "count"], [[str(row[0]), str(row[1]), row[2] or "", row[3]] for row in found]))
        note(f"dry run: {counted(len(found), 'window')} would be sent to {arguments.to} as they close")
    return 0
