"""The first day of a data engineer: every command and snippet of the page runs, in its order, with the session that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import ROOT
from tests.docs.walk import Walk


@pytest.mark.usefixtures("spark")  # the page's session() finds it
def test_the_first_day_of_a_data_engineer_runs_as_it_is_printed(tmp_path: Path) -> None:
    files = ("./archive", "paid.parquet", "paid.checkpoint")  # the session began in another directory
    with Walk(tmp_path, in_process="roquet pipeline", absolute=files) as walk:
        walk.through((ROOT / "docs" / "first-day-data-engineer.md").read_text())
        assert not walk.running, "a page stops what it started"
