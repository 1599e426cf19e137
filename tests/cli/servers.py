"""Real `roquet` processes for tests: started, watched line by line, and ended."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

PATIENCE_S = 600.0


class Roquet:
    """One `roquet` process. Its lines are read by a thread, so that waiting for one has a deadline."""

    def __init__(self, *arguments: str, cwd: Path | None = None) -> None:
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "roquet", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=env,
        )
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
