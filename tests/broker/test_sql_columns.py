"""What an SQL filter takes of many records at once (`broker/sql_columns.py`) is what it takes of one after another."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from roquet.broker import sql_columns as module
from roquet.broker.pull import Pull, Puller
from roquet.broker.sql_columns import Decisions, judge_at_once, matching, property_rows, property_texts, reads
from roquet.routing.sql92 import Filter, compiled
from roquet.speedups import native
from roquet.store.mending import Odd
from roquet.store.queue import ENTRY_SIZE
from roquet.store.stretches import STRETCH
from roquet.testing.peer import FakePeer
from roquet.wire.command import Command
from roquet.wire.layout import ENTRY

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
