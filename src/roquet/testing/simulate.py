"""Run a simulated cluster from a seed, to see what happened in it.

--seed 17 --trace    one seed, every line of its trace
--seeds 0:1000       many seeds, the failing ones named
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable

from roquet.testing.world import LIMITS, REAL, USUAL, Cores, Shape, World


class SeedFailed(AssertionError):
    """A run broke a promise. The text says how to see it again."""


def replay_command(seed: int, shape: Shape = USUAL) -> str:
    counts = {name: getattr(shape, name) for name in LIMITS}
    options = "".join(f"--{name.replace('_', '-')} {count} " for name, count in counts.items() if count != getattr(USUAL, name))
    return f"python -m roquet.testing.simulate {options}--seed {seed} --trace"


def run_seed(seed: int, shape: Shape = USUAL, cores: Cores = REAL, *, show: Callable[[str], None] | None = None) -> World:
    """One run. Raises SeedFailed with the last lines of the trace and the command that replays it."""
    world = World(seed, shape, cores, show=show)
    try:
        world.run()
    except Exception as error:
        lines = "\n".join(list(world.simulation.lines)[-15:])
        raise SeedFailed(f"seed {seed}: {type(error).__name__}: {error}\n{lines}\nreplay: {replay_command(seed, shape)}") from error
    return world


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roquet.testing.simulate", description="a cluster, simulated from a seed")
    parser.add_argument("--seed", type=int, help="run this seed")
    parser.add_argument("--seeds", default="0:200", help="run these, first:last+1 (default %(default)s)")
    for name in LIMITS:
        what = "brokers in each group" if name == "members" else name.replace("_", " ")
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(USUAL, name), help=f"{what} (default %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print every line of what happens")
    options = parser.parse_args(arguments)
    try:
        shape = Shape(**{name: getattr(options, name) for name in LIMITS})
    except ValueError as error:
        parser.error(str(error))
    if options.seed is not None:
        return run_one(options.seed, shape, print if options.trace else None)
    first, _, last = options.seeds.partition(":")
    return run_many(range(int(first), int(last)), shape, print if options.trace else None)


def run_one(seed: int, shape: Shape, show: Callable[[str], None] | None) -> int:
    try:
        world = run_seed(seed, shape, show=show)
    except SeedFailed:
        traceback.print_exc()
        return 1
    simulation = world.simulation
    starts = sum(broker.runs for broker in world.brokers)
    print(
        f"seed {seed}: {shape}, {simulation.now_us / 1_000_000:.1f} simulated seconds, {simulation.events} events, "
        f"{world.checker.acked_count} messages acknowledged, {starts} broker starts, trace {simulation.trace_hash()}"
    )
    return 0


def run_many(seeds: range, shape: Shape, show: Callable[[str], None] | None) -> int:
    begun = time.monotonic()
    failed = 0
    for seed in seeds:
        try:
            run_seed(seed, shape, show=show)
        except SeedFailed as error:
            failed += 1
            print(str(error).splitlines()[0], "--", replay_command(seed, shape), flush=True)
    print(f"{len(seeds)} seeds of {shape}: {failed} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
