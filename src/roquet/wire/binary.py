"""RocketMQ's own compact header form (serialize type 1).

    code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark 4+n | fields 4+n       all big-endian
    one field:  name 2+n | value 4+n

A zero-length text reads as absent, as upstream reads it. Codes above 32767 do not fit; such requests come as JSON.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from roquet.errors import Broken

if TYPE_CHECKING:
    from roquet.wire.command import Command

FIXED = struct.Struct(">hbhii")
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS")
LANGUAGE_OTHER = LANGUAGES.index("OTHER")


def encode_header(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGE_OTHER
    remark = (command.remark or "").encode()
    parts: list[bytes] = []
    for name, value in command.fields.items():
        key, text = name.encode(), value.encode()
        if text:
            parts.append(b"%b%b%b%b" % (len(key).to_bytes(2, "big"), key, len(text).to_bytes(4, "big"), text))
    fields = b"".join(parts)
    head = FIXED.pack(command.code, language, command.version, command.opaque, command.flag)
    return b"%b%b%b%b%b" % (head, len(remark).to_bytes(4, "big"), remark, len(fields).to_bytes(4, "big"), fields)


def decode_header(header: bytes, body: bytes, make: type[Command]) -> Command:
    """Every declared length is checked against what is left before it is used."""
    end = len(header)

    def take(at: int, width: int, what: str) -> tuple[bytes, int]:
        if at + width > end:
            raise Broken(f"binary header ends inside the length of {what}")
        size = int.from_bytes(header[at : at + width], "big", signed=True)
        at += width
        if size < 0 or at + size > end:
            raise Broken(f"{what} of {size} bytes in a header with {end - at} left")
        return header[at : at + size], at + size

    if end < FIXED.size:
        raise Broken(f"binary header of {end} bytes, at least {FIXED.size + 8} expected")
    code, language, version, opaque, flag = FIXED.unpack_from(header)
    try:
        remark, at = take(FIXED.size, 4, "the remark")
        raw, at = take(at, 4, "the fields")
        stop, at = at, at - len(raw)
        fields: dict[str, str] = {}
        while at < stop:
            name, at = take(at, 2, "a field's name")
            value, at = take(at, 4, "a field's value")
            if at > stop:
                raise Broken("a field runs past the end of the fields")
            if value:
                fields[name.decode()] = value.decode()
        text = remark.decode() or None
    except UnicodeDecodeError as error:
        raise Broken(f"binary header is not UTF-8: {error}") from None
    return make(
        code,
        fields,
        body,
        opaque=opaque,
        flag=flag,
        remark=text,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER",
        version=version,
        binary=True,
    )
