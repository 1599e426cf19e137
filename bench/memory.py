"""Memory that this machine really has, before anything is measured.

A virtual machine gives memory that nobody uses back to its host. Whoever touches such a page next waits for the host, and that is
charged to him: ten microseconds for 4 KiB where these benchmarks were written, instead of less than one. Which round pays for it is
chance; the side that writes more pays more. Where memory is in use all the time nobody meets it. So all free memory is taken first,
as page cache, which the system gives to everybody else without asking the host: holes of a file are read, which needs no disk.

    python bench/memory.py          what new pages of a file cost here, before and after (it writes half of the free memory)
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LEFT_FREE = 512 << 20
"""For what starts meanwhile. The system would free more by itself only when much less is left."""
MOST = 48 << 30
"""More than a run can touch."""
PIECE = 1 << 20
PAGE = 4096


def free_bytes() -> int:
    """0 where nobody says. A container has no more than its limit leaves."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemFree:")), 0)
    except OSError:
        return 0
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no limit is the word "max", or no such file
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return free


class Held:
    """A file of holes whose pages the system keeps. It grows with every `fill`; who deletes it, gives them back."""

    def __init__(self, directory: Path, say: Callable[[str], None], wanted: bool = True) -> None:
        self._path, self._say, self._size, self._wanted = directory / "holes", say, 0, wanted

    def fill(self) -> int:
        """Take what is free. Returns how many bytes that were."""
        before, began = free_bytes(), time.monotonic()
        more = min(before - LEFT_FREE, MOST - self._size)
        if not self._wanted or more < LEFT_FREE:
            return 0
        try:
            self._read(more)
        except OSError as error:
            self._wanted = False
            self._say(f"free memory could not be taken: {error}; rounds may have to ask the host for it")
            return 0
        taken = max(0, before - free_bytes())
        self._wanted = taken > more // 2  # else holes have no pages here, or somebody else takes them back
        outcome = "no round has to ask the host for it" if self._wanted else f"{more >> 20:,} were free, rounds may have to ask the host"
        self._say(f"took {taken >> 20:,} MiB of free memory in {time.monotonic() - began:.0f} s: {outcome}")
        return taken

    def _read(self, more: int) -> None:
        piece = bytearray(PIECE)
        with self._path.open("ab") as file:
            file.truncate(self._size + more)
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._size)
            while file.readinto(piece):
                pass
        self._size += more


def page_us(directory: Path, size: int) -> float:
    """What a new page of a file costs."""
    piece = os.urandom(PIECE)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        began = time.perf_counter()
        for _ in range(size // PIECE):
            file.write(piece)
        return (time.perf_counter() - began) / (size / PAGE) * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="roquet-bench-memory-") as directory:
        place = Path(directory)
        size = max(1 << 30, free_bytes() // 2)
        print(f"a new page of a file of {size >> 20:,} MiB: {page_us(place, size):.2f} us", flush=True)
        Held(place, print).fill()
        print(f"now: {page_us(place, size):.2f} us")


if __name__ == "__main__":
    main()
