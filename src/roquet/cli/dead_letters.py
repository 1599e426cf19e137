"""`roquet dead-letters`: list, look, replay, purge."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from roquet.cli.messages import as_json, describe, one_line
from roquet.cli.options import Commands, cluster_options, command, confirmed, noun, pair, positive, timestamp_ms
from roquet.cli.progress import Bar
from roquet.cli.render import answer, counted, emit, emit_json, moment, note, printable, table
from roquet.cli.topics import admin

if TYPE_CHECKING:
    from roquet.admin.dead_letters import Choice, DeadLetters, Outcome, Plan
    from roquet.message import ReceivedMessage

SHOWN_MAX = 20

REPLAY_NOTES = """
how a second run does not send twice:
  A message sent again has the dead letter's id as its unique key (and its old id as DLQ_ORIGIN_MESSAGE_ID). Before a
  letter is sent, its topic is asked for that key, so the mark is the message itself: it cannot be lost alone, it needs no
  file here, and any machine may run the second time. How far everything was sent is also kept as the progress of the group
  CID_RMQ_SYS_REDRIVE, which only saves time. While a replay runs, a lock on the dead letter queues keeps others away.
  A letter counts as sent for each target on its own: sent to its topic, it can still be sent --to another.

who sees it:
  Every group that subscribes to the topic, as with any message. --only-this-group sends it to the group's own retry topic.
  Attempts count from 0 again. The dead letter stays where it is, until the log that holds it expires.
