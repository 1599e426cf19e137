from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from roquet.errors import InvalidMessage, Refused
from roquet.message import Message, MessageQueue, ReceivedMessage, host_text
from roquet.wire.batch import join_batch, split_batch
from roquet.wire.codes import SysFlag
from roquet.wire.columns import batch_columns, java_hashes
from roquet.wire.compression import KINDS, compress, decompress
from roquet.wire.hashing import java_hash
from roquet.wire.ids import UniqueIds, offset_message_id, parse_offset_message_id
from roquet.wire.layout import BLANK_MAGIC, MAGIC_V1, MAGIC_V2
from roquet.wire.record import BadRecord, Record, decode_properties, decode_records, encode_properties

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@st.composite
def records(draw: st.DrawFn) -> Record:
    born, store = draw(HOSTS), draw(HOSTS)
    v6 = (SysFlag.BORN_HOST_V6 if len(born) == 20 else 0) | (SysFlag.STORE_HOST_V6 if len(store) == 20 else 0)
    magic = draw(st.sampled_from((MAGIC_V1, MAGIC_V2)))
    topic = draw(st.text(st.characters(codec="utf-8"), max_size=31 if magic == MAGIC_V1 else 300))
    return Record(
        topic, draw(INT32), draw(st.binary(max_size=100)), draw(st.binary(max_size=300)), draw(INT32), draw(INT64), draw(INT64),
        draw(INT32) & ~0x30 | v6, draw(INT64), born, draw(INT64), store, draw(INT32), draw(INT64), magic,
    )  # fmt: skip


@given(st.lists(records(), max_size=4))
def test_records_of_both_versions_and_address_families_survive(made: list[Record]) -> None:
    data = b"".join(record.encode() for record in made)
    assert decode_records(data) == made
    assert [record.size for record in made] == [len(record.encode()) for record in made]


@given(records(), st.data())
def test_a_record_with_any_bytes_changed_gives_a_record_or_bad_record(record: Record, data: st.DataObject) -> None:
    raw = bytearray(record.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    for check in (True, False):
        with contextlib.suppress(BadRecord):
            decode_records(bytes(raw), check_crc=check)


@given(st.binary(max_size=300), st.integers(-5, 320))
def test_any_bytes_give_a_record_or_bad_record(data: bytes, at: int) -> None:
    for given_bytes in (data, struct.pack(">iI", len(data) + 8, MAGIC_V1) + data):
        with contextlib.suppress(BadRecord):
            Record.decode(given_bytes, at)


def test_a_record_is_found_inside_a_larger_buffer() -> None:
    record = Record("t", 1, b"body", b"a\x01b")
    raw = b"xxx" + record.encode() + b"tail"
    assert Record.decode(raw, 3) == Record.decode(memoryview(raw), 3) == Record.decode(bytearray(raw), 3) == record


def test_a_changed_body_is_noticed_unless_nobody_asks() -> None:
    raw = bytearray(Record("t", 1, b"body").encode())
    raw[88] ^= 1
    with pytest.raises(BadRecord, match="checksum"):
        Record.decode(raw)
    assert Record.decode(raw, check_crc=False).body == b"cody"


def test_the_blank_end_of_a_file_is_named() -> None:
    with pytest.raises(BadRecord, match="blank end"):
        Record.decode(struct.pack(">iI", 200, BLANK_MAGIC) + bytes(192))


@pytest.mark.parametrize(
    "record",
    [
        Record("t" * 128, 0, b""),
        Record("t", 0, b"", bytes(32768)),
        Record("t", 1 << 31, b""),
        Record("t", 0, b"", born_host=bytes(7)),
    ],
)
def test_what_the_layout_has_no_room_for_does_not_encode(record: Record) -> None:
    with pytest.raises(ValueError):
        record.encode()


# ---- batches ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(INT32, st.binary(max_size=50), st.binary(max_size=50)), min_size=1, max_size=5))
def test_a_batch_splits_into_what_was_joined(parts: list[tuple[int, bytes, bytes]]) -> None:
    assert split_batch(join_batch(parts)) == parts


@given(st.binary(max_size=80), st.integers(-3, 90), st.integers(-3, 90))
def test_any_bytes_give_a_batch_or_refused(data: bytes, size: int, body: int) -> None:
    for given_bytes in (data, struct.pack(">iiiii", size, 0, 0, 0, body) + data):
        with contextlib.suppress(Refused):
            split_batch(given_bytes)


@given(
    st.lists(st.tuples(INT32, st.binary(max_size=50), st.binary(max_size=50)), min_size=1, max_size=5) | st.just([(1, b"x", b"y")] * 9),
    st.integers(0, 400),
    st.integers(-3, 90),
)
def test_a_batch_in_columns_is_the_same_batch_and_one_that_is_refused_is_none(
    parts: list[tuple[int, bytes, bytes]], place: int, value: int
) -> None:
    body = join_batch(parts)
    spoiled = bytearray(body)
    struct.pack_into(">i", spoiled, place % (len(body) - 3), value)
    for one in (body, bytes(spoiled), body[: place % len(body)]):
        columns = batch_columns(one)
        if columns is None:
            with pytest.raises(Refused):
                split_batch(one)
        else:
            assert list(zip(columns.flags.tolist(), columns.bodies, columns.properties, strict=True)) == split_batch(one)
            assert columns.body_sizes.tolist() == list(map(len, columns.bodies))
            assert columns.property_sizes.tolist() == list(map(len, columns.properties))


# ---- properties and messages ------------------------------------------------------------------------------------------

PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), min_size=1, max_size=10)


