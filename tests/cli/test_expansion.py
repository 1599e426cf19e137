"""A cluster grows and shrinks: two name servers, brokers and the command as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from roquet import Message, Producer, TransactionProducer, TransactionState
from roquet.admin import Admin
from roquet.cli.shards import free_ports
from roquet.wire.signing import Credentials
from tests.cli.servers import PATIENCE_S, Roquet, run

T = TypeVar("T")


class Cluster:
    """State: the processes that were started, and where their files are."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.processes: list[Roquet] = []
        self.credentials: Credentials | None = None
        self.env: dict[str, str] = {}
        self.name_servers = ""

    def start(self, *arguments: str, until: str) -> tuple[Roquet, str]:
        process = Roquet(*arguments, cwd=self.root)
        self.processes.append(process)
        return process, process.wait_for(until)[1]

    def start_name_servers(self, more: str = "") -> None:
        addresses = []
        for number in (1, 2):
            (self.root / f"ns{number}.conf").write_text(f"listenPort=0\n{more}")
            _, address = self.start("namesrv", "-c", f"ns{number}.conf", "--data", f"ns{number}", until=r"boot success.* (\S+:\d+)$")
            addresses.append(address)
        self.name_servers = ";".join(addresses)

    def start_broker(self, name: str, *settings: str) -> Roquet:
        (port,) = free_ports(1, "127.0.0.1")
        lines = [f"brokerName={name}", f"listenPort={port}", f"namesrvAddr={self.name_servers}", f"storePathRootDir={name}", *settings]
        path = self.root / name / "broker.conf"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return self.start("broker", "-c", str(path), until=rf"broker\[{name}, (\S+)\] boot success")[0]

    def ask(self, what: Callable[[Admin], Awaitable[T]]) -> T:
        async def scenario() -> T:
            async with Admin(self.name_servers, credentials=self.credentials) as admin:
                return await what(admin)

        return asyncio.run(scenario())

    def until(self, found: Callable[[Admin], Awaitable[object]]) -> None:
        async def look(admin: Admin) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not await found(admin):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)

        self.ask(look)

    def until_registered(self, *names: str) -> None:
        self.ask(lambda admin: admin.until_registered(names, timeout_s=PATIENCE_S))

    def topics(self, name: str) -> dict[str, int]:
        async def table(admin: Admin) -> dict[str, int]:
            (broker,) = await admin.masters_named([name])
            found = (await admin.topic_table(broker.address)).topic_config_table
            return {topic: one.write_queue_nums for topic, one in found.items()}

        return self.ask(table)

    def roquet(self, *arguments: str, code: int = 0) -> str:
        done = run(*arguments, env={**os.environ, "NAMESRV_ADDR": self.name_servers, **self.env})
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def json(self, *arguments: str) -> Any:
        done = run(*arguments, "--json", env={**os.environ, "NAMESRV_ADDR": self.name_servers, **self.env})
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def end(self) -> None:
        for process in reversed(self.processes):
            process.end()


