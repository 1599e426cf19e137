"""Command: one request or response, in memory. Both header forms decode to the same value.

`fields` are upstream's extFields: always str to str here, whatever JSON type a client sent (Node and C++ send numbers
and booleans); a row of `wire/calls/` turns them into typed values.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import orjson

from roquet.errors import Broken
from roquet.wire import binary
from roquet.wire.frame import BINARY, JSON, Frame, encode_frame

RESPONSE = 1
ONEWAY = 2

Head = dict[str, Any] | binary.BinaryHead
"""A header as it was read: of JSON an object, which nobody has checked yet."""

SECRET_FIELDS = frozenset(("secretKey", "Signature", "SecurityToken"))
"""No log line and no traceback may have their values."""

VERSION = 409
"""What we say we are: V4_9_8. Clients unlock SQL92 subscriptions at 232 and the standard route JSON at 401."""


@dataclass(slots=True, eq=False, repr=False)
class Command:
    """Mutable only while it is being built; whoever receives one reads it."""

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    _: KW_ONLY
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = "JAVA"
    version: int = VERSION
    binary: bool = False

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY)

    def reply(self, code: int = 0, remark: str | None = None, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        """The response to this request: same opaque, same header form (Node and C++ cannot read binary)."""
        return Command(code, fields or {}, body, opaque=self.opaque, flag=RESPONSE, remark=remark, binary=self.binary)

    def encode(self) -> bytes:
        """The whole frame."""
        if self.binary and -32768 <= self.code <= 32767:  # a larger code has no binary form
            return encode_frame(BINARY, binary.encode_header(self), self.body)
        # Upstream's writer sorts by name and leaves nulls out; the order is free, the spelling is not.
        header: dict[str, Any] = {
            "code": self.code,
            "extFields": self.fields,
            "flag": self.flag,
            "language": self.language,
            "opaque": self.opaque,
            "remark": self.remark,
            "serializeTypeCurrentRPC": "JSON",
            "version": self.version,
        }
        if self.remark is None:
            del header["remark"]
        if not self.fields:
            # As upstream: an empty one makes 5.x clients look for the fields that the answer's type must have.
            del header["extFields"]
        return encode_frame(JSON, orjson.dumps(header), self.body)

    def __eq__(self, other: object) -> bool:
        """Whatever class it is: a client's sends have one of their own."""
        return isinstance(other, Command) and all(getattr(self, name) == getattr(other, name) for name in Command.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f" {self.remark!r}" if self.remark else ""
        fields = {name: "***" if name in SECRET_FIELDS else value for name, value in self.fields.items()}
        return f"<Command {kind} {self.code} #{self.opaque} {fields} {len(self.body)} bytes{remark}>"


def decode(frame: Frame) -> Command:
    """Raises Broken when the header is not what its form says."""
    form, header, body = frame
    if form == BINARY:
        return binary.command_of(binary.read_header(header), body, Command)
    return from_json(load_json_header(header), body)


def load_json_header(header: bytes) -> dict[str, Any]:
    try:
        head = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise Broken(f"header is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise Broken(f"header is a JSON {type(head).__name__}, expected an object")
    return head


def from_json(head: dict[str, Any], body: bytes) -> Command:
    code, opaque, flag = head.get("code"), head.get("opaque", 0), head.get("flag", 0)
    version, remark, language = head.get("version", 0), head.get("remark"), head.get("language", "OTHER")
    fields = head.get("extFields") or {}
    if not (type(code) is type(opaque) is type(flag) is type(version) is int):
        raise Broken(f"code, opaque, flag and version must be integers, got {code!r}, {opaque!r}, {flag!r}, {version!r}")
    for number in (code, opaque, flag, version):
        if not -0x80000000 <= number <= 0x7FFFFFFF:
            raise Broken(f"code {code}, opaque {opaque}, flag {flag}, version {version}: one is no 32-bit number")
    if not isinstance(fields, dict):
        raise Broken(f"extFields is a JSON {type(fields).__name__}, expected an object")
    return Command(
        code,
        texts_of(fields),
        body,
        opaque=opaque,
        flag=flag,
        remark=remark if isinstance(remark, str) else None,
        language=language if isinstance(language, str) else "OTHER",
        version=version,
    )


def command_of(head: Head, body: bytes) -> Command:
    """Of a header that was read, in either form. Raises Broken."""
    return from_json(head, body) if isinstance(head, dict) else binary.command_of(head, body, Command)


def texts_of(fields: dict[str, Any]) -> dict[str, str]:
    """Every value as text, those that are none left out."""
    return {name: value if type(value) is str else java_text(value) for name, value in fields.items() if value is not None}


def java_text(value: Any) -> str:
    """A JSON value as Java's fastjson puts it into a String field."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        try:
            return orjson.dumps(value).decode()
        except TypeError as error:  # orjson reads deeper than it writes
            raise Broken(f"a field's value cannot be kept as text: {error}") from None
    return str(value)
