"""Real `roquet` processes for tests: started, watched line by line, and ended.

They are forked by a process that has imported everything already (tests/process/nursery.py), which saves 0.2 to 0.4 s of CPU each.
What is about the interpreter itself asks for one of its own.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.process.programs import Program, shared_nursery

PATIENCE_S = 600.0


def of_ours(number: int) -> Path:
    """A file that this process has open, as another one can open it."""
    return Path(f"/proc/{os.getpid()}/fd/{number}")


def run(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command, until it has ended."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given = dict(os.environ if env is None else env)
        place = cwd or Path.cwd()
        program = shared_nursery().begin(arguments, of_ours(output.fileno()), of_ours(errors.fileno()), env=given, cwd=place)
        code = program.end()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read().decode(), errors.read().decode())


class Forked:
    """As much of subprocess.Popen as is needed here."""

    def __init__(self, arguments: tuple[str, ...], cwd: Path | None) -> None:
        mine, its = os.pipe()
        self.stdout: IO[str] = os.fdopen(mine, encoding="utf-8")
        self._program: Program = shared_nursery().begin(
            arguments, of_ours(its), env={**os.environ, "PYTHONUNBUFFERED": "1"}, cwd=cwd or Path.cwd()
        )
        os.close(its)
        self.pid = self._program.pid

    def poll(self) -> int | None:
        return None if self._program.is_alive() else self._program.end()

    def wait(self, timeout: float = PATIENCE_S) -> int:
        return self._program.end(timeout_s=timeout)

    def send_signal(self, number: signal.Signals) -> None:
        if self._program.is_alive():
            self._program.send_signal(number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def interpreter(arguments: tuple[str, ...], cwd: Path | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "roquet", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


class Roquet:
    """One `roquet` process. Its lines are read by a thread, so that waiting for one has a deadline. `anew`: in an interpreter that
    reads its environment and imports everything itself."""

    def __init__(self, *arguments: str, cwd: Path | None = None, anew: bool = False) -> None:
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self.process: Forked | subprocess.Popen[str] = interpreter(arguments, cwd) if anew else Forked(arguments, cwd)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arrived.put(line.rstrip("\n"))
        self._arrived.put(None)

    def wait_for(self, pattern: str, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """The first line from now on that holds the pattern."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {pattern!r} within {timeout_s} s; there were:\n" + "\n".join(self.lines)) from None
            if line is None:
                raise AssertionError(
                    f"it ended ({self.process.wait()}) without a line with {pattern!r}; there were:\n" + "\n".join(self.lines)
                )
            self.lines.append(line)
            found = re.search(pattern, line)
            if found:
                return found

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Ask it to stop and wait; the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until it ends by itself; the exit code. Past the deadline it is killed and the test fails."""
        try:
            return self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join(PATIENCE_S)
            while (line := self._arrived.get()) is not None:
                self.lines.append(line)
            assert self.process.stdout is not None
            self.process.stdout.close()

    def __enter__(self) -> Roquet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.end()


def up(data: Path, *more: str) -> tuple[Roquet, str]:
    """`roquet up` on free ports, and its name server's address."""
    server = Roquet("up", "--data", str(data), "--namesrv-port", "0", "--broker-port", "0", *more)
    try:
        address = server.wait_for(r"name server\s+(\S+:\d+)")[1]
        server.wait_for("Ctrl-C stops it")
    except BaseException:
        server.end()
        raise
    return server, address


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z" if Path("/proc/self").exists() else True


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)
