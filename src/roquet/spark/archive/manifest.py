"""What an archive's commits say, as values: files, offsets, gaps, columns. Pure.

An archive is the fold of its commits. Each commit is one JSON file with a number; a number is given once. A commit of
kind "append" carries the files of one batch AND the offsets up to which every queue is now archived, so the two cannot
disagree. "replace" carries files that stand in for others (compaction). "fence" carries nothing: it takes a number, so
that a writer who was thought dead cannot commit any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from roquet.errors import ClientError, Damaged
from roquet.message import MessageQueue
from roquet.spark.offsets import Offsets, flat, nested

FORMAT = 1
Kind = Literal["append", "replace", "fence"]


class ArchiveError(ClientError):
    """An archive cannot do what it was asked for; the text says what to do."""


class Span(NamedTuple):
    """A stretch of one queue, start <= offset < stop. In a file: `rows` of it are there (fewer with a filter)."""

    broker: str
    queue_id: int
    start: int
    stop: int
    rows: int


class Gap(NamedTuple):
    """Messages that retention removed before they were archived; somebody allowed that with --skip-lost."""

    topic: str
    broker: str
    queue_id: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file of one topic and one date."""

    path: str
    """Below the archive, with forward slashes: topic=orders/date=2026-11-15/part-….parquet."""
    topic: str
    date: str
    rows: int
    bytes: int
    groups: int
    crc: int
    """CRC-32 of all its bytes."""
    first_ms: int
    last_ms: int
    """Store times of its oldest and newest message."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    number: int
    kind: Kind
    run: str
    """Who wrote it; names its staging directory together with the number."""
    at_ms: int
    files: tuple[File, ...] = ()
    removed: tuple[str, ...] = ()
    ranges: tuple[tuple[MessageQueue, int, int], ...] = ()
    """What an append read: of each queue, start and stop."""
    gaps: tuple[Gap, ...] = ()
    filtered: bool = False
    """Whether a tag or SQL filter left rows out, so that offsets have holes."""
    columns: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    """(property, type) with a column of its own."""
    compression: str = ""
    """Of its files; "" in commits of a Roquet that knew zstd alone."""


@dataclass(slots=True)
class State:
    """The fold of the commits up to `number` (-1: none yet)."""

    number: int = -1
    files: dict[str, File] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)
    """The first offset that was ever asked for, of each queue."""
    gaps: list[Gap] = field(default_factory=list)
    filtered: bool = False
    columns: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    compression: str = ""
    """Of the newest files: the next ones, and compacted ones, get the same unless told otherwise."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def apply(self, commit: Commit) -> None:
        """Raises Damaged when it does not follow: a number out of turn, an offset that was archived, a file that is not there."""
        if commit.number != self.number + 1:
            raise Damaged(f"commit {commit.number} follows commit {self.number}; commits between them are missing")
        for gap in commit.gaps:
            self._advance(commit, MessageQueue(gap.topic, gap.broker, gap.queue_id), gap.start, gap.stop)
        for queue, start, stop in commit.ranges:
            self._advance(commit, queue, start, stop)
        for path in commit.removed:
            if self.files.pop(path, None) is None:
                raise Damaged(f"commit {commit.number} replaces {path}, which is not in the archive")
        for file in commit.files:
            if file.path in self.files:
                raise Damaged(f"commit {commit.number} adds {file.path} a second time")
            self.files[file.path] = file
        self.gaps.extend(commit.gaps)
        if commit.kind == "append":
            self.filtered |= commit.filtered
            self.columns, self.properties = commit.columns, commit.properties
            self.compression = commit.compression
        self.number = commit.number

    def _advance(self, commit: Commit, queue: MessageQueue, start: int, stop: int) -> None:
        reached = self.offsets.get(queue, start)
        if reached != start or stop < start:
            where = f"{queue.topic}/{queue.queue_id} on {queue.broker_name}"
            raise Damaged(f"commit {commit.number} takes {where} from {start} to {stop}, but the archive stands at {reached}")
        self.starts.setdefault(queue, start)
        self.offsets[queue] = stop

    def copy(self) -> State:
        return replace(self, files=dict(self.files), offsets=dict(self.offsets), starts=dict(self.starts), gaps=list(self.gaps))


def partition(topic: str, date: str) -> str:
    """The directory of a topic's day, as Spark and Arrow read it back: %RETRY%g -> topic=%25RETRY%25g."""
    return f"topic={quote(topic, safe='')}/date={date}"


