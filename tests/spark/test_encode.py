"""Rows to bytes and queues, without Spark: what wire/batch.py and the client make of the same messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.client.core.producer import by_hash
from roquet.errors import ClientError
from roquet.message import Message, MessageQueue
from roquet.spark.columns import arrow_schema
from roquet.spark.encode import SYSTEM, BadRow, Rows, check_columns, encode, id_prefix, unique_ids
from roquet.spark.requests import BATCH_ROWS, Request, requests
from roquet.wire.batch import join_batch, split_batch
from roquet.wire.record import decode_properties, encode_properties

MAP = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("topic", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", MAP),
        ("order_key", pa.string()),
        ("flag", pa.int32()),
    ]
)
PREFIX = id_prefix("test")

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"), min_size=1, max_size=8)
word = st.text(st.characters(exclude_categories=["Cs", "Z", "C"]), min_size=1, max_size=8)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=40),
            "topic": st.sampled_from(["a", "b-1", "c_2"]),
            "tags": st.none() | st.just("") | text,
            "keys": st.none() | st.lists(word, max_size=3),
            "properties": st.none() | st.dictionaries(text | st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY"]), text, max_size=4),
            "order_key": st.none() | st.just("") | text,
            "flag": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
        }
    ),
    min_size=1,
    max_size=30,
)


def table(found: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    made = [{**row, "properties": list(row["properties"].items()) if row.get("properties") is not None else None} for row in found]
    return pa.RecordBatch.from_pylist(made if "properties" in schema.names else found, schema=schema)


def encoded(first: int = 0, topic: str | None = "t", **columns: Any) -> Rows:
    return encode(pa.record_batch(columns), partition=3, first=first, prefix=PREFIX, topic=topic)


def queues_of(*topics: str, count: int = 4) -> dict[str, list[MessageQueue]]:
    return {topic: [MessageQueue(topic, "broker-a", number) for number in range(count)] for topic in topics}


def bodies(request: Request) -> list[bytes]:
    return [body for _, body, _ in split_batch(bytes(request.body))] if request.batch else [bytes(request.body)]


def id_of(number: int) -> str:
    return bytes(unique_ids(PREFIX, number, 1)[0]).decode()


def message_of(row: dict[str, Any], number: int) -> Message:
    """The same message as a user of the client makes it."""
    given_map = {name: value for name, value in (row["properties"] or {}).items() if name not in SYSTEM}
    for name, value in (("TAGS", row["tags"]), ("KEYS", row["keys"]), ("__SHARDINGKEY", row["order_key"])):
        if value:
            given_map.pop(name, None)
    made = Message(row["topic"], row["body"], tags=row["tags"] or "", keys=row["keys"] or (), properties=given_map, flag=row["flag"] or 0)
    if row["order_key"]:
        made.properties["__SHARDINGKEY"] = row["order_key"]
    made.properties["UNIQ_KEY"] = id_of(number)
    return made


@settings(max_examples=150, deadline=None)
@given(rows, st.integers(0, 5), st.integers(1, 400))
def test_requests_hold_what_the_client_would_have_sent_byte_for_byte(found: list[dict[str, Any]], cut: int, bytes_max: int) -> None:
    batch = table([{**found[0]}] * cut + found).slice(cut)  # sliced, as Arrow may hand it over
    made = encode(batch, partition=0, first=7, prefix=PREFIX)
    queues = queues_of("a", "b-1", "c_2")
    expected: dict[tuple[str, MessageQueue | None], bytes] = {}
    for number, row in enumerate(found):
        message = message_of(row, 7 + number)
        queue = by_hash(queues[row["topic"]], message, row["order_key"]) if row["order_key"] else None
        part = join_batch([(message.flag, message.body, encode_properties(message.properties).encode())])
        expected[row["topic"], queue] = expected.get((row["topic"], queue), b"") + part
    joined: dict[tuple[str, MessageQueue | None], bytes] = {}
    for request in requests(made, queues, bytes_max):
        assert request.batch
        assert len(request.body) <= bytes_max or request.count == 1
        joined[request.topic, request.queue] = joined.get((request.topic, request.queue), b"") + request.body
    assert joined == expected


@pytest.mark.parametrize("columns", [SCHEMA.names, ["body", "topic", "tags", "keys"], ["body", "topic", "keys"]])
@pytest.mark.parametrize("odd", ["none", "a longer body", "a longer key", "a row without a key", "a row with a tag", "no keys"])
def test_rows_of_one_size_and_of_several_are_encoded_alike(odd: str, columns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of one size are put together by numpy, some rows at a time, others by Arrow. Without flags such rows share a header."""
    monkeypatch.setattr("roquet.spark.encode.BLOCK_BYTES", 1000)
    rest: dict[str, Any] = {"topic": "a", "tags": None, "properties": None, "order_key": None, "flag": 0}
    found = [{"body": b"body %06d" % number, "keys": [f"key-{number:06d}"], **rest} for number in range(100)]
    changes: dict[str, dict[str, Any]] = {
        "a longer body": {"body": b"longer" * 9},
        "a longer key": {"keys": ["k" * 30]},
        "a row with a tag": {"tags": "t"},
    }
    found[40] |= changes.get(odd, {})
    for row in found if odd == "no keys" else found[60:61] if odd == "a row without a key" else ():
        row["keys"] = None
    for row in found if "tags" not in columns else ():
        row["tags"] = None
    batch = table(found).select(columns).slice(3)
    [request] = requests(encode(batch, partition=0, first=3, prefix=PREFIX), queues_of("a"))
    messages = [message_of(row, number) for number, row in enumerate(found)][3:]
    assert bytes(request.body) == join_batch([(one.flag, one.body, encode_properties(one.properties).encode()) for one in messages])


