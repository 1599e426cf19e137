"""What an SQL filter takes of many records at once (`broker/sql_columns.py`) is what it takes of one after another."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.broker import sql_columns as module
from roquet.broker.pull import Pull, Puller
from roquet.broker.sql_columns import Decisions, judge_at_once, matching, property_rows, property_texts, reads
from roquet.routing.sql92 import Filter, compiled
from roquet.speedups import native
from roquet.store.disk import Cold
from roquet.store.mending import Odd
from roquet.store.queue import ENTRY_SIZE
from roquet.store.stretches import STRETCH
from roquet.testing.peer import FakePeer
from roquet.wire.command import Command
from roquet.wire.layout import ENTRY, FRONT, MAGIC_V1

from .whole import Whole, send_fields

FORMS = [matching] if native is None else [matching, native.matching]
COUNT = 300
VALUES = ("1", "7", "99", "-3", "1.5", "text", "long text of more than eight bytes", "é", "", "a\x01b")


@pytest.fixture(scope="module", params=[1 << 18, 1 << 20], ids=["small files", "files of several stretches"])
def whole(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Whole]:
    """Messages that have the properties, lack them, have them first, last, twice or empty; among those of another queue."""
    made = Whole(tmp_path_factory.mktemp("sql") / "store", mapped_file_size_commit_log=request.param)
    random = Random(11)
    for number in range(COUNT):
        odd = 100 <= number < 200  # elsewhere nothing is unusual
        names = random.sample(["a", "aa", "region", "TAGS", "a_name_of_more_than_eight", "x"], random.randrange(5))
        if odd and random.random() < 0.1:
            names.append("a")
        values = VALUES if odd else [value for value in VALUES if value]
        items = [f"{name}\x01{random.choice(values)}" for name in names]
        items.insert(random.choice((0, len(items))), f"UNIQ_KEY\x01U{number}")
        assert made.ask(10, {"topic": "T", "queueId": "0", **long(items)}, random.randbytes(random.choice((0, 10, 500)))).code == 0
        if random.random() < 0.5:
            assert made.ask(310, send_fields("Between"), bytes(random.choice((10, 3_000, 20_000)))).code == 0
    yield made
    made.close()


def long(items: list[str]) -> dict[str, str]:
    return {
        "producerGroup": "g", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "1794732520853",
        "flag": "0", "properties": "\x02".join(items), "reconsumeTimes": "0", "unitMode": "false",
    }  # fmt: skip


EXPRESSIONS = (
    "a > 5",
    "a > 5 AND region IN ('99', 'text')",
    "a IS NULL OR region = 'long text of more than eight bytes'",
    "a_name_of_more_than_eight <> '7'",
    "aa = 1.5 OR x CONTAINS 'x'",
    "1 = 1",
    "1 = 2",
    "nobody IS NOT NULL",
    "a = region",
)


def one_by_one(puller: Puller, raw: bytes, filter: Filter, offset: int, count_max: int, size_max: int) -> tuple[bytes, int, int] | None:
    pull = Pull(FakePeer(), Command(11), "g", "T", 0, offset, offset, 32, 1 << 31, None, filter, 0)
    try:
        taken, judged = puller._judge(raw, filter, count_max, size_max, pull)
    except (LookupError, Odd):
        return None
    return b"".join(taken), len(taken), judged


@pytest.fixture(params=FORMS, autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "matching_at_once", request.param)
    monkeypatch.setattr(module, "ALIKE_MIN", 4)
    return request.param


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_as_many_are_taken_at_once_as_one_by_one(whole: Whole, expression: str) -> None:
    puller, store, random = whole.broker.puller, whole.broker.store, Random(3)
    queue, filter, answered = store.queue("T", 0), compiled(expression), 0
    for offset in range(COUNT - 24):
        count_max, size_max = random.choice((1, 5, 32)), random.choice((1, 700, 3_000, 1 << 18))
        raw = queue.read(offset, random.choice((24, 40, 300)))
        found = judge_at_once(store.log, raw, filter, offset, count_max, size_max, 1 << 26, puller.stretches.view)
        if found is not None:
            careful = one_by_one(puller, raw, filter, offset, count_max, size_max)
            assert careful is not None
            if found[2] < careful[2]:  # it stops before what is unusual
                careful = one_by_one(puller, raw[: found[2] * ENTRY_SIZE], filter, offset, count_max, size_max)
            assert found == careful
            answered += found[2]
    assert answered > COUNT * 3


@pytest.mark.parametrize("expression", EXPRESSIONS[:3])
def test_spoiled_entries_are_left_to_one_by_one(whole: Whole, expression: str) -> None:
    puller, store, random = whole.broker.puller, whole.broker.store, Random(5)
    queue, filter = store.queue("T", 0), compiled(expression)
    for _ in range(300):
        offset = random.randrange(COUNT - 60)
        raw = bytearray(queue.read(offset, 60))
        at = random.randrange(len(raw) // ENTRY_SIZE) * ENTRY_SIZE
        place, size, tag = ENTRY.unpack_from(raw, at)
        spoiled = random.choice(
            (
                (place, 0x7FFFFFFF, tag),
                (place, 0, tag),
                (place, size + 1, tag),
                (place + 1, size, tag),
                (1 << 62, size, tag),
                (-1, size, tag),
            )
        )
        raw[at : at + ENTRY_SIZE] = ENTRY.pack(*spoiled)
        found = judge_at_once(store.log, bytes(raw), filter, offset, 32, 1 << 18, 1 << 26, puller.stretches.view)
        if found is not None:
            before = bytes(raw[: found[2] * ENTRY_SIZE])
            assert found == one_by_one(puller, before, filter, offset, 32, 1 << 18), "only what stands before it is answered"


class Rows(dict[bytes, bool]):
    """Takes about half of all rows, and keeps those that it was asked for."""

    def __missing__(self, row: bytes) -> bool:
        self[row] = found = sum(row) % 2 == 0
        return found


def test_records_that_are_no_records_are_not_taken_apart(whole: Whole, form: Any) -> None:
    queue, log = whole.broker.store.queue("T", 0), whole.broker.store.log
    raw = queue.read(0, 30)
    entries = list(ENTRY.iter_unpack(raw))
    start, stop = entries[0][0], entries[-1][0] + entries[-1][1]
    sound = log.read(start, stop - start)
    names, random = (b"a", b"region"), Random(9)
    assert form(raw, memoryview(sound), start, 0, names, Rows()) is not None
    assert form(raw, memoryview(sound), start, 1, names, Rows()) is None, "the numbers are other ones"
    assert form(raw, memoryview(sound), start + 1, 0, names, Rows()) is None, "the first begins before"
    assert form(raw, memoryview(sound)[:-1], start, 0, names, Rows()) is None, "the last ends behind"
    assert form(raw, memoryview(sound), start, 0, (), {b"": True}) == list(range(len(entries)))
    assert form(raw, memoryview(sound), start, 0, (), {b"": False}) == form(b"", memoryview(sound), start, 0, names, {}) == []
    for _ in range(2_000):
        data, number = bytearray(sound), random.randrange(len(entries))
        begin, size = entries[number][0] - start, entries[number][1]
        for _ in range(random.choice((1, 3))):
            data[begin + random.choice((0, 4, 7, 39, 84, 85, 86, 87, 88 + random.randrange(size - 88)))] = random.randrange(256)
        asked, expected = Rows(), Rows()
        found = form(raw, memoryview(data), start, 0, names, asked)
        assert found == matching(raw, memoryview(data), start, 0, names, expected)
        assert found is None or asked == expected


def test_entries_that_speak_of_something_else_are_not_followed(whole: Whole, form: Any) -> None:
    queue, log, random = whole.broker.store.queue("T", 0), whole.broker.store.log, Random(4)
    raw = queue.read(0, 30)
    entries = list(ENTRY.iter_unpack(raw))
    start, stop = entries[0][0], entries[-1][0] + entries[-1][1]
    data = memoryview(log.read(start, stop - start))
    places = (-1, 0, start - 1, stop, stop - 1, 1 << 62, -(1 << 63), (1 << 63) - 1)
    for _ in range(500):
        spoiled, at = bytearray(raw), random.randrange(len(entries))
        place, size, _ = entries[at]
        place, size = random.choice(
            [(one, size) for one in places] + [(place, one) for one in (0, -1, 90, size + 1, 0x7FFFFFFF, -(1 << 31))]
        )
        ENTRY.pack_into(spoiled, at * ENTRY_SIZE, place, size, 0)
        assert form(bytes(spoiled), data, start, 0, (b"a",), Rows()) is None
        assert form(bytes(spoiled[: at * ENTRY_SIZE]), data, start, 0, (b"a",), Rows()) is not None


@pytest.mark.parametrize("distance", [100, 20_000, 40_000, 900_000])
def test_what_is_read_together_is_in_one_file_and_little_of_it_foreign(distance: int) -> None:
    random, file_size = Random(distance), 2 * STRETCH
    for _ in range(50):
        places, at = [], random.randrange(1 << 30)
        for _ in range(200):
            at += random.randrange(2 * distance) + 100
            if at % file_size > file_size - 100:
                at += 100
            places.append(at)
        sizes = np.full(len(places), 100)
        begin = 0
        for stop, start, length, _ in reads(np.array(places), sizes, file_size):
            assert start == places[begin]
            assert start + length == places[stop - 1] + 100
            assert start // file_size == (start + length - 1) // file_size
            assert length <= STRETCH + 100
            if distance < 40_000:
                assert start // STRETCH == places[stop - 1] // STRETCH, "so that a stretch that is kept has them all"
            begin = stop
        assert begin == len(places)


def test_each_row_is_judged_once(whole: Whole, form: Any) -> None:
    """Whether it stands behind one like it or not."""
    queue, log = whole.broker.store.queue("T", 0), whole.broker.store.log
    raw = queue.read(0, 40)
    entries = list(ENTRY.iter_unpack(raw))
    start = entries[0][0]
    data = memoryview(log.read(start, entries[-1][0] + entries[-1][1] - start))
    begins, sizes = np.array([place - start for place, _, _ in entries]), np.array([size for _, size, _ in entries])
    filter = compiled("a > 5 OR region IS NULL")
    texts = property_texts(data, begins, sizes, 0)
    assert texts is not None
    rows = property_rows(data, *texts, (b"a", b"region"))
    assert rows is not None
    assert len(set(rows)) > 10
    decisions = Decisions(filter)
    found = form(raw, data, start, 0, (b"a", b"region"), decisions)
    assert decisions.keys() == set(rows)
    assert found == [one for one, row in enumerate(rows) if decisions[row]]


@pytest.mark.skipif(native is None, reason="the extension is not here")
@pytest.mark.parametrize(
    "wrong", [{0: "x"}, {0: None}, {1: "x"}, {2: -1}, {2: 1 << 70}, {3: "1"}, {4: [b"a"]}, {4: ("a",)}, {4: (b"a",) * 9}, {5: 7}, {5: {}}]
)
def test_the_compiled_one_refuses_what_it_is_not_made_for(whole: Whole, wrong: dict[int, object]) -> None:
    assert native is not None
    raw = whole.broker.store.queue("T", 0).read(0, 1)
    place, size, _ = ENTRY.unpack(raw)
    arguments: list[Any] = [raw, memoryview(whole.broker.store.log.read(place, size)), place, 0, (b"a",), Rows()]
    assert native.matching(*arguments) is not None
    for at, value in wrong.items():
        arguments[at] = value
    with pytest.raises((TypeError, ValueError, OverflowError, LookupError)):
        native.matching(*arguments)


def record(number: int, text: bytes, body: bytes = b"body", topic: bytes = b"T") -> bytes:
    """One with these properties, which has this number in its queue."""
    size = FRONT.size + len(body) + 1 + len(topic) + 2 + len(text)
    front = FRONT.pack(size, MAGIC_V1, 0, 0, 0, number, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, len(body))
    return front + body + bytes([len(topic)]) + topic + len(text).to_bytes(2, "big") + text


def laid_out(texts: list[bytes], first_number: int = 0, body: bytes = b"body") -> tuple[bytes, bytes]:
    """Queue entries and records, with something foreign between them."""
    data, entries = bytearray(), bytearray()
    for number, text in enumerate(texts, first_number):
        one = record(number, text, body)
        entries += ENTRY.pack(len(data), len(one), 0)
        data += one + b"\x02a\x01between" * (number % 3)
    return bytes(entries), bytes(data)


def rows_of(texts: list[bytes], names: tuple[bytes, ...]) -> list[bytes] | None:
    """As one would take each of them apart by hand."""
    rows = []
    for text in texts:
        values = {}
        for entry in text.split(b"\x02"):
            name, mark, value = entry.partition(b"\x01")
            if mark:
                values[name] = value
        if any(values.get(name) == b"" for name in names):
            return None
        rows.append(b"\x02".join([values.get(name, b"") for name in names]))
    return rows


NAMES = (b"a", b"region")
names_or_not = st.sampled_from([b"a", b"aa", b"ba", b"region", b"aregion", b"regio", b"", b"\xff", b"UNIQ_KEY", b"b"])
values_of_one_size = st.sampled_from([b"1", b"2", b"a", b"\x01", b"\xff", b"\0"])
some_values = st.one_of(values_of_one_size, st.sampled_from([b"a\x01", b"region\x01eu", b"17", b"", b"\xc3"]))
entries_of_properties = st.one_of(st.tuples(names_or_not, st.just(b"\x01"), some_values).map(b"".join), names_or_not)
texts_of_properties = st.lists(entries_of_properties, max_size=4).map(b"\x02".join)


@st.composite
def properties_of_many(draw: st.DrawFn) -> list[bytes]:
    """Most are like one of a few, but for some bytes."""
    bases = draw(st.lists(texts_of_properties, min_size=1, max_size=3))
    random = Random(draw(st.integers(0, 1 << 30)))
    texts = [bytearray(random.choice(bases)) for _ in range(draw(st.integers(24, 60)))]
    for text in texts:
        if text and random.random() < 0.3:
            text[random.randrange(len(text))] = random.choice(b"12ab\x01\x02\xff")
    return list(map(bytes, texts))


@given(texts=properties_of_many(), names=st.sampled_from([NAMES, NAMES[:1], (b"nobody", b"a"), ()]))
def test_whatever_properties_look_like_each_row_is_the_one_that_taking_them_apart_gives(
    texts: list[bytes], names: tuple[bytes, ...]
) -> None:
    raw, data = laid_out(texts, 5)
    rows = rows_of(texts, names)
    for form in FORMS:
        asked = Rows()
        found = form(raw, memoryview(data), 0, 5, names, asked)
        if rows is None:
            assert found is None
        else:
            decisions = Rows()
            assert found == [one for one, row in enumerate(rows) if decisions[row]]
            assert asked == decisions


@pytest.mark.parametrize(
    "odd",
    [
        b"UNIQ_KEY\x01ABCDEFGH\x02a\x0117\x02region\x01eu",
        b"UNIQ_KEY\x01a\x0117\x02a\x01\x0117\x02region\x01eu",
        b"UNIQ_KEY\x01AB\x02a\x0199\x02b\x0117\x02region\x01eu",
        b"UNIQ_KEY\x01ABCDEFGH\x02b\x0117\x02region\x01eu",
        b"UNIQ_KEY\x01ABCDEFGH\x02a\x0117\x02regiona\x01u",
        b"UNIQ_KEY\x01ABCDEFGH\x02a\x01\x027\x02region\x01eu",
        b"UNIQ_KEY\x01ABCDEFGH\x02a\x01172region\x01eu1",
        b"a\x01xxxxxxABCDEFGH\x02a\x0117\x02region\x01eu",
        b"a\x01xxxxxxABCDEFGH\x02b\x0117\x02region\x01eu",
        b"",
        b"a",
        b"a\x01",
    ],
)
@pytest.mark.parametrize("at", [0, 1, 39])
def test_one_that_only_looks_like_the_others_is_taken_apart_itself(odd: bytes, at: int, form: Any) -> None:
    texts = [b"UNIQ_KEY\x01%08d\x02a\x01%d\x02region\x01eu" % (number, 17 + number % 3) for number in range(40)]
    texts[at] = odd
    raw, data = laid_out(texts)
    rows, decisions, asked = rows_of(texts, NAMES), Rows(), Rows()
    found = form(raw, memoryview(data), 0, 0, NAMES, asked)
    assert found == (None if rows is None else [one for one, row in enumerate(rows) if decisions[row]])


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Some hundred messages of two kinds of length, one in fifty of which has an `a` of 99, in several stretches of the log."""
    made = Whole(tmp_path_factory.mktemp("many") / "store", mapped_file_size_commit_log=1 << 22)
    for number in range(700):
        items = [f"UNIQ_KEY\x01U{number:05}", f"a\x01{99 if number % 50 == 17 else number % 7}"]
        assert made.ask(10, {"topic": "T", "queueId": "0", **long(items)}, bytes(100)).code == 0
        assert made.ask(310, send_fields("Between"), bytes(3_000)).code == 0
    yield made
    made.close()


