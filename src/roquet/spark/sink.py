"""The sink: rows of a DataFrame, batch or streaming, as messages of a topic.

    frame.select("body", "keys").write.format("rocketmq").option("namesrvAddr", "...").option("topic", "orders").mode("append").save()

A task has succeeded when every row of it was acknowledged. Delivery is at least once: a task or a micro-batch that is run
again sends its rows again, with the unique ids they had before, so that a consumer can drop what it knows
(roquet.client.idempotent). An id is made of the query, the batch, the partition and the row's number in the partition, so
a replay has the same ids for the same rows only when it computes its rows in the same order: true of maps, filters and
reads of a topic; after a shuffle only with a sort inside the partitions.
"""

from __future__ import annotations

import difflib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from roquet.errors import Refused
from roquet.net.blocking import BlockingCaller
from roquet.net.buffers import keep_memory
from roquet.routing.name_servers import parse_name_servers
from roquet.spark.ahead import ahead
from roquet.spark.encode import BATCH_BYTES_MAX, check_columns, encode, id_prefix
from roquet.spark.garbage import spare_loaded
from roquet.spark.options import BadOption, Option, Where, connection_of, duration_s, where_of
from roquet.spark.requests import BATCH_BYTES, BATCH_ROWS, requests
from roquet.spark.sending import Sending
from roquet.wire.names import check_group

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

SINK_OPTIONS: tuple[Option, ...] = (
    Option("topic", "name", "", "where all rows go; without it each row's column topic says so"),
    Option("groupId", "name", "spark_sink", "producer group, as the broker shows it"),
    Option("idempotencyKey", "text", "stream: the query's id; batch: random", "what the ids of a job begin with: the same key, the same "
           "partitions and rows give the same unique ids. In foreachBatch put the batch's number into it"),
    Option("maxInFlight", "1 to 64", "8", "requests of a task without an answer"),
    Option("batchBytes", "bytes, at most 1048576", str(BATCH_BYTES), f"size of one request, which also has {BATCH_ROWS} rows at most"),
    Option("sendTimeout", "duration", "10s", "for one answer"),
    Option("retries", "0 to 100", "8", "attempts after the first, with growing pauses: 8 bridge about 16 seconds"),
)  # fmt: skip
"""What only the sink takes. Where the brokers are it reads from the options of the source: PLACE."""
PLACE = (
    "namesrvAddr", "accessKey", "secretKey", "securityToken", "useTLS", "tlsCaFile", "tlsCertFile", "tlsKeyFile",
    "tlsKeyPassword", "tlsVerify",
)  # fmt: skip
OF_SPARK = frozenset({"checkpointlocation", "path", "queryname"})
"""Spark hands its own options over with ours."""

PIECE_BYTES = 64 * 1024 * 1024
"""Arrow batches that are larger are encoded in pieces."""


@dataclass(frozen=True, slots=True)
class Settings:
    where: Where
    topic: str | None
    group: str
    key: str
    """idempotencyKey; "" when none was given."""
    in_flight_max: int
    batch_bytes: int
    timeout_s: float
    retries: int


def read_settings(given: Mapping[str, str]) -> Settings:
    """Raises BadOption with one sentence that names the option."""
    known = {name.lower(): name for name in (*PLACE, *(option.name for option in SINK_OPTIONS))}
    values: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() in OF_SPARK:
            continue
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(known.values())}"
            raise BadOption(f"the rocketmq sink has no option {name}{hint}")
        if str(text).strip():
            values[known[name.lower()]] = str(text).strip()
    if "namesrvAddr" not in values:
        raise BadOption("nothing says where to write; give the option namesrvAddr (host:port of a name server)")
    parse_name_servers(values["namesrvAddr"])
    group = values.get("groupId", "spark_sink")
    try:
        check_group(group)
    except Refused as refusal:
        raise BadOption(f"groupId={group}: {refusal.remark}") from None
    seconds = duration_s(values.get("sendTimeout", "10s"))
    if not seconds or seconds > 3_600:
        raise BadOption(f"sendTimeout={values['sendTimeout']}: expected a duration with its unit, as in 500ms or 10s, up to 1h")
    return Settings(
        where=where_of({name: text for name, text in values.items() if name in PLACE}),
        topic=values.get("topic"),
        group=group,
        key=values.get("idempotencyKey", ""),
        in_flight_max=_between(values, "maxInFlight", 8, 1, 64),
        batch_bytes=_between(values, "batchBytes", BATCH_BYTES, 1, BATCH_BYTES_MAX),
        timeout_s=seconds,
        retries=_between(values, "retries", 8, 0, 100),
    )


