"""RocketMQ's own configuration files, given to the real programs: they work as they are, or one sentence says why not."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.cli.shards import free_ports
from roquet.net.blocking import BlockingCaller
from roquet.properties import parse_properties
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.cli.servers import Roquet, run, up

NOT_OURS = "203.0.113.7"
"""An address for documents: no machine has it."""

MASTER = {
    "brokerClusterName": "DefaultCluster",
    "brokerId": "0",
    "deleteWhen": "04",
    "fileReservedTime": "48",
    "flushDiskType": "ASYNC_FLUSH",
}
DLEDGER = {
    "brokerClusterName": "RaftCluster", "namesrvAddr": "127.0.0.1:9876", "enableDLegerCommitLog": "true", "dLegerGroup": "RaftNode00",
    "dLegerPeers": "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913", "sendMessageThreadPoolNums": "16",
}  # fmt: skip
SAMPLES: dict[str, tuple[dict[str, str], str]] = {
    "broker.conf": (MASTER | {"brokerName": "broker-a", "brokerRole": "ASYNC_MASTER"}, ""),
    "2m-noslave/broker-a.properties": (MASTER | {"brokerName": "broker-a", "brokerRole": "ASYNC_MASTER"}, ""),
    "2m-noslave/broker-b.properties": (MASTER | {"brokerName": "broker-b", "brokerRole": "ASYNC_MASTER"}, ""),
    "2m-noslave/broker-trace.properties": (MASTER | {"brokerName": "broker-trace", "brokerRole": "ASYNC_MASTER"}, ""),
    "2m-2s-async/broker-a.properties": (MASTER | {"brokerName": "broker-a", "brokerRole": "ASYNC_MASTER"}, ""),
    "2m-2s-async/broker-a-s.properties": (MASTER | {"brokerName": "broker-a", "brokerId": "1", "brokerRole": "SLAVE"}, ""),
    "2m-2s-async/broker-b.properties": (MASTER | {"brokerName": "broker-b", "brokerRole": "ASYNC_MASTER"}, ""),
    "2m-2s-async/broker-b-s.properties": (MASTER | {"brokerName": "broker-b", "brokerId": "1", "brokerRole": "SLAVE"}, ""),
    "2m-2s-sync/broker-a.properties": (MASTER | {"brokerName": "broker-a", "brokerRole": "SYNC_MASTER"}, ""),
    "2m-2s-sync/broker-a-s.properties": (MASTER | {"brokerName": "broker-a", "brokerId": "1", "brokerRole": "SLAVE"}, ""),
    "2m-2s-sync/broker-b.properties": (MASTER | {"brokerName": "broker-b", "brokerRole": "SYNC_MASTER"}, ""),
    "2m-2s-sync/broker-b-s.properties": (MASTER | {"brokerName": "broker-b", "brokerId": "1", "brokerRole": "SLAVE"}, ""),
    "dledger/broker-n0.conf": (
        DLEDGER | {"brokerName": "RaftNode00", "listenPort": "30911", "storePathRootDir": "/tmp/rmqstore/node00",
                   "storePathCommitLog": "/tmp/rmqstore/node00/commitlog", "dLegerSelfId": "n0"},
        "",
    ),
}  # fmt: skip
"""File of conf/ in RocketMQ 4.9 -> its settings, and what Roquet says when it does not take them."""


def roquet(*arguments: str, code: int = 0) -> str:
    """What it printed, on both; `code` is the exit code it should have."""
    ran = run(*arguments)
    assert ran.returncode == code, ran
    return ran.stdout + ran.stderr


def written(place: Path, pairs: dict[str, str]) -> str:
    place.write_text("# as it came\n" + "".join(f"{key} = {value}\n" for key, value in pairs.items()))
    return str(place)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_of_rocketmq_works_as_it_is_or_one_sentence_says_why_not(name: str, tmp_path: Path) -> None:
    from roquet import __version__
    from roquet.cli.main import main

    pairs, why_not = SAMPLES[name]
    file = written(tmp_path / "broker.conf", pairs)
    if why_not:
        assert main(["broker", "-c", file, "-p"]) == 2
        assert why_not.format(version=__version__) in roquet("broker", "-c", file, code=2)
        return
    shown = parse_properties(roquet("broker", "-c", file, "-p"))
    assert shown.items() >= pairs.items()
    assert shown["bindAddress"] == "127.0.0.1"


def test_a_moved_sample_runs_and_takes_messages(tmp_path: Path) -> None:
    (port,) = free_ports(1, "127.0.0.1")
    with Roquet("namesrv", "--data", str(tmp_path), "--set", "listenPort=0") as names:
        namesrv = names.wait_for(r"listens on (\S+)")[1]
        pairs = SAMPLES["2m-noslave/broker-b.properties"][0] | {
            "namesrvAddr": namesrv, "listenPort": str(port), "storePathRootDir": str(tmp_path / "store"),
        }  # fmt: skip
        with Roquet("broker", "-c", written(tmp_path / "broker.conf", pairs)) as broker:
            broker.wait_for("only programs on this machine can connect, at 127.0.0.1; bindAddress=0.0.0.0")
            broker.wait_for(rf"broker-b, 127.0.0.1:{port}\] boot success")
            assert "SEND_OK  broker-b:" in roquet("send", "-n", namesrv, "moved", "hello")


# Where it listens


def broker_at(tmp_path: Path, namesrv: str, *settings: str) -> tuple[Roquet, int]:
    (port,) = free_ports(1, "127.0.0.1")
    given = [f"listenPort={port}", f"storePathRootDir={tmp_path / 'store'}", *settings]
    return Roquet("broker", "-n", namesrv, *(word for one in given for word in ("--set", one))), port


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def registered(namesrv: str) -> list[str]:
    return [one["address"] for one in json.loads(roquet("status", "-n", namesrv, "--json"))["brokers"]]


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with Roquet("namesrv", "--data", str(tmp_path / "names"), "--set", "listenPort=0") as names:
        yield names.wait_for(r"listens on (\S+)")[1]


def test_a_broker_listens_on_the_address_of_this_machine_that_it_registers(tmp_path: Path, namesrv: str) -> None:
    broker, port = broker_at(tmp_path, namesrv, "brokerIP1=127.0.0.2")
    with broker:
        broker.wait_for(rf"127.0.0.2:{port}\] boot success")
        assert answers("127.0.0.2", port)
        assert answers("127.0.0.2", port - 2)
        assert not answers("127.0.0.1", port)
        assert registered(namesrv) == [f"127.0.0.2:{port}"]
        assert "SEND_OK" in roquet("send", "-n", namesrv, "there", "hello")


def test_a_broker_whose_address_is_not_of_this_machine_listens_on_all_and_warns(tmp_path: Path, namesrv: str) -> None:
    broker, port = broker_at(tmp_path, namesrv, f"brokerIP1={NOT_OURS}")
    with broker:
        broker.wait_for(f"WARNING .*clients are told {NOT_OURS} .*no address of this machine.* listens on every address")
        broker.wait_for("WARNING .*listening on every address of this machine, without access control")
        broker.wait_for(rf"{NOT_OURS}:{port}\] boot success")
        assert answers("127.0.0.1", port)
        caller = BlockingCaller()
        answer = caller.ask(f"127.0.0.1:{port}", Command(RequestCode.GET_BROKER_RUNTIME_INFO), 60)
        caller.close()
        table = json.loads(answer.body)["table"]
        # What `roquet status` shows under WARNINGS.
        assert any("whoever reaches the port" in text for key, text in table.items() if key.startswith("roquetWarning_"))


def test_bind_address_is_stronger_and_a_disagreement_is_said(tmp_path: Path, namesrv: str) -> None:
    broker, port = broker_at(tmp_path, namesrv, "brokerIP1=127.0.0.2", "bindAddress=127.0.0.1")
    with broker:
        broker.wait_for(r"WARNING .*clients are told 127.0.0.2 .*listens on 127.0.0.1 alone.*set bindAddress=127.0.0.2")
        broker.wait_for("boot success")
        assert answers("127.0.0.1", port)
        assert not answers("127.0.0.2", port)


def test_a_broker_of_a_name_server_elsewhere_listens_on_all(tmp_path: Path) -> None:
    file = written(tmp_path / "broker.conf", {"namesrvAddr": "203.0.113.9:9876;127.0.0.1:9876"})
    assert parse_properties(roquet("broker", "-c", file, "-p"))["bindAddress"] == "0.0.0.0"
    assert parse_properties(roquet("broker", "-n", "127.0.0.1:1", "-p"))["bindAddress"] == "127.0.0.1"


def test_all_of_up_listens_on_the_address_that_its_broker_registers(tmp_path: Path) -> None:
    server, namesrv = up(tmp_path, "--set", "brokerIP1=127.0.0.2")
    with server:
        assert namesrv.startswith("127.0.0.2:")
        assert "SEND_OK" in roquet("send", "-n", namesrv, "there", "hello")
        assert registered(namesrv)[0].startswith("127.0.0.2:")


# Roles


@pytest.mark.parametrize(
    ("role", "number", "say"),
    [
        ("SLAVE", "0", "0 is the id of a master"),
        ("ASYNC_MASTER", "1", "a master has the id 0"),
        ("SYNC_MASTER", "3", "a master has the id 0"),
    ],
)
def test_a_role_that_its_id_contradicts_is_refused(role: str, number: str, say: str, tmp_path: Path) -> None:
    file = written(tmp_path / "broker.conf", {"brokerId": number, "brokerRole": role})
    assert f"roquet: brokerRole={role} and brokerId={number} contradict each other: {say}" in roquet("broker", "-c", file, code=2)


# Slips


@pytest.mark.parametrize("program", ["broker", "namesrv", "up"])
def test_a_key_that_nobody_knows_is_an_error_on_the_command_line(program: str) -> None:
    said = roquet(program, "--set", "listenPorts=1", code=2)
    assert "unknown setting 'listenPorts'; did you mean 'listenPort'?" in said
    assert "unknown setting 'nobodyKnowsThis'" in roquet(program, "--set", "nobodyKnowsThis=1", code=2)


def test_a_broker_on_every_address_of_ipv6_has_those_of_ipv4_too(tmp_path: Path, namesrv: str) -> None:
    broker, port = broker_at(tmp_path, namesrv, "bindAddress=::", "brokerIP1=127.0.0.1")
    with broker:
        broker.wait_for(rf"127.0.0.1:{port}\] boot success")
        assert [answers(host, port) for host in ("127.0.0.1", "::1", "127.0.0.2")] == [True, True, True]
        assert answers("127.0.0.1", port - 2)
        assert "SEND_OK" in roquet("send", "-n", namesrv, "there", "hello")


def test_a_name_server_on_every_address_of_ipv6_has_those_of_ipv4_too(tmp_path: Path) -> None:
    with Roquet("namesrv", "--data", str(tmp_path), "--set", "listenPort=0", "--set", "bindAddress=::") as names:
        port = int(names.wait_for(r"listens on \S+:(\d+)")[1])
        assert [answers(host, port) for host in ("127.0.0.1", "::1")] == [True, True]


@pytest.mark.parametrize("command", ["broker", "namesrv"])
def test_an_address_to_listen_on_that_is_not_there_is_named(command: str, tmp_path: Path) -> None:
    given = ["--set", f"storePathRootDir={tmp_path}"] if command == "broker" else ["--data", str(tmp_path)]
    for address in (NOT_OURS, "no-such-host.invalid"):
        said = roquet(command, *given, "--set", "listenPort=0", "--set", f"bindAddress={address}", code=1)
        assert f"cannot listen on {address}" in said
        assert "bindAddress" in said


@pytest.mark.parametrize(
    "setting", ["listenPort=12345", "storePathRootDir=elsewhere", "namesrvAddr=127.0.0.1:1", "configStorePath=elsewhere"]
)
def test_up_refuses_a_setting_that_it_decides_itself(setting: str, tmp_path: Path) -> None:
    said = roquet("up", "--data", str(tmp_path), "--set", setting, code=2)
    assert f"--set {setting}" in said
    assert "roquet up decides that itself" in said


def test_shards_listen_on_an_address_of_ipv6(tmp_path: Path) -> None:
    with Roquet("up", "--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0", "--shards", "2", "--bind", "::1") as cluster:
        namesrv = cluster.wait_for(r"name server +(\S+)")[1]
        assert "SEND_OK" in roquet("send", "-n", namesrv, "there", "hello")
