"""A relative path means the directory of whoever calls, not the one that the JVM was started in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roquet import Message
from roquet.spark.archive.read import read_archive
from roquet.spark.pipelines import lag
from roquet.spark.pipelines.analytics import analytics
from roquet.spark.pipelines.archive import archive, compact
from roquet.spark.pipelines.lag import Sample
from roquet.spark.pipelines.restore import Source
from tests.spark.conftest import Servers

SAMPLE = Sample(1_000, "billing", "orders", "broker-a", 0, 10, 3, 7, None, 1)


@pytest.fixture
def elsewhere(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert spark.sparkContext._jvm.System.getProperty("user.dir") != str(tmp_path)
    return tmp_path


def test_an_archive_is_written_put_together_and_read_where_the_caller_is(spark: Any, servers: Servers, elsewhere: Path) -> None:
    topic = servers.topic("relative_archive")
    where = {"namesrvAddr": servers.namesrv}
    for number in range(2):
        servers.send([Message(topic, b"%d" % number) for _ in range(5)])
        archive(where, [topic], "kept/archive", spark=spark)
    assert (elsewhere / "kept" / "archive" / "_roquet").is_dir()
    compact("kept/archive", spark=spark)
    assert read_archive(spark, "kept/archive").count() == 10
    assert Source(archive="kept/archive").root == elsewhere / "kept" / "archive"


def test_the_checkpoint_of_a_stream_is_kept_where_the_caller_is(spark: Any, servers: Servers, elsewhere: Path) -> None:
    topic, counts = servers.topic("relative_stream"), servers.topic("relative_counts")
    servers.send([Message(topic, b"one")])
    analytics(spark, {"namesrvAddr": servers.namesrv}, topic, counts, checkpoint="checkpoint", until_now=True).awaitTermination()
    assert (elsewhere / "checkpoint" / "offsets").is_dir()


def test_a_table_of_lag_is_read_where_the_caller_is(spark: Any, elsewhere: Path) -> None:
    written = lag.append(Path("lag"), [SAMPLE])
    assert written is not None
    assert (elsewhere / written).exists()
    assert lag.read(spark, Path("lag")).count() == 1
