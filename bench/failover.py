"""Rows failover*: a DLedger group of three under load, its leader killed. The time from SIGKILL to the first acknowledgement of a send
that was begun after it.

One client sends, eight messages in flight, and does not know that anything happens; our Python client, and Apache's Java client, which is
told to ask the name server every 100 ms (by itself it asks every 30 s, and that would be measured instead of the group).
A consumer reads along: after the last round it must have all that was acknowledged.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import groups
from agents import Agent, AgentError, Agents
from groups import Group
from java_client import JavaClient
from servers import apache

if TYPE_CHECKING:
    from run import Bench

CLIENTS = {"failover": "python", "failover-java": "java-4.9.8"}
ROWS = (*CLIENTS, *(f"{row}-max" for row in CLIENTS))
TOPIC, QUEUES = "BenchFailover", 4
IN_FLIGHT = 8
AGAIN_S = 0.01
NEAR = 65_536  # bytes that a member may lack before a leader is killed: the load goes on
PATIENCE_S = 60.0


class Load:
    """Messages that are sent until it is stopped, each in its turn until it is acknowledged or refused."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self.acknowledged: list[tuple[float, float, str]] = []  # begun, acknowledged, body
        self.failures = 0
        agent.ask("produce", name="producer", group="bench_failover_p", poll=100, timeout=3_000)
        self._threads = [threading.Thread(target=self._send) for _ in range(IN_FLIGHT)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._stopping.is_set():
            body, begun = f"message {next(self._numbers)}", time.monotonic()
            try:
                status = self._agent.ask("send", producer="producer", topic=TOPIC, body=body)
            except AgentError:
                self.failures += 1
                self._stopping.wait(AGAIN_S)
                continue
            if status.startswith("SEND_OK"):
                self.acknowledged.append((begun, time.monotonic(), body))

    def first_after(self, moment: float) -> float:
        """When the first send that was begun after this moment was acknowledged."""

        def found() -> list[float]:
            return [acknowledged for begun, acknowledged, _ in self.acknowledged[-1_000:] if begun > moment]

        apache.wait_until(lambda: bool(found()), "an acknowledged send", timeout_s=PATIENCE_S, every_s=0.01)
        return min(found())

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


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
        load = Load(agents.start(language))
        stack.callback(load.stop)
        found = [a_failover(bench, group, load) for _ in range(bench.plan.failovers)]
        load.stop()
        check_all_came(load, reader)
    bench.say(f"{group.kind}: {len(load.acknowledged):,} acknowledged and read, {load.failures:,} sends failed")
    return found


def a_failover(bench: Bench, group: Group, load: Load) -> float:
    group.until_equal(behind=NEAR)
    load.first_after(time.monotonic())
    group.find_leader()
    killed, leader = time.monotonic(), group.broker
    leader.kill()
    took_ms = (load.first_after(killed) - killed) * 1_000
    bench.say(f"{group.kind}: {took_ms:,.0f} ms from SIGKILL to the first acknowledged send")
    group.start_again(leader)
    return took_ms


def check_all_came(load: Load, reader: Agent) -> None:
    wanted = {body for _, _, body in load.acknowledged}

    def missing() -> set[str]:
        return wanted - {event.body for event in reader.events if event.kind == "got"}

    with contextlib.suppress(apache.InteropError):
        apache.wait_until(lambda: not missing(), "the consumer", timeout_s=PATIENCE_S, every_s=0.5)
    if left := missing():
        raise RuntimeError(f"{len(left):,} of {len(wanted):,} acknowledged messages never came, for example {sorted(left)[0]}")
