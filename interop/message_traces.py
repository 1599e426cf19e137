"""Traces both ways: what Java's clients write `roquet trace` shows, and what ours write mqadmin shows.

A consumer of 5.x traces only messages that have the property MSG_REGION: its AsyncTraceDispatcher leaves out what has no region. Brokers of
5.x store that property with every message, those of 4.9 do not, and ours do with traceTopicEnable=true or regionInMessages=true.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache
import mqadmin
from java_client import JavaClient
from mqadmin import Command
from report import Section, run_program
from store_exchange import Peer

from roquet import Message, Outcome, Producer, PushConsumer, ReceivedMessage
from roquet.admin import Admin
from roquet.admin.traces import MessageTrace, NoTraceTopic

SETTINGS: dict[str, object] = {"traceTopicEnable": True}
TOPIC = "our_traced"


def check(section: Section, peer: Peer, clients: dict[str, JavaClient], directory: Path, settings: dict[str, object]) -> None:
    """With a cluster of its own. Java of each version first, then our client."""
    with (
        peer.name_server(apache.free_port(), directory / "namesrv") as namesrv,
        peer.broker(apache.free_port(), namesrv.address, directory / "broker", settings | SETTINGS) as broker,
    ):
        for client in clients.values():
            of_java(section, client, namesrv.address, broker.address)
        ours = asyncio.run(of_ours(namesrv.address))
        for version, client in clients.items():
            by_mqadmin(section, client, namesrv.address, ours, f"mqadmin {version}")


# Java's


def of_java(section: Section, client: JavaClient, namesrv: str, broker: str) -> None:
    prefix = f"tr{client.version[0]}"
    command, _ = client.command(f"traced-{namesrv.rpartition(':')[2]}", "Traced", namesrv, prefix)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java:
        try:
            assert java.stdout is not None
            ids: dict[str, list[str]] = {}
            for line in java.stdout:
                words = line.split()
                if words[:1] == ["traced"]:
                    ids[words[1]] = words[2:]
                if words == ["consumed"]:
                    break
            if len(ids) != 3:
                section.fail(f"java-{client.version}: clients that trace", f"they said {ids}")
                return
            told = {what: asyncio.run(trace(namesrv, unique, lambda one: bool(one.sends))) for what, (unique, _) in ids.items()}
            sends(section, client.version, told, prefix, broker)
            consumed = {what: asyncio.run(trace(namesrv, unique, ended)) for what, (unique, _) in ids.items()}
            deliveries(section, client.version, consumed, prefix)
            shown(section, client.version, namesrv, ids, prefix)
        finally:
            java.kill()


def ended(one: MessageTrace) -> bool:
    return any(delivery.success and delivery.begun_ms for delivery in one.deliveries)


async def trace(namesrv: str, unique: str, complete: Callable[[MessageTrace], bool]) -> MessageTrace | None:
    """What brokers tell of it as soon as it is complete; after a while what there is. Consumers of 5.x write five seconds later."""
    found: list[MessageTrace] = []
    async with Admin(namesrv) as admin:
        for _ in range(TRIES):
            try:
                found = await admin.trace(unique)
            except NoTraceTopic:
                found = []
            if found and complete(found[0]):
                break
            await asyncio.sleep(0.25)
    return found[0] if found else None


TRIES = 120


def sends(section: Section, version: str, told: dict[str, MessageTrace | None], prefix: str, broker: str) -> None:
    wanted = {
        "plain": (f"{prefix}_sellers", "Normal"),
        "failing": (f"{prefix}_sellers", "Delay"),
        "half": (f"{prefix}_payers", "TransHalf"),
    }
    for what, (group, kind) in wanted.items():
        one = told[what]
        seen = None if one is None else [(s.group, s.type, s.success, s.store_host, s.region) for s in one.sends]
        right = seen == [(group, kind, True, broker, "DefaultRegion")] and one is not None and one.topic == f"{prefix}_traced"
        section.judge(f"java-{version}: the producer's trace of a {what} message", None if right else f"{one}")
    half = told["half"]
    states = [] if half is None else [(end.state, end.from_check) for end in half.ends]
    section.judge(f"java-{version}: how the transaction ended", None if states == [("COMMIT_MESSAGE", False)] else f"{states}")


def deliveries(section: Section, version: str, told: dict[str, MessageTrace | None], prefix: str) -> None:
    attempts = {"plain": [(1, True, "SUCCESS")], "failing": [(1, False, "FAILED"), (2, True, "SUCCESS")], "half": [(1, True, "SUCCESS")]}
    for what, wanted in attempts.items():
        one = told[what]
        seen = [] if one is None else [(d.attempt, d.success, d.outcome) for d in one.deliveries]
        groups = set() if one is None else {d.group for d in one.deliveries}
        right = seen == wanted and groups == {f"{prefix}_billing"}
        section.judge(f"java-{version}: the consumer's trace of a {what} message", None if right else f"{seen} of {groups}")


def shown(section: Section, version: str, namesrv: str, ids: dict[str, list[str]], prefix: str) -> None:
    """By the command itself: by the producer's id, the broker's, and a key."""
    unique, offset_id = ids["plain"]
    for name, key in (("the producer's id", unique), ("the broker's id", offset_id), ("a key", f"{prefix}_plain")):
        output, finished = run_program([sys.executable, "-m", "roquet", "trace", key, "-n", namesrv, "--json"])
        found: list[dict[str, Any]] = json.loads(output) if finished else []
        right = [one["messageId"] for one in found] == [unique] and len(found[0]["sends"]) == 1
        section.judge(f"java-{version}: roquet trace by {name}", None if right else output[-500:])


# Ours


async def of_ours(namesrv: str) -> str:
    """The id of a message that our producer sent and our consumer failed once, both tracing."""
    consumer = PushConsumer("our_billing", namesrv, consume_from="first", trace=True)
    done = asyncio.Event()

    @consumer.on(TOPIC)
    async def bill(message: ReceivedMessage) -> Outcome | None:
        if message.reconsume_times == 0:
            return Outcome.RETRY_LATER
        done.set()
        return None

    async with asyncio.timeout(apache.PATIENCE_S):
        async with Producer("our_sellers", namesrv, trace=True) as producer:
            receipt = await producer.send(Message(TOPIC, b"ours", tags="a-tag", keys=["our-key"]))
            async with consumer:
                await done.wait()
    return receipt.message_id


def by_mqadmin(section: Section, client: JavaClient, namesrv: str, unique: str, name: str) -> None:
    pub = r"Pub\s+our_sellers\s+127\.0\.0\.1\s+20\d\d-\S+ \S+\s+\d+ms\s+success"
    failed = r"Sub\s+our_billing\s+127\.0\.0\.1\s+20\d\d-\S+ \S+\s+\d+ms\s+failed"
    worked = r"Sub\s+our_billing\s+127\.0\.0\.1\s+20\d\d-\S+ \S+\s+\d+ms\s+success"
    mqadmin.run(
        section,
        client,
        namesrv,
        [Command(f"queryMsgTraceById -i {unique}", (pub, failed, worked), f"of our client, {name}")],
        name=f"traces-{namesrv.rpartition(':')[2]}",
    )
