"""Topics as tables and streams in Spark, and the pipelines over them. The extra `roquet[spark]`; nothing else imports this.

    import roquet.spark                # above the line that makes the session: Spark then runs this Python

    spark.read.format("rocketmq").option("namesrvAddr", "127.0.0.1:9876").option("subscribe", "orders").load()

Where the package pyspark_rocketmq is installed beside Spark's Python, as it is with this one, the format is found by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.spark.offsets import offsets_behind_latest
from roquet.spark.pythons import need_session_python, tell_of_running_spark, use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["offsets_behind_latest", "register"]

use_this_python()
tell_of_running_spark()


def register(spark: SparkSession) -> None:
    """Make format("rocketmq") known to this session, where it is not found by itself (Spark Connect, a path of your own).

    Raises WrongPython when Spark runs another Python that cannot read topics, and says what to set.
    """
    from roquet.spark.source import RocketMQ

    need_session_python(spark)
    spark.dataSource.register(RocketMQ)
