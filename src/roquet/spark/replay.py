"""Which rows of an archive or a topic are sent again, and what they look like then. Pure, over Arrow.

A message that is sent again says so: REPLAY_OF is the id of the message it was, REPLAY_RUN the name of the run. Its unique id
comes from both, so the same run gives the same message the same id, however often it is interrupted; a consumer that
remembers ids (roquet.client.idempotent) drops what a resumed run sends twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roquet.errors import ClientError, Refused
from roquet.message import MessageQueue
from roquet.routing.sql92 import compiled
from roquet.spark.columns import MAP, TIME
from roquet.spark.encode import Rows, hexed
from roquet.wire.names import check_send_topic, is_system_topic

REPLAY_OF = "REPLAY_OF"
REPLAY_RUN = "REPLAY_RUN"

Stretch = tuple[int, int]
Done = dict[MessageQueue, list[Stretch]]
"""Of each queue, the offsets that need not be looked at again: start <= offset < stop, sorted, apart from each other."""

COLUMNS = (
    "broker", "queue_id", "queue_offset", "body", "keys", "tags", "properties", "store_time", "unique_id", "message_id", "order_key",
    "flag",
)  # fmt: skip
"""What is read of a message to send it again. The delay is not among them: what was due then is due now."""


ENTRIES = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]))


class ReplayError(ClientError):
    """A replay cannot do what it was asked for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages. What is not said does not matter."""

    topics: tuple[str, ...]
    since_ms: int | None = None
    until_ms: int | None = None
    """Not included."""
    keys: tuple[str, ...] = ()
    """One of these."""
    tags: str | None = None
    """paid || shipped"""
    sql: str | None = None
    """SQL92 over properties, as consumers have it."""
    where: str | None = None
    """A Spark SQL expression over the columns."""
    queue_id: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    """Not included."""

    def mask(self, batch: Any) -> npt.NDArray[np.bool_]:
        """Of a batch with the columns above, everything but `where`."""
        found = np.ones(batch.num_rows, np.bool_)

        def narrow(other: Any) -> None:
            nonlocal found
            found &= pc.fill_null(other, False).to_numpy(zero_copy_only=False)

        if self.since_ms is not None:
            narrow(pc.greater_equal(batch["store_time"], pa.scalar(self.since_ms * 1000, TIME)))
        if self.until_ms is not None:
            narrow(pc.less(batch["store_time"], pa.scalar(self.until_ms * 1000, TIME)))
        if self.queue_id is not None:
            narrow(pc.equal(batch["queue_id"], self.queue_id))
        if self.from_offset is not None:
            narrow(pc.greater_equal(batch["queue_offset"], self.from_offset))
        if self.to_offset is not None:
            narrow(pc.less(batch["queue_offset"], self.to_offset))
        if self.keys:
            padded = pc.binary_join_element_wise("", batch["keys"], "", " ")
            narrow(any_of([pc.match_substring(padded, f" {key} ") for key in self.keys]))
        if self.tags is not None and self.tags.strip() != "*":
            narrow(pc.is_in(batch["tags"], value_set=pa.array([tag.strip() for tag in self.tags.split("||")], pa.string())))
        if self.sql is not None and found.any():
            judge = compiled(self.sql)
            maps = batch["properties"].filter(pa.array(found)).to_pylist()
            raws = ["\x02".join(f"{name}\x01{value}" for name, value in entries or ()).encode() for entries in maps]
            found[found] = [judge.takes(raw, 0, len(raw)) for raw in raws]
        return found


def of_run(batch: Any, run: str) -> npt.NDArray[np.bool_]:
    """Which messages this run has sent itself: it must not send them once more when its target is its source."""
    if "properties" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.bool_)
    mine = pc.equal(pc.map_lookup(batch["properties"], pa.scalar(REPLAY_RUN), "last"), run)
    found: npt.NDArray[np.bool_] = pc.fill_null(mine, False).to_numpy(zero_copy_only=False)
    return found


def any_of(masks: Sequence[Any]) -> Any:
    whole = masks[0]
    for mask in masks[1:]:
        whole = pc.or_kleene(whole, mask)
    return whole


def within(offsets: npt.NDArray[np.int64], stretches: Sequence[Stretch]) -> npt.NDArray[np.bool_]:
    """Which offsets lie in one of the stretches."""
    if not stretches:
        return np.zeros(len(offsets), np.bool_)
    starts, stops = np.array([start for start, _ in stretches]), np.array([stop for _, stop in stretches])
    at = np.searchsorted(starts, offsets, side="right") - 1
    return (at >= 0) & (offsets < stops[np.maximum(at, 0)])


def joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Sorted, and what touches put together."""
    found: list[Stretch] = []
    for start, stop in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return found


def added(done: Done, more: Mapping[MessageQueue, Sequence[Stretch]]) -> Done:
    return done | {queue: joined([*done.get(queue, []), *stretches]) for queue, stretches in more.items()}


def covers(stretches: Sequence[Stretch], start: int, stop: int) -> bool:
    return any(low <= start and stop <= high for low, high in stretches)


def check_target(topic: str) -> None:
    try:
        check_send_topic(topic)
    except Refused as refusal:
        raise ReplayError(f"cannot send to {topic}: {refusal.remark}") from None
    if is_system_topic(topic):
        raise ReplayError(f"{topic} is a topic of the system; its messages have effects of their own. Choose another with --to-topic")


# ---- what is sent ---------------------------------------------------------------------------------------------------------


