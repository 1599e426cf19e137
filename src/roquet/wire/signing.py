"""Upstream's signature of a request: who asks, and proof that they hold the secret key.

The signed text is the values of all ext fields in the order of their names, one after another, then the body. Code,
opaque and flag are not in it. Servers that check no signatures ignore the fields.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from roquet.wire.command import Command

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
SIGNING_FIELDS = frozenset((ACCESS_KEY, SECURITY_TOKEN, SIGNATURE))


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of an account, with which a client signs its requests. Neither the secret nor the token is ever printed."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signed_text(fields: Mapping[str, str], body: bytes) -> bytes:
    """What the signature is of. Java sorts names by their UTF-16 units, so upper case stands before lower case."""
    names = sorted((name for name in fields if name != SIGNATURE), key=lambda name: name.encode("utf-16-be"))
    return "".join([fields[name] for name in names]).encode() + body


def unsigned(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields without these three, for whoever passes a request on. A signature does not cover the code: who sees one could ask for
    something else with it, in the name of who signed."""
    return {name: value for name, value in fields.items() if name not in SIGNING_FIELDS}


def signature(secret_key: str, text: bytes) -> str:
    return base64.b64encode(hmac.new(secret_key.encode(), text, hashlib.sha1).digest()).decode()


def sign(command: Command, credentials: Credentials) -> None:
    """Add the three fields to a request that is otherwise complete. Signing again replaces them."""
    fields = command.fields
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields[SIGNATURE] = signature(credentials.secret_key, signed_text(fields, command.body))
