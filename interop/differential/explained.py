"""Differences between Apache RocketMQ 4.9.7 and Roquet that are meant to be, and why. One that no longer occurs fails the run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explained:
    """A difference: what differs (a path in the answer, or the start of one), in which steps of which group, and why."""

    group: str
    steps: tuple[str, ...]
    what: str
    why: str

    def covers(self, step: str, path: str) -> bool:
        return step in self.steps and (path == self.what or path.startswith((self.what + ".", self.what + "[")))


EXPLAINED: tuple[Explained, ...] = ()
