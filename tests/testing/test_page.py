"""docs/testing.md: its snippets run as printed, tests under pytest and the rest as programs, and what it says of the kit is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from roquet import testing
from roquet.testing import Broker, Clock, Published
from tests.docs.snippets import ROOT, snippets
from tests.testing.test_pytest_plugin import run_pytest

PAGE = (ROOT / "docs" / "testing.md").read_text()
TESTS = [snippet for snippet in snippets(PAGE) if "def test_" in snippet]
PROGRAMS = [snippet for snippet in snippets(PAGE) if "def test_" not in snippet]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_of_testing_md_run_as_printed(program: str) -> None:
    exec(compile(program, "testing.md", "exec"), {"__name__": "__main__"})  # as it is printed is the test


@pytest.mark.parametrize("tests", TESTS, ids=range(len(TESTS)))
def test_the_tests_of_testing_md_run_as_printed(tests: str, tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(tests)
    done = run_pytest(tmp_path)
    assert f"{tests.count('def test_')} passed" in done.stdout, done.stdout


def test_the_page_names_every_call_of_the_kit_and_no_other() -> None:
    for kind in (Broker, Clock, Published):
        for name in vars(kind):
            if not name.startswith("_"):
                assert re.search(rf"\b{name}\b", PAGE), f"{kind.__name__}.{name}"
    for name in re.findall(r"`(?:await )?(?:broker|clock)\.(\w+)", PAGE):
        assert hasattr(Broker, name) or hasattr(Clock, name) or name in Broker.__annotations__, name


@pytest.mark.parametrize("kind", [Broker, Clock, Published, testing.Scheduled])
def test_every_public_member_of_the_kit_is_described(kind: type) -> None:
    assert inspect.getdoc(kind)
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{kind.__name__}.{name}"
