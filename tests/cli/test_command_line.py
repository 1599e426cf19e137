"""The command line without servers: usage, settings files, shards, exit codes."""

from __future__ import annotations

import argparse
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import roquet
from roquet.cli import shards
from roquet.cli.main import COMMANDS as MODULES
from roquet.cli.main import build_parser, main
from roquet.cli.options import timestamp_ms
from roquet.errors import BadSetting
from roquet.settings import BrokerSettings


def commands_of(parser: argparse.ArgumentParser, path: str = "roquet") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its full name: roquet topic list."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from commands_of(sub, f"{path} {name}")


WHOLE = build_parser()
COMMANDS = dict(commands_of(WHOLE))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_that_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = COMMANDS[name]
    assert parser.description
    assert parser.epilog
    assert "examples:" in parser.epilog
    lines = [line.strip() for line in parser.epilog.splitlines() if line.strip().startswith("roquet ")]
    assert lines
    for line in lines:
        command = line.split("   ")[0].split(" | ")[0]  # the rest is what it does
        WHOLE.parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("module", MODULES)
def test_a_command_is_the_same_whether_or_not_the_others_are_loaded(module: str) -> None:
    for first in MODULES[module]:
        alone = dict(commands_of(build_parser(first)))
        assert {name.split()[1] for name in alone if name != "roquet"} == set(MODULES[module])
        for name in alone.keys() - {"roquet"}:
            assert alone[name].format_help() == COMMANDS[name].format_help()


def test_each_command_is_in_one_module_and_none_is_forgotten() -> None:
    assert [name for names in MODULES.values() for name in names] == [name.split()[1] for name in COMMANDS if name.count(" ") == 1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic"],
        ["topic", "create"],
        ["send", "t", "x", "--count", "0"],
        ["send", "t", "x", "--count", "many"],
        ["up", "--broker-port", "70000"],
        ["consume", "t", "--from", "yesterday"],
        ["broker", "--set", "listenPort"],
        ["status", "--timeout", "-1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_wrong_setting_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "-p", "--set", "listenPort=ten"]) == 2
    assert "listenPort='ten': expected a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["broker"], ["broker", "--shards", "2"], ["up"]], ids=" ".join)
@pytest.mark.parametrize("setting", ["authorizationEnabled=true", "enableControllerMode=true"])
def test_a_start_that_asks_for_what_is_not_there_is_refused(command: list[str], setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--set", setting]) == 2
    assert f"roquet: {setting}: Roquet {roquet.__version__} has no " in capsys.readouterr().err


@pytest.mark.parametrize(("setting", "option"), [("brokerRole=SLAVE", "--slave"), ("dLegerSelfId=n0", "--replicas")])
def test_up_makes_the_copies_itself(setting: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--set", setting]) == 2
    assert f"roquet up decides that itself; use {option}" in capsys.readouterr().err


def test_a_name_server_refuses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("clusterTest=true\n")
    assert main(["namesrv", "-c", str(file)]) == 2
    assert "clusterTest=true: Roquet" in capsys.readouterr().err


def test_a_slip_in_a_key_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "-p", "--set", "flushDiskTyp=SYNC_FLUSH"]) == 2
    assert "unknown setting 'flushDiskTyp'; did you mean 'flushDiskType'?" in capsys.readouterr().err


def test_a_settings_file_that_is_missing_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "-p", "-c", "/nonexistent/broker.conf"]) == 2
    assert "/nonexistent/broker.conf" in capsys.readouterr().err


def test_rocketmqs_own_file_is_read_and_an_unknown_key_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# a comment\nbrokerClusterName = Orders\nlistenPort=20911\npopPollingSizes=2\nsendMessageThreadPoolNums=16\n")
    assert main(["broker", "-c", str(file), "-n", "10.0.0.1:9876", "-p"]) == 0
    out, err = capsys.readouterr()
    shown = dict(line.split("=", 1) for line in out.splitlines())
    assert shown["brokerClusterName"] == "Orders"
    assert shown["listenPort"] == "20911"
    assert shown["namesrvAddr"] == "10.0.0.1:9876"
    assert "unknown setting 'popPollingSizes' is ignored" in err
    assert "sendMessageThreadPoolNums" not in err


def test_what_print_shows_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "-p", "--set", "storePathRootDir=/tmp/x=y"]) == 0
    shown = capsys.readouterr().out
    file = tmp_path / "broker.conf"
    file.write_text(shown)
    assert main(["broker", "-c", str(file), "-p"]) == 0
    assert capsys.readouterr().out.replace(str(file), "") == shown


def test_a_cluster_that_is_not_there_exits_with_1_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody can answer there
        port = taken.getsockname()[1]
        assert main(["topic", "list", "-n", f"127.0.0.1:{port}"]) == 1
    err = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in err
    assert "roquet up" in err


def shards_of(settings: BrokerSettings, count: int) -> list[shards.Node]:
    return shards.nodes(settings, count, "data")


