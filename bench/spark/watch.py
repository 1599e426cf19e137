"""CPU time and memory of processes and of all that they started, from /proc."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")
EVERY_S = 0.2


def family(pid: int) -> list[int]:
    """The process and all that descend from it, whichever thread started them."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                children.setdefault(int(stat(int(entry))[1]), []).append(int(entry))
    found, at = [pid], 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found


def stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third (state) on: the second may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int) -> float:
    """User and system time of the family so far, children that have ended and were waited for included."""
    total = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            total += sum(map(int, stat(each)[11:15]))
    return total / TICKS


def anonymous_mib(pid: int) -> float:
    """RssAnon of the family: memory that is its own, not the page cache's."""
    total = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    total += int(line.split()[1])
    return total / 1024


class Peak:
    """The most anonymous memory that each of some families had at once during a `with` block, by their names."""

    def __init__(self, **pids: int) -> None:
        self.pids = pids
        self.mib = dict.fromkeys(pids, 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            for name, pid in self.pids.items():
                self.mib[name] = max(self.mib[name], anonymous_mib(pid))
            if self._over.wait(EVERY_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
