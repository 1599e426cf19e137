"""Files in a row: a byte range that only grows, kept as fixed-size files named by where they start.

    commitlog/00000000000000000000  00000000001073741824  00000000002147483648 ...

The commit log and every queue are such a row. A file is sparse until it is written, so a small disk can hold a broker;
a full disk is an OSError from `write`, never a signal.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections import OrderedDict

from roquet.errors import Damaged
from roquet.store.disk import Disk, DiskFile

log = logging.getLogger("roquet.store")


def file_name(base: int) -> str:
    return f"{base:020d}"


class OpenFiles:
    """The open files of a store, the longest unused closed first when there are too many.

    A file dropped here stays usable to whoever still holds it (a sync in the background), and closes with its last user. When the
    process has no descriptor left, some of these are closed: every one of them can be opened again.
    """

    def __init__(self, disk: Disk, limit: int = 4_096) -> None:
        self.disk = disk
        self.limit = limit
        self._files: OrderedDict[tuple[str, int | str], DiskFile] = OrderedDict()
        disk.when_short(self._close_some)

    def _close_some(self) -> bool:
        """The longest unused half of them, in whatever thread."""
        count = (len(self._files) + 1) // 2
        with contextlib.suppress(KeyError):
            for _ in range(count):
                self._files.popitem(last=False)
        return count > 0

    def get(self, directory: str, base: int | str, size: int | None = None) -> DiskFile:
        """The file of this row that starts at `base`, or of this name; with `size`, made when it is missing."""
        key = (directory, base)
        file = self._files.get(key)
        if file is None:
            name = base if isinstance(base, str) else file_name(base)
            file = self._files[key] = self.disk.open(f"{directory}/{name}", size=size)
            while len(self._files) > self.limit:
                self._files.popitem(last=False)
        else:
            try:  # noqa: SIM105  (every read comes here, and `suppress` costs as much as the rest)
                self._files.move_to_end(key)
            except KeyError:  # retention's look-ups in the background may drop it this instant
                pass
        return file

    def forget(self, directory: str, base: int | str) -> DiskFile | None:
        """It closes when nobody holds it any more, neither a reader nor the caller."""
        return self._files.pop((directory, base), None)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class Segments:
    """One row of files. `bases` is sorted; the last file is the one being written."""

    __slots__ = ("bases", "directory", "files", "new_since_sync", "size")

    def __init__(self, files: OpenFiles, directory: str, size: int) -> None:
        self.files = files
        self.directory = directory
        self.size = size
        self.bases: list[int] = []
        self.new_since_sync = False  # a file was created and its directory not synced yet

    def load(self, *, crashed: bool = False) -> None:
        """Find the files. A gap or a wrong size is somebody's mistake that guessing could make worse: it raises Damaged.

        `crashed`: an empty file, or a short last one, is no mistake. Power was lost while it was made, or cut behind its end.
        """
        disk = self.files.disk
        names = [name for name in disk.list(self.directory) if len(name) == 20 and name.isdigit()]
        bases = [int(name) for name in names]
        short: list[tuple[str, int]] = []
        for index, base in enumerate(bases):
            path = self.path(base)
            size = disk.size(path)
            last = index == len(bases) - 1
            if size < self.size and (size == 0 or last) and (crashed or (size == 0 and last and index > 0)):
                short.append((path, size))
            elif size != self.size:
                raise Damaged(
                    f"{path} has {size} bytes, files of this store are configured to have {self.size}. If the others have that, this one "
                    f"was cut: bring it back from a backup, or give it its length again (truncate -s {self.size}) and what it lost is "
                    "stepped over. Else set mappedFileSizeCommitLog / mappedFileSizeConsumeQueue as it was when the store was written"
                )
            if index and base != bases[index - 1] + self.size:
                raise Damaged(
                    f"{self.directory}: file {file_name(bases[index - 1] + self.size)} is missing before {file_name(base)}: "
                    "bring it back from a backup, or move the files before it away to go on without them"
                )
        # Nothing is written before every file is found to be right: who is refused finds all as it was.
        for path, size in short:
            log.warning("%s has %d bytes of %d: the power failed while its length changed; the rest is empty", path, size, self.size)
            disk.open(path, size=self.size).close()
        self.bases = bases

    @property
    def start(self) -> int:
        return self.bases[0] if self.bases else 0

    @property
    def stop(self) -> int:
        """Where the last file ends."""
        return self.bases[-1] + self.size if self.bases else 0

    def directory_of(self, base: int) -> str:
        """Where the file stands that starts here."""
        return self.directory

    def path(self, base: int) -> str:
        return f"{self.directory_of(base)}/{file_name(base)}"

    def base_of(self, offset: int) -> int | None:
        index = bisect.bisect_right(self.bases, offset) - 1
        if index < 0 or offset >= self.bases[index] + self.size:
            return None
        return self.bases[index]

    def base_behind(self, offset: int) -> int | None:
        """The first file that starts behind this offset."""
        index = bisect.bisect_right(self.bases, offset)
        return self.bases[index] if index < len(self.bases) else None

    def begin_behind(self, offset: int) -> int | None:
        """Where the first record stands, if nothing ever stood between this offset and it."""
        return None

    def file(self, base: int) -> DiskFile:
        return self.files.get(self.directory, base)

    def read(self, offset: int, size: int) -> bytes:
        """As many of these bytes as the file of this offset has; none when there is no such file. May block."""
        base = self.base_of(offset)
        return b"" if base is None else self.file(base).read(offset - base, size)

    def create(self, base: int) -> DiskFile:
        """The file that starts here, made if missing; files stay in a row without gaps."""
        if not self.bases:
            self.files.disk.make_dir(self.directory)
        file = self.files.get(self.directory, base, self.size)
        if not self.bases or base > self.bases[-1]:
            self.bases.append(base)
            self.new_since_sync = True
        return file

    def drop_first(self) -> None:
        """Remove the oldest file."""
        self._drop(self.bases.pop(0))

    def forget_first(self) -> str:
        """The oldest file is not part of the row any more. Returns its path: removing it is the caller's."""
        base = self.bases.pop(0)
        self.files.forget(self.directory_of(base), base)
        return self.path(base)

    def drop_from(self, offset: int) -> None:
        """Remove whole files that start at or after this offset; the file that holds it stays."""
        while self.bases and self.bases[-1] >= offset:
            self._drop(self.bases.pop())

    def move(self, base: int, path: str) -> None:
        """This file goes, and stays under another name."""
        self.files.disk.rename(self.path(base), path)
        self.files.forget(self.directory_of(base), base)
        self.bases.remove(base)

    def forget_all(self) -> list[DiskFile | None]:
        """The row is empty; its directory is the caller's to remove. Returns the files that were open: closing takes its time."""
        held = [self.files.forget(self.directory, base) for base in self.bases]
        self.bases = []
        return held

    def drop_all(self) -> None:
        """Newest first: should a crash bring some back, then the oldest, and what is missing shows at the end."""
        while self.bases:
            self._drop(self.bases.pop())
        self.files.disk.remove_tree(self.directory)

    def _drop(self, base: int) -> None:
        self.files.disk.remove(self.path(base))
        self.files.forget(self.directory_of(base), base)

    def __repr__(self) -> str:
        return f"<Segments {self.directory} {len(self.bases)} files, {self.start}..{self.stop}>"