def evolved(
    state: State, columns: tuple[str, ...], properties: Iterable[tuple[str, str]]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The columns of an archive's next files: those it had, and what is added. Raises ArchiveError for a changed type."""
    if state.columns:
        columns = state.columns + tuple(name for name in columns if name not in state.columns)
    known = dict(state.properties)
    spelled = {name.lower(): name for name in (*columns, *known)}
    for name, kind in properties:
        if known.get(name, kind) != kind:
            was = known[name]
            raise ArchiveError(f"property {name} is {was} in this archive and cannot become {kind}; give it as {name}:{was}")
        other = spelled.setdefault(name.lower(), name)
        if other != name or name in columns:
            raise ArchiveError(f"property {name} would make a column beside {other}, and names that differ in case alone clash in SQL")
        known[name] = kind
    return columns, tuple(known.items())


def commit_to_json(commit: Commit) -> bytes:
    value: dict[str, Any] = {
        "format": FORMAT,
        "number": commit.number,
        "kind": commit.kind,
        "run": commit.run,
        "at_ms": commit.at_ms,
        "from": nested({queue: start for queue, start, _ in commit.ranges}),
        "offsets": nested({queue: stop for queue, _, stop in commit.ranges}),
        "gaps": [list(gap) for gap in commit.gaps],
        "filtered": commit.filtered,
        "columns": list(commit.columns),
        "properties": [list(pair) for pair in commit.properties],
        "compression": commit.compression,
        "removed": list(commit.removed),
        "files": [file_to_json(file) for file in commit.files],
    }
    return json.dumps(value, separators=(",", ":")).encode()


def commit_from_json(data: bytes, name: str) -> Commit:
    """Raises Damaged with the file's name when it is not a commit of ours."""
    try:
        value = json.loads(data)
        starts, stops = flat(value["from"]), flat(value["offsets"])
        if value["format"] != FORMAT:
            raise Damaged(f"{name} has format {value['format']}, this Roquet knows {FORMAT}; read it with a newer one")
        return Commit(
            number=value["number"],
            kind=value["kind"],
            run=value["run"],
            at_ms=value["at_ms"],
            files=tuple(file_from_json(file) for file in value["files"]),
            removed=tuple(value["removed"]),
            ranges=tuple((queue, starts[queue], stop) for queue, stop in stops.items()),
            gaps=tuple(Gap(*gap) for gap in value["gaps"]),
            filtered=value["filtered"],
            columns=tuple(value["columns"]),
            properties=tuple((name, kind) for name, kind in value["properties"]),
            compression=value.get("compression", ""),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{name} is not a commit of an archive ({type(error).__name__}: {error}); restore it from a copy") from None


def file_to_json(file: File) -> dict[str, Any]:
    value = {name: getattr(file, name) for name in File.__slots__}
    value["spans"] = [list(span) for span in file.spans]
    return value


def file_from_json(value: dict[str, Any]) -> File:
    return File(**{**value, "spans": tuple(Span(*span) for span in value["spans"])})


def state_to_json(state: State) -> bytes:
    """A checkpoint: what all commits so far come to, so that a long archive opens without reading each."""
    value: dict[str, Any] = {
        "format": FORMAT,
        "number": state.number,
        "from": nested(state.starts),
        "offsets": nested(state.offsets),
        "gaps": [list(gap) for gap in state.gaps],
        "filtered": state.filtered,
        "columns": list(state.columns),
        "properties": [list(pair) for pair in state.properties],
        "compression": state.compression,
        "files": [file_to_json(file) for file in state.files.values()],
    }
    return json.dumps(value, separators=(",", ":")).encode()


def state_from_json(data: bytes) -> State | None:
    """None when it cannot be used; the commits say the same."""
    try:
        value = json.loads(data)
        if value["format"] != FORMAT:
            return None
        return State(
            number=value["number"],
            files={file["path"]: file_from_json(file) for file in value["files"]},
            offsets=flat(value["offsets"]),
            starts=flat(value["from"]),
            gaps=[Gap(*gap) for gap in value["gaps"]],
            filtered=value["filtered"],
            columns=tuple(value["columns"]),
            properties=tuple((name, kind) for name, kind in value["properties"]),
            compression=value.get("compression", ""),
        )
    except (ValueError, KeyError, TypeError):
        return None


def fold(commits: Iterable[Commit]) -> State:
    state = State()
    for commit in commits:
        state.apply(commit)
    return state
