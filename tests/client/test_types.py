"""What a type checker tells of right and wrong uses: mypy over typed/uses.py, whose comments say which errors it must show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

ROOT = Path(__file__).parents[2]
USES = Path(__file__).parent / "typed" / "uses.py"


def expected() -> dict[int, str]:
    found = {}
    for number, line in enumerate(USES.read_text().splitlines(), 1):
        if match := re.search(r"# [EN]: (.*)$", line):
            found[number] = match[1]
    return found


def test_mypy_shows_wrong_uses_and_no_others() -> None:
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--hide-error-context", "--no-error-summary", "--no-pretty"]
    out, err, _ = api.run([*options, str(USES)])
    assert not err
    told: dict[int, str] = {}
    for number, text in re.findall(r"uses\.py:(\d+): (?:error|note): (.*)", out):
        told.setdefault(int(number), text)
    wanted = expected()
    assert len(wanted) > 20
    assert told.keys() == wanted.keys(), out
    for number, text in wanted.items():
        assert told[number].startswith(text), f"line {number}: {told[number]}"
