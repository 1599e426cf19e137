"""What pulls get at once (`broker/gather.py`) is what they get when one entry is looked at after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.broker.gather import GAP_MAX, SPAN_MAX, Answer, are_records, cut, gather, gather_for, pull_answer, runs
from roquet.broker.pull import Pull, Puller, Status
from roquet.routing.subscription import TagFilter, subscribe
from roquet.speedups import native
from roquet.store.disk import Cold, blocking
from roquet.store.mending import Odd
from roquet.store.queue import ENTRY_SIZE
from roquet.store.stretches import LogStretches
from roquet.store.window import LogWindow
from roquet.testing.peer import FakePeer
from roquet.wire.calls.pulls import PULL_MESSAGE, PullResponseHeader
from roquet.wire.command import Command
from roquet.wire.layout import ENTRY, MAGIC_V1, MAGIC_V2, QUEUE_OFFSET_AT, RECORD_FRONT
from roquet.wire.pulled import found_front, frame_front, pull_answer_head
from roquet.wire.record import decode_records

from .whole import Whole, pull_fields, send_fields

FORMS = [gather] if native is None else [gather, native.gather]
COUNT = 200
TAGS = ("a", "b", "c", "AaAa", "BBBB", "AaBB", "e", "f", "g", "h", "i", "")
"""Three of them have the same hash; one message in twelve has no tag."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Messages of T among those of others, some near and some far, over several log files."""
    made = Whole(tmp_path_factory.mktemp("gather") / "store", mapped_file_size_commit_log=1 << 18)
    random = Random(7)
    for number in range(COUNT):
        tag = TAGS[number % len(TAGS)]
        properties = f"UNIQ_KEY\x01U{number}" + (f"\x02TAGS\x01{tag}" if tag else "")
        assert made.ask(310, send_fields(properties=properties), random.randbytes(random.choice((0, 10, 500)))).code == 0
        if random.random() < 0.5:
            assert made.ask(310, send_fields("Between"), bytes(random.choice((10, 3_000, 20_000)))).code == 0
    yield made
    made.close()


def a_pull(offset: int, expression: str) -> Pull:
    tags = None if expression == "*" else TagFilter.of(subscribe("T", expression))
    return Pull(FakePeer(), Command(11), "g", "T", 0, offset, offset, 32, 1 << 31, tags, None, 0)


def at_once(
    puller: Puller, pull: Pull, raw: bytes, count_max: int, size_max: int, span_max: int = SPAN_MAX
) -> tuple[bytes, int, int] | None:
    """By Python and, where it is, by the compiled one: the same."""
    log = puller.store.log
    codes = None if pull.tags is None else pull.tags.hashes
    found: list[tuple[bytes, int, int] | None] = []
    for form in FORMS:
        try:
            found.append(
                blocking(
                    form,
                    raw,
                    codes,
                    pull.offset,
                    count_max,
                    size_max,
                    log.start,
                    log.written,
                    puller.record_max,
                    puller.stretches.view,
                    span_max,
                )
            )
        except LookupError:
            found.append(None)
    assert found[0] == found[-1]
    framed_as(found[0], puller, raw, codes, pull.offset, count_max, size_max, span_max)
    return found[0]


def framed_as(
    found: tuple[bytes, int, int] | None, puller: Puller, raw: bytes, codes: Any, offset: int, count_max: int, size_max: int, span_max: int,
) -> None:  # fmt: skip
    """The answer is what was found, in a frame with the header of an answer."""
    answer: Callable[..., Answer | None] = pull_answer
    log = puller.store.log
    wanted: tuple[Any, ...] = (
        raw,
        codes,
        offset,
        count_max,
        size_max,
        log.start,
        log.written,
        puller.record_max,
        puller.stretches.view,
        span_max,
    )
    for binary in (False, True):
        for opaque, first, last in ((offset, 0, COUNT), (-1, offset, 1 << 62), (0x7FFFFFFF, 9, 10), (-0x80000000, 0, (1 << 63) - 1)):
            try:
                framed = blocking(partial(answer, *wanted, binary, opaque, first, last))
            except LookupError:
                framed = None
            if found is None or not found[1]:
                assert framed is None
                continue
            body, count, judged = found
            head = pull_answer_head(opaque, 0, b"FOUND", offset + judged, first, last, binary=binary)
            assert framed == (frame_front(head, len(body), binary=binary) + body, count, judged, len(body))