"""


def add_commands(commands: Commands) -> None:
    nouns = noun(
        commands,
        "dead-letters",
        "messages that a group failed too often: list, look at them, send them again, delete them",
        """
        roquet dead-letters list
        roquet dead-letters look billing
        roquet dead-letters replay billing --all --dry-run
        """,
    )

    listing = command(nouns, "list", "list groups that have dead letters", "roquet dead-letters list\nroquet dead-letters list --json")
    cluster_options(listing)
    listing.set_defaults(run=list_groups)

    look = command(
        nouns,
        "look",
        "show dead letters of a group, oldest first, and whether they were sent again",
        """
        roquet dead-letters look billing
        roquet dead-letters look billing --key order-17 --full
        roquet dead-letters look billing --begin 2024-05-01 --property region=eu --json
        """,
    )
    look.add_argument("group", metavar="GROUP")
    choice_options(look)
    look.add_argument("--count", type=positive, default=SHOWN_MAX, metavar="N", help=f"how many to show (default: {SHOWN_MAX})")
    look.add_argument("--full", action="store_true", help="show everything about each letter, not one line")
    cluster_options(look)
    look.set_defaults(run=look_at)

    replay = command(
        nouns,
        "replay",
        "send dead letters of a group again, to the topic they came from, each once",
        """
        roquet dead-letters replay billing --all --dry-run      what would be sent
        roquet dead-letters replay billing --all --yes
        roquet dead-letters replay billing --tag paid --begin 2024-05-01T10:00 --end 2024-05-01T12:00
        roquet dead-letters replay billing --property region=eu --only-this-group
        roquet dead-letters replay billing --id C0000202000A2A139F1E6D2BAE4F0000 --to orders-again
        """,
    )
    assert replay.epilog is not None
    replay.epilog += "\n" + REPLAY_NOTES.rstrip()
    replay.add_argument("group", metavar="GROUP")
    replay.add_argument("--all", action="store_true", help="send all of them; without it, choose with the options below")
    choice_options(replay)
    where = replay.add_mutually_exclusive_group()
    where.add_argument("--to", default="", metavar="TOPIC", help="to this topic (default: the one each message came from)")
    where.add_argument("--only-this-group", action="store_true", help="to the group's retry topic: other groups do not see it again")
    replay.add_argument("--dry-run", action="store_true", help="only show what would be sent")
    replay.add_argument("--again", action="store_true", help="also send letters that were sent before")
    replay.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    cluster_options(replay)
    replay.set_defaults(run=run_replay)

    purge = command(
        nouns,
        "purge",
        "delete all dead letters of a group",
        """
        roquet dead-letters purge billing --dry-run      how many there are
        roquet dead-letters purge billing --yes
        """,
    )
    purge.add_argument("group", metavar="GROUP")
    purge.add_argument("--dry-run", action="store_true", help="only count them")
    purge.add_argument("--yes", action="store_true", help="do not ask")
    cluster_options(purge)
    purge.set_defaults(run=run_purge)


def choice_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--id", default="", metavar="ID", help="only the letter with this id (the producer's or the broker's)")
    parser.add_argument("--key", default="", metavar="KEY", help="only letters with this key")
    parser.add_argument("--tag", default="", metavar="TAG", help="only letters with this tag")
    parser.add_argument("--topic", default="", metavar="TOPIC", help="only letters that came from this topic")
    parser.add_argument("--begin", type=timestamp_ms, default=0, metavar="TIME", help="only letters since then: 2024-05-01T10:00 or ms")
    parser.add_argument("--end", type=timestamp_ms, default=(1 << 63) - 1, metavar="TIME", help="only letters before this time")
    parser.add_argument(
        "--property", action="append", default=[], type=pair, metavar="NAME=VALUE", help="only letters with this property (may be repeated)"
    )


def choice_of(arguments: argparse.Namespace) -> Choice:
    from roquet.admin.dead_letters import Choice

    return Choice(
        arguments.id, arguments.key, arguments.tag, arguments.begin, arguments.end, tuple(arguments.property), arguments.topic
    )  # fmt: skip


async def list_groups(arguments: argparse.Namespace) -> int:
    from roquet.admin.dead_letters import dead_letter_groups

    async with admin(arguments) as cluster:
        groups = await dead_letter_groups(cluster)
    rows = [
        (group, sum(queue.count for queue in queues), max((queue.last_update_timestamp for queue in queues), default=0))
        for group, queues in sorted(groups.items())
    ]
    if arguments.json:
        emit_json([{"group": group, "letters": count, "newest": newest} for group, count, newest in rows])
    elif not rows:
        note("no group has dead letters")
    else:
        emit(table(["GROUP", "DEAD LETTERS", "NEWEST"], [[group, count, moment(newest)] for group, count, newest in rows]))
    return 0


async def look_at(arguments: argparse.Namespace) -> int:
    from roquet.admin.dead_letters import Choice, DeadLetters, origin_topic

    choice = choice_of(arguments)
    chosen: list[ReceivedMessage] = []
    more = 0
    async with admin(arguments) as cluster:
        dead = DeadLetters(cluster, arguments.group)
        with Bar("reading", await dead.count()) as bar:
            async for letter in dead.letters():
                bar.add()
                if choice.takes(letter):
                    if len(chosen) < arguments.count:
                        chosen.append(letter)
                    else:
                        more += 1
        sent = await dead.sent_before(chosen)
    if arguments.json:
        emit_json(
            [
                as_json(letter) | {"originTopic": origin_topic(letter), "failure": letter.failure or None, "sentAgain": at or None}
                for letter, at in sent
            ]
        )
        return 0
    for number, (letter, at) in enumerate(sent):
        again = f"sent again {moment(at)}" if at else "not sent again"
        if letter.failure and not arguments.full:
            again += f", failed with {printable(letter.failure)}"
        if arguments.full:
            emit(("\n" if number else "") + describe(letter) + f"\n{'came from':<16} {printable(origin_topic(letter) or '-')}, {again}")
        else:
            emit(f"{one_line(letter)}  <- {printable(origin_topic(letter) or '?')}, {again}")
    if not chosen and choice == Choice():
        note(f"group {arguments.group!r} has no dead letters now")
    elif not chosen:
        note(f"no such dead letter of group {arguments.group}")
    elif more:
        note(f"and {counted(more, 'more letter')}; --count N shows more")
    return 0 if chosen else 1


async def run_replay(arguments: argparse.Namespace) -> int:
    from roquet.admin.dead_letters import Choice, DeadLetters

    choice = choice_of(arguments)
    if (choice == Choice()) != arguments.all:
        note("roquet: give --all, or choose letters (--id, --key, --tag, --topic, --begin, --end, --property), but not both")
        return 2
    async with admin(arguments) as cluster:
        dead = DeadLetters(cluster, arguments.group, to=arguments.to, only_this_group=arguments.only_this_group)
        if arguments.dry_run:
            plan = await planned(dead, choice, arguments)
            return report(arguments, plan)
        async with dead:
            plan = await planned(dead, choice, arguments)
            count = len(plan.to_send())
            if count:
                targets = ", ".join(f"{printable(topic)} ({number:,})" for topic, number in per_topic(plan).items())
                if not confirmed(arguments, f"Send {counted(count, 'dead letter')} of {arguments.group} again to {targets}?"):
                    return 1
            with Bar("sending", count) as bar:
                outcome = await dead.replay(plan, bar.add)
    return report(arguments, plan, outcome)


async def run_purge(arguments: argparse.Namespace) -> int:
    """The topic of the dead letters goes, on every broker; the group's next dead letter makes it anew."""
    from roquet.admin.dead_letters import DeadLetters

    async with admin(arguments) as cluster:
        dead = DeadLetters(cluster, arguments.group)
        count = await dead.count()
        facts = {"group": arguments.group, "dryRun": arguments.dry_run, "letters": count}
        if arguments.dry_run:
            return answer(arguments, facts, f"would delete {counted(count, 'dead letter')} of {arguments.group}")
        async with dead:  # no replay runs meanwhile
            if not confirmed(arguments, f"Delete {counted(count, 'dead letter')} of {arguments.group}? They cannot be brought back."):
                return 1
            await cluster.delete_topic(dead.topic)
    return answer(arguments, facts, f"deleted {counted(count, 'dead letter')} of {arguments.group}")


