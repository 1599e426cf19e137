"""The trace topic as a source of events: what `rocketmq` reads, parsed where it is read.

A source of its own and not a function over the other one's rows, so that payloads never go to the JVM and back; and Spark's
mapInArrow would need pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from roquet.spark.options import BadOption, read_options
from roquet.spark.source import BatchReader, StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "rocketmq_trace"
CARRIED = {"broker": "string", "queue_id": "int", "queue_offset": "bigint", "store_time": "timestamp"}
"""Of the trace message that an event came in: where it is, and when it was stored."""
READ = StructType(
    [
        StructField("body", BinaryType()),
        StructField("broker", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("store_time", TimestampType()),
    ]
)
"""What is read of a message."""


def event_ddl() -> str:
    """Columns of an event (trace_records.EVENT), and of the message that it came in."""
    from roquet.spark.pipelines.trace_records import EVENT

    kinds = {**{column.name: column.sql for column in EVENT}, **CARRIED}
    return ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())


def to_events(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Messages of a trace topic as their events. Runs in the executors."""
    import pyarrow as pa

    from roquet.spark.pipelines.trace_records import parse

    for batch in batches:
        table, payloads = parse(batch.column("body"))
        rows = pa.array(payloads)
        for name in CARRIED:
            table = table.append_column(name, batch.column(name).take(rows))
        yield from table.combine_chunks().to_batches()


class TraceEvents(DataSource):
    """The options are those of `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        if read_options(self.options).columns is not None:
            raise BadOption("the columns of trace events are fixed; leave the option columns out and select from them")
        return event_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        return EventReader(read_options(self.options), READ)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return EventStreamReader(dict(self.options), READ)


class EventReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return to_events(super().read(partition))


class EventStreamReader(StreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return to_events(super().read(partition))
