"""The same comparison by Spark, as sums: the topic through format("rocketmq"), the archive through its plain readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roquet.spark.pipelines.archive import read_archive
from roquet.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Totals = tuple[int, int, int]
"""Rows, different places, sum of the bodies' CRC-32."""


def totals(namesrv: str, topics: Sequence[str], archive: Path, *, delta: bool) -> dict[str, Totals]:
    from pyspark.sql import SparkSession

    guest = SparkSession.getActiveSession() is not None  # somebody else's, who goes on with it
    spark = session("soak totals", "local[2]")
    try:
        topic = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=",".join(topics)).load()
        found = {'format("rocketmq")': total(topic), "read_archive": total(read_archive(spark, archive))}
        if not delta:
            found["spark.read.parquet"] = total(spark.read.parquet(str(archive)))
        return found
    finally:
        if not guest:
            spark.stop()


def total(frame: DataFrame) -> Totals:
    from pyspark.sql import functions

    row = frame.agg(
        functions.count("*"), functions.count_distinct("topic", "queue_id", "queue_offset"), functions.sum(functions.crc32("body"))
    ).first()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2] or 0)
