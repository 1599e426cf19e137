"""The shape of a pull's header: both forms of `pull_shape` agree, and requests of one shape differ in their three numbers alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.speedups import native
from roquet.wire.command import Command, decode
from roquet.wire.frame import BINARY, JSON, Framer
from roquet.wire.pull_shapes import pull_shape

from .golden_frames import VECTORS

FORMS = [pytest.param(pull_shape, id="python")] + ([pytest.param(native.pull_shape, id="compiled")] if native else [])
FIELDS = {
    "consumerGroup": "g", "topic": "T", "queueId": "3", "queueOffset": "1234", "maxMsgNums": "32", "sysFlag": "3", "commitOffset": "1200",
    "suspendTimeoutMillis": "15000", "subVersion": "1794732520853", "subscription": "*", "expressionType": "TAG",
}  # fmt: skip


def header_of(binary: bool, opaque: int = 7, code: int = 11, /, **more: str) -> tuple[int, bytes]:
    ((form, header, _),) = Framer().feed(Command(code, FIELDS | more, opaque=opaque, binary=binary).encode())
    return form, header


@pytest.mark.parametrize("shape", FORMS)
@pytest.mark.parametrize("binary", [False, True])
def test_requests_that_differ_in_their_numbers_have_one_shape(shape: Any, binary: bool) -> None:
    first = shape(*header_of(binary))
    assert first[1:] == (7, 1234, 1200)
    other = shape(*header_of(binary, 2_000_000_000, queueOffset="123456789012345678", commitOffset="0"))
    assert other == (first[0], 2_000_000_000, 123456789012345678, 0)
    for name, value in (("queueId", "33"), ("subscription", "a"), ("topic", "U"), ("sysFlag", "2"), ("maxMsgNums", "1")):
        assert shape(*header_of(binary, **{name: value}))[0] != first[0]


@pytest.mark.parametrize("shape", FORMS)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("number", ["-1", "", "01", "1e3", " 1", "1234567890123456789", "x", "\u0661"])
def test_a_number_that_is_written_oddly_has_no_shape(shape: Any, binary: bool, number: str) -> None:
    found = shape(*header_of(binary, queueOffset=number))
    if found is not None:  # what follows its digits is part of the shape
        assert number == "1e3"
        assert not binary
        assert found[0] != shape(*header_of(binary))[0]


@pytest.mark.parametrize("shape", FORMS)
@pytest.mark.parametrize("binary", [False, True])
def test_other_requests_have_none(shape: Any, binary: bool) -> None:
    for code in (10, 12, 110, 310, 34):
        assert shape(*header_of(binary, 7, code)) is None
    form, header = header_of(binary)
    for size in range(len(header) if binary else header.index(b"queueOffset") + 10):
        assert shape(form, header[:size]) is None
    assert shape(form, b"") is None
    assert shape(1 - form, header) is None


@pytest.mark.parametrize("shape", FORMS)
def test_a_number_that_stands_there_twice_has_none(shape: Any) -> None:
    _, header = header_of(False)
    for name in (b'"opaque":5', b'"queueOffset":"5"', b'"commitOffset":"0"'):
        assert shape(JSON, header[:-1] + b"," + name + b"}") is None
        assert shape(JSON, header.replace(b'"extFields":{', b'"extFields":{' + name + b",")) is None
    assert shape(JSON, header.replace(b"queueOffset", b"queueoffset")) is None


@pytest.mark.parametrize("shape", FORMS)
def test_a_name_inside_a_text_is_no_name(shape: Any) -> None:
    found = shape(*header_of(False, subscription='\\,"opaque":5,"queueOffset":"7"'))
    assert found is not None
    assert found[1:] == (7, 1234, 1200)


@pytest.mark.parametrize("shape", FORMS)
def test_the_pulls_of_apaches_clients_have_shapes(shape: Any) -> None:
    seen = 0
    for row in map(json.loads, (VECTORS / "frames.jsonl").read_text().splitlines()):
        if row["request_code"] == 11 and row["way"] == "c->s" and row["response_code"] is None:
            (frame,) = Framer().feed(bytes.fromhex(row["hex"]))
            command = decode(frame)
            found = shape(*frame[:2])
            assert found is not None
            assert found[1:] == (command.opaque, int(command.fields["queueOffset"]), int(command.fields["commitOffset"]))
            seen += 1
    assert seen == 6


PIECES = [
    b'{"code":11,', b'{', b',', b'"opaque":', b'"queueOffset":"', b'"commitOffset":"', b"0", b"7", b"12", b"0012", b"1" * 18, b"1" * 19,
    b'"', b"}", b"\\", b"x", b'"opaque":2147483648,', b'"opaque":2147483647,', b',"queueOffset":"5"', b',"commitOffset":"6"',
    b',"opaque":3',
]  # fmt: skip
BINARY_PIECES = [
    b"\0\x0bqueueOffset", b"\0\x0ccommitOffset", b"\0\0\0\x01", b"\0\0\0\x02", b"\0\0\0\x12", b"\0\0\0\x13",
    b"\0\0\0\0", b"0", b"5", b"12",
    b"1" * 18, b"\0\x0bqueueOffset\0\0\0\x024", b"\0\x0bqueueOffset\0\0\0\x0242", b"\0\x0ccommitOffset\0\0\0\x019",
    b"\0\x05topic\0\0\0\x01T", b"\0", b"\n",
]  # fmt: skip


@pytest.mark.skipif(native is None, reason="the extension is not built")
@given(st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join), st.booleans())
def test_both_forms_agree_about_json(text: bytes, front: bool) -> None:
    assert native is not None
    header = b'{"code":11,' * front + text
    assert native.pull_shape(JSON, header) == pull_shape(JSON, header)


@pytest.mark.skipif(native is None, reason="the extension is not built")
@given(st.lists(st.sampled_from(BINARY_PIECES), max_size=9).map(b"".join), st.binary(max_size=21), st.booleans())
def test_both_forms_agree_about_binary_headers(fields: bytes, front: bytes, usual: bool) -> None:
    assert native is not None
    if usual:
        front = b"\0\x0b\0\1\x99\0\0\0\7\0\0\0\0\0\0\0\0" + len(fields).to_bytes(4, "big")
    assert native.pull_shape(BINARY, front + fields) == pull_shape(BINARY, front + fields)


@pytest.mark.skipif(native is None, reason="the extension is not built")
@pytest.mark.parametrize("binary", [False, True])
@given(data=st.data())
def test_both_forms_agree_about_a_spoiled_request(binary: bool, data: st.DataObject) -> None:
    assert native is not None
    form, header = header_of(binary)
    at = data.draw(st.integers(0, len(header) - 1))
    spoiled = header[:at] + data.draw(st.binary(max_size=3)) + header[at + data.draw(st.integers(0, 3)) :]
    assert native.pull_shape(form, spoiled) == pull_shape(form, spoiled)
