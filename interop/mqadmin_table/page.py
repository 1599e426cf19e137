"""docs/mqadmin.md: the table of commands, as a run found it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[2] / "docs" / "mqadmin.md"
_writing = threading.Lock()
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

KEYED = """
## With access control

The same commands once more with `aclEnable=true` on the brokers: by an admin, whose keys are in mqadmin's `tools.yml`, and some by a
stranger without keys. Shown are those that differ, and those that are not in the table above.
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


def first_half(rows: list[Row]) -> str:
    """Without access control."""
    return "\n".join((HEAD, _count(rows), *_table(rows))) + "\n"


def second_half(rows: list[Row], known: set[str]) -> str:
    """With it: the commands that differ, and those that are not `known` from the first half."""
    return "\n".join((KEYED, _count(rows), *_table([row for row in rows if row.differences or row.command not in known]))) + "\n"


def read() -> tuple[str, str]:
    """Both halves as they are in the file."""
    text = FILE.read_text() if FILE.exists() else ""
    first, mark, second = text.partition(KEYED)
    return first, mark + second


def write(*, first: str = "", second: str = "") -> None:
    with _writing:  # the halves are found at the same time
        was_first, was_second = read()
        FILE.write_text((first or was_first) + (second or was_second))


def _count(rows: list[Row]) -> str:
    differing = sum(bool(row.differences) for row in rows)
    names = {row.command.split()[0] for row in rows} - {"nosuchCommand"}
    alike = f"{len(rows) - differing} print the same, {differing} differ, each with its reason"
    return f"{len(names)} commands, {len(rows)} command lines: {alike}.\n"


def _table(rows: list[Row]) -> list[str]:
    head = ["| command | lines that are the same | what differs, and why |", "|---|---|---|"]
    return head + [f"| {_code(row.command)} | {row.alike} | {'<br>'.join(map(_difference, row.differences))} |" for row in rows]


def _difference(difference: Difference) -> str:
    said = [f"{difference.why}:" if difference.theirs or difference.ours else difference.why]
    said += [f"Apache {line}" for line in _some(difference.theirs)]
    said += [f"Roquet {line}" for line in _some(difference.ours)]
    return "<br>".join(said)


def _some(lines: list[str]) -> list[str]:
    shown = [_code(line) for line in sorted(lines)[:SHOWN]]
    return [*shown, f"and {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else shown


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"
