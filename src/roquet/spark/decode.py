"""Stored records -> Arrow batches, thousands at a time, only the columns that are asked for.

    chunk ─ batches of a few thousand records ─ AlikeRecords: fronts, places of body, topic and properties ─ one function per column

Nothing here runs once per row, except what cannot be had otherwise: decompressing bodies, and their checksums when asked for.
A record's lengths are trusted only after they were compared with its size, all at once; what does not fit is a BadRecord that
names the message. Layout of a record: `wire/record.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roquet.errors import Damaged, InvalidMessage
from roquet.message import Property, host_text
from roquet.spark.columns import BY_NAME, TIME
from roquet.spark.places import Chunk, Positions, Sizes
from roquet.spark.properties import Properties
from roquet.spark.slices import HEX, WINDOW_MAX, Bytes, Places, at_every_byte, bytes_of, gather
from roquet.wire.codes import TRANSACTION_MASK, SysFlag
from roquet.wire.columns import COLUMNS as FRONT_COLUMNS
from roquet.wire.compression import decompress
from roquet.wire.layout import BLANK_MAGIC, HOSTS_V6, MAGIC_V1, MAGIC_V2, RECORD_MIN, SYS_FLAG_AT
from roquet.wire.record import BadRecord

BATCH_BYTES = 16 * 1024 * 1024
"""A batch of large records has fewer rows; one record is always allowed."""
EXPANDED_MAX = 256 * 1024 * 1024
"""Bytes of decompressed bodies in one batch; above, it is split. A single body has its own limit."""
TIME_MS_MAX = 2**63 // 1000 - 1


TRANSACTIONS = pa.array([None, "prepared", "committed", "rolled_back"], pa.string())


class Expanded(Exception):
    """Decompressed, these bodies are too much for one batch."""


class Decoder:
    """`schema` has columns of `columns.py`, any of them in any order; `broker` fills the column of that name."""

    def __init__(self, schema: pa.Schema, broker: str | None, *, check_crc: bool = False) -> None:
        for field in schema:
            if field.name not in BY_NAME or field.type != BY_NAME[field.name].arrow:
                raise ValueError(f"{field.name} {field.type} is no column of a topic; they are {', '.join(BY_NAME)}")
        self.schema = schema
        self.broker = broker or None
        self.check_crc = check_crc
        self._brokers = pa.nulls(0, pa.string())  # the column of the last batch: mostly the next one has as many rows

    def batches(self, chunk: Chunk, rows_max: int = 4096) -> Iterator[Any]:
        """Record batches of exactly `schema`, of about the same number of rows each: a batch costs as much as a thousand rows, so a small
        one at the end would be dear. Raises BadRecord or Damaged, naming the message."""
        if not len(chunk.positions):
            return
        data = Data(chunk)
        ends = np.cumsum(chunk.sizes, dtype=np.int64)
        start, count = 0, len(ends)
        while start < count:
            done = int(ends[start - 1]) if start else 0
            share = -(-(count - start) // -(-(count - start) // rows_max))
            stop = max(start + 1, min(start + share, int(np.searchsorted(ends, done + BATCH_BYTES, side="right"))))
            # Bytes that other queues' records take between these count too: Arrow reaches over 2 GiB at most.
            reach = int(np.searchsorted(data.stops, int(data.starts[start]) + WINDOW_MAX, side="right"))
            stop = max(start + 1, min(stop, reach))
            yield from self._decode(data, slice(start, stop))
            start = stop

    def _decode(self, data: Data, rows: slice) -> Iterator[Any]:
        try:
            yield self._batch(data, rows)
        except Expanded:
            middle = (rows.start + rows.stop) // 2
            yield from self._decode(data, slice(rows.start, middle))
            yield from self._decode(data, slice(middle, rows.stop))

    def _batch(self, data: Data, rows: slice) -> Any:
        groups = list(data.by_hosts(rows))
        if len(groups) == 1:
            return self._batch_of(groups[0][1])
        back = np.argsort(np.concatenate([chosen for chosen, _ in groups]))
        return pa.concat_batches([self._batch_of(records) for _, records in groups]).take(pa.array(back))

    def _batch_of(self, records: AlikeRecords) -> Any:
        records.check_fronts()
        if self.check_crc:
            records.check_bodies()
        arrays = [COLUMNS[name](records) if name != "broker" else self._broker(records) for name in self.schema.names]
        if not arrays:
            # A batch of no columns still has rows.
            return pa.RecordBatch.from_struct_array(pa.array([{}] * records.count, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _broker(self, records: AlikeRecords) -> Any:
        if len(self._brokers) != records.count:
            self._brokers = pa.repeat(pa.scalar(self.broker, pa.string()), records.count)
        return self._brokers


class Data:
    """A chunk, its places checked: rising, not overlapping, inside."""

    def __init__(self, chunk: Chunk) -> None:
        self.buffer = pa.py_buffer(chunk.data)
        self.bytes: Bytes = np.frombuffer(self.buffer, np.uint8)
        self.starts: Places = np.asarray(chunk.positions, np.int64)
        self.stops: Places = self.starts + chunk.sizes
        self._check(chunk.positions, chunk.sizes)
        self.sys_flags = at_every_byte(self.bytes, ">i4")

    def _check(self, positions: Positions, sizes: Sizes) -> None:
        if len(positions) != len(sizes):
            raise ValueError(f"{len(positions)} positions and {len(sizes)} sizes")
        if int(sizes.min()) < RECORD_MIN:
            row = int(sizes.argmin())
            raise BadRecord(f"{sizes[row]} bytes at {positions[row]} are said to be a record, the smallest has {RECORD_MIN}")
        if int(positions[0]) < 0 or bool((self.starts[1:] < self.stops[:-1]).any()):
            raise BadRecord("records that overlap or go backwards: the queue's entries are damaged; derive them from the log again")
        if int(self.stops[-1]) > self.bytes.size:
            raise BadRecord(f"a record at {positions[-1]} of {sizes[-1]} bytes, but there are only {self.bytes.size} bytes")

    def by_hosts(self, rows: slice) -> Iterator[tuple[Places, AlikeRecords]]:
        """These records by the width of their hosts, mostly all in one group; each with the numbers of its rows, counted from 0."""
        starts, stops = self.starts[rows], self.stops[rows]
        hosts = self.sys_flags[starts + SYS_FLAG_AT].astype(np.int32) & HOSTS_V6
        if not hosts.any():
            yield np.arange(len(starts)), AlikeRecords(self, starts, stops, 0)
            return
        for kind in np.unique(hosts).tolist():
            chosen = np.flatnonzero(hosts == kind)
            yield chosen, AlikeRecords(self, starts[chosen], stops[chosen], kind)


class AlikeRecords:
    """Records of one batch whose hosts are alike. Parts are looked at when the first column needs them."""

    def __init__(self, data: Data, starts: Places, stops: Places, hosts: int) -> None:
        self.data = data
        self.starts = starts
        self.stops = stops
        self.count = len(starts)
        kind = FRONT_COLUMNS[hosts]
        self.front_size = kind.itemsize
        if hosts and (stops - starts < kind.itemsize + 3).any():
            raise BadRecord(f"a record of {int((stops - starts).min())} bytes with IPv6 hosts, the smallest has {kind.itemsize + 3}")
        # As one blob each, which is one copy each; then the fields are looked at in it.
        self.fronts: npt.NDArray[Any] = at_every_byte(data.bytes, f"V{kind.itemsize}")[starts].view(kind)

    # Checks

    def check_fronts(self) -> None:
        self.need(self.fronts["size"] == self.stops - self.starts, "says another size than its queue entry")
        magic = self.magic
        if magic[0] not in (MAGIC_V1, MAGIC_V2) or (magic != magic[0]).any():
            self.need((magic == MAGIC_V1) | (magic == MAGIC_V2), "has no record's magic number")

    def check_bodies(self) -> None:
        data = memoryview(self.data.buffer)
        found = [crc32(data[at:end]) for at, end in zip(self.body_at.tolist(), self.body_end.tolist(), strict=True)]
        same = np.array(found, np.uint32) & 0x7FFFFFFF == self.fronts["crc"]
        self.need(same | (self.body_at == self.body_end), "has a body that does not fit its checksum")

    def need(self, holds: npt.NDArray[np.bool_], trouble: str) -> None:
        if not holds.all():
            row = int(np.flatnonzero(~holds)[0])
            raise BadRecord(f"{self.name_of(row)} {trouble}: the files are damaged there")

    def name_of(self, row: int) -> str:
        """Which message this is, as far as its front tells: whoever reads this wants to find it."""
        front = self.fronts[row]
        if front["magic"] == BLANK_MAGIC:
            return f"the blank end of a log file, {self.starts[row]} bytes in,"
        try:
            at = int(self.body_at[row] + front["body_size"]) + (front["magic"] == MAGIC_V2)
            size = int(self.data.bytes[at])
            topic = self.data.bytes[at + 1 : at + 1 + size].tobytes().decode("utf-8", "replace") if 0 < size < 128 else "?"
        except (IndexError, OverflowError):
            topic = "?"
        return f"{topic[:130]}/{front['queue_id']} offset {front['queue_offset']} (log offset {front['physical_offset']})"

    # Places

    @property
    def magic(self) -> npt.NDArray[np.uint32]:
        found: npt.NDArray[np.uint32] = self.fronts["magic"]
        return found

    @cached_property
    def sys_flag(self) -> npt.NDArray[np.int32]:
        return self.fronts["sys_flag"].astype(np.int32)

    @property
    def body_at(self) -> Places:
        return self.starts + self.front_size

    @cached_property
    def topic_width(self) -> Any:
        """Bytes of the topic's length."""
        magic = self.magic
        return 1 if magic[0] == MAGIC_V1 and (magic == magic[0]).all() else np.where(magic == MAGIC_V1, 1, 2)

    @cached_property
    def body_end(self) -> Places:
        sizes = self.fronts["body_size"].astype(np.int64)
        ends: Places = self.body_at + sizes
        self.need((sizes >= 0) & (ends + self.topic_width + 2 <= self.stops), "says a body that is longer than the record")
        return ends

    @property
    def topic_at(self) -> Places:
        found: Places = self.body_end + self.topic_width
        return found

    @cached_property
    def topic_end(self) -> Places:
        data = self.data.bytes
        sizes = data[self.topic_at - 1].astype(np.int64)
        if isinstance(self.topic_width, int):
            sound = sizes < 128
        else:
            wide = self.topic_width == 2
            sizes = sizes + np.where(wide, data[self.body_end].astype(np.int64) << 8, 0)
            sound = sizes < np.where(wide, 32768, 128)
        ends: Places = self.topic_at + sizes
        self.need(sound & (ends + 2 <= self.stops), "says a topic that is longer than the record")
        return ends

    @cached_property
    def properties_at(self) -> Places:
        at: Places = self.topic_end + 2
        sizes = at_every_byte(self.data.bytes, ">u2")[self.topic_end].astype(np.int64)
        self.need((sizes < 32768) & (at + sizes == self.stops), "says properties of another length than is left for them")
        return at

    @cached_property
    def properties(self) -> Properties:
        return Properties(self.data.buffer, self.properties_at, self.stops)

    def raw_properties(self) -> Any:
        return gather(self.data.buffer, self.properties_at, self.stops, pa.binary())

    # Columns that need more than a line

    def topics(self) -> Any:
        found = gather(self.data.buffer, self.topic_at, self.topic_end, pa.string())
        if bytes_of(found).size and bytes_of(found).max() > 127:
            try:
                found.validate(full=True)
            except pa.ArrowInvalid:
                raise BadRecord(f"a topic near {self.name_of(0)} is not UTF-8: the files are damaged there") from None
        return found

    def bodies(self) -> Any:
        batched = self.sys_flag & SysFlag.INNER_BATCH != 0
        if batched.any():
            raise Damaged(
                f"{self.name_of(int(batched.argmax()))} is a batch that the broker kept as one record, which RocketMQ 5 does for topics "
                "of type BatchCQ; these cannot be read here yet"
            )
        packed = self.sys_flag & SysFlag.COMPRESSED != 0
        if not packed.any():
            return gather(self.data.buffer, self.body_at, self.body_end, pa.binary())
        plain = np.flatnonzero(~packed)
        made = [gather(self.data.buffer, self.body_at[plain], self.body_end[plain], pa.binary())]
        chosen = np.flatnonzero(packed)
        made.append(pa.array(self._expand(chosen), pa.binary()))
        return pa.concat_arrays(made).take(pa.array(np.argsort(np.concatenate([plain, chosen]))))

    def _expand(self, rows: Places) -> list[bytes]:
        made: list[bytes] = []
        size = 0
        data = memoryview(self.data.buffer)
        for row in rows.tolist():
            try:
                made.append(decompress(bytes(data[self.body_at[row] : self.body_end[row]]), int(self.sys_flag[row])))
            except InvalidMessage as error:
                raise Damaged(f"{self.name_of(row)}: {error}") from None
            size += len(made[-1])
            if size > EXPANDED_MAX and self.count > 1:
                raise Expanded
        return made

    def host(self, name: str) -> Any:
        hosts = np.ascontiguousarray(self.fronts[name])
        width = hosts.dtype.itemsize
        # Of one queue there are few different ones. Void cannot be compared, so they are looked at as numbers, or as texts.
        hosts = hosts.view("<u8" if width == 8 else f"S{width}")
        if (hosts == hosts[0]).all():
            return pa.repeat(pa.scalar(host_text(raw_host(hosts[0], width)), pa.string()), self.count)
        different, which = np.unique(hosts, return_inverse=True)
        return pa.array([host_text(raw_host(one, width)) for one in different], pa.string()).take(pa.array(which))

    def message_ids(self) -> Any:
        host = np.ascontiguousarray(self.fronts["store_host"]).view(np.uint8).reshape(self.count, -1)
        offset = np.ascontiguousarray(self.fronts["physical_offset"]).view(np.uint8).reshape(self.count, 8)
        digits = HEX[np.concatenate([host, offset], axis=1)]
        width = digits.shape[1] * 2
        places = np.arange(0, (self.count + 1) * width, width, dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), self.count, [None, pa.py_buffer(places), pa.py_buffer(digits)])

    @cached_property
    def transactions(self) -> npt.NDArray[np.int32]:
        """0 none, 1 prepared, 2 committed, 3 rolled back."""
        return (self.sys_flag & TRANSACTION_MASK) >> 2

    def in_transaction(self, values: Callable[[], Any], kind: pa.DataType) -> Any:
        """These values, null for the messages that are in none: mostly all of them."""
        inside = self.transactions > 0
        if not inside.any():
            return pa.nulls(self.count, kind)
        return pc.if_else(pa.array(inside), values(), pa.scalar(None, kind))

    def deliver_times(self) -> Any:
        due, asked = (numbers(self.properties.value(name), 15) for name in (Property.TIMER_OUT_MS, Property.TIMER_DELIVER_MS))
        return pc.multiply(pc.coalesce(due, asked), 1000).cast(TIME)

    def delay_levels(self) -> Any:
        levels = numbers(self.properties.value(Property.DELAY), 10)
        return pc.if_else(pc.less(levels, 2**31), levels, None).cast(pa.int32())

    def transaction_ids(self) -> Any:
        return pc.coalesce(self.properties.value(Property.TRANSACTION_ID), self.properties.value(Property.UNIQUE_KEY))

    def number(self, name: str, kind: npt.DTypeLike) -> Any:
        return pa.array(self.fronts[name].astype(kind))

    def time(self, name: str) -> Any:
        ms = self.fronts[name].astype(np.int64)
        if int(ms.max()) > TIME_MS_MAX or int(ms.min()) < -TIME_MS_MAX:  # what a producer says is not always a time
            far = (ms > TIME_MS_MAX) | (ms < -TIME_MS_MAX)
            return pa.array(np.where(far, 0, ms) * 1000, mask=far).cast(TIME)
        return pa.Array.from_buffers(TIME, self.count, [None, pa.py_buffer(ms * 1000)])


