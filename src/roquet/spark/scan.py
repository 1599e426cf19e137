"""A read as values: which queues, from where to where, and the record batches of one range. Nothing here knows Spark.

The driver plans (`subscribed`, `resolve`, `plan`), tasks read (`batches`).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from roquet.errors import ClientError, NoRoute
from roquet.message import MessageQueue
from roquet.spark.offsets import Offsets, Range
from roquet.spark.options import EARLIEST, LATEST, BadOption, Edge, Options, Where, place_of
from roquet.spark.places import DataGone, Place
from roquet.wire.names import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, is_system_topic

log = logging.getLogger("roquet.spark")

Bounds = dict[MessageQueue, tuple[int, int]]

BATCH_ROWS = 12_288
"""Rows of a record batch. Between 1,000 and 10,000 it makes no difference to Spark's JVM; a hundred would halve the speed. What is done
once a batch costs Python as much as a thousand rows. It is half as much again as a chunk has at least: of a broker that gets messages
meanwhile, a chunk is three answers of some 3,500 small records, and is not to be cut in two."""
ENOUGH_ROWS, ENOUGH_BYTES = 2_048, 4 * 1024 * 1024
"""A batch of so many rows or bytes is not small: putting it together with others would copy it for nothing."""
OPEN_MAX = 4
"""Places that a worker process keeps open between its tasks."""


class DataLost(ClientError):
    """Messages are gone before they were read, and failOnDataLoss is true."""


class BrokerAway(ClientError):
    """A read cannot begin because a broker that has some of it does not answer."""


# Which queues.


def subscribed(place: Place, options: Options, *, strict: bool = True) -> list[MessageQueue]:
    """Every queue that the options mean, sorted.

    Raises NoRoute for a topic that is not there, BadOption for a queue that is not. Not `strict`: they are left out.
    """
    topics = matching(place.topics(), options.pattern) if options.pattern else options.topics or {one[0] for one in options.assigned}
    there: list[MessageQueue] = []
    for topic in sorted(topics):
        try:
            there += place.queues(topic)
        except NoRoute:
            # A topic that matched a pattern may be gone by now.
            if strict and not options.pattern:
                raise
    return sorted(_assigned(there, options, strict) if options.assigned else there)


def matching(topics: Iterable[str], pattern: str) -> list[str]:
    """Topics whose whole name matches. Retry and dead-letter topics must be meant: the pattern must say %RETRY% or %DLQ%."""

    def meant(topic: str) -> bool:
        if is_system_topic(topic) or topic.endswith(REPLY_SUFFIX):
            return False
        return all(prefix in pattern for prefix in (RETRY_PREFIX, DLQ_PREFIX) if topic.startswith(prefix))

    whole = re.compile(pattern)
    return sorted(topic for topic in topics if whole.fullmatch(topic) and meant(topic))


def _assigned(there: Sequence[MessageQueue], options: Options, strict: bool) -> set[MessageQueue]:
    found: set[MessageQueue] = set()
    for topic, broker, number in options.assigned:
        meant = [one for one in there if one.topic == topic and one.queue_id == number and broker in ("", one.broker_name)]
        if strict and not meant:
            wrong = f"assign names {topic}/{number}{' on ' + broker if broker else ''}, which is not there"
            raise BadOption(f"{wrong}; {_listed([one for one in there if one.topic == topic])}")
        found.update(meant)
    return found


def _listed(queues: Sequence[MessageQueue]) -> str:
    if not queues:
        return "the topic has no readable queues now"
    return "there are " + ", ".join(f"{one.queue_id} on {one.broker_name}" for one in queues[:16]) + (", ..." if len(queues) > 16 else "")


# From where to where.


def all_bounds(place: Place, queues: Sequence[MessageQueue]) -> Bounds:
    """Of all of them. Raises BrokerAway when one is not to be had: a read that begins must not leave it out in silence."""
    found = place.bounds(queues)
    away = sorted({one.broker_name for one in queues if one not in found})
    if away:
        raise BrokerAway(f"{', '.join(away)} does not answer and has queues that are to be read; start it, or name the others with assign")
    return found


def resolve(place: Place, name: str, edge: Edge, bounds: Bounds, now_ms: int) -> Offsets:
    """The offset of every queue. `name`: of the option, for the sentence when it names a queue that is not read."""
    time_ms = edge.time(now_ms)
    if time_ms is not None:
        return at_times(place, dict.fromkeys(bounds, time_ms), bounds, edge.strict)
    if edge.times:
        meant = times_meant(f"{name}ByTimestamp", edge, bounds, now_ms)
        rest = {queue: _offset(edge.at, *ends) for queue, ends in bounds.items() if queue not in meant}
        return rest | at_times(place, meant, bounds, edge.strict)
    given = {MessageQueue(topic, broker, number): offset for topic, broker, number, offset in edge.offsets}
    for queue in given:
        if queue not in bounds:
            raise not_read(name, queue.topic, f"{queue.topic}/{queue.queue_id} on {queue.broker_name}", bounds)
    return {queue: _offset(given.get(queue, edge.at), *ends) for queue, ends in bounds.items()}


def not_read(name: str, topic: str, what: str, bounds: Bounds) -> BadOption:
    there = [one for one in bounds if one.topic == topic]
    known = _listed(there) if there else f"topics that are read: {', '.join(sorted({one.topic for one in bounds})) or 'none'}"
    return BadOption(f"{name} names {what}, which is not read; {known}")


def times_meant(name: str, edge: Edge, bounds: Bounds, now_ms: int) -> Offsets:
    """The time of every queue that has one. Raises BadOption for what is not read."""
    found: Offsets = {}
    for topic, broker, number, when in edge.times:
        meant = [one for one in bounds if one.topic == topic and broker in ("", one.broker_name) and number in (None, one.queue_id)]
        if not meant:
            queue = topic if number is None else f"{topic}/{number}"
            raise not_read(name, topic, queue + (f" on {broker}" if broker else ""), bounds)
        found |= dict.fromkeys(meant, when.time(now_ms) or 0)
    return found


def at_times(place: Place, times: Offsets, bounds: Bounds, strict: bool) -> Offsets:
    """The first message of each queue that was stored then or later; its end when there is none, or BadOption when `strict`."""
    found: Offsets = {}
    for time_ms in sorted(set(times.values())):
        found |= place.offsets_at([queue for queue, when in times.items() if when == time_ms], time_ms)
    offsets = {queue: found.get(queue, bounds[queue][1]) for queue in times}
    for queue, offset in sorted(offsets.items()):
        if strict and offset >= bounds[queue][1]:
            raise BadOption(
                f"{queue.topic}/{queue.queue_id} on {queue.broker_name} has no message that was stored at {times[queue]} or later; "
                "choose an earlier time, or startingOffsetsByTimestampStrategy=latest, which begins at the end"
            )
    return offsets


def _offset(value: int, first: int, end: int) -> int:
    return first if value == EARLIEST else end if value == LATEST else value


def plan(place: Place, options: Options, now_ms: int) -> list[Range]:
    """Of a batch read: what to read of every queue."""
    if options.starting is not None and options.starting == Edge(LATEST):
        raise BadOption("startingOffsets=latest would read nothing in a batch; expected earliest, JSON, or startingTimestamp")
    bounds = all_bounds(place, subscribed(place, options))
    start = resolve(place, "startingOffsets", options.starting or Edge(EARLIEST), bounds, now_ms)
    end = resolve(place, "endingOffsets", options.ending or Edge(LATEST), bounds, now_ms)
    check_order(options, start, end)
    return there(sorted(Range(queue, start[queue], end[queue]) for queue in bounds), bounds, options.fail_on_data_loss)


def check_order(options: Options, start: Offsets, end: Offsets) -> None:
    """Raises BadOption where offsets that were given end before they begin."""
    if options.starting is None or options.ending is None:
        return
    both = options.starting.queues() & options.ending.queues()
    for queue in sorted(both):
        if start[queue] > end[queue]:
            raise BadOption(
                f"{queue.topic}/{queue.queue_id} on {queue.broker_name}: startingOffsets begins at {start[queue]} and "
                f"endingOffsets ends before {end[queue]}; the end must not lie before the beginning"
            )


def there(wanted: Iterable[Range], bounds: Mapping[MessageQueue, tuple[int, int]], fail: bool) -> list[Range]:
    """The part of each range that is there; those of queues without bounds as they are. Raises DataLost when `fail` and some is not."""
    found: list[Range] = []
    for one in wanted:
        first, end = bounds.get(one.queue, (one.start, one.stop))
        start, stop = max(one.start, first), min(one.stop, end)
        if one.start > end:
            # Nothing is there to begin with: as bad as a beginning that is gone.
            beyond(one.queue, one.start, first, end, fail)
            continue
        if one.start < one.stop:
            if start > one.start:
                lost(one.queue, one.start, min(start, one.stop), first, end, fail)
            if stop < one.stop:
                lost(one.queue, max(stop, one.start), one.stop, first, end, fail)
        if start < stop:
            found.append(Range(one.queue, start, stop))
    return found


def beyond(queue: MessageQueue, start: int, first: int, end: int, fail: bool) -> None:
    """A read that is to begin behind the end. Raises DataLost, or says it in the log."""
    text = f"{queue.topic}/{queue.queue_id} on {queue.broker_name}: the read is to begin at {start}, and {_held(first, end)}"
    if fail:
        raise DataLost(
            f"{text}. Check startingOffsets; or the broker lost its last messages, or the topic was made anew. "
            "failOnDataLoss=false reads what is there"
        )
    log.warning("%s; nothing is read of it, because failOnDataLoss=false", text)


def _held(first: int, end: int) -> str:
    return f"the queue has {f'{first} to {end - 1}' if first < end else f'none, its next is {end}'}"


def lost(queue: MessageQueue, start: int, stop: int, first: int, end: int, fail: bool) -> None:
    """Raises DataLost, or says it in the log."""
    text = (
        f"{queue.topic}/{queue.queue_id} on {queue.broker_name}: messages {start} to {stop - 1} were to be read and are not there; "
        f"{_held(first, end)}"
    )
    if fail:
        raise DataLost(f"{text}. Retention may have removed them, or the topic was made anew; failOnDataLoss=false reads what is there")
    log.warning("%s; going on without them, because failOnDataLoss=false", text)


# Reading.


_open: dict[Where, Place] = {}


@contextlib.contextmanager
def opened(where: Where) -> Iterator[Place]:
    """A place of this process: one that an earlier task left open, or a new one. After an error it is not used again."""
    place = _open.pop(where, None) or place_of(where)
    try:
        yield place
    except BaseException:
        place.close()
        raise
    _open[where] = place
    close_opened(OPEN_MAX)


def close_opened(leave: int = 0) -> None:
    """The oldest ones, but for so many."""
    while len(_open) > leave:
        _open.pop(next(iter(_open))).close()


atexit.register(close_opened)


def batches(place: Place, one: Range, options: Options, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Its messages, in order. Raises DataLost."""
    from roquet.spark.decode import Decoder

    decoder = Decoder(schema, one.queue.broker_name or None, check_crc=options.check_crc)
    start = one.start
    while start < one.stop:
        try:
            for chunk in place.chunks(one.queue, start, one.stop, options.wanted):
                yield from decoder.batches(chunk, rows_max=BATCH_ROWS)
            return
        except DataGone as gone:
            # Ahead of what is gone everything was read. An end that moved back has nothing more for us.
            start = gone.available if gone.available > gone.start else one.stop
            first, end = place.bounds([one.queue]).get(one.queue, (gone.available, gone.available))
            lost(one.queue, gone.start, min(start, one.stop), first, end, options.fail_on_data_loss)


def gathered(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches put together, so that filtered or quiet queues do not send Spark many tiny ones."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for part in parts:
        if part.num_rows == 0:
            continue
        waiting.append(part)
        rows += part.num_rows
        size += part.nbytes
        if rows > ENOUGH_ROWS or size > ENOUGH_BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
