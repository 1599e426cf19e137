"""Run a simulated cluster from a seed, to see what happened in it.

--seed 17 --trace    one seed, every line of its trace
--seeds 0:1000       many seeds, the failing ones named
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable

from roquet.testing.cluster import Cluster, MakeBroker


class SeedFailed(AssertionError):
    """A run broke a promise. The text says how to see it again."""


def replay_command(seed: int) -> str:
    return f"python -m roquet.testing.simulate --seed {seed} --trace"


def run_seed(seed: int, *, make_broker: MakeBroker | None = None, show: Callable[[str], None] | None = None) -> Cluster:
    """One run. Raises SeedFailed with the last lines of the trace and the command that replays it."""
    cluster = Cluster(seed, show=show) if make_broker is None else Cluster(seed, make_broker=make_broker, show=show)
    try:
        cluster.run()
    except Exception as error:
        lines = "\n".join(list(cluster.simulation.lines)[-15:])
        raise SeedFailed(f"seed {seed}: {type(error).__name__}: {error}\n{lines}\nreplay: {replay_command(seed)}") from error
    return cluster


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roquet.testing.simulate", description="a cluster, simulated from a seed")
    parser.add_argument("--seed", type=int, help="run this seed")
    parser.add_argument("--seeds", default="0:200", help="run these, first:last+1 (default %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print every line of what happens")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    else:
        first, _, last = options.seeds.partition(":")
        seeds = range(int(first), int(last))
    failed = 0
    for seed in seeds:
        try:
            cluster = run_seed(seed, show=print if options.trace else None)
        except SeedFailed as error:
            failed += 1
            if len(seeds) == 1:
                traceback.print_exc()
            else:
                print(str(error).splitlines()[0], "--", replay_command(seed))
        else:
            simulation, checker = cluster.simulation, cluster.checker
            if len(seeds) == 1:
                print(
                    f"seed {seed}: {simulation.now_us / 1_000_000:.1f} simulated seconds, {simulation.events} events, "
                    f"{len(checker.acked)} messages acknowledged, {cluster.broker.runs} broker starts, trace {simulation.trace_hash()}"
                )
    if len(seeds) > 1:
        print(f"{len(seeds)} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