def raw_properties(chunk: Chunk) -> list[bytes]:
    """The properties of each record as stored: what SQL filters judge by, one at a time."""
    found: list[bytes] = [b""] * len(chunk.positions)
    if found:
        for chosen, records in Data(chunk).by_hosts(slice(None)):
            records.check_fronts()
            for row, raw in zip(chosen.tolist(), records.raw_properties().to_pylist(), strict=True):
                found[row] = raw
    return found


def raw_host(value: Any, width: int) -> bytes:
    return int(value).to_bytes(8, "little") if width == 8 else bytes(value).ljust(width, b"\0")


def numbers(texts: Any, digits: int) -> Any:
    """Texts of that many digits at most as int64; null for the others."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.int64())
    sound = pc.match_substring_regex(texts, f"^[0-9]{{1,{digits}}}$")
    return pc.if_else(sound, texts, pa.scalar(None, pa.string())).cast(pa.int64())


COLUMNS: dict[str, Callable[[AlikeRecords], Any]] = {
    "topic": AlikeRecords.topics,
    "queue_id": lambda records: records.number("queue_id", np.int32),
    "queue_offset": lambda records: records.number("queue_offset", np.int64),
    "body": AlikeRecords.bodies,
    "keys": lambda records: records.properties.value(Property.KEYS),
    "tags": lambda records: records.properties.value(Property.TAGS),
    "properties": lambda records: records.properties.map(),
    "born_time": lambda records: records.time("born_ms"),
    "born_host": lambda records: records.host("born_host"),
    "store_time": lambda records: records.time("store_ms"),
    "store_host": lambda records: records.host("store_host"),
    "unique_id": lambda records: records.properties.value(Property.UNIQUE_KEY),
    "message_id": AlikeRecords.message_ids,
    "reconsume_times": lambda records: records.number("reconsumed", np.int32),
    "order_key": lambda records: records.properties.value(Property.SHARDING_KEY),
    "delay_level": AlikeRecords.delay_levels,
    "deliver_time": AlikeRecords.deliver_times,
    "transaction": lambda records: records.in_transaction(lambda: TRANSACTIONS.take(pa.array(records.transactions)), pa.string()),
    "transaction_id": lambda records: records.in_transaction(records.transaction_ids, pa.string()),
    "prepared_offset": lambda records: records.in_transaction(lambda: records.number("prepared", np.int64), pa.int64()),
    "flag": lambda records: records.number("flag", np.int32),
    "sys_flag": lambda records: pa.array(records.sys_flag),
    "physical_offset": lambda records: records.number("physical_offset", np.int64),
    "stored_size": lambda records: records.number("size", np.int32),
}
