"""The settings of TLS: what contradicts itself is refused, secrets are not shown, and upstream's file of them is read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from roquet.errors import BadSetting
from roquet.listening import open_to_everybody, tell
from roquet.settings import MASK, TLS_FILE, BrokerSettings, NameServerSettings
from roquet.settings_file import layered
from roquet.settings_tls import broker_connection, server_tls
from tests.certificates import authority

KINDS = (BrokerSettings, NameServerSettings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"tls.server.mode": "on"}, "expected one of disabled, permissive, enforcing"),
        ({"tls.server.need.client.auth": "yes"}, "expected one of none, optional, require"),
        ({"tls.server.need.client.auth": "require"}, "needs tls.server.trustCertPath"),
        ({"tls.server.keyPath": "/k.pem"}, "tls.server.certPath is not"),
        ({"tls.server.mode": "enforcing", "tls.test.mode.enable": "false"}, "no certificate"),
    ],
)
def test_what_cannot_work_is_refused(kind: type[BrokerSettings | NameServerSettings], pairs: dict[str, str], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        kind.read(pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_passwords_of_keys_are_never_shown(kind: type[BrokerSettings | NameServerSettings]) -> None:
    pairs = {"tls.server.keyPassword": "sesame1", "tls.client.keyPassword": "sesame2", "tls.server.certPath": "/c.pem"}
    settings, _ = kind.read(pairs)
    shown = settings.every_item()
    assert shown["tls.server.keyPassword"] == shown["tls.client.keyPassword"] == MASK
    assert "sesame" not in str(shown) + str(dict(settings.items()))
    assert "sesame1" not in repr(settings)
    with pytest.raises(BadSetting, match="cannot change at run time") as refused:
        settings.changes({"tls.server.keyPassword": "sesame3"})
    assert "sesame" not in str(refused.value)


def test_upstream_s_file_is_read_below_what_is_given(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.test.mode.enable=false\ntls.server.certPath=/theirs.pem\ntls.server.keyPath=/key.pem\nlistenPort=1\n")
    pairs = layered(None, str(tmp_path / "kept"), {"tls.config.file": str(file), "tls.server.certPath": "/ours.pem"})
    settings, warnings = BrokerSettings.read(pairs)
    assert not warnings
    assert (settings.tls_server_cert_path, settings.tls_server_key_path) == ("/ours.pem", "/key.pem")
    assert not settings.tls_test_mode_enable
    assert settings.listen_port == 10_911


def test_a_file_of_tls_settings_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"cannot read the settings file .*nowhere"):
        layered(None, "", {"tls.config.file": str(tmp_path / "nowhere")})
    for usual in ({}, {"tls.config.file": TLS_FILE}, {"tls.config.file": ""}):
        assert "tls.server.certPath" not in layered(None, "", usual) or Path(TLS_FILE).exists()


def test_a_certificate_that_cannot_be_used_stops_the_start() -> None:
    with pytest.raises(BadSetting, match=r"TLS: '/nowhere.pem' cannot be read"):
        server_tls(BrokerSettings(tls_server_cert_path="/nowhere.pem"))
    with pytest.raises(BadSetting, match=r"TLS: the certificate and key in '/nowhere.pem'"):
        broker_connection(BrokerSettings(use_tls=True, tls_client_cert_path="/nowhere.pem"))


@pytest.mark.parametrize(
    ("pairs", "encrypts", "verifies"),
    [
        ({}, False, False),
        ({"tls.server.mode": "enforcing"}, True, False),  # for trying it
        ({"useTLS": "true"}, True, False),
        ({"tls.enable": "true", "tls.test.mode.enable": "false"}, True, True),
        ({"tls.enable": "true", "tls.client.trustCertPath": "authority"}, True, True),
        ({"tls.enable": "true", "tls.client.trustCertPath": "authority", "tls.client.authServer": "false"}, True, False),
    ],
)
def test_how_a_broker_connects(pairs: dict[str, str], encrypts: bool, verifies: bool) -> None:
    pairs = {key: authority().file if value == "authority" else value for key, value in pairs.items()}
    tls = broker_connection(BrokerSettings.read(pairs)[0]).tls
    assert (tls is not None) == encrypts
    assert tls is None or tls.verify == verifies


def test_without_a_certificate_and_without_test_mode_tls_is_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert server_tls(BrokerSettings(tls_test_mode_enable=False)).mode == "disabled"
    assert "TLS is not offered" in caplog.text


# Who can connect


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "without access control and without TLS"),
        ({"tls_server_mode": "disabled"}, "without access control and without TLS"),
        ({"tls_server_mode": "enforcing"}, "with TLS for everybody and without access control"),
        ({"tls_server_need_client_auth": "require"}, "without access control and without TLS"),  # permissive: not everybody needs one
        ({"tls_server_mode": "enforcing", "tls_server_need_client_auth": "require"}, ""),
        ({"acl_enable": True}, ""),
    ],
)
def test_a_server_that_everybody_can_reach_says_so(
    kind: type[BrokerSettings | NameServerSettings], more: dict[str, Any], said: str
) -> None:
    settings = kind(bind_address="0.0.0.0", tls_server_trust_cert_path="/ca.pem", **more)
    text = open_to_everybody(settings)
    assert (said in text and "whoever reaches the port" in text) if said else not text
    told: list[str] = []
    tell(settings, told.append)
    tell(settings.replace(bind_address="127.0.0.1"), told.append)
    assert told == ([text] if text else [])
