"""Apache RocketMQ 4.9.7 and Roquet on this machine, in turns, under the same load: one table.

    python bench/run.py [--quick] [--rows send64,send1,...] [--json FILE] [--only roquet|apache] [--pin] [--before CHECKOUT]

Both brokers run side by side and take rounds in turns, the other one idle, and in every other round the other one goes first, so that
a machine that grows slower or faster during the run does so for both. Figures are medians over rounds. "CPU" is user and system
time of the broker's process tree per message. Every round's messages are counted again in the broker afterwards: what was
acknowledged must be there. All free memory is taken before (memory.py), so that no side waits for the host of a virtual machine.
All traffic stays on 127.0.0.1. Files go to a temporary directory (some gigabytes; TMPDIR moves it).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import client_rows
import failover
import group_rows
import java_clients
import servers
import task_rows
import timers
from frames import RETRY_TOPIC
from memory import Held
from servers import APACHE, BEFORE, HERE, ROQUET, Cluster, Launcher, Running, apache
from table import BY_KEY, ROWS, Report, Sample

from roquet import speedups

Loaded = TypeVar("Loaded", bound=Running)

QUEUES = 8
TOPIC, WARM_TOPIC, MIXED_TOPIC = "Bench", "BenchWarm", "BenchMixed"
JAVA_ROWS = ("producer", "batchproducer", "consumer")
JOURNEY_ROWS = {"transaction": "transaction", "delay": "delay", "retries": "back"}  # row: what the generator does
FILTER_ROWS = {"tagged": "tag", "sql": "sql"}
FEATURE_ROWS = (*JOURNEY_ROWS, *FILTER_ROWS)
MAIN_ROWS = ("send64", "send1", "conn16", "tls", "batch", "pull", "memory", *FEATURE_ROWS, *JAVA_ROWS)
TIMER_ROWS = ("timers-memory", "timers-lateness")
CLIENT_ROWS = tuple(client_rows.WORKS)  # all of them: --rows client
SHARD_CLIENT_ROWS = tuple(client_rows.SHARD_WORKS)  # all of them: --rows shards-clients
GROUP_ROWS = tuple(group_rows.STARTS)
FAILOVER_ROWS = tuple(failover.ROWS)  # all of them: --rows failover
KEYS = ("bench-producer", "a-secret-of-the-bench")
ASKS_FROM = "127.0.0.2"  # where the bench asks from beside its load: it is on the white list
ACCOUNTS = f"""\
globalWhiteRemoteAddresses:
- {ASKS_FROM}
accounts:
- accessKey: {KEYS[0]}
  secretKey: {KEYS[1]}
  defaultTopicPerm: PUB
"""
OWN_ROWS = {"turns", *task_rows.ROWS}  # without any server of Apache's
QUICK_WITHOUT = (
    "conn16",
    "tls",
    "signed",
    *FEATURE_ROWS,
    *JAVA_ROWS,
    *TIMER_ROWS,
    *CLIENT_ROWS,
    *SHARD_CLIENT_ROWS,
    *GROUP_ROWS,
    *FAILOVER_ROWS,
    *OWN_ROWS,
)
MEMORY_AFTER = 2_000_000
SETTLE_S = 0.3  # a round's CPU is taken so much later: work that the server put off (queues, index, flush) is part of the price


@dataclass(frozen=True)
class Plan:
    """How much of everything: messages, unless the name says otherwise."""

    limit_s: float  # no round is begun after this
    rounds: int = 5
    starts: int = 3
    warm_apache: int = 1_000_000
    warm_roquet: int = 600_000
    send64: int = 200_000
    send1: int = 20_000
    batch: int = 960_000
    pull: int = 600_000  # of the warm-up's messages: the same on both
    journey: int = 50_000
    mixed: int = 200_000  # a multiple of 800: one in a hundred in every queue
    tagged: int = 8_000_000  # judged
    sql: int = 1_000_000  # judged
    feature_rounds: int = 3
    sync_warm: int = 500_000
    sync: int = 60_000
    shard: int = 150_000
    shard_rounds: int = 3
    java_rounds: int = 3
    java_windows: int = 2
    java_window_s: float = 4.0
    java_warm_s: float = 14.0
    client_rounds: int = 3
    client_warm_s: float = 6.0  # of Java's
    client_backlog: int = 10_000_000
    group_warm_apache: int = 300_000
    group_warm_roquet: int = 150_000
    group: int = 100_000
    failovers: int = 5
    tasks: int = 20_000
    task_rounds: int = 3


FULL = Plan(limit_s=3_600.0)
QUICK = Plan(
    limit_s=100.0, rounds=3, starts=1, warm_apache=400_000, warm_roquet=200_000, send64=100_000, send1=6_000, batch=320_000, pull=200_000,
    journey=20_000, tagged=2_000_000, sql=400_000, feature_rounds=2,
    sync_warm=100_000, sync=30_000, shard=80_000, shard_rounds=1, java_rounds=1, java_window_s=2.0, java_warm_s=4.0,
    client_rounds=1, client_warm_s=4.0, client_backlog=6_000_000,
    group_warm_apache=60_000, group_warm_roquet=60_000, group=40_000, failovers=2, tasks=4_000, task_rounds=1,
)  # fmt: skip


class OutOfTime(Exception):
    """The run's limit has passed."""