@pytest.mark.parametrize("count_max", [1, 5, 32])
@pytest.mark.parametrize("size_max", [1, 700, 1 << 18])
@pytest.mark.parametrize("expression", ["a = 99", "a > 5", "a >= 0", "nobody IS NOT NULL"])
def test_where_few_match_the_rest_is_judged_together_to_the_same_end(
    many: Whole, expression: str, count_max: int, size_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    puller, store, filter = many.broker.puller, many.broker.store, compiled(expression)
    for offset in (0, 100, 333):
        raw = store.queue("T", 0).read(offset, 700)
        found = judge_at_once(store.log, raw, filter, offset, count_max, size_max, 1 << 26, puller.stretches.view)
        assert found == one_by_one(puller, raw, filter, offset, count_max, size_max)
        with monkeypatch.context() as patched:
            patched.setattr(module, "COPIED_MAX", 0)
            assert found == judge_at_once(store.log, raw, filter, offset, count_max, size_max, 1 << 26, puller.stretches.view)


@pytest.mark.parametrize("reads_before", [0, 1, 2, 3])
@pytest.mark.parametrize("trouble", [Cold(lambda: None), LookupError("gone")])
def test_what_stands_before_something_cold_is_judged_however_many_are_judged_together(
    many: Whole, reads_before: int, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    puller, store, filter = many.broker.puller, many.broker.store, compiled("a = 99")
    raw = store.queue("T", 0).read(0, 700)
    spans = list(reads(*columns_of(raw), store.log.segments.size))
    assert len(spans) > 4
    cold = spans[reads_before].start

    def view(offset: int, size: int) -> memoryview:
        if offset <= cold < offset + size:
            raise trouble
        return puller.stretches.view(offset, size)

    found = judge_at_once(store.log, raw, filter, 0, 32, 1 << 18, 1 << 26, view)
    judged = spans[reads_before - 1].stop if reads_before else 0
    assert found == (one_by_one(puller, raw[: judged * ENTRY_SIZE], filter, 0, 32, 1 << 18) if judged else None)


def test_what_stands_in_parts_before_something_odd_is_judged_however_many_are_judged_together(many: Whole) -> None:
    puller, store, filter = many.broker.puller, many.broker.store, compiled("a = 99")
    raw = bytearray(store.queue("T", 0).read(0, 700))
    spans = list(reads(*columns_of(bytes(raw)), store.log.segments.size))
    place, size, tag = ENTRY.unpack_from(raw, spans[3].stop * ENTRY_SIZE - ENTRY_SIZE)
    ENTRY.pack_into(raw, spans[3].stop * ENTRY_SIZE - ENTRY_SIZE, place, size - 1, tag)
    found = judge_at_once(store.log, bytes(raw), filter, 0, 32, 1 << 18, 1 << 26, puller.stretches.view)
    assert found == one_by_one(puller, bytes(raw[: spans[2].stop * ENTRY_SIZE]), filter, 0, 32, 1 << 18)


def columns_of(raw: bytes) -> tuple[Any, Any]:
    entries = list(ENTRY.iter_unpack(raw))
    return np.array([place for place, _, _ in entries]), np.array([size for _, size, _ in entries])
