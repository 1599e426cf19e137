"""Whole groups from a seed: a DLedger group of three, a sync pair, or both, with name servers, producers, transactions and consumers.

--seed 17 --trace       one seed, every line of its trace
--seeds 0:10000         many seeds, the failing ones named with the command that replays them
--shape dledger         only groups of this kind; else the seed chooses
--processes 2           so many at once
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

from roquet.testing.broker_group import BrokerGroup
from roquet.testing.checker import listed
from roquet.testing.faults import Faults
from roquet.testing.group_faults import GroupFaults, changes_of
from roquet.testing.ledger_group import LedgerGroup
from roquet.testing.names import GROUP, PAID_TOPIC, TOPICS
from roquet.testing.simulate import SeedFailed
from roquet.testing.simulation import SECOND
from roquet.testing.sync_pair import SyncPair
from roquet.testing.world import REAL, Cores, Shape, World

SHAPES = ("any", "dledger", "sync", "both")
LINE_EVERY_S = 30


class GroupWorld(World):
    """A cluster whose broker groups have copies."""

    topics = (*TOPICS, PAID_TOPIC)
    troubled_s = (5, 11)
    # Whose end got lost is asked about soon, and never given up, whatever the clocks say.
    broker_settings = MappingProxyType(
        {
            "transaction_time_out": 1_000, "transaction_check_interval": 1_500, "transaction_check_max": 10_000, "slave_timeout": 1_000,
            "file_reserved_time": 100_000,
        }
    )  # fmt: skip

    def __init__(self, seed: int, shape: str = "any", cores: Cores = REAL, *, show: Callable[[str], None] | None = None) -> None:
        random = Random(f"groups {seed}")
        self.kind = random.choice(("dledger", "dledger", "dledger", "sync", "sync", "both")) if shape == "any" else shape
        self.fails = random.choice((0.0, 0.0, 0.0, 0.02))
        unordered = random.random() < 0.35
        groups = 2 if self.kind == "both" else 1
        super().__init__(seed, Shape(groups=groups, members=3, name_servers=random.choice((1, 2)), clients=3), cores, show=show)
        for broker in self.brokers if random.random() < 0.5 else ():
            broker.disk.rot = Random(f"rot {broker.name} {seed}")
        if unordered:
            ledgers = [group for group in self.groups if isinstance(group, LedgerGroup)]
            self.network.unordered = {node.group_address for group in ledgers for node in group.nodes}

    def _make_groups(self) -> list[BrokerGroup]:
        kinds: list[type[LedgerGroup] | type[SyncPair]] = []
        if self.kind in ("dledger", "both"):
            kinds.append(LedgerGroup)
        if self.kind in ("sync", "both"):
            kinds.append(SyncPair)
        return [kind(self, number) for number, kind in enumerate(kinds)]

    def _roles(self, number: int) -> dict[str, Any]:
        return {"produces": number == 0, "transacts": number < 2, "consumes": number > 0, "reads": number == 2}

    def _faults(self) -> Faults:
        return GroupFaults(self)

    def _unrest(self) -> Iterator[str]:
        yield from super()._unrest()
        if any(group.promises.copies_show for group in self.groups):
            return
        unseen = self.checker.decisions.unseen(self.checker.consumed.get(GROUP, set()) | self.checker.failed)
        if unseen:
            yield f"the transactions of {listed(unseen)} were committed, and group {GROUP} never got their messages"

    def _last_things(self) -> None:
        """After a clean stop, and a power loss behind it, everything works and is there."""
        super()._last_things()
        if not self.simulation.run(self.simulation.now_us + 60 * SECOND, lambda: not any(self._unrest())):
            self.come_to_rest()
        for group in self.groups:
            group.look()

    @property
    def changes(self) -> int:
        return sum(map(changes_of, self.groups))


def replay_command(seed: int, shape: str = "any") -> str:
    return f"python -m roquet.testing.groups {'' if shape == 'any' else f'--shape {shape} '}--seed {seed} --trace"


def run_seed(seed: int, shape: str = "any", cores: Cores = REAL, *, show: Callable[[str], None] | None = None) -> GroupWorld:
    """One run. Raises SeedFailed with the last lines of the trace and the command that replays it."""
    world = GroupWorld(seed, shape, cores, show=show)
    try:
        world.run()
    except Exception as error:
        lines = "\n".join(list(world.simulation.lines)[-15:])
        text = f"seed {seed}: {type(error).__name__}: {error}\n{lines}\nreplay: {replay_command(seed, shape)}"
        raise SeedFailed(text) from error
    return world


class Outcome(NamedTuple):
    seed: int
    failure: str
    acked: int = 0
    changes: int = 0


def outcome_of(given: tuple[int, str]) -> Outcome:
    seed, shape = given
    try:
        world = run_seed(seed, shape)
    except SeedFailed as failed:
        return Outcome(seed, str(failed).splitlines()[0])
    return Outcome(seed, "", world.checker.acked_count, world.changes)


def run_many(seeds: range, shape: str, processes: int) -> int:
    begun = said = time.monotonic()
    done = failed = acked = changes = 0
    for outcome in outcomes([(seed, shape) for seed in seeds], processes):
        done += 1
        acked += outcome.acked
        changes += outcome.changes
        if outcome.failure:
            failed += 1
            print(f"{outcome.failure} -- {replay_command(outcome.seed, shape)}", flush=True)
        if time.monotonic() - said > LINE_EVERY_S:
            said = time.monotonic()
            print(f"{done} of {len(seeds)} seeds, {failed} failed, {acked} acknowledged, {said - begun:.0f} s", flush=True)
    spent = time.monotonic() - begun
    print(f"{done} seeds: {failed} failed, {acked} messages acknowledged, {changes} times another master, {spent:.0f} s")
    return 1 if failed else 0


def outcomes(work: list[tuple[int, str]], processes: int) -> Iterable[Outcome]:
    if processes == 1:
        yield from map(outcome_of, work)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(outcome_of, work, chunksize=4)


def run_one(seed: int, shape: str, show: Callable[[str], None] | None) -> int:
    try:
        world = run_seed(seed, shape, show=show)
    except SeedFailed:
        traceback.print_exc()
        return 1
    simulation = world.simulation
    print(
        f"seed {seed}: {world.kind}, {simulation.now_us / SECOND:.1f} simulated seconds, {simulation.events} events, "
        f"{world.checker.acked_count} messages acknowledged, {len(world.checker.decisions.decided)} transactions, "
        f"{world.changes} times another master, trace {simulation.trace_hash()}"
    )
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roquet.testing.groups", description="groups of brokers, simulated from a seed")
    parser.add_argument("--seed", type=int, help="run this seed")
    parser.add_argument("--seeds", default="0:200", help="run these, first:last+1 (default %(default)s)")
    parser.add_argument("--shape", choices=SHAPES, default="any", help="which groups there are; any: the seed chooses (default)")
    parser.add_argument("--processes", type=int, default=2, help="so many seeds at once (default %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print every line of what happens")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return run_one(options.seed, options.shape, print if options.trace else None)
    first, _, last = options.seeds.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        parser.error(f"--seeds {options.seeds}, expected first:last+1, as in 0:200")
    if not 1 <= options.processes <= 64:
        parser.error(f"--processes {options.processes}, expected 1 to 64")
    return run_many(range(int(first), int(last)), options.shape, options.processes)


if __name__ == "__main__":
    sys.exit(main())
