"""Fewer, larger files: those of one topic and date written again, ordered by queue and offset.

What is compacted is chosen from the manifest alone. The commit that follows takes the old files out and puts the new ones
in at once; rows and offsets stay what they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roquet.message import MessageQueue
from roquet.spark.archive.manifest import ArchiveError, File
from roquet.spark.archive.write import FILE_BYTES, Parts, Shape, staged

SMALL_BYTES = FILE_BYTES // 4
FILES_MAX = 32
"""A day of a topic with more small files than this is compacted without being asked for."""


class Group(NamedTuple):
    """Files that become one (or a few, when they are large)."""

    topic: str
    date: str
    files: tuple[File, ...]


def groups(files: Iterable[File], *, small_bytes: int = SMALL_BYTES, more_than: int = 1) -> list[Group]:
    """Days with more than so many small files, in shares that make about one file each."""
    days: dict[tuple[str, str], list[File]] = defaultdict(list)
    for file in files:
        if file.bytes < small_bytes:
            days[file.topic, file.date].append(file)
    found: list[Group] = []
    for (topic, date), small in sorted(days.items()):
        if len(small) <= more_than:
            continue
        share: list[File] = []
        for file in sorted(small, key=lambda one: (one.spans, one.path)):
            share.append(file)
            if sum(one.bytes for one in share) >= FILE_BYTES:
                found.append(Group(topic, date, tuple(share)))
                share = []
        if len(share) > 1:
            found.append(Group(topic, date, tuple(share)))
    return found


def rewrite(root: Path, group: Group, staging: Path, shape: Shape) -> list[File]:
    """The group's rows as new files in staging. Raises ArchiveError when they are not what the manifest says."""
    schema = shape.written()
    sources = [(file, pq.ParquetFile(root / file.path, memory_map=True)) for file in group.files]
    parts = Parts(staging, shape, staged, shaped=lambda batch: batch, root=root)
    try:
        for broker, queue_id in sorted({(span.broker, span.queue_id) for file in group.files for span in file.spans}):
            queue = MessageQueue(group.topic, broker, queue_id)
            for _, source in sorted(holding(sources, broker, queue_id), key=lambda one: one[0]):
                for batch in rows_of(source, schema, broker, queue_id):
                    parts.add(queue, batch)
        made = parts.close()
    finally:
        parts.abandon()
        for _, source in sources:
            source.close()
    before, after = sum(file.rows for file in group.files), sum(file.rows for file in made)
    if before != after:
        raise ArchiveError(
            f"compacting {group.topic} {group.date} gave {after:,} rows of {before:,}; nothing was changed. Check the archive: --verify"
        )
    return made


def holding(sources: Iterable[tuple[File, Any]], broker: str, queue_id: int) -> Iterator[tuple[int, Any]]:
    """Files with rows of this queue, each with the first offset there."""
    for file, source in sources:
        for span in file.spans:
            if (span.broker, span.queue_id) == (broker, queue_id):
                yield span.start, source


def rows_of(source: Any, schema: pa.Schema, broker: str, queue_id: int) -> Iterator[Any]:
    """One queue's rows of a file, in order, with the columns that the archive has now."""
    flat = [source.metadata.row_group(0).column(at).path_in_schema for at in range(source.metadata.num_columns)].index("queue_id")
    names = [name for name in schema.names if name in source.schema_arrow.names]
    for number in range(source.num_row_groups):
        statistics = source.metadata.row_group(number).column(flat).statistics
        if statistics is not None and statistics.has_min_max and not statistics.min <= queue_id <= statistics.max:
            continue
        table = source.read_row_group(number, columns=names)
        mask = pc.and_(pc.equal(table["queue_id"], queue_id), pc.equal(pc.fill_null(table["broker"], ""), broker))
        offsets = pc.filter(table["queue_offset"], mask)
        if not len(offsets):
            continue
        if len(offsets) < table.num_rows:
            table = table.filter(mask)
        numbers = offsets.to_numpy()
        if len(numbers) > 1 and not np.all(numbers[1:] > numbers[:-1]):
            table = table.take(pa.array(np.argsort(numbers, kind="stable")))
        yield from with_columns(table, schema).to_batches()


def with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """In the schema's order; a column that the file does not have yet is null."""
    arrays = [table[one.name].cast(one.type) if one.name in table.schema.names else pa.nulls(table.num_rows, one.type) for one in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
