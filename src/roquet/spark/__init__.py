"""Topics as tables and streams in Spark, and the pipelines over them. The extra `roquet[spark]`; nothing else imports this.

    spark.read.format("rocketmq").option("namesrvAddr", "127.0.0.1:9876").option("subscribe", "orders").load()

Where the package pyspark_rocketmq is installed beside Spark's Python, as it is with this one, the format is found by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make format("rocketmq") known to this session, where it is not found by itself (Spark Connect, a path of your own)."""
    from roquet.spark.source import RocketMQ

    spark.dataSource.register(RocketMQ)
