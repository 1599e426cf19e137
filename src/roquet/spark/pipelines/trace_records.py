"""Message traces (`wire/trace.py`), parsed whole batches at a time into columns.

Records, their layouts and what may be absent are that module's. The Pub of a batch names all its ids: it is one event each here.
What cannot be read becomes an event of the kind `malformed` that says why, so that it can be counted. A test holds both readers to
the same answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roquet.spark.columns import TIME, Column
from roquet.wire.trace import (
    FIELD_END,
    INT_MAX,
    LAYOUTS,
    MAY_BE_EMPTY,
    MAY_BE_NULL,
    NULL,
    ORDINALS,
    RECORD_END,
    SHOWN_MAX,
    TIME_MAX_MS,
    Malformed,
    SubAfter,
)

NUMBER = r"^-?[0-9]{1,18}$"
MALFORMED = Malformed.kind
COLUMN_OF = {"time_ms": "time"}
"""Fields whose column has another name."""

EVENT: tuple[Column, ...] = (
    Column("kind", "string", pa.string(), "Pub, SubBefore, SubAfter, EndTransaction, Recall, or malformed"),
    Column("time", "timestamp", TIME, "when it began (SubAfter: ended) by the client's clock; null where the client did not say"),
    Column("region", "string", pa.string(), "the broker's regionId"),
    Column("group", "string", pa.string(), "the producer's or the consumer's group"),
    Column("topic", "string", pa.string(), "of Pub, EndTransaction and Recall; traces of consuming do not tell it"),
    Column("unique_id", "string", pa.string(), "the message's id that its producer gave it"),
    Column("tags", "string", pa.string(), "its tag; null without"),
    Column("keys", "string", pa.string(), "its keys, separated by blanks; null without"),
    Column("store_host", "string", pa.string(), "the broker it was sent to"),
    Column("body_size", "int", pa.int32(), "bytes; of the whole batch for a message of a batch"),
    Column("cost_ms", "bigint", pa.int64(), "how long sending or consuming took; of a batch consumed, its share"),
    Column("type", "string", pa.string(), "Normal, TransHalf, TransCommit, Delay or Order"),
    Column("message_id", "string", pa.string(), "the id by which the broker finds it"),
    Column("success", "boolean", pa.bool_(), "stored, consumed or recalled"),
    Column("client_host", "string", pa.string(), "the client, where it says so"),
    Column("request_id", "string", pa.string(), "joins SubBefore and SubAfter of one delivery"),
    Column("retry_times", "int", pa.int32(), "how often it was given back before"),
    Column("outcome", "string", pa.string(), "of consuming: SUCCESS, TIME_OUT, EXCEPTION, RETURNNULL or FAILED"),
    Column("transaction_id", "string", pa.string(), "of EndTransaction"),
    Column("transaction_state", "string", pa.string(), "COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW"),
    Column("from_check", "boolean", pa.bool_(), "the state was given because the broker asked"),
    Column("problem", "string", pa.string(), "of a malformed record: what is wrong, and its beginning"),
)
EVENT_SCHEMA = pa.schema([pa.field(column.name, column.arrow) for column in EVENT])

Rows = npt.NDArray[np.int64]


def parse(bodies: pa.Array) -> tuple[pa.Table, Rows]:
    """The events in these payloads in their order, and with each the number of the payload that it stands in."""
    records = pc.split_pattern(as_text(bodies), RECORD_END)
    payload = numpy_of(pc.list_parent_indices(records))
    lines = pc.list_flatten(records)
    filled = np.flatnonzero(numpy_of(pc.binary_length(lines)) > 0)
    lines, payload = lines.take(pa.array(filled)), payload[filled].astype(np.int64)

    fields = Fields(lines)
    kinds = fields.at(0, np.arange(len(lines)))
    parts: list[tuple[pa.Table, Rows]] = []
    left = np.ones(len(lines), dtype=bool)
    for (kind, at_least), layout in sorted(LAYOUTS.items(), reverse=True):  # the longest of a kind first
        chosen = left & (fields.counts >= at_least) & numpy_of(pc.equal(kinds, kind))
        left &= ~chosen
        if chosen.any():
            parts += of_one_layout(kind, layout.split(), fields, np.flatnonzero(chosen))
    if left.any():
        rows = np.flatnonzero(left)
        parts.append((malformed(lines.take(pa.array(rows)), "unknown kind or too few fields"), rows))
    if not parts:
        return EVENT_SCHEMA.empty_table(), payload[:0]
    found = np.concatenate([rows for _, rows in parts])
    order = np.argsort(found, kind="stable")
    return pa.concat_tables([table for table, _ in parts]).take(pa.array(order)), payload[found[order]]


class Fields:
    """Lines split into their fields."""

    def __init__(self, lines: pa.Array) -> None:
        self.lines = lines
        split = pc.split_pattern(lines, FIELD_END)
        self.values = split.values
        self.starts = numpy_of(split.offsets)[:-1].astype(np.int64)
        self.counts = numpy_of(split.value_lengths())

    def at(self, number: int, rows: Rows) -> pa.Array:
        """This field of these lines; null where a line has not so many."""
        return self.values.take(pa.array(self.starts[rows] + number, mask=self.counts[rows] <= number))


def of_one_layout(kind: str, layout: list[str], fields: Fields, rows: Rows) -> list[tuple[pa.Table, Rows]]:
    """Their events, and those that have something else where a number should stand, as malformed."""
    columns: dict[str, pa.Array] = {}
    wrong = np.zeros(len(rows), dtype=bool)
    for number, name in enumerate(layout, 1):
        field = fields.at(number, rows)
        if name in MAY_BE_EMPTY and kind == SubAfter.kind:
            field = null_where(field, pc.equal(field, ""))
        column = COLUMN_OF.get(name, name)
        columns[column], bad = typed(column, field)
        wrong |= bad
    arrays = [
        pa.repeat(kind, len(rows)) if name == "kind" else columns.get(name, pa.nulls(len(rows), EVENT_SCHEMA.field(name).type))
        for name in EVENT_SCHEMA.names
    ]
    events = pa.table(arrays, schema=EVENT_SCHEMA)
    if not wrong.any():
        return [one_message_each(events, rows)]
    bad_rows = rows[wrong]
    found = [(malformed(fields.lines.take(pa.array(bad_rows)), f"a field of {kind} is not the number it should be"), bad_rows)]
    return [*found, one_message_each(events.filter(pa.array(~wrong)), rows[~wrong])]


def typed(name: str, field: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The column, and where the text was not what it should be."""
    kind = EVENT_SCHEMA.field(name).type
    if name in MAY_BE_NULL:
        return null_where(field, pc.is_in(field, pa.array(["", NULL]))), np.zeros(len(field), dtype=bool)
    if kind == pa.string() and name not in ORDINALS:
        return field, np.zeros(len(field), dtype=bool)
    if kind == pa.bool_():  # upstream: whatever is not true is false
        return pc.equal(pc.utf8_lower(field), "true"), np.zeros(len(field), dtype=bool)
    fits = pc.match_substring_regex(field, NUMBER)
    numbers = pc.cast(null_where(field, pc.invert(fits)), pa.int64())
    bad = ~numpy_of(pc.fill_null(fits, True))
    if name == "time":
        bad |= numpy_of(pc.fill_null(pc.greater(pc.abs(numbers), TIME_MAX_MS), False))
        return pc.cast(pc.multiply(null_where(numbers, pa.array(bad)), 1000), TIME), bad
    if name in ORDINALS:
        names = ORDINALS[name]
        bad |= numpy_of(pc.fill_null(pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, len(names))), False))
        return pa.array(names).take(null_where(numbers, pa.array(bad))), bad
    if kind == pa.int32():
        bad |= numpy_of(pc.fill_null(pc.greater(pc.abs(numbers), INT_MAX), False))
    return pc.cast(null_where(numbers, pa.array(bad)), kind), bad


