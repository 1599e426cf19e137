"""format("rocketmq"): what Spark calls, and nothing that could be tested without it.

Spark makes a RocketMQ of the options in one process, asks it for readers in others, and reads in tasks that get a pickled
reader: so readers hold plain values, and open their Place where they are used. Options are checked in schema(), where an
error shows as one sentence; with a schema of the user's that is not called, and they are checked at first use.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

# PyArrow and numpy come in when something is read: Spark imports this module just to see whether it is there.
from roquet.spark.options import BadOption, Options, read_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from roquet.spark.offsets import Nested, Range
    from roquet.spark.watch import Watch


class RocketMQ(DataSource):
    """Topics of RocketMQ as tables and streams. The options are in options.py and docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        from roquet.spark.columns import DEFAULT, ddl

        return ddl(read_options(self.options).columns or DEFAULT)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        return (PushdownReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        # Not checked here: Spark would bury the error under one of its own.
        return StreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from roquet.spark.sink import writer

        return writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from roquet.spark.sink import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        from roquet.spark.projection import check_schema

        check_schema(schema, options.columns)
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from roquet.spark.offsets import tasks
        from roquet.spark.options import place_of

        # A place of its own, that sees what is there now.
        with contextlib.closing(place_of(self.options.where)) as place:
            return [InputPartition(one) for one in tasks(self.plan(place), self.options.partitions_min)]

    def plan(self, place: Any) -> list[Range]:
        from roquet.spark.scan import plan

        return plan(place, self.options, now_ms())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self.options, self.schema)


class PushdownReader(BatchReader):
    """Only for who asks for it: a reader with pushFilters fails where Spark's setting for it is off, as it is by default."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from roquet.spark.pushdown import narrowing

        self.narrowing = narrowing(filters)
        # They narrow what is read; Spark still judges every row.
        return filters

    def plan(self, place: Any) -> list[Range]:
        narrowing = getattr(self, "narrowing", None)
        return super().plan(place) if narrowing is None else narrowing.plan(place, self.options, now_ms())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In the driver one object lives as long as the query. stop() is never called, and commit() comes a batch late: neither is used."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self.given = given
        self.schema = schema

    @cached_property
    def options(self) -> Options:
        from roquet.spark.projection import check_schema

        options = read_options(self.given)
        check_schema(self.schema, options.columns)
        if options.ending is not None and options.ending.times:
            raise BadOption("endingOffsetsByTimestamp is for tables; a stream takes endingTimestamp or endingOffsets")
        return options

    @cached_property
    def watch(self) -> Watch:
        from roquet.spark.options import place_of
        from roquet.spark.watch import Watch

        return Watch(place_of(self.options.where), self.options)

    def initialOffset(self) -> Nested:
        from roquet.spark.offsets import nested

        return nested(self.watch.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of our limits, to be told from Trigger.Once, which wants everything. All of them are applied in latestOffset."""
        options = self.options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable() if options.rows_min is None else ReadMinRows(options.rows_min)

    def prepareForTriggerAvailableNow(self) -> None:
        self.watch.freeze()

    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:
        from roquet.spark.offsets import flat, nested

        return nested(self.watch.latest(flat(start), isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> Nested:
        from roquet.spark.offsets import nested

        return nested(self.watch.newest())

    def partitions(self, start: Nested, end: Nested) -> Sequence[InputPartition]:
        from roquet.spark.offsets import flat, tasks

        return [InputPartition(one) for one in tasks(self.watch.planned(flat(start), flat(end)), self.options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self.options, self.schema)

    def commit(self, end: Nested) -> None:
        pass


def read_task(partition: InputPartition, options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The record batches of one task: of the ranges that the driver put together."""
    from roquet.spark.ahead import ahead

    # What Spark makes of no partitions at all is one without a value.
    return ahead(read_ranges(partition.value, options, schema)) if partition.value else iter(())


def read_ranges(ranges: Sequence[Range], options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    from roquet.spark import decode  # noqa: F401 # needed by the first batch; here, to be among what is loaded
    from roquet.spark.garbage import spare_loaded
    from roquet.spark.projection import Projection
    from roquet.spark.scan import batches, gathered, opened

    spare_loaded()
    projection = Projection.of(schema)
    with opened(options.where) as place:
        parts = (part for one in ranges for part in batches(place, one, options, projection.decoded))
        for part in gathered(parts):
            yield projection.shaped(part)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
