"""Rows of a DataFrame for people and for programs, and Spark's errors for people."""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from roquet.cli.render import Cell, duration, moment, table
from roquet.errors import ClientError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """What Spark raises in here becomes one sentence; the whole of it shows with -v."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):  # not imported for this: it may not be installed
            raise
        log.debug("Spark failed", exc_info=True)
        raise ClientError(sentence(str(error))) from error


def sentence(text: str) -> str:
    """Of what went wrong in a task, our own error if it is one; else the first line, which says most."""
    ours = re.findall(r"^(?:roquet\.[\w.]+): (.+)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ours[-1] if ours else lines[0] if lines else "Spark failed and did not say why; try again with -v"


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


def laid_out(columns: Mapping[str, str], rows: Iterable[dict[str, Any]]) -> str:
    """A table of these columns under these headings."""
    return table(list(columns.values()), [[cell(name, row[name]) for name in columns] for row in rows])


def cell(name: str, value: Any) -> Cell:
    """Times as a person reads them; a column named age_s as two units, 3h 12m."""
    if isinstance(value, datetime.datetime):
        return moment(ms(value))
    if name == "age_s" and value is not None:
        return duration(value)
    return value if isinstance(value, int | float | None) else str(value)