def test_no_rows_are_no_requests() -> None:
    assert requests(encode(table([]), partition=0, first=0, prefix=PREFIX), {}) == []


def test_a_string_body_is_written_as_utf_8_and_keys_may_be_one_string() -> None:
    [request] = requests(encoded(body=["grün"], keys=["a b"]), queues_of("t"))
    [(_, body, properties)] = split_batch(bytes(request.body))
    assert body == "grün".encode()
    assert decode_properties(properties)["KEYS"] == "a b"


def test_rows_that_name_their_queue_go_there_and_a_given_queue_beats_the_order_key() -> None:
    made = encoded(body=[b"1", b"2", b"3"], order_key=["k", None, "k"], queue_id=pa.array([2, 2, None], pa.int32()))
    queues = queues_of("t")
    found = {request.queue: bodies(request) for request in requests(made, queues)}
    assert found == {queues["t"][2]: [b"1", b"2"], by_hash(queues["t"], Message("t", b"3"), "k"): [b"3"]}


def test_a_queue_that_several_brokers_have_needs_the_broker() -> None:
    queues = {"t": [MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)]}
    [request] = requests(encoded(body=[b"1"], queue_id=[0], broker=["b"]), queues)
    assert request.queue == MessageQueue("t", "b", 0)
    with pytest.raises(BadRow, match=r"row 0 of partition 3.*each of a, b; say which with a column broker"):
        requests(encoded(body=[b"1"], queue_id=[0]), queues)
    with pytest.raises(BadRow, match="no queue 7 on broker 'b'"):
        requests(encoded(body=[b"1"], queue_id=[7], broker=["b"]), queues)


def test_delayed_and_very_large_rows_travel_alone_and_rows_of_one_key_keep_their_order() -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    made = encoded(
        body=[b"1", b"2" * (1 << 20), b"3", b"4", b"5"],
        order_key=["k"] * 5,
        delay_level=pa.array([None, None, None, 3, None], pa.int32()),
        deliver_time=pa.array([None, None, None, None, soon], pa.timestamp("us", tz="UTC")),
    )
    found = requests(made, queues_of("t"))
    assert [request.batch for request in found] == [True, False, True, False, False]
    assert b"".join(body[:1] for request in found for body in bodies(request)) == b"12345"
    assert len({request.queue for request in found}) == 1
    assert decode_properties(found[3].properties)["DELAY"] == "3"
    assert decode_properties(found[4].properties)["TIMER_DELIVER_MS"] == str(int(soon.timestamp() * 1000))
    assert all(decode_properties(request.properties)["UNIQ_KEY"] for request in found if not request.batch)


