"""Live servers for tests: name servers and brokers as processes of their own, watched, measured and ended by their id."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from roquet.cli.shards import free_ports

PATIENCE_S = 600.0
"""Deadline of what must happen at all; the machine may be busy."""

SMALL_FILES = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}


class Nursery:
    """The parent of all servers of a test run: forks them without importing anything again."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        script = Path(__file__).with_name("nursery.py")
        # Threads that numerical libraries start would not survive the fork.
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **(environment or {})}
        self._process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self._answer()
        self._numbers = itertools.count()

    def start(self, argv: list[str], directory: Path, files: int | None = None) -> Program:
        return self.begin(argv, directory / f"output-{next(self._numbers)}.txt", files=files)

    def begin(
        self,
        argv: Sequence[str],
        output: Path,
        errors: Path | None = None,
        *,
        files: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Program:
        """`errors`: where they go, if not to its output. `env`, `cwd`: if not those that the nursery was started with."""
        question = {
            "argv": argv,
            "output": str(output),
            "errors": errors and str(errors),
            "files": files,
            "env": env,
            "cwd": cwd and str(cwd),
        }
        return Program(self, self._ask(question)["pid"], output)

    def broker(self, directory: Path, settings: Mapping[str, str] | None = None, files: int | None = None) -> Broker:
        """A broker with its store in `directory`/store; it has booted when this returns. Started again, it keeps its port.
        `files`: how many it may have open."""
        broker = self.begin_broker(directory, settings, files)
        broker.program.wait_for("boot success")
        return broker

    def begin_broker(self, directory: Path, settings: Mapping[str, str] | None = None, files: int | None = None) -> Broker:
        """The same, and it is only about to boot."""
        port_file = directory / "port"
        if not port_file.exists():
            directory.mkdir(parents=True, exist_ok=True)
            port_file.write_text(str(free_ports(1, "127.0.0.1")[0]))
        port = int(port_file.read_text())
        values = {
            "listenPort": str(port),
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": str(directory / "store"),
            # Nobody is there: a broker must serve without a name server, and a test must not meet another's.
            "namesrvAddr": "127.0.0.1:9",
            "registerBrokerTimeoutMills": "100",
            "vipChannelEnable": "false",
        } | dict(settings or {})
        config = directory / "broker.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        program = self.start(["broker", "-c", str(config)], directory, files)
        return Broker(program, ("127.0.0.1", port), directory / "store")

    def name_server(self, directory: Path, settings: Mapping[str, str] | None = None) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "namesrv.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in ({"listenPort": "0"} | dict(settings or {})).items()))
        program = self.start(["namesrv", "-c", str(config), "--data", str(directory / "data")], directory)
        line = program.wait_for("boot success")
        host, _, port = line.rpartition(" ")[2].rpartition(":")
        return Server(program, (host, int(port)))

    def reap(self, pid: int) -> int:
        return self._ask({"reap": pid})["status"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()

    def _ask(self, question: Mapping[str, object]) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, int]:
        assert self._process.stdout is not None
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer


@functools.cache
def shared_nursery() -> Nursery:
    """For commands of any test; it ends with this process."""
    made = Nursery()
    atexit.register(made.close)
    return made


class Program:
    """One running command."""

    def __init__(self, nursery: Nursery, pid: int, output: Path) -> None:
        self.nursery = nursery
        self.pid = pid
        self.output = output
        self._ended = os.pidfd_open(pid)
        self.status: int | None = None

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def is_alive(self) -> bool:
        return self.status is None and not self._wait(0)

    def wait_for(self, words: str, timeout_s: float = PATIENCE_S) -> str:
        """The first line that holds these words."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._wait(0.005)
            for line in self.text.splitlines():
                if words in line:
                    return line
            assert not ended, f"it ended ({self.end()}) and never said {words!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {words!r} within {timeout_s} s:\n{self.text}"

    def send_signal(self, number: signal.Signals) -> None:
        if self.status is None:
            os.kill(self.pid, number)

    def end(self, number: signal.Signals | None = None, timeout_s: float = PATIENCE_S, after_s: float = 0) -> int:
        """Send it this signal, if any, and wait; its exit code, negative for a signal. Past the deadline it is killed.

        With `after_s` it may live so much longer before the signal comes.
        """
        if self.status is None:
            if number is not None and not (after_s and self._wait(after_s)):
                os.kill(self.pid, number)
            in_time = self._wait(timeout_s)
            if not in_time:
                os.kill(self.pid, signal.SIGKILL)
                self._wait(PATIENCE_S)
            self.status = self.nursery.reap(self.pid)
            os.close(self._ended)
            assert in_time, f"it did not end within {timeout_s} s:\n{self.text}"
        return self.status

    def _wait(self, timeout_s: float) -> bool:
        if self.status is not None:
            return True
        waiter = select.poll()
        waiter.register(self._ended, select.POLLIN)
        return bool(waiter.poll(timeout_s * 1_000))


class Server:
    """A program that listens. `with` ends it."""

    def __init__(self, program: Program, address: tuple[str, int]) -> None:
        self.program = program
        self.address = address

    @property
    def rss(self) -> int:
        """Anonymous resident memory in bytes: pages of files that are read come and go as the system likes."""
        for line in Path(f"/proc/{self.program.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1_024
        raise AssertionError(f"process {self.program.pid} is gone:\n{self.program.text}")

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used, as user and as system."""
        fields = Path(f"/proc/{self.program.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        return self.program.end(signal.SIGTERM)

    def kill(self) -> int:
        return self.program.end(signal.SIGKILL)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.stop()
        else:
            with contextlib.suppress(AssertionError):
                self.kill()


class Broker(Server):
    def __init__(self, program: Program, address: tuple[str, int], store: Path) -> None:
        super().__init__(program, address)
        self.store = store

    def __enter__(self) -> Broker:
        return self
