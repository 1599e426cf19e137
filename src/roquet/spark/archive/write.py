"""What a task does: messages of some ranges of queues into Parquet files, one row of facts about each file back to the driver.

Bodies go from the place to the file through Arrow and never meet the JVM. The settings below were measured (2 cores,
128-byte bodies; see docs/pipeline-archive.md): dictionaries only where a few values repeat, delta encoding for numbers that
rise and for ids that share their beginning, no statistics on columns nobody compares.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roquet.message import MessageQueue
from roquet.spark.archive.manifest import ArchiveError, File, Span, partition
from roquet.spark.archive.typed import field_of, value_of
from roquet.spark.columns import COLUMNS, arrow_schema
from roquet.spark.offsets import Range
from roquet.spark.places import Chunk, Place, Wanted

GROUP_ROWS = 131_072
GROUP_BYTES = 64 << 20
"""A row group is written when it has so many rows, or so many bytes in memory: this bounds what a task holds."""
FILE_BYTES = 256 << 20
"""A file that has grown so large is closed and another begun."""
OPEN_MAX = 16
"""Files that a task writes at the same time: more days than this at once are rare, and each costs memory."""

KEY_COLUMNS = ("broker", "queue_id", "queue_offset", "store_time")
"""Every archive has these: they say which message a row is, and which day it belongs to."""
DAY_US = 86_400_000_000

DICTIONARY = frozenset({"broker", "queue_id", "tags", "born_host", "store_host", "transaction", "flag", "sys_flag", "delay_level",
                        "reconsume_times", "stored_size"})  # fmt: skip
DELTA = {
    "queue_offset": "DELTA_BINARY_PACKED",
    "physical_offset": "DELTA_BINARY_PACKED",
    "store_time": "DELTA_BINARY_PACKED",
    "born_time": "DELTA_BINARY_PACKED",
    "prepared_offset": "DELTA_BINARY_PACKED",
}
COMPARED = ("broker", "queue_id", "queue_offset", "store_time", "born_time", "tags", "keys")
"""Columns with statistics, by which readers skip row groups."""

COMPRESSIONS: dict[str, int | None] = {"zstd": 1, "lz4": None, "snappy": None, "none": None}
"""Name -> level. lz4 is Parquet's LZ4_RAW."""
COMPRESSION = "zstd"
"""Half of snappy's bytes, a quarter fewer rows a second (docs/pipeline-archive.md). An archive is written once and lies there for years."""

ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Batches = Callable[[Chunk], Iterator[Any]]


class CannotWrite(ArchiveError):
    """The disk is full, or fails, or forbids it. Whatever was being written does not count."""


@contextlib.contextmanager
def writing(where: Path) -> Iterator[None]:
    """OSErrors as a sentence for the person who runs it. Raises CannotWrite."""
    try:
        yield
    except OSError as error:
        found = re.search(r"os error (\d+)", str(error))  # delta-rs gives no errno
        number = error.errno or (int(found[1]) if found else 0)
        why = os.strerror(number) if number else str(error)
        mend = "Make room there" if number in ROOM else "Solve that"
        raise CannotWrite(
            f"{where} cannot be written to: {why}. What was committed stays, and no batch is there by half. "
            f"{mend} and run the same command again: it goes on where it stopped"
        ) from error


@dataclass(frozen=True, slots=True)
class Shape:
    """What the files look like."""

    columns: tuple[str, ...] = tuple(column.name for column in COLUMNS)
    properties: tuple[tuple[str, str], ...] = ()
    compression: str = COMPRESSION

    def decoded(self) -> pa.Schema:
        """What is decoded from records: not the topic, which is the directory's name; the map also when only its entries are kept."""
        names = [column.name for column in COLUMNS if column.name in self.columns or column.name in KEY_COLUMNS]
        if self.properties and "properties" not in names:
            names.append("properties")
        return arrow_schema([name for name in names if name != "topic"])

    def written(self) -> pa.Schema:
        kept = [one for one in self.decoded() if one.name in self.columns or one.name in KEY_COLUMNS]
        return pa.schema([*kept, *(field_of(name, kind) for name, kind in self.properties)])

    def row_of(self, batch: Any) -> Any:
        """A decoded batch as it is written."""
        if not self.properties:
            return batch
        arrays = [batch.column(one.name) for one in self.written() if one.name in batch.schema.names]
        values = [value_of(batch.column("properties"), name, kind) for name, kind in self.properties]
        return pa.RecordBatch.from_arrays([*arrays, *values], schema=self.written())


def parquet_writer(path: Path, schema: pa.Schema, compression: str = COMPRESSION) -> Any:
    properties = [name for name in schema.names if name not in {column.name for column in COLUMNS}]
    return pq.ParquetWriter(
        path,
        schema,
        compression=compression,
        compression_level=COMPRESSIONS[compression],
        use_dictionary=[name for name in schema.names if name in DICTIONARY or name in properties],
        column_encoding={name: encoding for name, encoding in DELTA.items() if name in schema.names},
        write_statistics=[name for name in schema.names if name in COMPARED or name in properties],
        data_page_version="2.0",
        data_page_size=1 << 20,
        write_batch_size=16_384,
    )