def test_shards_share_nothing() -> None:
    found = [node.settings for node in shards_of(BrokerSettings(), 3)]
    assert [shard.broker_name for shard in found] == ["broker-a", "broker-b", "broker-c"]
    assert [shard.listen_port for shard in found] == [10911, 10921, 10931]
    assert [shard.store_path_root_dir for shard in found] == ["data/broker-0", "data/broker-1", "data/broker-2"]


def test_free_ports_are_none_that_an_outgoing_connection_could_have_when_a_broker_comes_back() -> None:
    with socket.socket() as listening, socket.socket() as outgoing:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        outgoing.connect(listening.getsockname())
        if shards.outgoing_ports() > 60_000:
            pytest.skip("nearly all ports of this machine are for outgoing connections")
        assert max(shards.free_ports(50, "127.0.0.1")) + max(shards.TAKEN) < shards.outgoing_ports() <= outgoing.getsockname()[1]


def test_a_port_that_is_taken_is_not_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = shards.free_ports(1, "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + shards.TAKEN[-1]))
        monkeypatch.setattr(shards, "sample", lambda among, count: [port, port + 100, port + 200])
        assert port not in shards.free_ports(1, "127.0.0.1")


def test_shards_on_free_ports_have_different_ones() -> None:
    ports = {node.settings.listen_port for node in shards_of(BrokerSettings(listen_port=0), 4)}
    assert len(ports) == 4
    assert 0 not in ports


@pytest.mark.parametrize(
    ("settings", "count", "complaint"),
    [
        (BrokerSettings(), 10_000, "allowed are 1 to 256"),
        (BrokerSettings(store_path_commit_log="/logs"), 2, "storePathCommitLog"),
        (BrokerSettings(listen_port=65_530), 2, "above 65535"),
    ],
)
def test_shards_that_cannot_be_are_refused(settings: BrokerSettings, count: int, complaint: str) -> None:
    with pytest.raises(BadSetting, match=complaint):
        shards_of(settings, count)


def test_a_store_of_an_earlier_run_with_more_shards_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broker-2" / "commitlog").mkdir(parents=True)
    shards.warn_of_stores_left_out(str(tmp_path), shards.nodes(BrokerSettings(), 2, str(tmp_path)))
    assert "--shards 3" in capsys.readouterr().err
    shards.warn_of_stores_left_out(str(tmp_path), shards.nodes(BrokerSettings(), 3, str(tmp_path)))
    assert capsys.readouterr().err == ""


def test_a_store_of_an_earlier_run_without_copies_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broker-0" / "commitlog").mkdir(parents=True)
    shards.warn_of_stores_left_out(str(tmp_path), shards.nodes(BrokerSettings(), 1, str(tmp_path), replicas=3))
    assert "broker-0 holds messages" in capsys.readouterr().err
    shards.warn_of_stores_left_out(str(tmp_path), shards.nodes(BrokerSettings(), 1, str(tmp_path), slave=True))
    assert capsys.readouterr().err == ""


def test_a_master_and_its_slave_share_the_name_and_nothing_else() -> None:
    master, slave = shards.nodes(BrokerSettings(), 1, "data", slave=True)
    assert master.settings.broker_name == slave.settings.broker_name == "broker-a"
    assert (master.name, slave.name) == ("broker-a", "broker-a-slave")
    assert (master.settings.listen_port, slave.settings.listen_port) == (10911, 10921)
    assert (master.settings.store_path_root_dir, slave.settings.store_path_root_dir) == ("data/broker-0", "data/broker-0-slave")
    assert master.copying == {"brokerRole": "SYNC_MASTER"}
    assert slave.copying == {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "127.0.0.1:10912"}


def test_the_members_of_a_dledger_group_have_one_list_of_all_and_each_its_own_id() -> None:
    members = shards.nodes(BrokerSettings(), 2, "data", replicas=3)[3:]
    assert [member.name for member in members] == ["broker-b-n0", "broker-b-n1", "broker-b-n2"]
    assert {member.copying["dLegerPeers"] for member in members} == {"n0-127.0.0.1:10945;n1-127.0.0.1:10955;n2-127.0.0.1:10965"}
    assert [member.copying["dLegerSelfId"] for member in members] == ["n0", "n1", "n2"]
    assert {member.copying["dLegerGroup"] for member in members} == {"broker-b"}


@pytest.mark.parametrize("count", [2, 4, 11])
def test_a_number_of_replicas_that_makes_no_sense_is_refused(count: int) -> None:
    with pytest.raises(BadSetting, match="expected 3, 5, 7 or 9"):
        shards.nodes(BrokerSettings(), 1, "data", replicas=count)


def test_times_are_dates_or_milliseconds() -> None:
    assert timestamp_ms("1714557600000") == 1714557600000
    assert timestamp_ms("2024-05-01T10:00:00+00:00") == 1714557600000