def one_by_one(puller: Puller, pull: Pull, raw: bytes, count_max: int, size_max: int) -> tuple[bytes, int, int] | None:
    try:
        found = blocking(puller._pick, pull, raw, 0, COUNT, count_max, size_max)
    except (LookupError, Odd):
        return None
    return b"".join(found.records), found.count, found.next_offset - pull.offset


EXPRESSIONS = ("*", "a", "AaAa", "a || AaBB || none", "none", " || ".join(TAGS[:-1]))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_sound_entries_are_answered_at_once_and_as_one_by_one(whole: Whole, expression: str) -> None:
    puller, queue, random = whole.broker.puller, whole.broker.store.queue("T", 0), Random(3)
    careful = 0
    for offset in range(COUNT):
        pull = a_pull(offset, expression)
        count_max, size_max = random.choice((1, 2, 31, 32)), random.choice((1, 700, 3_000, 1 << 18))
        raw = queue.read(offset, random.choice((1, 5, 32, 100)))
        found = at_once(puller, pull, raw, count_max, size_max)
        # The span of one read may reach into the next file: then it is the careful way's.
        careful += found is None
        if found is not None:
            assert found == one_by_one(puller, pull, raw, count_max, size_max)
    assert careful < COUNT // 2


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_answered_of_spoiled_entries_is_what_one_by_one_would_be(whole: Whole, expression: str) -> None:
    puller, queue, random = whole.broker.puller, whole.broker.store.queue("T", 0), Random(5)
    answered = 0
    for _ in range(700):  # fifty of each kind below
        offset = random.randrange(COUNT)
        pull = a_pull(offset, expression)
        raw = bytearray(queue.read(offset, random.choice((1, 8, 32))))
        for _ in range(random.choice((1, 1, 2))):
            at = random.randrange(len(raw) // ENTRY_SIZE) * ENTRY_SIZE
            place, size, tag = ENTRY.unpack_from(raw, at)
            spoiled = random.choice(
                (
                    (place, 0x7FFFFFFF, tag), (place, 0, tag), (place, -1, tag), (place, size + 1, tag), (place, 90, tag),
                    (place, 1 << 26, tag), (place + 1, size, tag), (-1, size, tag), (1 << 62, size, tag), (0, size, tag),
                    (place, size, tag ^ 1),
                    (place, size, tag + (1 << 32)), (place, size, tag - (1 << 40)), (0, 0, 0),
                )
            )  # fmt: skip
            raw[at : at + ENTRY_SIZE] = ENTRY.pack(*spoiled)
        count_max, size_max = random.choice((1, 32)), random.choice((700, 1 << 18))
        found = at_once(puller, pull, bytes(raw), count_max, size_max)
        if found is not None:
            answered += 1
            assert found == one_by_one(puller, pull, bytes(raw), count_max, size_max)
    assert answered or expression == "*"


@pytest.mark.parametrize("limit", [1, 200, 5_000])
def test_records_that_stand_far_from_each_other_are_read_apart(whole: Whole, limit: int) -> None:
    puller, queue = whole.broker.puller, whole.broker.store.queue("T", 0)
    for offset in range(0, COUNT, 7):
        pull, raw = a_pull(offset, "*"), queue.read(offset, 32)
        found = at_once(puller, pull, raw, 32, 1 << 18, limit)
        assert found is None or found == one_by_one(puller, pull, raw, 32, 1 << 18)
        assert limit > 1 or found is not None, "a read for each: none reaches into another file"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [Cold(lambda: None), LookupError("gone"), OSError("broken")])