def test_properties_that_only_the_system_writes_are_left_out() -> None:
    old = {"UNIQ_KEY": "0" * 32, "DELAY": "3", "RETRY_TOPIC": "x", "TRAN_MSG": "true", "CLUSTER": "c", "colour": "red", "TAGS": "old"}
    [request] = requests(encoded(body=[b"1"], properties=pa.array([list(old.items())], MAP)), queues_of("t"))
    [(_, _, properties)] = split_batch(bytes(request.body))
    assert decode_properties(properties) == {"colour": "red", "TAGS": "old", "UNIQ_KEY": id_of(0)}


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"body": pa.array([b"x", None])}, "the body is null"),
        ({"body": [b"x", b""]}, "the body is empty"),
        ({"body": [b"x", b"y" * (4 * 1024 * 1024 + 1)]}, "body of 4194305 bytes, limit is 4194304"),
        ({"tags": ["a", "b\x01"]}, "tags .* separate properties"),
        ({"properties": pa.array([[], [("a", "b\x02")]], MAP)}, "property 'a' = .* separate properties"),
        ({"properties": pa.array([[], [("a", "")]], MAP)}, "property 'a' = '' is empty"),
        ({"properties": pa.array([[], [("a", None)]], MAP)}, "property 'a' = None has a null"),
        ({"properties": pa.array([[], [("a", "b" * 32_767)]], MAP)}, "limit is 32767"),
        ({"delay_level": [0, -1]}, "delay_level is -1"),
        ({"delay_level": [0, 2], "deliver_time": pa.array([None, 10**15], pa.timestamp("us", tz="UTC"))}, "exclude each other"),
        ({"deliver_time": pa.array([None, -5], pa.timestamp("us", tz="UTC"))}, "before 1970"),
        ({"broker": [None, "a"]}, "a broker is given and no queue_id"),
        ({"flag": [0, 1 << 31]}, "does not fit 32 bits"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named_with_partition_number_and_keys(columns: dict[str, Any], why: str) -> None:
    columns = {"body": [b"x", b"y"], "keys": ["k0", "order-17"], **columns}
    with pytest.raises(BadRow, match=rf"row 101 of partition 3 \(keys 'order-17'\): .*{why}"):
        encoded(first=100, **columns)


def test_a_topic_that_cannot_be_is_refused_with_its_row() -> None:
    with pytest.raises(BadRow, match=r"row 1 of partition 3: .*illegal characters"):
        encode(pa.record_batch({"body": [b"x", b"y"], "topic": ["fine", "../x"]}), partition=3, first=0, prefix=PREFIX)
    with pytest.raises(BadRow, match="row 0 of partition 3: the topic is null"):
        encode(pa.record_batch({"body": [b"x"], "topic": pa.array([None], pa.string())}), partition=3, first=0, prefix=PREFIX)


def test_a_list_of_keys_takes_no_key_with_white_space() -> None:
    with pytest.raises(BadRow, match="row 1 of partition 3: key 'a b' is empty or holds white space"):
        encoded(body=[b"x", b"y"], keys=pa.array([["a"], ["b", "a b"]]))


def test_columns_that_are_unknown_or_of_another_type_are_refused_before_any_row() -> None:
    check_columns(arrow_schema(), None)  # a topic can be copied as it was read
    with pytest.raises(ClientError, match="column 'tag' cannot be written; known are body"):
        check_columns(pa.schema([("body", pa.binary()), ("tag", pa.string())]), "t")
    with pytest.raises(ClientError, match="column 'delay_level' is string"):
        check_columns(pa.schema([("body", pa.binary()), ("delay_level", pa.string())]), "t")
    with pytest.raises(ClientError, match=r"column 'deliver_time' is timestamp.us.,"):
        check_columns(pa.schema([("body", pa.binary()), ("deliver_time", pa.timestamp("us"))]), "t")
    with pytest.raises(ClientError, match="no column body"):
        check_columns(pa.schema([("value", pa.binary())]).remove(0).append(pa.field("keys", pa.string())), "t")
    with pytest.raises(ClientError, match="no topic"):
        check_columns(pa.schema([("body", pa.binary())]), None)


@given(st.integers(0, (1 << 32) - 400), st.integers(1, 300))
def test_ids_are_32_hex_digits_of_the_prefix_and_the_row(first: int, count: int) -> None:
    made = [bytes(one).decode() for one in unique_ids(PREFIX, first, count)]
    assert made == [PREFIX.hex().upper() + f"{first + at:08X}" for at in range(count)]


def test_the_time_in_an_id_is_early_in_the_month_so_that_mqadmin_finds_the_message() -> None:
    for number in (0, 77, (1 << 32) - 1):
        [made] = unique_ids(id_prefix("q", number), number, 1)
        assert int.from_bytes(bytes.fromhex(bytes(made).decode())[10:14], "big") < 5 * 3_600_000


def test_ids_of_different_tasks_differ_and_of_the_same_one_do_not() -> None:
    assert id_prefix("q", 1, 2) == id_prefix("q", 1, 2)
    assert len(id_prefix("q")) == 12
    assert len({id_prefix("q", 1, 2), id_prefix("q", 12), id_prefix("q", 1, 3), id_prefix("p", 1, 2), id_prefix("q", 2, 1)}) == 5


def test_a_request_has_no_more_rows_than_a_broker_takes_in_a_moment() -> None:
    made = encoded(body=[b"x"] * (2 * BATCH_ROWS + 1))
    assert [request.count for request in requests(made, queues_of("t"))] == [BATCH_ROWS, BATCH_ROWS, 1]
