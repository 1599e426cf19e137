"""The archive under kill -9: of its driver, its executors and the broker, and of the process between the data and the commit.

    python -m soak.exactly_once [--rounds 30] [--seed N] [--format parquet|delta] [--modes local,here,cluster] [--plant BUG] [--keep]

A name server, a broker (SYNC_FLUSH) and a sender run all the time; the archive's driver is a process of its own, started
again whenever it died. In the end the archive, read as any reader of Parquet or Delta reads it, must be the topic, message
by message, and hold everything that was acknowledged. Exit code 1 when it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random as randomness
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clusters import standalone
from tests.process.programs import Nursery
from tests.small_jvm import SMALL_JVM

from roquet import Admin
from roquet.cli.render import counted, duration, table
from roquet.spark.archive.read import verify_archive
from roquet.spark.session import LOCAL
from soak import archive_state
from soak.driver import Driver, end, writes
from soak.kills import BROKER, DRIVER, EXECUTOR, FIRST, RECOVERY, VICTIMS, Kill, Mode, choose_kills
from soak.places import place
from soak.program import BUGS, SOON, Doom, Orders
from soak.rows import Row, delta_rows, differences, digest, directory_rows, topic_rows
from soak.sender import Record, Sender

TOPICS, QUEUES = ("soak-a", "soak-b", "soak-c"), 2
BROKER_NAME = "broker-a"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PATIENCE_S = 300.0
"""Of everything that must happen at all; a busy machine takes long to start Spark."""
MOMENT_S = 0.8
"""Kills come within so long after the driver has made a commit."""
BATCH_ROWS, LAST_BATCH_ROWS = 1_000, 20_000
"""Small, so that there are many commits; the last run only catches up."""
BUSY_S, LOOK_S = 5.0, 0.3
"""How long an executor is watched for a file that it writes, and how old the list of executors may be."""
COMMITS_A_ROUND = 3
VISITS = 6
"""At most so many times a planted point is passed before the driver dies there."""
SOON_MS = 150
"""About as long as compacting takes."""
HEADINGS = ("ROUND", "TASKS RUN", "KILLED", "AT", "COMMITS", "ROWS", "BACK AFTER", "FOUND")


class Broken(Exception):
    """The run cannot go on: what was to be shown has failed already, or the harness has."""


@dataclass
class Report:
    rounds: list[tuple[str, ...]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    commits: int = 0


@dataclass(frozen=True)
class Settings:
    kind: str = "parquet"
    seed: int = 0
    rate: int = 400
    bug: str = ""
    spark_check: bool = True
    """Also read the end result with Spark."""
    settle_s: float = 30.0
    """How long a driver that works may take to clear up after a dead one."""


class Soak:
    def __init__(self, directory: Path, settings: Settings, say: Callable[[str], None] = lambda text: None) -> None:
        self.directory, self.settings, self.say = directory, settings, say
        self.archive, self.doom = directory / "archive", directory / "doom.json"
        self.report = Report()
        self._stack = contextlib.ExitStack()
        self._drivers: list[Driver] = []
        self._cluster: Any = None

    # ---- the stage ------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Soak:
        nursery = Nursery()
        self._stack.callback(nursery.close)
        self._stack.callback(self._end_drivers)
        self.nursery = nursery
        self.namesrv = ":".join(map(str, nursery.name_server(self.directory / "namesrv").address))
        self._start_broker()
        asyncio.run(self._make_topics())
        self.sender = Sender(self.namesrv, TOPICS, self.settings.rate, self.settings.seed)
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _start_broker(self) -> None:
        names = {"namesrvAddr": self.namesrv, "registerBrokerTimeoutMills": "6000", "brokerName": BROKER_NAME}
        self.broker = self.nursery.broker(self.directory / "broker", {**names, "flushDiskType": "SYNC_FLUSH"})

    async def _make_topics(self) -> None:
        async with Admin(self.namesrv) as admin:
            await admin.until_registered([BROKER_NAME], timeout_s=PATIENCE_S)
            for topic in TOPICS:
                await admin.create_topic(topic, read_queues=QUEUES, write_queues=QUEUES)

    def _end_drivers(self) -> None:
        for driver in self._drivers:
            driver.sweep()

    @property
    def driver(self) -> Driver:
        return self._drivers[-1]

    def _start_driver(self, mode: Mode, *, to_the_end: bool = False) -> None:
        master, conf, environment = None, dict[str, str](), dict(os.environ)
        if mode == "local":
            master = "local[2,4]"  # a task may fail three times
            conf = {"spark.driver.memory": "512m", JAVA_OPTIONS: f"{LOCAL[JAVA_OPTIONS]} {SMALL_JVM}"}
        elif mode == "cluster":
            if self._cluster is None:
                self.say("starting a cluster: a master and two workers")
                (self.directory / "cluster").mkdir()
                self._cluster = self._stack.enter_context(standalone.standalone(self.directory / "cluster"))
                self._stack.callback(self._end_drivers)
            master, conf, environment = self._cluster.url, dict(standalone.SETTINGS), standalone.environment()
        orders = Orders(
            where={"namesrvAddr": self.namesrv}, topics=list(TOPICS), to=str(self.archive), doom=str(self.doom),
            delta=self.settings.kind == "delta", master=master, conf=conf, bug=self.settings.bug, to_the_end=to_the_end,
            batch_rows=LAST_BATCH_ROWS if to_the_end else BATCH_ROWS,
        )  # fmt: skip
        self._drivers.append(Driver(mode, orders, self.directory / f"driver-{len(self._drivers):02d}.log", environment))

    # ---- rounds ---------------------------------------------------------------------------------------------------------------

    def run(self, kills: list[Kill]) -> Report:
        """All rounds and the comparison. Raises Broken."""
        with self.sender:
            self._start_driver(kills[0].mode)
            self._works()
            for number, kill in enumerate(kills, 1):
                after = kills[number].mode if number < len(kills) else kill.mode
                if kill.mode != self.driver.mode:
                    raise Broken(f"round {number} is for {kill.mode}, and the driver runs {self.driver.mode}")
                self._round(number, kill, after)
                if self.report.faults:
                    self.say("a fault: no further rounds")
                    break
            self._kill_driver("driver, at the end")
        self._start_driver("here", to_the_end=True)
        self._until(lambda: not self.driver.alive, "the last run's end", may_end=True)
        if self.driver.process.returncode:
            raise Broken(f"the last run ended with {self.driver.process.returncode}:\n{self.driver.tail()}")
        self.compare(self.sender.record)
        return self.report

    def _round(self, number: int, kill: Kill, after: Mode) -> None:
        """Kill; look at once; see that a driver works again, in the mode of the next round; look again."""
        at = self._kill(kill)
        began = time.monotonic()
        if not self.driver.alive:
            faults = archive_state.committed_faults(self.archive)
        else:
            faults = self._sound(archive_state.committed_faults)
        if self.driver.alive and self.driver.mode != after:
            self._kill_driver("driver, between modes")
            faults += archive_state.committed_faults(self.archive)
        if not self.driver.alive:
            self._start_driver(after)
        self._works()
        back = time.monotonic() - began
        faults += self._sound(archive_state.leftover_faults) + self._sound(archive_state.committed_faults)
        self.report.faults += (f"round {number}: {fault}" for fault in faults)
        self.report.commits, self.report.rows = archive_state.commits(self.archive), archive_state.rows(self.archive)
        row = (
            str(number), kill.mode, kill.victim, at, f"{self.report.commits:,}", f"{self.report.rows:,}", duration(back),
            faults[0] if faults else "sound",
        )  # fmt: skip
        self.report.rounds.append(row)
        self.say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, (5, 9, 26, 16, 7, 9, 10, 5), strict=True)))

    def _kill(self, kill: Kill) -> str:
        """When it was, in words."""
        if kill.point:
            after = int(kill.moment * (SOON_MS if kill.victim == SOON else VISITS))
            if kill.victim in RECOVERY:
                self._die(Doom(FIRST, after))
                Doom(kill.victim, 0).write(self.doom)  # before it starts: recovery is the first thing it does
                self._start_driver(kill.mode)
                self._dies(kill.victim)
                return f"visit {after + 1}, then 1"
            self._die(Doom(kill.victim, after))
            return f"{after} ms in" if kill.victim == SOON else f"visit {after + 1}"
        time.sleep(kill.moment * MOMENT_S)  # not a wait for anything: the moment is random
        if kill.victim == DRIVER:
            self._kill_driver("driver")
        elif kill.victim == BROKER:
            self.broker.kill()
            self._count("broker")
            self._start_broker()
        elif kill.victim == EXECUTOR:
            return self._kill_executor(kill)
        return f"{kill.moment * MOMENT_S:.2f} s"

    def _die(self, doom: Doom) -> None:
        """The driver sends itself SIGKILL there."""
        doom.write(self.doom)
        self._dies(doom.point)

    def _dies(self, point: str) -> None:
        self._until(lambda: not self.driver.alive, f"the driver's death at {point!r}", may_end=True)
        if self.driver.process.returncode != -9:
            raise Broken(f"the driver ended with {self.driver.process.returncode} instead of dying:\n{self.driver.tail()}")
        self._count("driver, by itself at a point")

    def _kill_driver(self, why: str) -> None:
        if not self.driver.alive:
            raise Broken(f"the driver ended by itself with {self.driver.process.returncode}:\n{self.driver.tail()}")
        self.driver.kill()
        self._count(why)

    def _kill_executor(self, kill: Kill) -> str:
        """One of them: a Python worker of local Spark, an executor's JVM on the cluster. Two of three times while it writes,
        if it is caught at that; else at any moment, so perhaps between two tasks."""
        began = looked = time.monotonic()
        found = self._executors(kill.mode)
        while True:
            writing = [pid for pid, tasks in found.items() if any(writes(task, self.archive) for task in tasks)]
            waited = time.monotonic() - began
            if writing or (found and waited > (BUSY_S if kill.moment > 1 / 3 else 0)):
                end((writing or list(found))[0])
                self._count("executor" if kill.mode == "cluster" else "executor's Python worker")
                return f"{kill.moment * MOMENT_S + waited:.2f} s" + (", writing" if writing else "")
            if waited > PATIENCE_S or not self.driver.alive:
                raise Broken(f"no executor to kill:\n{self.driver.tail()}")
            if time.monotonic() - looked > LOOK_S:
                looked, found = time.monotonic(), self._executors(kill.mode)
            time.sleep(0.001)

    def _executors(self, mode: Mode) -> dict[int, list[int]]:
        """Whom to kill -> the processes in which its tasks run."""
        if mode == "local":
            return {pid: [pid] for pid in self.driver.workers()}
        return {pid: standalone.descendants(pid) for worker in self._cluster.workers for pid in worker.executors()}

    def _count(self, what: str) -> None:
        self.report.kills[what] = self.report.kills.get(what, 0) + 1

    def _works(self) -> None:
        """Until the driver has made a few more commits. The first may be a fence, or have been under way."""
        before = archive_state.commits(self.archive)
        self._until(lambda: archive_state.commits(self.archive) >= before + COMMITS_A_ROUND, "a commit")

    def _until(self, condition: Callable[[], bool], what: str, *, may_end: bool = False) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if not may_end and not self.driver.alive:
                raise Broken(f"the driver ended by itself with {self.driver.process.returncode}:\n{self.driver.tail()}")
            if time.monotonic() > deadline:
                raise Broken(f"no sign of {what} within {PATIENCE_S:.0f} s:\n{self.driver.tail()}")
            time.sleep(0.02)

    def _sound(self, look: Callable[[Path], list[str]]) -> list[str]:
        """What is still wrong after a while: a driver that works is between two steps at most moments."""
        deadline = time.monotonic() + self.settings.settle_s
        while True:
            try:
                faults = look(self.archive)
            except OSError as error:  # a file went while it was looked at
                faults = [str(error)]
            if not faults or time.monotonic() > deadline:
                return faults
            time.sleep(0.05)

    # ---- the end --------------------------------------------------------------------------------------------------------------

    def compare(self, record: Record) -> None:
        """The archive against the topic and the sender's record, by every reader there is."""
        self.say("comparing")
        topic = topic_rows(self.namesrv, TOPICS)
        faults = [*differences("topic", topic, topic, record.acknowledged), *archive_state.committed_faults(self.archive)]
        readers: dict[str, list[Row]] = {}
        if self.settings.kind == "delta":
            readers["deltalake"] = delta_rows(self.archive)
        else:
            faults += archive_state.leftover_faults(self.archive)
            readers["pyarrow over the directories"] = directory_rows(self.archive)
        for name, found in readers.items():
            faults += differences(name, found, topic, record.acknowledged)
        verdict = verify_archive(self.archive)
        faults += [f"verify: {problem}" for problem in verdict.problems]
        lines = [
            ("acknowledged to the sender", f"{len(record.acknowledged):,}"),
            ("in doubt, sent again", f"{record.doubtful:,}"),
            ("rows of the topic, pulled", f"{len(topic):,}   sha256 {digest(topic)}"),
            *((f"rows by {name}", f"{len(found):,}   sha256 {digest(found)}") for name, found in readers.items()),
            ("rows by verify", f"{verdict.rows:,} in {counted(verdict.files, 'file')}"),
        ]
        if self.settings.spark_check:
            from soak.spark_totals import totals

            wanted = (len(topic), len(topic), sum(row.crc for row in topic))
            for name, got in totals(self.namesrv, TOPICS, self.archive, delta=self.settings.kind == "delta").items():
                lines.append((f"rows by {name}", f"{got[0]:,}   {got[1]:,} places   sum of crc32 {got[2]:,}"))
                if got != wanted:
                    faults.append(f"{name}: rows, places and sum are {got}, the topic's are {wanted}")
        if len(record.acknowledged) < 100:
            faults.append(f"only {len(record.acknowledged)} messages were acknowledged: that shows nothing")
        self.report.faults += faults
        self.report.rows, self.report.commits = len(topic), archive_state.commits(self.archive)
        lines.append(("commits", f"{self.report.commits:,}"))
        lines.append(("killed", ", ".join(f"{count} x {what}" for what, count in sorted(self.report.kills.items()))))
        self.summary = lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m soak.exactly_once", description="The archive under kill -9.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None, help="of everything random (default: from the clock; it is printed)")
    parser.add_argument("--format", choices=("parquet", "delta"), default="parquet")
    parser.add_argument("--modes", default="local,here,cluster", help="where tasks run: local, here (no Spark), cluster")
    parser.add_argument("--rate", type=int, default=400, help="messages a second (default: 400)")
    parser.add_argument("--plant", choices=[name for name in BUGS if name], default="", help="a bug that must be found")
    parser.add_argument("--keep", action="store_true", help="keep the directory: archive, store, logs")
    given = parser.parse_args(arguments)
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    modes: tuple[Mode, ...] = tuple(given.modes.split(","))
    if given.rounds < 1 or not set(modes) <= VICTIMS.keys():
        parser.error(f"--rounds {given.rounds} --modes {given.modes}: expected one round or more, and some of {', '.join(VICTIMS)}")
    kills = choose_kills(given.rounds, randomness.Random(seed), given.format, modes)
    settings = Settings(given.format, seed, given.rate, given.plant, modes != ("here",))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {text}", file=sys.stderr, flush=True)

    say(f"{counted(given.rounds, 'round')}, format {given.format}, --seed {seed}" + (f", planted: {given.plant}" if given.plant else ""))
    with place(given.keep) as directory, Soak(directory, settings, say) as soak:
        try:
            report = soak.run(kills)
        except Broken as error:
            soak.report.faults.append(str(error))
            report = soak.report
    print(table(HEADINGS, report.rounds))
    for name, value in getattr(soak, "summary", ()):
        print(f"{name:<36}  {value}")
    for fault in report.faults:
        print(f"FAULT: {fault}")
    print(f"{counted(len(report.rounds), 'round')} in {duration(time.monotonic() - began)}, seed {seed}: "
          + (counted(len(report.faults), "fault") if report.faults else "every message once, none missing."))  # fmt: skip
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
