"""Offsets as values: their JSON, their limits, and the tasks they are cut into."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from roquet.message import MessageQueue
from roquet.spark import offsets_behind_latest
from roquet.spark.offsets import Range, backlog, flat, from_json, limited, limited_by_bytes, nested, ranges, shares, tasks, to_json

names = st.sampled_from(["a", "b", "%DLQ%c", "ü"])
queues = st.builds(MessageQueue, names, names, st.integers(0, 12))
offsets = st.dictionaries(queues, st.integers(0, 1 << 60))
sizes = st.dictionaries(queues, st.integers(0, 50), max_size=12)


def queue(number: int) -> MessageQueue:
    return MessageQueue("t", "b", number)


@given(offsets)
def test_offsets_survive_json(value: dict[MessageQueue, int]) -> None:
    assert flat(nested(value)) == value
    assert from_json(to_json(value)) == value


@given(offsets, st.randoms())
def test_the_same_offsets_always_give_the_same_text(value: dict[MessageQueue, int], random: object) -> None:
    items = list(value.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert json.dumps(nested(dict(items))) == json.dumps(nested(value)) == json.dumps(nested(value), sort_keys=True)


def test_the_text_is_compact_and_sorted() -> None:
    assert to_json({MessageQueue("t", "b", 10): 1, MessageQueue("t", "b", 9): 2}) == '{"t":{"b":{"10":1,"9":2}}}'


@given(sizes, st.integers(1, 200))
def test_a_limit_is_shared_out_exactly_and_starves_nobody(size: dict[MessageQueue, int], limit: int) -> None:
    found = shares(size, limit)
    waiting = {one: count for one, count in size.items() if count}
    assert found.keys() == waiting.keys()
    assert all(1 <= count <= waiting[one] for one, count in found.items())
    assert sum(found.values()) == min(sum(waiting.values()), max(limit, len(waiting)))


@given(sizes, st.integers(1, 200))
def test_who_has_more_gets_no_less(size: dict[MessageQueue, int], limit: int) -> None:
    found = shares(size, limit)
    for one in found:
        for other in found:
            if size[one] > size[other]:
                assert found[one] >= found[other]


def test_shares_follow_the_backlog() -> None:
    assert shares({queue(0): 1_000, queue(1): 3_000, queue(2): 1}, 401) == {queue(0): 100, queue(1): 300, queue(2): 1}


@given(offsets, sizes, st.integers(1, 100))
def test_limits_move_forward_and_not_beyond(start: dict[MessageQueue, int], more: dict[MessageQueue, int], limit: int) -> None:
    end = {one: offset + more.get(one, 0) for one, offset in start.items()}
    found = limited(start, end, limit)
    assert found.keys() == end.keys()
    assert all(start[one] <= found[one] <= end[one] for one in start)
    assert (found == start) == (end == start)


def test_going_on_within_limits_reaches_the_end() -> None:
    start, end = {queue(0): 0, queue(1): 5}, {queue(0): 100, queue(1): 8}
    rounds = 0
    while start != end:
        start = limited(start, end, 10)
        rounds += 1
    assert rounds == 11


def test_bytes_are_limited_by_the_average_size_of_each_queue() -> None:
    start, end = {queue(0): 0, queue(1): 0}, {queue(0): 1_000, queue(1): 1_000}
    found = limited_by_bytes(start, end, 55_000, {queue(0): 100.0, queue(1): 1_000.0})
    assert found == {queue(0): 50, queue(1): 50}
    assert limited_by_bytes(start, end, 2_000_000, {queue(0): 100.0, queue(1): 1_000.0}) == end
    assert limited_by_bytes(start, end, 1, {queue(0): 100.0, queue(1): 1_000.0}) == {queue(0): 1, queue(1): 1}


def test_a_queue_that_only_one_side_knows_has_no_backlog() -> None:
    assert backlog({queue(0): 1, queue(1): 1}, {queue(1): 3, queue(2): 9}) == {queue(1): 2}
    assert ranges({queue(1): 1}, {queue(1): 3, queue(2): 9}) == [Range(queue(1), 1, 3)]


@given(
    st.dictionaries(queues, st.tuples(st.integers(0, 1_000), st.integers(0, 300))),
    st.none() | st.integers(1, 40),
    st.integers(1, 100),
    st.integers(1, 100),
)
def test_tasks_cover_every_message_exactly_once(
    given_: dict[MessageQueue, tuple[int, int]], partitions_min: int | None, rows_max: int, rows_small: int
) -> None:
    wanted = [Range(one, start, start + rows) for one, (start, rows) in given_.items()]
    found = tasks(wanted, partitions_min, rows_max, rows_small)
    messages = [(piece.queue, offset) for task in found for piece in task for offset in range(piece.start, piece.stop)]
    assert sorted(messages) == sorted((one.queue, offset) for one in wanted for offset in range(one.start, one.stop))
    assert messages == sorted(messages)
    assert all(0 < piece.rows <= rows_max for task in found for piece in task)
    assert all(task for task in found)
    if partitions_min is not None:
        assert len(found) >= min(partitions_min, len(messages))


def test_small_ranges_are_read_together_and_large_ones_split() -> None:
    wanted = [Range(queue(0), 0, 2_500_000), Range(queue(1), 0, 10), Range(queue(2), 5, 15)]
    found = tasks(wanted)
    assert [sum(one.rows for one in task) for task in found] == [833_333, 833_333, 833_334, 20]
    assert found[-1] == (Range(queue(1), 0, 10), Range(queue(2), 5, 15))


def test_nothing_to_read_is_no_task() -> None:
    assert tasks([Range(queue(0), 5, 5)], 8) == []


def test_without_a_report_nobody_says_that_a_query_has_read_everything() -> None:
    """A query that has made no batch, or Spark reports no end: Kafka's source has no figures then, and zeros would be a lie."""
    end = {"t": {"b": {"0": 5}}}
    assert offsets_behind_latest(None) == {}
    for source in ({"endOffset": None, "latestOffset": end}, {"endOffset": end, "latestOffset": None}, {"endOffset": json.dumps(end)}):
        assert offsets_behind_latest({"sources": [source]}) == {}
    read = offsets_behind_latest({"sources": [{"endOffset": end, "latestOffset": {"t": {"b": {"0": 7, "1": 40}}}}]})
    assert read == {"minOffsetsBehindLatest": 2, "maxOffsetsBehindLatest": 2, "avgOffsetsBehindLatest": 2.0}
