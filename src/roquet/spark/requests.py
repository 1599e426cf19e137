"""Which rows go to which queue, and the requests that carry them there. Pure; see encode.py for how a row becomes bytes.

    queue_id given                    to that queue
    order_key given                   to the queue that the clients' hash of the key chooses
    neither                           to any queue: each request takes the next one

Rows for one queue that was given or chosen by a key keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roquet.message import MessageQueue
from roquet.spark.encode import NONE, Ints, Rows

BATCH_BYTES = 1024 * 1024
BATCH_ROWS = 2_048
"""Of one request, bytes and rows: enough that what is done per request does not count, few enough that others get their turn. A
broker's work for small messages goes by their number, for large ones by their bytes."""


@dataclass(slots=True)
class Request:
    """One request to be: a batch, or one message."""

    topic: str
    queue: MessageQueue | None
    """Where it must go, because of a queue or an order key; None: to any queue of the topic."""
    batch: bool
    body: bytes | memoryview
    """A view for a batch: it goes to the socket from where it was encoded."""
    properties: str
    flag: int
    count: int
    rows: str
    """Which rows these are, for people."""


def requests(rows: Rows, queues: Mapping[str, Sequence[MessageQueue]], bytes_max: int = BATCH_BYTES) -> list[Request]:
    """The requests for these rows. Rows with one target keep their order, in one request and from one to the next.

    `queues`: of every topic in rows.topics, those that take writes. Raises BadRow for a queue that is not among them.
    """
    if not len(rows):
        return []
    targets, target = targets_of(rows, queues)
    if (target[1:] >= target[:-1]).all():  # as it is when no row says where it goes
        by_target, frames = np.arange(len(rows)), rows.frames
    else:
        by_target = np.argsort(target, kind="stable")
        frames = rows.frames.take(pa.array(by_target))
    offsets = np.frombuffer(frames.buffers()[1], dtype=np.int32)[frames.offset : frames.offset + len(rows) + 1].astype(np.int64)
    data = memoryview(frames.buffers()[2])
    sorted_target, alone = target[by_target], rows.alone[by_target]
    edges = np.flatnonzero((sorted_target[1:] != sorted_target[:-1]) | alone[1:] | alone[:-1]) + 1
    made: list[Request] = []
    for start, stop in cuts(offsets, edges, bytes_max):
        first, last = int(by_target[start]), int(by_target[stop - 1])
        topic, queue = targets[int(sorted_target[start])]
        if alone[start]:
            text = rows.properties(first).decode()
            made.append(Request(topic, queue, False, rows.body[first].as_py(), text, int(rows.flag[first]), 1, rows.name(first)))
        else:
            named = rows.name(first) if start + 1 == stop else f"{stop - start} rows, {rows.name(first)} to {rows.name(last)}"
            made.append(Request(topic, queue, True, data[offsets[start] : offsets[stop]], "", 0, stop - start, named))
    return made


def cuts(offsets: Ints, edges: Ints, bytes_max: int) -> Iterable[tuple[int, int]]:
    """Runs of at most `bytes_max` bytes (or one row) and BATCH_ROWS rows that no edge is inside of."""
    count = len(offsets) - 1
    start = 0
    for edge in (*edges.tolist(), count):
        while start < edge:
            stop = int(np.searchsorted(offsets, offsets[start] + bytes_max, side="right")) - 1
            stop = min(max(stop, start + 1), start + BATCH_ROWS, edge)
            yield start, stop
            start = stop


def targets_of(rows: Rows, queues: Mapping[str, Sequence[MessageQueue]]) -> tuple[list[tuple[str, MessageQueue | None]], Ints]:
    """(every target there can be, the index of each row's)."""
    targets: list[tuple[str, MessageQueue | None]] = [(topic, None) for topic in rows.topics]
    first_of = np.zeros(len(rows.topics), dtype=np.int64)
    counts = np.zeros(len(rows.topics), dtype=np.int64)
    for code, topic in enumerate(rows.topics):
        first_of[code], counts[code] = len(targets), len(queues[topic])
        targets += [(topic, queue) for queue in queues[topic]]
    target = rows.topic.copy()
    keyed = (rows.order != NONE) & (rows.queue_id < 0)
    if keyed.any():
        target[keyed] = first_of[rows.topic[keyed]] + rows.order[keyed] % counts[rows.topic[keyed]]
    placed = np.flatnonzero(rows.queue_id >= 0)
    if len(placed):
        target[placed] = placed_targets(rows, placed, queues, {queue: at for at, (_, queue) in enumerate(targets) if queue is not None})
    return targets, target


def placed_targets(rows: Rows, placed: Ints, queues: Mapping[str, Sequence[MessageQueue]], place: Mapping[MessageQueue, int]) -> Ints:
    """Of rows that name their queue: every different (topic, broker, queue) is looked up once."""
    brokers = rows.broker.take(pa.array(placed)).dictionary_encode()
    names = [*brokers.dictionary.to_pylist(), None]
    broker = pc.fill_null(brokers.indices, len(names) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    wanted = np.stack((rows.topic[placed], broker, rows.queue_id[placed]), axis=1)
    different, example, inverse = np.unique(wanted, axis=0, return_index=True, return_inverse=True)
    found = np.zeros(len(different), dtype=np.int64)
    for at, (topic_code, broker_code, queue_id) in enumerate(different.tolist()):
        topic, name = rows.topics[topic_code], names[broker_code]
        there = [queue for queue in queues[topic] if queue.queue_id == queue_id and name in (None, queue.broker_name)]
        if len(there) != 1:
            asked = f"queue {queue_id}" + ("" if name is None else f" on broker {name!r}")
            brokers_there = ", ".join(sorted({queue.broker_name for queue in queues[topic]}))
            why = (
                f"topic {topic!r} has no {asked} that takes writes; it has {len(queues[topic])} queues on {brokers_there}"
                if not there
                else f"topic {topic!r} has a queue {queue_id} on each of {brokers_there}; say which with a column broker"
            )
            raise rows.bad(int(placed[example[at]]), why)
        found[at] = place[there[0]]
    made: Ints = found[inverse.reshape(-1)]
    return made
