"""Spark over Kafka 3.9.1 and over Roquet on this machine, in turns, on the same records: one table.

    python bench/spark/run.py [--quick] [--rows scan,files,...] [--sizes 128,1024] [--json FILE] [--only roquet|kafka] [--keep]

Each side has a server and a Spark application of its own, with the same memory and the same number of threads. They take
rounds in turns; while one is measured the other's server is stopped (SIGSTOP: it stays as warm as it was). Figures are
medians over rounds. Every round's rows are counted again: what a scan read, what an archive holds, what came into a topic.
Topic to topic has the same records, queues (4), trigger (availableNow, one micro-batch), threads and JVM settings on both sides.
Both sinks wait until one broker without a replica has answered every request. Not the same: Roquet's source gives ten columns and
Kafka's seven, of which the query uses two; ranges of more than a million rows are two tasks with Roquet (8 tasks for 5 M records,
Kafka has 4); a message that Roquet's sink sends carries a unique id of 32 characters, a record of Kafka's none; requests have the
size that each sink has by default.
All free memory is taken before (memory.py), so that no side waits for the host of a virtual machine.
All traffic stays on 127.0.0.1. Files go to a temporary directory (some tens of gigabytes; TMPDIR moves it).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import sides  # first: it shows the way to bench/

from sides import KAFKA, ROQUET, Application, Failed, Side  # isort: skip
from servers import apache  # isort: skip

import kafka_server  # isort: skip
from memory import Held  # isort: skip
from figures import BY_KEY, READS, ROWS, SENDS, Report, Sample
from records import DataSet
from watch import Peak, cpu_seconds

SETTLE_S = 0.3  # a round's CPU is taken so much later: work that a server put off is part of the price
CATCHING_UP_CPU_S = 0.05  # so much has a broker done for a reader when the reading is surely under way
NICE = 19
DISK_GIB = 45


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    small: int = 5_000_000  # records of 128 bytes
    large: int = 2_000_000  # of 1 KiB
    rounds: int = 3
    warm: int = 400_000  # records of 128 bytes, read by every query before it counts
    warm_passes: int = 2
    sends: int = 400_000  # single sends to Roquet
    kafka_sends: int = 2_000_000  # batched by Kafka's producer, so more of them take as long

    def data(self, sizes: set[int]) -> list[DataSet]:
        every = (DataSet("128 B", 128, self.small), DataSet("1 KiB", 1024, self.large))
        return [data.rounded() for data in every if data.size in sizes]


FULL, QUICK = Plan(), Plan(small=1_000_000, large=400_000, warm_passes=1, sends=200_000, kafka_sends=1_000_000)


class Bench:
    def __init__(self, plan: Plan, rows: set[str], sizes: set[int], kinds: tuple[str, ...], directory: Path) -> None:
        self.plan, self.rows, self.kinds, self.directory = plan, rows, kinds, directory
        self.data = plan.data(sizes)
        self.warm = DataSet("warm", 128, plan.warm).rounded()
        self.report = Report()
        self.began = time.monotonic()
        self.sides: list[Side] = []
        self.targets = 0  # topics that streams have been sent into
        self.memory = Held(directory, self.say, wanted=plan.small == FULL.small)  # not with few records

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:4.0f} s] {text}", file=sys.stderr, flush=True)

    # ---------------------------------------------------------------- the run

    def run(self) -> Report:
        self.memory.fill()
        with contextlib.ExitStack() as stack:
            for kind in self.kinds:
                self.say(f"starting {kind} and its Spark application")
                directory = self.directory / kind
                directory.mkdir(parents=True)
                self.sides.append(stack.enter_context(sides.started(kind, directory)))
                self.sides[-1].pause()
            for side in self.sides:
                with self.alone(side):
                    self.prepare(side)
            self.memory.fill()
            for data in self.data:
                self.in_turns(READS, data)
            for data in self.data:
                self.in_turns(("stream",), data)
            for row in SENDS:
                for side in self.sides if row in self.rows else ():
                    with self.alone(side):
                        self.sends(side, row)
        return self.report

    @contextlib.contextmanager
    def alone(self, side: Side) -> Iterator[None]:
        """This side's server runs, no other."""
        side.resume()
        try:
            yield
        finally:
            side.pause()

    def prepare(self, side: Side) -> None:
        """The records, and queries that make both JVMs compile what they will run."""
        for data in (self.warm, *self.data):
            began = time.monotonic()
            side.fill(data, self.directory / side.kind / "fill")
            sides.wait_for(lambda d=data: side.stored(d.topic) == d.count, f"{data.count:,} records in {side.kind}'s {data.topic}")
            self.say(f"{side.kind} has {data.count:,} records of {data.name} ({data.count / (time.monotonic() - began):,.0f}/s)")
        side.filled()
        for _ in range(self.plan.warm_passes):
            for work in (*READS, "stream"):
                if self.has(side, work):
                    self.guarded(work, self.warm.name, side, lambda w=work: self.round(side, w, self.warm), count=False)  # type: ignore[misc]

    def has(self, side: Side, work: str) -> bool:
        """Is this asked of this side? Kafka works for every row that is compared with it."""
        if side.kind == ROQUET:
            return work in self.rows
        return any(BY_KEY[row].against == work for row in self.rows)

    def in_turns(self, works: tuple[str, ...], data: DataSet) -> None:
        for number in range(self.plan.rounds):
            for side in self.sides if number % 2 == 0 else reversed(self.sides):
                wanted = [work for work in works if self.has(side, work)]
                if not wanted:
                    continue
                with self.alone(side):
                    for work in wanted:
                        self.guarded(work, data.name, side, lambda s=side, w=work: self.round(s, w, data))  # type: ignore[misc]

    def guarded(self, work: str, data: str, side: Side, measure: Callable[[], Sample], *, count: bool = True) -> None:
        """One round; what goes wrong is reported and does not end the run."""
        figures = self.report.at(work, data, side.kind) if count else None
        try:
            sample = measure()
        except (Failed, OSError, RuntimeError) as error:
            self.say(f"{work}, {data}, {side.kind}: {error}")
            if figures is None:
                self.report.notes.append(f"while warming up, {work} of {side.kind}: {str(error).splitlines()[0][:300]}")
            else:
                figures.problem = str(error).splitlines()[0][:300]
            return
        if figures is not None:
            figures.samples.append(sample)
        more = f"broker {sample.broker_cpu_us:.2f} us and {sample.broker_mib:,.0f} MiB, Spark {sample.spark_mib:,.0f} MiB"
        if sample.alone:
            more = f"alone {sample.alone:,.0f}/s; Spark read {sample.caught_up:,.0f}/s"
        self.say(f"{work:14} {data:5} {side.kind:6}: {sample.rate:11,.0f}/s, {more}")

    # ---------------------------------------------------------------- one round

    def round(self, side: Side, work: str, data: DataSet) -> Sample:
        self.targets += 1
        target = f"Spark_into_{self.targets}"
        if work == "stream":
            side.create_topic(target)
        job = side.job(work, data, target)
        broker, spark = cpu_seconds(side.pid), cpu_seconds(side.application.pid)
        with Peak(broker=side.pid, spark=side.application.pid) as peak:
            answer = side.application.ask(job)
        time.sleep(SETTLE_S)
        broker, spark = cpu_seconds(side.pid) - broker, cpu_seconds(side.application.pid) - spark
        self.verify(side, work, data, target, answer)
        each = 1e6 / data.count
        written_mib = answer.get("written", 0) / (1 << 20)
        return Sample(data.count / answer["seconds"], broker * each, peak.mib["broker"], peak.mib["spark"], spark * each, written_mib)

    def verify(self, side: Side, work: str, data: DataSet, target: str, answer: dict[str, float]) -> None:
        if answer["rows"] != data.count:
            raise Failed(f"{work} of {data.name} gave {answer['rows']:,} rows, there are {data.count:,}")
        if "bytes" in answer and answer["bytes"] != data.count * data.size:
            raise Failed(f"{work} of {data.name} read bodies of {answer['bytes']:,} bytes together, sent were {data.count * data.size:,}")
        if work == "stream" and (stored := side.stored(target)) != data.count:
            raise Failed(f"{stored:,} of {data.count:,} records came into {target}")

    def sends(self, side: Side, row: str) -> None:
        """Rounds of sends alone and then during a catching up."""
        largest = max(self.data, key=lambda data: data.count)
        try:
            with self.reader(side, row) as application:
                side.send(self.plan.sends)  # warm
                application.ask(side.job("scan", self.warm, ""))
                for number in range(self.plan.rounds):
                    self.guarded(row, "sends", side, lambda n=number: self.catch_up(side, application, largest, n))  # type: ignore[misc]
        except (Failed, OSError, RuntimeError) as error:
            self.report.at(row, "sends", side.kind).problem = str(error).splitlines()[0][:300]

    @contextlib.contextmanager
    def reader(self, side: Side, row: str) -> Iterator[Application]:
        """The application that catches up: the side's own, or one that gives way to everything else."""
        if row != "sends":
            yield side.application
            return
        application = Application(f"{side.kind}-nice", side.jars, self.directory / side.kind, nice=NICE)
        try:
            yield application
        finally:
            application.close()

    def catch_up(self, side: Side, application: Application, data: DataSet, number: int) -> Sample:
        count = self.plan.kafka_sends if side.kind == KAFKA else self.plan.sends
        alone = side.send(count)
        stop = self.directory / side.kind / f"enough-{application.name}-{number}"
        before = cpu_seconds(side.pid)
        application.begin({**side.job("scan", data, ""), "work": "catch-up", "until": str(stop)})
        try:
            sides.wait_for(lambda: cpu_seconds(side.pid) - before > CATCHING_UP_CPU_S, "the reader's first pulls", timeout_s=120.0)
            during = side.send(count)
        finally:
            stop.touch()
            answer = application.answer()
        return Sample(during, alone=alone, caught_up=answer["rows"] / answer["seconds"])


