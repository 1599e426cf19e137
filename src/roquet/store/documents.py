"""Metadata as small documents: one file each, replaced whole, with the last good one beside it.

    topics.json       the newest generation
    topics.json.bak   the one before it
    topics.json.tmp   one being written; never read

Java reads the first, then the second; so do we. A save writes and syncs the .tmp, moves the present generation to .bak and
the new one into its place. At every instant a whole generation stands under one of the two names, whatever was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from roquet.ports import Background
from roquet.store.disk import Disk, is_shortage

T = TypeVar("T")
Done = Callable[[Exception | None], None]
Snapshot = Callable[[], Callable[[], bytes]]
"""Called on the owner's thread when a save begins: takes what the table is now. What it returns makes the bytes, in the background."""


class Document:
    """One document. Its owner's thread calls everything; `save_later` lets the background do the writing."""

    def __init__(self, disk: Disk, path: str, size_max: int = 1 << 62) -> None:
        self.disk = disk
        self.path = path
        self.size_max = size_max
        """A longer file is not read."""
        self.warning = ""
        """What the last `load` met that a person should know; empty when all was well."""
        self._main_is_good = False  # known to parse, so worth keeping as .bak
        self.busy = False
        """A `save_later` is under way."""
        self._next: Snapshot | None = None
        self._next_done: list[Done] = []

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """The newest generation that `parse` takes (it raises for one that it does not), None when there is none.

        None with a `warning` means that files exist and none can be read: starting anew would overwrite them. Raises OSError when the
        process has no file left to open it with: there is nothing wrong with the newest generation then.
        """
        self.warning = ""
        self._main_is_good = False
        troubles: list[str] = []
        for path in (self.path, self.path + ".bak"):
            if not self.disk.exists(path):
                continue
            try:
                with closing(self.disk.open(path)) as file:
                    if (size := file.size()) > self.size_max:
                        raise ValueError(f"it has {size} bytes, limit is {self.size_max}")
                    data = file.read(0, size)
                if not data:
                    raise ValueError("it is empty")
                found = parse(data)
            except Exception as error:  # whatever a parser raises about bytes it cannot take
                if is_shortage(error):
                    raise
                troubles.append(f"{path} cannot be used ({type(error).__name__}: {error})")
                continue
            if path == self.path:
                self._main_is_good = True
            elif troubles:
                self.warning = f"{troubles[0]}; {path}, the generation before it, is used instead"
            else:
                self.warning = f"{self.path} is missing; {path}, the generation before it, is used instead"
            return found
        if troubles:
            self.warning = "; ".join(troubles) + "; restore one of them from a backup, or remove them to start anew"
        return None

    def save(self, data: bytes) -> None:
        """Make this the newest generation. May block. On OSError the present one stays."""
        if self.busy:
            raise RuntimeError(f"{self.path}: a save is under way in the background; wait for its `done`, or use save_later")
        self._replace(data)

    def save_later(self, data: bytes | Snapshot, background: Background, done: Done | None = None) -> None:
        """Save in the background, in the order of the calls; while one save is under way only the latest data waits.

        `done` is called once: with None when this data, or newer, is on disk, or with what went wrong.
        A large table is given as a snapshot: it is taken once for all calls that came while a save was under way.
        """
        self._next = (lambda: lambda: data) if isinstance(data, bytes) else data
        if done is not None:
            self._next_done.append(done)
        if not self.busy:
            self._start(background)

    def _start(self, background: Background) -> None:
        snapshot, dones = self._next, self._next_done
        assert snapshot is not None
        self._next, self._next_done = None, []
        self.busy = True

        def finished(result: Exception | None) -> None:
            self.busy = False
            if self._next is not None:
                self._start(background)
            for done in dones:
                done(result)

        encode = snapshot()
        background.run(lambda: self._replace(encode()), finished)

    def _replace(self, data: bytes) -> None:
        if not data:
            raise ValueError(f"{self.path}: an empty document would read as a damaged one")
        fresh = self.path + ".tmp"
        self.disk.remove(fresh)  # a new file: one whose sync once failed may never tell again
        with closing(self.disk.open(fresh, size=0)) as file:
            file.write(0, data)
            file.sync()
        # A damaged main must not take the place of a good .bak. Without the first rename the second alone replaces it.
        if self._main_is_good and self.disk.exists(self.path):
            self.disk.rename(self.path, self.path + ".bak")
        self.disk.rename(fresh, self.path)
        self._main_is_good = True
        self.disk.sync_dir(self.path.rpartition("/")[0] or ".")
