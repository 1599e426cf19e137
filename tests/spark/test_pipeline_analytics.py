"""Counts by window, from a topic back into a topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roquet import Message
from roquet.cli.main import main
from roquet.spark.pipelines.analytics import analytics
from tests.spark.conftest import Servers

HOUR = 3_600_000
START = 1_700_000_400_000
"""A full hour, in ms."""


def event(topic: str, at_ms: int, tag: str, unique: str) -> Message:
    return Message(topic, json.dumps({"at": at_ms}).encode(), tags=tag, keys=unique)


def run(spark: Any, servers: Servers, topic: str, checkpoint: Path) -> None:
    query = analytics(
        spark,
        {"namesrvAddr": servers.namesrv},
        topic,
        f"{topic}-counts",
        checkpoint=str(checkpoint),
        window="1 hour",
        watermark="1 minute",
        time="timestamp_millis(cast(get_json_object(cast(body as string), '$.at') as bigint))",
        unique="keys",
        until_now=True,
    )
    query.awaitTermination(60)
    assert query.exception() is None


def counted(spark: Any, servers: Servers, topic: str) -> list[tuple[str, int]]:
    found = spark.read.format("rocketmq").options(namesrvAddr=servers.namesrv, subscribe=f"{topic}-counts").load()
    rows = [json.loads(row.body) for row in found.select("body").collect()]
    return sorted((row["key"], row["count"]) for row in rows)


def test_a_closed_window_is_sent_once_and_a_repeated_id_counts_once(spark: Any, servers: Servers, tmp_path: Path) -> None:
    topic = servers.topic("analytics-in", 2)
    servers.topic(f"{topic}-counts", 1)
    first = [event(topic, START + number, "paid", f"a{number}") for number in range(5)]
    first += [event(topic, START + 1, "paid", "a1"), event(topic, START + 2, "open", "b0")]
    servers.send(first)
    run(spark, servers, topic, tmp_path / "checkpoint")
    assert counted(spark, servers, topic) == []  # the window is still open
    servers.send([event(topic, START + 3 * HOUR, "paid", "c0")])
    run(spark, servers, topic, tmp_path / "checkpoint")
    assert counted(spark, servers, topic) == [("open", 1), ("paid", 5)]
    run(spark, servers, topic, tmp_path / "checkpoint")
    assert counted(spark, servers, topic) == [("open", 1), ("paid", 5)]


def test_a_dry_run_shows_the_counts_and_sends_nothing(spark: Any, servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    topic = servers.topic("analytics-dry", 1)
    servers.topic("analytics-dry-out", 1)
    servers.send([Message(topic, b"x", tags="paid") for _ in range(3)])
    arguments = ["pipeline", "analytics", topic, "--to", "analytics-dry-out", "--checkpoint", "unused", "--dry-run", "-n", servers.namesrv]
    assert main([*arguments, "--window", "100 days", "--json"]) == 0
    assert [(row["key"], row["count"]) for row in json.loads(capsys.readouterr().out)] == [("paid", 3)]
    assert spark.read.format("rocketmq").options(namesrvAddr=servers.namesrv, subscribe="analytics-dry-out").load().count() == 0


def test_the_command_counts_until_now_and_a_second_run_goes_on(
    spark: Any, servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = servers.topic("analytics-command", 1)
    servers.topic("analytics-command-counts", 1)
    arguments = ["pipeline", "analytics", topic, "--to", "analytics-command-counts", "--checkpoint", str(tmp_path / "c")]
    arguments += ["-n", servers.namesrv]
    servers.send([Message(topic, b"x", tags="paid") for _ in range(3)])
    assert main([*arguments, "--until-now", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 3
    servers.send([Message(topic, b"x", tags="paid") for _ in range(2)])
    assert main([*arguments, "--until-now"]) == 0
    assert "2 messages of analytics-command counted" in capsys.readouterr().out
