"""Whether files have changed, without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable

Looks = tuple[object, ...]


def looks(names: Iterable[str]) -> Looks:
    """What changes when a file does."""
    return tuple(look_of(name) for name in names)


def look_of(name: str) -> object:
    try:
        found = os.stat(name)
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino
