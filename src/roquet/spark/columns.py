"""The columns of a topic read as a table: names, types, and what each holds.

One table for the source, the files, the archive and the documentation, so they cannot disagree. Names are fixed: queries
and archives out there depend on them; a new column goes to the end.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    name: str
    sql: str
    """Spark's name of the type."""
    arrow: pa.DataType
    about: str


TIME = pa.timestamp("us", tz="UTC")
MAP = pa.map_(pa.string(), pa.string())

COLUMNS: tuple[Column, ...] = (
    Column("topic", "string", pa.string(), "the topic it was read from"),
    Column("broker", "string", pa.string(), "name of the broker that has it; null for files that do not tell it"),
    Column("queue_id", "int", pa.int32(), "queue of the topic on that broker"),
    Column("queue_offset", "bigint", pa.int64(), "its number in that queue"),
    Column("body", "binary", pa.binary(), "as the producer gave it, decompressed"),
    Column("keys", "string", pa.string(), "KEYS, several separated by a blank; null without"),
    Column("tags", "string", pa.string(), "TAGS; null without"),
    Column("properties", "map<string,string>", MAP, "all properties, those with a column of their own included"),
    Column("born_time", "timestamp", TIME, "when the producer made it"),
    Column("born_host", "string", pa.string(), "the producer, ip:port"),
    Column("store_time", "timestamp", TIME, "when the broker stored it"),
    Column("store_host", "string", pa.string(), "the broker that stored it, ip:port"),
    Column("unique_id", "string", pa.string(), "UNIQ_KEY: the id its producer gave it; null without"),
    Column("message_id", "string", pa.string(), "the id by which the broker finds it: address and log offset in hex"),
    Column("reconsume_times", "int", pa.int32(), "how often consumers gave it back"),
    Column("order_key", "string", pa.string(), "__SHARDINGKEY: what kept it in order; null without"),
    Column("delay_level", "int", pa.int32(), "DELAY; null without"),
    Column("deliver_time", "timestamp", TIME, "TIMER_OUT_MS or else TIMER_DELIVER_MS; null without"),
    Column("transaction", "string", pa.string(), "prepared, committed or rolled_back; null when in none"),
    Column("transaction_id", "string", pa.string(), "__transactionId__, or else the unique id; null when in no transaction"),
    Column("prepared_offset", "bigint", pa.int64(), "log offset of the half message; null when in no transaction"),
    Column("flag", "int", pa.int32(), "the producer's own flag"),
    Column("sys_flag", "int", pa.int32(), "bits of the protocol: compression, transaction, address families"),
    Column("physical_offset", "bigint", pa.int64(), "where its record stands in the broker's log"),
    Column("stored_size", "int", pa.int32(), "bytes of its record in the log"),
)

BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
DEFAULT = ("topic", "broker", "queue_id", "queue_offset", "body", "keys", "tags", "born_time", "store_time", "unique_id")
"""What a read has that does not say which columns: every further one is decoded and moved to the JVM, whether a query uses it or not."""
ALL = "all"


def ddl(names: Sequence[str]) -> str:
    """What the source's schema() answers. Every column is nullable, as Spark wants of a source."""
    return ", ".join(f"{name} {BY_NAME[name].sql}" for name in names)


def no_column(where: str, name: str) -> str:
    """The sentence for a name that is none; `where` it stands."""
    near = difflib.get_close_matches(name.lower(), BY_NAME, n=1)
    hint = f"did you mean {near[0]}? There" if near else "there"
    return f"{where} names {name}, which is no column of a topic; {hint} are {', '.join(BY_NAME)}"


def chosen(text: str) -> tuple[str, ...]:
    """The columns that the option `columns` means, in its order; raises ValueError, a sentence."""
    if text.strip().lower() == ALL:
        return tuple(BY_NAME)
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"columns={text}: a name is missing between two commas")
    for name in names:
        if name.lower() not in BY_NAME:
            raise ValueError(no_column(f"columns={text}", name))
    lower = [name.lower() for name in names]
    for name in lower:
        if lower.count(name) > 1:
            raise ValueError(f"columns={text}: {name} stands there twice")
    return tuple(lower)


def arrow_schema(names: Sequence[str] | None = None) -> pa.Schema:
    """Of these columns in this order; of all when None. Raises KeyError for a name that is none."""
    chosen = COLUMNS if names is None else [BY_NAME[name] for name in names]
    return pa.schema([pa.field(column.name, column.arrow) for column in chosen])
