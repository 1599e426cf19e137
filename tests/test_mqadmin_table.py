"""The comparison of what mqadmin prints (interop/mqadmin_table): what counts as a difference, and what fails."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))
try:
    table = import_module("mqadmin_table")
    commands, explained, normal, page, playing = (
        import_module(f"mqadmin_table.{name}") for name in ("commands", "explained", "normal", "page", "playing")
    )
    report = import_module("report")
finally:
    del sys.path[0]

STATUS = commands.Command("brokerStatus -b {a}")
REASON = explained.Explained(("brokerStatus *",), "version : old", "version : new", "they are of different versions")


def failed(theirs: list[str], ours: list[str], *reasons: Any, command: Any = STATUS) -> list[str]:
    section = report.Section("a comparison")
    table.compare(section, playing.Played([(command, theirs)]), playing.Played([(command, ours)]), reasons)
    return [check.detail for check in section.checks if check.status == report.FAIL]


def test_lines_in_another_order_are_the_same_unless_order_means_something() -> None:
    assert failed(["a", "b"], ["b", "a"]) == []
    assert failed(["a", "b"], ["b", "a"], command=commands.Command("queryCq", ordered=True)) != []


def test_a_line_that_comes_twice_is_not_the_same_as_one() -> None:
    assert failed(["a", "a"], ["a"]) == ["Apache alone: a (1 lines)"]


def test_a_difference_that_nobody_explains_fails_on_either_side() -> None:
    assert failed(["version : old"], ["version : new"], REASON) == []
    assert failed(["version : old"], ["version : newer"], REASON) == ["Roquet alone: version : newer (1 lines)"]
    (missing,) = failed(["version : old", "speed : 1"], ["version : new"], REASON)
    assert "speed" in missing


def test_an_explanation_that_no_line_needs_fails() -> None:
    (unneeded,) = failed(["version : old"], ["version : old"], REASON)
    assert REASON.why in unneeded


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ("  broker-a    0   2026-11-16 18:27:57,262", "broker-a 0 <time>"),
        ("bootTimestamp    : 1794853678669", "bootTimestamp : <time>"),
        ("at 127.0.0.1:10911 and from 127.0.0.1:41782", "at <a> and from <client>"),
        ("putTps           : 0.0 0.43 0.43", "putTps : <rates>"),
        ("fileReservedTime : 72", "fileReservedTime : 72"),
        ("commitLogDiskRatio_/x/store/commitlog: 0.5", "commitLogDiskRatio_<dir>/store/commitlog: <n.n>"),
        ("\tat org.apache.Some.thing(Some.java:12)\nCaused by: CODE: 1  DESC: no", "Caused by: CODE: 1 DESC: no"),
    ],
)
def test_times_addresses_and_rates_are_named_and_all_else_stays(printed: str, line: str) -> None:
    assert normal.Names({"127.0.0.1:10911": "<a>", "/x": "<dir>"}).lines(printed) == [line]


def test_every_command_of_4_9_8_is_there() -> None:
    """56 that its help lists, and help itself."""
    names = {command.name for command in (*commands.COMMANDS, *commands.ENDLESS)} - {"nosuchCommand"}
    assert len(names) == 57


def test_the_page_says_what_differs_and_why_and_counts() -> None:
    text = page.first_half(
        [page.Row("a -x", 3, []), page.Row("b", 1, [page.Difference("for a reason", ["x | y"], [str(n) for n in range(9)])])]
    )
    assert "2 commands, 2 command lines: 1 print the same, 1 differ" in text
    assert "for a reason:<br>Apache `x \\| y`<br>Roquet `0`" in text
    assert "and 5 lines more" in text


def test_the_page_in_docs_holds_every_command_and_names_no_machine() -> None:
    text = page.FILE.read_text()
    more = [command for command in commands.WITH_KEYS if command not in commands.COMMANDS]
    for command in (*commands.COMMANDS, *commands.ENDLESS, *more, *commands.STRANGERS, *commands.AFTERWARDS):
        assert f"| `{command.title}` |" in text
    assert {each.why for each in (*explained.EXPLAINED, *explained.WITH_KEYS) if each.why not in text} == set()
    assert not re.search(r"/tmp/|\b192\.", text)
