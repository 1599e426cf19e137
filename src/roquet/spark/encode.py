"""Rows of a DataFrame as messages: an Arrow batch in, bodies of send requests out. Pure, and nothing is done row by row.

A batch send (request 320, see wire/batch.py) is messages one after another, each a header, the body and the properties.
Here each part is one Arrow array over all rows; joined element by element they make an array whose values buffer is, for
any run of rows, already the body of a request:

    header 20 | body n | size of properties 2 | properties n     row 0
    header 20 | body n | ...                                     row 1       bytes offsets[a]:offsets[b] are rows a to b - 1

All parts are joined at once: every join copies all bytes, so what has the same size in all rows (names, separators, ids) is put
together with numpy before.

Rows that no batch may hold (delayed ones, those to a retry topic, very large ones) become requests of their own.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roquet.errors import ClientError, InvalidMessage, Refused
from roquet.message import DELAY_LEVEL_MAX, Property
from roquet.spark.columns import BY_NAME
from roquet.spark.slices import HEX, offsets_of
from roquet.wire.columns import java_hashes
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.names import check_send_topic, is_retry_topic

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.uint8]
"""Rows x bytes: values that all have one size."""
Part: TypeAlias = bytes | Table | pa.Array
"""Of every row: the same bytes, or its own."""
Bools = npt.NDArray[np.bool_]

BODY_MAX = 4 * 1024 * 1024
BATCH_BYTES_MAX = 1024 * 1024
"""A row that takes more is sent by itself."""
ROWS_MAX = 1 << 32
"""Of one partition: the number of a row is four bytes of its id."""

NONE = -1
BLOCK_BYTES = 256 * 1024

FRAME = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
"""Magic and crc stay 0, as upstream's clients write them: the broker computes its own."""
LENGTH = 2
"""Bytes of the size of the properties, which stands before them."""
EMPTY = pa.scalar(b"", pa.binary())

TEXT = ("string", "large_string")
BYTES = ("binary", "large_binary")
WHOLE = ("int8", "int16", "int32", "int64")
COLUMNS: dict[str, tuple[tuple[str, ...], str]] = {
    "body": ((*BYTES, *TEXT), "the message: binary, or string, which is written as UTF-8"),
    "topic": (TEXT, "where it goes; the option topic is stronger"),
    "tags": (TEXT, "the tag, by which consumers filter"),
    "keys": ((*TEXT, "list"), "a string (several keys with blanks between) or an array of strings"),
    "properties": (("map",), "map<string,string>; names of the system in it are left out"),
    "delay_level": (WHOLE, "deliver it after the broker's level of that number"),
    "deliver_time": (("timestamp",), "deliver it at that time"),
    "order_key": (TEXT, "rows with one key go to one queue, in their order"),
    "queue_id": (WHOLE, "to exactly this queue"),
    "broker": (TEXT, "of this broker; needed with queue_id when the topic is on several"),
    "flag": (WHOLE, "a number for consumers"),
}
"""What the sink takes: column -> (Arrow types, what it is)."""

KEPT = frozenset(
    {
        Property.KEYS, Property.TAGS, Property.SHARDING_KEY, Property.BUYER_ID, Property.DLQ_ORIGIN_TOPIC, Property.DLQ_ORIGIN_MESSAGE_ID,
        Property.START_DELIVER_TIME, Property.TIMER_DEQUEUE_MS,
    }
)  # fmt: skip
SYSTEM = tuple(sorted(value for name, value in vars(Property).items() if name.isupper() and value not in KEPT))
"""Properties that brokers and clients write. In a map that was read from a topic they tell of the old message and would be
untrue of the new one (its id, its delay, its retries), so they are left out; columns say what the new one is to have."""


