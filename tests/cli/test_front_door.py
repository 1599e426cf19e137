"""The commands against a running `roquet up`, as a person or a script uses them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.cli.main import main
from roquet.client import PushConsumer
from tests.cli.servers import Roquet, up

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server, address = up(tmp_path_factory.mktemp("data"))
    with server:
        yield address


@pytest.fixture
def roquet(cluster: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the cluster; what it printed. `code` is the exit code it should have."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster)

    def run(*arguments: str, code: int = 0) -> str:
        assert main(arguments) == code, capsys.readouterr()
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return run


def as_json(text: str) -> Any:
    return json.loads(text)


def test_a_message_sent_is_consumed(roquet: Run) -> None:
    sent = roquet("send", "front-hello", "hello", "--tags", "greeting", "--keys", "k1", "--property", "colour=red")
    assert sent.startswith("SEND_OK  broker-a:")
    message = as_json(roquet("consume", "front-hello", "--from", "first", "--once", "--json"))
    assert message["body"] == "hello"
    assert message["tags"] == "greeting"
    assert message["keys"] == ["k1"]
    assert message["properties"]["colour"] == "red"
    assert message["messageId"] in sent


def test_many_are_sent_with_their_number_and_read_back_in_order(roquet: Run) -> None:
    result = as_json(roquet("send", "front-many", "number {n}", "--count", "500", "--json", "--in-flight", "8"))
    assert (result["stored"], result["failed"]) == (500, 0)
    assert result["perSecond"] > 0
    bodies = roquet("consume", "front-many", "--from", "first", "--once", "--body").splitlines()
    assert sorted(bodies) == sorted(f"number {number}" for number in range(500))


def test_batches_are_sent(roquet: Run) -> None:
    assert "100 stored in" in roquet("send", "front-batch", "--size", "64", "--count", "100", "--batch", "16")
    assert len(roquet("consume", "front-batch", "--once", "--json").splitlines()) == 100


def test_tags_and_counts_bound_what_is_shown(roquet: Run) -> None:
    for tag in ("a", "b", "a", "c"):
        roquet("send", "front-tags", tag, "--tags", tag)
    assert sorted(roquet("consume", "front-tags", "--once", "--tags", "a || b", "--body").split()) == ["a", "a", "b"]
    assert len(roquet("consume", "front-tags", "--from", "first", "--count", "2", "--body").split()) == 2


def test_a_group_reads_on_where_it_was(roquet: Run) -> None:
    roquet("topic", "create", "front-progress", "--queues", "1")
    roquet("send", "front-progress", "{n}", "--count", "10", "--in-flight", "1")
    first = roquet("consume", "front-progress", "--group", "front_group", "--from", "first", "--count", "4", "--body").split()
    progress = as_json(roquet("group", "progress", "front_group", "--json"))
    assert progress["lag"] == 6
    rest = roquet("consume", "front-progress", "--group", "front_group", "--once", "--body").split()
    assert first + rest == [str(number) for number in range(10)]
    assert "lag: 0 messages" in roquet("group", "progress", "front_group")


def test_a_topic_is_created_changed_shown_and_deleted(roquet: Run) -> None:
    assert "Created front-topic: 4 write and 4 read queues" in roquet("topic", "create", "front-topic", "--queues", "4")
    assert "front-topic" in roquet("topic", "list").split()
    assert "Changed front-topic: 2 write and 4 read queues" in roquet("topic", "update", "front-topic", "--write-queues", "2")
    route = as_json(roquet("topic", "route", "front-topic", "--json"))
    assert [(one["broker"], one["readQueues"], one["writeQueues"]) for one in route["brokers"]] == [("broker-a", 4, 2)]
    roquet("send", "front-topic", "x")
    status = as_json(roquet("topic", "status", "front-topic", "--json"))
    assert sum(one["maxOffset"] for one in status["queues"]) == 1
    assert "1 message in 4 queues" in roquet("topic", "status", "front-topic")
    assert "Not done: say --yes" in roquet("topic", "delete", "front-topic", code=1)
    roquet("topic", "delete", "front-topic", "--yes")
    assert "front-topic" not in roquet("topic", "list").split()
    assert "roquet topic list" in roquet("topic", "route", "front-topic", code=1)


def test_system_topics_are_shown_on_demand(roquet: Run) -> None:
    assert "TBW102" not in roquet("topic", "list").split()
    assert "TBW102" in roquet("topic", "list", "--all").split()


def test_a_group_is_created_listed_and_deleted(roquet: Run) -> None:
    roquet("group", "create", "front_new", "--retry-max", "3")
    assert "front_new" in {one["group"] for one in as_json(roquet("group", "list", "--json"))}
    assert roquet("group", "members", "front_new") == ""
    roquet("group", "delete", "front_new", "--yes")
    assert "front_new" not in {one["group"] for one in as_json(roquet("group", "list", "--json"))}
    assert "roquet group list" in roquet("group", "delete", "front_new", "--yes", code=1)


def test_messages_are_found_by_id_key_and_unique_key(roquet: Run) -> None:
    receipt = as_json(roquet("send", "front-query", "find me", "--keys", "needle", "--keys", "thread", "--json"))
    assert "find me" in roquet("query", "id", receipt["offsetMessageId"])
    assert "find me" in roquet("query", "id", receipt["messageId"], "--topic", "front-query")
    assert as_json(roquet("query", "key", "front-query", "thread", "--json"))[0]["body"] == "find me"
    assert as_json(roquet("query", "unique", "front-query", receipt["messageId"], "--json"))[0]["keys"] == ["needle", "thread"]
    assert "no message found" in roquet("query", "key", "front-query", "nothing", code=1)
    assert "find me" in roquet("query", "id", receipt["messageId"])
    assert "not 32 or 56 hex digits" in roquet("query", "id", "xyz", code=1)


def test_status_shows_the_cluster(roquet: Run) -> None:
    roquet("send", "front-status", "x")
    deadline = time.monotonic() + 600
    while True:  # the broker counts what it stored about once a second
        status = as_json(roquet("status", "--json"))
        (broker,) = status["brokers"]
        if broker["in"] or time.monotonic() > deadline:
            break
    assert broker["broker"] == "broker-a"
    assert broker["answers"]
    assert broker["logBytes"] > 0
    assert broker["in"] >= 1
    assert "front-status" in status["topics"]
    shown = roquet("status")
    assert "DefaultCluster" in shown
    assert "master" in shown


def test_status_warns_of_members_with_different_subscriptions(roquet: Run, cluster: str) -> None:
    async def two_members_that_disagree() -> None:
        async def nothing(message: object) -> None: ...

        def member(tags: str) -> PushConsumer:
            one = PushConsumer("front_torn", cluster, instance_name=f"torn-{tags}")
            one.subscribe("front-torn", tags, nothing)
            return one

        async with member("a"), member("b"):
            warnings = (await asyncio.to_thread(status_of, cluster))["warnings"]
            assert any("front_torn" in text for text in warnings), warnings

    roquet("topic", "create", "front-torn")
    asyncio.run(two_members_that_disagree())


def status_of(namesrv: str) -> Any:
    from roquet.admin import Admin
    from roquet.cli.status import look, to_json

    async def seen() -> Any:
        async with Admin(namesrv) as admin:
            return to_json(await look(admin), 0)

    return asyncio.run(seen())


def test_a_follower_in_a_group_shows_new_messages_and_leaves_on_ctrl_c(roquet: Run, cluster: str) -> None:
    roquet("topic", "create", "front-follow")
    with Roquet("consume", "front-follow", "--group", "front_followers", "--from", "first", "-n", cluster) as follower:
        follower.wait_for("member .* of front_followers")
        roquet("send", "front-follow", "live one")
        follower.wait_for("live one")
        assert "PYTHON" in roquet("group", "members", "front_followers")
        assert "has members that consume now" in roquet("consume", "front-follow", "--group", "front_followers", "--once", code=1)
        follower.signal(signal.SIGINT)
        assert follower.wait() == 0
    assert as_json(roquet("group", "progress", "front_followers", "--json"))["lag"] == 0


def test_a_looker_follows_without_a_trace(roquet: Run, cluster: str) -> None:
    roquet("topic", "create", "front-look")
    before = roquet("group", "list", "--all", "--json")
    with Roquet("consume", "front-look", "--from", "first", "-n", cluster) as looker:
        for number in range(3):
            roquet("send", "front-look", f"seen {number}")
            looker.wait_for(f"seen {number}")
        looker.end()
    assert {one["group"] for one in as_json(before)} == {one["group"] for one in as_json(roquet("group", "list", "--all", "--json"))}


def test_a_topic_nobody_has_is_an_error_that_says_what_to_do(roquet: Run) -> None:
    assert "roquet topic create" in roquet("consume", "front-nothing", "--once", code=1)
    assert "roquet topic create" in roquet("topic", "status", "front-nothing", code=1)


def test_a_body_over_the_limit_is_refused_with_the_limit(roquet: Run) -> None:
    assert "4194304" in roquet("send", "front-large", "--size", "4194305", code=1)
    assert "4194304" in roquet("send", "front-large", "--size", "4194305", "--count", "3", code=1)


@pytest.mark.parametrize("name", ["../x", "a/b", "x" * 300, ""])
def test_names_that_no_topic_may_have_are_refused(roquet: Run, name: str) -> None:
    assert roquet("topic", "create", name, code=1).startswith("roquet: ")
    assert roquet("send", name, "x", code=1).startswith("roquet: ")


def test_up_says_where_it_listens_and_what_to_type_next(tmp_path: Path) -> None:
    server, address = up(tmp_path)
    with server:
        assert any(f"send -n {address} greetings" in line for line in server.lines)
        assert server.end() == 0
    assert "Stopped. Everything is on disk." in server.lines
    assert (tmp_path / "broker-0" / "commitlog").is_dir()
    assert not (tmp_path / "broker-0" / "abort").exists()
