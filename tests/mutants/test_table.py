"""The table of faults is kept: every place is there, every test too. The faults themselves take minutes: `make mutants`."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.mutants.run import ROOT, faulty
from tests.mutants.table import FAULTS, Fault

FEWEST = 140


@functools.cache
def names_in(path: Path) -> set[str]:
    """ "test_x" and "TestClass::test_x" of a file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.update(f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}-{fault.what}")
def test_its_place_stands_there_once_it_parses_and_its_test_exists(fault: Fault) -> None:
    ast.parse(faulty(fault))
    file, _, name = fault.test.partition("::")
    assert name.partition("[")[0] in names_in(ROOT / file)


def test_the_list_only_grows() -> None:
    assert len(FAULTS) >= FEWEST
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)
    folders = {fault.file.partition("/")[0] for fault in FAULTS}
    assert {"store", "broker", "client"} <= folders
