"""Filters of a batch query that save reading: on where a message stands, and when it was stored.

They only narrow what is read. Spark judges every row again, so reading a little too much is never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from roquet.spark.offsets import Range
from roquet.spark.options import Options
from roquet.spark.places import Place
from roquet.spark.scan import plan

TIME_SLACK_MS = 10_000
"""A broker's clock may step back a little, so that times in a queue do not quite rise."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What can match. None: anything."""

    topics: frozenset[Any] | None = None
    brokers: frozenset[Any] | None = None
    queue_ids: frozenset[Any] | None = None
    offset_min: int | None = None
    offset_max: int | None = None
    time_min_ms: int | None = None
    time_max_ms: int | None = None

    def plan(self, place: Place, options: Options, now_ms: int) -> list[Range]:
        found = [one for one in plan(place, options, now_ms) if self.takes(one)]
        found = [clipped(one, self.offset_min, None if self.offset_max is None else self.offset_max + 1) for one in found]
        queues = [one.queue for one in found]
        if self.time_min_ms is not None:
            first = place.offsets_at(queues, self.time_min_ms - TIME_SLACK_MS)
            found = [clipped(one, first.get(one.queue), None) for one in found]
        if self.time_max_ms is not None:
            end = place.offsets_at(queues, self.time_max_ms + TIME_SLACK_MS + 1)
            found = [clipped(one, None, end.get(one.queue)) for one in found]
        return [one for one in found if one.rows > 0]

    def takes(self, one: Range) -> bool:
        return (
            (self.topics is None or one.queue.topic in self.topics)
            and (self.brokers is None or one.queue.broker_name in self.brokers)
            and (self.queue_ids is None or one.queue.queue_id in self.queue_ids)
        )


def clipped(one: Range, start: int | None, stop: int | None) -> Range:
    start = one.start if start is None else max(one.start, start)
    return Range(one.queue, start, max(start, one.stop if stop is None else min(one.stop, stop)))


def narrowing(filters: Iterable[Filter]) -> Narrowing:
    """Of those of the filters that help; all of them hold at once."""
    found = Narrowing()
    for one in filters:
        if isinstance(one, (EqualTo, EqualNullSafe)):
            found = _among(found, one.attribute, (one.value,))
        elif isinstance(one, In):
            found = _among(found, one.attribute, tuple(one.value))
        elif isinstance(one, (GreaterThan, GreaterThanOrEqual)):
            found = _between(found, one.attribute, one.value, None, 1 if isinstance(one, GreaterThan) else 0)
        elif isinstance(one, (LessThan, LessThanOrEqual)):
            found = _between(found, one.attribute, None, one.value, 1 if isinstance(one, LessThan) else 0)
    return found


_SETS = {"topic": "topics", "broker": "brokers", "queue_id": "queue_ids"}


def _among(known: Narrowing, column: tuple[str, ...], values: tuple[Any, ...]) -> Narrowing:
    name = column[-1].lower()
    there = [value for value in values if value is not None]
    if len(column) != 1 or not there:
        return known
    if name in _SETS:
        before = getattr(known, _SETS[name])
        # A broker that files do not name is null, which no value equals: then there is nothing to read, as there should be.
        now: dict[str, Any] = {_SETS[name]: frozenset(there) if before is None else before & frozenset(there)}
        return replace(known, **now)
    return _between(known, column, min(there), max(there), 0)


def _between(known: Narrowing, column: tuple[str, ...], low: Any, high: Any, beyond: int) -> Narrowing:
    """`beyond`: how far from the limit the first whole number lies that matches."""
    name = column[-1].lower()
    if len(column) != 1:
        return known
    if name == "queue_offset":
        return replace(
            known,
            offset_min=_most(max, known.offset_min, None if low is None else low + beyond),
            offset_max=_most(min, known.offset_max, None if high is None else high - beyond),
        )
    if name == "store_time":
        return replace(
            known,
            time_min_ms=_most(max, known.time_min_ms, _ms(low)),
            time_max_ms=_most(min, known.time_max_ms, _ms(high)),
        )
    return known


def _most(choose: Any, known: int | None, new: int | None) -> int | None:
    if known is None or new is None:
        return new if known is None else known
    return int(choose(known, new))


def _ms(value: Any) -> int | None:
    """None for what is no moment, such as a time without a zone."""
    return int(value.timestamp() * 1_000) if isinstance(value, datetime) and value.tzinfo is not None else None