def busy_seconds() -> float:
    """Time that all cores together have spent on anything but idling and waiting for a disk."""
    user, nice, system, _idle, _wait, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, object]:
    import pyspark

    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cores": os.cpu_count(), "memory_gib": round(int(memory.split()[1]) / (1 << 20), 1), "kernel": platform.release(),
        "python": platform.python_version(), "pyspark": pyspark.__version__, "kafka": kafka_server.VERSION,
        "spark_sql_kafka": kafka_server.CONNECTOR,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the records")
    parser.add_argument("--rows", help=f"some of {','.join(row.key for row in ROWS)}")
    parser.add_argument("--sizes", default="128,1024", help="some of 128,1024")
    parser.add_argument("--records", type=int, help="so many of each size instead, to try it out")
    parser.add_argument("--rounds", type=int, help="3 unless told")
    parser.add_argument("--json", metavar="FILE", help="write all figures, every round's, there")
    parser.add_argument("--only", choices=(KAFKA, ROQUET))
    parser.add_argument("--keep", action="store_true", help="leave the servers' directories and logs, and say where")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed or a row fails")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave by the doors that stop the servers
    rows = set(options.rows.split(",")) if options.rows else set(BY_KEY)
    if unknown := rows - set(BY_KEY):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if options.only != ROQUET and (missing := apache.missing_tools()):
        parser.error(f"Kafka's side needs {', '.join(missing)}; --only roquet does without")
    kinds = (options.only,) if options.only else (KAFKA, ROQUET)
    if KAFKA in kinds:  # a first run fetches jars: not on the run's clock
        apache.classpath(*kafka_server.SERVER_JARS)
        kafka_server.connector()
    plan = QUICK if options.quick else FULL
    if options.records or options.rounds:
        few = {"small": options.records, "large": options.records, "warm": options.records, "warm_passes": 1} if options.records else {}
        plan = Plan(**{**vars(plan), **few, "rounds": options.rounds or plan.rounds})
    directory = Path(tempfile.mkdtemp(prefix="roquet-bench-spark-"))
    if not options.quick and not options.records and shutil.disk_usage(directory).free < DISK_GIB << 30:
        print(f"less than {DISK_GIB} GiB free in {directory}: a server may refuse records (TMPDIR chooses another place)", file=sys.stderr)
    busy, own = busy_seconds(), sum(os.times()[:4])
    bench = Bench(plan, rows, {int(size) for size in options.sizes.split(",")}, kinds, directory)
    try:
        report = bench.run()
    finally:
        (directory / "holes").unlink(missing_ok=True)  # of memory.py: nothing to keep
        if options.keep:
            print(f"kept: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    took = time.monotonic() - bench.began
    others = max(0.0, (busy_seconds() - busy - sum(os.times()[:4]) + own) / (took * (os.cpu_count() or 1)))
    report.facts = {**machine(), "quick": options.quick, "rounds": plan.rounds, "seconds": round(took), "others_cpu": round(others, 3)}
    if others > 0.05:
        report.notes.append(f"{others:.0%} of the machine's CPU time went to other programs meanwhile: all rates suffer")
    print(report.table())
    print("Medians of rounds, +- half their spread. Costs are Kafka's/Roquet's: CPU in us a row; MiB of anonymous memory at its peak.")
    print(", ".join(f"{name} {value}" for name, value in report.facts.items()))
    if options.json:
        Path(options.json).write_text(json.dumps(report.json(), indent=1) + "\n")
    failed = report.missed() or any(figures.problem for figures in report.figures.values())
    return 1 if options.strict and failed else 0


if __name__ == "__main__":
    sys.exit(main())
