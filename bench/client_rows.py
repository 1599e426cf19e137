"""Our Python client beside Apache's, on one Roquet broker, in turns: rows client-*.

The messages are counted in the broker over windows of time, as in java_clients.py; the client's CPU time is that of its process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import java_clients
from servers import APACHE, HERE, Cluster, Running, apache, cpu_seconds
from table import Sample

QUEUES = 8
TOPIC, BACKLOG_TOPIC = "BenchClient", "BenchClientBacklog"
GATHER = "client-gather"
OUTPUT = "python_client.out"
CAUGHT_UP = 200_000
"""Messages that are left when a consumer is not measured any more."""


@dataclass(frozen=True)
class Work:
    """What both clients do in one row."""

    java: tuple[str, ...]  # Apache's program and its arguments
    python: tuple[str, ...]
    consumes: bool = False


WORKS: dict[str, Work] = {
    "client-send1": Work(("Producer", "-s", "128", "-w", "1"), ("send", "--inflight", "1")),
    "client-send64": Work(("Producer", "-s", "128", "-w", "64"), ("send", "--inflight", "64")),
    GATHER: Work(("Producer", "-s", "128", "-w", "64"), ("send", "--inflight", "64", "--linger-ms", "5")),
    "client-batch": Work(("BatchProducer", "-s", "128", "-w", "16", "-b", "32"), ("batch", "--inflight", "16", "--size", "32")),
    "client-push": Work(("Consumer", "-p", "false"), ("push",), consumes=True),
}


SHARD_COUNTS = (1, 2, 4)
SHARD_WORKS: dict[str, tuple[int, Work]] = {
    f"shards-clients-{what}{shards}": (shards, WORKS[row])
    for what, row in (("send", "client-send64"), ("push", "client-push"))
    for shards in SHARD_COUNTS
}
"""Rows: on how many shards, and the work."""


def prepare(running: Running) -> None:
    for topic in (TOPIC, BACKLOG_TOPIC):
        java_clients.prepare(running, topic, QUEUES)


def fill(running: Running | Cluster, count: int, directory: Path) -> None:
    """A backlog for the consumers."""
    with ours(running, directory, ("batch", "--inflight", "4", "--size", "200"), BACKLOG_TOPIC, ""):
        enough = running.stored(BACKLOG_TOPIC, QUEUES) + count
        apache.wait_until(lambda: running.stored(BACKLOG_TOPIC, QUEUES) >= enough, "the backlog", timeout_s=120.0, every_s=0.2)


def measure(running: Running | Cluster, work: Work, kind: str, directory: Path, *, number: int, warm_s: float, window_s: float) -> Sample:
    """One round of some work by one client."""
    group = f"bench_{kind}_{number}"
    topic = BACKLOG_TOPIC if work.consumes else TOPIC

    def count() -> int:
        return running.consumed(group, topic, QUEUES) if work.consumes else running.stored(topic, QUEUES)

    if work.consumes:
        running.rewind(group, topic, QUEUES)
    before = count()
    started = java(running, directory, work.java, topic, group) if kind == APACHE else ours(running, directory, work.python, topic, group)
    with started as process:
        sample = window(running, process, count, warm_s, window_s, begins_late=work.consumes)
        if work.consumes and count() > running.stored(topic, QUEUES) - CAUGHT_UP:
            raise RuntimeError(f"the client had caught up with {count():,} messages before it was measured; the backlog is too small")
    if kind != APACHE and not work.consumes:
        acknowledged = int((directory / OUTPUT).read_text().split()[-1])
        if count() - before < acknowledged:
            raise RuntimeError(f"{acknowledged:,} messages were acknowledged and {count() - before:,} came into the queues")
    return sample


def window(
    running: Running | Cluster,
    process: subprocess.Popen[bytes],
    count: Callable[[], int],
    warm_s: float,
    window_s: float,
    *,
    begins_late: bool,
) -> Sample:
    if begins_late:  # warm from the first message on, since rebalancing takes now longer and now shorter
        apache.wait_until(lambda: process.poll() is not None or count() > 0, "the first message consumed", timeout_s=40.0, every_s=0.1)
    time.sleep(warm_s)
    before, cpu, own, began = count(), running.cpu(), cpu_seconds(process.pid), time.perf_counter()
    time.sleep(window_s)
    if process.poll() is not None:
        raise RuntimeError(f"the client ended by itself with {process.returncode}")
    after, cpu_after, own_after, now = count(), running.cpu(), cpu_seconds(process.pid), time.perf_counter()
    if after <= before:
        raise RuntimeError(f"the client moved no message in {window_s:.0f} s")
    return Sample(after - before, now - began, cpu_after - cpu, own_after - own)


def java(
    running: Running | Cluster, directory: Path, work: tuple[str, ...], topic: str, group: str
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    arguments = ["-n", running.namesrv, "-t", topic, *work[1:]]
    return java_clients.client(work[0], directory / "java", *arguments, *(["-g", group] if work[0] == "Consumer" else []))


@contextlib.contextmanager
def ours(running: Running | Cluster, directory: Path, work: tuple[str, ...], topic: str, group: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(HERE / "python_client.py"), *work, "--namesrv", running.namesrv, "--topic", topic]
    command += ["--group", group] if group else []
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / OUTPUT, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
