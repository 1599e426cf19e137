from __future__ import annotations

import contextlib
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.errors import Broken, Refused
from roquet.wire import binary, headers
from roquet.wire import command as commands
from roquet.wire.calls.pulls import PullHeader
from roquet.wire.calls.queues import QueueHeader
from roquet.wire.calls.sends import SendHeader
from roquet.wire.calls.table import CALLS
from roquet.wire.command import Command, load_json_header
from roquet.wire.frame import FRAME_SIZE_MAX, Framer, encode_frame
from roquet.wire.headers import INT32, INT64

KINDS: list[type] = sorted(
    {kind for call in CALLS.values() for kind in (call.header_type, call.answer_header_type)}, key=lambda kind: kind.__name__
)

SEND = {
    "producerGroup": "g", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "-1",
    "sysFlag": "0", "bornTimestamp": "1794732520853", "flag": "0",
}  # fmt: skip


def test_a_send_reads_the_same_from_long_names_and_from_letters() -> None:
    header = headers.decode(SendHeader, SEND)
    assert header == SendHeader("g", "t", "TBW102", 4, -1, 0, 1794732520853, 0)
    letters = headers.encode(header, short=True)
    assert letters == dict(zip("abcdefgh", SEND.values(), strict=True))
    assert headers.decode(SendHeader, letters) == header
    assert headers.encode(header) == SEND


def test_fields_nobody_declared_are_ignored() -> None:
    assert headers.decode(QueueHeader, {"topic": "t", "queueId": "1", "AccessKey": "x"}) == QueueHeader("t", 1)


def test_a_missing_required_field_is_refused_in_upstreams_words() -> None:
    with pytest.raises(Refused, match="the custom field <queueId> is null") as caught:
        headers.decode(QueueHeader, {"topic": "t"})
    assert caught.value.code == 1


def test_a_missing_field_is_named_without_a_name_of_our_code() -> None:
    with pytest.raises(Refused) as caught:
        headers.decode(SendHeader, {"a": "group"})
    assert caught.value.remark == "the custom field <topic> is null, but this request needs it (as topic or b)"


@pytest.mark.parametrize("text", ["x", "1.5", "1_000", " 1", "١", "1" * 30, "0x1", "--1"])
def test_what_is_no_number_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(Refused, match="queueId"):
        headers.decode(QueueHeader, {"topic": "t", "queueId": text})


def test_numbers_are_bounded_as_java_declares_them() -> None:
    for text in ("2147483648", "-2147483649"):
        with pytest.raises(Refused, match="allowed are -2147483648 to 2147483647"):
            headers.decode(QueueHeader, {"topic": "t", "queueId": text})
    with pytest.raises(Refused, match="9223372036854775807"):
        headers.decode(SendHeader, SEND | {"bornTimestamp": "9223372036854775808"})
    assert headers.decode(QueueHeader, {"topic": "t", "queueId": "+7"}).queue_id == 7


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("yes", False), ("", None)])
def test_only_true_is_true(text: str, value: bool | None) -> None:
    assert headers.decode(SendHeader, SEND | {"batch": text}).batch is value


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), max_size=20)


def value_of(column: headers.HeaderField, kind: type) -> st.SearchStrategy[Any]:
    hint = str(typing.get_type_hints(kind)[column.attribute])
    bits = kind.__dataclass_fields__[column.attribute].metadata["bits"]  # type: ignore[attr-defined] # every kind is a dataclass
    if "int" in hint:
        return st.integers(*(INT32 if bits == 32 else INT64))
    return st.booleans() if "bool" in hint else texts()


