"""The Python of docs/pipeline-observe.md runs as printed, one snippet after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roquet import LitePullConsumer, Message, Producer
from roquet.wire.names import dead_letter_topic
from tests.docs.snippets import ROOT, snippets
from tests.spark.conftest import Servers
from tests.spark.printed import Printed


async def read_one(namesrv: str) -> None:
    """So that a group has progress, and lag."""
    async with Producer("observed", namesrv) as producer:
        await producer.send(Message("orders", b"order 18"))
    consumer = LitePullConsumer("observed", namesrv, consume_from="first")
    consumer.subscribe("orders")
    async with consumer:
        while not await consumer.poll():
            pass


def test_the_snippets_on_watching_run_as_printed(
    spark: Any,
    start_servers: Callable[..., Servers],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers = start_servers(settings={"traceTopicEnable": "true"})
    group = servers.topic(dead_letter_topic("observed"), 1)
    servers.send([Message(group, b"order 17", tags="paid", properties={"region": "eu", "RETRY_TOPIC": "orders", "reason": "no such card"})])
    servers.run(read_one(servers.namesrv))
    printed = Printed(servers, tmp_path, {"billing": "observed", "lag": f"{tmp_path}/lag"}, spark=spark, Path=Path)
    dead_letters, traces, lag = snippets((ROOT / "docs" / "pipeline-observe.md").read_text())

    printed.run(dead_letters)
    assert "no such card" in capsys.readouterr().out
    assert [row["keys"] for row in printed.names["some"].collect()] == [None]

    printed.run(traces)
    assert capsys.readouterr().out.count("|topic|") == 2, "two tables; nobody has traced yet"

    printed.run(lag)
    assert "|observed|orders|" in capsys.readouterr().out.replace(" ", "")
