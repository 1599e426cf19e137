"""The header of a pull's answer in both forms, written by hand: there is one for every thirty-two messages.

`PullResponseHeader` is the same thing typed; a test holds both to the same bytes.
"""

from __future__ import annotations

from roquet.wire.binary import FIXED
from roquet.wire.command import RESPONSE, VERSION
from roquet.wire.frame import BINARY, JSON


def field(name: str) -> bytes:
    return len(name).to_bytes(2, "big") + name.encode()


SUGGESTED = field("suggestWhichBrokerId")
MASTER = SUGGESTED + b"\0\0\0\x010"
NEXT, FIRST, LAST, COUNT = field("nextBeginOffset"), field("minOffset"), field("maxOffset"), field("scanCount")


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
    return frame_front(pull_answer_head(opaque, 0, b"FOUND", next_offset, first, last, binary=binary), size, binary=binary)
