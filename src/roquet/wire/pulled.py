"""The header of a pull's answer in both forms, written by hand: there is one for every thirty-two messages.

`PullResponseHeader` is the same thing typed; a test holds both to the same bytes.
"""

from __future__ import annotations

import struct

from roquet.wire.binary import FIXED
from roquet.wire.command import RESPONSE, VERSION
from roquet.wire.frame import BINARY, JSON


def field(name: str) -> bytes:
    return len(name).to_bytes(2, "big") + name.encode()


SUGGESTED = field("suggestWhichBrokerId")
MASTER = SUGGESTED + b"\0\0\0\x010"
NEXT, FIRST, LAST, COUNT = field("nextBeginOffset"), field("minOffset"), field("maxOffset"), field("scanCount")

FOUND_FRONT = struct.Struct(f">ii{FIXED.format[1:]}i5si")
"""Of a frame: lengths and header form, what is in every binary header, the remark, and how long the fields are."""
FOUND_FIELDS = len(MASTER + NEXT + FIRST + LAST) + 12
"""Bytes of the fields but for three numbers' digits."""


def pull_answer_head(
    opaque: int, code: int, remark: bytes, next_offset: int, first: int, last: int, scan_count: int | None = None, suggested: int = 0, *,
    binary: bool,
) -> bytes:  # fmt: skip
    """`suggested`: the id of the broker that is to be asked next."""
    if not binary:
        scanned = b"" if scan_count is None else b',"scanCount":"%d"' % scan_count
        return (
            b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"%b},'
            b'"flag":1,"language":"JAVA","opaque":%d,"remark":"%b","serializeTypeCurrentRPC":"JSON","version":%d}'
            % (code, suggested, next_offset, first, last, scanned, opaque, remark, VERSION)
        )
    fields = b"%b%b%b%b%b%b%b" % (
        MASTER if not suggested else SUGGESTED + number(suggested), NEXT, number(next_offset), FIRST, number(first), LAST, number(last),
    )  # fmt: skip
    if scan_count is not None:
        fields += COUNT + number(scan_count)
    front = FIXED.pack(code, 0, VERSION, opaque, RESPONSE)
    return b"%b%b%b%b%b" % (front, len(remark).to_bytes(4, "big"), remark, len(fields).to_bytes(4, "big"), fields)


def number(value: int) -> bytes:
    text = b"%d" % value
    return b"\0\0\0%c%b" % (len(text), text)


def frame_front(head: bytes, body_size: int, *, binary: bool) -> bytes:
    """What stands before the body of a frame with this header."""
    word = (BINARY if binary else JSON) << 24 | len(head)
    return b"%b%b%b" % ((4 + len(head) + body_size).to_bytes(4, "big"), word.to_bytes(4, "big"), head)


def found_front(opaque: int, next_offset: int, first: int, last: int, size: int, *, binary: bool) -> bytes:
    """What stands before so many bytes of records that were found here, on the broker that is to be asked again."""
    if not binary:
        return frame_front(pull_answer_head(opaque, 0, b"FOUND", next_offset, first, last, binary=False), size, binary=False)
    after, start, end = b"%d" % next_offset, b"%d" % first, b"%d" % last
    fields = FOUND_FIELDS + len(after) + len(start) + len(end)
    head = FOUND_FRONT.size - 8 + fields
    return b"%b%b%b\0\0\0%c%b%b\0\0\0%c%b%b\0\0\0%c%b" % (
        FOUND_FRONT.pack(4 + head + size, BINARY << 24 | head, 0, 0, VERSION, opaque, RESPONSE, 5, b"FOUND", fields),
        MASTER, NEXT, len(after), after, FIRST, len(start), start, LAST, len(end), end,
    )  # fmt: skip
