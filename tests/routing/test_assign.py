"""Rebalance: every member computes alone, all must agree, also with Java's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.message import MessageQueue
from roquet.routing.assign import (
    AVERAGE,
    AVERAGE_BY_CIRCLE,
    CONSISTENT_HASH,
    STRATEGIES,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    Strategy,
    name_of,
)

RECORDED = json.loads((Path(__file__).parent / "java-4.9.8.json").read_text())


def room_of_queue(queue: MessageQueue) -> str:
    return re.split("[@-]", queue.broker_name)[0]


def room_of_member(member: str) -> str:
    return member.split("-")[0]


OURS: dict[str, Strategy] = {
    name_of(one): one
    for one in (
        AVERAGE,
        AVERAGE_BY_CIRCLE,
        CONSISTENT_HASH,
        MachineRoom(frozenset({"r1", "r3"})),
        MachineRoomNearby(AVERAGE, room_of_queue, room_of_member),
        MachineRoomNearby(CONSISTENT_HASH, room_of_queue, room_of_member),
    )
}


def queues_of(**brokers: int) -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, number) for broker, count in brokers.items() for number in range(count)]


def numbers(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_assignment_is_what_apache_s_client_computes(name: str) -> None:
    cases: list[dict[str, Any]] = [case for case in RECORDED["assign"] if case["strategy"] == name]
    assert cases
    for case in cases:
        queues = queues_of(**case["brokers"])
        for me, expected in case["expect"].items():
            mine = OURS[name]("g", me, list(reversed(queues)), case["members"])
            assert " ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in mine) == expected, (case, me)


members_of_a_group = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=9, unique=True)
BROKERS = ("a", "b", "r1@c", "r3@d", "\U0001f600", "～")
a_queue = st.builds(MessageQueue, st.just("T"), st.sampled_from(BROKERS), st.integers(0, 11))
queues_of_a_topic = st.lists(a_queue, max_size=40, unique=True)


def nearby(inner: Strategy) -> Strategy:
    return MachineRoomNearby(inner, lambda queue: queue.broker_name[0], lambda member: member[0])


@pytest.mark.parametrize("strategy", [*STRATEGIES.values(), nearby(AVERAGE), nearby(CONSISTENT_HASH)], ids=name_of)
@given(queues=queues_of_a_topic, members=members_of_a_group, data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_queue_has_exactly_one_reader_whatever_order_the_lists_came_in(
    strategy: Strategy, queues: list[MessageQueue], members: list[str], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(queues))
    assigned = [queue for me in members for queue in strategy("g", me, shuffled, data.draw(st.permutations(members)))]
    assert sorted(assigned) == sorted(queues)


@given(queues=queues_of_a_topic, members=members_of_a_group)
@settings(max_examples=60, deadline=None)
def test_average_shares_differ_by_one_at_most(queues: list[MessageQueue], members: list[str]) -> None:
    for strategy in (AVERAGE, AVERAGE_BY_CIRCLE):
        sizes = {len(strategy("g", me, queues, members)) for me in members}
        assert max(sizes) - min(sizes) <= 1


def test_the_docstrings_examples_hold() -> None:
    five, abc = queues_of(b=5), ["a", "b", "c"]
    assert [numbers(AVERAGE("g", me, five, abc)) for me in abc] == [[0, 1], [2, 3], [4]]
    assert [numbers(AVERAGE_BY_CIRCLE("g", me, five, abc)) for me in abc] == [[0, 3], [1, 4], [2]]
    room = MachineRoom(frozenset({"r"}))
    five, eight = queues_of(**{"r@b": 5}), queues_of(**{"r@b": 8})
    assert [numbers(room("g", me, five, abc)) for me in abc] == [[0, 3], [1, 4], [2]]
    assert [numbers(room("g", me, eight, abc)) for me in abc] == [[0, 1, 6], [2, 3, 7], [4, 5]]


def test_who_is_not_in_the_group_gets_nothing() -> None:
    for strategy in OURS.values():
        assert strategy("g", "r1-stranger", queues_of(**{"r1@a": 4}), ["r1-x"]) == []
        assert strategy("g", "r1-x", queues_of(**{"r1@a": 4}), []) == []
        assert strategy("g", "r1-x", [], ["r1-x"]) == []


def test_config_gives_what_was_configured() -> None:
    queues = queues_of(a=3)
    assert Configured(tuple(queues[1:]))("g", "anyone", queues, ["x", "y"]) == queues[1:]
    assert name_of(Configured(())) == "CONFIG"


def test_a_member_that_leaves_moves_only_its_own_queues_on_the_ring() -> None:
    queues, members = queues_of(a=16, b=16), ["w", "x", "y", "z"]
    before = {queue: me for me in members for queue in CONSISTENT_HASH("g", me, queues, members)}
    after = {queue: me for me in members[:3] for queue in CONSISTENT_HASH("g", me, queues, members[:3])}
    assert all(after[queue] == me for queue, me in before.items() if me != "z")


def test_a_ring_without_points_gives_nothing_and_a_negative_one_is_refused() -> None:
    assert ConsistentHash(0)("g", "a", queues_of(b=2), ["a"]) == []
    with pytest.raises(ValueError, match="virtual_nodes=-1"):
        ConsistentHash(-1)


def test_a_room_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="no machine room is known for"):
        MachineRoomNearby(AVERAGE, lambda queue: "", room_of_member)("g", "r-a", queues_of(b=1), ["r-a"])


def test_a_plain_function_serves_as_a_strategy() -> None:
    def everything(group: str, me: str, queues: object, members: object) -> list[MessageQueue]:
        return []

    assert name_of(everything) == "everything"