class BadRow(InvalidMessage):
    """A row that cannot be a message. The text names the partition, the row and its keys. Change the query; a retry cannot help."""


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Raises ClientError for columns the sink does not know, or of a type it cannot write.

    Columns of the source that tell where a message was (its offset, its store time...) are passed over.
    """
    for field in schema:
        if field.name not in COLUMNS:
            if field.name in BY_NAME:
                continue
            raise ClientError(f"column {field.name!r} cannot be written; known are {', '.join(COLUMNS)}. Drop or rename it")
        types, about = COLUMNS[field.name]
        kind = str(field.type).partition("[")[0].partition("<")[0]
        if kind not in types or (kind == "timestamp" and field.type.tz is None):
            raise ClientError(f"column {field.name!r} is {field.type}, expected {' or '.join(types)}: {about}")
    if "body" not in schema.names:
        raise ClientError(f"there is no column body, only {', '.join(schema.names)}; say what to send: .withColumn('body', ...)")
    if topic is None and "topic" not in schema.names:
        raise ClientError("no topic: give the option topic, or a column topic")
    if topic is not None:
        try:
            check_send_topic(topic)
        except Refused as refusal:
            raise ClientError(f"option topic: {refusal.remark}") from None


def id_prefix(*parts: object) -> bytes:
    """The 12 bytes that the ids of one task share; the row's number makes the other 4.

    88 bits of a hash: among a thousand million tasks the chance that two have the same is about one in a thousand million.
    An id has the shape of upstream's (see wire/ids.py), so every client takes it. Its 4 bytes of time begin with a 0: mqadmin
    reads there how long after the month began a message was sent, and looks for none that is older.
    """
    text = "\x00".join(str(part) for part in parts)
    hashed = hashlib.blake2b(text.encode(), digest_size=11, person=b"roquet-sink").digest()
    return hashed[:10] + b"\x00" + hashed[10:]


def hexed(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """count x width bytes -> count x 2 width digits, in upper case."""
    count, width = rows.shape
    return np.frombuffer(rows.tobytes().hex().upper().encode(), dtype=np.uint8).reshape(count, 2 * width)


def unique_ids(prefix: bytes, first: int, count: int) -> Table:
    """count x 32 characters: the ids of rows first, first + 1..."""
    return side_by_side(id_parts(prefix, first, count), count)


def id_parts(prefix: bytes, first: int, count: int) -> list[bytes | Table]:
    """The same in two parts: what all share, and the digits of each row's number."""
    numbers = np.arange(first, first + count, dtype=np.uint64).astype(">u4")
    return [prefix.hex().upper().encode(), HEX[numbers.view(np.uint8)].view(np.uint8).reshape(count, 8)]


@dataclass(slots=True)
class Rows:
    """The rows of one Arrow batch, checked and encoded; which queues they go to is not decided yet."""

    partition: int
    first: int
    """Number of the first one in its partition."""
    topics: list[str]
    topic: Ints
    """Index into topics."""
    body: pa.Array
    body_sizes: Ints
    flag: Ints
    frames: pa.Array
    """Each row as a batch holds it."""
    alone: Bools
    """Cannot travel in a batch."""
    order: Ints
    """|hash of the order key|, or NONE."""
    queue_id: Ints
    broker: pa.Array
    keys: pa.Array

    def __len__(self) -> int:
        return len(self.topic)

    def properties(self, row: int) -> bytes:
        """As text of the protocol. They are the end of the row's frame."""
        frame: bytes = self.frames[row].as_py()
        return frame[FRAME.itemsize + int(self.body_sizes[row]) + LENGTH :]

    def name(self, row: int) -> str:
        return row_name(self.partition, self.first + row, self.keys[row].as_py())

    def bad(self, row: int, why: str) -> BadRow:
        return BadRow(f"{self.name(row)}: {why}")


def row_name(partition: int, number: int, keys: bytes | None) -> str:
    known = "" if not keys else f" (keys {keys.decode('utf-8', 'replace')[:200]!r})"
    return f"row {number} of partition {partition}{known}"


