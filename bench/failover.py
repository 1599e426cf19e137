"""Rows failover*: a DLedger group of three under load, its leader killed. The time from SIGKILL to the first acknowledgement of a send
that was begun after it.

One client sends, eight messages in flight, and does not know that anything happens; our Python client, and Apache's Java client, which is
told to ask the name server every 100 ms (by itself it asks every 30 s, and that would be measured instead of the group).
A consumer reads along: after the last round it must have all that was acknowledged.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import groups
from agents import Agent, Agents
from groups import Group
from java_client import JavaClient
from servers import apache
from steady import Load

if TYPE_CHECKING:
    from run import Bench

CLIENTS = {"failover": "python", "failover-java": "java-4.9.8"}
ROWS = (*CLIENTS, *(f"{row}-max" for row in CLIENTS))
TOPIC, QUEUES = "BenchFailover", 4
IN_FLIGHT = 8
NEAR = 65_536  # bytes that a member may lack before a leader is killed: the load goes on
PATIENCE_S = 60.0


def measure(bench: Bench) -> None:
    java = {"4.9.8": JavaClient("4.9.8", bench.directory / "failover")} if not apache.missing_tools() else {}
    for row, language in CLIENTS.items():
        for kind in bench.kinds:
            if language != "python" and not java:
                continue
            bench.on_time()
            bench.say(f"{row}: a group of {kind}, a {language} client")
            directory = bench.directory / row / kind
            try:
                with groups.dledger(bench.launcher, kind, directory) as group:
                    found = failovers(bench, group, directory, language, java)
            except (OSError, RuntimeError) as error:
                bench.report.at(row, kind).problem = str(error)
                bench.say(f"{row}, {kind}: {error}")
                continue
            bench.report.at(row, kind).value = statistics.median(found)
            bench.report.at(f"{row}-max", kind).value = max(found)
            bench.report.note(f"{row}, {kind}: {', '.join(f'{one:,.0f}' for one in found)} ms")


def failovers(bench: Bench, group: Group, directory: Path, language: str, java: dict[str, JavaClient]) -> list[float]:
    """Milliseconds, a round each."""
    group.create_topic(TOPIC, QUEUES)
    agents = Agents(group.namesrv, directory / "agents", java, None, ())
    with contextlib.ExitStack() as stack:
        stack.callback(agents.end)
        reader = agents.start("python")
        reader.ask("consume", name="reader", group="bench_failover_g", topic=TOPIC)
        load = Load(agents.start(language), TOPIC, in_flight=IN_FLIGHT, poll=100, timeout=3_000)
        stack.callback(load.stop)
        found = [a_failover(bench, group, load) for _ in range(bench.plan.failovers)]
        load.stop()
        check_all_came(load, reader)
    bench.say(f"{group.kind}: {len(load.acknowledged):,} acknowledged and read, {len(load.failures):,} sends failed")
    return found


def a_failover(bench: Bench, group: Group, load: Load) -> float:
    group.until_equal(behind=NEAR)
    load.first_after(time.monotonic(), PATIENCE_S)
    group.find_leader()
    killed, leader = time.monotonic(), group.broker
    leader.kill()
    took_ms = (load.first_after(killed, PATIENCE_S) - killed) * 1_000
    bench.say(f"{group.kind}: {took_ms:,.0f} ms from SIGKILL to the first acknowledged send")
    group.start_again(leader)
    return took_ms


def check_all_came(load: Load, reader: Agent) -> None:
    wanted = load.bodies()

    def missing() -> set[str]:
        return wanted - {event.body for event in reader.events if event.kind == "got"}

    with contextlib.suppress(apache.InteropError):
        apache.wait_until(lambda: not missing(), "the consumer", timeout_s=PATIENCE_S, every_s=0.5)
    if left := missing():
        raise RuntimeError(f"{len(left):,} of {len(wanted):,} acknowledged messages never came, for example {sorted(left)[0]}")
