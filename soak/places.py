"""Where a run keeps its files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def place(keep: bool) -> Iterator[Path]:
    """A new directory, removed in the end unless it is kept."""
    directory = Path(tempfile.mkdtemp(prefix="roquet-soak-"))
    try:
        yield directory
    finally:
        if keep:
            print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
