"""What is compared in the end: where a message is and the checksum of its body, as the sender, the topic and the archive say it."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from roquet import PullConsumer
from roquet.client import PullStatus

COLUMNS = ["topic", "queue_id", "queue_offset", "body"]
SHOWN = 3


class Row(NamedTuple):
    topic: str
    queue_id: int
    offset: int
    crc: int


# ---- three ways to the same rows ------------------------------------------------------------------------------------------


def topic_rows(namesrv: str, topics: Sequence[str]) -> list[Row]:
    """As a consumer pulls them, 32 at a time: none of the code that the archive reads with."""
    return asyncio.run(pulled(namesrv, topics))


async def pulled(namesrv: str, topics: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    async with PullConsumer("soak_readers", namesrv) as consumer:
        for topic in topics:
            for queue in await consumer.fetch_queues(topic):
                offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.pull(queue, offset)
                    if result.status is PullStatus.FOUND:
                        found += (Row(topic, queue.queue_id, one.queue_offset, zlib.crc32(one.body)) for one in result.messages)
                    offset = result.next_offset
    return found


def directory_rows(path: Path) -> list[Row]:
    """As any reader of Parquet in directories, who knows nothing of commits."""
    days = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.string())]), flavor="hive")
    return list(table_rows(ds.dataset(path, partitioning=days, format="parquet").scanner(columns=COLUMNS).to_batches()))


def delta_rows(path: Path) -> list[Row]:
    """As a reader of Delta tables."""
    from deltalake import DeltaTable

    return list(table_rows(DeltaTable(str(path)).to_pyarrow_dataset().scanner(columns=COLUMNS).to_batches()))


def table_rows(batches: Iterable[Any]) -> Iterable[Row]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        yield from (Row(topic, queue_id, offset, zlib.crc32(body)) for topic, queue_id, offset, body in zip(*columns, strict=True))


# ---- and how they differ --------------------------------------------------------------------------------------------------


def digest(rows: Iterable[Row]) -> str:
    """SHA-256 over all of them in order: equal only for the same rows, each as often."""
    total = hashlib.sha256()
    for row in sorted(rows):
        total.update(b"%s %d %d %d\n" % (row.topic.encode(), *row[1:]))
    return total.hexdigest()


def differences(what: str, rows: Sequence[Row], topic: Collection[Row], acknowledged: Collection[Row]) -> list[str]:
    """Sentences; none when `rows` are the topic's, each once, with all that was acknowledged among them."""
    times = Counter(row[:3] for row in rows)
    there, wanted = set(rows), set(topic)
    return [
        *listed(f"{what}: there twice", [place for place, count in times.items() if count > 1]),
        *listed(f"{what}: missing", wanted - there),
        *listed(f"{what}: not in the topic", there - wanted),
        *listed(f"{what}: acknowledged and not there", set(acknowledged) - there),
        *([] if len(rows) == len(topic) else [f"{what}: {len(rows):,} rows, the topic has {len(topic):,}"]),
    ]


def listed(what: str, rows: Collection[Any], show: Callable[[Any], str] = lambda row: "/".join(map(str, row))) -> list[str]:
    if not rows:
        return []
    some = ", ".join(show(row) for row in sorted(rows)[:SHOWN])
    return [f"{what}: {len(rows):,} rows, the first {some}"]
