"""The command line without servers: usage, settings files, shards, exit codes."""

from __future__ import annotations

import argparse
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import roquet
from roquet.cli import servers
from roquet.cli.main import build_parser, main
from roquet.cli.options import timestamp_ms
from roquet.settings import BadSetting, BrokerSettings


def commands_of(parser: argparse.ArgumentParser, path: str = "roquet") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its full name: roquet topic list."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from commands_of(sub, f"{path} {name}")


COMMANDS = dict(commands_of(build_parser()))


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
        build_parser().parse_args(shlex.split(command)[1:])


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
@pytest.mark.parametrize("setting", ["aclEnable=true", "tls.server.mode=enforcing", "enableDLegerCommitLog=true"])
def test_a_start_that_asks_for_what_is_not_there_is_refused(command: list[str], setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--set", setting]) == 2
    assert f"roquet: {setting}: Roquet {roquet.__version__} has no " in capsys.readouterr().err


def test_a_name_server_refuses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("tls.server.keyPath=/etc/key.pem\n")
    assert main(["namesrv", "-c", str(file)]) == 2
    assert "tls.server.keyPath=/etc/key.pem: Roquet" in capsys.readouterr().err


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


def test_shards_share_nothing() -> None:
    shards = servers.shard_settings(BrokerSettings(), 3, "data")
    assert [shard.broker_name for shard in shards] == ["broker-a", "broker-b", "broker-c"]
    assert [shard.listen_port for shard in shards] == [10911, 10921, 10931]
    assert [shard.store_path_root_dir for shard in shards] == ["data/broker-0", "data/broker-1", "data/broker-2"]


def test_shards_on_free_ports_have_different_ones() -> None:
    shards = servers.shard_settings(BrokerSettings(listen_port=0), 4, "data")
    assert len({shard.listen_port for shard in shards}) == 4
    assert 0 not in {shard.listen_port for shard in shards}


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
        servers.shard_settings(settings, count, "data")


def test_a_store_of_an_earlier_run_with_more_shards_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broker-2" / "commitlog").mkdir(parents=True)
    servers.warn_of_shards_left_out(str(tmp_path), 2)
    assert "--shards 3" in capsys.readouterr().err
    servers.warn_of_shards_left_out(str(tmp_path), 3)
    assert capsys.readouterr().err == ""


def test_times_are_dates_or_milliseconds() -> None:
    assert timestamp_ms("1714557600000") == 1714557600000
    assert timestamp_ms("2024-05-01T10:00:00+00:00") == 1714557600000
