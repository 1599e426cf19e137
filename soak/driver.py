"""The running driver as the harness sees it: its processes, found by their session, and its death."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from soak.program import Orders

ROOT = Path(__file__).resolve().parents[1]
LOG_TAIL = 3_000


class Driver:
    """`python -m soak.program`, and with Spark its JVM and its Python workers: one session, whatever groups they make."""

    def __init__(self, mode: str, orders: Orders, log: Path, environment: dict[str, str]) -> None:
        self.mode, self.log = mode, log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "soak.program", orders.text()],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """The driver and its JVM. Workers are left to find out, as when a driver dies on a machine that lives on."""
        for pid in [self.process.pid, *(pid for pid in members(self.process.pid) if "java" in command_line(pid).partition(" ")[0])]:
            end(pid)
        self.process.wait()

    def workers(self) -> list[int]:
        """Python processes in which tasks run: children of pyspark's daemon."""
        daemons = {pid for pid in members(self.process.pid) if "pyspark.daemon" in command_line(pid)}
        return sorted(pid for pid in daemons if parent(pid) in daemons)

    def sweep(self) -> None:
        """All that is left of it."""
        self.kill()
        for pid in members(self.process.pid):
            end(pid)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL:]


def writes(pid: int, below: Path) -> bool:
    """Whether it has a file open there."""
    with contextlib.suppress(OSError):  # it, or the file, went meanwhile
        return any(os.readlink(entry).startswith(f"{below}/") for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and field(int(entry.name), 3) == session:
            found.append(int(entry.name))
    return found


def parent(pid: int) -> int:
    return field(pid, 1)


def field(pid: int, at: int) -> int:
    """A number of /proc/PID/stat, counted from the state on; -1 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[at])
    except (OSError, IndexError):
        return -1


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
