"""`namesrv`, `broker` and shards as processes: boot lines, signals, a killed shard, a killed supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from roquet.admin import Admin
from roquet.cli.shards import free_ports
from roquet.client import Message, Producer
from roquet.errors import RoquetError
from tests.cli.servers import PATIENCE_S, Roquet, up, wait_until_gone


def brokers_of(namesrv: str) -> list[str]:
    async def ask() -> list[str]:
        async with Admin(namesrv) as admin:
            return [broker.name for broker in await admin.masters()]

    return asyncio.run(ask())


def wait_for_brokers(namesrv: str, names: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    found: list[str] = []
    while found != names:
        assert time.monotonic() < deadline, f"registered are {found}, expected {names}"
        try:
            found = brokers_of(namesrv)
        except RoquetError:
            found = []
        time.sleep(0 if found == names else 0.05)


def test_a_name_server_and_a_broker_start_from_files_and_stop_cleanly(tmp_path: Path) -> None:
    (tmp_path / "namesrv.conf").write_text("listenPort=0\n")
    with Roquet("namesrv", "-c", "namesrv.conf", cwd=tmp_path) as namesrv:
        address = namesrv.wait_for(r"boot success.* (\S+:\d+)$")[1]
        port = free_ports(1, "127.0.0.1")[0]
        (tmp_path / "broker.conf").write_text(f"brokerName=orders\nlistenPort={port}\nnamesrvAddr={address}\nstorePathRootDir=store\n")
        with Roquet("broker", "-c", "broker.conf", cwd=tmp_path) as broker:
            assert broker.wait_for(r"broker\[orders, (\S+)\] boot success")[1] == f"127.0.0.1:{port}"
            wait_for_brokers(address, ["orders"])
            assert broker.end() == 0
        assert not (tmp_path / "store" / "abort").exists()
        assert namesrv.end() == 0


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    server, address = up(tmp_path / "one")
    with server, Roquet("up", "--data", str(tmp_path / "two"), "--namesrv-port", address.rpartition(":")[2]) as second:
        second.wait_for("Choose other ports")
        assert second.wait() == 1


def test_two_brokers_cannot_open_one_store(tmp_path: Path) -> None:
    server, _ = up(tmp_path)
    with server, Roquet("up", "--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0") as second:
        assert second.wait() == 1
        assert any("in use by another broker" in line for line in second.lines), second.lines


def test_a_shard_killed_with_sigkill_comes_back_at_its_address_with_its_messages(tmp_path: Path) -> None:
    server, namesrv = up(tmp_path, "--shards", "2")
    with server:
        pids = dict(line.removesuffix(")").split(" starts, pid ") for line in server.lines if " starts, pid " in line)
        assert sorted(pids) == ["broker-a", "broker-b"]
        wait_for_brokers(namesrv, ["broker-a", "broker-b"])

        async def send_to_both() -> dict[str, str]:
            async with Admin(namesrv) as admin, Producer("shard_test", namesrv) as producer:
                await admin.create_topic("sharded", read_queues=1, write_queues=1)
                receipts = [await producer.send(Message("sharded", b"x"), queue=queue) for queue in await producer.fetch_queues("sharded")]
                return {receipt.queue.broker_name: receipt.offset_message_id for receipt in receipts}

        ids = asyncio.run(send_to_both())
        assert sorted(ids) == ["broker-a", "broker-b"]

        os.kill(int(pids["broker-b"]), signal.SIGKILL)
        server.wait_for(r"broker-b died \(SIGKILL\); starting it again")
        again = server.wait_for(r"broker-b starts, pid (\d+)")[1]
        assert again != pids["broker-b"]
        server.wait_for(r"broker-b \| .*boot success")
        wait_for_brokers(namesrv, ["broker-a", "broker-b"])

        async def view() -> bytes:
            async with Admin(namesrv) as admin:
                return (await admin.view_message(ids["broker-b"])).body

        assert asyncio.run(view()) == b"x"
        assert server.end() == 0
    wait_until_gone(int(pids["broker-a"]))
    wait_until_gone(int(again))


def test_brokers_stop_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    server, _ = up(tmp_path, "--shards", "2")
    with server:
        pids = [int(line.rpartition(" ")[2]) for line in server.lines if " starts, pid " in line]
        server.signal(signal.SIGKILL)
        server.wait()
    for pid in pids:
        wait_until_gone(pid)
    assert not (tmp_path / "broker-0" / "abort").exists()


def test_shards_that_cannot_start_end_the_whole_with_their_last_words(tmp_path: Path) -> None:
    (tmp_path / "broker-1").write_text("a file where the store should be")
    with Roquet("up", "--data", str(tmp_path), "--shards", "2", "--namesrv-port", "0", "--broker-port", "0") as server:
        server.wait_for("broker-b ended 3 times before it listened")
        assert server.wait() == 1
