"""Settings changed over the wire are there after a restart of the real program: in the file it was started with, or beside its store."""

from __future__ import annotations

import asyncio
import signal
import stat
from pathlib import Path

import pytest

import roquet
from roquet.properties import parse_properties
from roquet.settings_file import keep, read_file
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.process.line import Line
from tests.process.programs import Nursery


def test_a_broker_s_settings_are_written_to_its_file(nursery: Nursery, tmp_path: Path) -> None:
    broker = nursery.broker(tmp_path)
    file = tmp_path / "broker.conf"
    before = "# kept comment\n" + file.read_text() + "fileReservedTime=24\n# the end\n"
    file.write_text(before)
    file.chmod(0o600)
    with Line(broker.address) as line:
        assert line.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=48\nmaxMessageSize=1000")).code == 0
        assert line.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=49")).code == 0
        assert line.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"listenPort=1")).code != 0
    assert file.read_text() == before.replace("fileReservedTime=24", "fileReservedTime=49") + "maxMessageSize=1000\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    backup = tmp_path / "broker.conf.bak"
    assert parse_properties(backup.read_text())["fileReservedTime"] == "48"
    broker.program.end(signal.SIGKILL)
    program = nursery.start(["broker", "-c", str(file)], tmp_path)
    program.wait_for("boot success")
    with Line(broker.address) as line:
        said = parse_properties(line.ask(Command(RequestCode.GET_BROKER_CONFIG)).body.decode())
    assert (said["fileReservedTime"], said["maxMessageSize"]) == ("49", "1000")
    program.end(signal.SIGTERM)


def test_a_name_server_s_settings_are_written_to_its_file(nursery: Nursery, tmp_path: Path) -> None:
    server = nursery.name_server(tmp_path)
    with Line(server.address) as line:
        assert line.ask(Command(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true")).code == 0
    server.program.end(signal.SIGKILL)
    file = tmp_path / "namesrv.conf"
    assert file.read_text() == "listenPort=0\norderMessageEnable=true\n"


def test_a_file_that_cannot_be_written_is_said_and_the_change_holds_until_the_restart(nursery: Nursery, tmp_path: Path) -> None:
    broker = nursery.broker(tmp_path)
    file = tmp_path / "broker.conf"
    file.rename(tmp_path / "elsewhere")
    file.mkdir()  # nothing can take a directory's place, whoever we are
    with Line(broker.address) as line:
        answer = line.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=48"))
        assert answer.code == 1
        assert str(answer.remark).startswith(f"fileReservedTime=48 holds until the restart alone: it cannot be written to {file}")
        assert b"fileReservedTime=48\n" in line.ask(Command(RequestCode.GET_BROKER_CONFIG)).body
    broker.program.end(signal.SIGTERM)


def test_without_a_file_they_are_kept_beside_the_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with roquet.embedded(tmp_path) as mq, mq.admin() as admin:
            await admin.update_broker_config(mq.broker, {"fileReservedTime": "48"})
            await admin.update_namesrv_config({"orderMessageEnable": "true"})
        assert (tmp_path / "broker-0" / "config" / "broker.properties").read_text() == "fileReservedTime=48\n"
        async with roquet.embedded(tmp_path) as mq, mq.admin() as admin:
            assert (await admin.broker_config(mq.broker))["fileReservedTime"] == "48"
            assert (await admin.namesrv_config(mq.namesrv))["orderMessageEnable"] == "true"
        async with roquet.embedded(tmp_path, settings={"fileReservedTime": "12"}) as mq, mq.admin() as admin:
            assert (await admin.broker_config(mq.broker))["fileReservedTime"] == "12"

    asyncio.run(scenario())


def test_a_link_stays_a_link_and_a_missing_directory_is_made(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("a=1\n")
    (tmp_path / "link").symlink_to("real")
    keep(str(tmp_path / "link"), {"a": "2"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "a=2\n"
    keep(str(tmp_path / "x" / "y"), {"a": "2"})
    assert (tmp_path / "x" / "y").read_text() == "a=2\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real", "real.bak", "x"]


@pytest.mark.parametrize(
    ("before", "name"),
    [
        (b"\xef\xbb\xbffileReservedTime=24\r\nbrokerName=broker-a\r\n", "broker-a"),
        (b"\xef\xbb\xbf# a comment\nfileReservedTime=24\nbrokerName=broker-a\n", "broker-a"),
        ("# \u8bbe\u7f6e\nfileReservedTime=24\nbrokerName=broker-a\n".encode("gbk"), "broker-a"),
        ("fileReservedTime=24\nbrokerName=\u7ecf\u7eaa\n".encode(), "\u7ecf\u7eaa"),
    ],
    ids=["Notepad's", "Notepad's with a comment", "comments in GBK", "UTF-8"],
)
def test_a_file_of_any_editor_is_read_and_only_what_was_set_changes(before: bytes, name: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes(before)
    assert read_file(file) == {"fileReservedTime": "24", "brokerName": name}
    keep(str(file), {"fileReservedTime": "48"})
    line = b"fileReservedTime=24\r\n" if b"\r" in before else b"fileReservedTime=24\n"
    assert file.read_bytes() == before.replace(line, b"fileReservedTime=48\n")
    assert file.with_name("broker.conf.bak").read_bytes() == before
    assert read_file(file) == {"fileReservedTime": "48", "brokerName": name}
