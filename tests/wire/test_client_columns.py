"""What clients do for many messages at once: both forms give the same, and it is what they do for one after another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roquet.errors import InvalidMessage, Refused
from roquet.speedups import native
from roquet.wire.batch import join_columns, join_messages, split_batch
from roquet.wire.ids import UniqueIds, number_ids
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.record import Record, cut_records, decode_properties, encode_properties, stored_body
from tests.wire.test_wire_records import records

TOPIC = b"t"


def forms(name: str, python: Any) -> list[Any]:
    return [pytest.param(python, id="python")] + ([pytest.param(getattr(native, name), id="compiled")] if native else [])


texts = st.dictionaries(st.text("abcdefgé", min_size=1, max_size=4), st.text("xyz中", min_size=1, max_size=9), max_size=3).map(
    encode_properties
)
columns = st.lists(st.tuples(st.binary(max_size=40), texts, st.text("0123456789ABCDEF", min_size=1, max_size=32)), max_size=6)


@pytest.mark.parametrize("join", forms("join_messages", join_messages))
@given(columns)
def test_a_batch_of_columns_holds_each_message_with_its_id(join: Any, rows: list[tuple[bytes, str, str]]) -> None:
    bodies, properties, ids = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    joined = join(bodies, properties, ids, "UNIQ_KEY")
    assert joined == join_messages(bodies, properties, ids, "UNIQ_KEY")
    if rows:
        for (flag, body, stored), row in zip(split_batch(joined), rows, strict=True):
            assert (flag, body) == (0, row[0])
            assert decode_properties(stored) == {**decode_properties(row[1]), "UNIQ_KEY": row[2]}


def test_properties_of_a_batch_that_are_too_long_are_refused_with_the_limit() -> None:
    longest = "n\x01" + "v" * (PROPERTIES_MAX - 2 - len("\x02UNIQ_KEY\x01ID"))
    [(_, _, stored)] = split_batch(join_columns([b"x"], [longest], ["ID"], "UNIQ_KEY"))
    assert len(stored) == PROPERTIES_MAX
    with pytest.raises(Refused, match="limit is 32767"):
        join_columns([b"x"], [longest + "v"], ["ID"], "UNIQ_KEY")


@pytest.mark.parametrize("join", forms("join_messages", join_messages))
@pytest.mark.parametrize("columns", [([1], [""], ["a"]), ([b"x"], ["\ud800"], ["a"])])
def test_columns_of_other_types_make_no_batch(join: Any, columns: Any) -> None:
    with pytest.raises((TypeError, UnicodeEncodeError, AttributeError)):
        join(*columns, "UNIQ_KEY")


@pytest.mark.skipif(native is None, reason="the extension is not here")
def test_lists_of_different_lengths_are_left_to_python() -> None:
    assert native is not None
    assert native.join_messages([b"x"], [], ["a"], "UNIQ_KEY") is None
    with pytest.raises(ValueError, match="shorter"):
        join_columns([b"x"], [], ["a"], "UNIQ_KEY")


def test_ids_are_numbered_with_four_digits() -> None:
    assert number_ids("F", 9, 12) == ["F0009", "F000A", "F000B"]
    assert number_ids("", 0xFFFE, 0x10000) == ["FFFE", "FFFF"]
    assert number_ids("F", 5, 5) == []


@given(st.integers(0, 0xFFFF), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40_000)), max_size=8))
@example(0xFFF0, [(0, 70_000), (0, 70_000), (1, 5)])
def test_many_ids_are_those_that_come_one_after_another(used: int, asked: list[tuple[int, int]]) -> None:
    many, one = (UniqueIds(b"\x7f\0\0\1", 7, 99) for _ in range(2))
    now = 1_790_000_000_000
    assert many.many(now, used % 500) == [one.next(now) for _ in range(used % 500)]
    many._counter = one._counter = used
    many._first = one._first = used // 2
    for later, count in asked:
        now += later
        expected = [one.next(now) for _ in range(count)]
        assert many.many(now, count) == expected
        assert len(set(expected)) == count


@pytest.mark.parametrize("cut", forms("cut_records", cut_records))
@given(st.lists(records(), max_size=4))
def test_records_of_one_queue_are_cut_as_they_are(cut: Any, found: list[Record]) -> None:
    for record in found:
        record.topic, record.queue_id = "t", 3
    stored = [record.encode() for record in found]
    assert cut(b"".join(stored), TOPIC, 3) == [
        (raw, record.queue_offset, len(record.body)) for raw, record in zip(stored, found, strict=True)
    ]
    for raw, record in zip(stored, found, strict=True):
        assert stored_body(raw, len(record.body)) == (record.body, Record.decode(raw).sys_flag)
    if found:
        assert cut(b"".join(stored), b"u", 3) is None
        assert cut(b"".join(stored), TOPIC, 4) is None
        assert cut(b"".join(stored)[:-1], TOPIC, 3) is None


@pytest.mark.skipif(native is None, reason="the extension is not here")
@given(records(), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), st.integers(0, 9))
def test_spoiled_records_are_judged_alike(record: Record, spoils: list[tuple[int, int]], lost: int) -> None:
    assert native is not None
    record.topic, record.queue_id = "t", 3
    data = bytearray(record.encode() * 2)
    for at, value in spoils:
        data[at % len(data)] = value
    spoiled = bytes(data[: len(data) - lost])
    assert native.cut_records(spoiled, TOPIC, 3) == cut_records(spoiled, TOPIC, 3)


@given(st.binary(max_size=300))
def test_whatever_comes_is_cut_or_left(data: bytes) -> None:
    for _, cut in [("python", cut_records)] + ([("compiled", native.cut_records)] if native else []):
        assert cut(data, TOPIC, 0) == (None if data else [])


@pytest.mark.parametrize(
    "properties", [{"a\x01b": "c"}, {"a": "b\x02c"}, {"a\x02": ""}, {"a": "", "b": "\x01"}, {"\x01": "a", "b": ""}, {"a": "\x01\x02"}]
)
def test_a_separator_in_a_property_is_refused_wherever_it_stands(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage, match="0x01 or 0x02"):
        encode_properties(properties)
