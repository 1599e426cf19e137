"""Remote changes of settings (upstream's CVE-2023-33246 and CVE-2023-37582): a refused one changes nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from roquet.properties import parse_properties
from roquet.settings import BrokerSettings, NameServerSettings, table
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.hostile.conftest import Victim

SHELL = "-c $@|sh . echo touch MARK;"


def update(victim: Victim, text: str) -> Command:
    code = RequestCode.UPDATE_BROKER_CONFIG if victim.is_broker else RequestCode.UPDATE_NAMESRV_CONFIG
    return victim.ask(Command(code, {}, text.encode()))


def refused(victim: Victim, text: str) -> None:
    """Refused with a sentence; settings and files are as before."""
    settings, files = victim.settings(), victim.files()
    configs = {path: path.read_bytes() for path in victim.directory.glob("*.conf")}
    answer = update(victim, text)
    assert answer.code != 0, f"taken: {text!r}"
    assert answer.remark
    assert victim.settings() == settings, text
    assert victim.files() == files, text
    assert {path: path.read_bytes() for path in configs} == configs


FIXED = {
    "rocketmqHome": SHELL, "configStorePath": "/tmp/was-here", "storePathRootDir": "/tmp/was-here", "storePathCommitLog": "/tmp/was-here",
    "brokerName": "other", "brokerClusterName": "other", "brokerId": "7", "listenPort": "1", "namesrvAddr": "192.0.2.1:9876",
    "brokerIP1": "192.0.2.1", "brokerRole": "SLAVE", "flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": "4096",
    "connectionsMax": "1", "bindAddress": "0.0.0.0", "kvConfigPath": "/tmp/was-here", "filterServerNums": "1",
    "configStorePathName": "/tmp/was-here", "noSuchSetting": "1", "__class__": "x", "settings.broker_name": "x", "broker_permission": "0",
}  # fmt: skip


def test_settings_that_are_fixed_or_unknown_are_refused_alone_and_beside_good_ones(server: Victim) -> None:
    good = "fileReservedTime=48" if server.is_broker else "orderMessageEnable=true"
    for key, value in FIXED.items():
        for text in (f"{key}={value}", f"{good}\n{key}={value}", f"{key}={value}\n{good}", f"{key} : {value}", f"{key}\\\n={value}"):
            refused(server, text)


def test_the_frames_of_both_exploits_change_nothing(server: Victim, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    refused(server, f"filterServerNums=1\nrocketmqHome={SHELL.replace('MARK', str(mark))}")
    refused(server, f"configStorePath={mark}\nproductEnvName=test\\n* * * * * root touch {mark}")
    refused(server, f"configStorePathName={mark}\nkvConfigPath={mark}")
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "maxMessageSize=0", "maxMessageSize=-1", "maxMessageSize=99999999999", "maxMessageSize=four", "maxMessageSize=",
        "maxMessageSize=1e3", "autoCreateTopicEnable=yes", "autoCreateTopicEnable=1", "brokerPermission=8", "brokerPermission=-1",
        "brokerPermission=NaN", "fileReservedTime=0",
        "orderMessageEnable=maybe", "maxMessageSize=1048576\nbrokerPermission=9",
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(broker: Victim, text: str) -> None:
    refused(broker, text)


def test_an_hour_that_is_none_is_refused(broker: Victim) -> None:
    try:
        for value in ("../..", "99", "x;y", "9" * 5_000):
            refused(broker, f"deleteWhen={value}")
    finally:
        assert update(broker, "deleteWhen=04").code == 0


def test_an_update_that_is_no_text_or_too_long_is_refused(server: Victim) -> None:
    code = RequestCode.UPDATE_BROKER_CONFIG if server.is_broker else RequestCode.UPDATE_NAMESRV_CONFIG
    before = server.settings()
    for body in (b"\xff\xfe=1", b"maxMessageSize=1\n" * 100_000, bytes(1 << 20)):
        assert server.ask(Command(code, {}, body)).code != 0
    assert server.settings() == before


def test_what_may_change_changes_and_says_so(server: Victim) -> None:
    text = "fileReservedTime=49\nlongPollingEnable=false" if server.is_broker else "orderMessageEnable=true"
    before = parse_properties(server.settings())
    files = server.files()
    assert update(server, text).code == 0
    after = parse_properties(server.settings())
    assert after == before | parse_properties(text)
    assert {name for name in server.files() ^ files if not name.endswith(".conf.bak")} == set()
    assert update(server, "\n".join(f"{key}={before[key]}" for key in parse_properties(text))).code == 0
    assert parse_properties(server.settings()) == before


@pytest.mark.parametrize("kind", [BrokerSettings, NameServerSettings])
def test_no_path_address_or_name_is_among_what_may_change(kind: type) -> None:
    dangerous = ("path", "addr", "home", "dir", "port", "ip", "name")
    for key, spec in table(kind).items():
        if spec.mutable and spec.kind is str:
            assert not any(word in key.lower() for word in dangerous), key
