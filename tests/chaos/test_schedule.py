from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random

from chaos.group import LAYOUTS
from chaos.schedule import FOLLOWER, KINDS, LEADER, NAME_SERVER, NAME_SERVER_KINDS, Fault, faults


def first(count: int, seed: int = 1, *, followers: bool = True) -> list[Fault]:
    return list(islice(faults(Random(seed), list(KINDS), followers=followers, lasts_s=(1, 2), pause_s=(3, 4)), count))


def test_one_seed_gives_the_same_faults_and_another_gives_others() -> None:
    assert first(50) == first(50)
    assert first(50) != first(50, seed=2)


def test_every_kind_comes_equally_often() -> None:
    assert set(Counter(fault.kind for fault in first(9 * len(KINDS))).values()) == {9}


def test_leaders_followers_and_name_servers_are_hit_and_only_name_servers_by_what_they_can_suffer() -> None:
    chosen = first(500)
    assert {fault.role for fault in chosen} == {LEADER, FOLLOWER, NAME_SERVER}
    assert {fault.kind for fault in chosen if fault.role == NAME_SERVER} == set(NAME_SERVER_KINDS)


def test_what_only_followers_survive_never_hits_a_leader() -> None:
    chosen = faults(Random(1), list(KINDS), followers=True, never_leaders=("replace",), lasts_s=(1, 2), pause_s=(3, 4))
    assert {fault.role for fault in islice(chosen, 300) if fault.kind == "replace"} == {FOLLOWER}


def test_a_server_that_is_alone_has_no_followers_to_hit() -> None:
    assert FOLLOWER not in {fault.role for fault in first(200, followers=False)}


def test_faults_and_pauses_last_as_long_as_asked() -> None:
    assert all(1 <= fault.lasts_s <= 2 and 3 <= fault.pause_s <= 4 for fault in first(100))


def test_every_group_has_faults_that_are_known_and_addresses_of_its_own() -> None:
    for make in LAYOUTS.values():
        layout = make("ASYNC_FLUSH")
        assert set(layout.kinds) <= set(KINDS)
        assert len({spec.address for spec in layout.brokers}) == len(layout.brokers)
