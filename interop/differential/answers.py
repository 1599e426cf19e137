"""What Roquet answers exactly where it is explained that it differs from Apache: answers.json, by group, step and path.

An explanation alone would let anything pass that is different, the text of an exception too. A change of an answer is a change of
that file: `--accept` writes it from a run, and whoever does that reads the difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("answers.json")


class Answers:
    """The answers that are expected, and those that a run has seen."""

    def __init__(self, expected: dict[str, dict[str, dict[str, Any]]] | None) -> None:
        """`expected`: None when whatever comes is what is expected from now on."""
        self._any = expected is None
        self._expected = expected or {}
        self._seen: dict[str, dict[str, dict[str, Any]]] = {}

    @classmethod
    def load(cls) -> Answers:
        return cls(json.loads(FILE.read_text()) if FILE.exists() else {})

    def wrong(self, group: str, step: str, path: str, answer: object) -> str | None:
        """What is wrong with this part of an answer; None when it is the one that is expected."""
        plain = json.loads(json.dumps(answer, default=repr))
        self._seen.setdefault(group, {}).setdefault(step, {})[path] = plain
        if self._any:
            return None
        steps = self._expected.get(group, {}).get(step, {})
        if path not in steps:
            return "explained, but answers.json does not say what Roquet answers"
        return None if steps[path] == plain else f"expected of Roquet {steps[path]!r}"

    def unseen(self) -> list[tuple[str, str, str]]:
        """What is expected to differ and did not."""
        return [
            (group, step, path)
            for group, steps in self._expected.items()
            for step, paths in steps.items()
            for path in paths
            if path not in self._seen.get(group, {}).get(step, {})
        ]

    def save(self) -> None:
        FILE.write_text(json.dumps(self._seen, indent=1, ensure_ascii=False) + "\n")
