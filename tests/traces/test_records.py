"""The bytes of traces: Apache's own, both ways."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.wire.trace import (
    OUTCOMES,
    STATES,
    TYPES,
    EndTransaction,
    Malformed,
    Pub,
    Recall,
    SubAfter,
    SubBefore,
    TraceRecord,
    decode,
    index_keys,
)
from tests.traces.recorded import PAYLOADS, as_java_read_it, name_of

T0 = 1_700_000_000_000


def written(*records: TraceRecord) -> bytes:
    return "".join(record.encode() for record in records).encode()


def good(payload: bytes) -> list[TraceRecord]:
    found = decode(payload)
    assert not any(isinstance(record, Malformed) for record in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("recorded", PAYLOADS, ids=name_of)
def test_a_payload_of_apaches_encoder_is_read_as_its_decoder_reads_it(recorded: dict[str, Any]) -> None:
    found = [{"kind": record.kind, "time": record.time_ms, **asdict(record)} for record in good(bytes.fromhex(recorded["payload"]))]
    expected = [as_java_read_it(read) for read in recorded["read"]]
    blanked = [{name: None if name in ("tags", "keys") and value == "" else value for name, value in one.items()} for one in found]
    assert [{name: one[name] for name in wanted} for one, wanted in zip(blanked, expected, strict=True)] == expected


CLOUD = "consumed through the cloud channel"
"""Its SubAfter has no time and no group, and that of 4.9.8 no end; ours are never written so."""


@pytest.mark.parametrize("recorded", [one for one in PAYLOADS if one["name"] != CLOUD], ids=name_of)
def test_what_was_read_is_written_byte_for_byte_as_apache_wrote_it(recorded: dict[str, Any]) -> None:
    payload = bytes.fromhex(recorded["payload"])
    assert written(*good(payload)) == payload


def test_a_send_of_an_old_client_without_offset_id_and_one_of_gos_with_its_host_are_read() -> None:
    fields = ["Pub", str(T0), "r", "g", "t", "id", "", "", "h:1", "9", "3", "0"]
    old, new = ["true"], ["offset-id", "false", "10.0.0.9", "of the future"]
    first, second = good("\x02".join(["\x01".join(fields + old), "\x01".join(fields + new)]).encode())
    assert isinstance(first, Pub)
    assert isinstance(second, Pub)
    assert (first.message_id, first.success, first.client_host) == (None, True, None)
    assert (second.message_id, second.success, second.client_host) == ("offset-id", False, "10.0.0.9")


def test_gos_delivery_names_its_host() -> None:
    (found,) = good(f"SubBefore\x01{T0}\x01r\x01g\x01q\x01id\x010\x01null\x0110.0.0.9@7\x02".encode())
    assert found == SubBefore(T0, "r", "g", "q", "id", 0, None, "10.0.0.9@7")
    assert written(found).decode().endswith("\x01null\x0110.0.0.9@7\x02")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("Pub\x01soon", "unknown kind or too few fields: Pub soon"),
        (
            "SubBefore\x01soon\x01r\x01g\x01q\x01id\x010\x01k",
            "a field of SubBefore is not the number it should be: SubBefore soon r g q id 0 k",
        ),
        (f"SubBefore\x01{'9' * 18}\x01r\x01g\x01q\x01id\x010\x01k", "not the number"),
        (f"SubBefore\x01{'9' * 19}\x01r\x01g\x01q\x01id\x010\x01k", "not the number"),
        (f"SubBefore\x011\x01r\x01g\x01q\x01id\x01{'9' * 18}\x01k", "not the number"),
        ("SubBefore\x01\u0663\x01r\x01g\x01q\x01id\x010\x01k", "not the number"),
        ("Pub\x011\x01r\x01g\x01t\x01id\x01tag\x01key\x01h\x019\x013\x0177\x01true", "not the number"),
        ("Fax\x011\x012", "unknown kind or too few fields: Fax 1 2"),
        ("\ufffd", "unknown kind"),
    ],
)
def test_a_record_that_cannot_be_read_says_why_and_harms_no_neighbour(line: str, problem: str) -> None:
    neighbour = SubBefore(T0, "r", "g", "q", "id", 0, None)
    first, bad, last = decode(written(neighbour) + line.encode() + b"\x02" + written(neighbour))
    assert (first, last) == (neighbour, neighbour)
    assert isinstance(bad, Malformed)
    assert problem in bad.problem


def test_a_text_with_separators_inside_harms_no_neighbour() -> None:
    odd = Pub(T0, "a\x01b", "g", "t", "id", "x\x02Pub\x01y", "k\x01", "h:1", 1, 2)
    found = good(written(odd, odd))
    assert len(found) == 2
    assert isinstance(found[0], Pub)
    assert (found[0].region, found[0].tags, found[0].keys) == ("a b", "x Pub y", "k ")


def test_javas_reader_would_fail_on_empty_keys_at_the_end_so_they_are_written_as_null() -> None:
    assert written(SubBefore(T0, None, "g", "q", "id", 0, "")) == f"SubBefore\x01{T0}\x01null\x01g\x01q\x01id\x010\x01null\x02".encode()


def test_a_payload_is_found_by_each_id_and_each_key() -> None:
    assert index_keys(Pub(T0, "r", "g", "t", "A,B", None, "k1  k2", None, 1, 2)) == ["A", "B", "k1", "k2"]
    assert index_keys(Recall(T0, "r", "g", "t", "A", True)) == ["A"]
    assert index_keys(SubAfter("q", "A", 1, True, None)) == ["A"]


TEXTS = st.text(st.characters(exclude_characters="\x01\x02", categories=("L", "M", "N", "P", "S", "Z", "Cc", "Cf")), max_size=12)
WORDS = TEXTS.filter(lambda text: text not in ("null", ""))
MAYBE = st.none() | WORDS
TIMES, NUMBERS = st.integers(0, 1 << 50), st.integers(0, 1 << 30)
RECORDS = st.one_of(
    st.builds(Pub, TIMES, MAYBE, TEXTS, TEXTS, TEXTS, MAYBE, MAYBE, MAYBE, NUMBERS, NUMBERS, st.sampled_from(TYPES), MAYBE, st.booleans()),
    st.builds(SubBefore, TIMES, MAYBE, TEXTS, TEXTS, TEXTS, NUMBERS, MAYBE, st.none() | TEXTS),
    st.builds(SubAfter, TEXTS, TEXTS, NUMBERS, st.booleans(), MAYBE, st.sampled_from(OUTCOMES), TIMES, WORDS),
    st.builds(
        EndTransaction,
        TIMES, MAYBE, TEXTS, TEXTS, TEXTS, MAYBE, MAYBE, MAYBE, st.sampled_from(TYPES), TEXTS, st.sampled_from(STATES), st.booleans(),
    ),
    st.builds(Recall, TIMES, MAYBE, TEXTS, TEXTS, TEXTS, st.booleans()),
)  # fmt: skip


@given(st.lists(RECORDS, max_size=8))
def test_what_is_written_is_read_back_whatever_the_texts_are(records: list[TraceRecord]) -> None:
    assert decode(written(*records)) == records


@given(st.binary(max_size=80) | st.text("PubSbeforAt\x01\x02019", max_size=80).map(str.encode))
def test_no_bytes_at_all_break_the_reader(payload: bytes) -> None:
    decode(payload)
