"""How values look on a terminal: aligned tables, sizes, rates, times. Pure text in and out; `emit` alone prints."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

Cell = str | int | float | None
T = TypeVar("T")


def emit(text: str = "") -> None:
    """One line for the reader of standard output, now and not when a buffer is full."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """One line for the person, on standard error, so that pipes and --json stay clean. Nothing fails when it cannot be written."""
    with contextlib.suppress(OSError):  # standard error is a file on a full disk, or nobody reads it any more
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def announce(text: str) -> None:
    """One line of a server, on standard output. It goes on serving when that cannot be written."""
    with contextlib.suppress(OSError):
        emit(text)


def emit_json(value: Any) -> None:
    """One JSON document on one line."""
    emit(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode())


def answer(arguments: argparse.Namespace, facts: Any, text: str) -> int:
    """What came of a command that worked: JSON for programs, a sentence for people. Its exit code."""
    if arguments.json:
        emit_json(facts)
    else:
        emit(text)
    return 0


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, indent: str = "") -> str:
    """Columns as wide as their widest cell; numbers to the right, words to the left; no trailing blanks.

    An empty table says so, since silence reads like a failure.
    """
    rows = [list(row) for row in rows]
    if not rows:
        return indent + "(none)"
    shown = [[show(cell) for cell in row] for row in rows]
    widths = [max(len(heading), *(len(row[column]) for row in shown)) for column, heading in enumerate(headings)]
    to_the_right = [all(isinstance(row[column], int | float | None) for row in rows) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(cells, widths, to_the_right, strict=True))
        return (indent + "  ".join(padded)).rstrip()

    return "\n".join([line(list(headings)), *(line(row) for row in shown)])


@dataclass(frozen=True)
class TableColumn(Generic[T]):
    """One thing to show of each row: under a heading in a table, under a name in JSON; "" leaves it out there."""

    heading: str
    name: str
    value: Callable[[T], Any]
    text: Callable[[Any], Cell] = lambda value: value
    """How the value stands in a table."""


def column_table(columns: Sequence[TableColumn[T]], rows: Iterable[T]) -> str:
    shown = [column for column in columns if column.heading]
    return table([column.heading for column in shown], ([column.text(column.value(row)) for column in shown] for row in rows))


def column_json(columns: Sequence[TableColumn[T]], rows: Iterable[T]) -> list[dict[str, Any]]:
    return [{column.name: column.value(row) for column in columns if column.name} for row in rows]


def show(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return printable(cell)


def printable(text: str) -> str:
    """Text from outside without control characters: a topic or a body must not be able to drive the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def size(count: float) -> str:
    """1536 -> 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes everything")


def duration(seconds: float) -> str:
    """The two largest units: 90061 -> 1d 1h."""
    seconds = max(0, int(seconds))
    parts = [(seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{number}{unit}" for number, unit in parts[:2])


def moment(timestamp_ms: int) -> str:
    """Local time to the millisecond; "-" for the zeros and minus ones that mean "never"."""
    if timestamp_ms <= 0:
        return "-"
    try:
        when = datetime.datetime.fromtimestamp(timestamp_ms / 1000)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return when.isoformat(sep=" ", timespec="milliseconds")


def counted(number: int, noun: str) -> str:
    """1 message, 2 messages."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