def test_what_a_read_raises_is_the_callers(whole: Whole, form: Any, error: Exception) -> None:
    def view(offset: int, size: int) -> memoryview:
        raise error

    raw = whole.broker.store.queue("T", 0).read(0, 32)
    with pytest.raises(type(error)):
        form(raw, None, 0, 32, 1 << 18, 0, 1 << 40, 1 << 26, view, SPAN_MAX)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_is_not_its_entrys_is_not_sent(whole: Whole, form: Any) -> None:
    raw, log = whole.broker.store.queue("T", 0).read(0, 8), whole.broker.store.log
    view = LogWindow(log).view
    assert form(raw, None, 0, 32, 1 << 18, 0, log.written, 1 << 26, view, SPAN_MAX) is not None
    assert form(raw, None, 1, 32, 1 << 18, 0, log.written, 1 << 26, view, SPAN_MAX) is None, "the numbers are other ones"
    assert form(raw, None, 0, 32, 1 << 18, 1, log.written, 1 << 26, view, SPAN_MAX) is None, "the log begins later"
    assert form(b"", None, 0, 32, 1 << 18, 0, log.written, 1 << 26, view, SPAN_MAX) is None


def test_an_entry_that_speaks_of_the_end_of_all_numbers_is_odd_to_both_also_where_it_is_not_reached(whole: Whole) -> None:
    raw, log = whole.broker.store.queue("T", 0).read(0, 8), whole.broker.store.log
    for place in ((1 << 63) - 1, (1 << 63) - 100, (1 << 63) - 101, 1 << 62):
        spoiled = raw[:-ENTRY_SIZE] + ENTRY.pack(place, 100, 0)
        for size_max in (1, 1 << 18):
            view = LogStretches(log, LogWindow(log).view).view
            found = [attempt(form, spoiled, None, 0, 32, size_max, 0, log.written, 1 << 26, view, SPAN_MAX) for form in FORMS]
            assert found[0] == found[-1], (place, size_max)


def attempt(form: Callable[..., object], *args: object) -> object:
    try:
        return blocking(form, *args)
    except LookupError:
        return None


def test_many_tags_are_looked_for_in_python(whole: Whole) -> None:
    assert gather_for(bytes(65 * 4)) is gather
    assert gather_for(bytes(64 * 4)) is gather_for(None) is FORMS[-1]


@pytest.mark.skipif(native is None, reason="the extension is not here")
@pytest.mark.parametrize(
    "wrong",
    [
        {0: "text"}, {0: None}, {1: 5}, {1: ["a"]}, {1: frozenset((97,))}, {2: "1"}, {3: None}, {4: 1.5}, {5: 1 << 70}, {7: "x"}, {8: None},
        {8: lambda offset, size: b"x"},
        {8: lambda offset, size: 5}, {9: None}, {9: "x"},
    ],
)  # fmt: skip
def test_the_compiled_one_refuses_what_it_is_not_made_for(whole: Whole, wrong: dict[int, object]) -> None:
    assert native is not None
    raw, log = whole.broker.store.queue("T", 0).read(0, 8), whole.broker.store.log
    view = LogWindow(log).view
    arguments: list[Any] = [raw, b"\0\0\0a", 0, 32, 1 << 18, 0, log.written, 1 << 26, view, SPAN_MAX]
    assert native.gather(*arguments) == gather(*arguments)
    for place, value in wrong.items():
        arguments[place] = value
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        native.gather(*arguments)
    with pytest.raises(TypeError):
        native.gather(*arguments[:9])


# Pulls that wait


def test_an_answer_for_many_that_wait_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(tmp_path / "store")
    assert whole.ask(310, send_fields(properties="TAGS\x01a"), b"0").code == 0
    peers = [FakePeer() for _ in range(20)]
    for number, peer in enumerate(peers):
        fields = pull_fields(offset=1, sysFlag="6", subscription="*" if number % 2 else "a")
        whole.give(peer, Command(11, fields, opaque=100 + number, binary=number % 3 == 0))
    assert len(whole.broker.puller.parking) == 20
    reads: list[int] = []
    view = LogStretches.view

    def counted(self: LogStretches, offset: int, size: int) -> memoryview:
        reads.append(offset)
        return view(self, offset, size)

    monkeypatch.setattr(LogStretches, "view", counted)
    assert whole.ask(310, send_fields(properties="TAGS\x01a"), b"1").code == 0
    assert len(reads) == 2, "one for those that take all, one for those with a filter"
    for number, peer in enumerate(peers):
        (answer,) = peer.take()
        assert (answer.opaque, answer.code, answer.binary, answer.fields["nextBeginOffset"]) == (100 + number, 0, number % 3 == 0, "2")
        assert [record.body for record in decode_records(answer.body)] == [b"1"]
    assert whole.broker.stats.gets.count == 20
    whole.close()


