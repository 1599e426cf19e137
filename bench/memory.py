"""Memory that this machine really has, before anything is measured.

A virtual machine gives memory that nobody uses back to its host. Whoever touches such a page next waits for the host, and that is
charged to him: ten microseconds for 4 KiB where these benchmarks were written, instead of less than one. Which round pays for it is
chance; the side that writes more pays more. A server that has run for a day does not meet it. So all free memory is taken first,
as page cache, which the system gives to everybody else without asking the host: holes of a file are read, which needs no disk.

    python bench/memory.py          what new pages of a file cost here, before and after
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LEFT_FREE = 1 << 30
"""The system keeps so much free by itself, or gives it back at once."""
PIECE = 1 << 20
PAGE = 4096


def free_bytes() -> int:
    """0 where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemFree:")), 0)


class Held:
    """A file of holes whose pages the system keeps. It grows with every `fill`; who deletes it, gives them back."""

    def __init__(self, directory: Path, say: Callable[[str], None], wanted: bool = True) -> None:
        self._path, self._say, self._size, self._wanted = directory / "holes", say, 0, wanted

    def fill(self) -> int:
        """Take what is free. Returns how many bytes that were."""
        more, began = free_bytes() - LEFT_FREE, time.monotonic()
        if not self._wanted or more < LEFT_FREE:
            return 0
        piece = bytearray(PIECE)
        with self._path.open("ab") as file:
            file.truncate(self._size + more)
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._size)
            while file.readinto(piece):
                pass
        self._size += more
        self._say(
            f"took {more >> 20:,} MiB of free memory in {time.monotonic() - began:.0f} s, so that no round has to ask the host for it"
        )
        return more


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
