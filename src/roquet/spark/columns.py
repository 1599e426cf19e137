"""The columns of a topic read as a table: names, types, and what each holds.

One table for the source, the files, the archive and the documentation, so they cannot disagree. Names are fixed: queries
and archives out there depend on them; a new column goes to the end.
"""

from __future__ import annotations

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
DDL = ", ".join(f"{column.name} {column.sql}" for column in COLUMNS)
"""What the source's schema() answers. Every column is nullable, as Spark wants of a source."""


def arrow_schema(names: Sequence[str] | None = None) -> pa.Schema:
    """Of these columns in this order; of all when None. Raises KeyError for a name that is none."""
    chosen = COLUMNS if names is None else [BY_NAME[name] for name in names]
    return pa.schema([pa.field(column.name, column.arrow) for column in chosen])
