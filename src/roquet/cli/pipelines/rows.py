"""Rows of a DataFrame for people and for programs."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from roquet.cli.render import Cell, duration, moment, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextlib.contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """In memory while it is used several times. Not longer: another frame of the same plan would get these rows, however old."""
    frame.cache()
    try:
        yield frame
    finally:
        frame.unpersist()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """All of them, times with their zone."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def first(frame: DataFrame, count: int) -> tuple[list[dict[str, Any]], int]:
    """The first rows, and how many there are."""
    found = rows_of(frame.limit(count + 1))
    return found[:count], frame.count() if len(found) > count else len(found)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Times as ms since 1970, as in all our JSON."""
    return {name: ms(value) if isinstance(value, datetime.datetime) else value for name, value in row.items()}


def ms(when: datetime.datetime | None) -> int:
    return 0 if when is None else round(when.timestamp() * 1000)


def as_table(columns: Mapping[str, str], rows: Iterable[dict[str, Any]]) -> str:
    """A table of these columns under these headings."""
    return table(list(columns.values()), [[cell(name, row[name]) for name in columns] for row in rows])


def cell(name: str, value: Any) -> Cell:
    """Times as a person reads them; a column named age_s as two units, 3h 12m."""
    if isinstance(value, datetime.datetime):
        return moment(ms(value))
    if name == "age_s" and value is not None:
        return duration(value)
    return value if isinstance(value, int | float | None) else str(value)
