"""The benchmark's load generator, against a small broker: every kind of round runs, and counts what it says it counts."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import roquet
from roquet.embed import Embedded

LOAD = Path(__file__).resolve().parents[2] / "bench" / "load.py"
QUEUES = 8
PATIENCE_S = 600.0
RETRY_TOPIC = "%RETRY%bench_retry"


async def load(mq: Embedded, what: str, topic: str, count: int) -> dict[str, Any]:
    port = mq.broker.rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(LOAD), what, "--port", port, "--topic", topic, "--count", str(count), "--queues", str(QUEUES),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE_S):
        out, problem = await process.communicate(b"\n")
    assert process.returncode == 0, problem.decode()
    ready, outcome = out.decode().splitlines()
    assert ready == "ready"
    found = json.loads(outcome)
    assert isinstance(found, dict)
    assert not found["errors"], found
    return found


async def stored(admin: roquet.Admin, topic: str) -> int:
    return sum(queue.count for queue in await admin.topic_status(topic))


def test_every_kind_of_round_counts_right() -> None:
    async def scenario() -> None:
        async with roquet.embedded(settings={"enablePropertyFilter": "true"}) as mq, mq.admin() as admin:
            for topic, queues in (("plain", QUEUES), ("mixed", QUEUES), (RETRY_TOPIC, 1)):
                await admin.create_topic(topic, read_queues=queues, write_queues=queues)
            expected = 0
            for what in ("send", "batch", "transaction", "delay"):
                assert (await load(mq, what, "plain", 320))["messages"] == 320
                expected += 320
                assert await stored(admin, "plain") == expected, what
            assert (await load(mq, "pull", "plain", expected))["messages"] == expected
            assert (await load(mq, "back", "plain", 320))["messages"] == 320
            assert await stored(admin, RETRY_TOPIC) == 320
            await load(mq, "mixed", "mixed", 800)
            for what in ("tag", "sql"):
                # Two passes; the generator itself holds that one in a hundred came.
                assert (await load(mq, what, "mixed", 1_600))["messages"] == 1_600

    asyncio.run(scenario())
