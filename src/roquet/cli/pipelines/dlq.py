"""`roquet pipeline dlq`: dead letters of all groups, counted by reason, and a selection of them sent again."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from roquet.cli.options import Commands, confirmed, positive
from roquet.cli.pipeline import place_of
from roquet.cli.pipelines.report import add_report
from roquet.cli.pipelines.rows import as_table, kept, plain, rows_of
from roquet.cli.pipelines.starting import start
from roquet.cli.pipelines.times import text_of, time_options, times_of
from roquet.cli.progress import Bar
from roquet.cli.render import counted, emit, emit_json, note, printable

if TYPE_CHECKING:
    from roquet.spark.pipelines.dead_letters import Redriven

NOTES = """
columns for --where (Spark SQL):
  group, origin_topic, origin_message_id, reason, age_s, max_attempts, and of the letter: topic, broker, queue_id, queue_offset,
  keys, tags, properties['NAME'], born_time, store_time (when it became a dead letter), unique_id, message_id, reconsume_times

sent once:
  A message sent again has its letter's id as its unique key, and its topic is asked for that key before; so a second run, of
  this or of `roquet dead-letters replay`, sends nothing twice, and one that stopped goes on. --again does not ask.
  The letters stay where they are until the log that holds them expires.

reason:
  What the properties tell: a text that the application left (--reason-property; else exception, error, reason ...), or how
  often it failed against how often its group may. RocketMQ itself does not keep why a consumer failed.
