"""Filters that narrow a batch read."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual, Not

from roquet.spark.offsets import Range
from roquet.spark.options import read_options
from roquet.spark.pushdown import TIME_SLACK_MS, Narrowing, narrowing
from tests.spark.test_watch import GIVEN, Imagined, queue


def narrowed(*filters: Filter) -> list[Range]:
    return narrowing(filters).plan(Imagined(q0=100_000, q1=100_000), read_options(GIVEN), 0)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


def test_without_filters_everything_is_read() -> None:
    assert narrowing([]) == Narrowing()
    assert [one.rows for one in narrowed()] == [100_000, 100_000]


def test_queues_that_cannot_match_are_not_read() -> None:
    assert [one.queue for one in narrowed(EqualTo(("queue_id",), 1))] == [queue(1)]
    assert [one.queue for one in narrowed(In(("queue_id",), (0, 1)), In(("queue_id",), (1, 2)))] == [queue(1)]
    assert narrowed(EqualTo(("topic",), "other")) == []
    assert narrowed(In(("broker",), ("b", "c"))) == []


def test_offsets_that_cannot_match_are_not_read() -> None:
    found = narrowed(EqualTo(("queue_id",), 0), GreaterThan(("queue_offset",), 9), LessThanOrEqual(("queue_offset",), 20))
    assert found == [Range(queue(0), 10, 21)]
    assert narrowed(GreaterThanOrEqual(("queue_offset",), 99_999), LessThan(("queue_offset",), 100_000), EqualTo(("queue_id",), 0)) == [
        Range(queue(0), 99_999, 100_000)
    ]
    assert [one.rows for one in narrowed(EqualTo(("queue_offset",), 5))] == [1, 1]


def test_times_are_narrowed_with_room_for_a_clock_that_stepped_back() -> None:
    found = narrowed(EqualTo(("queue_id",), 0), GreaterThan(("store_time",), moment(30_000)), LessThan(("store_time",), moment(40_000)))
    assert found == [Range(queue(0), 30_000 - TIME_SLACK_MS, 40_000 + TIME_SLACK_MS + 1)]


def test_what_cannot_be_used_is_left_to_spark() -> None:
    useless = [
        Not(EqualTo(("queue_id",), 1)),
        IsNotNull(("topic",)),
        EqualTo(("body",), b"x"),
        EqualTo(("properties", "topic"), "x"),
        EqualTo(("queue_id",), None),
        GreaterThan(("store_time",), datetime(2026, 1, 1)),
    ]
    assert narrowing(useless) == Narrowing()