@contextlib.contextmanager
def made(root: Path) -> Iterator[Cluster]:
    cluster = Cluster(root)
    try:
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two name servers and two brokers, each a process."""
    with made(tmp_path_factory.mktemp("grown")) as found:
        found.start_name_servers()
        for name in ("broker-a", "broker-b"):
            found.start_broker(name)
        found.until_registered("broker-a", "broker-b")
        yield found


def test_a_topic_that_its_first_message_makes_is_on_every_broker_at_once_whoever_the_client_is(cluster: Cluster) -> None:
    cluster.roquet("send", "made-by-sending", "hello")

    async def everywhere(admin: Admin) -> bool:
        return {row.broker_name for row in (await admin.route("made-by-sending")).queue_datas} == {"broker-a", "broker-b"}

    cluster.until(everywhere)

    async def send(count: int) -> set[str]:
        async with Producer("spread", cluster.name_servers) as producer:
            return {(await producer.send(Message("made-by-sending", b"x"))).queue.broker_name for _ in range(count)}

    assert asyncio.run(send(32)) == {"broker-a", "broker-b"}


def test_a_new_broker_gets_what_the_others_have_and_an_old_one_goes(cluster: Cluster) -> None:
    cluster.roquet("topic", "create", "orders", "--queues", "6")
    cluster.roquet("topic", "create", "on-one-broker", "--broker", "broker-a")
    cluster.roquet("group", "create", "billing", "--retry-max", "5")
    cluster.start_broker("broker-c")
    cluster.until_registered("broker-c")

    planned = cluster.json("cluster", "expand", "broker-c", "--dry-run")
    rows = {(row["kind"], row["name"]): row["as"] for row in planned["plan"]}
    assert rows["topic", "orders"] == "6 queues"
    assert rows["group", "billing"] == "5 retries"
    assert ("topic", "on-one-broker") not in rows
    assert planned["leftOut"] == {"on-one-broker": "it is on broker-a, and not on broker-b"}
    assert not planned["done"]
    assert "orders" not in cluster.topics("broker-c"), "a plan changes nothing"
    assert "Not done: say --yes" in cluster.roquet("cluster", "expand", "broker-c", code=1)
    assert "orders" not in cluster.topics("broker-c")

    printed = cluster.roquet("cluster", "expand", "broker-c", "--yes")
    assert "left out: topic on-one-broker" in printed
    assert "broker-c has what the others have." in printed
    assert cluster.topics("broker-c")["orders"] == 6
    assert "on-one-broker" not in cluster.topics("broker-c")
    assert "broker-c lacks nothing." in cluster.roquet("cluster", "expand", "broker-c", "--yes"), "again is safe"
    routes = {row["broker"]: row["writeQueues"] for row in cluster.json("topic", "route", "orders")["brokers"]}
    assert routes == {"broker-a": 6, "broker-b": 6, "broker-c": 6}

    async def retries(admin: Admin) -> int:
        from roquet.wire.calls.groups import GET_ALL_SUBSCRIPTIONGROUP_CONFIG

        (broker,) = await admin.masters_named(["broker-c"])
        table = (await admin.call(broker.address, GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body.subscription_group_table
        return table["billing"].retry_max_times

    assert cluster.ask(retries) == 5
    cluster.roquet("cluster", "expand", "broker-c", "--yes", "--topic", "on-one-broker")
    assert "on-one-broker" in cluster.topics("broker-c")
    assert "no broker of broker-a, broker-b has a topic 'tpyo'" in cluster.roquet(
        "cluster", "expand", "broker-c", "--yes", "--topic", "tpyo", code=1
    )

    # and another goes
    cluster.roquet("group", "reset", "billing", "orders", "--to", "first", "--yes")
    cluster_send(cluster, "orders", 36)
    with Roquet("cluster", "drain", "broker-b", "--remove", "--every", "0.1", "-n", cluster.name_servers) as draining:
        draining.wait_for(r"billing  \d+ messages? to read; no member runs")
        assert "broker-b" in [one["broker"] for one in cluster.json("status")["brokers"]]
        cluster.roquet("consume", "orders", "--group", "billing", "--once", "--body")
        draining.wait_for("broker-b is drained: every group has read everything; it is withdrawn from the name servers. Its process at")
        assert draining.wait() == 0
    assert any("no group reads made-by-sending" in line for line in draining.lines), draining.lines
    assert [one["broker"] for one in cluster.json("status")["brokers"]] == ["broker-a", "broker-c"]
    assert {row["broker"] for row in cluster.json("topic", "route", "orders")["brokers"]} == {"broker-a", "broker-c"}
    assert "there are: broker-a, broker-c" in cluster.roquet("cluster", "drain", "broker-b", "--remove", code=1)
    assert "exclude each other" in cluster.roquet("cluster", "drain", "broker-a", "--remove", "--no-watch", code=1)


def cluster_send(cluster: Cluster, topic: str, count: int) -> None:
    async def send() -> None:
        async with Producer("drained", cluster.name_servers) as producer:
            for _ in range(count):
                await producer.send(Message(topic, b"x"))

    asyncio.run(send())


def test_delayed_and_timed_messages_and_open_transactions_are_waited_for_before_a_broker_may_go(cluster: Cluster) -> None:
    cluster.start_broker("broker-d", "messageDelayLevel=2s 1h")
    cluster.until_registered("broker-d")
    cluster.roquet("topic", "create", "later", "--broker", "broker-d")
    cluster.roquet("send", "later", "hello", "--after", "7200", "--count", "2")

    async def send() -> None:
        async def unknown(*given: object) -> TransactionState:
            return TransactionState.UNKNOWN

        async with TransactionProducer("halves", cluster.name_servers, execute=unknown, check=unknown) as producer:
            await producer.send(Message("later", b"x", delay_level=2))
            await producer.send_in_transaction(Message("later", b"x"))

    asyncio.run(send())
    with Roquet("cluster", "drain", "broker-d", "--every", "0.1", "-n", cluster.name_servers) as draining:
        draining.wait_for(r"1 message \(delayed\) to wait for")
        draining.wait_for(r"1 message \(in open transactions\) to wait for")
        draining.wait_for(r"2 messages \(timed\) to wait for")
        draining.signal(signal.SIGINT)
    assert "broker-d takes messages again" in cluster.roquet("cluster", "resume", "broker-d")


def test_an_expansion_that_is_killed_goes_on_when_it_is_run_again(cluster: Cluster) -> None:
    names = [f"many-{number:02}" for number in range(40)]

    async def make(admin: Admin) -> None:
        await asyncio.gather(*(admin.create_topic(name, read_queues=2, write_queues=2, brokers=["broker-a"]) for name in names))

    cluster.ask(make)
    cluster.start_broker("broker-e", "newNamesPerSecond=1")  # ten at once, and then one a second
    cluster.until_registered("broker-e")
    expand = ("cluster", "expand", "broker-e", "--from", "broker-a", "--yes")
    with Roquet(*expand, "-n", cluster.name_servers) as killed:

        async def begun(admin: Admin) -> bool:
            (broker,) = await admin.masters_named(["broker-e"])
            return any(name.startswith("many-") for name in (await admin.topic_table(broker.address)).topic_config_table)

        cluster.until(begun)
        killed.signal(signal.SIGKILL)
        killed.wait()
    assert 0 < len([name for name in cluster.topics("broker-e") if name.startswith("many-")]) < 40
    cluster.roquet("config", "set", "newNamesPerSecond=1000000", "--broker", "broker-e")
    assert "broker-e has what the others have." in cluster.roquet(*expand)
    assert {name: count for name, count in cluster.topics("broker-e").items() if name.startswith("many-")} == dict.fromkeys(names, 2)


ACL = """\
accounts:
- accessKey: admin-key
  secretKey: admin-secret
  admin: true