def encode(batch: pa.RecordBatch, *, partition: int, first: int, prefix: bytes, topic: str | None = None) -> Rows:
    """The rows of a batch as messages. `first`: how many rows of the partition came before. Raises BadRow."""
    count = batch.num_rows
    if first + count > ROWS_MAX:
        raise ClientError(f"partition {partition} has more than {ROWS_MAX} rows; use more partitions: .repartition(...)")
    keys = keys_of(batch, partition, first)

    def refuse(mask: Any, why: Callable[[int], str]) -> None:
        bad = np.flatnonzero(mask if isinstance(mask, np.ndarray) else truth(mask))
        if len(bad):
            at = int(bad[0])
            raise BadRow(f"{row_name(partition, first + at, keys[at].as_py())}: {why(at)}")

    given = frozenset(batch.schema.names)  # what is not there needs no look
    body = column(batch, "body", pa.binary())
    body_sizes = sizes_of(body)
    if body.null_count:
        refuse(body.is_null(), lambda _: "the body is null; every message has one")
    if count and not 0 < int(body_sizes.min()) <= int(body_sizes.max()) <= BODY_MAX:
        refuse(body_sizes == 0, lambda _: "the body is empty; put at least one byte into it")
        refuse(body_sizes > BODY_MAX, lambda at: f"body of {body_sizes[at]} bytes, limit is {BODY_MAX}; send less, or a reference to it")

    names, codes = topics_of(batch, topic, refuse)
    texts = {Property.TAGS: "tags", Property.KEYS: "keys", Property.SHARDING_KEY: "order_key"}
    columns: dict[str, pa.Array] = {}
    for name, title in texts.items():
        if title in given:
            columns[name] = keys if title == "keys" else blank_is_null(column(batch, title, pa.binary()))
    for name, values in columns.items():
        refuse(separated(values), partial(holds_separator, texts[name], values))
    level, due = numbers(batch, "delay_level", 0), deliver_ms(batch)
    delayed = np.zeros(count, dtype=np.bool_)
    if given & {"delay_level", "deliver_time"}:
        delayed = (level > 0) | (due != NONE)
        refuse((level < 0) | (level > DELAY_LEVEL_MAX), lambda at: f"delay_level is {level[at]}, allowed are 0 to {DELAY_LEVEL_MAX}")
        refuse((due != NONE) & (due <= 0), lambda _: "deliver_time is before 1970")
        refuse((due != NONE) & (level > 0), lambda _: "delay_level and deliver_time exclude each other; give one of them")
    flag = numbers(batch, "flag", 0)
    if "flag" in given:
        refuse((flag < -(1 << 31)) | (flag >= 1 << 31), lambda at: f"flag {flag[at]} does not fit 32 bits")
    queue_id, broker = numbers(batch, "queue_id", NONE), column(batch, "broker", pa.string())
    if "broker" in given:
        lone = (queue_id < 0) & truth(broker.is_valid())
        refuse(lone, lambda _: "a broker is given and no queue_id; give both, or leave the broker out")

    entries = [*columns.items()]
    if "properties" in given:
        entries.insert(0, ("", mapped(batch, columns, refuse)))
    if delayed.any():
        entries.append((Property.DELAY, digits(level, level > 0)))
        entries.append((Property.TIMER_DELIVER_MS, digits(due, due != NONE)))
    entries = [(name, values) for name, values in entries if values.null_count < count]
    property_sizes = properties_sizes(entries, count)
    if count and int(property_sizes.max()) > PROPERTIES_MAX:
        refuse(
            property_sizes > PROPERTIES_MAX,
            lambda at: f"properties of {property_sizes[at]} bytes, limit is {PROPERTIES_MAX}; move the large ones into the body",
        )
    retry = np.array([is_retry_topic(name) for name in names], dtype=np.bool_)
    sizes = body_sizes + property_sizes + FRAME.itemsize + LENGTH
    alike = bool(count) and "flag" not in given and same_in_all(body_sizes) and same_in_all(sizes)
    header = np.zeros(1 if alike else count, dtype=FRAME)
    header["size"], header["flag"], header["body"] = sizes[: len(header)], flag[: len(header)], body_sizes[: len(header)]
    frames = frames_of(header, body, property_sizes, entries, id_parts(prefix, first, count))
    alone = delayed | (sizes > BATCH_BYTES_MAX)
    if retry.any():
        alone |= retry[codes]
    order = order_hash(columns[Property.SHARDING_KEY]) if "order_key" in given else np.full(count, NONE, dtype=np.int64)
    return Rows(
        partition, first, names, codes, body, body_sizes, flag, frames, alone, order, queue_id, broker, keys,
    )  # fmt: skip


