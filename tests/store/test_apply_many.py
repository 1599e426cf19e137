"""What follows from another node's records: the extension finds what the columns find, or leaves it to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roquet.speedups import native
from roquet.store import apply_many
from roquet.store.ledger_heads import fill_heads
from roquet.store.scan import Hole, read_one
from roquet.wire.layout import LEDGER_HEAD, MAGIC_V1, MAGIC_V2
from roquet.wire.record import Record

DELAYS_MS = (1_000, 5_000)
BASE = 1 << 20

pytestmark = pytest.mark.skipif(native is None, reason="the extension is not here")


@pytest.fixture(autouse=True, scope="module")
def _one_is_many() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply_many, "MANY", 1)
        yield


HOSTS = st.sampled_from((bytes(8), bytes(20)))
USUAL_TEXTS = st.sampled_from(("", "TAGS\x01a", "KEYS\x01x  y \x02TAGS\x01TagB\x02UNIQ_KEY\x01u1", "KEYS\x01中 \U0001f600\x02a\x01b\x02"))
PIECES = st.sampled_from(("TAGS", "KEYS", "UNIQ_KEY", "XTAGS", "DELAY", "TIMER_OUT_MS", "\x01", "\x02", " ", "é", "\U0001f600", "9"))
TEXTS = USUAL_TEXTS | st.lists(PIECES, max_size=9).map("".join)
TOPICS = st.sampled_from(("T", "T", "Other", "%RETRY%g", "n" * 127))
OWN_TOPICS = st.sampled_from(("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", ".", "..", "a/b", "a b"))


@st.composite
def logs(draw: st.DrawFn, topics: st.SearchStrategy[str], texts: st.SearchStrategy[str], with_heads: bool) -> bytes:
    """Records one behind the other, as a node makes them."""
    made, at, now_ms, numbers, lead = b"", BASE, 1_000, dict[tuple[str, int], int](), LEDGER_HEAD.size if with_heads else 0
    for _ in range(draw(st.integers(1, 12))):
        topic, queue_id = draw(topics), draw(st.sampled_from((0, 1, 65_535)))
        sys_flag = draw(st.sampled_from((0, 0, 0, 4, 8, 12)))
        born, store = draw(HOSTS), draw(HOSTS)
        number = numbers.get((topic, queue_id), 7)
        if sys_flag in (0, 8):
            numbers[topic, queue_id] = number + 1
        now_ms += draw(st.integers(0, 3))
        record = Record(
            topic, queue_id, draw(st.binary(max_size=20)), draw(texts).encode(), 0, number, at + lead,
            sys_flag | (0x10 if len(born) == 20 else 0) | (0x20 if len(store) == 20 else 0), 5, born, now_ms, store,
            magic=draw(st.sampled_from((MAGIC_V1, MAGIC_V2))),
        )  # fmt: skip
        made += bytes(lead) + record.encode()
        at = BASE + len(made)
    return fill_heads(made, BASE, 3, 1)[0] if with_heads else made


def by_queue(run: apply_many.DerivedRun | None) -> Any:
    """The same whatever order the queues come in."""
    return None if run is None else (*run[:3], sorted(run[3]), run[4])


def compare(data: bytes, with_heads: bool, last_ms: int = 0, indexed: bool = True, base: int = BASE) -> bool:
    """Whether the extension took it."""
    assert native is not None
    compiled = native.derive_run(data, base, with_heads, last_ms, indexed)
    columns = apply_many.derive_run(data, base, with_heads, last_ms, indexed, DELAYS_MS)
    assert compiled is None or by_queue(compiled) == by_queue(columns)
    return compiled is not None


@pytest.mark.parametrize("with_heads", [False, True])
@given(st.data())
def test_usual_records_are_taken_and_come_to_the_same(with_heads: bool, data: st.DataObject) -> None:
    log = data.draw(logs(TOPICS, TEXTS, with_heads))
    assert compare(log, with_heads, last_ms=1_000, indexed=data.draw(st.booleans()))
    assert not compare(log, with_heads, last_ms=1_000_000)
    assert not compare(log, with_heads, base=BASE + 1)
    cut = data.draw(st.integers(0, len(log)))
    compare(log[:cut], with_heads)


@pytest.mark.parametrize("with_heads", [False, True])
@given(st.data())
def test_damaged_and_unusual_records_come_to_the_same_or_are_left(with_heads: bool, data: st.DataObject) -> None:
    log = bytearray(data.draw(logs(TOPICS | OWN_TOPICS, TEXTS | st.just("a\x01\0"), with_heads)))
    for _ in range(data.draw(st.integers(0, 3))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    compare(bytes(log) + data.draw(st.binary(max_size=150)), with_heads)


@given(st.binary(max_size=400), st.booleans())
@example(b"", False)
@example(b"", True)
def test_bytes_that_are_no_log_are_left(data: bytes, with_heads: bool) -> None:
    assert not compare(data, with_heads)


RECORD = Record("T", 1, b"body", b"TAGS\x01a", 0, 7, BASE, 0, 5, bytes(8), 1_000, bytes(8))


@pytest.mark.parametrize(
    "odd",
    [
        replace(RECORD, topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x011"), replace(RECORD, topic="rmq_sys_wheel_timer"),
        replace(RECORD, topic="a/b"), replace(RECORD, topic=""), replace(RECORD, queue_id=65_536), replace(RECORD, queue_id=-1),
        replace(RECORD, queue_offset=-1), replace(RECORD, physical_offset=BASE + 1), replace(RECORD, properties=b"\xff"),
        replace(RECORD, properties=b"a\x01\0"), replace(RECORD, store_timestamp=999),
        replace(RECORD, queue_offset=(1 << 63) - 1),
    ],
)  # fmt: skip
def test_what_the_columns_must_look_at_is_left_to_them(odd: Record) -> None:
    assert compare(RECORD.encode(), False, last_ms=1_000)
    assert not compare(odd.encode(), False, last_ms=1_000)


def test_a_number_that_does_not_follow_and_more_than_64_queues_are_left() -> None:
    size = len(RECORD.encode())
    later = replace(RECORD, physical_offset=BASE + size)
    assert compare(RECORD.encode() + replace(later, queue_offset=8).encode(), False)
    assert not compare(RECORD.encode() + replace(later, queue_offset=9).encode(), False)
    many = [replace(RECORD, queue_id=number, physical_offset=BASE + number * size).encode() for number in range(65)]
    assert compare(b"".join(many[:64]), False)
    assert not compare(b"".join(many), False)


def test_a_body_with_a_wrong_checksum_is_left() -> None:
    raw = bytearray(RECORD.encode())
    raw[raw.index(b"body")] ^= 1
    assert not compare(bytes(raw), False)


@pytest.mark.parametrize("topic", [".", ".."])
def test_records_of_a_topic_that_is_a_path_are_no_records_however_many_there_are(topic: str) -> None:
    """A queue of such a topic would have its files elsewhere. One by one they were holes; many at once they were taken."""
    odd = replace(RECORD, topic=topic, queue_offset=0)
    size = len(odd.encode())
    data = b"".join(replace(odd, queue_offset=number, physical_offset=BASE + number * size).encode() for number in range(20))
    assert apply_many.derive_run(data, BASE, False, 0, True, DELAYS_MS) is None
    assert not compare(data, False)
    assert isinstance(read_one(odd.encode(), BASE), Hole)