def one_message_each(events: pa.Table, rows: Rows) -> tuple[pa.Table, Rows]:
    """A batch is sent once and has an id for each message, with commas between."""
    ids = pc.split_pattern(events.column("unique_id").combine_chunks(), ",")
    if len(ids.values) == len(events):
        return events, rows
    parents = pc.list_parent_indices(ids)
    at = EVENT_SCHEMA.get_field_index("unique_id")
    return events.take(parents).set_column(at, EVENT_SCHEMA.field(at), pc.list_flatten(ids)), rows[numpy_of(parents)]


def malformed(lines: pa.Array, why: str) -> pa.Table:
    """Events that only say what is wrong, with the beginning of the record."""
    shown = pc.replace_substring(pc.utf8_slice_codeunits(lines, 0, SHOWN_MAX), FIELD_END, " ")
    problems = pc.binary_join_element_wise(pa.repeat(why, len(lines)), shown, ": ")
    given = {"kind": pa.repeat(MALFORMED, len(lines)), "problem": problems}
    return pa.table([given.get(field.name, pa.nulls(len(lines), field.type)) for field in EVENT_SCHEMA], schema=EVENT_SCHEMA)


def as_text(bodies: pa.Array) -> pa.Array:
    """As UTF-8, with a replacement character where it is not, as Java reads it."""
    try:
        return pc.cast(bodies, pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if body is None else body.decode("utf-8", "replace") for body in bodies.to_pylist()], pa.string())


def null_where(values: pa.Array, mask: pa.Array) -> pa.Array:
    return pc.if_else(pc.fill_null(mask, True), pa.scalar(None, values.type), values)


def numpy_of(array: pa.Array) -> npt.NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))