def first_of_two(remark: str, _: int) -> str:
    return remark


def holds_separator(title: str, values: pa.Array, at: int) -> str:
    return f"{title} {values[at].as_py()!r} holds 0x00, which cannot be stored, or 0x01 or 0x02, which separate properties"


# ---- the parts of a message, over all rows --------------------------------------------------------------------------------

Refuse = Callable[[Any, Callable[[int], str]], None]


Entries = Sequence[tuple[str, pa.Array]]
"""The properties of all rows but their id, in order: name and values, null where a row has none. Without a name: whole entries as text."""

ID_NAME = f"{Property.UNIQUE_KEY}\x01".encode()
ID_SIZE = 32
END = b"\x02"


def properties_sizes(entries: Entries, count: int) -> Ints:
    """Of each row: its entries, each with the separator behind it, and its id."""
    made = np.full(count, len(ID_NAME) + ID_SIZE, dtype=np.int64)
    for name, values in entries:
        around = len(before_value(name)) + len(END)
        made += sizes_of(values) + (around if not values.null_count else truth(values.is_valid()) * around)
    return made


def before_value(name: str) -> bytes:
    return f"{name}\x01".encode() if name else b""


def frames_of(header: npt.NDArray[Any], body: pa.Array, property_sizes: Ints, entries: Entries, ids: Sequence[Part]) -> pa.Array:
    """Each row as wire/batch.py has it. One header alone is every row's."""
    lengths = property_sizes[: len(header)].astype(">u2")
    if len(header) < len(body):
        parts: list[Part] = [header.tobytes(), body, lengths.tobytes()]
    else:
        parts = [header.view(np.uint8).reshape(-1, FRAME.itemsize), body, lengths.view(np.uint8).reshape(-1, LENGTH)]
    for name, values in entries:
        parts += [whole_entry(name, values)] if values.null_count else [before_value(name), values, END]
    return join([*parts, ID_NAME, *ids], len(body))


def topics_of(batch: pa.RecordBatch, topic: str | None, refuse: Refuse) -> tuple[list[str], Ints]:
    if topic is not None:
        return [topic], np.zeros(batch.num_rows, dtype=np.int64)
    values = column(batch, "topic", pa.string())
    refuse(values.is_null(), lambda _: "the topic is null; give it one, or the option topic for all rows")
    coded = values.dictionary_encode()
    names: list[str] = coded.dictionary.to_pylist()
    codes: Ints = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    for code, name in enumerate(names):
        try:
            check_send_topic(name)
        except Refused as refusal:
            refuse(codes == code, partial(first_of_two, refusal.remark))
    return names, codes


def keys_of(batch: pa.RecordBatch, partition: int, first: int) -> pa.Array:
    """KEYS as it is stored: keys with a blank between. Null where there is none."""
    at = batch.schema.get_field_index("keys")
    if at < 0 or not pa.types.is_list(batch.column(at).type):
        return blank_is_null(column(batch, "keys", pa.binary()))
    lists = batch.column(at)
    words = lists.flatten().cast(pa.string())
    wrong = truth(pc.fill_null(pc.or_(pc.equal(words, ""), pc.match_substring_regex(words, r"[\s\x1c-\x1f\x85\xa0]")), True))
    if wrong.any():
        word = int(np.flatnonzero(wrong)[0])
        row = int(pc.list_parent_indices(lists)[word].as_py())
        named = row_name(partition, first + row, None)
        raise BadRow(f"{named}: key {words[word].as_py()!r} is empty or holds white space, which separates keys")
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return blank_is_null(pc.binary_join(pa.ListArray.from_arrays(starts(counts), words), " ").cast(pa.binary()))