@given(st.dictionaries(PLAIN, PLAIN))
def test_properties_survive_with_and_without_the_last_separator(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == decode_properties(text.encode()) == decode_properties(text + "\x02") == properties


@given(st.binary())
def test_any_bytes_give_properties(data: bytes) -> None:
    decode_properties(data)


def test_entries_without_a_name_or_a_value_are_dropped_as_upstream_drops_them() -> None:
    assert decode_properties("a\x01\x02\x01b\x02c\x02d\x01e\x01f") == {"d": "e\x01f"}


def test_a_separator_inside_a_property_is_an_invalid_message() -> None:
    with pytest.raises(InvalidMessage, match="separate"):
        encode_properties({"a": "b\x02c"})


def test_a_message_keeps_tags_and_keys_as_properties() -> None:
    message = Message("t", b"body", tags="a", keys=["k", "l"], delay_level=3)
    assert message.properties == {"TAGS": "a", "KEYS": "k l", "DELAY": "3"}
    assert (message.tags, message.keys, message.delay_level, message.wait_store_ok) == ("a", ["k", "l"], 3, True)
    assert Message("t", b"", keys="one").keys == ["one"]


def test_a_wrong_message_says_what_to_do() -> None:
    with pytest.raises(InvalidMessage, match="encode"):
        Message("t", "text")  # type: ignore[arg-type] # what a user of untyped code would write
    with pytest.raises(InvalidMessage, match="white space"):
        Message("t", b"", keys=["a b"])


def test_queues_sort_as_rebalancing_wants_them() -> None:
    queues = [MessageQueue("t", "b", 10), MessageQueue("t", "b", 2), MessageQueue("t", "a", 3)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]


def test_a_received_message_shows_its_record() -> None:
    body = compress(b"z" * 8192)
    record = Record(
        "t", 3, body, b"TAGS\x01a\x02KEYS\x01k l\x02UNIQ_KEY\x01ABC", queue_offset=7, physical_offset=229,
        sys_flag=SysFlag.COMPRESSED, born_host=bytes((127, 0, 0, 1, 0, 0, 0x91, 0x5A)), store_host=bytes((127, 0, 0, 1, 0, 0, 0x51, 0xAF)),
    )  # fmt: skip
    message = ReceivedMessage(record, "broker-a")
    assert message.body == b"z" * 8192
    assert (message.tags, message.keys, message.message_id) == ("a", ["k", "l"], "ABC")
    assert message.offset_message_id == "7F000001000051AF00000000000000E5"
    assert message.queue == MessageQueue("t", "broker-a", 3)
    assert (message.born_host, message.store_host) == ("127.0.0.1:37210", "127.0.0.1:20911")
    assert host_text(bytes(15) + b"\x01" + bytes(4)) == "[::1]:0"


def test_a_damaged_body_fails_where_it_is_consumed_and_not_before() -> None:
    message = ReceivedMessage(Record("t", 0, b"no zlib", sys_flag=SysFlag.COMPRESSED))
    with pytest.raises(InvalidMessage, match="does not decompress"):
        _ = message.body


# ---- compression ------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=2000), st.sampled_from(sorted(KINDS)))
def test_compressed_bodies_come_back(data: bytes, kind: str) -> None:
    assert decompress(compress(data, kind), KINDS[kind]) == data
    assert decompress(compress(data, kind), KINDS[kind], limit=len(data)) == data


def test_the_first_compressed_bodies_named_no_kind_and_are_zlib() -> None:
    assert decompress(zlib.compress(b"old"), SysFlag.COMPRESSED) == b"old"
    assert decompress(b"as it is", 0) == b"as it is"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_bomb_is_stopped_at_the_limit_without_being_blown_up(kind: str) -> None:
    bomb = compress(bytes(50_000_000), kind)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessage, match="more than 1000000"):
            decompress(bomb, KINDS[kind], limit=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_half_a_compressed_body_is_no_body(kind: str) -> None:
    whole = compress(bytes(range(256)) * 40, kind)
    with pytest.raises(InvalidMessage):
        decompress(whole[: len(whole) // 2], KINDS[kind])
    with pytest.raises(InvalidMessage):
        decompress(b"", KINDS[kind])


@given(st.binary(max_size=200), st.integers(0, 0x7FF), st.sampled_from((b"", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd", b"\x78\x9c")))
def test_any_bytes_decompress_or_are_an_invalid_message(data: bytes, flag: int, magic: bytes) -> None:
    with contextlib.suppress(InvalidMessage):
        decompress(magic + data, flag | SysFlag.COMPRESSED, limit=10_000)


def test_streams_that_do_not_say_their_size_are_read_and_capped() -> None:
    writer = zstandard.ZstdCompressor().compressobj()
    stream = writer.compress(b"x" * 9000) + writer.flush()
    assert zstandard.frame_content_size(stream) == -1
    assert decompress(stream, KINDS["zstd"]) == decompress(stream, KINDS["zstd"], limit=9000) == b"x" * 9000
    for given_bytes, limit in ((stream, 8999), (stream, 0), (stream[:-1], 9000)):
        with pytest.raises(InvalidMessage, match="ends too early or expands to more than"):
            decompress(given_bytes, KINDS["zstd"], limit)
    assert decompress(lz4.frame.compress(b"x" * 9000, store_size=False), KINDS["lz4"]) == b"x" * 9000


# ---- hashes and ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hashed"), [("", 0), ("TagA", 2598919), ("中文", 646394), ("polygenelubricants", -(1 << 31)), ("😀", 1772899)]
)
def test_hashes_are_javas(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


@given(st.lists(st.text(st.characters(), max_size=80), max_size=30))
def test_many_hashes_are_the_same_as_one_by_one(texts: list[str]) -> None:
    assert java_hashes(texts).tolist() == [java_hash(text) for text in texts]


@given(HOSTS, st.integers(0, (1 << 63) - 1))
def test_an_offset_id_names_host_and_offset(host: bytes, offset: int) -> None:
    assert parse_offset_message_id(offset_message_id(host, offset)) == (host, offset)


@pytest.mark.parametrize("text", ["", "x" * 32, "0" * 31, "0" * 33, "00 " * 16, "٠" * 32])
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_offset_message_id(text)


def test_unique_ids_look_like_javas_and_never_repeat() -> None:
    ids = UniqueIds(bytes((192, 0, 2, 2)), 0x60DA, 0x30946E09)
    first = ids.next(1794732520853)
    assert len(first) == 32
    assert first.startswith("C000020260DA30946E09")
    assert first == first.upper()
    # The clock stands still for more ids than its counter has room for, goes back, and turns the month.
    made = [first] + [ids.next(1794732520853) for _ in range(70_000)] + [ids.next(5), ids.next(1796083199999), ids.next(1796083200000)]
    assert len(set(made)) == len(made)
    assert len(UniqueIds(bytes(16), 1, 1).next(0)) == 56


def test_a_clock_set_forward_by_a_month_repeats_no_id() -> None:
    january, february = 1_798_761_600_000, 1_801_440_000_000
    ids = UniqueIds(bytes(4), 1, 7)
    made = {ids.next(january + 1_000 + number // 50) for number in range(1 << 16)}  # the counter has gone round once
    made |= {ids.next(february + 1_000 + number // 50) for number in range(1 << 16)}
    assert len(made) == 2 << 16