"""
APP = """\
- accessKey: orders-app
  secretKey: orders-app-secret
  topicPerms:
  - orders=PUB
  groupPerms:
  - billing=SUB
"""


def acl_file(root: Path, name: str, text: str) -> str:
    path = root / f"{name}.yml"
    path.write_text(text)
    path.chmod(0o600)
    return f"aclEnable=true\naclFile={path}"


def test_accounts_are_copied_with_their_secrets_and_no_secret_is_ever_printed(tmp_path: Path) -> None:
    with made(tmp_path) as cluster:
        cluster.start_name_servers(acl_file(tmp_path, "acl-ns", ACL))
        cluster.credentials = Credentials("admin-key", "admin-secret")
        cluster.env = {"ROQUET_ACCESS_KEY": "admin-key", "ROQUET_SECRET_KEY": "admin-secret"}
        cluster.start_broker("broker-a", acl_file(tmp_path, "acl-a", "globalWhiteRemoteAddresses:\n- 10.9.9.*\n" + ACL + APP))
        cluster.until_registered("broker-a")
        cluster.roquet("topic", "create", "orders")

        # a command
        cluster.start_broker("broker-b", acl_file(tmp_path, "acl-b", ACL))
        cluster.until_registered("broker-b")
        printed = cluster.roquet("cluster", "expand", "broker-b", "--yes", "-v")
        assert "orders-app" in printed
        assert "secret" not in printed.replace("its permissions and its secret", "")
        assert "secretKey: orders-app-secret" in (tmp_path / "acl-b.yml").read_text()
        assert "10.9.9.*" in (tmp_path / "acl-b.yml").read_text()
        assert "broker-b lacks nothing." in cluster.roquet("cluster", "expand", "broker-b", "--yes")

        # and a new broker by itself
        newest = cluster.start_broker("broker-c", "copyTopicsFrom=cluster", acl_file(tmp_path, "acl-c", ACL))
        cluster.until_registered("broker-c")
        assert "secretKey: orders-app-secret" in (tmp_path / "acl-c.yml").read_text()
        assert {row["broker"] for row in cluster.json("topic", "route", "orders")["brokers"]} == {"broker-a", "broker-b", "broker-c"}
        newest.wait_for("copied from cluster: 1 topics, 0 groups, 1 accounts; this broker is registered now")
        assert not any("orders-app-secret" in line for process in cluster.processes for line in process.lines)

        async def send() -> set[str]:
            app = Credentials("orders-app", "orders-app-secret")
            async with Producer("app", cluster.name_servers, credentials=app) as producer:
                return {(await producer.send(Message("orders", b"x"))).queue.broker_name for _ in range(48)}

        (tmp_path / "acl-ns.yml").write_text(ACL + APP)

        async def known(admin: Admin) -> bool:
            try:
                return len(await send()) == 3
            except Exception:
                return False

        cluster.until(known)

        # one without access control would let everybody in: it waits
        cluster.start_broker("broker-d", "copyTopicsFrom=cluster", f"aclCredentialsFile={tools(tmp_path)}")
        cluster.processes[-1].wait_for("broker-a has access control, and this broker has none: set aclEnable=true here")
        assert "broker-d" not in [one["broker"] for one in cluster.json("status")["brokers"]]


def tools(root: Path) -> Path:
    path = root / "tools.yml"
    path.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    path.chmod(0o600)
    return path