@given(st.data())
def test_every_header_survives_the_way_through_both_forms(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    values = {}
    for column in headers.fields_of(kind):
        if column.required or data.draw(st.booleans()):
            values[column.attribute] = data.draw(value_of(column, kind))
    header = kind(**values)
    for short in (False, True):
        fields = headers.encode(header, short)
        assert headers.decode(kind, fields) == header
        (frame,) = Framer().feed(Command(10, fields).encode())
        assert headers.decode(kind, commands.decode(frame).fields) == header


@given(st.sampled_from(KINDS), st.dictionaries(st.text(max_size=10), st.text(max_size=25)), st.data())
def test_any_fields_give_a_header_or_refused(kind: type, fields: dict[str, str], data: st.DataObject) -> None:
    for column in headers.fields_of(kind):
        fields[column.name] = data.draw(st.text(max_size=25) | st.integers().map(str))
    with contextlib.suppress(Refused):
        assert isinstance(headers.decode(kind, fields), kind)


# ---- commands and frames ----------------------------------------------------------------------------------------------

COMMANDS = st.builds(
    Command,
    st.integers(-32768, 32767),
    st.dictionaries(texts(), texts().filter(bool), max_size=6),
    st.binary(max_size=50),
    opaque=st.integers(*INT32),
    flag=st.integers(0, 3),
    remark=st.none() | texts().filter(bool),
    language=st.sampled_from(binary.LANGUAGES),
    version=st.integers(0, 32767),
    binary=st.booleans(),
)


@given(st.lists(COMMANDS, max_size=5), st.integers(1, 40))
def test_commands_survive_any_cutting_of_the_stream(sent: list[Command], step: int) -> None:
    stream = b"".join(command.encode() for command in sent)
    framer = Framer()
    got = [commands.decode(frame) for at in range(0, len(stream), step) for frame in framer.feed(stream[at : at + step])]
    assert got == sent
    assert framer.buffered == 0


def test_a_code_too_large_for_the_binary_form_goes_as_json() -> None:
    (frame,) = Framer().feed(Command(200050, {"a": "b"}, binary=True).encode())
    assert commands.decode(frame).code == 200050


def test_an_answer_comes_in_the_form_of_the_question() -> None:
    for form in (True, False):
        answer = Command(105, opaque=7, binary=form).reply(17, "no route")
        (frame,) = Framer().feed(answer.encode())
        assert frame[0] == int(form)
        assert commands.decode(frame).opaque == 7


def test_a_frame_of_the_limit_passes_and_a_longer_one_breaks() -> None:
    body = bytes(FRAME_SIZE_MAX - 4 - 2)
    frame = encode_frame(0, b"{}", body)
    assert Framer().feed(frame)[0][2] == body
    with pytest.raises(Broken, match="16777217"):
        Framer().feed((FRAME_SIZE_MAX + 1).to_bytes(4, "big") + bytes(4))


def test_a_header_beyond_the_limit_of_a_server_breaks_before_it_has_come() -> None:
    small, largest, longer = (encode_frame(0, bytes(size), bytes(200)) for size in (2, 100, 101))
    assert len(Framer(header_max=100).feed(small + largest + small)) == 3
    for data in (longer, small + longer + largest, longer[:8], small + longer[:20], longer[:-1]):
        with pytest.raises(Broken, match="header length 101, allowed are 100"):
            Framer(header_max=100).feed(data)
    for step in (1, 7, 50):
        framer = Framer(header_max=100)
        whole = [frame for at in range(0, len(largest), step) for frame in framer.feed(largest[at : at + step])]
        assert [len(header) for _, header, _ in whole] == [100]
        known_at = next(at for at in range(0, len(longer), step) if at + step >= 8)
        for at in range(0, known_at, step):
            assert not framer.feed(longer[at : at + step])
        with pytest.raises(Broken, match="header length 101"):
            framer.feed(longer[known_at : known_at + step])


def test_a_client_takes_every_header() -> None:
    """The answer to a batch has the ids of all its messages there."""
    assert len(Framer().feed(encode_frame(0, bytes(2 << 20), b""))[0][1]) == 2 << 20


def test_a_peer_that_sends_byte_by_byte_costs_one_buffer() -> None:
    framer = Framer()
    for byte in encode_frame(0, b"{}", bytes(5000))[:-1]:
        framer.feed(bytes((byte,)))
    assert framer.buffered == 5009
    assert len(framer._chunks) == 1


@given(st.binary(max_size=60))
def test_any_bytes_give_frames_or_broken(data: bytes) -> None:
    try:
        frames = Framer().feed(data)
    except Broken:
        return
    for frame in frames:
        with contextlib.suppress(Broken):
            commands.decode(frame)


@given(st.binary(max_size=200), st.binary(max_size=40), st.integers(0, 60), st.integers(-1, 40), st.integers(-1, 40))
def test_any_binary_header_gives_a_command_or_broken(data: bytes, tail: bytes, remark: int, size: int, name: int) -> None:
    shaped = (
        bytes(13)
        + remark.to_bytes(4, "big")
        + tail[:remark]
        + size.to_bytes(4, "big", signed=True)
        + name.to_bytes(2, "big", signed=True)
        + data
    )
    for header in (data, shaped):
        with contextlib.suppress(Broken):
            binary.read_header(header)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["code", "opaque", "flag", "version", "remark", "language", "extFields", "x"]),
        JSON_VALUES | st.integers(0, 400),
    )
)
def test_any_json_header_gives_a_command_or_broken(head: dict[str, Any]) -> None:
    try:
        command = commands.from_json(head, b"")
    except Broken:
        return
    assert all(isinstance(value, str) for value in command.fields.values())
    (frame,) = Framer().feed(command.encode())
    assert commands.decode(frame) == command


def test_a_deep_header_is_broken_and_nothing_else() -> None:
    for depth in (300, 900, 100_000):
        header = b'{"code":1,"extFields":{"a":' + b"[" * depth + b"]" * depth + b"}}"
        with pytest.raises(Broken):
            commands.from_json(load_json_header(header), b"")


def test_fields_that_are_not_text_take_javas_spelling() -> None:
    command = commands.from_json({"code": 310, "extFields": {"e": 3, "k": False, "m": True, "z": None}}, b"")
    assert command.fields == {"e": "3", "k": "false", "m": "true"}


def test_a_pull_of_the_cpp_client_has_no_expression_type() -> None:
    fields = {
        "consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    assert headers.decode(PullHeader, fields).expression_type is None