# Answers


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("scan_count", [None, 7])
@pytest.mark.parametrize("status", list(Status))
def test_an_answers_header_written_by_hand_is_the_typed_one(binary: bool, scan_count: int | None, status: Status) -> None:
    for opaque, code, offsets in ((0, 0, (0, 0, 0)), (-1, 20, (5, 1, 1 << 62)), (0x7FFFFFFF, 21, (10, 9, 99))):
        request = Command(11, opaque=opaque, binary=binary)
        typed = PULL_MESSAGE.reply(request, PullResponseHeader(0, *offsets, scan_count), b"body", code=code, remark=status).encode()
        head = pull_answer_head(opaque, code, status.encode(), *offsets, scan_count, binary=binary)
        whole = frame_front(head, 4, binary=binary) + b"body"
        compare: Callable[[bytes], object] = bytes if binary else lambda frame: orjson.loads(frame[8:-4])
        assert compare(whole) == compare(typed)
        assert whole[4:8] == typed[4:8] or not binary


offsets_of_queues = st.integers(0, (1 << 63) - 1)


@given(
    st.integers(-(1 << 31), (1 << 31) - 1), offsets_of_queues, offsets_of_queues, offsets_of_queues, st.integers(0, 1 << 30), st.booleans()
)
def test_the_front_of_an_answer_with_messages_is_that_of_any_answer(
    opaque: int, next_offset: int, first: int, last: int, size: int, binary: bool
) -> None:
    head = pull_answer_head(opaque, 0, b"FOUND", next_offset, first, last, binary=binary)
    assert found_front(opaque, next_offset, first, last, size, binary=binary) == frame_front(head, size, binary=binary)


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 100, GAP_MAX, GAP_MAX + 1, 200_000]), st.integers(91, 400)), min_size=1, max_size=40),
    st.sampled_from([500, 5_000, 20_000, 100_000, SPAN_MAX]),
)
def test_records_that_stand_one_behind_the_other_are_read_as_each_of_them_would_be(rows: list[tuple[int, int]], span_max: int) -> None:
    places, at = [], 1_000
    for gap, size in rows:
        places.append(at + gap)
        at += gap + size
    sizes = [size for _, size in rows]
    log = Random(1).randbytes(at)
    asked: list[tuple[int, int]] = []

    def view(offset: int, size: int) -> memoryview:
        asked.append((offset, size))
        return memoryview(log)[offset : offset + size]

    apart = b"".join(cut(places, sizes, sum(sizes), view, span_max))
    asked_apart, asked = asked, []
    assert b"".join(cut(*runs(places, sizes, sum(sizes), span_max), sum(sizes), view, span_max)) == apart
    assert asked == asked_apart


@pytest.mark.parametrize("count", [1, 7, 8, 32, 64, 65])
@pytest.mark.parametrize("alike", [True, False])
def test_each_record_is_compared_with_its_entry_however_many_are_of_one_size(count: int, alike: bool) -> None:
    sizes = tuple(100 if alike else 91 + number % 5 for number in range(count))
    numbers = range(1 << 40, (1 << 40) + count)
    records = [RECORD_FRONT.pack(size, MAGIC_V1, number).ljust(size, b"x") for size, number in zip(sizes, numbers, strict=True)]
    assert are_records(b"".join(records), sizes, numbers)
    assert are_records(b"".join(records), sizes, list(numbers))
    for at in range(count):
        for place in (0, 3, 4, 7, QUEUE_OFFSET_AT, QUEUE_OFFSET_AT + 7):
            spoiled = bytearray(records[at])
            spoiled[place] ^= 1
            assert not are_records(b"".join([*records[:at], spoiled, *records[at + 1 :]]), sizes, numbers)
        other = records[at][:4] + MAGIC_V2.to_bytes(4, "big") + records[at][8:]
        assert not are_records(b"".join([*records[:at], other, *records[at + 1 :]]), sizes, numbers)
