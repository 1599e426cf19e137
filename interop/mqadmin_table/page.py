"""docs/mqadmin.md: the table of commands, as a run found it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[2] / "docs" / "mqadmin.md"
SHOWN = 4
"""Lines of one difference that are shown; the rest is counted."""

HEAD = """# Apache's mqadmin against Roquet

Each command of mqadmin 4.9.8 with its main options, on things that are there and on things that are not, against two broker groups of
Apache RocketMQ 4.9.7 and two of Roquet. Both have the same topics, messages and clients. `make interop` runs all of them and compares the
lines that are printed (and what is written to files); times, ids, addresses and measured rates are left out. A difference that is not
explained fails, and so does an explanation that nothing needs. `python interop/run.py --only mqadmin-table --accept` writes this page.

`{a}` and `{b}` are the addresses of the two brokers, `{id}`, `{key}`, `{traced}` and `{single}` are ids of messages, `{client}` is a
consumer's id, `{dir}` a directory.
"""


@dataclass(frozen=True)
class Difference:
    """One reason, and the lines of one command that it explains."""

    why: str
    theirs: list[str]
    ours: list[str]


@dataclass(frozen=True)
class Row:
    """One command: how many lines both print, and in what they differ."""

    command: str
    alike: int
    differences: list[Difference]


def page(rows: Iterable[Row]) -> str:
    rows = list(rows)
    differing = sum(bool(row.differences) for row in rows)
    names = {row.command.split()[0] for row in rows} - {"nosuchCommand"}
    alike = f"{len(rows) - differing} print the same, {differing} differ, each with its reason"
    count = f"{len(names)} commands, {len(rows)} command lines: {alike}.\n"
    table = ["| command | lines that are the same | what differs, and why |", "|---|---|---|"]
    table += [f"| {_code(row.command)} | {row.alike} | {'<br>'.join(map(_difference, row.differences))} |" for row in rows]
    return "\n".join((HEAD, count, *table)) + "\n"


def _difference(difference: Difference) -> str:
    said = [f"{difference.why}:"]
    said += [f"Apache {line}" for line in _some(difference.theirs)]
    said += [f"Roquet {line}" for line in _some(difference.ours)]
    return "<br>".join(said)


def _some(lines: list[str]) -> list[str]:
    shown = [_code(line) for line in sorted(lines)[:SHOWN]]
    return [*shown, f"and {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else shown


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"
