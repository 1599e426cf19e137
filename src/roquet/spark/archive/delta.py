"""The same archive as a Delta table: executors write Parquet, the driver commits one Delta transaction per batch.

The table's own log is the truth. Each commit carries the transaction (archive's id, batch number), which Delta refuses a
second time to two writers at once, and in its metadata the offsets it stands for. Data files lie where they belong before
the commit; a Delta reader does not see them until then, and the next open() removes those of a batch that was never
committed: their names tell the batch. Read it with a Delta reader, or with read_archive; a reader of the bare directories
may see rows that were never committed.

Killed before the commit: the log has no such batch, its files are removed, the offsets are the old ones. Killed after it:
the batch counts, and the next run goes on from its offsets. There is nothing to finish.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from roquet.errors import Damaged
from roquet.message import MessageQueue
from roquet.spark.archive.compact import SMALL_BYTES
from roquet.spark.archive.ledger import ArchiveBusy, Fault, no_fault, take_lock
from roquet.spark.archive.manifest import ArchiveError, Commit, File, Gap, Kind, State, partition, state_from_json, state_to_json
from roquet.spark.archive.write import COMPRESSION, COMPRESSIONS, Shape

APP = "roquet-archive"
METADATA = "roquet"
PARTITIONED = ["topic", "date"]


def need_delta() -> Any:
    try:
        import deltalake
    except ImportError:
        raise ArchiveError("deltalake is not installed, which --format delta needs; install it with: pip install 'roquet[delta]'") from None
    return deltalake


def in_place(directory: Path, topic: str, date: str, name: str) -> Path:
    home = directory / partition(topic, date)
    home.mkdir(parents=True, exist_ok=True)
    return home / f"{name}.parquet"


def table_schema(shape: Shape) -> pa.Schema:
    return pa.schema([pa.field("topic", pa.string()), *shape.written(), pa.field("date", pa.date32())])


class DeltaBook:
    """The writer's hold on the table, from open() to close()."""

    def __init__(self, root: Path, lock: int, fault: Fault) -> None:
        self.root = root
        self._lock = lock
        self._fault = fault
        self._table: Any = None
        self.state = State()
        if need_delta().DeltaTable.is_deltatable(str(root)):
            self._table = need_delta().DeltaTable(str(root))
            self.state = state_of(self._table)

    @classmethod
    def open(cls, root: Path, *, fault: Fault = no_fault) -> DeltaBook:
        """Removes what a crash left. Raises ArchiveBusy, ArchiveError."""
        need_delta()
        (root / "_roquet").mkdir(parents=True, exist_ok=True)
        lock = take_lock(root)
        try:
            book = cls(root, lock, fault)
            book._recover()
        except BaseException:
            os.close(lock)
            raise
        return book

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _recover(self) -> None:
        """Data that was never committed goes; before that its owner, should it still live, loses its number (see ledger.py)."""
        strangers = self._uncommitted()
        if strangers and self._table is not None:
            self.commit("fence", columns=self.state.columns, properties=self.state.properties)
        self._sweep(strangers)

    def _uncommitted(self) -> list[Path]:
        """Of a batch that has no commit. Files that optimize made are named by other numbers, and are committed."""
        names = [(path, path.name.split("-")[1]) for path in self.root.glob("topic=*/date=*/part-*.parquet")]
        later = [path for path, number in names if number.isdigit() and int(number) > self.state.number]
        return [path for path in later if path.relative_to(self.root).as_posix() not in self.state.files]

    def _sweep(self, paths: list[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
            self._fault("swept")

    def stage(self) -> Path:
        self._sweep(self._uncommitted())
        return self.root

    def discard(self) -> None:
        """After an error: data of a batch that is not in the log goes, so that a full disk has room again."""
        if self._table is not None:  # the commit may have been made before the error
            self._table.update_incremental()
            self.state = state_of(self._table)
        self._sweep(self._uncommitted())

    def commit(
        self,
        kind: Kind,
        files: Sequence[File] = (),
        *,
        removed: Sequence[str] = (),
        ranges: Sequence[tuple[MessageQueue, int, int]] = (),
        gaps: Sequence[Gap] = (),
        filtered: bool = False,
        columns: tuple[str, ...] = (),
        properties: tuple[tuple[str, str], ...] = (),
        compression: str = "",
    ) -> Commit:
        """Raises ArchiveBusy when another writer committed meanwhile."""
        delta = need_delta()
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        commit = Commit(
            self.state.number + 1, kind, APP, time.time_ns() // 1_000_000, tuple(files), tuple(removed), tuple(ranges), tuple(gaps),
            filtered, columns, properties, compression,
        )  # fmt: skip
        after = self.state.copy()
        after.apply(commit)
        self._fit(Shape(columns, properties))
        actions = [
            AddAction(file.path, file.bytes, {"topic": file.topic, "date": file.date}, commit.at_ms, True, statistics(file))
            for file in files
        ]
        state_text = state_to_json(replace(after, files={})).decode()
        self._fault("before commit")
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                PARTITIONED,
                commit_properties=delta.CommitProperties(
                    custom_metadata={METADATA: state_text}, app_transactions=[delta.Transaction(APP, commit.number)]
                ),
            )
        except CommitFailedError as error:
            raise ArchiveBusy(f"batch {commit.number} of {self.root} was not committed: {error}; run again to go on") from None
        self._fault("committed")
        self.state = after
        self._table.update_incremental()
        return commit

    def _fit(self, shape: Shape) -> None:
        """The table, made or with the columns it still lacks."""
        delta = need_delta()
        wanted = table_schema(shape)
        if self._table is None:
            self._table = delta.DeltaTable.create(str(self.root), schema=wanted, partition_by=PARTITIONED, name="roquet archive")
            return
        there = {one.name for one in self._table.schema().fields}
        missing = [one for one in delta.Schema.from_arrow(wanted).fields if one.name not in there]
        if missing:
            self._table.alter.add_columns(missing)
            self._table.update_incremental()

    def compact(self, more_than: int) -> int:
        """Delta's own; old files go when nobody can ask for an older version any more (vacuum, a week)."""
        if self._table is None or not crowded(self.state, more_than):
            return 0
        removed = int(self._table.optimize.compact(writer_properties=writer_properties(self.state.compression))["numFilesRemoved"])
        self._table.update_incremental()
        self._table.vacuum(dry_run=False)
        self.state = state_of(self._table)
        return removed


def writer_properties(compression: str) -> Any:
    """Delta's own writer takes zstd, whatever the files had that it puts together."""
    name = compression or COMPRESSION
    codec = {"lz4": "LZ4_RAW", "none": "UNCOMPRESSED"}.get(name, name.upper())
    return need_delta().WriterProperties(compression=codec, compression_level=COMPRESSIONS[name])


def crowded(state: State, more_than: int) -> bool:
    days: dict[tuple[str, str], int] = {}
    for file in state.files.values():
        if file.bytes < SMALL_BYTES:
            days[file.topic, file.date] = days.get((file.topic, file.date), 0) + 1
    return any(count > more_than for count in days.values())


def statistics(file: File) -> str:
    def when(ms: int) -> str:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    low, high = {"store_time": when(file.first_ms)}, {"store_time": when(file.last_ms + 1)}
    return json.dumps({"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": {}})


def delta_state(root: Path) -> State:
    return state_of(need_delta().DeltaTable(str(root)))


def state_of(table: Any) -> State:
    """What the table's log says. Raises Damaged when the offsets of the last batch cannot be found there."""
    number = table.transaction_version(APP)
    state = State()
    if number is not None:
        found = (state_from_json(entry[METADATA].encode()) for entry in table.history() if METADATA in entry)
        last = next((one for one in found if one is not None and one.number == number), None)
        if last is None:
            raise Damaged(
                f"{table.table_uri}: batch {number} was committed, but its offsets are no longer in the table's history; "
                "archive to another directory, beginning at a time (--from)"
            )
        state = last
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        file = file_of(row)
        state.files[file.path] = file
    return state


def file_of(row: dict[str, Any]) -> File:
    def ms(when: datetime | None, otherwise: int) -> int:
        return otherwise if when is None else int(when.timestamp() * 1000)

    return File(
        path=unquote(row["path"]),
        topic=row["partition.topic"],
        date=str(row["partition.date"]),
        rows=row["num_records"],
        bytes=row["size_bytes"],
        groups=0,
        crc=-1,
        first_ms=ms(row.get("min.store_time"), 0),
        last_ms=ms(row.get("max.store_time"), 1 << 62),
        spans=(),
    )
