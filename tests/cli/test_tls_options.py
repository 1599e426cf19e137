"""How a command line asks for TLS: by options, or by the environment."""

from __future__ import annotations

import argparse

import pytest

from roquet.cli.options import cluster_options, connection_of
from roquet.cli.pipeline import place_of, place_options
from roquet.net.connection import Tls


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "_CA", "_CERT", "_KEY", "_KEY_PASSWORD", "_INSECURE"):
        monkeypatch.delenv(f"ROQUET_TLS{name}", raising=False)


def tls_of(*arguments: str) -> Tls | None:
    parser = argparse.ArgumentParser()
    cluster_options(parser)
    return connection_of(parser.parse_args(arguments)).tls


@pytest.mark.parametrize(
    ("arguments", "tls"),
    [
        ((), None),
        (("--tls",), Tls()),
        (("--tls-ca", "ca.pem"), Tls("ca.pem")),
        (("--tls-cert", "me.pem", "--tls-key", "me.key"), Tls(None, "me.pem", "me.key")),
        (("--tls-insecure",), Tls(verify=False)),
    ],
)
def test_options_about_tls_ask_for_it(arguments: tuple[str, ...], tls: Tls | None) -> None:
    assert tls_of(*arguments) == tls


def test_the_environment_does_so_too_and_options_are_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROQUET_TLS_CA", "ca.pem")
    assert tls_of() is None  # files alone are no wish
    monkeypatch.setenv("ROQUET_TLS", "true")
    monkeypatch.setenv("ROQUET_TLS_KEY_PASSWORD", "sesame")
    assert tls_of("--tls-cert", "me.pem") == Tls("ca.pem", "me.pem", key_password="sesame")
    assert tls_of("--tls-ca", "other.pem") == Tls("other.pem", key_password="sesame")
    assert "sesame" not in repr(tls_of())


def test_a_pipeline_hands_it_to_spark() -> None:
    parser = argparse.ArgumentParser()
    place_options(parser)
    where = place_of(parser.parse_args(["-n", "127.0.0.1:9876", "--tls-ca", "/ca.pem", "--tls-insecure"]))
    assert where == {"namesrvAddr": "127.0.0.1:9876", "useTLS": "true", "tlsCaFile": "/ca.pem", "tlsVerify": "false"}
    assert place_of(parser.parse_args(["-n", "127.0.0.1:9876"])) == {"namesrvAddr": "127.0.0.1:9876"}
