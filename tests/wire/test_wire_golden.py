"""What Java sent decodes, and encodes again: records to the same bytes, headers and bodies to an equal value."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.errors import Broken, Refused
from roquet.wire import command as commands
from roquet.wire import fastjson, headers
from roquet.wire.batch import join_batch, split_batch
from roquet.wire.bodies import Body
from roquet.wire.calls.call import Batch, Carried, Message, Properties, Records
from roquet.wire.calls.groups import GroupTable
from roquet.wire.calls.offsets import DelayOffsetTable, OffsetTable
from roquet.wire.calls.registration import REGISTER_BROKER
from roquet.wire.calls.routes import RouteInfo
from roquet.wire.calls.table import CALLS
from roquet.wire.calls.topics import TopicTable
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.frame import Frame, Framer
from roquet.wire.layout import BLANK_MAGIC
from roquet.wire.record import BadRecord, Record, body_crc, decode_records

from .golden_frames import Golden, golden, store_files

ALL = golden()
STORES = ("store-4.9.7-killed.tar.gz", "store-4.9.7-stopped.tar.gz")


def header_type(one: Golden) -> type[object]:
    call = CALLS[one.request_code]
    found: type[object] = call.header_type if one.is_request else call.answer_header_type
    return found


def body_type(one: Golden) -> type[Carried]:
    call = CALLS[one.request_code]
    found: type[Carried] = call.body_type if one.is_request else call.answer_body_type
    return found


def same(frames: list[Frame], wanted: tuple[Golden, ...]) -> None:
    assert [commands.decode(frame) for frame in frames] == [one.command for one in wanted]


def canonical(value: Any) -> Any:
    """Equal for equal values: arrays are sets of Java, so their order counts no more than that of fields."""
    if isinstance(value, dict):
        return {key: canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted((canonical(one) for one in value), key=fastjson.dumps_standard)
    return value


def test_the_recording_has_57_request_codes_and_both_header_forms() -> None:
    assert len({one.request_code for one in ALL}) == 57
    assert {one.form for one in ALL} == {"JSON", "BINARY"}


def test_every_recorded_code_has_a_name() -> None:
    for one in ALL:
        RequestCode(one.request_code)
        ResponseCode(one.response_code or 0)


@pytest.mark.parametrize("one", ALL, ids=str)
def test_a_recorded_frame_reads_as_what_it_was_said_to_be(one: Golden) -> None:
    command = one.command
    assert command.code == (one.request_code if one.is_request else one.response_code)
    assert command.is_response is not one.is_request
    assert command.is_oneway == one.oneway
    assert (command.opaque, command.version, command.binary) == (one.opaque, one.version, one.form == "BINARY")
    assert command.language == "JAVA"


def test_a_stream_gives_the_same_frames_whole_and_byte_by_byte_and_with_a_tail() -> None:
    stream = b"".join(one.data for one in ALL)
    same(Framer().feed(stream), ALL)

    framer = Framer()
    same([frame for byte in stream for frame in framer.feed(bytes((byte,)))], ALL)
    assert framer.buffered == 0

    framer = Framer()
    same(framer.feed(stream + ALL[0].data[:-1]), ALL)
    assert framer.buffered == len(ALL[0].data) - 1
    same(framer.feed(ALL[0].data[-1:]), ALL[:1])


@pytest.mark.parametrize("one", ALL, ids=str)
def test_a_command_encodes_to_an_equal_value_in_the_same_form(one: Golden) -> None:
    command = one.command
    again = command.encode()
    (frame,) = Framer().feed(again)
    assert commands.decode(frame) == command
    if command.binary:
        assert sorted(again) == sorted(one.data)  # the same bytes but for the order of the fields
    else:
        header = orjson.loads(again[8 : 8 + int.from_bytes(again[5:8], "big")])
        wanted = orjson.loads(one.data[8 : 8 + int.from_bytes(one.data[5:8], "big")])
        if not wanted.get("extFields"):
            wanted.pop("extFields", None)  # ours is absent when empty, as Apache's is nearly always
        assert header == wanted


@pytest.mark.parametrize("one", [one for one in ALL if one.command.fields], ids=str)
def test_fields_decode_to_a_typed_header_and_encode_to_the_same_fields(one: Golden) -> None:
    kind, fields = header_type(one), one.command.fields
    header = headers.decode(kind, fields)
    assert headers.encode(header, short="a" in fields) == fields
    assert headers.decode(kind, headers.encode(header)) == header


@pytest.mark.parametrize("one", [one for one in ALL if one.command.body], ids=str)
def test_a_body_decodes_to_its_class_and_encodes_to_an_equal_value(one: Golden) -> None:
    kind, body = body_type(one), one.command.body
    if kind is Message:
        return  # the user's bytes
    made = kind.decode(body)
    if isinstance(made, Properties):
        assert made.pairs()
    elif kind is Batch:
        assert join_batch(split_batch(body)) == body
    elif kind is Records:
        assert b"".join(record.encode() for record in decode_records(body)) == body
    else:
        assert kind.decode(made.encode()) == made
        if kind is RouteInfo:  # the recorded clients are new enough for standard JSON, which is sorted: the same bytes
            assert isinstance(made, RouteInfo)
            assert made.encode(standard=True) == body
            assert RouteInfo.decode(made.encode()) == made
        else:
            assert canonical(fastjson.loads(made.encode())) == canonical(fastjson.loads(body))


@given(st.sampled_from(ALL), st.data())
def test_a_recorded_frame_with_bytes_changed_gives_a_value_or_the_documented_error(one: Golden, data: st.DataObject) -> None:
    raw = bytearray(one.data)
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255) | st.sampled_from(b'{}[]:,"0123456789-'))
    (frame,) = Framer().feed(bytes(raw))
    try:
        command = commands.decode(frame)
    except Broken:
        return
    with contextlib.suppress(Refused):
        headers.decode(header_type(one), command.fields)
    with contextlib.suppress(Refused):
        body_type(one).decode(command.body)
    with contextlib.suppress(Refused):
        split_batch(command.body)
    with contextlib.suppress(BadRecord):
        decode_records(command.body)


def test_the_checksum_of_a_registration_is_the_one_in_its_header() -> None:
    checked = 0
    for one in ALL:
        if one.request_code == RequestCode.REGISTER_BROKER and one.is_request:
            header = REGISTER_BROKER.read_header(one.command)
            assert header.body_crc32 == body_crc(one.command.body)
            checked += 1
    assert checked


@pytest.mark.parametrize("store", STORES)
def test_stored_records_decode_and_encode_to_the_same_bytes(store: str) -> None:
    topics: dict[str, int] = {}
    for name, data in store_files(store, "commitlog/"):
        start = int(name.rpartition("/")[2])
        at = 0
        while True:
            try:
                record = Record.decode(data, at)
            except BadRecord:
                break
            assert record.encode() == data[at : at + record.size]
            assert record.physical_offset == start + at
            topics[record.topic] = topics.get(record.topic, 0) + 1
            at += record.size
        size, magic = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        assert (size, magic) in ((len(data) - at, BLANK_MAGIC), (0, 0))  # the file is full, or the log ends here
    assert topics["VecTopic"] == 27 + 10 + 13 + 14
    assert topics["SCHEDULE_TOPIC_XXXX"] == 8


@pytest.mark.parametrize("store", STORES)
def test_config_files_decode_and_encode_to_an_equal_value(store: str) -> None:
    kinds: dict[str, type[Body]] = {
        "topics": TopicTable,
        "subscriptionGroup": GroupTable,
        "consumerOffset": OffsetTable,
        "delayOffset": DelayOffsetTable,
    }
    seen = set()
    for name, data in store_files(store, "config/"):
        kind = kinds.get(name.removeprefix("config/").partition(".")[0])
        if kind is not None:
            made = kind.decode(data)
            assert fastjson.loads(fastjson.dumps_pretty(made.to_json())) == fastjson.loads(data)
            seen.add(kind)
    assert seen == set(kinds.values())
