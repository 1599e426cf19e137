"""`roquet trace`: what became of a message, from the trace topic."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from roquet.cli.options import Commands, argument, cluster_command, positive, timestamp_ms
from roquet.cli.render import emit, emit_json, moment, note, printable, table
from roquet.cli.topics import admin
from roquet.wire.names import TRACE_TOPIC

if TYPE_CHECKING:
    from roquet.admin.traces import MessageTrace, TracedDelivery

CLIENTS = "Clients write traces when they are told to: Producer(..., trace=True), in Java enableMsgTrace=true."
SWITCH_ON = "Set traceTopicEnable=true in a broker's settings and start it again"
MAKE_IT = "Make it: roquet topic create"
OTHER = "Traces that go to another topic: --trace-topic NAME."
BEGINNING = {"Normal": "sent", "TransHalf": "half message", "Delay": "sent, delayed"}
STATES = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back", "UNKNOW": "not decided"}


def add_commands(commands: Commands) -> None:
    cluster_command(
        commands,
        "trace",
        trace,
        "what became of a message: who sent it, who consumed it, when and how long it took",
        f"""
        roquet trace C0000202000A2A139F1E6D2BAE4F0000          by the id that `roquet send` prints; the broker's id does too
        roquet trace order-17                                  by a key: every message that has it
        roquet trace order-17 --trace-topic my_traces --json

        Only clients that trace are seen ({CLIENTS})
        """,
        argument("key", metavar="ID_OR_KEY"),
        argument("--trace-topic", metavar="TOPIC", default=TRACE_TOPIC, help=f"where traces are (default: {TRACE_TOPIC})"),
        argument("--max", type=positive, default=64, metavar="N", help="messages of traces read from each broker at most (default: 64)"),
        argument("--begin", type=timestamp_ms, default=0, metavar="TIME", help="traces stored then or later: 2024-05-01T10:00 or ms"),
        argument("--end", type=timestamp_ms, default=(1 << 63) - 1, metavar="TIME", help="only traces stored before this time"),
    )


async def trace(arguments: argparse.Namespace) -> int:
    from roquet.admin.traces import NoTraceTopic
    from roquet.errors import ClientError

    topic = arguments.trace_topic
    async with admin(arguments) as cluster:
        try:
            found = await cluster.trace(arguments.key, topic=topic, count_max=arguments.max, begin_ms=arguments.begin, end_ms=arguments.end)
        except NoTraceTopic as error:
            what_to_do = SWITCH_ON if topic == TRACE_TOPIC else f"{MAKE_IT} {topic}"
            raise ClientError(f"{error}. {what_to_do}. {OTHER} {CLIENTS}") from None
        silent = [] if found else await without_tracing(cluster)
    if arguments.json:
        emit_json([as_json(one) for one in found])
    elif found:
        emit("\n\n".join(map(describe, found)))
    if not found:
        note(f"no trace of {printable(arguments.key)!r} in {topic}. {CLIENTS} They write some seconds later, Apache's 5.x after five.")
        if silent:
            note(f"traceOn=false on {', '.join(silent)}: producers write no traces of what they send there")
        return 1
    return 0


async def without_tracing(cluster: Any) -> list[str]:
    """Names of the brokers that tell producers to write none."""
    from roquet.errors import RoquetError

    found = []
    for broker in await cluster.masters():
        try:
            if (await cluster.broker_config(broker.address)).get("traceOn") == "false":
                found.append(broker.name)
        except RoquetError:  # it is only a hint
            continue
    return found


class Step(NamedTuple):
    time_ms: int
    what: str
    group: str
    client: str
    cost_ms: int | None
    outcome: str


def steps(told: MessageTrace) -> Iterator[Step]:
    for send in told.sends:
        outcome = f"stored at {send.store_host or 'a broker'}" if send.success else "failed, or not as safe as it should be"
        yield Step(send.time_ms, BEGINNING.get(send.type, send.type), send.group, send.client, send.cost_ms, outcome)
    for end in told.ends:
        outcome = STATES.get(end.state, end.state) + (", when the broker asked" if end.from_check else "")
        yield Step(end.time_ms, "transaction", end.group, end.client, None, outcome)
    for recall in told.recalls:
        yield Step(recall.time_ms, "cancelled", recall.group, recall.client, None, "done" if recall.success else "too late")
    for one in told.deliveries:
        yield Step(one.begun_ms or one.ended_ms or 0, "consumed", one.group, one.client, one.cost_ms, consumed(one))


def consumed(one: TracedDelivery) -> str:
    attempt = f", attempt {one.attempt}" if one.attempt is not None and (one.attempt > 1 or not one.success) else ""
    if one.success is None:
        return f"no end yet{attempt}"
    return f"{'success' if one.success else one.outcome or 'FAILED'}{attempt}"


def describe(told: MessageTrace) -> str:
    facts = [("topic", told.topic or "not known: its sending was not traced"), ("tags", told.tags), ("keys", told.keys)]
    head = [f"message  {printable(told.message_id)}", *(f"{name:<7}  {printable(value)}" for name, value in facts if value)]
    rows = [
        (one.what, one.group, one.client, moment(one.time_ms), "-" if one.cost_ms is None else f"{one.cost_ms:,} ms", one.outcome)
        for one in sorted(steps(told), key=lambda one: one.time_ms)
    ]
    lines = [*head, "", table(["WHAT", "GROUP", "CLIENT", "TIME", "TOOK", "OUTCOME"], rows)]
    if not told.deliveries:
        lines.append("no consumer has told of it: none has got it yet, or its group writes no traces")
    return "\n".join(lines)


def as_json(told: MessageTrace) -> dict[str, Any]:
    return {
        "messageId": told.message_id,
        "topic": told.topic,
        "tags": told.tags,
        "keys": (told.keys or "").split(),
        "sends": [
            {
                "group": one.group, "client": one.client, "time": one.time_ms, "costMs": one.cost_ms, "success": one.success,
                "type": one.type, "storeHost": one.store_host, "offsetMessageId": one.offset_message_id, "bodySize": one.body_size,
                "region": one.region,
            }
            for one in told.sends
        ],
        "transactionEnds": [
            {"group": one.group, "client": one.client, "time": one.time_ms, "state": one.state, "fromCheck": one.from_check}
            for one in told.ends
        ],
        "recalls": [{"group": one.group, "client": one.client, "time": one.time_ms, "success": one.success} for one in told.recalls],
        "deliveries": [
            {
                "group": one.group, "client": one.client, "attempt": one.attempt, "begun": one.begun_ms, "ended": one.ended_ms,
                "costMs": one.cost_ms, "success": one.success, "outcome": one.outcome,
            }
            for one in told.deliveries
        ],
    }  # fmt: skip