def _between(values: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = values.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise BadOption(f"{name}={text}: expected a whole number from {low} to {high}")
    return int(text)


@dataclass
class Sent(WriterCommitMessage):
    """What one task did."""

    partition: int
    rows: int
    requests: int
    retries: int
    unsure: int
    seconds: float


def write_batches(settings: Settings, batches: Iterator[pa.RecordBatch], partition: int, prefix: bytes) -> Sent:
    """Send every row and wait for every answer. Raises BadRow, SendFailed and what else goes wrong, naming the rows."""
    begun = time.monotonic()
    spare_loaded()
    keep_memory()
    where = settings.where
    caller = BlockingCaller(connection_of(where))
    sending = Sending(
        caller, parse_name_servers(where.namesrv), settings.group,
        in_flight_max=settings.in_flight_max, timeout_s=settings.timeout_s, retries=settings.retries, turn=partition,
    )  # fmt: skip
    try:
        first = 0
        for batch in batches:
            for piece in pieces(batch):
                rows = encode(piece, partition=partition, first=first, prefix=prefix, topic=settings.topic)
                sending.send(requests(rows, {topic: sending.queues(topic) for topic in rows.topics}, settings.batch_bytes))
                first += piece.num_rows
        sending.finish()
    finally:
        caller.close()
    counts = sending.counts
    return Sent(partition, counts.rows, counts.requests, counts.retries, counts.unsure, time.monotonic() - begun)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Joined, the arrays of a batch must stay below 2 GiB."""
    if batch.num_rows:
        step = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, PIECE_BYTES))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def summary(what: str, messages: Sequence[Any]) -> str:
    done = [message for message in messages if isinstance(message, Sent)]
    rows, requests = sum(one.rows for one in done), sum(one.requests for one in done)
    longest = max((one.seconds for one in done), default=0)
    text = f"{what}: {rows} rows in {requests} requests by {len(done)} tasks, the longest took {longest:.1f} s"
    if retries := sum(one.retries for one in done):
        text += f", {retries} attempts were repeated (duplicates carry the same unique id)"
    if unsure := sum(one.unsure for one in done):
        text += f", {unsure} rows were stored less safely than the broker is set to"
    return text


class BatchWriter(DataSourceArrowWriter):
    """Made in the driver and pickled into every task, so that a task that is tried again makes the same ids."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.key = settings.key or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        partition = _task().partitionId()
        return write_batches(self.settings, ahead(iterator), partition, id_prefix("batch", self.key, self.settings.topic or "", partition))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.info("%s", summary(f"written to {self.settings.topic or 'topics'}", messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.warning("! %s", summary("the job failed; what was sent stays sent", messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Its ids come from the query and the number of the micro-batch: a batch that is replayed makes the same."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        task = _task()
        partition = task.partitionId()
        # Not documented by Spark, but the only way to know in a task which batch it is of; a test holds this per version.
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        name = self.settings.key or query
        if not name or batch is None:
            raise BadOption("this Spark does not tell tasks their query and batch, of which unique ids are made; use foreachBatch")
        prefix = id_prefix("stream", name, self.settings.topic or "", batch, partition)
        return write_batches(self.settings, ahead(iterator), partition, prefix)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log.info("%s", summary(f"batch {batchId} written to {self.settings.topic or 'topics'}", messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("! %s", summary(f"batch {batchId} failed; what was sent stays sent, and is sent again with the same ids", messages))


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For spark's DataFrame.write. Raises BadOption or ClientError with a sentence, in the driver, before any task runs."""
    return BatchWriter(_checked(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For writeStream. `overwrite` is Spark's name of the output mode complete."""
    return StreamWriter(_checked(options, schema, overwrite))


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Settings:
    from pyspark.sql.pandas.types import to_arrow_schema

    if overwrite:
        raise BadOption("a topic cannot be overwritten, only added to; use mode('append'), or for a stream outputMode('append')")
    settings = read_settings(options)
    check_columns(to_arrow_schema(schema, timezone="UTC"), settings.topic)
    return settings


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("the sink writes inside a Spark task only")
    return context
