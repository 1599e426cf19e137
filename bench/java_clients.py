"""Apache's own benchmark programs (rocketmq-example 5.5.0) as load: Producer, BatchProducer, Consumer.

What they did is not taken from what they print but from the broker: the ends of the topic's queues, or the offsets the
consumer group committed, before and after a window of time in which the broker's CPU time is taken as well.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import servers
from servers import Running, apache

EXAMPLES = "rocketmq-example:5.5.0"
QUEUES = 16
SINGLE_TOPIC, BATCH_TOPIC, GROUP = "BenchJavaSend", "BenchJavaBatch", "bench_java_consumer"

BACKLOG = 5_000_000
"""Messages that the consumer finds, the same on both sides however much was sent: what is farther from the end counts as being on disk, and
then both brokers send eight a pull."""

Window = tuple[int, float, float]  # messages, seconds, server CPU seconds


@contextlib.contextmanager
def client(program: str, directory: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of the benchmark programs, running; ended when the block is left."""
    directory.mkdir(parents=True, exist_ok=True)
    command = ["java", "-Xms1g", "-Xmx1g", *apache.JAVA_17_OPTIONS, f"-Duser.home={directory}"]
    command += ["-Dorg.apache.rocketmq.client.sendSmartMsg=true", "-cp", apache.classpath(EXAMPLES)]
    command += [f"org.apache.rocketmq.example.benchmark.{program}", *arguments]
    with open(directory / f"{program}.out", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=directory)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def prepare(running: Running, topic: str, queues: int = QUEUES) -> None:
    """Make the topic and wait until clients can find it."""
    running.create_topic(topic, queues)

    def known() -> bool:
        with servers.Admin(running.namesrv) as admin:
            return admin.has_route(topic)

    apache.wait_until(known, f"the route of {topic}", timeout_s=40.0)


def produce(running: Running, directory: Path, *, batch: bool, warm_s: float, window_s: float, windows: int) -> list[Window]:
    topic = BATCH_TOPIC if batch else SINGLE_TOPIC
    prepare(running, topic)
    arguments = ["-n", running.namesrv, "-t", topic, "-s", "128", "-w", "16" if batch else "64"]
    program = "BatchProducer" if batch else "Producer"
    with client(program, directory, *arguments, *(["-b", "32"] if batch else [])) as process:
        return _windows(running, process, lambda: running.stored(topic, QUEUES), warm_s, window_s, windows)


def consume(running: Running, directory: Path, *, warm_s: float, window_s: float, windows: int) -> list[Window]:
    """Catch up over the last of what `produce` left in the batch topic."""
    with servers.Admin(running.address) as admin:
        start = admin.rewind(GROUP, BATCH_TOPIC, QUEUES, BACKLOG)
    backlog = running.stored(BATCH_TOPIC, QUEUES)

    def consumed() -> int:
        with servers.Admin(running.address) as admin:
            return admin.consumed(GROUP, BATCH_TOPIC, QUEUES)

    with client("Consumer", directory, "-n", running.namesrv, "-t", BATCH_TOPIC, "-g", GROUP, "-p", "false") as process:
        # the start differs from run to run (rebalancing): the clock runs from the first message on
        apache.wait_until(
            lambda: process.poll() is not None or consumed() > start, "the consumer's first message", timeout_s=40.0, every_s=0.2
        )
        found = _windows(running, process, consumed, warm_s, window_s, windows, enough=backlog - 50_000)
    if not found:
        raise RuntimeError(f"the consumer had caught up with {backlog:,} messages before it could be measured")
    return found


def _windows(
    running: Running,
    process: subprocess.Popen[bytes],
    count: Callable[[], int],
    warm_s: float,
    window_s: float,
    windows: int,
    enough: int | None = None,
) -> list[Window]:
    """Messages, seconds and server CPU of some windows of time; fewer if the count comes near `enough`."""
    time.sleep(warm_s)
    found: list[Window] = []
    before, cpu, began = count(), running.cpu(), time.perf_counter()
    for _ in range(windows):
        time.sleep(window_s)
        if process.poll() is not None:
            raise RuntimeError(f"the Java client ended by itself with {process.returncode}")
        after, cpu_after, now = count(), running.cpu(), time.perf_counter()
        if enough is not None and after > enough:
            break
        if after == before:
            raise RuntimeError(f"the Java client moved no message in {window_s:.0f} s")
        found.append((after - before, now - began, cpu_after - cpu))
        before, cpu, began = after, cpu_after, now
    return found
