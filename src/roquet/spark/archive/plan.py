"""What a batch reads: from where, how much, and cut into tasks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from roquet.errors import NoRoute
from roquet.message import MessageQueue
from roquet.spark.archive.manifest import ArchiveError, Gap
from roquet.spark.offsets import Offsets, Range
from roquet.spark.places import DataGone
from roquet.wire.names import is_system_topic

TASK_ROWS_MIN = 20_000
"""A task of fewer is not worth its start."""

Bounds = Mapping[MessageQueue, tuple[int, int]]


def starts(reached: Offsets, first: Mapping[MessageQueue, int], bounds: Bounds, *, skip_lost: bool = False) -> tuple[Offsets, list[Gap]]:
    """Where each queue goes on: where the archive stands, and for a queue it does not know at `first`.

    Raises DataGone when messages are gone that were to be archived, unless they may be skipped: then they are the gaps.
    """
    found: Offsets = {}
    gaps: list[Gap] = []
    for queue, (low, high) in sorted(bounds.items()):
        at = reached.get(queue, max(low, first.get(queue, low)))
        if at > high and queue in reached:
            where = f"{queue.topic}/{queue.queue_id} on {queue.broker_name}"
            raise ArchiveError(
                f"{where}: the archive stands at offset {at}, but the queue ends at {high}; it was made anew or lost messages. "
                "Archive it to another directory: here one offset would mean two messages"
            )
        if at < low:
            if not skip_lost:
                raise DataGone(queue, at, low)
            gaps.append(Gap(queue.topic, queue.broker_name, queue.queue_id, at, low))
            at = low
        found[queue] = at
    return found, gaps


def cut(wanted: Iterable[Range], tasks_max: int, rows_min: int = TASK_ROWS_MIN) -> list[tuple[Range, ...]]:
    """Tasks of the same number of rows each, whatever the queues hold; a queue's rows stay in order over the tasks."""
    left = [one for one in wanted if one.rows > 0]
    total = sum(one.rows for one in left)
    count = max(1, min(tasks_max, total // rows_min))
    found: list[tuple[Range, ...]] = []
    open_: list[Range] = []
    done = room = 0
    for one in left:
        at = one.start
        while at < one.stop:
            if room == 0:
                if open_:
                    found.append(tuple(open_))
                    open_ = []
                room = total * (len(found) + 1) // count - done
            stop = min(one.stop, at + room)
            open_.append(Range(one.queue, at, stop))
            done, room, at = done + stop - at, room - (stop - at), stop
    return [*found, tuple(open_)] if open_ else found


def rows_of_batch(rows_max: int, bytes_max: int, rows_before: int, bytes_before: int, guess: int = 1024) -> int:
    """How many rows keep a batch within both limits, by what a row took so far; before any, by a guess."""
    average = bytes_before / rows_before if rows_before else guess
    return max(1, min(rows_max, int(bytes_max / max(1.0, average))))


def chosen_topics(asked: Sequence[str], there: Sequence[str]) -> list[str]:
    """Names as they are; `orders-*` and `/regular expression/` pick from what is there, system topics never.

    Raises NoRoute for a name that is not there and a pattern that picks nothing.
    """
    found: dict[str, None] = {}
    for text in asked:
        if text in there:
            found[text] = None
            continue
        if len(text) > 2 and text.startswith("/") and text.endswith("/"):
            pattern = text[1:-1]
        elif "*" in text:
            pattern = ".*".join(re.escape(part) for part in text.split("*"))
        else:
            raise NoRoute(f"topic {text} is not there")
        try:
            fits = [topic for topic in there if re.fullmatch(pattern, topic) and not is_system_topic(topic)]
        except re.error as error:
            raise ArchiveError(f"{text} is not a regular expression: {error}") from None
        if not fits:
            raise NoRoute(f"no topic fits {text}")
        found.update(dict.fromkeys(fits))
    return list(found)
