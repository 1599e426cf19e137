"""Kafka and Roquet, each a server and a Spark application: what to tell the application for each kind of work."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # frames, load, servers; last: it has a run.py of its own

import servers  # noqa: E402
from servers import apache  # noqa: E402

import kafka_server  # noqa: E402  isort: skip
from records import QUEUES, DataSet, fill_roquet, write_parquet  # noqa: E402  isort: skip

KAFKA, ROQUET = "kafka", "roquet"
SENDS_TOPIC = "Spark_sends"
SEVEN = "keys string, body binary, topic string, queue_id int, queue_offset bigint, store_time timestamp, sys_flag int"
"""What Kafka's seven columns are here, in their order: key, value, topic, partition, offset, timestamp, timestampType."""
JOB_S = 900.0
START_S = 120.0
Job = dict[str, Any]


class Failed(RuntimeError):
    """A Spark application could not do what it was told."""


class Application:
    """A running driver.py."""

    def __init__(self, name: str, jars: list[str], directory: Path, nice: int = 0) -> None:
        self.name, self.errors = name, directory / f"{name}.err"
        scratch = directory / f"{name}-scratch"
        scratch.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "ROQUET_BENCH_SCRATCH": str(scratch)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their byte code; each stream starts a Python anew
        command = [sys.executable, str(HERE / "driver.py"), name, *jars]
        if nice:
            command = ["nice", "-n", str(nice), *command]
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=scratch, bufsize=0
            )
        if self._line(START_S) != b"ready\n":
            raise Failed(f"the Spark application {name} did not start:\n{self.log()}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.errors.read_text(errors="replace")[-3000:]

    def begin(self, job: Job) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")

    def answer(self, timeout_s: float = JOB_S) -> Job:
        line = self._line(timeout_s)
        if not line:
            raise Failed(f"the Spark application {self.name} gave no answer within {timeout_s:.0f} s:\n{self.log()}")
        found: Job = json.loads(line)
        if "problem" in found:
            raise Failed(found["problem"])
        return found

    def ask(self, job: Job) -> Job:
        self.begin(job)
        return self.answer()

    def _line(self, timeout_s: float) -> bytes:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        return self.process.stdout.readline() if ready else b""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the JVM ends when nobody holds its standard input
            self.process.wait()


class Side:
    """A server and its Spark application. Only one side's server runs at a time; the other is stopped, warm as it is."""

    kind: str
    pid: int
    jars: list[str]
    application: Application

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def job(self, work: str, data: DataSet, target: str) -> Job:
        """What to tell the application for this kind of work; `target`: the topic that a stream goes into."""
        raise NotImplementedError

    def fill(self, data: DataSet, directory: Path) -> None:
        raise NotImplementedError

    def filled(self) -> None:
        """All records are there."""

    def create_topic(self, topic: str) -> None:
        raise NotImplementedError

    def stored(self, topic: str) -> int:
        raise NotImplementedError

    def send(self, count: int) -> float:
        """Messages of 128 bytes a second, as many as it takes, from one producer."""
        raise NotImplementedError


class Kafka(Side):
    kind = KAFKA

    def __init__(self, server: apache.Server, directory: Path) -> None:
        self.server, self.pid, self.directory = server, server.pid, directory
        self.jars = kafka_server.connector()
        self.application = Application(f"{KAFKA}-fill", self.jars, directory)
        self.create_topic(SENDS_TOPIC)

    def job(self, work: str, data: DataSet, target: str) -> Job:
        where = {"kafka.bootstrap.servers": self.server.address, "subscribe": data.topic, "startingOffsets": "earliest"}
        if work == "scan":
            return {"work": "scan", "format": "kafka", "options": where}
        if work == "archive":
            return {"work": "parquet", "format": "kafka", "options": where}
        if work == "stream":
            sink = {"kafka.bootstrap.servers": self.server.address, "topic": target}
            return {"work": "stream", "format": "kafka", "options": where, "select": ["key", "value"], "sink": sink}
        raise ValueError(f"Kafka has no {work}")

    def fill(self, data: DataSet, directory: Path) -> None:
        path = directory / data.name
        write_parquet(data, path)
        self.create_topic(data.topic)
        sink = {"kafka.bootstrap.servers": self.server.address, "topic": data.topic, "kafka.batch.size": "65536", "kafka.linger.ms": "5"}
        self.application.ask({"work": "fill", "path": str(path), "sink": sink})

    def filled(self) -> None:
        """What is measured is an application that only reads: filling made this one's memory grow."""
        self.application.close()
        self.application = Application(KAFKA, self.jars, self.directory)

    def create_topic(self, topic: str) -> None:
        kafka_server.create_topic(self.server, topic, QUEUES)

    def stored(self, topic: str) -> int:
        return kafka_server.stored(self.server, topic)

    def send(self, count: int) -> float:
        return kafka_server.send(self.server, SENDS_TOPIC, count, 128)


class Roquet(Side):
    kind = ROQUET

    def __init__(self, running: servers.Running, store: Path, directory: Path) -> None:
        self.running, self.store, self.pid = running, store, running.pid
        self.jars = []
        self.application = Application(ROQUET, self.jars, directory)
        self.create_topic(SENDS_TOPIC)

    def resume(self) -> None:
        super().resume()
        # While it stood still the name server may have struck it off; it registers again as soon as it runs.
        apache.wait_until(lambda: apache.is_registered(self.running.namesrv, self.running.address), "the registration", timeout_s=60.0)

    def job(self, work: str, data: DataSet, target: str) -> Job:
        broker = {"namesrvAddr": self.running.namesrv, "subscribe": data.topic, "startingOffsets": "earliest"}
        files = {"path": str(self.store), "subscribe": data.topic, "startingOffsets": "earliest"}
        kind, _, how = work.partition("-")
        if kind in ("scan", "files"):
            options = (files if kind == "files" else broker) | ({"columns": "all"} if how == "all" else {})
            return {"work": "scan", "format": "rocketmq", "options": options, "schema": SEVEN if how == "seven" else None}
        if kind == "archive":
            place = {"namesrvAddr": self.running.namesrv} if how == "broker" else {"path": str(self.store)}
            columns = None if how == "all" else [column.split()[0] for column in SEVEN.split(", ")]
            compression = "snappy" if how == "snappy" else None  # else the archive's own, zstd; Spark's own for Kafka is snappy
            return {"work": "archive", "where": place, "topic": data.topic, "columns": columns, "compression": compression}
        if kind == "stream":
            sink = {"namesrvAddr": self.running.namesrv, "topic": target}
            select = ["keys", "body"]
            return {"work": "stream", "format": "rocketmq", "options": broker, "select": select, "sink": sink}
        raise ValueError(f"Roquet has no {work}")

    def fill(self, data: DataSet, directory: Path) -> None:
        self.create_topic(data.topic)
        fill_roquet(self.running.port, data)

    def create_topic(self, topic: str) -> None:
        self.running.create_topic(topic, QUEUES)

    def stored(self, topic: str) -> int:
        return self.running.stored(topic, QUEUES)

    def send(self, count: int) -> float:
        """64 in flight on one connection (bench/load.py)."""
        command = [sys.executable, str(HERE.parent / "load.py"), "send", "--port", str(self.running.port), "--topic", SENDS_TOPIC]
        command += ["--count", str(count), "--queues", str(QUEUES), "--inflight", "64"]
        done = subprocess.run(command, input="\n", capture_output=True, text=True, check=False, timeout=JOB_S)
        if done.returncode != 0:
            raise Failed(f"the load generator failed: {done.stderr[-2000:]}")
        outcome = json.loads(done.stdout.splitlines()[-1])
        if outcome["errors"]:
            raise Failed(f"{outcome['errors']} sends were refused, the first with {outcome['first_error']}")
        return float(outcome["messages"] / outcome["seconds"])


@contextlib.contextmanager
def started(kind: str, directory: Path) -> Iterator[Side]:
    """Server and application of one side, running."""
    side: Side
    with contextlib.ExitStack() as stack:
        if kind == KAFKA:
            server = stack.enter_context(kafka_server.kafka(directory / "server", QUEUES))
            side = Kafka(server, directory)
        else:
            pair = servers.Launcher().pair(servers.ROQUET, directory / "server", kill=True)
            running = stack.enter_context(pair)
            side = Roquet(running, directory / "server" / "broker" / "store", directory)
        try:
            yield side
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(side.pid, signal.SIGCONT)  # a stopped process cannot end in good order
            side.application.close()


def wait_for(condition: Any, what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"gave up after {timeout_s:.0f} s waiting for {what}")
        time.sleep(0.05)
