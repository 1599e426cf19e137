"""Whole groups from seeds: a DLedger group, a sync pair. The promises hold, one seed is one story, and planted bugs are found.

make sim ARGS="--seeds 0:10000" runs many more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from roquet.broker.core import Broker
from roquet.testing.groups import GroupWorld, main, replay_command, run_seed
from roquet.testing.ledger_group import LedgerGroup
from roquet.testing.simulate import SeedFailed
from roquet.testing.simulation import SECOND
from roquet.testing.sync_pair import SyncPair
from roquet.testing.watched_log import watched_log
from roquet.testing.world import Cores
from tests.sim import planted_groups

SEEDS = 400 if os.environ.get("ROQUET_LONG") else 10
CHUNK = 5


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_group_keeps_every_promise_in_every_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed)


FOUND = {
    85: "a leader that was replaced while it stood still sent a consumer back",
    161: "a checkpoint stood behind the first message of a queue that the table of topics did not know yet",
    503: "a slave kept a hole before a sound end, and became the master",
    631: "a leader that stepped down lost keys with a damaged index file",
    690: "a committed message stood in a queue that a pull had made, and nobody read it",
    1338: "a disk that failed while a leader stepped down left it half a leader",
    1390: "a log whose first record was spoiled was never copied again",
    1475: "progress was put back to queues that were not applied yet, and transactions were committed twice",
    1533: "a broker heard of its failed sync when all faults were over, and nobody changed its disk (a fault of the simulation)",
    2440: "an older answer about another topic took the master away from a client for ever",
    3191: "a leader that left was stopped before it had stepped down",
    3938: "a damaged length that reached behind the log's end held up all that a slave shows",
    3978: "a hole in a master's log stayed, which its slave had whole",
    4149: "a broker did not start on a full disk with a commit to complete",
    4491: "a power loss in the middle of a cut left a short file, and the start was refused",
    4602: "a slave that was stopped before its next tick forgot the topic of a new queue",
    4957: "a spoiled entry of a queue that was never synced was believed",
    5491: "power was lost while a start wrote the log again, and what was safe before was spoiled",
    9500: "a member that prepared to lead took the tables of an old master, which a name server still told of",
}
"""Seeds that failed once, and what was wrong."""


@pytest.mark.parametrize("seed", FOUND)
def test_a_group_keeps_every_promise_in_seeds_that_failed_once(seed: int) -> None:
    run_seed(seed)


def test_the_seeds_see_many_masters_transactions_and_both_kinds_of_groups() -> None:
    worlds = [GroupWorld(seed) for seed in range(20)]
    assert {world.kind for world in worlds} == {"dledger", "sync", "both"}
    assert any(world.network.unordered for world in worlds)
    world = run_seed(5, "both")
    assert world.changes > 1
    assert world.checker.acked_count > 20
    assert len(world.checker.decisions.decided) > 5


def test_the_trace_of_a_group_does_not_depend_on_the_process() -> None:
    """Another process has other string hashes: what iterates over a set in that order shows here."""
    script = "from roquet.testing.groups import run_seed; print(run_seed(5, 'both').simulation.trace_hash())"

    def trace(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.check_output([sys.executable, "-c", script], env=environment, text=True, timeout=600)

    assert trace("1") == trace("2")


@pytest.mark.parametrize(
    ("bug", "shape", "symptom", "first"),
    [
        (planted_groups.acknowledges_before_the_quorum, "dledger", "as committed; another member has something else|acknowledged at", 2),
        (planted_groups.applies_before_the_commit, "dledger", "acknowledged at|the log cannot end at|shown at", 2),
        (planted_groups.goes_on_alone, "dledger", "as committed; another member has something else|acknowledged at", 4),
        (planted_groups.acknowledges_before_the_slave, "sync", "was acknowledged at", 15),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a world that is left in the middle of its story
def test_the_simulation_of_groups_finds_a_planted_bug(bug: Callable[..., Broker], shape: str, symptom: str, first: int) -> None:
    """By one of 500 seeds; `first` is one that was seen to find it, which saves the time of those before."""

    def run_all() -> None:
        for seed in [*range(first, 500), *range(first)]:
            run_seed(seed, shape, Cores(broker=bug))

    with pytest.raises(SeedFailed, match=symptom):
        run_all()


def broken(*parts: object) -> Broker:
    raise RuntimeError("nobody can start this")


def test_a_seed_of_groups_that_fails_says_how_to_see_it_again() -> None:
    with pytest.raises(SeedFailed, match=replay_command(17, "sync")):
        run_seed(17, "sync", Cores(broker=broken))
    assert replay_command(17) == "python -m roquet.testing.groups --seed 17 --trace"


@pytest.mark.parametrize("arguments", [["--seeds", "7"], ["--seeds", "9:3"], ["--processes", "0"], ["--shape", "ring"]])
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert arguments[1] in capsys.readouterr().err


def run(world: GroupWorld, seconds: int) -> int:
    """How many messages were acknowledged meanwhile."""
    before = world.checker.acked_count
    world.simulation.run(world.simulation.now_us + seconds * SECOND)
    return world.checker.acked_count - before


def test_a_group_of_three_goes_on_without_its_leader_and_no_further_without_a_second_member() -> None:
    world = GroupWorld(1, "dledger")
    with watched_log(world.simulation):
        world.start()
        assert run(world, 5) > 5
        (group,) = world.groups
        assert isinstance(group, LedgerGroup)
        first = group.master
        first.kill()
        assert run(world, 8) > 5
        second = group.master
        assert second is not first
        second.kill()
        run(world, 1)
        assert run(world, 5) == 0
        first.start()
        second.start()
        world.come_to_rest()
        assert len(group.leaders) >= 2


def test_a_leader_that_stands_still_is_replaced_and_comes_back_as_a_follower() -> None:
    world = GroupWorld(2, "dledger")
    with watched_log(world.simulation):
        world.start()
        run(world, 5)
        (group,) = world.groups
        first = group.master
        first.stand_still(20 * SECOND)
        assert run(world, 15) > 5
        assert group.master is not first
        world.come_to_rest()


def test_a_slave_takes_over_what_its_master_acknowledged() -> None:
    world = GroupWorld(3, "sync")
    with watched_log(world.simulation):
        world.start()
        while run(world, 1) < 5:
            assert world.simulation.now_us < 60 * SECOND
        (pair,) = world.groups
        assert isinstance(pair, SyncPair)
        assert pair.may_change
        master, slave = pair.master, pair.slave
        master.kill()
        slave.kill()
        pair.change_roles()
        slave.start()
        master.start()
        assert pair.master is slave
        world.come_to_rest()
