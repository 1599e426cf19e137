"""`roquet group reset`, `skip` and `clone`: moving how far a group has read."""

from __future__ import annotations

import argparse
import datetime
from typing import TYPE_CHECKING

from roquet.cli.options import DRY_RUN, GROUP, TOPIC, YES, Commands, argument, cluster_command, confirmed, queue_id, timestamp_ms
from roquet.cli.render import TableColumn, answer, column_json, column_table, counted, emit, emit_json, note
from roquet.cli.topics import admin

if TYPE_CHECKING:
    from roquet.admin.offsets import ProgressReset, QueueMove, ResetTo

OFFSET_MAX = 100_000_000_000
"""Smaller numbers are offsets, larger ones milliseconds since 1970: that is March 1973."""


def add_commands(nouns: Commands) -> None:
    cluster_command(
        nouns,
        "reset",
        reset_group,
        "let a group read a topic again from a time, or from its beginning",
        """
        roquet group reset billing pay --to 2024-05-01T10:00 --dry-run     what would happen
        roquet group reset billing pay --to first
        roquet group reset billing pay --to 4711 --queue 2                 while no member runs
        """,
        GROUP,
        TOPIC,
        argument("--to", type=position, required=True, metavar="TIME|first|last|OFFSET", help="where the group continues"),
        argument("--queue", type=queue_id, metavar="N", help="only this queue of every broker; while no member runs"),
        DRY_RUN,
        YES,
    )
    skip = cluster_command(
        nouns, "skip", reset_group, "let a group skip its backlog in a topic",
        "roquet group skip billing pay --dry-run\nroquet group skip billing pay", GROUP, TOPIC, DRY_RUN, YES,
    )  # fmt: skip
    skip.set_defaults(to="last", queue=None)
    cluster_command(
        nouns, "clone", clone_group, "let a group go on from where another one is",
        "roquet group clone billing billing-new\nroquet group clone billing audit --topic pay",
        argument("group", metavar="FROM"),
        argument("target", metavar="TO", help="a group without running members"),
        argument("--topic", metavar="TOPIC", help="only in this topic (default: in all)"),
        YES,
    )  # fmt: skip


def position(text: str) -> ResetTo:
    if text == "first":
        return "first"
    if text == "last":
        return "last"
    if text.isascii() and text.isdigit() and int(text) < OFFSET_MAX:
        return int(text)
    try:
        return datetime.datetime.fromtimestamp(timestamp_ms(text) / 1000)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is too far away for a time") from None


async def reset_group(arguments: argparse.Namespace) -> int:
    group, topic, to = arguments.group, arguments.topic, arguments.to
    async with admin(arguments) as cluster:
        plan = await cluster.reset_progress(group, topic, to, queue_id=arguments.queue, dry_run=True)
        if not plan.members:
            from roquet.cli.groups import must_exist

            await must_exist(cluster, group)
        if arguments.dry_run:
            return report(plan, arguments, done=False)
        if not arguments.json:
            emit(column_table(MOVE_COLUMNS, plan.moves))
        if not confirmed(arguments, f"Let group {group} go on there in {topic}?"):
            return 1
        result = await cluster.reset_progress(group, topic, to, queue_id=arguments.queue)
    return report(result, arguments, done=True)


def report(reset: ProgressReset, arguments: argparse.Namespace, *, done: bool) -> int:
    if arguments.json:
        queues = column_json(MOVE_COLUMNS, reset.moves)
        emit_json({"group": reset.group, "topic": reset.topic, "done": done, "members": reset.members, "queues": queues})
        return 0
    if not done:
        emit(column_table(MOVE_COLUMNS, reset.moves))
    again, skipped = both_ways(reset)
    verb = "reads" if done else "would read"
    emit(f"group {reset.group} {verb} {counted(again, 'message')} of {reset.topic} again and skips {counted(skipped, 'message')}")
    if done and reset.members:
        emit(f"{counted(len(reset.members), 'running member')} told; see them move: roquet group progress {reset.group}")
    elif done:
        emit("its progress is set; no member runs now")
    return 0


MOVE_COLUMNS: list[TableColumn[QueueMove]] = [
    TableColumn("BROKER", "broker", lambda move: move.queue.broker_name),
    TableColumn("QUEUE", "queueId", lambda move: move.queue.queue_id),
    TableColumn("CONSUMED", "consumed", lambda move: move.consumed),
    TableColumn("GOES ON AT", "target", lambda move: move.target),
    TableColumn("CHANGE", "", lambda move: f"{move.target - (move.consumed or 0):+,}"),
]


def both_ways(reset: ProgressReset) -> tuple[int, int]:
    """(messages read again, messages skipped)."""
    changes = [move.target - (move.consumed or 0) for move in reset.moves]
    return -sum(min(change, 0) for change in changes), sum(max(change, 0) for change in changes)


async def clone_group(arguments: argparse.Namespace) -> int:
    source, target, topic = arguments.group, arguments.target, arguments.topic
    async with admin(arguments) as cluster:
        have = await cluster.progress(source, topic)
        if not have:
            note(f"roquet: group {source!r} has no progress{f' in {topic!r}' if topic else ''} that could be copied")
            return 1
        if not confirmed(arguments, f"Let group {target} go on where {source} is?"):
            return 1
        await cluster.clone_progress(source, target, topic)
        copied = await cluster.progress(target, topic)
    topics = sorted({one.queue.topic for one in copied})
    lag = sum(one.lag for one in copied)
    text = f"group {target} goes on where {source} is, in {', '.join(topics) or 'no topic'}; lag: {counted(lag, 'message')}"
    return answer(arguments, {"from": source, "to": target, "topics": topics, "lag": lag}, text)
