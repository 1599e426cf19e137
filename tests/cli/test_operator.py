"""What somebody who runs a cluster does with it: settings, draining, slips in names, ids, completion. Real servers, the real command."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import roquet as package
from roquet import Producer, speedups
from roquet.admin import Admin
from roquet.cli.main import main
from roquet.message import Message
from tests.cli.servers import Roquet, up

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two brokers."""
    server, address = up(tmp_path_factory.mktemp("data"), "--shards", "2")
    with server:
        yield address


@pytest.fixture
def roquet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Run:
    """Run a command against the cluster; what it printed. `code` is the exit code it should have."""

    def run(*arguments: str, code: int = 0, namesrv: str = "") -> str:
        monkeypatch.setenv("NAMESRV_ADDR", namesrv or request.getfixturevalue("cluster"))
        assert main(arguments) == code, capsys.readouterr()
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return run


def as_json(text: str) -> Any:
    return json.loads(text)


# Help


def test_roquet_alone_prints_help() -> None:
    ran = subprocess.run([sys.executable, "-m", "roquet"], capture_output=True, text=True, timeout=600, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("usage: roquet")
    assert "roquet up" in ran.stdout


def completed(*words: str) -> list[str]:
    """What bash offers behind these words."""
    script = subprocess.run([sys.executable, "-m", "roquet", "completion", "bash"], capture_output=True, text=True, timeout=600, check=True)
    line = " ".join(f"'{word}'" for word in words)
    ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _roquet; printf "%s\\n" "${{COMPREPLY[@]}}"'
    shell = subprocess.run(["bash", "-c", f"{script.stdout}\n{ask}"], capture_output=True, text=True, timeout=600, check=True, cwd="/")
    assert shell.stderr == ""
    return shell.stdout.split()


def test_bash_completes_commands_and_options() -> None:
    assert completed("roquet", "top") == ["topic"]
    assert {"create", "update", "delete"} <= set(completed("roquet", "topic", ""))
    assert completed("roquet", "topic", "create", "orders", "--bro") == ["--broker"]
    assert completed("roquet", "completion", "fi") == ["fish"]


@pytest.mark.parametrize(("shell", "line"), [("zsh", "complete -F _roquet roquet"), ("fish", "-a topic -d 'list, create")])
def test_other_shells_get_their_script(shell: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert line in capsys.readouterr().out


# Looking


def test_status_shows_the_version_of_roquet_beside_the_protocol_s(roquet: Run) -> None:
    shown = roquet("status")
    assert "ROQUET" in shown
    assert "PROTOCOL" in shown
    assert package.__version__ in shown
    (one, _) = as_json(roquet("status", "--json"))["brokers"]
    assert one["roquetVersion"] == package.__version__
    assert one["version"].startswith("V4_9")
    assert one["writable"] is True


def test_status_shows_which_way_sends_took_and_whether_the_speedups_run(roquet: Run) -> None:
    roquet("topic", "create", "two-ways", "--broker", "broker-a")  # broker-b is drained below, which waits for timed messages
    roquet("send", "two-ways", "plain")
    roquet("send", "two-ways", "later", "--after", "3600")
    assert "FAST" in roquet("status")
    brokers = as_json(roquet("status", "--json"))["brokers"]
    assert sum(one["sendsFast"] for one in brokers) >= 1
    assert sum(one["sendsGeneral"] for one in brokers) >= 1
    assert {one["speedups"] for one in brokers} == {speedups.in_words()}


def test_an_id_that_send_printed_is_found_without_its_topic(roquet: Run) -> None:
    roquet("topic", "create", "id-other")
    printed = roquet("send", "id-topic", "find me").split()[-1]
    assert "find me" in roquet("query", "id", printed)
    receipt = as_json(roquet("send", "id-topic", "and me", "--json"))
    assert "and me" in roquet("query", "id", receipt["offsetMessageId"])
    assert "no message found" in roquet("query", "id", "C0000202000A2A139F1E6D2BAE4F0000", code=1)


def test_a_message_that_waits_for_its_time_is_found_by_its_id(roquet: Run) -> None:
    roquet("topic", "create", "id-later", "--broker", "broker-a")
    printed = roquet("send", "id-later", "later", "--after", "3600").split()[-1]
    assert "later" in roquet("query", "id", printed)


# Slips in names


@pytest.mark.parametrize("words", [("reset", "orders-tpyo", "slips", "--to", "first"), ("skip", "orders-tpyo", "slips")], ids=" ".join)
@pytest.mark.parametrize("dry", [True, False])
def test_a_group_that_nobody_has_is_an_error(roquet: Run, words: tuple[str, ...], dry: bool) -> None:
    roquet("topic", "create", "slips")
    roquet("group", "create", "orders-typo")
    said = roquet("group", *words, "--dry-run" if dry else "--yes", code=1)
    assert "no broker has a group 'orders-tpyo'; did you mean 'orders-typo'?" in said
    assert "orders-tpyo" not in {one["group"] for one in as_json(roquet("group", "list", "--json"))}


@pytest.mark.parametrize("words", ["update {} --no-consume", "progress {}", "members {}", "delete {} --yes"])
def test_no_command_takes_a_slip_in_a_group_for_a_group(roquet: Run, words: str) -> None:
    assert "no broker has a group 'nobody-here'" in roquet("group", *words.format("nobody-here").split(), code=1)
    assert "nobody-here" not in {one["group"] for one in as_json(roquet("group", "list", "--json"))}


def test_an_update_of_a_group_leaves_the_rest_as_it_is(roquet: Run, cluster: str) -> None:
    roquet("group", "create", "kept-group", "--retry-max", "3", "--no-broadcast")
    roquet("group", "update", "kept-group", "--no-consume")

    async def seen() -> Any:
        async with Admin(cluster) as admin:
            return (await admin.groups())["kept-group"]

    found = asyncio.run(seen())
    assert (found.retry_max_times, found.consume_broadcast_enable, found.consume_enable) == (3, False, False)


def test_an_update_creates_no_topic(roquet: Run) -> None:
    assert "'slip-topic'" in roquet("topic", "update", "slip-topic", "--perm", "r", code=1)
    assert "slip-topic" not in roquet("topic", "list").split()


def test_a_topic_is_created_on_one_broker(roquet: Run) -> None:
    assert roquet("topic", "create", "on-one", "--broker", "broker-b").endswith("on broker-b\n")
    assert [one["broker"] for one in as_json(roquet("topic", "route", "on-one", "--json"))["brokers"]] == ["broker-b"]
    assert "no master named 'broker-z' is registered; there are: broker-a, broker-b" in roquet(
        "topic", "create", "on-none", "--broker", "broker-z", code=1
    )


# Dead letters


def test_dead_letters_are_purged_and_new_ones_come(roquet: Run, cluster: str) -> None:
    async def dead(number: int) -> None:
        """A dead letter as a broker makes it: in the group's own topic."""
        from roquet.client import Producer

        async with Producer("purging", cluster) as producer:
            for _ in range(number):
                await producer.send(Message("%DLQ%purged", b"x", properties={"RETRY_TOPIC": "orders"}))

    roquet("topic", "create", "%DLQ%purged", "--queues", "1", "--broker", "broker-a")
    asyncio.run(dead(3))
    assert "would delete 3 dead letters" in roquet("dead-letters", "purge", "purged", "--dry-run")
    assert "Not done: say --yes" in roquet("dead-letters", "purge", "purged", code=1)
    assert "deleted 3 dead letters of purged" in roquet("dead-letters", "purge", "purged", "--yes")
    assert "no dead letters" in roquet("dead-letters", "look", "purged", code=1)
    roquet("topic", "create", "%DLQ%purged", "--queues", "1", "--broker", "broker-a")
    asyncio.run(dead(1))
    assert as_json(roquet("dead-letters", "purge", "purged", "--dry-run", "--json"))["letters"] == 1
    assert "has no dead letters" in roquet("dead-letters", "purge", "never-had-one", "--yes", code=1)


# Settings


def test_a_setting_is_looked_at_changed_and_there_after_a_restart(roquet: Run, tmp_path: Path) -> None:
    server, namesrv = up(tmp_path)
    with server:
        shown = {one["key"]: one for one in as_json(roquet("config", "get", "--json", namesrv=namesrv))}
        assert (shown["fileReservedTime"]["value"], shown["fileReservedTime"]["changesAtRunTime"]) == ("72", True)
        assert shown["listenPort"]["changesAtRunTime"] is False
        said = roquet("config", "set", "fileReservedTime=48", namesrv=namesrv)
        assert "broker-a: fileReservedTime=48 (was 72)" in said
        assert "broker.properties for the next start" in said
        assert "listenPort cannot change at run time" in roquet("config", "set", "listenPort=1", code=1, namesrv=namesrv)
        assert "did you mean 'fileReservedTime'?" in roquet("config", "set", "fileReservedTimes=1", code=2, namesrv=namesrv)
        assert "did you mean 'fileReservedTime'?" in roquet("config", "get", "fileReservedTimes", code=2, namesrv=namesrv)
        assert "orderMessageEnable=true (was false)" in roquet(
            "config", "set", "orderMessageEnable=true", "--name-servers", namesrv=namesrv
        )
    server, namesrv = up(tmp_path)
    with server:
        (one,) = as_json(roquet("config", "get", "fileReservedTime", "--json", namesrv=namesrv))
        assert one["value"] == "48"
        (one,) = as_json(roquet("config", "get", "orderMessageEnable", "--name-servers", "--json", namesrv=namesrv))
        assert one["value"] == "true"


def test_a_setting_is_changed_on_one_of_two_brokers(roquet: Run) -> None:
    roquet("config", "set", "transactionCheckMax=7", "--broker", "broker-b")
    values = {one["server"]: one["value"] for one in as_json(roquet("config", "get", "transactionCheckMax", "--json"))}
    assert values == {"broker-a": "15", "broker-b": "7"}


# Draining


def test_a_broker_is_drained_and_comes_back(roquet: Run, cluster: str) -> None:
    roquet("topic", "create", "drained", "--queues", "1")
    roquet("send", "drained", "before {n}", "--count", "40")
    roquet("group", "create", "drain_readers")
    roquet("group", "reset", "drain_readers", "drained", "--to", "first", "--yes")
    try:
        with Roquet("cluster", "drain", "broker-b", "--every", "0.1", "-n", cluster) as draining:
            draining.wait_for("broker-b takes no new messages")
            draining.wait_for(r"drain_readers  \d+ messages to read; no member runs")
            assert {one["broker"]: one["writable"] for one in as_json(roquet("status", "--json"))["brokers"]} == {
                "broker-a": True, "broker-b": False,
            }  # fmt: skip
            assert "broker-b is drained: producers are sent elsewhere" in roquet("status")
            roquet("topic", "create", "made-while-drained")
            assert {one["broker"]: one["perm"] for one in as_json(roquet("topic", "route", "made-while-drained", "--json"))["brokers"]} == {
                "broker-a": 6, "broker-b": 4,
            }  # fmt: skip
            for _ in range(6):
                assert "SEND_OK  broker-a:" in roquet("send", "drained", "after")
            roquet("consume", "drained", "--group", "drain_readers", "--once", "--body")
            draining.wait_for("broker-b is drained: every group has read everything")
            assert draining.wait() == 0
    finally:
        assert "broker-b takes messages again" in roquet("cluster", "resume", "broker-b")
    places = {roquet("send", "drained", "again").split()[1].partition(":")[0] for _ in range(8)}
    assert places == {"broker-a", "broker-b"}
    assert {one["writable"] for one in as_json(roquet("status", "--json"))["brokers"]} == {True}
    assert "there are: broker-a, broker-b" in roquet("cluster", "drain", "broker-tpyo", code=1)


def test_a_broker_is_not_called_drained_while_producers_may_still_send_to_it(roquet: Run, cluster: str) -> None:
    """They ask for routes every 30 seconds, and a broker takes what comes until then, as RocketMQ's does."""

    def drain(settle: str) -> Roquet:
        return Roquet("cluster", "drain", "broker-b", "--every", "0.1", "--settle", settle, "-n", cluster)

    async def producing() -> None:
        async with Producer("unaware", cluster) as producer:
            for _ in range(16):
                await producer.send(Message("unaware", b"before"))
            with drain("600") as draining:
                await asyncio.to_thread(draining.wait_for, "1 producer is connected: what it sends in the next 600 s counts too")
                draining.signal(signal.SIGINT)
            with drain("0.5") as draining:
                await asyncio.to_thread(draining.wait_for, "broker-b is drained: every group has read everything")

    roquet("topic", "create", "unaware")
    for group in as_json(roquet("group", "list", "--json")):
        roquet("group", "delete", group["group"], "--offsets", "--yes")  # of other tests: their backlog would be waited for
    try:
        asyncio.run(producing())
        with drain("600") as draining:  # nobody is connected any more: it does not wait
            draining.wait_for("broker-b is drained: every group has read everything")
        assert "its groups have 0 messages to read now" in roquet("cluster", "drain", "broker-b", "--no-watch")
    finally:
        roquet("cluster", "resume", "broker-b")


def test_a_permission_that_was_wiped_at_the_name_server_is_shown_and_brought_back(roquet: Run, cluster: str) -> None:
    async def wipe() -> int:
        async with Admin(cluster) as admin:
            return await admin.wipe_write_permission("broker-b")

    assert asyncio.run(wipe()) > 0
    assert "broker-b is drained" in roquet("status")
    roquet("cluster", "resume", "broker-b")
    assert "is drained" not in roquet("status")