class Bench:
    def __init__(self, plan: Plan, rows: set[str], kinds: tuple[str, ...], launcher: Launcher, directory: Path, pin: bool) -> None:
        self.plan, self.rows, self.kinds, self.launcher, self.directory = plan, rows, kinds, launcher, directory
        self.generator_core = 1 if pin else None
        self.turns_options: list[str] = []
        self.alone = False  # --only roquet was asked for
        self.report = Report()
        self.began = time.monotonic()
        self.messages: dict[int, int] = {}  # pid of a broker: messages it acknowledged
        self.memory = Held(directory, self.say, wanted=plan.rounds > QUICK.rounds)  # not with --quick

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:4.0f} s] {text}", file=sys.stderr, flush=True)

    def on_time(self) -> None:
        if time.monotonic() - self.began > self.plan.limit_s:
            raise OutOfTime

    # ---------------------------------------------------------------- the run

    def run(self) -> Report:
        phases: list[tuple[set[str], Callable[[], None]]] = [
            (set(MAIN_ROWS) | {"start"}, self.main_phase),
            ({"signed"}, self.signed_phase),
            ({"sync"}, self.sync_phase),
            ({"shards", "shards-cpu"}, self.shard_phase),
            (set(TIMER_ROWS), self.timer_phase),
            (set(CLIENT_ROWS), self.client_phase),
            (set(SHARD_CLIENT_ROWS), self.shard_clients_phase),
            *(({row}, partial(group_rows.measure, self, row)) for row in GROUP_ROWS),
            (set(FAILOVER_ROWS), partial(failover.measure, self)),
            (set(task_rows.ROWS), self.task_phase),
            ({"turns"}, self.turns_phase),
        ]
        for rows, phase in phases:
            if not rows & self.rows:
                continue
            self.memory.fill()
            try:
                phase()
            except OutOfTime:
                self.report.note(f"the run's limit of {self.plan.limit_s:.0f} s passed: what is missing was not measured")
                break
            finally:
                self.remove_stores()
        return self.report

    def remove_stores(self) -> None:
        """What a phase left on the disk: all of them together would fill one of 90 GB."""
        for left in self.directory.iterdir():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)

    def start_all(self, stack: contextlib.ExitStack, name: str, source: str = "", **settings: object) -> list[Running]:
        """A pair of name server and broker of each kind; a kind that will not start is reported and left out."""
        found = []
        for kind in self.kinds:
            self.say(f"starting {kind} ({name})")
            try:
                found.append(
                    stack.enter_context(self.launcher.pair(kind, self.directory / name / kind, kill=True, source=source, **settings))
                )
            except (OSError, RuntimeError) as error:
                self.report.at("start", kind).problem = f"{name}: {error}"
                self.say(f"{kind} did not start: {error}")
        return found

    def main_phase(self) -> None:
        with contextlib.ExitStack() as stack:
            pairs = self.start_all(stack, "main", enablePropertyFilter=True)
            if "start" in self.rows:
                self.start_row(pairs)
            if not self.rows & set(MAIN_ROWS):
                return
            for running in pairs:
                self.warm_up(running)
            rounds: list[tuple[str, int, str, int, tuple[str, ...]]] = [  # row, warm rounds, what, messages, arguments
                ("send64", 0, "send", self.plan.send64, ()),
                ("send1", 0, "send", self.plan.send1, ("--inflight", "1")),
                ("conn16", 1, "send", self.plan.send64, ("--connections", "16")),
                ("tls", 1, "send", self.plan.send64, ("--tls",)),
                ("batch", 2, "batch", self.plan.batch, ("--inflight", "8")),
                ("pull", 2, "pull", self.plan.pull, ()),
            ]
            for row, warm, what, count, arguments in rounds:
                if row in self.rows:
                    topic = WARM_TOPIC if what == "pull" else TOPIC
                    self.in_turns(row, pairs, warm, lambda r, t=topic, w=what, c=count, a=arguments: self.round(r, w, t, c, *a))  # type: ignore[misc]
            self.compare(pairs, "tls", "send over TLS")
            if "memory" in self.rows:
                self.memory_row(pairs)
            self.feature_rows(pairs)
            self.java_rows(pairs)

    def compare(self, pairs: list[Running], row: str, what: str) -> None:
        """What it costs each server beside its own plain sends, in the same run."""
        if {"send64", row} <= self.rows:
            for running in pairs:
                plain, other = (self.report.at(one, running.kind).cpu_us for one in ("send64", row))
                if plain and other:
                    self.report.note(f"{running.kind}: a {what} costs {other / plain:.2f} times the CPU of a plain one")

    def signed_phase(self) -> None:
        """Brokers with access control, and sends that are signed; with send64 in the same run each is compared with its own plain sends."""
        for kind in self.kinds:
            directory = self.directory / "signed" / kind / "broker"
            directory.mkdir(parents=True)
            for conf in (directory, apache._home(directory) / "conf"):  # Roquet's beside its own file, Apache's in its home
                conf.mkdir(parents=True, exist_ok=True)
                (conf / "plain_acl.yml").write_text(ACCOUNTS)
        arguments = ("--access-key", KEYS[0], "--secret-key", KEYS[1])
        with contextlib.ExitStack() as stack:
            pairs = self.start_all(stack, "signed", ASKS_FROM, aclEnable=True)
            for running in pairs:
                count = self.plan.warm_apache if running.kind == APACHE else self.plan.warm_roquet
                self.say(f"warming up {running.kind} (signed) with {count:,} messages")
                try:
                    running.create_topic(TOPIC, QUEUES)
                    self.round(running, "send", TOPIC, count, *arguments)
                except (OSError, RuntimeError) as error:
                    self.report.note(f"{running.kind}, while warming up (signed): {error}")
            self.in_turns("signed", pairs, 0, lambda running: self.round(running, "send", TOPIC, self.plan.send64, *arguments))
            self.compare(pairs, "signed", "signed send")

    def warm_up(self, running: Running) -> None:
        count = self.plan.warm_apache if running.kind == APACHE else self.plan.warm_roquet
        self.say(f"warming up {running.kind} with {count:,} messages")
        try:
            running.create_topic(WARM_TOPIC, QUEUES)
            running.create_topic(TOPIC, QUEUES)
            self.round(running, "send", WARM_TOPIC, count)
        except (OSError, RuntimeError) as error:
            self.report.note(f"{running.kind}, while warming up: {error}")

    def in_turns(self, row: str, pairs: list[Loaded], warm_rounds: int, measure: Callable[[Loaded], Sample], rounds: int = 0) -> None:
        """Rounds of a row, each server in turn; the first `warm_rounds` do not count. A server may fail once."""
        failures: Counter[str] = Counter()
        for number in range(-warm_rounds, rounds or self.plan.rounds):
            for running in turned(pairs, number):
                if failures[running.kind] > 1:
                    continue
                self.on_time()
                try:
                    before = running.sends()
                    sample = measure(running)
                    self.report.at(row, running.kind).count_sends(before, running.sends())
                except (OSError, RuntimeError, ValueError) as error:
                    self.report.at(row, running.kind).problem = f"a round did not count: {error}"
                    self.say(f"{row}, {running.kind}: {error}")
                    failures[running.kind] += 1
                    continue
                if number >= 0:
                    self.report.at(row, running.kind).samples.append(sample)
                what = "warm-up" if number < 0 else f"round {number + 1}"
                self.say(f"{row:8} {running.kind:6} {what}: {sample.rate:9,.0f} msg/s {sample.cpu_us:7.2f} us CPU")

    # ---------------------------------------------------------------- one round

    def generator(self, running: Running, what: str, topic: str, count: int, *arguments: str) -> subprocess.Popen[str]:
        """A generator that waits for its start signal."""
        command = [sys.executable, str(HERE / "load.py"), what, "--port", str(running.port), "--topic", topic, "--count", str(count)]
        command += ["--queues", str(QUEUES), "--broker-name", running.broker_name, *arguments]
        if self.generator_core is not None:
            command += ["--core", str(self.generator_core)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            _, problem = process.communicate(timeout=10)
            raise RuntimeError(f"the generator did not start: {_last_line(problem)}")
        return process

    def finish(self, process: subprocess.Popen[str], running: Running) -> tuple[int, float, float]:
        """Messages, seconds and own CPU of a generator that was started."""
        left = self.began + self.plan.limit_s - time.monotonic()
        try:
            out, problem = process.communicate(timeout=max(10.0, left + 10.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RuntimeError("the generator did not end in time") from None
        if process.returncode != 0:
            raise RuntimeError(f"the generator failed: {_last_line(problem)}")
        outcome = json.loads(out)
        if outcome["errors"]:
            raise RuntimeError(f"{outcome['errors']} of {outcome['messages']} were refused, the first with {outcome['first_error']}")
        for note in outcome["notes"]:
            self.report.note(f"{running.kind}: {note}")
        return outcome["messages"], outcome["seconds"], outcome["cpu_seconds"]

    def round(self, running: Running, what: str, topic: str, count: int, *arguments: str, into: tuple[str, int] | None = None) -> Sample:
        """`into`: topic and queues that must have grown by the round's messages; without, the topic itself (pulls: none)."""
        process = self.generator(running, what, topic, count, *arguments)
        target, queues = into or (topic, QUEUES)
        before, cpu = running.stored(target, queues), running.cpu()
        _go(process)
        messages, seconds, own = self.finish(process, running)
        time.sleep(SETTLE_S)
        cpu = running.cpu() - cpu
        if what != "pull" and what not in FILTER_ROWS.values():
            self.verify(running, target, before, messages, queues)
        return Sample(messages, seconds, cpu, own)

    def verify(self, running: Running, topic: str, before: int, messages: int, queues: int = QUEUES) -> None:
        """What was acknowledged must be in the queues (Java fills them a little later)."""
        self.messages[running.pid] = self.messages.get(running.pid, 0) + messages
        if running.stand_in:
            return
        deadline = time.monotonic() + 20.0
        while (stored := running.stored(topic, queues) - before) < messages and time.monotonic() < deadline:
            time.sleep(0.1)
        if stored != messages:
            raise RuntimeError(f"{messages:,} messages were acknowledged in {topic} and {stored:,} came into its queues")

    # ---------------------------------------------------------------- rows of another kind

    def start_row(self, pairs: list[Running]) -> None:
        seconds: dict[str, list[float]] = {}
        for number in range(self.plan.starts):
            for running in turned(pairs, number):
                directory = self.directory / "start" / running.kind / str(number)
                try:
                    name = f"start-{number}"
                    with self.launcher.broker(running.kind, running.namesrv, directory, kill=True, brokerName=name) as fresh:
                        seconds.setdefault(running.kind, []).append(fresh.start_seconds)
                except (OSError, RuntimeError) as error:
                    self.report.at("start", running.kind).problem = str(error)
        for kind, each in seconds.items():
            self.report.at("start", kind).value = statistics.median(each)
            self.say(f"start    {kind}: {', '.join(f'{one:.2f}' for one in each)} s")

    def memory_row(self, pairs: list[Running]) -> None:
        for running in pairs:
            try:
                lacking = MEMORY_AFTER - self.messages.get(running.pid, 0)
                if lacking > 0 and not running.stand_in:
                    self.say(f"memory   {running.kind}: {lacking:,} messages more")
                    self.round(running, "batch", TOPIC, -(-lacking // 32) * 32, "--inflight", "8")
                value = servers.anonymous_mib(running.pid)
            except (OSError, RuntimeError) as error:
                self.report.at("memory", running.kind).problem = str(error)
                continue
            self.report.at("memory", running.kind).value = value
            self.say(f"memory   {running.kind}: {value:,.0f} MiB after {self.messages.get(running.pid, 0):,} messages")

    def feature_rows(self, pairs: list[Running]) -> None:
        plan = self.plan
        for row, what in JOURNEY_ROWS.items():
            if row not in self.rows:
                continue
            topic, into = (WARM_TOPIC, (RETRY_TOPIC, 1)) if what == "back" else (TOPIC, None)
            if into is not None:
                for running in pairs:
                    running.create_topic(*into)
            self.in_turns(
                row, pairs, 1, lambda r, w=what, t=topic, i=into: self.round(r, w, t, plan.journey, into=i), plan.feature_rounds  # type: ignore[misc]
            )  # fmt: skip
        if not self.rows & set(FILTER_ROWS):
            return
        for running in pairs:
            self.say(f"sending {running.kind} {plan.mixed:,} messages to filter")
            try:
                running.create_topic(MIXED_TOPIC, QUEUES)
                self.round(running, "mixed", MIXED_TOPIC, plan.mixed)
            except (OSError, RuntimeError) as error:
                self.report.note(f"{running.kind}, before filtering: {error}")
        for row, what in FILTER_ROWS.items():
            if row in self.rows:
                count = plan.tagged if what == "tag" else plan.sql
                self.in_turns(row, pairs, 1, lambda r, w=what, c=count: self.round(r, w, MIXED_TOPIC, c), plan.feature_rounds)  # type: ignore[misc]

    def java_rows(self, pairs: list[Running]) -> None:
        for row in JAVA_ROWS:
            if row in self.rows or (row == "batchproducer" and "consumer" in self.rows):  # the consumer needs its messages
                for number in range(self.plan.java_rounds):
                    for running in turned(pairs, number):
                        self.java_round(row, running)

    def java_round(self, row: str, running: Running) -> None:
        plan, directory, figures = self.plan, self.directory / "java" / running.kind, self.report.at(row, running.kind)
        self.on_time()
        self.say(f"{row:8} {running.kind}: starting the Java client")
        try:
            before = running.sends()
            if row == "consumer":
                found = java_clients.consume(
                    running, directory, warm_s=plan.java_warm_s / 3, window_s=plan.java_window_s / 2, windows=plan.java_windows
                )
            else:
                found = java_clients.produce(
                    running, directory, batch=row == "batchproducer", warm_s=plan.java_warm_s, window_s=plan.java_window_s,
                    windows=plan.java_windows,
                )  # fmt: skip
        except (OSError, RuntimeError) as error:
            figures.problem = str(error)
            self.say(f"{row}, {running.kind}: {error}")
            return
        figures.count_sends(before, running.sends())
        figures.samples += [Sample(*window) for window in found]
        self.say(f"{row:8} {running.kind}: {figures.rate or 0:,.0f} msg/s {figures.cpu_us or 0:.2f} us CPU")

    def client_phase(self) -> None:
        """Apache's client and ours in turns on one broker of ours: here the columns are the clients, and "generator" is their own CPU."""
        if ROQUET not in self.kinds or self.launcher.broker_command:
            return
        plan, directory = self.plan, self.directory / "client"
        kinds = [kind for kind in (APACHE, ROQUET) if kind in self.kinds]
        with self.launcher.pair(ROQUET, directory / "server", kill=True) as running:
            client_rows.prepare(running)
            for row in CLIENT_ROWS:
                if row in self.rows and client_rows.WORKS[row].consumes:  # only now: what is far from the log's end comes eight a pull
                    self.say(f"sending {plan.client_backlog:,} messages to consume")
                    client_rows.fill(running, plan.client_backlog, directory)
                for number in range(plan.client_rounds if row in self.rows else 0):
                    for kind in kinds if number % 2 == 0 else kinds[::-1]:
                        self.on_time()
                        figures = self.report.at(row, kind)
                        warm_s = plan.client_warm_s if kind == APACHE else 1.5
                        try:
                            sample = client_rows.measure(
                                running,
                                client_rows.WORKS[row],
                                kind,
                                directory,
                                number=number,
                                warm_s=warm_s,
                                window_s=plan.java_window_s / 2,
                            )
                        except (OSError, RuntimeError) as error:
                            figures.problem = str(error)
                            self.say(f"{row}, {kind}: {error}")
                            continue
                        figures.samples.append(sample)
                        own_us = (sample.generator_cpu or 0) / sample.messages * 1e6
                        self.say(f"{row} {kind}: {sample.rate:,.0f} msg/s {own_us:.2f} us of the client")
        alone, gathered = (self.report.at(row, ROQUET).rate if row in self.rows else None for row in ("client-send64", client_rows.GATHER))
        if alone and gathered:
            self.report.note(f"client-gather: {gathered / alone:.1f} times the sends a second of the same program without linger_ms")

    def shard_clients_phase(self) -> None:
        """The same on one, two and four shards behind a name server. What was stored is read again from every shard afterwards."""
        if ROQUET not in self.kinds or self.launcher.broker_command:
            return
        self.report.note(
            f"shards-clients: the shards and the client share {os.cpu_count() or 1} cores and want one each, so this is what the machine "
            "carries. CPU is that of all shards together, generator the client's"
        )
        for count in client_rows.SHARD_COUNTS:
            rows = {row: work for row, (shards, work) in client_rows.SHARD_WORKS.items() if shards == count and row in self.rows}
            if rows:
                try:
                    self.clients_on_shards(count, rows)
                except (OSError, RuntimeError) as error:
                    for row in rows:
                        self.report.at(row, ROQUET).problem = str(error)
                    self.say(f"{count} shards: {error}")

    def clients_on_shards(self, count: int, rows: dict[str, client_rows.Work]) -> None:
        plan, directory = self.plan, self.directory / f"shards-clients-{count}"
        self.say(f"starting {count} shard{'s' if count > 1 else ''} for clients")
        with contextlib.ExitStack() as stack:
            namesrv = stack.enter_context(self.launcher.namesrv(ROQUET, directory / "namesrv"))
            names = [f"shard-{number}" for number in range(count)]
            shards = [
                stack.enter_context(self.launcher.broker(ROQUET, namesrv, directory / name, kill=True, brokerName=name)) for name in names
            ]
            cluster = Cluster(namesrv, shards)
            for topic in (client_rows.TOPIC, client_rows.BACKLOG_TOPIC):
                cluster.create_topic(topic, client_rows.QUEUES)
            if any(work.consumes for work in rows.values()):
                client_rows.fill(cluster, plan.client_backlog, directory)
            for number in range(plan.client_rounds):
                kinds = [kind for kind in (APACHE, ROQUET) if kind in self.kinds]
                for row, work in rows.items():
                    for kind in kinds if number % 2 == 0 else kinds[::-1]:
                        self.on_time()
                        warm_s = plan.client_warm_s if kind == APACHE else 1.5
                        sample = client_rows.measure(
                            cluster, work, kind, directory, number=number, warm_s=warm_s, window_s=plan.java_window_s / 2
                        )
                        self.report.at(row, kind).samples.append(sample)
                        self.say(f"{row} {kind}: {sample.rate:,.0f} msg/s {sample.cpu_us:.2f} us CPU of the shards")
            for shard in shards:
                self.count_again(shard)

    def count_again(self, shard: Running) -> None:
        """Everything that the queues' ends tell of must come out of them."""
        for topic in (client_rows.TOPIC, client_rows.BACKLOG_TOPIC):
            stored = shard.stored(topic, client_rows.QUEUES)
            if stored:
                read = self.round(shard, "pull", topic, stored).messages
                if read != stored:
                    raise RuntimeError(f"{shard.broker_name}: {stored:,} messages are in {topic}, and {read:,} were read from it")

    def sync_phase(self) -> None:
        with contextlib.ExitStack() as stack:
            pairs = self.start_all(stack, "sync", flushDiskType="SYNC_FLUSH")
            for running in pairs:
                self.say(f"warming up {running.kind} (sync) with {self.plan.sync_warm:,} messages that do not ask for the flush")
                try:
                    running.create_topic(TOPIC, QUEUES)
                    self.round(running, "send", TOPIC, self.plan.sync_warm, "--no-wait")
                except (OSError, RuntimeError) as error:
                    self.report.note(f"{running.kind}, while warming up (sync): {error}")
            self.in_turns("sync", pairs, 1, lambda running: self.round(running, "send", TOPIC, self.plan.sync))

    def shard_phase(self) -> None:
        """One broker against two behind one name server, a generator for each: as much as these processors carry together."""
        if ROQUET not in self.kinds or self.launcher.broker_command:
            return
        figures = self.report.at("shards", ROQUET)
        try:
            with contextlib.ExitStack() as stack:
                self.say("starting two shards")
                namesrv = stack.enter_context(self.launcher.namesrv(ROQUET, self.directory / "shards" / "namesrv"))
                shards = [
                    stack.enter_context(self.launcher.broker(ROQUET, namesrv, self.directory / "shards" / name, kill=True, brokerName=name))
                    for name in ("shard-0", "shard-1")
                ]
                for shard in shards:
                    shard.create_topic(TOPIC, QUEUES)
                    self.round(shard, "send", TOPIC, self.plan.shard)
                one: list[Sample] = []
                two: list[Sample] = []
                for number in range(self.plan.shard_rounds):
                    self.on_time()
                    for count in (1, 2) if number % 2 == 0 else (2, 1):
                        (one if count == 1 else two).append(self.together(shards[:count]))
                    for name, sample in (("one", one[-1]), ("two", two[-1])):
                        self.say(f"shards   {name}: {sample.rate:9,.0f} msg/s {sample.cpu_us:7.2f} us CPU")
        except (OSError, RuntimeError) as error:
            figures.problem = str(error)
            return
        figures.samples = two
        self.judge_shards(one, two)

    def together(self, shards: list[Running]) -> Sample:
        """A round on several brokers at once."""
        processes = [self.generator(shard, "send", TOPIC, self.plan.shard) for shard in shards]
        before = [shard.stored(TOPIC, QUEUES) for shard in shards]
        cpu = sum(shard.cpu() for shard in shards)
        for process in processes:
            _go(process)
        outcomes = [self.finish(process, shard) for process, shard in zip(processes, shards, strict=True)]
        time.sleep(SETTLE_S)
        cpu = sum(shard.cpu() for shard in shards) - cpu
        for shard, stored, (messages, _, _) in zip(shards, before, outcomes, strict=True):
            self.verify(shard, TOPIC, stored, messages)
        messages = sum(each[0] for each in outcomes)
        return Sample(messages, max(each[1] for each in outcomes), cpu, sum(each[2] for each in outcomes))

    def timer_phase(self) -> None:
        """Apache 4.9 has no timed messages: only Roquet is measured."""
        if ROQUET not in self.kinds:
            return
        self.on_time()
        memory, lateness = (self.report.at(row, ROQUET) for row in TIMER_ROWS)
        try:
            with self.launcher.pair(ROQUET, self.directory / "timers", kill=True, **timers.SETTINGS) as running:
                result = timers.measure(running, self.say)
        except (OSError, RuntimeError) as error:
            memory.problem = lateness.problem = str(error)
            return
        memory.value, lateness.value = result.memory_mib, result.late(0.99)
        self.report.note(
            f"timers: half came within {result.late(0.5):.0f} ms, all within {result.lateness_ms[-1]:.0f} ms; server CPU "
            f"{result.load_cpu_us:.1f} us a timed send, {result.due_cpu_us:.1f} us a delivery with its pull"
        )

    def task_phase(self) -> None:
        """A line for each system with each of its settings."""
        if ROQUET not in self.kinds or self.launcher.broker_command:
            return
        count, failures = self.plan.tasks, Counter[str]()
        with task_rows.place(self.launcher, self.directory / "tasks", self.alone) as (place, problem):
            for side in task_rows.SIDES:
                if side.ours or not self.alone:
                    done, published = (self.report.at(row, side.kind) for row in task_rows.ROWS)
                    done.title, published.title = side.title, f"{side.in_flight} in flight"
                    done.problem = "not measured" if problem and not side.ours else ""
            if problem:
                self.report.note(f"tasks: the other systems were not measured: {problem}")
            sides = [side for side in task_rows.SIDES if side.ours or place.redis is not None]
            for number in range(self.plan.task_rounds):
                for side in turned(sides, number):
                    if failures[side.kind] > 1:
                        continue
                    self.on_time()
                    done, published = (self.report.at(row, side.kind) for row in task_rows.ROWS)
                    try:
                        outcome = place.round(side, count)
                    except (OSError, RuntimeError, ValueError) as error:
                        done.problem = f"a round did not count: {error}"
                        self.say(f"tasks, {side.kind}: {error}")
                        failures[side.kind] += 1
                        continue
                    done.samples.append(outcome.done)
                    done.firsts.append(outcome.first_s)
                    published.samples.append(outcome.published)
                    self.say(
                        f"tasks {side.kind:17} {outcome.done.rate:7,.0f} a second {outcome.done.generator_us:6.1f} us worker "
                        f"{outcome.done.cpu_us:6.1f} us server; published {outcome.published.rate:7,.0f} a second"
                    )

        if note := self.report.task_note():
            self.report.note(note)

    def turns_phase(self) -> None:
        """In a process of its own: it puts a whole broker into its memory."""
        if ROQUET not in self.kinds:
            return
        self.say("turns of a large broker and a large name server; takes some minutes")
        figures = self.report.at("turns", ROQUET)
        left = self.began + self.plan.limit_s - time.monotonic()
        command = [sys.executable, str(HERE / "turns.py"), "--json", *self.turns_options]
        try:
            outcome = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=max(10.0, left), check=True)
        except (OSError, subprocess.SubprocessError) as error:
            figures.problem = str(error)
            return
        worst = json.loads(outcome.stdout)
        figures.value = worst[0]["cpu_ms"]
        self.report.note("the longest turns (CPU ms, and ms by the clock):")
        for row in worst:
            self.report.note(f"  {row['cpu_ms']:7.1f} {row['clock_ms']:8.1f}  {row['name']}")

    def judge_shards(self, one: list[Sample], two: list[Sample]) -> None:
        """The row `shards` is measured. Two brokers and what loads them need four cores; with fewer that figure is the machine's and not
        the brokers', so it is not judged, and the row `shards-cpu` says what follows from the CPU a message takes: a projection."""
        measured = self.report.at("shards", ROQUET)
        projected = self.report.at("shards-cpu", ROQUET)
        cores = os.cpu_count() or 1
        measured.value = statistics.median(sample.rate for sample in two) / statistics.median(sample.rate for sample in one)
        measured.judged = cores >= 4
        cpu_one, cpu_two = (statistics.median(sample.cpu_us for sample in samples) for samples in (one, two))
        projected.value = 2 * cpu_one / cpu_two  # a broker is one thread: alone on a core it carries 1 / (CPU per message)
        self.report.note(
            f"shards-cpu is a projection, nothing of the kind was run: a core for each broker and none taken by the load, "
            f"2 x {cpu_one:.2f} us a message with one / {cpu_two:.2f} us with two"
        )
        if not measured.judged:
            self.report.note(
                f"shards: two brokers and two generators ({measured.generator_us or 0.0:.2f} us a message) shared {cores} cores, "
                f"so this is what the machine carries; it is judged with four cores or more"
            )


def turned(pairs: list[Any], number: int) -> list[Any]:
    """Who goes first in this round: not always the same."""
    return pairs if number % 2 == 0 else pairs[::-1]


def others_share(busy_before: float, own_before: float, seconds: float) -> float:
    """The part of the machine's CPU time since then that went to processes which are not this run's."""
    others = (busy_seconds() - busy_before) - (own_seconds() - own_before)
    return max(0.0, others / (seconds * (os.cpu_count() or 1)))


def busy_seconds() -> float:
    """Time that all cores together have spent on anything but idling and waiting for a disk."""
    user, nice, system, _idle, _wait, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / servers.TICKS


def own_seconds() -> float:
    """CPU time of this process and of all its children that have ended."""
    return sum(os.times()[:4])


def stolen_seconds() -> float:
    """What the host of a virtual machine gave to others of the processors' time while somebody here wanted it."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / servers.TICKS


def call_ns() -> float:
    """What a small Python method takes here: builds of one Python differ."""
    setup = "class It:\n x = 0\n def add(self, n):\n  d = {'n': n}\n  self.x += n\n  return d['n'] + len(str(n))\nadd = It().add"
    return min(timeit.repeat("add(7)", setup, number=100_000, repeat=7)) * 10_000


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under two minutes: fewer rounds, less warm-up, Java clients only by --rows")
    parser.add_argument(
        "--rows", help=f"some of {','.join(row.key for row in ROWS)}; client, shards-clients, failover, tasks: all of these"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures, every round's, there")
    parser.add_argument("--only", choices=(APACHE, ROQUET))
    parser.add_argument("--before", metavar="CHECKOUT", type=Path, help="compare with this other checkout of Roquet instead of with Apache")
    parser.add_argument("--pin", action="store_true", help="brokers on core 0, generators on core 1")
    parser.add_argument("--serial-gc", action="store_true", help="run Apache's broker with the serial collector instead of its script's G1")
    parser.add_argument("--tasks", type=int, metavar="N", help=f"a round of rows tasks; {FULL.tasks:,} without, --quick {QUICK.tasks:,}")
    parser.add_argument("--turns-scale", type=float, default=1.0, help="of the large broker in row turns: 10,000 topics, 100,000 queues")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed or a row fails")
    parser.add_argument("--broker-command", default="", help="start this instead of Roquet's broker; {port} and {conf} are put in")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE.parent / "src")  # load programs run this checkout, whichever one is installed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave by the doors that stop the servers
    rows = set(options.rows.split(",")) if options.rows else {row.key for row in ROWS} - (set(QUICK_WITHOUT) if options.quick else set())
    if "client" in rows:
        rows = rows - {"client"} | set(CLIENT_ROWS)
    if "shards-clients" in rows:
        rows = rows - {"shards-clients"} | set(SHARD_CLIENT_ROWS)
    if "failover" in rows:
        rows |= set(FAILOVER_ROWS)
    if rows & set(task_rows.ROWS):
        rows |= set(task_rows.ROWS)
    alone = options.only == ROQUET
    if unknown := rows - set(BY_KEY):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if rows <= OWN_ROWS:
        options.only = ROQUET
    if options.before and not (options.before / "src" / "roquet").is_dir():
        parser.error(f"--before {options.before}: a checkout of Roquet is expected, with src/roquet in it")
    if options.only != ROQUET and not options.before and (missing := apache.missing_tools()):
        parser.error(f"Apache's side needs {', '.join(missing)}; --only roquet does without")
    kinds = (options.only,) if options.only else (BEFORE if options.before else APACHE, ROQUET)
    launcher = Launcher(
        broker_command=options.broker_command, core=0 if options.pin else None, serial_gc=options.serial_gc,
        before=options.before.resolve() if options.before else None,
    )  # fmt: skip
    if APACHE in kinds:  # a first run fetches jars: not on the run's clock
        apache.classpath(f"rocketmq-broker:{apache.SERVER}")
        apache.classpath(f"rocketmq-namesrv:{apache.SERVER}")
    if rows & {*JAVA_ROWS, *CLIENT_ROWS, *SHARD_CLIENT_ROWS} and options.only != ROQUET:
        apache.classpath(java_clients.EXAMPLES)
    python = f"Python {platform.python_version()}, a method call takes {call_ns():.0f} ns"
    busy, own, stolen = busy_seconds(), own_seconds(), stolen_seconds()
    with tempfile.TemporaryDirectory(prefix="roquet-bench-") as directory:
        if shutil.disk_usage(directory).free < 12 << 30:
            print(f"less than 12 GiB free in {directory}: a broker may refuse messages (TMPDIR chooses another place)", file=sys.stderr)
        plan = QUICK if options.quick else FULL
        if options.rows:  # who asks for rows by name wants them all
            plan = replace(plan, limit_s=4 * plan.limit_s)
        plan = replace(plan, tasks=options.tasks or plan.tasks)
        bench = Bench(plan, rows, kinds, launcher, Path(directory), options.pin)
        bench.alone = alone
        bench.turns_options = ["--scale", str(options.turns_scale)]
        bench.report.speedups = speedups.native is not None
        bench.report.beside = kinds[0] if len(kinds) > 1 else APACHE
        report = bench.run()
    took = time.monotonic() - bench.began
    report.facts = {"cores": os.cpu_count(), "python": python, "quick": options.quick, "seconds": round(took, 1),
                    "speedups": bench.report.speedups, "pinned": options.pin,
                    "apache": apache.SERVER, "collector": "serial" if options.serial_gc else "G1"}  # fmt: skip
    report.facts["load"] = os.getloadavg()
    others = others_share(busy, own, took)
    report.facts["others_cpu_share"] = round(others, 3)
    if others > 0.05:
        report.note(f"{others:.0%} of the machine's CPU time went to other programs meanwhile: messages a second suffer, CPU ratios less")
    report.facts["stolen_share"] = taken = round((stolen_seconds() - stolen) / took / (os.cpu_count() or 1), 3)
    if taken > 0.02:
        report.note(f"{taken:.0%} of the processors' time was taken by the host of this virtual machine")
    if options.quick and APACHE in kinds:
        report.note(f"quick: Apache was warmed up with {QUICK.warm_apache:,} messages only and is not yet at its best")
    print(report.table())
    if rows & set(task_rows.ROWS):
        print("Tasks: CPU a task. first: until the first task. Roquet: how many times as many tasks a second Roquet's first line has.")
    print(
        f"{os.cpu_count()} cores, {took:.0f} s, Roquet {speedups.in_words()}, {python}. Medians. "
        f"CPU: of the server, a message. generator: its own, {report.beside}/roquet."
    )
    if options.json:
        Path(options.json).write_text(json.dumps(report.json(), indent=1) + "\n")
    failed = any(figures.problem for figures in report.figures.values()) or any(report.judge(row)[1] is False for row in ROWS)
    return 1 if options.strict and failed else 0


if __name__ == "__main__":
    sys.exit(main())