"""

COUNTS = {
    "group": "GROUP", "origin_topic": "FROM TOPIC", "tags": "TAG", "reason": "REASON", "letters": "LETTERS",
    "oldest": "OLDEST", "newest": "NEWEST",
}  # fmt: skip
SHOWN = {
    "store_time": "DEAD SINCE", "age_s": "AGE", "group": "GROUP", "origin_topic": "FROM TOPIC", "tags": "TAG", "keys": "KEYS",
    "reconsume_times": "FAILED", "message_id": "LETTER", "reason": "REASON",
}  # fmt: skip


def add_command(commands: Commands) -> None:
    add_report(
        commands,
        "dlq",
        "count and show dead letters of all groups by reason; send a selection of them again",
        """
        roquet pipeline dlq
        roquet pipeline dlq --since -1d --show 20
        roquet pipeline dlq --store ./data/broker-0 --group billing
        roquet pipeline dlq --redrive --group billing --tag paid --dry-run
        roquet pipeline dlq --redrive --origin-topic orders --where "properties['region'] = 'eu'" --rate 100 --yes
        """,
        NOTES,
        options,
        answer,
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--group", metavar="GROUP", action="append", default=[], help="only of this group (may be repeated; default: all)")
    parser.add_argument("--origin-topic", metavar="TOPIC", default="", help="only letters that came from this topic")
    parser.add_argument("--tag", metavar="TAG", default="", help="only letters with this tag")
    parser.add_argument("--key", metavar="KEY", default="", help="only letters with this key")
    time_options(parser, "became dead letters")
    parser.add_argument("--where", metavar="SQL", default="", help="only letters for which this Spark SQL expression is true")
    parser.add_argument("--reason-property", metavar="NAME", action="append", default=[], help="property that says why (may be repeated)")
    parser.add_argument("--show", type=positive, default=None, metavar="N", help="show the newest N of them, too, one by one")
    again = parser.add_argument_group("sending again")
    again.add_argument("--redrive", action="store_true", help="send them again, to the topic each came from; asks first")
    target = again.add_mutually_exclusive_group()
    target.add_argument("--to", metavar="TOPIC", default="", help="to this topic instead")
    target.add_argument("--only-this-group", action="store_true", help="to their group's retry topic: other groups do not see them again")
    again.add_argument("--rate", type=positive, default=None, metavar="N", help="at most N a second (default: no limit)")
    again.add_argument("--again", action="store_true", help="also send letters that were sent before")
    again.add_argument("--dry-run", action="store_true", help="only show what would be sent")
    again.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def answer(arguments: argparse.Namespace) -> int:
    from roquet.spark.pipelines import dead_letters as dead
    from roquet.spark.pipelines.administration import must_ask

    where = place_of(arguments)
    since_ms, until_ms = times_of(arguments)
    sends = arguments.redrive or arguments.dry_run
    if sends:
        must_ask(where, dead.SENDING)  # says so before Spark starts
    selection = dead.Selection(tuple(arguments.group), arguments.origin_topic, arguments.tag, arguments.key, arguments.where)
    with Bar("reading dead letters", 3) as bar:
        attempts = dead.attempts_of(where)
        spark = start("dlq", arguments)
        bar.add()
        found = dead.letters(
            spark, where, arguments.group, since=text_of(since_ms), until=text_of(until_ms), attempts=attempts,
            reason_properties=arguments.reason_property or dead.REASON_PROPERTIES,
        )  # fmt: skip
        with kept(dead.chosen(found, selection)) as chosen:
            counts = rows_of(dead.by_reason(chosen))
            bar.add()
            shown = rows_of(dead.newest(chosen, arguments.show)) if arguments.show else []
            offsets = dead.offsets_by_group(chosen) if sends else {}
            bar.add()
    total = sum(row["letters"] for row in counts)
    if not arguments.json:
        emit(as_table(COUNTS, counts) if counts else "(none)")
        emit(f"{counted(total, 'dead letter')} of {counted(len({row['group'] for row in counts}), 'group')}")
        if shown:
            emit("\n" + as_table(SHOWN, shown))
    document: dict[str, Any] = {"letters": total, "reasons": [plain(row) for row in counts]}
    if arguments.show:
        document["shown"] = [plain(row) | {"properties": dict(row["properties"] or ())} for row in shown]
    code = 0
    if sends:
        code, document["redrive"] = send_again(arguments, where, offsets, total)
    if arguments.json:
        emit_json(document)
    return code


def send_again(arguments: argparse.Namespace, where: dict[str, str], offsets: Any, total: int) -> tuple[int, dict[str, Any]]:
    """First what would be sent; then, unless that is all that was asked for, send it."""
    from roquet.spark.pipelines.dead_letters import redrive

    how = {"to": arguments.to, "only_this_group": arguments.only_this_group, "again": arguments.again}
    plan = redrive(where, offsets, **how, dry_run=True)
    to_send = sum(len(one.left) for one in plan)
    if arguments.dry_run or not to_send:
        return report(arguments, plan, dry_run=True)
    if not arguments.json:
        emit()
        summary(plan, "would send")
    if not confirmed(arguments, f"Send {counted(to_send, 'dead letter')} again?"):
        return 1, outcome(plan, dry_run=True)
    with Bar("sending", to_send) as bar:
        done = redrive(where, offsets, **how, rate=arguments.rate, progress=bar.add)
    return report(arguments, done, dry_run=False)


def report(arguments: argparse.Namespace, results: list[Redriven], *, dry_run: bool) -> tuple[int, dict[str, Any]]:
    if not arguments.json:
        emit()
        summary(results, "would send" if dry_run else "sent")
    for one in results:
        for why, number in Counter(step.why_not for step in one.impossible).items():
            note(f"roquet: {counted(number, 'letter')} of {printable(one.group)} cannot be sent: {why}")
        if one.failed:
            note(f"roquet: {printable(one.group)} stopped with {len(one.left):,} left: {one.failed}\n  The same command goes on there.")
    return (1 if any(one.failed or one.impossible for one in results) else 0), outcome(results, dry_run=dry_run)


def summary(results: list[Redriven], verb: str) -> None:
    rows = []
    for one in results:
        steps = one.left if verb == "would send" else [step for step in one.plan.steps if step.sent]
        targets = ", ".join(sorted({step.target for step in steps})) or "-"
        number = len(one.left) if verb == "would send" else one.sent
        rows.append({"group": one.group, "chosen": one.chosen, "number": number, "before": one.sent_before, "to": targets})
    emit(as_table({"group": "GROUP", "chosen": "CHOSEN", "number": verb.upper(), "before": "SENT BEFORE", "to": "TO"}, rows))


def outcome(results: list[Redriven], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dryRun": dry_run,
        "sent": sum(one.sent for one in results),
        "toSend": sum(len(one.left) for one in results),
        "sentBefore": sum(one.sent_before for one in results),
        "groups": [
            {
                "group": one.group,
                "chosen": one.chosen,
                "sent": one.sent,
                "toSend": len(one.left),
                "sentBefore": one.sent_before,
                "impossible": len(one.impossible),
                "failed": one.failed or None,
                "topics": dict(Counter(step.target for step in one.plan.steps if not step.why_not)),
            }
            for one in results
        ],
    }
