"""Service over time: acknowledged sends by tenths of a second, and how long there were none after each fault. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

BUCKET_S = 0.1
PAUSE_S = 0.5
"""Sends are acknowledged every few milliseconds; over a line that takes 200 ms each way, every 0.4 s. A longer time without any is time
without service, from its begin."""


class Happened(NamedTuple):
    """A fault as it was."""

    kind: str
    node: str
    began: float
    ended: float


class Outage(NamedTuple):
    fault: Happened
    seconds: float
    """Without an acknowledged send, from the fault's begin to the next one's."""


class Row(NamedTuple):
    kind: str
    faults: int
    mean_s: float
    max_s: float


def buckets(times: Iterable[float], began: float, ended: float) -> list[int]:
    """How many in each tenth of a second."""
    counted = Counter(int((at - began) / BUCKET_S) for at in times if began <= at < ended)
    return [counted[number] for number in range(int((ended - began) / BUCKET_S) + 1)]


def pauses(times: Iterable[float], began: float, ended: float) -> list[tuple[float, float]]:
    """Where no send was acknowledged for longer than PAUSE_S."""
    inner = sorted(at for at in times if began <= at < ended)
    marks = [began, *inner, ended]
    return [(one, other) for one, other in pairwise(marks) if other - one > PAUSE_S]


def outages(faults: Sequence[Happened], times: Iterable[float], ended: float) -> list[Outage]:
    """A pause that had begun before the fault counts from the fault on; one that lasts into the next fault is divided."""
    times = sorted(times)
    found = []
    for number, fault in enumerate(faults):
        until = faults[number + 1].began if number + 1 < len(faults) else ended
        found.append(Outage(fault, sum(other - one for one, other in pauses(times, fault.began, until))))
    return found


def rows(found: Sequence[Outage]) -> list[Row]:
    """By kind of fault, and all of them last."""
    kinds = sorted({outage.fault.kind for outage in found})
    groups = [(kind, [one.seconds for one in found if one.fault.kind == kind]) for kind in kinds]
    groups.append(("all", [one.seconds for one in found]))
    return [Row(kind, len(seconds), mean(seconds), max(seconds)) for kind, seconds in groups if seconds]
