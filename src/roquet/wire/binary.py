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
FRONT = struct.Struct(">hbhiiii")
FRONT_BEFORE_REMARK = struct.Struct(">hbhiii")
"""With the size of the remark, which nobody sends; the size of the fields follows it."""
LETTER_FIELD = struct.Struct(">hBi")
LETTERS = [chr(number) for number in range(128)]
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS")
LANGUAGE_OTHER = LANGUAGES.index("OTHER")


BinaryHead = tuple[int, int, int, dict[str, str], int, int, str | None]
"""(code, opaque, flag, fields, language, version, remark)."""


def encode_header(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGE_OTHER
    remark, fields = (command.remark or "").encode(), encode_fields(command.fields)
    head = FIXED.pack(command.code, language, command.version, command.opaque, command.flag)
    return b"%b%b%b%b%b" % (head, len(remark).to_bytes(4, "big"), remark, len(fields).to_bytes(4, "big"), fields)


def encode_fields(fields: dict[str, str]) -> bytes:
    """In this order, without those that are empty."""
    parts: list[bytes] = []
    for name, value in fields.items():
        key, text = name.encode(), value.encode()
        if text:
            parts.append(b"%b%b%b%b" % (len(key).to_bytes(2, "big"), key, len(text).to_bytes(4, "big"), text))
    return b"".join(parts)


def read_header(header: bytes) -> BinaryHead:
    """Every declared length is checked against what is left before it is used. Raises Broken."""
    end = len(header)
    if end < FRONT.size:
        raise Broken(f"binary header of {end} bytes, at least {FRONT.size} expected")
    code, language, version, opaque, flag, remark_size = FRONT_BEFORE_REMARK.unpack_from(header)
    at = FRONT_BEFORE_REMARK.size
    try:
        text: str | None = None
        if remark_size:
            remark, at = _take(header, at - 4, end, 4, "the remark")
            text = remark.decode() or None
        fields_size = int.from_bytes(header[at : at + 4], "big", signed=True)
        at += 4
        if at > end or fields_size < 0 or at + fields_size > end:
            raise Broken(f"the fields of {fields_size} bytes in a header with {end - at} left")
        return code, opaque, flag, read_fields(header, at, at + fields_size), language, version, text
    except UnicodeDecodeError as error:
        raise Broken(f"binary header is not UTF-8: {error}") from None


def read_fields(header: bytes, at: int, stop: int) -> dict[str, str]:
    """Those between two places. Raises Broken and UnicodeDecodeError. Most names are one letter: name and both sizes are then seven
    bytes."""
    fields: dict[str, str] = {}
    unpack, number = LETTER_FIELD.unpack_from, int.from_bytes
    while stop - at >= 7:
        name_size, letter, size = unpack(header, at)
        if name_size == 1:
            at += 7
            if size < 0 or size > stop - at:
                raise Broken(f"a field's value of {size} bytes in a header with {stop - at} left")
            if size:
                if letter >= 0x80:
                    raise Broken("binary header is not UTF-8: a name of one byte is no character")
                fields[LETTERS[letter]] = header[at : at + size].decode()
                at += size
        else:
            # Spelled out: a pull has a dozen of them. A value's length with its sign bit set is beyond any frame.
            name_stop = at + 2 + name_size
            value_at = name_stop + 4
            value_stop = value_at + number(header[name_stop:value_at], "big")
            if name_size < 0 or value_stop > stop:
                raise _cut_off(header, at, stop)
            if value_stop > value_at:
                fields[header[at + 2 : name_stop].decode()] = header[value_at:value_stop].decode()
            at = value_stop
    if at < stop:
        _, at = _take(header, at, stop, 2, "a field's name")
        _take(header, at, stop, 4, "a field's value")  # an empty name with an empty value, or it does not fit
    return fields


def _take(header: bytes, at: int, end: int, width: int, what: str) -> tuple[bytes, int]:
    if at + width > end:
        raise Broken(f"binary header ends inside the length of {what}")
    size = int.from_bytes(header[at : at + width], "big", signed=True)
    at += width
    if size < 0 or at + size > end:
        raise Broken(f"{what} of {size} bytes in a header with {end - at} left")
    return header[at : at + size], at + size


def _cut_off(header: bytes, at: int, stop: int) -> Broken:
    """What is wrong with the field that begins here, where the fields end at `stop`."""
    try:
        _, at = _take(header, at, stop, 2, "a field's name")
        _take(header, at, stop, 4, "a field's value")
    except Broken as error:
        return error
    return Broken(f"a field runs past the end of the fields at {stop}")


def command_of(head: BinaryHead, body: bytes, make: type[Command]) -> Command:
    code, opaque, flag, fields, language, version, remark = head
    return make(
        code,
        fields,
        body,
        opaque=opaque,
        flag=flag,
        remark=remark,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER",
        version=version,
        binary=True,
    )
