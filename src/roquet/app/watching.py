"""Which source files changed: for `roquet run --reload`. Times and sizes are looked at twice a second; that needs no library, and works on
every file system."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

LOOK_S = 0.5
FILES_MAX = 50_000
"""More are not looked at: that is no project any more."""
LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages"})

Snapshot = dict[str, tuple[int, int]]
"""Time of change in ns, and size, by path."""


def snapshot(directories: Iterable[str]) -> Snapshot:
    """Of Python's source files, without hidden directories and virtual environments."""
    found: Snapshot = {}
    for top in directories:
        for place, inner, names in os.walk(top):
            inner[:] = [name for name in inner if name not in LEFT_OUT and not name.startswith(".") and not is_environment(place, name)]
            for name in names:
                if name.endswith(".py") and len(found) < FILES_MAX:
                    path = os.path.join(place, name)
                    try:
                        about = os.stat(path)
                    except OSError:  # gone a moment ago
                        continue
                    found[path] = (about.st_mtime_ns, about.st_size)
    return found


def is_environment(place: str, name: str) -> bool:
    return os.path.exists(os.path.join(place, name, "pyvenv.cfg"))


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Paths that are new, gone or different, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class Watch:
    """What changed since it was made, or since it was asked the last time."""

    def __init__(self, directories: Iterable[str]) -> None:
        self.directories = [os.path.abspath(one) for one in directories]
        self._seen = snapshot(self.directories)

    async def change(self) -> list[str]:
        """Wait for one, and until a moment has passed without another: editors write in several steps."""
        found: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_S)
            now = await asyncio.to_thread(snapshot, self.directories)
            more = changed(self._seen, now)
            self._seen = now
            found.update(more)
            if found and not more:
                return sorted(os.path.relpath(path) for path in found)
