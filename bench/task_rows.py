"""A trivial task through roquet.app beside Celery, dramatiq and FastStream, the three with Redis: rows tasks and tasks-publish.

In a round a worker is started and runs some tasks to warm up. Then it is stopped (SIGSTOP), a process publishes all tasks, and the worker
goes on (SIGCONT): the clock runs from there until the last task has run. Systems take rounds in turns, the servers of the others idle.
The programs are in bench/tasks; the other systems live in a virtual environment of their own below ~/.cache/roquet.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from servers import HERE, ROQUET, Admin, Launcher, Running, apache, cpu_seconds
from table import Sample

sys.path.append(str(HERE.parent))

from tests import services

TASKS, PUBLISH = "tasks", "tasks-publish"
ROWS = (TASKS, PUBLISH)
PROGRAMS = HERE / "tasks"
QUEUES = 8
PACKAGES = (
    *("celery[redis]==5.7.0", "dramatiq[redis]==2.2.1", "faststream[redis,cli]==0.7.8", "redis==8.1.0", "hiredis==3.5.0"),
    *("orjson==3.13.0", "uvloop==0.23.0"),  # as Roquet has them: FastStream uses them where they are
)
PATIENCE_S = 180.0
EVERY_S = 0.005
SETTLE_S = 0.3
WARM = 500
POLLS_S = 1.5  # Celery asks Redis for so long at most, and the others shorter: then no request of a stopped worker waits there


@dataclass(frozen=True)
class Side:
    """One system with one setting."""

    kind: str
    title: str
    module: str
    worker: tuple[str, ...]
    """Its command, after `python -m`."""
    form: str = ""
    in_flight: int = 1
    """Publishes at a time."""
    settings: tuple[tuple[str, str], ...] = ()
    times: int = 1
    """So many times the tasks of the others."""

    @property
    def ours(self) -> bool:
        return self.module == "roquet_tasks"


ROQUET_WORKER = ("roquet", "run", "roquet_tasks:app")
CELERY_WORKER = ("celery", "-A", "celery_tasks", "worker")
CELERY_QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
DRAMATIQ_WORKER = ("dramatiq", "dramatiq_tasks")
DRAMATIQ_PREFETCH = (("dramatiq_queue_prefetch", "256"),)
FASTSTREAM_WORKER = ("faststream", "run", "faststream_tasks:app")
SIDES = (
    Side(ROQUET, "Roquet, async handler, defaults", "roquet_tasks", ROQUET_WORKER, "async", 64),
    Side("roquet-long", "the same, ten times the tasks", "roquet_tasks", ROQUET_WORKER, "async", 64, times=10),
    Side("roquet-def", "Roquet, plain def (threads), defaults", "roquet_tasks", ROQUET_WORKER, "thread"),
    Side("roquet-batch", "Roquet, async handler, batch=32", "roquet_tasks", ROQUET_WORKER, "batch", 64),
    Side("celery", "Celery, prefork, defaults", "celery_tasks", CELERY_WORKER),
    Side("celery-prefork", "Celery, prefork -c 2, prefetch 128", "celery_tasks", (*CELERY_WORKER, "-c", "2", *CELERY_QUIET), "many"),
    Side("celery-solo", "Celery, -P solo, prefetch 128", "celery_tasks", (*CELERY_WORKER, "-P", "solo", *CELERY_QUIET), "many"),
    Side("dramatiq", "dramatiq, defaults", "dramatiq_tasks", DRAMATIQ_WORKER),
    Side(
        *("dramatiq-one", "dramatiq, -p 1 -t 4, prefetch 256", "dramatiq_tasks", (*DRAMATIQ_WORKER, "-p", "1", "-t", "4")),
        settings=DRAMATIQ_PREFETCH,
    ),
    Side("faststream", "FastStream, Redis list (no acknowledgement)", "faststream_tasks", FASTSTREAM_WORKER, "list", 64),
    Side("faststream-stream", "FastStream, Redis stream, group, 100 a read", "faststream_tasks", FASTSTREAM_WORKER, "stream"),
)


@dataclass(frozen=True)
class Outcome:
    """One round."""

    published: Sample
    done: Sample
    first_s: float
    """From the start of the worker to its first task."""


# ---------------------------------------------------------------- the other systems


def others_python() -> Path:
    """The Python of the environment with the other systems, made if it is not there. Raises RuntimeError."""
    digest = hashlib.sha256("\n".join((sys.version, *PACKAGES)).encode()).hexdigest()[:12]
    target = apache.cache_dir() / f"tasks-{digest}"
    complete = target / "complete"
    with open(apache.cache_dir() / "tasks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(target, ignore_errors=True)
            venv.create(target, with_pip=True)
            install = [str(target / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES]
            result = subprocess.run(install, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise RuntimeError(f"pip could not install {', '.join(PACKAGES)}: {services.last_line(result.stderr)}")
            complete.touch()
    return target / "bin" / "python"


def ask_redis(port: int, word: str) -> bytes:
    with socket.create_connection((services.HOST, port), timeout=PATIENCE_S) as line:
        line.sendall(f"*1\r\n${len(word)}\r\n{word}\r\n".encode())
        return line.recv(1024)


# ---------------------------------------------------------------- one round


@dataclass
class Place:
    """What all rounds share. `redis` and `others` are None where they could not be had."""

    running: Running
    redis: services.Server | None
    others: Path | None
    directory: Path
    rounds: int = 0

    def round(self, side: Side, count: int) -> Outcome:
        self.rounds += 1
        count *= side.times
        queue = f"tasks-{self.rounds}"
        if side.ours:
            python, server = sys.executable, self.running.namesrv
            self.running.create_topic(queue, QUEUES)
            apache.wait_until(lambda: self._known(queue), f"the route of {queue}", timeout_s=40.0)
        else:
            assert self.redis is not None
            assert self.others is not None
            python, server = str(self.others), self.redis.url()
            if ask_redis(self.redis.port, "FLUSHALL") != b"+OK\r\n":
                raise RuntimeError("Redis did not empty itself")
        marks = self.directory / f"{queue}.marks"
        marks.write_bytes(bytes(WARM + count))
        environment = {
            **os.environ, "PYTHONPATH": f"{PROGRAMS}:{HERE.parent / 'src'}" if side.ours else str(PROGRAMS), "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(HERE.parent / "build" / "bytecode"), "TASKS_FIRST": "0", "TASKS_LAST": str(WARM),
            "TASKS_SERVER": server, "TASKS_QUEUE": queue, "TASKS_FORM": side.form, "TASKS_IN_FLIGHT": str(side.in_flight),
            "TASKS_MARKS": str(marks), **dict(side.settings),
        }  # fmt: skip
        self._publish(side, python, environment)
        began = time.perf_counter()
        with (
            marks.open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as ran,
            started([python, "-m", *side.worker], environment, self.directory, side.kind) as worker,
        ):
            worker.wait(lambda: any(ran[:WARM]), "the first task")
            first_s = time.perf_counter() - began
            worker.wait(lambda: 0 not in ran[:WARM], f"{WARM} tasks to warm up")
            time.sleep(SETTLE_S)
            worker.signal(signal.SIGSTOP)
            time.sleep(POLLS_S)
            published = self._publish(side, python, environment | {"TASKS_FIRST": str(WARM), "TASKS_LAST": str(WARM + count)})
            if any(ran[WARM:]):
                raise RuntimeError("a task ran while the worker was stopped")
            cpu, own = self.server_cpu(side), worker.cpu()
            began = time.perf_counter()
            worker.signal(signal.SIGCONT)
            worker.wait(lambda: 0 not in ran[WARM:], f"{count:,} tasks")
            seconds = time.perf_counter() - began
            time.sleep(SETTLE_S)
            done = Sample(count, seconds, self.server_cpu(side) - cpu, worker.cpu() - own)
            worker.stop()  # then nothing comes any more
            if wrong := WARM + count - ran[:].count(1):
                raise RuntimeError(f"{wrong:,} of {WARM + count:,} tasks did not run exactly once")
        marks.unlink()
        return Outcome(published, done, first_s)

    def _known(self, topic: str) -> bool:
        with Admin(self.running.namesrv) as admin:
            return admin.has_route(topic, 1)

    def server_cpu(self, side: Side) -> float:
        if side.ours:
            return self.running.cpu()
        assert self.redis is not None
        return cpu_seconds(self.redis.pid)

    def _publish(self, side: Side, python: str, environment: dict[str, str]) -> Sample:
        cpu = self.server_cpu(side)
        command = [python, str(PROGRAMS / f"{side.module}.py")]
        try:
            result = subprocess.run(
                command, env=environment, cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the tasks were not published within {PATIENCE_S:.0f} s") from None
        if result.returncode != 0:
            raise RuntimeError(f"the tasks could not be published: {services.last_line(result.stderr)}")
        told = json.loads(result.stdout)
        time.sleep(SETTLE_S)
        count = int(environment["TASKS_LAST"]) - int(environment["TASKS_FIRST"])
        return Sample(count, told["seconds"], self.server_cpu(side) - cpu, told["cpu_seconds"])


@dataclass
class Worker:
    """One that was started, in a process group of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def signal(self, which: signal.Signals) -> None:
        """To all its processes."""
        os.killpg(self.process.pid, which)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.perf_counter() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None:
                raise RuntimeError(f"the worker ended by itself with {self.process.returncode}: {self.log.read_text()[-600:]}")
            if time.perf_counter() > until:
                raise RuntimeError(f"{what} had not run after {PATIENCE_S:.0f} s: {self.log.read_text()[-600:]}")
            time.sleep(EVERY_S)

    def stop(self) -> None:
        """As its users stop it."""
        if self.process.poll() is not None:
            return
        self.signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(30.0)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def started(command: list[str], environment: dict[str, str], directory: Path, name: str) -> Iterator[Worker]:
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    worker = Worker(process, log)
    try:
        yield worker
    finally:
        worker.stop()


# ---------------------------------------------------------------- all of them


@contextlib.contextmanager
def place(launcher: Launcher, directory: Path, alone: bool) -> Iterator[tuple[Place, str]]:
    """The servers, and why the other systems are missing, or "". `alone`: only Roquet is wanted."""
    directory.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        others, redis, problem = None, None, ""
        if not alone:
            try:
                others = others_python()
                redis = stack.enter_context(services.running("redis"))
            except (OSError, RuntimeError, subprocess.SubprocessError, services.NoService) as error:
                problem = str(error)
        running = stack.enter_context(launcher.pair(ROQUET, directory / "server", kill=True))
        yield Place(running, redis, others, directory), problem
