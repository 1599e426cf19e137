"""`roquet pipeline trace`: what the trace topic tells."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from roquet.cli.options import Commands, positive, positive_seconds
from roquet.cli.pipeline import place_of
from roquet.cli.pipelines.report import add_report
from roquet.cli.pipelines.rows import as_table, first, kept, plain, rows_of
from roquet.cli.pipelines.starting import start
from roquet.cli.pipelines.times import text_of, time_options, times_of
from roquet.cli.progress import Bar
from roquet.cli.render import counted, emit, emit_json, note, printable

NOTES = """
what traces do not tell:
  Only clients with tracing switched on write them (Java: enableMsgTrace), so a group without traces is not in the tables.
  Apache's clients trace a send when the broker answered it; one that timed out leaves nothing. Times are the clients' clocks,
  so a wait between two machines is as right as their clocks are.

--save DIR keeps all events as a table (DIR/events, Parquet) and adds to it what is new each time; a run that was stopped
goes on where it was. The answers then come from the whole table, or from --since on.
"""

MESSAGE = {"topic": "TOPIC", "group": "GROUP", "unique_id": "MESSAGE"}
TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "latencies": (
        "LATENCIES, ms",
        {"topic": "TOPIC", "group": "GROUP", "measure": "OF", "count": "COUNT", "p50_ms": "P50", "p95_ms": "P95", "p99_ms": "P99"}
        | {"max_ms": "MAX"},
    ),
    "slowest": (
        "SLOWEST, ms",
        MESSAGE
        | {"keys": "KEYS", "send_ms": "SEND", "wait_ms": "WAIT", "consume_ms": "CONSUME", "deliveries": "TIMES", "total_ms": "TOTAL"},
    ),
    "failed": ("FAILED", {"time": "TIME", "what": "WHAT"} | MESSAGE | {"keys": "KEYS", "outcome": "OUTCOME", "retry_times": "RETRIES"}),
    "stuck": ("STUCK TRANSACTIONS", {"sent": "SENT"} | MESSAGE | {"keys": "KEYS", "age_s": "FOR", "unknown_answers": "UNKNOWN"}),
    "neverConsumed": ("NEVER CONSUMED", {"sent": "SENT"} | MESSAGE | {"tags": "TAGS", "keys": "KEYS", "age_s": "FOR"}),
}
"""What is shown of each answer: its title, and columns with their headings."""


def add_command(commands: Commands) -> None:
    add_report(
        commands,
        "trace",
        "latencies, slowest and failed messages, stuck transactions and messages never consumed, from the trace topic",
        """
        roquet pipeline trace
        roquet pipeline trace --topic orders --since -1h --slowest 5
        roquet pipeline trace --save ./traces --json
        roquet pipeline trace --store ./data/broker-0 --trace-topic my_traces
        """,
        NOTES,
        options,
        answer,
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="TOPIC", default="", help="only messages of this topic (default: all)")
    parser.add_argument("--trace-topic", metavar="TOPIC", default="", help="where traces are (default: RMQ_SYS_TRACE_TOPIC)")
    time_options(parser, "traces stored")
    parser.add_argument("--slowest", type=positive, default=20, metavar="N", help="rows of each list (default: 20)")
    parser.add_argument(
        "--stuck-after", type=positive_seconds, default=300.0, metavar="SECONDS", help="a half message is stuck after this (default: 300)"
    )
    parser.add_argument(
        "--grace", type=positive_seconds, default=60.0, metavar="SECONDS", help="never consumed counts after this long (default: 60)"
    )
    parser.add_argument("--save", metavar="DIR", type=Path, default=None, help="keep the events here, and continue from what is there")
    parser.add_argument("--dry-run", action="store_true", help="with --save: read and answer, but keep nothing")


def answer(arguments: argparse.Namespace) -> int:
    from roquet.spark.pipelines import trace
    from roquet.wire.names import TRACE_TOPIC

    where = place_of(arguments)
    since_ms, until_ms = times_of(arguments)
    trace_topic = arguments.trace_topic or TRACE_TOPIC
    trace.need_traces(where, trace_topic)
    with Bar("tracing", 8) as bar:
        spark = start("trace", arguments)
        bar.add()
        if arguments.save is not None and not arguments.dry_run:
            found = trace.within(trace.save(spark, where, arguments.save, trace_topic=trace_topic), since_ms, until_ms)
        else:
            found = trace.events(spark, where, trace_topic=trace_topic, since=text_of(since_ms), until=text_of(until_ms))
        bar.add()
        chosen = trace.of_topic(found, arguments.topic) if arguments.topic else found
        # All answers are made of these two: Spark finds them again by their plans.
        with kept(found), kept(trace.messages(chosen)), kept(trace.deliveries(chosen)):
            kinds = {row["kind"]: row["count"] for row in rows_of(found.groupBy("kind").count().orderBy("kind"))}
            bar.add()
            answers = {"latencies": rows_of(trace.latencies(chosen))}
            bar.add()
            answers["slowest"] = rows_of(trace.slowest(chosen, arguments.slowest))
            totals: dict[str, int] = {}
            lists = {
                "failed": trace.failed(chosen),
                "stuck": trace.stuck(chosen, arguments.stuck_after),
                "neverConsumed": trace.never_consumed(chosen, arguments.grace, subscriptions=trace.subscribed(spark, where, chosen)),
                "malformed": trace.malformed(found),
            }
            for name, frame in lists.items():
                answers[name], totals[name] = first(frame, arguments.slowest)
                bar.add()
    if arguments.json:
        emit_json({"events": kinds, "totals": totals, **{name: [plain(row) for row in rows] for name, rows in answers.items()}})
    else:
        report(kinds, totals, answers)
        if arguments.save is not None:
            note(f"kept in {arguments.save}" if not arguments.dry_run else f"a dry run: nothing was kept in {arguments.save}")
    return 0


def report(kinds: dict[str, int], totals: dict[str, int], answers: dict[str, list[dict[str, Any]]]) -> None:
    counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()) or "none"
    emit(f"{counted(sum(kinds.values()), 'trace record')}: {counts}")
    for name, (title, columns) in TABLES.items():
        rows = answers[name]
        total = totals.get(name, len(rows))
        emit(f"\n{title}: {total:,}" if name in totals else f"\n{title}")
        if rows or name not in totals:
            emit(as_table(columns, rows))
        if total > len(rows):
            emit(f"... and {total - len(rows):,} more; --slowest N shows more")
    if totals["malformed"]:
        problem = printable(answers["malformed"][0]["problem"])
        note(f"roquet: {counted(totals['malformed'], 'record')} could not be read, the first: {problem}")
