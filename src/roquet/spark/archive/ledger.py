"""Commits of an archive on a file system: the one place that decides what is in it, and what makes it exact after a crash.

    ARCHIVE/_roquet/archive.json                        its id; created once
    ARCHIVE/_roquet/commits/00000000000000000012.json   one commit each, created and never changed
    ARCHIVE/_roquet/checkpoint.json                     their fold, now and then; may be deleted
    ARCHIVE/_roquet/lock                                held by the writer
    ARCHIVE/_staging/<number>-<run>/part-….tmp          data of a commit that is being made
    ARCHIVE/topic=orders/date=2026-11-15/part-….parquet

Order of a batch: (1) tasks write and fsync files into staging; (2) the driver fsyncs that directory; (3) the commit is
written beside its place, fsynced and linked to its name, which fails when the name exists; (4) files it replaces are
deleted; (5) its own files are renamed to where readers look; (6) the staging directory is removed.

Killed at any moment, and what the next open() does:
    in (1) or (2)       no commit has that number: the staging directory is removed. The offsets are the old ones, so the
                        batch is read again. Files of tasks that were retried go the same way.
    in (3), unlinked    as before; the temporary file is removed.
    in (3), linked      the batch counts. Its files are still in staging, where `locate` finds them; open() does (4) to (6).
    in (4) or (5)       the same: every step may be done again. A file that is already renamed is left alone.
    in (6)              all files are in their places; the rest of the directory is removed.
A reader of the directories alone sees rows missing between (3) and (5), and of a compaction between (4) and (5); it never
sees a row twice, because old files go before new ones come. A reader through the commits is exact at every moment.

Two writers: the lock sends the second away. Where locks do not work (some network file systems, a writer that was cut off
and comes back), the link does: of two commits with one number one fails. Before open() removes staged data that is not
its own it commits a fence, so the owner of that data, should it still live, loses its number and cannot commit files
that are gone.

Needs: links, atomic rename and fsync; one file system for the whole archive, the same for the driver and all executors.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from roquet.errors import Damaged
from roquet.message import MessageQueue
from roquet.spark.archive.manifest import (
    ArchiveError,
    Commit,
    File,
    Gap,
    Kind,
    State,
    commit_from_json,
    commit_to_json,
    state_from_json,
    state_to_json,
)

Fault = Callable[[str], None]
"""Called at each point where a crash would be interesting; a test dies there."""

COMMITS_PER_CHECKPOINT = 100
NAME = re.compile(r"\d{20}\.json")


def no_fault(_point: str) -> None:
    return


class ArchiveBusy(ArchiveError):
    """Another writer has the archive."""


class Ledger:
    """The writer's hold on an archive, from open() to close()."""

    def __init__(self, root: Path, archive_id: str, state: State, run: str, lock: int, fault: Fault) -> None:
        self.root, self.id, self.state, self.run = root, archive_id, state, run
        self._lock = lock
        self._fault = fault

    @classmethod
    def open(cls, root: str | Path, *, fault: Fault = no_fault) -> Ledger:
        """Creates it when there is none; finishes what a crash left. Raises ArchiveBusy, Damaged."""
        root = Path(root)
        head = create(root)
        lock = take_lock(root)
        try:
            ledger = cls(root, head["id"], load(root), f"{time.time_ns():x}{uuid.uuid4().hex[:8]}", lock, fault)
            ledger._recover()
        except BaseException:
            os.close(lock)
            raise
        return ledger

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def number(self) -> int:
        """Of the next commit."""
        return self.state.number + 1

    @property
    def staging(self) -> Path:
        """Of the next commit. See `stage`."""
        return self.root / "_staging" / f"{self.number}-{self.run}"

    def stage(self) -> Path:
        """An empty directory for the next commit's files; what a failed attempt left there is removed."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(parents=True)
        sync_directory(self.staging.parent)
        self._fault("staged")
        return self.staging

    def discard(self) -> None:
        """After an error: what was staged goes, so that a full disk has room again. Unless its commit was made, or may have been."""
        if not commit_path(self.root, self.number).exists():
            shutil.rmtree(self.staging, ignore_errors=True)

    def commit(
        self,
        kind: Kind,
        files: Iterable[File] = (),
        *,
        removed: Iterable[str] = (),
        ranges: Iterable[tuple[MessageQueue, int, int]] = (),
        gaps: Iterable[Gap] = (),
        filtered: bool = False,
        columns: tuple[str, ...] = (),
        properties: tuple[tuple[str, str], ...] = (),
        compression: str = "",
    ) -> Commit:
        """All of it counts, or nothing. Raises ArchiveBusy when another writer took the number."""
        commit = Commit(
            self.number, kind, self.run, time.time_ns() // 1_000_000, tuple(files), tuple(removed), tuple(ranges), tuple(gaps), filtered,
            columns, properties, compression,
        )  # fmt: skip
        after = self.state.copy()
        after.apply(commit)
        for file in commit.files:
            if not staged_path(self.staging, file.path).exists():
                raise ArchiveError(f"{file.path} is not in {self.staging}; do all executors see the archive's directory?")
        if commit.files:
            sync_directory(self.staging)
        self._fault("before commit")
        if not create_once(commit_path(self.root, commit.number), commit_to_json(commit), self._fault):
            raise ArchiveBusy(f"commit {commit.number} of {self.root} was made by another writer; run again to go on from there")
        self._fault("committed")
        self.state = after
        self._finish(commit)
        if commit.number % COMMITS_PER_CHECKPOINT == COMMITS_PER_CHECKPOINT - 1:
            replace_file(self.root / "_roquet" / "checkpoint.json", state_to_json(self.state))
        return commit

    def _finish(self, commit: Commit) -> None:
        """(4) to (6) of the head. May be done again, from any point."""
        staging = self.root / "_staging" / f"{commit.number}-{commit.run}"
        directories: set[Path] = set()
        for path in commit.removed:
            (self.root / path).unlink(missing_ok=True)
            directories.add((self.root / path).parent)
            self._fault("removed")
        for file in commit.files:
            target, staged = self.root / file.path, staged_path(staging, file.path)
            if not target.parent.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                directories.update((target.parent.parent, self.root))
            directories.add(target.parent)
            if file.path not in self.state.files:
                continue
            with contextlib.suppress(FileNotFoundError):
                os.replace(staged, target)
            self._fault("renamed")
            if not target.exists():
                raise Damaged(f"{target} was committed with {file.rows:,} rows and is gone; restore it from a copy")
        for directory in directories:
            sync_directory(directory)
        self._fault("before cleaning")
        shutil.rmtree(staging, ignore_errors=True)
        self._fault("cleaned")

    def _recover(self) -> None:
        for left in (self.root / "_roquet" / "commits").glob(".*"):
            left.unlink(missing_ok=True)
        base = self.root / "_staging"
        strangers: list[Path] = []
        for name in sorted(os.listdir(base), key=lambda name: int(name.split("-")[0]) if name.split("-")[0].isdigit() else -1):
            commit = self._commit_of(name)
            if commit is None:
                strangers.append(base / name)
            else:
                self._finish(commit)
        if strangers:
            self._fault("before fence")
            self.commit("fence")
            for stranger in strangers:
                shutil.rmtree(stranger, ignore_errors=True)
                self._fault("swept")

    def _commit_of(self, name: str) -> Commit | None:
        """The commit that a staging directory belongs to, when it was made."""
        number, _, run = name.partition("-")
        if not number.isdigit() or int(number) > self.state.number:
            return None
        path = commit_path(self.root, int(number))
        commit = commit_from_json(path.read_bytes(), str(path))
        return commit if commit.run == run else None


def create(root: Path) -> dict[str, Any]:
    """Its directories and its id; what is there already stays. Raises ArchiveError when something else lives there."""
    head = root / "_roquet" / "archive.json"
    if not head.exists():
        if root.exists() and any(not name.startswith(("_", ".")) for name in os.listdir(root)):
            raise ArchiveError(f"{root} holds other files and is not an archive; give an empty or a new directory")
        for directory in (root / "_roquet" / "commits", root / "_roquet" / "replays", root / "_staging"):
            directory.mkdir(parents=True, exist_ok=True)
        create_once(head, json.dumps({"format": 1, "id": uuid.uuid4().hex, "kind": "parquet"}).encode())
    (root / "_staging").mkdir(exist_ok=True)
    return read_head(root)


def read_head(root: Path) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads((root / "_roquet" / "archive.json").read_bytes())
        if head["format"] != 1 or head["kind"] != "parquet":
            raise ArchiveError(f"{root} is an archive of another kind: {head}")
        return head
    except FileNotFoundError:
        raise ArchiveError(f"{root} is not an archive: it has no _roquet/archive.json") from None
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{root}/_roquet/archive.json cannot be read; restore it from a copy") from None


def load(root: Path, *, whole: bool = False) -> State:
    """What the archive holds, from its last checkpoint and the commits after it; `whole`: from the commits alone."""
    directory = root / "_roquet" / "commits"
    state = None
    if not whole:
        with contextlib.suppress(FileNotFoundError):
            state = state_from_json((root / "_roquet" / "checkpoint.json").read_bytes())
    state = state or State()
    try:
        names = sorted(name for name in os.listdir(directory) if NAME.fullmatch(name))
    except FileNotFoundError:
        raise ArchiveError(f"{root} is not an archive: it has no _roquet/commits") from None
    for name in names:
        if int(name[:20]) > state.number:
            state.apply(commit_from_json((directory / name).read_bytes(), str(directory / name)))
    return state


def locate(root: Path, file: File) -> Path:
    """Where a committed file is now: in its place, or still in staging because the writer died after the commit."""
    place = root / file.path
    if place.exists():
        return place
    name = staged_path(Path(), file.path).name
    return next(iter((root / "_staging").glob(f"*/{name}")), place)


def commit_path(root: Path, number: int) -> Path:
    return root / "_roquet" / "commits" / f"{number:020d}.json"


def staged_path(staging: Path, path: str) -> Path:
    """Not named .parquet, so that even a reader of `**/*.parquet` does not see it."""
    return staging / (PurePosixPath(path).stem + ".tmp")


def take_lock(root: Path) -> int:
    lock = os.open(root / "_roquet" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ArchiveBusy(f"{root} is being written to by another process; wait for it, or stop it") from None
    return lock


def create_once(path: Path, data: bytes, fault: Fault = no_fault) -> bool:
    """The whole file under this name, durable; False when the name is taken."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_synced(temporary, data)
        fault("commit written")
        os.link(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            return False
        raise
    fault("linked")
    temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def replace_file(path: Path, data: bytes) -> None:
    """The old content or the new, whatever happens."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_synced(temporary, data)
    os.replace(temporary, path)
    sync_directory(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
