"""The Spark application that does the work: one for each side, started once, told what to do line by line.

    python bench/spark/driver.py NAME [JAR ...]

It prints `ready`, then answers each line of JSON on standard input, {"work": ..., ...}, with one on standard output.
`seconds` is the time from the query's definition to its result; what has to be made or removed around it does not count.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roquet.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEMORY = "2g"
LENGTHS = ("string", "binary")  # types whose values are measured; of a map the entries are counted, of others the greatest is found
Job = dict[str, Any]


def read(spark: SparkSession, job: Job) -> DataFrame:
    reader = spark.read.format(job["format"]).options(**job["options"])
    return (reader.schema(job["schema"]) if job.get("schema") else reader).load()


def total(frame: DataFrame) -> dict[str, Any]:
    """Rows, bytes of the bodies, and something of every other column, so that none is left unread."""
    from pyspark.sql import functions

    wanted = [functions.count("*").alias("rows")]
    for name, kind in frame.dtypes:
        column = functions.col(name)
        if kind in LENGTHS:
            value = functions.sum(functions.length(column))
        elif kind.startswith(("map", "array")):
            value = functions.sum(functions.size(column))
        else:
            value = functions.max(column)
        wanted.append(value.alias(name))
    row = frame.agg(*wanted).first()
    assert row is not None
    found = row.asDict()
    return {"rows": found["rows"], "bytes": found.get("value", found.get("body"))}


def scan(spark: SparkSession, job: Job) -> Job:
    began = time.perf_counter()
    found = total(read(spark, job))
    return {**found, "seconds": time.perf_counter() - began}


def parquet(spark: SparkSession, job: Job) -> Job:
    """A topic to Parquet files as Spark writes them."""
    with Scratch() as target:
        began = time.perf_counter()
        read(spark, job).write.parquet(str(target / "out"))
        seconds = time.perf_counter() - began
        return {**written(target / "out"), "seconds": seconds}


def archive(spark: SparkSession, job: Job) -> Job:
    """A topic to Roquet's archive, from nothing."""
    from roquet.spark.pipelines.archive import Output
    from roquet.spark.pipelines.archive import archive as pipeline

    output = Output(columns=job["columns"], compression=job["compression"])
    with Scratch() as target:
        began = time.perf_counter()
        pipeline(job["where"], [job["topic"]], target / "out", spark=spark, output=output)
        seconds = time.perf_counter() - began
        return {**written(target / "out"), "seconds": seconds}


def stream(spark: SparkSession, job: Job) -> Job:
    """All that is in a topic now to another one, through a streaming query that ends there."""
    with Scratch() as target:
        began = time.perf_counter()
        reader = spark.readStream.format(job["format"]).options(**job["options"])
        frame = (reader.schema(job["schema"]) if job.get("schema") else reader).load().selectExpr(*job["select"])
        writer = frame.writeStream.format(job["format"]).options(**job["sink"])
        query = writer.option("checkpointLocation", str(target / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - began
        return {"rows": sum(each["numInputRows"] for each in query.recentProgress), "seconds": seconds}


def catch_up(spark: SparkSession, job: Job) -> Job:
    """The same scan again and again until a file is there."""
    stop, rows, began = Path(job["until"]), 0, time.perf_counter()
    while not stop.exists():
        rows += total(read(spark, job))["rows"]
    return {"rows": rows, "seconds": time.perf_counter() - began}


def fill(spark: SparkSession, job: Job) -> Job:
    """Parquet files of key, value and partition to a topic of Kafka's."""
    began = time.perf_counter()
    spark.read.parquet(job["path"]).write.format("kafka").options(**job["sink"]).save()
    return {"seconds": time.perf_counter() - began}


WORK: dict[str, Callable[[SparkSession, Job], Job]] = {
    "scan": scan, "parquet": parquet, "archive": archive, "stream": stream, "catch-up": catch_up, "fill": fill,
}  # fmt: skip


class Scratch:
    """A directory that is gone afterwards; beside the servers' own, so that all write to one disk."""

    def __enter__(self) -> Path:
        self.path = Path(tempfile.mkdtemp(dir=os.environ.get("ROQUET_BENCH_SCRATCH")))
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def written(directory: Path) -> Job:
    """Rows in all Parquet files below, by their own word, and their size."""
    import pyarrow.parquet as footers

    paths = [path for path in directory.rglob("*.parquet") if not path.is_symlink()]
    return {"rows": sum(footers.read_metadata(path).num_rows for path in paths), "written": sum(path.stat().st_size for path in paths)}


def main() -> None:
    name, *jars = sys.argv[1:]
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {MEMORY} pyspark-shell"  # the JVM is started before a session could say it
    conf = {"spark.jars": ",".join(jars)} if jars else {}
    spark = session(f"bench {name}", f"local[{os.cpu_count()}]", conf)
    answers = os.fdopen(os.dup(1), "w")
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = WORK[job["work"]](spark, job)
        except Exception as error:
            answer = {"problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    jvm.stdin.close()
    jvm.wait(30)  # so that its CPU time is counted as ours


if __name__ == "__main__":
    main()
