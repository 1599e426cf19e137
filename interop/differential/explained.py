"""Differences between Apache RocketMQ 4.9.7 and Roquet that are meant to be, and why. One that no longer occurs fails the run."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

ALL = "*"
"""As `what`: the whole answer, since one of the two refuses what the other does."""


@dataclass(frozen=True)
class Explained:
    """Steps of a group (`*` and `?` stand for any text), what differs there (a path in the answer, or the start of one), and why.

    It must differ in every step that is named.
    """

    group: str
    steps: tuple[str, ...]
    what: str
    why: str

    def names(self, step: str) -> bool:
        return any(fnmatchcase(step, pattern) for pattern in self.steps)

    def covers(self, step: str, path: str) -> bool:
        return self.names(step) and (self.what == ALL or path == self.what or path.startswith((self.what + ".", self.what + "[")))


EXPLAINED: tuple[Explained, ...] = ()
