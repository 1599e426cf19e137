"""What docs/spark.md says of the sink is so: its tables are the code's, and its snippets run as printed."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from roquet import Message, PullConsumer, ReceivedMessage
from roquet.spark.encode import COLUMNS
from roquet.spark.sink import PLACE, SINK_OPTIONS
from tests.docs.snippets import ROOT, section, snippets
from tests.spark.conftest import Servers
from tests.spark.printed import Printed

SECTION = section((ROOT / "docs" / "spark.md").read_text(), "Writing to a topic")
COUNT = 60
CUSTOMERS = 5
DEADLINE_S = 600

SAID_AS = {
    ("binary", "large_binary", "string", "large_string"): "binary or string",
    ("string", "large_string"): "string",
    ("string", "large_string", "list"): "string or `array<string>`",
    ("map",): "map<string,string>",
    ("timestamp",): "timestamp",
    ("int8", "int16", "int32", "int64"): "int or other whole number",
}
"""Arrow's types in words of Spark."""


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the section."""
    part = SECTION.split(f"\n### {heading}\n")[1].split("\n### ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_every_column_of_the_sink_is_documented_as_it_is() -> None:
    expected = [[f"`{name}`", SAID_AS[types], about] for name, (types, about) in COLUMNS.items()]
    assert rows_of("Columns it takes") == expected


def test_every_option_of_the_sink_is_documented_as_it_is() -> None:
    assert rows_of("Options of the sink") == [[f"`{one.name}`", one.form, one.default, one.about] for one in SINK_OPTIONS]


def test_the_options_that_it_shares_with_the_source_are_named() -> None:
    options = SECTION.split("\n### Options of the sink\n")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", options)) == {name for name in PLACE if not name.startswith("tls")}
    assert "the other `tls...`" in options


def stored(servers: Servers, topic: str) -> dict[int, list[ReceivedMessage]]:
    """All messages, by queue."""

    async def work() -> dict[int, list[ReceivedMessage]]:
        found: dict[int, list[ReceivedMessage]] = defaultdict(list)
        async with PullConsumer("sink_docs", servers.namesrv) as consumer:
            for queue in await consumer.fetch_queues(topic):
                at, end = 0, await consumer.max_offset(queue)
                while at < end:
                    result = await consumer.pull(queue, at)
                    found[queue.queue_id] += result.messages
                    at = result.next_offset
        return found

    return servers.run(work())


def test_the_snippets_of_the_section_run_as_printed(spark: Any, servers: Servers, tmp_path: Path) -> None:
    topics = {name: servers.topic(f"sink-docs-{name}", 2) for name in ("orders", "paid-orders", "orders-by-customer", "orders-audit")}
    bodies = [json.dumps({"order": number, "customer": f"c{number % CUSTOMERS}"}).encode() for number in range(COUNT)]
    tags = ["paid" if number % 3 == 0 else "open" for number in range(COUNT)]
    servers.send([Message(topics["orders"], body, tags=tag) for body, tag in zip(bodies, tags, strict=True)])
    shipped: list[bytes] = []

    async def ship(message: ReceivedMessage) -> None:
        shipped.append(message.body)

    printed = Printed(servers, tmp_path, topics, spark=spark, ship=ship)
    batch, stream, consuming, each_batch = snippets(SECTION)

    printed.run(batch)
    paid = [message for queue in stored(servers, topics["paid-orders"]).values() for message in queue]
    assert sorted(message.body for message in paid) == sorted(body for body, tag in zip(bodies, tags, strict=True) if tag == "paid")

    printed.run(stream)
    queues = stored(servers, topics["orders-by-customer"])
    assert sorted(message.body for queue in queues.values() for message in queue) == sorted(body.upper() for body in bodies)
    homes: dict[str, set[int]] = defaultdict(set)
    for queue_id, messages in queues.items():
        for message in messages:
            homes[json.loads(message.body)["CUSTOMER"]].add(queue_id)
    assert [len(homes[f"C{number}"]) for number in range(CUSTOMERS)] == [1] * CUSTOMERS

    printed.run(each_batch)
    shutil.rmtree(tmp_path / "orders-audit.checkpoint")
    printed.run(each_batch)  # the same batches with the same keys
    twice = [message for queue in stored(servers, topics["orders-audit"]).values() for message in queue]
    assert len(twice) == 2 * COUNT
    assert len({message.message_id for message in twice}) == COUNT

    async def consume() -> None:
        printed.run(consuming)
        async with printed.names["consumer"], asyncio.timeout(DEADLINE_S):
            while len(shipped) + printed.names["listener"].dropped < 2 * COUNT:
                await asyncio.sleep(0.02)

    servers.run(consume(), 2 * DEADLINE_S)
    assert sorted(shipped) == sorted(bodies)
