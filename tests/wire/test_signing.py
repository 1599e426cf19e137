"""Signatures are those of Apache's AclClientRPCHook 4.9.8, which gave the values here."""

from __future__ import annotations

import pytest

from roquet.wire.command import Command
from roquet.wire.signing import Credentials, sign, signature, signed_text


@pytest.mark.parametrize(
    ("fields", "body", "token", "expected"),
    [
        ({"topic": "T", "queueId": "0", "consumerGroup": "g"}, b"", None, "qSF5CKNxXAB8mZfwIJjjmLRz8us="),
        ({"topic": "T", "b": "x", "Zulu": "y", "a": "z"}, b"hello", None, "6+c2HjgjJDqGPbwLYW1QM8K7rVs="),
        ({"topic": "T"}, b"", "a token", "WtFvvcRX9xYxp811PAjmqBhLYXE="),
        (
            {"properties": "KEYS\x01\u00e9\u4e2d\U0001f600", "\uff5e": "1", "\U0001f600": "2"},
            "\u00e9\u4e2d".encode(),
            None,
            "jJBC5OcCzI8ieMb2fv+wXJcSWNs=",
        ),
        ({}, b"", None, "m3kSRoO8pUopRLfDxdGcQ9lqVEc="),
    ],
    ids=["fields", "body", "token", "names-beyond-16-bits", "nothing"],
)
def test_a_request_is_signed_as_apache_signs_it(fields: dict[str, str], body: bytes, token: str | None, expected: str) -> None:
    command = Command(11, fields, body)
    sign(command, Credentials("roquet-access", "roquet-secret-key", token))
    assert command.fields["Signature"] == expected
    assert command.fields["AccessKey"] == "roquet-access"
    assert command.fields.get("SecurityToken") == token


def test_signing_again_replaces_the_signature() -> None:
    command = Command(11, {"topic": "T"})
    credentials = Credentials("roquet-access", "roquet-secret-key")
    sign(command, credentials)
    first = command.fields["Signature"]
    sign(command, credentials)
    assert command.fields["Signature"] == first
    assert first == signature("roquet-secret-key", signed_text({"AccessKey": "roquet-access", "topic": "T"}, b""))


def test_secrets_are_not_shown() -> None:
    assert "key" not in repr(Credentials("who", "secret key", "secret token")).replace("access_key", "")