def origins(batch: Any, topic: str) -> Any:
    """What each message is known by: its producer's id, else the broker's, else its place."""
    names = batch.schema.names
    place = pc.binary_join_element_wise(
        topic, pc.fill_null(batch["broker"], ""), batch["queue_id"].cast(pa.string()), batch["queue_offset"].cast(pa.string()), "/"
    )
    known = [batch[name] for name in ("unique_id", "message_id") if name in names]
    return pc.coalesce(*known, place) if known else place


def unique_ids(run: str, origin: Any) -> npt.NDArray[np.uint8]:
    """count x 32 characters, from the run's name and the origin.

    An origin of 32 hexadecimal digits, as all clients make them, is mixed with the hash of the run's name: different ones
    stay different. Anything else is hashed, one by one.
    """
    key = np.frombuffer(hashlib.blake2b(run.encode(), digest_size=16, person=b"roquet-replay").digest(), np.uint8)
    made = np.empty((len(origin), 16), np.uint8)
    plain = pc.match_substring_regex(origin, "^[0-9A-Fa-f]{32}$").to_numpy(zero_copy_only=False)
    if plain.any():
        text = b"".join(origin.filter(pa.array(plain)).cast(pa.binary()).to_pylist())
        made[plain] = np.frombuffer(bytes.fromhex(text.decode()), np.uint8).reshape(-1, 16) ^ key
    for at in np.flatnonzero(~plain).tolist():
        digest = hashlib.blake2b(origin[at].as_py().encode(), digest_size=16, key=key.tobytes()).digest()
        made[at] = np.frombuffer(digest, np.uint8)
    return hexed(made)


def with_ids(rows: Rows, ids: npt.NDArray[np.uint8]) -> Rows:
    """The same messages with these unique ids: `encode` writes the id as the last 32 bytes of the properties."""
    return replace(rows, frames=ending(rows.frames, ids))


def ending(values: Any, tails: npt.NDArray[np.uint8]) -> Any:
    """Every value with its last bytes replaced."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2], np.uint8).copy()
    data[(offsets[1:, None] - tails.shape[1]) + np.arange(tails.shape[1])] = tails
    return pa.Array.from_buffers(values.type, len(values), [None, values.buffers()[1], pa.py_buffer(data)], offset=values.offset)


def marked(batch: Any, origin: Any, run: str) -> Any:
    """The map of properties with the two that say where a message comes from; those of an earlier replay are replaced."""
    count = batch.num_rows
    maps = batch["properties"] if "properties" in batch.schema.names else pa.nulls(count, MAP)
    lists = maps.cast(ENTRIES)
    entries, rows = pc.list_flatten(lists), pc.list_parent_indices(lists)
    names, values = entries.field("key"), entries.field("value")
    keep = pc.invert(pc.is_in(names, value_set=pa.array([REPLAY_OF, REPLAY_RUN])))
    names, values, rows = names.filter(keep), values.filter(keep), rows.filter(keep).to_numpy()
    kept = np.bincount(rows, minlength=count)
    ends = np.cumsum(kept + 2)
    starts = np.concatenate(([0], ends))
    index = np.empty(int(ends[-1]) if count else 0, np.int64)
    extra = np.zeros(len(index), np.bool_)
    extra[ends - 1] = extra[ends - 2] = True
    index[~extra] = np.arange(len(names))
    name_index, value_index = index, index.copy()
    name_index[ends - 2], name_index[ends - 1] = len(names), len(names) + 1
    value_index[ends - 2], value_index[ends - 1] = len(values) + np.arange(count), len(values) + count
    all_names = pa.concat_arrays([names, pa.array([REPLAY_OF, REPLAY_RUN])])
    all_values = pa.concat_arrays([values, origin, pa.array([run])])
    return pa.MapArray.from_arrays(
        pa.array(starts.astype(np.int32)), all_names.take(pa.array(name_index)), all_values.take(pa.array(value_index))
    )


def outgoing(batch: Any, topic: str, run: str, queues: Sequence[MessageQueue] | None) -> tuple[Any, npt.NDArray[np.uint8]]:
    """What the encoder takes, and the ids. `queues`: of the target, to keep what was in one queue in one queue."""
    count = batch.num_rows
    origin = origins(batch, topic)
    names = batch.schema.names
    kept = {name: batch[name] for name in ("body", "keys", "tags", "order_key", "flag") if name in names}
    kept["properties"] = marked(batch, origin, run)
    if queues is not None:
        place = pa.array(batch["queue_id"].to_numpy() % len(queues))
        kept["queue_id"] = pa.array([queue.queue_id for queue in queues], pa.int32()).take(place)
        kept["broker"] = pa.array([queue.broker_name for queue in queues], pa.string()).take(place)
        kept.pop("order_key", None)
    return pa.RecordBatch.from_arrays(list(kept.values()), names=list(kept)), unique_ids(run, origin)[:count]


class Pace:
    """No more than `rate` a second, from the beginning on. The caller waits as long as it says."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate, self._begun, self._sent = rate, now, 0

    def delay(self, count: int, now: float) -> float:
        """Seconds to wait before `count` more are sent."""
        if self._rate is None:
            return 0.0
        due = self._begun + self._sent / self._rate
        self._sent += count
        return max(0.0, due - now)

    @property
    def rows_max(self) -> int:
        """So few at a time that it does not come in bursts."""
        return 4_096 if self._rate is None else max(1, min(4_096, int(self._rate / 10)))
