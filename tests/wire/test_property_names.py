"""The names of properties stand in one table (`message.Property`). A name spelled again is a name that can be spelled wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import roquet
from roquet.message import Property

ROOT = Path(roquet.__file__).parent
NAMES = {value for name, value in vars(Property).items() if name.isupper()}
HEADINGS = {"CLUSTER", "KEYS", "TAGS", "WAIT"}
"""Words that the command line writes over columns of its own."""


def spelled(path: Path) -> Iterator[str]:
    """Names of properties that stand here as literals, alone or as a property begins in a text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            names = {one.partition("\x01")[0] for one in text.split("\x02")}
            if names & NAMES and not ("cli" in path.parts and text in HEADINGS):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {text!r}"


def test_no_module_but_the_table_spells_the_name_of_a_property() -> None:
    assert [found for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "message.py" for found in spelled(path)] == []


def test_a_name_that_is_spelled_again_is_found() -> None:
    assert len(list(spelled(ROOT / "message.py"))) == len(NAMES)