def mapped(batch: pa.RecordBatch, overridden: Mapping[str, pa.Array], refuse: Refuse) -> pa.Array:
    """The properties column as text, without names of the system and those that a column of the row gives. Null when none is left."""
    at = batch.schema.get_field_index("properties")
    count = batch.num_rows
    if at < 0:
        return pa.nulls(count, pa.binary())
    maps = batch.column(at)
    offsets = maps.offsets.to_numpy(zero_copy_only=False)
    begin, end = int(offsets[0]), int(offsets[-1])
    names, values = (side.slice(begin, end - begin).cast(pa.string()) for side in (maps.keys, maps.items))
    row = np.repeat(np.arange(count), np.diff(offsets))
    keep = ~truth(pc.is_in(names, value_set=pa.array(SYSTEM))) & truth(maps.is_valid())[row]
    for name, given in overridden.items():
        keep &= ~(truth(pc.equal(names, name)) & truth(given.is_valid())[row])

    def refuse_entry(mask: Bools, why: str) -> None:
        bad = np.flatnonzero(mask & keep)
        if len(bad):
            entry_at = int(bad[0])
            shown = f"property {names[entry_at].as_py()!r} = {values[entry_at].as_py()!r} {why}"
            refuse(np.arange(count) == row[entry_at], lambda _: shown)

    for side in (names, values):
        refuse_entry(truth(side.is_null()), "has a null in it; leave the entry out")
        refuse_entry(truth(pc.equal(side, "")), "is empty on one side, which the protocol cannot carry; leave the entry out")
        refuse_entry(separated(side.cast(pa.binary())), "holds 0x00, which cannot be stored, or 0x01 or 0x02, which separate properties")
    chosen = pa.array(keep)
    entries = pc.binary_join_element_wise(names.filter(chosen), values.filter(chosen), "\x01")
    counts = np.bincount(row[keep], minlength=count)
    return blank_is_null(pc.binary_join(pa.ListArray.from_arrays(starts(counts), entries), "\x02").cast(pa.binary()))


def order_hash(order_key: pa.Array) -> Ints:
    """|String.hashCode| of each key, in 64 bits, so that the remainder is the one Java's SelectMessageQueueByHash takes."""
    if order_key.null_count == len(order_key):
        return np.full(len(order_key), NONE, dtype=np.int64)
    coded = order_key.cast(pa.string()).dictionary_encode()
    hashes = np.abs(java_hashes(coded.dictionary.to_pylist()).astype(np.int64))
    codes = pc.fill_null(coded.indices, NONE).to_numpy(zero_copy_only=False)
    made: Ints = np.append(hashes, NONE)[codes]  # NONE picks the last one, which is NONE
    return made


def deliver_ms(batch: pa.RecordBatch) -> Ints:
    at = batch.schema.get_field_index("deliver_time")
    if at < 0:
        return np.full(batch.num_rows, NONE, dtype=np.int64)
    times = batch.column(at)
    micros = times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())
    made: Ints = pc.fill_null(micros, NONE).to_numpy(zero_copy_only=False)
    return np.where(truth(times.is_valid()), np.where(made < 0, 0, made // 1000), NONE)


# ---- small things of Arrow ------------------------------------------------------------------------------------------------


def column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """The column as this type; all null when there is none."""
    at = batch.schema.get_field_index(name)
    return pa.nulls(batch.num_rows, kind) if at < 0 else batch.column(at).cast(kind)


def numbers(batch: pa.RecordBatch, name: str, missing: int) -> Ints:
    if batch.schema.get_field_index(name) < 0:
        return np.full(batch.num_rows, missing, dtype=np.int64)
    made: Ints = pc.fill_null(column(batch, name, pa.int64()), missing).to_numpy(zero_copy_only=False)
    return made


def digits(values: Ints, where: Bools) -> pa.Array:
    """As decimal text; null elsewhere."""
    return pa.array(values, mask=~where).cast(pa.string()).cast(pa.binary())


def fixed(rows: Table) -> pa.Array:
    """As a binary array, without a copy."""
    count, width = rows.shape
    places = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(places), pa.py_buffer(rows)])


