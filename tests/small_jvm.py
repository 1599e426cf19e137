"""For every Spark that tests start, also in commands that are processes of their own: half the processor time.

python -m tests.small_jvm      make the archive of classes, unless the one that is there fits
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WORKERS = Path(__file__).resolve().parent / "spark" / "workers"
"""What Python processes of Spark read when they start."""
BUILD = Path(__file__).resolve().parents[1] / "build"
ARCHIVE = BUILD / "spark-classes.jsa"
"""Spark's classes as the JVM holds them in memory, made once: reading them from 300 jars takes a quarter of a short life. A JVM that it
does not fit (another Java, other jars, another class path) does without, and says nothing."""
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:MetaspaceSize=256m"
"""They live for seconds: no time and no memory for a better compiler, and nobody doubts Spark's own classes,
nor looks for those that may go: that was a full collection each time that their room grew."""
WITH_ARCHIVE = f"{SMALL_JVM} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else SMALL_JVM
"""For JVMs in ALONE. The archive knows one class path: Spark's own home, and no directory of settings that holds anything."""
LAUNCHER = {"SPARK_LAUNCHER_OPTS": SMALL_JVM}
"""Of the JVM that puts the command of each JVM together."""
CONF = {"SPARK_CONF_DIR": str(WORKERS.with_name("conf"))}
"""With settings of Spark that every session takes."""
ALL = LAUNCHER | CONF | {"SPARK_SUBMIT_OPTS": SMALL_JVM}


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def settings() -> dict[str, str]:
    """Those of the file in CONF."""
    lines = (WORKERS.with_name("conf") / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#")]
    return {pair[0]: pair[1] for pair in pairs}


def alone(options: str = WITH_ARCHIVE) -> dict[str, str]:
    """For a JVM that does not share the session of the tests: in Spark's own home, its settings on its command line."""
    given = " ".join(f"-D{key}={value}" for key, value in settings().items())
    place = {"SPARK_HOME": str(spark_home()), "SPARK_CONF_DIR": str(BUILD / "no-spark-settings")}
    return LAUNCHER | place | {"SPARK_SUBMIT_OPTS": f"{options} {given}"}


def use() -> None:
    os.environ.update(ALL)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(WORKERS) not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(WORKERS), *filter(None, path)])


def fits() -> str:
    """What an archive is made for; another text, and it is of no use."""
    from roquet.spark.java import find_java

    java = subprocess.run([find_java()[0], "-version"], capture_output=True, text=True, check=True).stderr
    jars = spark_home() / "jars"
    return f"{java}{jars} {jars.stat().st_mtime_ns}\n"


def make() -> None:
    """A session does a little of everything, and its JVM writes down the classes that it has then."""
    note = ARCHIVE.with_suffix(".txt")
    wanted = fits()
    if ARCHIVE.exists() and note.exists() and note.read_text() == wanted:
        return
    print(f"making {ARCHIVE.name}, with which the Sparks of the tests start sooner (once, 190 MB)", flush=True)
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as directory:
        made = Path(directory) / ARCHIVE.name
        use()
        os.environ.update(alone(f"{SMALL_JVM} -XX:ArchiveClassesAtExit={made} -Xlog:disable"))
        work(directory)
        made.replace(ARCHIVE)
    note.write_text(wanted)


def work(directory: str) -> None:
    """What Sparks of the tests do; over when the JVM has ended."""
    from pyspark import SparkContext
    from pyspark.sql import functions

    from roquet.spark.session import session

    spark = session("classes", "local[2]", {"spark.sql.shuffle.partitions": "1"})
    rows = spark.range(100).withColumn("k", functions.col("id") % 3)
    rows.groupBy("k").agg(functions.count("*"), functions.sum("id")).write.parquet(f"{directory}/rows")
    spark.read.parquet(f"{directory}/rows").createOrReplaceTempView("rows")
    spark.sql("select k, count(*) n from rows group by k order by k").collect()
    spark.createDataFrame([(1, "a")], "a int, b string").collect()
    spark.sparkContext.parallelize([1], 1).map(str).collect()
    stream = spark.readStream.format("rate").load().writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
    stream.trigger(availableNow=True).start(f"{directory}/stream").awaitTermination()
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(600)


if __name__ == "__main__":
    from roquet.errors import ClientError

    try:
        make()
    except ClientError as error:
        sys.exit(str(error))