@dataclass(slots=True)
class Part:
    """One file being written: of one topic and one date."""

    path: Path
    name: str
    topic: str
    date: str
    schema: pa.Schema
    compression: str = COMPRESSION
    writer: Any = None
    waiting: list[Any] = field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0
    rows: int = 0
    groups: int = 0
    first_us: int = 1 << 62
    last_us: int = -(1 << 62)
    spans: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def add(self, queue: MessageQueue, batch: Any, times: Any) -> bool:
        """Whether a row group went to the file."""
        offsets = numbers(batch.column("queue_offset"))
        low, high = int(offsets.min()), int(offsets.max()) + 1
        span = self.spans.setdefault((queue.broker_name, queue.queue_id), [low, high, 0])
        span[:] = min(span[0], low), max(span[1], high), span[2] + batch.num_rows
        self.first_us, self.last_us = min(self.first_us, int(times.min())), max(self.last_us, int(times.max()))
        self.waiting.append(batch)
        self.waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        if self.waiting_rows < GROUP_ROWS and self.waiting_bytes < GROUP_BYTES:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        if not self.waiting:
            return
        if self.writer is None:
            self.writer = parquet_writer(self.path, self.schema, self.compression)
        self.writer.write_table(pa.Table.from_batches(self.waiting, self.schema), row_group_size=self.waiting_rows)
        self.rows += self.waiting_rows
        self.groups += 1
        self.waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0

    def close(self) -> File:
        """Durable, and what there is to say about it."""
        self.flush()
        self.writer.close()
        size, crc = seal(self.path)
        return File(
            path=f"{partition(self.topic, self.date)}/{self.name}.parquet",
            topic=self.topic,
            date=self.date,
            rows=self.rows,
            bytes=size,
            groups=self.groups,
            crc=crc,
            first_ms=self.first_us // 1000,
            last_ms=self.last_us // 1000,
            spans=tuple(Span(broker, queue, *span) for (broker, queue), span in sorted(self.spans.items())),
        )


class Parts:
    """The files that a task has open, by topic and date."""

    def __init__(
        self,
        directory: Path,
        shape: Shape,
        name: Callable[[Path, str, str, str], Path],
        *,
        prefix: str = "part-",
        shaped: Callable[[Any], Any] | None = None,
        root: Path | None = None,
    ) -> None:
        """`name`: where a file of a topic and date is written; `shaped`: a batch that is added -> as it is written; `root`: the
        archive, for whoever is told that it cannot be written to."""
        self._directory, self._name, self._prefix = directory, name, prefix
        self._root = root or directory
        self._shaped = shape.row_of if shaped is None else shaped
        self._schema, self._compression = shape.written(), shape.compression
        self._open: dict[tuple[str, str], Part] = {}
        self.files: list[File] = []
        # Row groups go to the disk while the next ones are made, so that the sync at the end has little left to wait for.
        self._syncer = ThreadPoolExecutor(1, "sync")
        self._syncs: list[Future[None]] = []

    def add(self, queue: MessageQueue, batch: Any) -> None:
        """A decoded batch of one queue, of whatever days. Raises CannotWrite."""
        if not batch.num_rows:
            return
        times = numbers(batch.column("store_time"))
        batch = self._shaped(batch)
        days = times // DAY_US
        edges = np.flatnonzero(days[1:] != days[:-1]) + 1
        bounds = [0, *edges.tolist(), len(days)]
        for start, stop in pairwise(bounds):
            piece = batch if stop - start == len(days) else batch.slice(start, stop - start)
            with writing(self._root):
                part = self._part(queue.topic, day_name(int(days[start])))
                if part.add(queue, piece, times[start:stop]):
                    self._syncs.append(self._syncer.submit(sync_file, part.path))

    def _part(self, topic: str, date: str) -> Part:
        part = self._open.get((topic, date))
        if part is not None and part.writer is not None and not part.waiting and part.path.stat().st_size >= FILE_BYTES:
            self.files.append(self._open.pop((topic, date)).close())
            part = None
        if part is None:
            if len(self._open) >= OPEN_MAX:
                self.files.append(self._open.pop(next(iter(self._open))).close())
            name = f"{self._prefix}{uuid.uuid4().hex}"
            part = Part(self._name(self._directory, topic, date, name), name, topic, date, self._schema, self._compression)
            self._open[topic, date] = part
        return part

    def close(self) -> list[File]:
        """Raises CannotWrite when a disk failed at any time: an error is told once, to whoever synced then."""
        self._syncer.shutdown()
        with writing(self._root):
            for sync in self._syncs:
                sync.result()
            self.files.extend(part.close() for part in self._open.values())
        self._open.clear()
        return self.files

    def abandon(self) -> None:
        """After an error: files that were not finished go. Finished ones stay, where nobody counts them, until the batch is discarded."""
        self._syncer.shutdown(wait=False, cancel_futures=True)
        for part in self._open.values():
            if part.writer is not None:
                with contextlib.suppress(OSError):
                    part.writer.close()
                part.path.unlink(missing_ok=True)
        self._open.clear()


def staged(directory: Path, _topic: str, _date: str, name: str) -> Path:
    return directory / f"{name}.tmp"


def write_ranges(
    place: Place, ranges: Iterable[Range], wanted: Wanted, parts: Parts, decoded: Callable[[MessageQueue], Batches]
) -> list[File]:
    """All messages of these ranges that are wanted. Raises DataGone."""
    for one in ranges:
        batches = decoded(one.queue)
        for chunk in place.chunks(one.queue, one.start, one.stop, wanted):
            for batch in batches(chunk):
                parts.add(one.queue, batch)
    return parts.close()


def numbers(column: Any) -> Any:
    """An Arrow column of 64-bit integers or times without nulls as numpy, not copied."""
    return np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset : column.offset + len(column)]


def day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def seal(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a finished file, which is on the disk afterwards."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return size_and_crc(file.fileno())


def size_and_crc(descriptor: int) -> tuple[int, int]:
    size = os.fstat(descriptor).st_size
    if not size:
        return 0, 0
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
        return size, zlib.crc32(mapped)
