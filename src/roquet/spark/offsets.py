"""Offsets of many queues as values: as JSON, within limits, and cut into tasks. Pure.

A stream's offset says for every queue the next message to read. Spark compares offsets as text, so the same offsets must
always give the same text: keys are sorted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roquet.message import MessageQueue

Offsets = dict[MessageQueue, int]
Nested = dict[str, dict[str, dict[str, int]]]

TASK_ROWS_MAX = 1_000_000
"""A range longer than this is split, so that a task that fails does not repeat too much and long queues use all cores."""
TASK_ROWS_SMALL = 32_000
"""Ranges are read by one task together until they have so many: starting a task costs as much as reading some thousand rows."""


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Messages of one queue: start <= offset < stop."""

    queue: MessageQueue
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def nested(offsets: Mapping[MessageQueue, int]) -> Nested:
    """{"topic": {"broker": {"queue id": next offset}}}, keys sorted."""
    found: Nested = {}
    for topic, broker, queue, offset in sorted((one.topic, one.broker_name, str(one.queue_id), value) for one, value in offsets.items()):
        found.setdefault(topic, {}).setdefault(broker, {})[queue] = offset
    return found


def flat(offsets: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """The other way."""
    return {
        MessageQueue(topic, broker, int(queue)): offset
        for topic, brokers in offsets.items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }


def to_json(offsets: Mapping[MessageQueue, int]) -> str:
    return json.dumps(nested(offsets), separators=(",", ":"), ensure_ascii=False)


def from_json(text: str) -> Offsets:
    return flat(json.loads(text))


def backlog(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> Offsets:
    """How many messages each queue has between the two; queues with none, and those that only one side knows, left out."""
    return {queue: end[queue] - offset for queue, offset in start.items() if end.get(queue, offset) > offset}


def offsets_behind_latest(progress: Mapping[str, Any] | None, source: int = 0) -> dict[str, float]:
    """How far a query is behind: the figures that Spark's Kafka source has in `sources[0].metrics`, under the same names.

    `progress`: query.lastProgress, one of query.recentProgress, or event.progress in a StreamingQueryListener. Spark lets no
    Python source fill `metrics`, so they are made of what it does report: where the batch ended, and what was there then.
    Empty while Spark has not reported both, as before a query's first batch, when lastProgress is None.
    """
    if progress is None:
        return {}
    reported = progress["sources"][source]
    offsets = [reported.get(name) for name in ("endOffset", "latestOffset")]
    end, latest = (flat((json.loads(one) if isinstance(one, str) else one) or {}) for one in offsets)
    if not end or not latest:
        return {}
    behind = [max(0, latest[queue] - offset) for queue, offset in end.items() if queue in latest]
    return {
        "minOffsetsBehindLatest": min(behind, default=0),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "avgOffsetsBehindLatest": sum(behind) / max(1, len(behind)),
    }


def shares(sizes: Mapping[MessageQueue, int], limit: int) -> Offsets:
    """`limit` shared out in proportion to the sizes: no more to any than it has, and together the limit exactly.

    Every queue that has something gets at least one, so that a quiet queue is not starved by busy ones; with more such
    queues than the limit that is more than the limit.
    """
    waiting = {queue: size for queue, size in sizes.items() if size > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    rest, spare = max(0, limit - len(waiting)), max(1, total - len(waiting))
    found = {queue: 1 + rest * (size - 1) // spare for queue, size in waiting.items()}
    # What rounding down left over goes to those that lost most by it; the queue itself decides between equals.
    over = rest - sum(found.values()) + len(waiting)
    for queue in sorted(waiting, key=lambda one: (-(rest * (waiting[one] - 1) % spare), one))[:over]:
        found[queue] += 1
    return found


def limited(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], rows_max: int) -> Offsets:
    """`end`, brought nearer to `start` until no more than `rows_max` messages lie between."""
    taken = shares(backlog(start, end), rows_max)
    return {queue: start[queue] + taken[queue] if queue in taken else offset for queue, offset in end.items()}


def limited_by_bytes(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], bytes_max: int, average: Mapping[MessageQueue, float]
) -> Offsets:
    """The same for bytes, reckoned by the average size of a message of each queue. At least one message each."""
    rows = backlog(start, end)
    total = sum(count * average[queue] for queue, count in rows.items())
    if total <= bytes_max:
        return dict(end)
    taken = {queue: max(1, int(count * bytes_max / total)) for queue, count in rows.items()}
    return {queue: start[queue] + taken[queue] if queue in taken else offset for queue, offset in end.items()}


def ranges(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[Range]:
    """What lies between the two, sorted. A queue that `start` does not know begins with the next batch."""
    return [Range(queue, start[queue], start[queue] + rows) for queue, rows in sorted(backlog(start, end).items())]


def tasks(
    wanted: Iterable[Range], partitions_min: int | None = None, rows_max: int = TASK_ROWS_MAX, rows_small: int = TASK_ROWS_SMALL
) -> list[tuple[Range, ...]]:
    """The ranges cut and put together: every message in exactly one task, those of a queue in order.

    With `partitions_min` at least so many tasks, as far as there are messages, and nothing is put together.
    """
    found = sorted(one for one in wanted if one.rows > 0)
    if partitions_min is not None:
        rows_max = min(rows_max, max(1, sum(one.rows for one in found) // partitions_min))
    pieces = [piece for one in found for piece in split(one, rows_max)]
    return [(piece,) for piece in pieces] if partitions_min is not None else packed(pieces, rows_small)


def split(one: Range, rows_max: int) -> list[Range]:
    """Pieces of nearly the same length, none longer than `rows_max`."""
    count = -(-one.rows // rows_max)
    marks = [one.start + one.rows * number // count for number in range(count + 1)]
    return [Range(one.queue, start, stop) for start, stop in itertools.pairwise(marks)]


def packed(pieces: Sequence[Range], rows_small: int) -> list[tuple[Range, ...]]:
    found: list[tuple[Range, ...]] = []
    open_: list[Range] = []
    for piece in pieces:
        if open_ and sum(one.rows for one in open_) + piece.rows > rows_small:
            found.append(tuple(open_))
            open_ = []
        open_.append(piece)
    return [*found, tuple(open_)] if open_ else found
