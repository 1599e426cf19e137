"""The short way of signed sends, in Python and compiled: both find the same, and neither finds more than the guard would let in."""

from __future__ import annotations

from random import Random

import orjson
import pytest

from roquet.access.signed_sends import Find, signed_sends
from roquet.speedups import native
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from roquet.wire.frame import Frame, Framer
from roquet.wire.signing import Credentials, sign

from ..broker.whole import long_names, send_fields

SECRETS = {b"short-key": b"a-secret", b"long-key": b"s" * 200, b"block-key": b"b" * 64}
MAY = {key + b"\0T" for key in SECRETS}
FINDS = [signed_sends] if native is None else [signed_sends, native.signed_sends]


def frame(
    code: int = Code.SEND_MESSAGE_V2, body: bytes = b"body", *, key: bytes = b"short-key", binary: bool = False, **more: str
) -> Frame:
    fields = send_fields() | more
    command = Command(code, long_names(fields) if code == Code.SEND_MESSAGE else fields, body, binary=binary)
    sign(command, Credentials(key.decode(), SECRETS.get(key, b"unknown-secret").decode()))
    (made,) = Framer().feed(command.encode())
    return made


def found(find: Find, *frames: Frame) -> tuple[int, bytes | None]:
    return find(list(frames), 0, len(frames), SECRETS, MAY, b"broker-a")


@pytest.mark.parametrize("find", FINDS)
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("key", SECRETS)
def test_signatures_of_every_size_are_right(find: Find, binary: bool, key: bytes) -> None:
    frames = [
        frame(body=bytes(range(256)) * 4096, key=key, binary=binary),
        *(frame(body=b"x" * size, key=key, binary=binary) for size in range(200)),
    ]
    assert found(find, *frames) == (len(frames), None)


@pytest.mark.parametrize("find", FINDS)
@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE])
def test_each_code_of_a_send_is_found(find: Find, code: int) -> None:
    assert found(find, frame(code), frame(code, binary=True)) == (2, None)


@pytest.mark.parametrize("find", FINDS)
def test_what_may_not_be_sent_yet_is_asked_for(find: Find) -> None:
    assert found(find, frame(), frame(b="other"), frame()) == (1, b"short-key\0other")
    assert found(find, frame(i='KEYS\x01ä€\U0001f600\x02TAGS\x01"quoted\\"')) == (1, None)


@pytest.mark.parametrize("find", FINDS)
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_what_is_not_sure_is_left(find: Find, binary: bool) -> None:
    wrong = frame(binary=binary)
    left = [
        (wrong[0], wrong[1], b"changed"),
        frame(binary=binary, key=b"unknown-key"),
        frame(binary=binary, n="broker-b"),
        frame(binary=binary, topic="secret"),
        frame(Code.PULL_MESSAGE, binary=binary),
        frame(binary=binary, b=""),
        (wrong[0], b"", b""),
        (wrong[0], wrong[1][:-1], wrong[2]),
    ]
    for one in left:
        assert found(find, one, frame()) == (0, None), one


@pytest.mark.parametrize("find", FINDS)
def test_frames_in_which_names_stand_twice_or_values_are_no_texts_are_left(find: Find) -> None:
    _, header, body = frame()
    head = orjson.loads(header)
    for name, value in (("e", 0), ("k", False), ("z", None), ("z", ["x"])):
        changed = orjson.dumps(head | {"extFields": head["extFields"] | {name: value}})
        assert found(find, (0, changed, body)) == (0, None), name
    again = header.replace(b'"b":"T"', b'"b":"secret","b":"T"')
    assert again != header
    assert found(find, (0, again, body))[0] in (0, 1), "the later of two counts, as everywhere, or nothing is said"
    assert found(find, (0, header.replace(b'"b":"T"', b'"b":"T","b":"secret"'), body)) == (0, None)


@pytest.mark.skipif(native is None, reason="there is no compiled step to compare with")
def test_the_compiled_step_finds_nothing_that_python_does_not_find() -> None:
    assert native is not None
    random = Random(15)
    same = 0
    for _ in range(4_000):
        made = frame(
            random.choice((Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)),
            random.randbytes(random.randrange(300)), key=random.choice(list(SECRETS)), binary=random.random() < 0.5,
            i=random.choice(("UNIQ_KEY\x01U1", "KEYS\x01ä€", "")),
        )  # fmt: skip
        form, header, body = made
        if random.random() < 0.7:
            at = random.randrange(len(header))
            kind = random.randrange(4)
            header = {
                0: header[:at] + bytes([random.randrange(256)]) + header[at + 1 :],
                1: header[:at] + header[at + 1 :],
                2: header[:at] + header[at : at + 9] + header[at:],
                3: header[:at] + b'","b":"secret' + header[at:],
            }[kind]
        compiled, plain = found(native.signed_sends, (form, header, body)), found(signed_sends, (form, header, body))
        same += compiled == plain
        assert compiled == plain or compiled == (0, None), (header, body)
    assert same > 3_500
