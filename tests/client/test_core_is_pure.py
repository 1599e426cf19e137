"""The client's brain reaches the world through its Caller alone, so that the simulation can run it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import roquet.client.core
from roquet.wire import pending

FORBIDDEN = {"asyncio", "socket", "threading", "time", "random", "os", "selectors", "ssl", "concurrent", "subprocess"}
MODULES = [*sorted(Path(roquet.client.core.__file__).parent.glob("*.py")), Path(pending.__file__)]


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules imported when the program runs; not those for the type checker only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        yield from imported(node)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_core_module_does_no_io(path: Path) -> None:
    assert not set(imported(ast.parse(path.read_text()))) & FORBIDDEN
