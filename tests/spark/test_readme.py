"""What the README says of Spark is so: its snippets run as printed, one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roquet import Message
from tests.docs.snippets import ROOT, section, snippets
from tests.spark.conftest import Servers
from tests.spark.printed import Printed

COUNT = 60


def test_the_readmes_snippets_on_spark_run_as_printed(
    spark: Any, servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = {"orders": servers.topic("readme-orders", 2), "paid-orders": "readme-paid-orders"}  # the sink creates the second
    tags = ["paid" if number % 3 == 0 else "open" for number in range(COUNT)]
    servers.send([Message(topics["orders"], b"order %d" % number, tags=tag) for number, tag in enumerate(tags)])
    printed = Printed(servers, tmp_path, topics)  # its first snippet makes the session
    table, stream, files = snippets(section((ROOT / "README.md").read_text(), "Topics as tables"))

    printed.run(table)
    assert {"|open|   40|", "|paid|   20|"} <= set(capsys.readouterr().out.splitlines())

    printed.run(stream)
    sent = spark.read.format("rocketmq").options(namesrvAddr=servers.namesrv, subscribe=topics["paid-orders"]).load()
    expected = [b"order %d" % number for number, tag in enumerate(tags) if tag == "paid"]
    assert sorted(bytes(row.body) for row in sent.collect()) == sorted(expected)

    printed.run(files)
    assert capsys.readouterr().out == "20\n"
