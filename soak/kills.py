"""What is killed in which round: chosen at random, so that every kind comes about equally often. Pure."""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

from soak.program import COMPACTION, SOON

Mode = Literal["here", "local", "cluster"]
"""Where the archive's tasks run: in the driver's process without Spark, in local Spark, on a standalone cluster."""

DRIVER, EXECUTOR, BROKER = "driver", "executor", "broker"

POINTS = {
    "parquet": (
        "before commit",  # the data is there, its commit is not
        "commit written",  # the commit's file lies beside its place
        "linked",
        "committed",  # it counts, and no file is where readers look
        "renamed",  # some files are
        "before cleaning",
        "staged",
        COMPACTION + "before commit",
        COMPACTION + "committed",
        COMPACTION + "removed",  # some old files are gone, no new one is there
        COMPACTION + "renamed",
        "before fence",  # the next driver, which found what a dead one left, dies too
        "swept",
    ),
    "delta": ("before commit", "committed", SOON, "swept"),
}
RECOVERY = ("before fence", "swept")
"""Where a driver dies that has just started, after another that died at FIRST."""
FIRST = "before commit"
"""The one that the whole promise is about: it comes in every turn."""

VICTIMS: dict[Mode, tuple[str, ...]] = {
    "local": (DRIVER, EXECUTOR, BROKER, "point"),
    "here": (DRIVER, BROKER, "point", FIRST),
    "cluster": (EXECUTOR, DRIVER),
}


class Kill(NamedTuple):
    mode: Mode
    victim: str
    """driver, executor, broker, or the point at which the driver kills itself."""
    moment: float
    """Seconds from the time when the driver surely works; for a point: the share of visits that are passed."""

    @property
    def point(self) -> bool:
        return self.victim not in (DRIVER, EXECUTOR, BROKER)


def choose_kills(rounds: int, random: Random, kind: str, modes: tuple[Mode, ...] = ("local", "here", "cluster")) -> list[Kill]:
    """Turn after turn through all victims. Rounds of one mode stand together: starting Spark takes longer than a round."""
    kills: list[Kill] = []
    points: list[str] = []
    while len(kills) < rounds:
        for mode in random.sample(modes, len(modes)):
            for victim in random.sample(VICTIMS[mode], len(VICTIMS[mode])):
                if victim == "point":
                    points = points or random.sample(POINTS[kind], len(POINTS[kind]))
                    victim = points.pop()
                kills.append(Kill(mode, victim, random.random()))
    return kills[:rounds]
