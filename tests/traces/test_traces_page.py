"""docs/traces.md, followed from top to bottom."""

from __future__ import annotations

from pathlib import Path

from tests.docs.snippets import ROOT
from tests.docs.walk import Walk


def test_the_page_runs_as_it_is_printed(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.through((ROOT / "docs" / "traces.md").read_text())
        assert not walk.running, "a page stops what it started"
