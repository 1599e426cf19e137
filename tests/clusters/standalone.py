"""A standalone Spark cluster on the loopback interface: a master, workers, and jobs submitted to it, all real processes.

pyspark from PyPI has no start-master.sh; `spark-class` starts the same classes. A worker is killed together with its
executors, as when a machine loses its power.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import small_jvm
from tests.small_jvm import WITH_ARCHIVE, WORKERS

SPARK_HOME = small_jvm.spark_home()
SOURCES = Path(__file__).resolve().parents[2] / "src"
PYTHON_PATH = f"{WORKERS}{os.pathsep}{SOURCES}"
PATIENCE_S = 600.0
"""A busy machine takes long to start five JVMs; a quiet one needs a tenth of this."""
EXECUTOR_MEMORY = "512m"
MASTER, PAGE = r"Starting Spark master at (spark://[\w.:]+)", r"MasterWebUI to .*started at (http://[\w.:]+)"
STARTED = "I have been elected leader|New state: ALIVE"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": WITH_ARCHIVE,
    "spark.driver.extraJavaOptions": WITH_ARCHIVE,
    # A streaming source does not see --py-files: the executors get it by their environment, the driver by its own.
    "spark.executorEnv.PYTHONPATH": PYTHON_PATH,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    **small_jvm.settings(),
}


def wait_until(condition: Callable[[], bool], what: str, log: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {PATIENCE_S:.0f} s\n{log()}"
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """Processes that this one started, and those that they started; Linux only, as is the rest of this file."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():  # a JVM starts processes from any of its threads
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


@dataclass
class Process:
    """A JVM with its output in a file."""

    name: str
    handle: subprocess.Popen[bytes]
    output: Path

    def log(self) -> str:
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        """It and all that it started, at once, with no chance to say goodbye."""
        for pid in [self.handle.pid, *descendants(self.handle.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.handle.wait()

    def executors(self) -> list[int]:
        """Of a worker: its children, one for each executor."""
        return [pid for pid in descendants(self.handle.pid) if "CoarseGrainedExecutorBackend" in command_line(pid)]


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


@dataclass
class Cluster:
    directory: Path
    url: str
    page: str
    """Address of the master's web page."""
    master: Process
    workers: list[Process]
    jobs: list[Process] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """What the master's page says as JSON; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=5) as answer:
                found = json.load(answer)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def alive(self) -> int:
        return sum(worker["state"] == "ALIVE" for worker in self.state().get("workers", ()))

    def submit(self, name: str, script: Path, *arguments: str) -> Process:
        """spark-submit, in the background; the job's own output is in the log beside Spark's."""
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, "--name", name]
        for key, value in SETTINGS.items():
            command += ["--conf", f"{key}={value}"]
        job = start(name, [*command, str(script), *arguments], self.directory)
        self.jobs.append(job)
        return job

    def processes(self) -> list[Process]:
        return [*self.jobs, *self.workers, self.master]

    def log(self) -> str:
        return "\n".join(f"=== {process.name}\n{process.log()[-4000:]}" for process in self.processes())


def environment() -> dict[str, str]:
    given = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    return given | {
        **{name: text for name, text in small_jvm.alone().items() if name != "SPARK_SUBMIT_OPTS"},  # SETTINGS has them
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": f"{WITH_ARCHIVE} -Dspark.master.rest.enabled=false",  # its port is fixed
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": PYTHON_PATH,
    }


def start(name: str, command: list[str], directory: Path) -> Process:
    output = directory / f"{name}.out"
    with open(output, "wb") as out:
        handle = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=directory, env=environment()
        )  # fmt: skip
    return Process(name, handle, output)


@contextlib.contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and `workers` workers of one core each, all known to the master; everything is killed at the end."""
    run = [str(SPARK_HOME / "bin" / "spark-class")]
    # Port 0: each takes a free one, and the master's log says which.
    place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    master = start("master", [*run, "org.apache.spark.deploy.master.Master", *place], directory)
    cluster = Cluster(directory, "", "", master, [])
    try:
        wait_until(lambda: bool(re.search(STARTED, master.log())), "the master", master.log)
        cluster.url, cluster.page = (re.search(pattern, master.log()).group(1) for pattern in (MASTER, PAGE))  # type: ignore[union-attr]
        for number in range(workers):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work-{number}")]
            command = [*run, "org.apache.spark.deploy.worker.Worker", *place, *size, cluster.url]
            cluster.workers.append(start(f"worker-{number}", command, directory))
        wait_until(lambda: cluster.alive() == workers, f"a master with {workers} workers", cluster.log)
        yield cluster
    finally:
        for process in cluster.processes():
            process.kill()