def whole_entry(name: str, values: pa.Array) -> pa.Array:
    """NAME 0x01 value 0x02; null where the value is."""
    return pc.binary_join_element_wise(pa.scalar(before_value(name), pa.binary()), values, pa.scalar(END, pa.binary()), EMPTY)


def join(parts: Sequence[Part], count: int) -> pa.Array:
    """Element by element; nulls are passed over."""
    joined: list[pa.Array] = []
    tables: list[bytes | Table] = []
    for part in parts:
        table = table_of(part) if isinstance(part, pa.Array) else part
        if table is not None:
            tables.append(table)
        else:
            joined += [fixed(side_by_side(tables, count)), part]
            tables = []
    if tables:
        joined.append(fixed(side_by_side(tables, count)))
    return joined[0] if len(joined) == 1 else pc.binary_join_element_wise(*joined, EMPTY, null_handling="skip")


def table_of(values: pa.Array) -> Table | None:
    """The bytes of values that all have one size, as one producer's often do: numpy joins them for a third of what Arrow needs."""
    if values.null_count or not len(values):
        return None
    offsets = offsets_of(values)
    begin, end, width = int(offsets[0]), int(offsets[-1]), int(offsets[1] - offsets[0])
    if not width or end - begin != width * len(values) or (np.diff(offsets) != width).any():
        return None
    return np.frombuffer(values.buffers()[2], dtype=np.uint8)[begin:end].reshape(-1, width)


def side_by_side(parts: Sequence[bytes | Table], count: int) -> Table:
    """In every row the same bytes, or a table's row."""
    merged: list[bytes | Table] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, bytes) and isinstance(last, bytes):
            merged[-1] = last + part
        elif len(part):
            merged.append(part)
    rows = [np.broadcast_to(np.frombuffer(one, f"V{len(one)}"), count) if isinstance(one, bytes) else whole_rows(one) for one in merged]
    made = np.empty((count, sum(row.itemsize for row in rows)), dtype=np.uint8)
    places = itertools.accumulate([row.itemsize for row in rows], initial=0)
    columns = [(np.ndarray((count,), row.dtype, made, at, made.strides[:1]), row) for at, row in zip(places, rows, strict=False)]
    step = max(1, BLOCK_BYTES // max(1, made.shape[1]))
    for start in range(0, count, step):  # every column goes over all rows: so few at a time that they stay in the processor's cache
        for target, row in columns:
            target[start : start + step] = row[start : start + step]
    return made


def same_in_all(values: Ints) -> bool:
    return int(values.min()) == int(values.max())


def whole_rows(table: Table) -> npt.NDArray[np.void]:
    """Each row as one value, which numpy copies as one."""
    return np.ascontiguousarray(table).view(f"V{table.shape[1]}").reshape(-1)


def separated(values: pa.Array) -> Bools:
    """Where they hold what a property cannot: one of the two separators, or a zero, which no broker can store."""
    if not has_low_bytes(values):
        return np.zeros(len(values), dtype=np.bool_)
    return truth(pc.match_substring_regex(values, "[\\x00-\\x02]"))


def has_low_bytes(values: pa.Array) -> bool:
    """Is there a byte up to 2 in any of them? One look at all; bytes that lie behind a null may make it true for nothing."""
    if values.null_count == len(values):
        return False
    offsets, data = offsets_of(values), values.buffers()[2]
    begin, end = int(offsets[0]), int(offsets[-1])
    return begin < end and int(np.frombuffer(data, dtype=np.uint8)[begin:end].min()) <= 2


def blank_is_null(values: pa.Array) -> pa.Array:
    if values.null_count == len(values) or (not values.null_count and int(sizes_of(values).min()) > 0):
        return values
    return pc.if_else(pc.equal(values, EMPTY), pa.scalar(None, pa.binary()), values)


def sizes_of(values: pa.Array) -> Ints:
    if len(values) and not values.null_count:
        return np.diff(offsets_of(values)).astype(np.int64)
    made: Ints = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return made


def truth(mask: pa.Array) -> Bools:
    """A null is no."""
    made: Bools = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    return made


def starts(counts: npt.NDArray[Any]) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
