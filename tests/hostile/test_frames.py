"""Frames that lie, end too early, are far too large or are none: answered or closed, and nobody else notices."""

from __future__ import annotations

import os
import struct
from random import Random

import pytest

from roquet.wire.command import ONEWAY, RESPONSE, Command
from roquet.wire.frame import BINARY, FRAME_SIZE_MAX, JSON, encode_frame
from tests.hostile import mutations
from tests.hostile.conftest import PROBE, Victim

LIVE_MUTATIONS = 20_000 if os.environ.get("ROQUET_LONG") else 600
"""Damaged frames sent to each live server; ROQUET_LONG=1 makes it 20,000. (The cores take far more in test_mutations.)"""

HEADER = b'{"code":99999,"opaque":7,"flag":0,"version":409,"language":"JAVA"}'
"""A request with a code that nobody knows."""


def frame_of(length: int, word: int, rest: bytes = b"") -> bytes:
    return struct.pack(">II", length & 0xFFFFFFFF, word & 0xFFFFFFFF) + rest


@pytest.mark.parametrize("length", [FRAME_SIZE_MAX + 1, (1 << 31) - 1, -1, -(1 << 31), 0, 1, 3])
def test_a_length_that_no_frame_has_closes_the_connection_before_its_bytes_come(server: Victim, length: int) -> None:
    with server.line() as line:
        line.send(frame_of(length, len(HEADER), HEADER))
        assert line.receive() is None


def test_the_largest_frame_is_taken_and_answered(server: Victim) -> None:
    body = bytes(FRAME_SIZE_MAX - 4 - len(HEADER))
    (answer, probe) = server.attack(encode_frame(JSON, HEADER, body))
    assert answer.code == 3
    assert probe.opaque == PROBE


@pytest.mark.parametrize("form", [2, 3, 127, 255])
def test_a_header_form_that_does_not_exist_closes_the_connection(server: Victim, form: int) -> None:
    assert server.attack(frame_of(4 + len(HEADER), form << 24 | len(HEADER), HEADER)) == []


@pytest.mark.parametrize("declared", [len(HEADER) + 1, 0xFFFFFF, 1_000])
def test_a_header_longer_than_its_frame_closes_the_connection(server: Victim, declared: int) -> None:
    assert server.attack(frame_of(4 + len(HEADER), declared, HEADER)) == []


@pytest.mark.parametrize("declared", [0, 1, len(HEADER) - 1])
def test_a_header_cut_short_by_its_own_length_closes_the_connection(server: Victim, declared: int) -> None:
    assert server.attack(frame_of(4 + len(HEADER), declared, HEADER)) == []


def test_truncated_frames_get_no_answer_and_hold_nothing(server: Victim) -> None:
    data = encode_frame(JSON, HEADER, b"body")
    for size in range(len(data)):
        with server.line() as line:
            line.send(data[:size])
            line.socket.shutdown(1)
            assert line.receive_until_closed() == []


BINARY_HEAD = struct.pack(">hbhii", 9_999, 0, 409, 7, 0)

LYING_BINARY_HEADERS = [
    b"",
    BINARY_HEAD[:5],
    BINARY_HEAD,
    BINARY_HEAD + b"\0\0",
    BINARY_HEAD + struct.pack(">i", 1),
    BINARY_HEAD + struct.pack(">i", -1) + bytes(4),
    BINARY_HEAD + struct.pack(">i", 0x7FFFFFFF) + bytes(4),
    BINARY_HEAD + struct.pack(">ii", 0, 1),
    BINARY_HEAD + struct.pack(">ii", 0, -1),
    BINARY_HEAD + struct.pack(">ii", 0, 0x7FFFFFFF) + b"abc",
    BINARY_HEAD + struct.pack(">iihc", 0, 3, 1, b"a"),
    BINARY_HEAD + struct.pack(">iihci", 0, 7, 1, b"a", 1),
    BINARY_HEAD + struct.pack(">iihci", 0, 7, 1, b"a", -1),
    BINARY_HEAD + struct.pack(">iihci", 0, 7, 1, b"a", 0x7FFFFFFF),
    BINARY_HEAD + struct.pack(">iihci", 0, 7, -1, b"a", 0),
    BINARY_HEAD + struct.pack(">iihci", 0, 7, 0x7FFF, b"a", 0),
    BINARY_HEAD + struct.pack(">iihcic", 0, 8, 1, b"\xff", 1, b"\xff"),
    BINARY_HEAD + struct.pack(">ic", 1, b"\xff") + bytes(4),
]


@pytest.mark.parametrize("header", LYING_BINARY_HEADERS)
def test_a_binary_header_whose_lengths_lie_closes_the_connection(server: Victim, header: bytes) -> None:
    assert server.attack(encode_frame(BINARY, header, b"body")) == []


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: broker\r\nContent-Length: 5\r\n\r\nhello",
    "tls": bytes.fromhex("16030100a5010000a10303") + bytes(range(160)),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "kafka": bytes.fromhex("0000001a0012000300000001000464656d6f0464656d6f06312e302e3000"),
    "zeros": bytes(70_000),
    "ones": b"\xff" * 70_000,
    "newlines": b"\r\n" * 5_000,
    **{f"random-{seed}": Random(seed).randbytes(70_000) for seed in range(5)},
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_closes_the_connection(server: Victim, name: str) -> None:
    assert server.attack(GARBAGE[name]) == []


@pytest.mark.parametrize("code", [0, -1, 3, 9_999, 32_767, -32_768, 32_768, (1 << 31) - 1, -(1 << 31)])
@pytest.mark.parametrize("binary", [False, True])
def test_a_code_that_nobody_knows_is_answered_with_3_and_its_number(server: Victim, code: int, binary: bool) -> None:
    answer = server.ask(Command(code, {"topic": "x"}, b"body", binary=binary))
    assert answer.code == 3
    assert answer.remark is not None
    assert str(code) in answer.remark
    assert "not supported" in answer.remark
    assert answer.binary == (binary and -32_768 <= code <= 32_767)


def test_oneways_and_answers_that_nobody_waits_for_are_not_answered(server: Victim) -> None:
    data = Command(99_999, opaque=1, flag=ONEWAY).encode()
    data += b"".join(Command(code, opaque=2, flag=RESPONSE, body=b"x" * 1_000).encode() for code in (0, 1, 11, 34))
    assert [answer.opaque for answer in server.attack(data)] == [PROBE]


@pytest.mark.parametrize(
    "code",
    [
        10,
        310,
        11,
        34,
    ],
)
def test_a_request_with_nothing_but_its_code_is_answered(broker: Victim, code: int) -> None:
    (answer, probe) = broker.attack(encode_frame(JSON, b'{"code":%d}' % code))
    assert answer.code != 0
    assert answer.remark
    assert probe.opaque == PROBE


def test_damaged_copies_of_recorded_requests_leave_a_live_server_serving(server: Victim) -> None:
    """600 of them, many on one connection until it is closed; see LIVE_MUTATIONS for the full count."""
    random = Random(4)
    frames = [frame for frame in mutations.damaged(random, 40) if b"brokerPermission" not in frame]
    random.shuffle(frames)
    frames = frames[:LIVE_MUTATIONS]
    closed = 0
    for at in range(0, len(frames), 4):
        answers = server.attack(b"".join(frames[at : at + 4]))
        closed += not answers or answers[-1].opaque != PROBE
        if at % 400 == 0:
            server.check()
    assert closed, "damage that closes no connection is none"