async def planned(dead: DeadLetters, choice: Choice, arguments: argparse.Namespace) -> Plan:
    with Bar("reading", await dead.count()) as bar:
        return await dead.plan(choice, again=arguments.again, progress=bar.add)


def per_topic(plan: Plan) -> Counter[str]:
    return Counter(step.target for step in plan.to_send())


def report(arguments: argparse.Namespace, plan: Plan, outcome: Outcome | None = None) -> int:
    """What was sent, or of a dry run (no outcome) what would be."""
    left = plan.to_send()
    impossible = [step for step in plan.steps if step.why_not]
    sent = 0 if outcome is None else outcome.sent
    before = plan.skipped + sum(1 for step in plan.steps if step.sent) - sent
    failed = "" if outcome is None else outcome.failed
    if arguments.json:
        emit_json(
            {
                "group": arguments.group,
                "dryRun": outcome is None,
                "sent": sent,
                "toSend": len(left),
                "sentBefore": before,
                "impossible": [{"messageId": step.message_id, "offsetMessageId": step.key, "why": step.why_not} for step in impossible],
                "failed": failed or None,
                "topics": dict(per_topic(plan)),
                "letters": [
                    {
                        "messageId": step.message_id,
                        "offsetMessageId": step.key,
                        "queueOffset": step.offset,
                        "broker": step.queue.broker_name,
                        "topic": step.target,
                        "sentAgain": step.sent or None,
                    }
                    for step in plan.steps
                ],
            }
        )
        return 1 if failed or impossible else 0
    if outcome is None:
        emit(table(["MESSAGE", "LETTER", "TO"], [[step.message_id, step.key, step.target] for step in left[:SHOWN_MAX]]) if left else "")
        if len(left) > SHOWN_MAX:
            emit(f"... and {len(left) - SHOWN_MAX:,} more")
        emit(f"would send {counted(len(left), 'dead letter')}; {before:,} were sent before")
    else:
        emit(f"sent {counted(sent, 'dead letter')}; {before:,} were sent before")
    for why, number in Counter(step.why_not for step in impossible).items():
        note(f"roquet: {counted(number, 'letter')} cannot be sent: {why}")
    if failed:
        note(f"roquet: stopped with {len(left):,} left: {failed}\n  The same command goes on where this one stopped.")
    return 1 if failed or impossible else 0
