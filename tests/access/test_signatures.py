"""Signatures in the forms that clients send, made here by each client's own rule and not by our signer."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from roquet.access.signatures import is_signed
from roquet.wire.command import Command
from roquet.wire.signing import Credentials, sign

SECRET = "a-secret-key"
FIELDS = {"topic": "orders", "queueId": "3", "maxNum": "32", "a": "x"}


def made(text: str, body: bytes, secret: str = SECRET) -> str:
    return base64.b64encode(hmac.new(secret.encode(), text.encode() + body, hashlib.sha1).digest()).decode()


def in_order(fields: dict[str, str]) -> str:
    return "".join(fields[name] for name in sorted(fields))


def java(fields: dict[str, str], body: bytes) -> dict[str, str]:
    sent = fields | {"AccessKey": "client-key"}
    return sent | {"Signature": made(in_order(sent), body)}


def java_up_to_493(fields: dict[str, str], body: bytes) -> dict[str, str]:
    """It signs what its header's class declares; the flag of a query by unique key is added beside it."""
    return java(fields, body) | {"_UNIQUE_KEY_QUERY": "true"}


def java_with_token(fields: dict[str, str], body: bytes) -> dict[str, str]:
    return java(fields | {"SecurityToken": "token"}, body)


def go_with_token(fields: dict[str, str], body: bytes) -> dict[str, str]:
    return java(fields, body) | {"SecurityToken": "token"}


def cpp(fields: dict[str, str], body: bytes) -> dict[str, str]:
    return java(fields | {"OnsChannel": "ALIYUN"}, body)


def java_494_query(fields: dict[str, str], body: bytes) -> dict[str, str]:
    """It signs the flag too; RocketMQ's 4.9.8 broker takes it out and refuses the client."""
    return java(fields | {"_UNIQUE_KEY_QUERY": "true"}, body)


def go_with_token_and_flag(fields: dict[str, str], body: bytes) -> dict[str, str]:
    return java(fields, body) | {"SecurityToken": "token", "_UNIQUE_KEY_QUERY": "true"}


@pytest.mark.parametrize("client", [java, java_up_to_493, java_with_token, go_with_token, cpp, java_494_query, go_with_token_and_flag])
@pytest.mark.parametrize("body", [b"", b"\x00\xffbody"])
def test_what_a_client_signs_is_signed(client: object, body: bytes) -> None:
    assert callable(client)
    fields = client(FIELDS, body)
    assert is_signed(fields, body, SECRET.encode())
    assert not is_signed(fields, body, b"another-secret")
    assert not is_signed(fields, body + b"x", SECRET.encode())
    assert not is_signed(fields | {"more": "y"}, body, SECRET.encode())
    assert not is_signed(fields | {"topic": "other"}, body, SECRET.encode())


def test_names_sort_as_java_sorts_them_and_values_are_utf8() -> None:
    fields = {"z": "1", "Z": "2", "ä": "é", "\U0001f600": "3", "\uffee": "4", "AccessKey": "client-key"}
    # Java compares UTF-16 units: the surrogates of U+1F600 stand before U+FFEE.
    text = "client-key" + "2" + "1" + "é" + "3" + "4"
    assert is_signed(fields | {"Signature": made(text, b"")}, b"", SECRET.encode())


@pytest.mark.parametrize("signature", ["", "x", "é", "=" * 28, "A" * 28, "A" * 10_000, "AAAA AAAA"])
def test_what_is_no_signature_is_none(signature: str) -> None:
    assert not is_signed(FIELDS | {"Signature": signature}, b"", SECRET.encode())


def test_our_own_signer_agrees() -> None:
    command = Command(310, dict(FIELDS), b"body")
    sign(command, Credentials("client-key", SECRET, "token"))
    assert is_signed(command.fields, command.body, SECRET.encode())
