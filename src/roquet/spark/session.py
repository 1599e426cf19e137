"""The Spark session of our commands, examples and tests: settings that were measured to matter, and no more noise than needed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from roquet.errors import ClientError
from roquet.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: dict[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Batches of Arrow between Python and the JVM: a fifth faster than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
}


class NoSpark(ClientError):
    """The extra is not installed."""


def need_spark() -> None:
    """Raises NoSpark or NoJava with what to do, before anything slow begins."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise NoSpark(f"{module} is not installed, which this command needs; install it with: pip install 'roquet[spark]'")
    find_java()


def session(app: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one. `master`: else what spark-submit or the environment says, else all cores of this machine."""
    need_spark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    given = SparkConf()
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    elif not given.contains("spark.master"):
        builder = builder.master("local[*]")
        # On one machine nobody else need reach the driver.
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in SETTINGS.items():
        if not given.contains(key):
            builder = builder.config(key, value)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
