"""Rows ha and dledger: sends that are acknowledged when other nodes have them, too. Both kinds of groups run at once, in turns."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import groups
from groups import Group
from servers import APACHE
from table import Sample

if TYPE_CHECKING:
    from run import Bench

STARTS = {"ha": groups.sync_pair, "dledger": groups.dledger}
TOPIC, QUEUES = "BenchGroup", 8


def measure(bench: Bench, row: str) -> None:
    with contextlib.ExitStack() as stack:
        ready: list[Group] = []
        for kind in bench.kinds:
            bench.say(f"starting {kind} ({row})")
            try:
                group = stack.enter_context(STARTS[row](bench.launcher, kind, bench.directory / row / kind))
                group.create_topic(TOPIC, QUEUES)
                warm = bench.plan.group_warm_apache if kind == APACHE else bench.plan.group_warm_roquet
                bench.say(f"warming up {kind} ({row}) with {warm:,} messages")
                bench.round(group, "send", TOPIC, warm)
                ready.append(group)
            except (OSError, RuntimeError) as error:
                bench.report.at(row, kind).problem = str(error)
                bench.say(f"{row}, {kind}: {error}")
        bench.in_turns(row, ready, 1, lambda group: a_round(bench, group))


def a_round(bench: Bench, group: Group) -> Sample:
    group.find_leader()
    sample = bench.round(group, "send", TOPIC, bench.plan.group)
    group.until_equal()  # what was acknowledged is on every node
    return sample
