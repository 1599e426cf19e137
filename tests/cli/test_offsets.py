"""`roquet group reset`, `skip` and `clone`, with and without running members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import roquet as library
from roquet.admin import Admin
from roquet.cli.main import main
from roquet.cli.offsets import position
from roquet.client import Message, MessageQueue
from roquet.embed import Embedded
from roquet.errors import ClientError
from tests.cli.servers import up

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server, address = up(Path(tmp_path_factory.mktemp("data")))
    with server:
        yield address


@pytest.fixture
def roquet(cluster: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("NAMESRV_ADDR", cluster)

    def run(*arguments: str, code: int = 0) -> str:
        assert main(arguments) == code, capsys.readouterr()
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return run


def progress(roquet: Run, group: str) -> dict[int, int]:
    shown: Any = json.loads(roquet("group", "progress", group, "--json"))
    return {one["queueId"]: one["consumerOffset"] for one in shown["queues"] if not one["topic"].startswith("%")}


def consumed(roquet: Run, topic: str, group: str, count: int = 20) -> None:
    """A topic with one queue of `count` messages that the group has read."""
    roquet("topic", "create", topic, "--queues", "1")
    roquet("send", topic, "{n}", "--count", str(count))
    roquet("consume", topic, "--group", group, "--from", "first", "--count", str(count))


def test_a_group_reads_again_from_the_first_message(roquet: Run) -> None:
    consumed(roquet, "reset-first", "reset-first-group")
    assert progress(roquet, "reset-first-group") == {0: 20}
    plan = roquet("group", "reset", "reset-first-group", "reset-first", "--to", "first", "--dry-run")
    assert "would read 20 messages of reset-first again" in plan
    assert "-20" in plan
    assert progress(roquet, "reset-first-group") == {0: 20}
    done = roquet("group", "reset", "reset-first-group", "reset-first", "--to", "first", "--yes")
    assert "reads 20 messages of reset-first again" in done
    assert progress(roquet, "reset-first-group") == {0: 0}


def test_a_group_goes_on_at_an_offset_of_one_queue(roquet: Run) -> None:
    consumed(roquet, "reset-offset", "reset-offset-group")
    result = json.loads(roquet("group", "reset", "reset-offset-group", "reset-offset", "--to", "7", "--queue", "0", "--yes", "--json"))
    assert result["queues"] == [{"broker": "broker-a", "queueId": 0, "consumed": 20, "target": 7}]
    assert (result["done"], result["members"]) == (True, [])
    assert progress(roquet, "reset-offset-group") == {0: 7}
    complaint = roquet("group", "reset", "reset-offset-group", "reset-offset", "--to", "77", "--yes", code=1)
    assert "holds 0 to 20" in complaint


def test_a_group_goes_on_at_a_time(roquet: Run) -> None:
    consumed(roquet, "reset-time", "reset-time-group")
    roquet("group", "reset", "reset-time-group", "reset-time", "--to", "2001-01-01", "--yes")
    assert progress(roquet, "reset-time-group") == {0: 0}


def test_a_group_skips_its_backlog(roquet: Run) -> None:
    consumed(roquet, "reset-skip", "reset-skip-group")
    roquet("send", "reset-skip", "{n}", "--count", "30")
    assert "skips 30 messages" in roquet("group", "skip", "reset-skip-group", "reset-skip", "--yes")
    assert progress(roquet, "reset-skip-group") == {0: 50}


def test_a_group_goes_on_where_another_is(roquet: Run) -> None:
    consumed(roquet, "reset-clone", "reset-clone-group")
    roquet("send", "reset-clone", "{n}", "--count", "5")
    assert "lag: 5 messages" in roquet("group", "clone", "reset-clone-group", "reset-clone-copy", "--topic", "reset-clone", "--yes")
    assert progress(roquet, "reset-clone-copy") == {0: 20}
    assert "no progress" in roquet("group", "clone", "reset-nobody", "x", "--yes", code=1)


def test_nothing_is_done_without_a_yes_or_for_a_group_that_is_not_there(roquet: Run) -> None:
    consumed(roquet, "reset-ask", "reset-ask-group")
    assert "--yes" in roquet("group", "reset", "reset-ask-group", "reset-ask", "--to", "first", code=1)
    assert progress(roquet, "reset-ask-group") == {0: 20}
    assert "no broker has a group" in roquet("group", "reset", "reset-unknown", "reset-ask", "--to", "first", "--yes", code=1)


def test_positions_are_words_offsets_and_times() -> None:
    assert (position("first"), position("last"), position("4711")) == ("first", "last", 4711)
    assert position("1714557600000") == datetime.fromtimestamp(1714557600)
    assert position("2024-05-01T10:00") == datetime(2024, 5, 1, 10)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(600):
        while not await condition():
            await asyncio.sleep(0.02)


def test_running_members_are_told() -> None:
    async def scenario(mq: Embedded, admin: Admin) -> None:
        await admin.create_topic("t", read_queues=1, write_queues=1)
        queue = MessageQueue("t", "broker-a", 0)
        async with mq.producer() as producer:
            for number in range(10):
                await producer.send(Message("t", b"%d" % number), queue=queue)
        consumer = mq.consumer("g")
        seen: list[bytes] = []

        @consumer.on("t")
        async def listen(message: library.ReceivedMessage) -> None:
            seen.append(message.body)

        async with consumer:

            async def all_seen() -> bool:
                return len(seen) == 10

            await until(all_seen)
            await admin.set_consumer_offset("g", queue, 10)
            with pytest.raises(ClientError, match="stop them first"):
                await admin.reset_progress("g", "t", 3)
            with pytest.raises(ClientError, match="stop them first"):
                await admin.reset_progress("g", "t", "first", queue_id=0)
            with pytest.raises(ClientError, match="running members"):
                await admin.clone_progress("h", "g")
            result = await admin.reset_progress("g", "t", "first")
            assert len(result.members) == 1
            assert [move.target for move in result.moves] == [0]

    async def run() -> None:
        async with library.embedded() as mq, mq.admin() as admin:
            await scenario(mq, admin)

    asyncio.run(run())
