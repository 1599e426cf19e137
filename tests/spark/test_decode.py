"""Decoder against a decoder that is too simple to be wrong: record by record, with the classes that clients use."""

from __future__ import annotations

import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.errors import Damaged
from roquet.message import Property, ReceivedMessage
from roquet.spark.columns import BY_NAME, COLUMNS, arrow_schema
from roquet.spark.decode import Decoder
from roquet.spark.places import Chunk
from roquet.spark.properties import of_columns
from roquet.spark.slices import gather
from roquet.store.reader import StoreReader
from roquet.wire.compression import KINDS, compress
from roquet.wire.ids import offset_message_id
from roquet.wire.layout import MAGIC_V1, MAGIC_V2
from roquet.wire.record import BadRecord, Record

VECTORS = Path(__file__).parent.parent / "vectors"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL = arrow_schema()


def chunk_of(records: list[Record], gap: bytes = b"") -> Chunk:
    raw = [record.encode() for record in records]
    sizes = np.array([len(one) for one in raw], np.int32)
    positions = np.zeros(len(raw), np.int64)
    positions[1:] = np.cumsum(sizes[:-1] + len(gap))
    return Chunk(memoryview(gap.join(raw)), positions, sizes)


def rows(chunk: Chunk, schema: pa.Schema = ALL, rows_max: int = 4096, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in Decoder(schema, "b", **options).batches(chunk, rows_max):
        batch.validate(full=True)
        assert batch.schema == schema
        found += batch.to_pylist(maps_as_pydicts="strict")  # which refuses a name that stands twice
    return found


def time_of(ms: int) -> datetime | None:
    return EPOCH + timedelta(milliseconds=ms) if abs(ms) <= 2**63 // 1000 - 1 else None


def number(text: str | None, digits: int) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= digits else None


def simple(record: Record) -> dict[str, Any]:
    """One row, the slow way."""
    assert not record.sys_flag & 0x80, "a batch in one record"
    message = ReceivedMessage(record, "b")
    properties = message.properties
    level = number(properties.get(Property.DELAY), 10)
    due = number(properties.get(Property.TIMER_OUT_MS), 15)
    due = number(properties.get(Property.TIMER_DELIVER_MS), 15) if due is None else due
    state = (record.sys_flag & 0xC) >> 2
    unique = properties.get(Property.UNIQUE_KEY)
    return {
        "topic": record.topic,
        "broker": "b",
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "body": message.body,
        "keys": properties.get(Property.KEYS),
        "tags": properties.get(Property.TAGS),
        "properties": properties,
        "born_time": time_of(record.born_timestamp),
        "born_host": message.born_host,
        "store_time": time_of(record.store_timestamp),
        "store_host": message.store_host,
        "unique_id": unique,
        "message_id": offset_message_id(record.store_host, record.physical_offset & 0xFFFFFFFFFFFFFFFF),
        "reconsume_times": record.reconsume_times,
        "order_key": properties.get(Property.SHARDING_KEY),
        "delay_level": level if level is not None and level < 2**31 else None,
        "deliver_time": time_of(due) if due is not None else None,
        "transaction": (None, "prepared", "committed", "rolled_back")[state],
        "transaction_id": properties.get(Property.TRANSACTION_ID, unique) if state else None,
        "prepared_offset": record.prepared_transaction_offset if state else None,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "physical_offset": record.physical_offset,
        "stored_size": record.size,
    }


# ---- what records there are ---------------------------------------------------------------------------------------------------

LONG_MS = 253_402_300_799_000
"""The end of the year 9999: Python's times go no further."""
NAMES = st.sampled_from(
    "KEYS TAGS UNIQ_KEY __SHARDINGKEY DELAY TIMER_OUT_MS TIMER_DELIVER_MS __transactionId__ K KEYSX a ä "
    "a-name-of-middle-length a-nose-of-middle-length ".split(" ")
)
VALUES = st.one_of(st.sampled_from(["", "1", "007", "99999999999", "x", "-1", "1700000000000", "v\x01w"]), st.text(max_size=9))
ENTRY = st.one_of(
    st.tuples(NAMES, VALUES).map(lambda pair: f"{pair[0]}\x01{pair[1]}".encode()),
    st.binary(max_size=6),
    st.sampled_from([b"", b"KEYS", b"\x01", b"\xff\x01\xfe", b"\xf0\x9f\x01x", b"KEYS\x01\xe2\x82"]),
)
PROPERTIES = st.builds(lambda entries, end: b"\x02".join(entries) + end, st.lists(ENTRY, max_size=6), st.sampled_from([b"", b"\x02"]))
HOST = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


@st.composite
def records(draw: st.DrawFn) -> Record:
    magic = draw(st.sampled_from([MAGIC_V1, MAGIC_V2]))
    body = draw(st.binary(max_size=40))
    sys_flag = draw(st.sampled_from([0, 0, 0, 2, 4, 8, 12, 0x40]))
    kind = draw(st.sampled_from([None, None, None, *KINDS]))
    if kind is not None:
        body, sys_flag = compress(body, kind), sys_flag | KINDS[kind]
    record = Record(
        topic=draw(st.one_of(st.just("T"), st.text(min_size=1, max_size=9), st.just("x" * (127 if magic == MAGIC_V1 else 300)))),
        queue_id=draw(INT),
        body=body,
        properties=draw(PROPERTIES),
        flag=draw(INT),
        queue_offset=draw(LONG),
        physical_offset=draw(LONG),
        sys_flag=sys_flag,
        born_timestamp=draw(st.one_of(st.integers(0, LONG_MS), st.sampled_from([-1, 2**63 - 1, -(2**63)]))),
        born_host=draw(HOST),
        store_timestamp=draw(st.integers(0, LONG_MS)),
        store_host=draw(HOST),
        reconsume_times=draw(INT),
        prepared_transaction_offset=draw(LONG),
        magic=magic,
    )
    return Record.decode(record.encode())  # its sys flag now names the hosts


def plain(count: int, **fields: Any) -> list[Record]:
    made = []
    for number in range(count):
        text = b"KEYS\x01k%d\x02TAGS\x01paid\x02UNIQ_KEY\x01%032X" % (number, number)
        made.append(Record("T", 1, b"body %d" % number, text, queue_offset=number, physical_offset=number * 200, **fields))
    return made


# ---- tests --------------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(records(), max_size=8), st.sampled_from([b"", b"between"]), st.integers(1, 9))
def test_every_column_is_what_a_client_would_see(made: list[Record], gap: bytes, rows_max: int) -> None:
    assert rows(chunk_of(made, gap), rows_max=rows_max, check_crc=True) == [simple(record) for record in made]


@settings(max_examples=60, deadline=None)
@given(st.lists(records(), min_size=1, max_size=5), st.lists(st.sampled_from([*BY_NAME]), min_size=1, unique=True))
def test_any_columns_in_any_order(made: list[Record], names: list[str]) -> None:
    expected = [{name: simple(record)[name] for name in names} for record in made]
    assert rows(chunk_of(made), arrow_schema(names)) == expected


@settings(max_examples=80, deadline=None)
@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_damaged_records_are_told_and_never_crash(made: list[Record], data: st.DataObject) -> None:
    chunk = chunk_of(made)
    raw = bytearray(chunk.data)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = Chunk(memoryview(bytes(raw)), chunk.positions, chunk.sizes)
    try:
        expected = [simple(Record.decode(bytes(raw[at : at + size]))) for at, size in zip(chunk.positions, chunk.sizes, strict=True)]
    except Exception:  # whatever the simple one has against it
        try:
            for batch in Decoder(ALL, "b", check_crc=True).batches(damaged):
                batch.validate(full=True)
        except Damaged:
            pass
    else:
        assert rows(damaged, check_crc=True) == expected


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_a_store_of_apache(kind: str, tmp_path: Path) -> None:
    with tarfile.open(VECTORS / f"store-4.9.7-{kind}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    reader = StoreReader(str(tmp_path / "store"))
    seen = 0
    for topic in reader.topics():
        for queue_id in reader.queues(topic):
            for entry in reader.entries(topic, queue_id, *reader.bounds(topic, queue_id)):
                base = reader.log.base_of(int(entry["offset"])) or 0
                position = np.array([entry["offset"] - base], np.int64)
                chunk = Chunk(reader.log_view(base), position, np.array([entry["size"]], np.int32))
                record = Record.decode(chunk.data, int(position[0]))
                assert rows(chunk, check_crc=True) == [simple(record)]
                seen += 1
    assert seen > 100


def test_many_rows_come_in_batches_of_at_most_so_many_and_none_is_small() -> None:
    made = plain(10_000)
    batches = list(Decoder(ALL, "b").batches(chunk_of(made), 4096))
    assert [batch.num_rows for batch in batches] == [3334, 3333, 3333]
    assert pa.Table.from_batches(batches)["queue_offset"].to_pylist() == list(range(10_000))


@pytest.mark.parametrize("count", [1, 16, 31, 32, 33, 100])
def test_the_least_and_greatest_byte_of_a_column_are_found_in_any_row(count: int) -> None:
    table = np.random.default_rng(count).integers(0, 256, (count, 7)).astype(np.uint8)
    assert of_columns(np.minimum, table).tolist() == table.min(axis=0).tolist()
    assert of_columns(np.maximum, table).tolist() == table.max(axis=0).tolist()


def test_large_records_make_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.spark.decode.BATCH_BYTES", 1000)
    made = [*plain(10), Record("T", 1, bytes(5000), queue_offset=10), *plain(2)]
    batches = list(Decoder(arrow_schema(["body"]), "b").batches(chunk_of(made)))
    assert [body for batch in batches for body in batch["body"].to_pylist()] == [record.body for record in made]
    assert max(sum(map(len, batch["body"].to_pylist())) for batch in batches if batch.num_rows > 1) < 1000


def test_bodies_that_grow_too_large_are_split_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.spark.decode.EXPANDED_MAX", 10_000)
    made = [Record("T", 1, compress(bytes([number]) * 4000, "zlib"), sys_flag=KINDS["zlib"]) for number in range(9)]
    batches = list(Decoder(arrow_schema(["body"]), "b").batches(chunk_of(made)))
    assert [body for batch in batches for body in batch["body"].to_pylist()] == [bytes([number]) * 4000 for number in range(9)]
    assert len(batches) > 1


def test_records_further_apart_than_arrow_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.spark.decode.WINDOW_MAX", 1000)
    made = plain(50)
    assert rows(chunk_of(made, bytes(400))) == [simple(record) for record in made]


def test_places_beyond_two_gibibytes() -> None:
    raw = plain(2)[1].encode()
    start = 3 * 2**31 // 2
    data = np.zeros(start + len(raw), np.uint8)  # pages that are never touched take no memory
    data[start:] = np.frombuffer(raw, np.uint8)
    data[: len(raw)] = data[start:]
    chunk = Chunk(data.data, np.array([0, start], np.int64), np.array([len(raw)] * 2, np.int32))
    assert [row["keys"] for row in rows(chunk)] == ["k1", "k1"]


def test_a_body_that_does_not_decompress_names_its_message() -> None:
    made = [*plain(3), Record("T", 7, b"no zlib", sys_flag=KINDS["zlib"], queue_offset=99)]
    with pytest.raises(Damaged, match=r"T/7 offset 99 .*zlib"):
        rows(chunk_of(made))
    assert len(rows(chunk_of(made), arrow_schema(["tags"]))) == 4, "who does not ask for bodies need not care"


def test_a_batch_kept_as_one_record_is_refused() -> None:
    with pytest.raises(Damaged, match="BatchCQ"):
        rows(chunk_of([Record("T", 0, b"x", sys_flag=0x80)]))


def test_a_wrong_checksum_is_found_when_asked_for() -> None:
    chunk = chunk_of(plain(5))
    raw = bytearray(chunk.data)
    raw[int(chunk.positions[3]) + 88] ^= 1
    damaged = Chunk(memoryview(bytes(raw)), chunk.positions, chunk.sizes)
    assert len(rows(damaged)) == 5
    with pytest.raises(BadRecord, match=r"T/1 offset 3 .*checksum"):
        rows(damaged, check_crc=True)


@pytest.mark.parametrize(
    ("positions", "sizes"),
    [([0, 0], [129, 129]), ([129, 0], [129, 129]), ([-5, 129], [129, 129]), ([0, 129], [129, 2**30]), ([0, 129], [129, 5])],
)
def test_places_that_cannot_be_are_refused(positions: list[int], sizes: list[int]) -> None:
    chunk = chunk_of([Record("T", 0, b"x" * 37), Record("T", 0, b"x" * 37)])
    with pytest.raises(BadRecord):
        rows(Chunk(chunk.data, np.array(positions, np.int64), np.array(sizes, np.int32)))


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ValueError, match="colour"):
        Decoder(pa.schema([("colour", pa.string())]), None)
    with pytest.raises(ValueError, match="queue_id"):
        Decoder(pa.schema([("queue_id", pa.int64())]), None)


def test_without_a_broker_its_column_is_null() -> None:
    (batch,) = Decoder(arrow_schema(["broker"]), None).batches(chunk_of(plain(3)))
    assert batch["broker"].to_pylist() == [None] * 3


def test_properties_that_are_not_asked_for_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("roquet.spark.decode.Properties")
    apart = {"keys", "tags", "properties", "unique_id", "order_key", "delay_level", "deliver_time"}
    assert len(rows(chunk_of(plain(3)), arrow_schema([column.name for column in COLUMNS if column.name not in apart]))) == 3


def test_more_properties_than_usual_and_repeated_ones() -> None:
    text = b"\x02".join(b"name-number-%d-of-many\x01%d" % (number % 25, number) for number in range(60))
    made = [Record("T", 0, b"", text), Record("T", 0, b"", b"a\x01b"), Record("T", 0, b"", text)]
    assert rows(chunk_of(made)) == [simple(record) for record in made]


ALIKE = [
    b"KEYS\x01k-%03d\x02TAGS\x01paid\x02UNIQ_KEY\x010A%030d",
    b"KEYS\x01k-%03d\x02TAGS\x01paid\x02UNIQ_KEY\x010A%030d\x02",  # as many clients end it
    b"TAGS\x01\x02KEYS\x01a%03d\x02\x02KEYS\x01b%03d\x02rest",  # no value, no name and value, a name twice, no value again
    b"KEYS\x01k\x01%03d\x02TAGS\x01%03d",  # the mark of a name inside of a value
    "KEYS\x01grün-%03d\x02TAGS\x01%03d".encode(),
]


@pytest.mark.parametrize("form", ALIKE)
@pytest.mark.parametrize(
    "odd", [b"", b"KEYS\x01other", b"KEYS\x01k-\x020\x02TAGS\x01paid\x02UNIQ_KEY\x010A%030d" % 7, b"KEYS\x01\xff\x02TAGS\x01x"]
)
def test_rows_that_look_alike_are_read_as_any_others(form: bytes, odd: bytes) -> None:
    """Also with one among them that does not: it has other lengths, or the same with its marks elsewhere."""
    for count in (5, 40):
        records = [
            Record("t", 0, b"x", form.replace(b"%030d", b"%030d" % n).replace(b"%03d", b"%03d" % n), queue_offset=n) for n in range(count)
        ]
        for some in (records, [*records[:-1], Record("t", 0, b"x", odd, queue_offset=count - 1)]):
            wanted = arrow_schema(["queue_offset", "keys", "tags", "unique_id", "order_key"])
            assert rows(chunk_of(some), wanted) == [{name: simple(one)[name] for name in wanted.names} for one in some]


def test_a_row_whose_marks_stand_elsewhere_is_not_taken_for_one_of_the_others() -> None:
    """Its properties have the same length and as many marks."""
    some = [Record("t", 0, b"x", b"KEYS\x01%03d\x02TAGS\x01aa" % n, queue_offset=n) for n in range(30)]
    some[17] = Record("t", 0, b"x", b"KEYS\x0101\x02TAGS\x01aaa", queue_offset=17)
    wanted = arrow_schema(["keys", "tags"])
    assert rows(chunk_of(some), wanted) == [{name: simple(one)[name] for name in wanted.names} for one in some]


@given(gaps=st.lists(st.integers(0, 40), min_size=1, max_size=60), widths=st.one_of(st.integers(0, 30), st.lists(st.integers(0, 30))))
def test_slices_of_one_width_or_of_many_are_gathered_as_they_stand(gaps: list[int], widths: int | list[int]) -> None:
    sizes = [widths if isinstance(widths, int) else (widths or [1])[at % max(1, len(widths))] for at in range(len(gaps))]
    starts = np.cumsum(gaps) + np.cumsum([0, *sizes[:-1]])
    stops = starts + sizes
    data = bytes(at % 251 for at in range(int(stops[-1]) + 3))
    found = gather(pa.py_buffer(data), starts, stops, pa.binary())
    found.validate(full=True)
    assert found.to_pylist() == [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
