"""Groups of members from seeds: nothing that was acknowledged is lost, and the bugs that others had would be found."""

from __future__ import annotations

import pytest

from roquet.raft.codes import Role
from roquet.testing.raft_group import MS, Node, RaftGroup, Rules, Violation, run_seed
from roquet.testing.simulation import SECOND
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


def leads(node: Node) -> bool:
    return node.member is not None and node.member.role is Role.LEADER


def led_by_the_chosen_one(seed: int) -> bool:
    group = RaftGroup(seed, Rules(save_us=(300 * MS, 900 * MS)))
    group.limits["preferred"] = ()
    group.java.clear()
    for node in group.nodes.values():
        node.start()
    group.simulation.run(10 * SECOND)
    (before,) = [node for node in group.nodes.values() if leads(node)]
    other = next(node for node in group.nodes.values() if node is not before)
    assert before.member is not None
    group.hand_over(before, other.name, before.member.term)
    group.simulation.run(15 * SECOND)
    return leads(other) and not leads(before)


def test_the_chosen_member_leads_although_disks_take_longer_for_a_vote_than_the_pause_before_the_next() -> None:
    assert [seed for seed in range(60) if not led_by_the_chosen_one(seed)] == []
