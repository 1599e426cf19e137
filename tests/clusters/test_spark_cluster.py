"""The same jobs on a standalone cluster of two workers: executors and then a whole worker are killed under them."""

from __future__ import annotations

import json
import os
import signal
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from roquet import Message, Producer
from tests.clusters.standalone import Cluster, Process, descendants, standalone, wait_until
from tests.spark.conftest import Servers

JOB = Path(__file__).with_name("cluster_job.py")
PARTS = ("batch", "archive", "stream")
TOPIC, QUEUES = "ClusterOrders", 4
BODIES = [b"order %06d of the cluster" % number for number in range(8_000)]
A_BATCH, A_TRIGGER = 1_000, 2_000
WANTED = {"messages": len(BODIES), "places": len(BODIES), "checksum": sum(map(zlib.crc32, BODIES))}


@dataclass
class Outcome:
    """What one part of the job left behind."""

    answer: dict[str, Any]
    attempts: list[tuple[int, int]]
    """(partition, attempt) of every task that began while the part was held."""


@pytest.fixture(scope="module")
def outcomes(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """One submitted application: its batch and its archive lose an executor, its stream a worker with all that runs there."""
    servers.topic(TOPIC, QUEUES)
    servers.run(send_evenly(servers.namesrv))
    directory = tmp_path_factory.mktemp("cluster")
    for part in PARTS:
        (directory / part).mkdir()
    with standalone(directory) as cluster:
        job = cluster.submit("job", JOB, servers.namesrv, TOPIC, str(directory), str(A_TRIGGER))
        found = {}
        for part in ("batch", "archive"):
            for executor in busy_worker(cluster, job, directory / part).executors():
                os.kill(executor, signal.SIGKILL)  # its worker starts another one
            found[part] = finish(cluster, job, directory / part)
        busy_worker(cluster, job, directory / "stream").kill()
        found["stream"] = finish(cluster, job, directory / "stream")
        wait_until(lambda: job.handle.poll() is not None, "the job's end", cluster.log)
        assert job.handle.returncode == 0, cluster.log()
    return found


async def send_evenly(namesrv: str) -> None:
    """A quarter into each queue: one producer takes them in turn."""
    async with Producer("cluster_tests", namesrv) as producer:
        for start in range(0, len(BODIES), A_BATCH):
            await producer.send_batch([Message(TOPIC, body) for body in BODIES[start : start + A_BATCH]])


def busy_worker(cluster: Cluster, job: Process, directory: Path) -> Process:
    """A worker on which a task of this part waits to be told to go on."""
    found: list[Process] = []

    def waiting() -> bool:
        assert job.handle.poll() is None, f"the job ended:\n{cluster.log()}"
        tasks = {int(path.name.rpartition("-")[2]) for path in directory.glob("task-*")}
        if tasks:  # the threads of all those JVMs are many
            found.extend(worker for worker in cluster.workers if tasks & set(descendants(worker.handle.pid)))
        return bool(found)

    wait_until(waiting, f"a task of {directory.name}", cluster.log)
    return found[0]


def finish(cluster: Cluster, job: Process, directory: Path) -> Outcome:
    (directory / "go").touch()
    path = directory / "answer.json"
    wait_until(lambda: path.exists() or job.handle.poll() is not None, f"the answer of {directory.name}", cluster.log)
    assert path.exists(), cluster.log()
    attempts = [each.name.split("-")[1:3] for each in directory.glob("task-*")]
    return Outcome(json.loads(path.read_text()), sorted((int(partition), int(attempt)) for partition, attempt in attempts))


def test_a_batch_job_gives_the_right_answer_although_an_executor_is_killed_in_the_middle(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["batch"].answer == WANTED


def test_an_archive_has_every_message_once_although_an_executor_is_killed_in_the_middle(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["archive"].answer == {**WANTED, "archived": len(BODIES)}


def test_a_stream_into_parquet_has_every_message_once_although_a_worker_is_killed_in_the_middle(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["stream"].answer == {**WANTED, "batches": len(BODIES) // A_TRIGGER}


@pytest.mark.parametrize("part", PARTS)
def test_what_was_killed_had_a_task_that_was_done_again(outcomes: dict[str, Outcome], part: str) -> None:
    """Else the kill came too early or too late, and the tests above show nothing."""
    assert any(attempt > 0 for _, attempt in outcomes[part].attempts)
