"""What a type checker tells of handlers: nothing of the right ones, and each wrong payload type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

ROOT = Path(__file__).parents[2]
FINE = Path(__file__).parent / "typed_handlers.py"
WRONG = ROOT / "tests" / "client" / "typed" / "app_wrong.py"


def test_mypy_has_nothing_to_say_against_typed_handlers_and_shows_each_wrong_payload() -> None:
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--hide-error-context", "--no-error-summary", "--no-pretty"]
    out, err, _ = api.run([*options, str(FINE), str(WRONG)])
    assert not err
    told: dict[int, str] = {}
    for name, number, kind, text in re.findall(r"(\w+)\.py:(\d+): (\w+): (.*)", out):
        assert name == WRONG.stem, out
        if kind == "error":
            told.setdefault(int(number), text)
    lines = WRONG.read_text().splitlines()
    wanted = {number: match[1] for number, line in enumerate(lines, 1) if (match := re.search(r"# E: (.*)$", line))}
    assert len(wanted) > 10
    assert told.keys() == wanted.keys(), out
    for number, text in wanted.items():
        assert told[number].startswith(text), f"line {number}: {told[number]}"
