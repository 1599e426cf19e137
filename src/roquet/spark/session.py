"""The Spark session of our commands, examples and tests: settings that were measured to matter, and no more noise than needed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roquet.errors import ClientError
from roquet.spark.banners import without_banners
from roquet.spark.home import Home, light_home
from roquet.spark.java import find_java
from roquet.spark.pythons import ready_python

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
QUIET = Path(__file__).with_name("log4j2.properties")
LOCAL = {
    # On one machine nobody else need reach the driver.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # What is logged before setLogLevel can be called.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET.as_uri()}",
}
OLDEST = (4, 2)
"""Since then Spark asks a Python source for limits and for Trigger.AvailableNow."""


class NoSpark(ClientError):
    """The extra is not installed, or too old."""


def need_packages() -> None:
    """Raises NoSpark with what to install."""
    for module in ("pyspark", "pyarrow", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise NoSpark(f"{module} is not installed, which this command needs; install it with: pip install 'roquet[spark]'")
    installed = version("pyspark")
    if tuple(int(part) for part in installed.split(".")[:2]) < OLDEST:
        raise NoSpark(f"pyspark {installed} is installed, and 4.2 or newer is needed; update it with: pip install -U 'roquet[spark]'")


def need_spark() -> None:
    """Raises NoSpark or NoJava with what to do, before anything slow begins."""
    need_packages()
    find_java()


def session(app: str, master: str | None = None, conf: Mapping[str, str] | None = None, *, log_level: str = "ERROR") -> SparkSession:
    """The active session, or a new one. `master`: else what spark-submit or the environment says, else all cores of this machine.

    `log_level`: of the JVM's log, on standard error.
    """
    need_spark()
    ready_python()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Under spark-submit the JVM is there already and knows what was asked for; without this a SparkConf is empty.
        SparkContext._ensure_initialized()
    given = SparkConf()
    chosen = master or given.get("spark.master", None) or "local[*]"
    settings = dict(SETTINGS)
    if chosen.startswith("local"):
        settings |= LOCAL
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app).master(chosen)
    for key, value in {**{key: value for key, value in settings.items() if not given.contains(key)}, **(conf or {})}.items():
        builder = builder.config(key, value)
    light = light_home() if chosen.startswith("local") else contextlib.nullcontext(Home(None))
    with without_banners(), no_jvm_left(), light as home:
        spark = builder.getOrCreate()
    home.leave_to(spark)
    spark.sparkContext.setLogLevel(log_level)
    return spark


@contextlib.contextmanager
def no_jvm_left() -> Iterator[None]:
    """A start that fails or is interrupted in here ends the JVM that it began.

    PySpark forgets one that has not told its port yet. It ignores Ctrl-C, finds nobody to tell, and would stay for ever.
    """
    from pyspark import SparkContext
    from pyspark import java_gateway as module

    java_gateway: Any = module
    began: list[subprocess.Popen[bytes]] = []
    start = java_gateway.Popen

    def noted(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        began.append(start(*arguments, **more))
        return began[-1]

    java_gateway.Popen = noted
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for one in began:
                one.kill()
                one.wait()
        raise
    finally:
        java_gateway.Popen = start
