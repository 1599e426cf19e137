"""The sequence that both clusters are played: groups of steps, in this order. Later groups rely on what earlier ones stored."""

from __future__ import annotations

from collections.abc import Callable

from differential import steps_names, steps_sends
from differential.side import Side

GROUPS: dict[str, Callable[[Side], None]] = {
    "routes": steps_names.routes,
    "values of the name server": steps_names.values,
    "registrations": steps_names.registrations,
    "topics": steps_sends.topics,
    "plain sends": steps_sends.plain_sends,
    "refused sends": steps_sends.refused_sends,
    "new topics": steps_sends.new_topics,
    "batches": steps_sends.batches,
    "delays": steps_sends.delays,
}


def play(side: Side) -> None:
    for name, steps in GROUPS.items():
        with side.group(name):
            steps(side)
