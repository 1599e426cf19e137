"""The first days of new users: every command and program of the page runs, in its order, against real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import ROOT
from tests.docs.walk import Walk

PAGES = ["first-day-python.md", "first-day-operator.md"]
"""The data engineer's day needs Spark: tests/spark/test_first_day.py."""


@pytest.mark.parametrize("page", PAGES)
def test_the_first_day_runs_as_it_is_printed(page: str, tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.through((ROOT / "docs" / page).read_text())
        assert not walk.running, "a page stops what it started"
