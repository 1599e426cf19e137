"""Groups of members from seeds: nothing that was acknowledged is lost, and the bugs that others had would be found."""

from __future__ import annotations

import pytest

from roquet.testing.raft_group import Violation, run_seed
from tests.raft.planted import PLANTED

CLEAN_SEEDS = 150
SEEDS_MAX = 500


@pytest.mark.parametrize("first", range(0, CLEAN_SEEDS, 25))
def test_a_group_keeps_its_promises(first: int) -> None:
    groups = [run_seed(seed) for seed in range(first, first + 25)]
    assert sum(len(group.acked) for group in groups) > 500
    assert sum(len(group.leaders) for group in groups) > 50  # they had to elect somebody more than once


def first_violation(bug: str) -> tuple[int, str]:
    for seed in range(SEEDS_MAX):
        try:
            run_seed(seed, PLANTED[bug])
        except Violation as error:
            return seed, str(error)
    pytest.fail(f"{SEEDS_MAX} seeds, and nobody noticed: {bug}")


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    seed, text = first_violation(bug)
    assert f"--seed {seed} --trace" in text  # how to see it again


def test_a_seed_decides_everything() -> None:
    assert run_seed(3).simulation.trace_hash() == run_seed(3).simulation.trace_hash()
