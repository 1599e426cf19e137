"""What a type checker tells of right and wrong uses: mypy over files whose comments say which errors it must show. One run for all of
them, since each would look at all of Roquet first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[2]
TYPED = Path(__file__).parent / "typed"
USES, WRONG = TYPED / "uses.py", TYPED / "app_wrong.py"
FINE = ROOT / "tests" / "app" / "typed_handlers.py"

Told = dict[str, list[tuple[int, str, str]]]
"""By module: the line, error or note, and what it says."""


@pytest.fixture(scope="module")
def told() -> Told:
    places = ["--config-file", str(TYPED / "mypy.ini"), "--cache-dir", str(ROOT / ".mypy_cache" / "typed")]
    looks = ["--hide-error-context", "--no-error-summary", "--no-pretty"]
    # In a process of its own, where it sets the collector as it needs it: half of the time.
    mypy = [sys.executable, "-m", "mypy", *places, *looks, *map(str, (USES, FINE, WRONG))]
    done = subprocess.run(mypy, capture_output=True, text=True, check=False)
    assert not done.stderr
    found: Told = {}
    for name, number, kind, text in re.findall(r"(\w+)\.py:(\d+): (\w+): (.*)", done.stdout):
        found.setdefault(name, []).append((int(number), kind, text))
    return found


def assert_as_written(path: Path, told: list[tuple[int, str, str]], marks: str, least: int) -> None:
    """Each line with a comment is told of, as the comment has it, and no other."""
    lines = path.read_text().splitlines()
    wanted = {number: match[1] for number, line in enumerate(lines, 1) if (match := re.search(rf"# [{marks}]: (.*)$", line))}
    assert len(wanted) > least
    first: dict[int, str] = {}
    for number, _, text in told:
        first.setdefault(number, text)
    assert first.keys() == wanted.keys(), told
    for number, text in wanted.items():
        assert first[number].startswith(text), f"line {number}: {first[number]}"


def test_mypy_shows_wrong_uses_and_no_others(told: Told) -> None:
    shown = [one for one in told[USES.stem] if one[1] in ("error", "note")]
    assert_as_written(USES, shown, "EN", 20)


def test_mypy_has_nothing_to_say_against_typed_handlers_and_shows_each_wrong_payload(told: Told) -> None:
    assert told.keys() == {USES.stem, WRONG.stem}
    assert_as_written(WRONG, [one for one in told[WRONG.stem] if one[1] == "error"], "E", 10)
