"""The tables, and the little SQL that is not the same in every database."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    event,
    select,
)
from sqlalchemy.exc import CompileError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

KEY_MAX = 255
ID_MAX = 64
ERROR_MAX = 300
BODY_MAX = 15 << 20
"""What a producer takes at most (message_size_max). MySQL's MEDIUMBLOB holds it."""
PROPERTIES_TEXT_MAX = 1 << 20
"""32,767 bytes as JSON, with every byte escaped, are less."""
SLOTS = 1_024
"""Rows that stand for the locks of keys. Keys that share one wait for each other's transactions, and that is all."""

MYSQL_NAMES = ("mysql", "mariadb")
MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mariadb_engine": "InnoDB", "mariadb_charset": "utf8mb4"}
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite counts its own only in INTEGER columns, which hold 64 bits."""
LONG_TEXT = Text().with_variant(Text(PROPERTIES_TEXT_MAX), "mysql", "mariadb")
"""Else it is of 64 KiB there."""


def messages_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    return Table(
        name,
        metadata,
        Column("id", NUMBER, primary_key=True, autoincrement=True),
        Column("lane", BigInteger, nullable=True),  # of the key; rows of one lane are sent one after another
        Column("order_key", String(KEY_MAX), nullable=True),
        Column("topic", String(KEY_MAX), nullable=False),
        Column("message_id", String(ID_MAX), nullable=False),
        Column("body", LargeBinary(BODY_MAX), nullable=False),
        Column("properties", LONG_TEXT, nullable=False),
        Column("flag", Integer, nullable=False),
        Column("created_ms", BigInteger, nullable=False),
        Column("sent_ms", BigInteger, nullable=False),  # 0: not yet
        Column("next_try_ms", BigInteger, nullable=False),
        Column("lease_ms", BigInteger, nullable=False),  # until then it is its owner's
        Column("owner", String(ID_MAX), nullable=False),
        Column("tries", Integer, nullable=False),
        Column("error", String(ERROR_MAX), nullable=False),
        Index(f"{name}_due", "sent_ms", "next_try_ms", "id"),
        Index(f"{name}_lanes", "sent_ms", "lane", "id"),
        schema=schema,
        sqlite_autoincrement=True,
        **MYSQL,
    )


def slots_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    table = Table(name, metadata, Column("slot", Integer, primary_key=True, autoincrement=False), schema=schema, **MYSQL)
    event.listen(table, "after_create", fill_slots)
    return table


def fill_slots(table: Table, connection: Connection, **_: Any) -> None:
    """Those that are missing."""
    there = set(connection.scalars(select(table.c.slot)))
    if missing := [{"slot": slot} for slot in range(SLOTS) if slot not in there]:
        connection.execute(table.insert(), missing)


def transactions_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    return Table(
        name,
        metadata,
        Column("transaction_id", String(ID_MAX), primary_key=True),
        Column("committed", SmallInteger, nullable=False),  # 0: it may not commit any more
        Column("at_ms", BigInteger, nullable=False),
        Index(f"{name}_age", "at_ms"),
        schema=schema,
        **MYSQL,
    )


def lane_of(key: str) -> int:
    """A number of 64 bits: no database has an opinion of its own about when two are equal. Two keys with one number share a lane."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)


class now_ms(FunctionElement[int]):
    """Wall time of the database, in ms since 1970, the same for a whole statement: clocks of relays need not agree."""

    name = "now_ms"
    type = BigInteger()
    inherit_cache = True


class exact(FunctionElement[str]):
    """A text that is compared as it is written: MariaDB and MySQL would take `Orders` and `orders` for one."""

    name = "exact"
    type = String()
    inherit_cache = True


@compiles(exact)
def _exact(element: exact, compiler: SQLCompiler, **words: Any) -> str:
    return compiler.process(element.clauses, **words)


@compiles(exact, *MYSQL_NAMES)
def _exact_bytes(element: exact, compiler: SQLCompiler, **words: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **words)} AS BINARY)"


NOW = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)",
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",  # UNIX_TIMESTAMP(NOW()) jumps when summer time ends
    "mariadb": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",
}


@compiles(now_ms)
def _now_ms(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:
    try:
        return NOW[compiler.dialect.name]
    except KeyError:
        raise CompileError(f"roquet.outbox does not know {compiler.dialect.name}; it knows {', '.join(NOW)}") from None
