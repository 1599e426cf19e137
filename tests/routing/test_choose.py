"""The producer's queue choice."""

from __future__ import annotations

import pytest

from roquet.message import MessageQueue
from roquet.routing.choose import Faults, QueueChoice, penalty_ms

QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(2)]


def test_queues_take_turns() -> None:
    choice = QueueChoice(start=3)
    assert [choice.next(QUEUES, 0) for _ in range(5)] == [QUEUES[3], QUEUES[0], QUEUES[1], QUEUES[2], QUEUES[3]]


def test_a_retry_goes_to_another_broker_and_the_turn_goes_on_from_there() -> None:
    choice = QueueChoice()
    assert choice.next(QUEUES, 0).broker_name == "a"
    assert choice.next(QUEUES, 0, avoid="a") == QUEUES[2]
    assert choice.next(QUEUES, 0) == QUEUES[3]


def test_the_only_broker_is_tried_again_rather_than_nobody() -> None:
    alone = QUEUES[:2]
    assert QueueChoice().next(alone, 0, avoid="a") == alone[0]
    faults = Faults()
    faults.observe("a", 0, 0, failed=True)
    assert QueueChoice(faults=faults).next(alone, 0, avoid="a") == alone[0]


def test_no_queue_at_all_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="ask for the route"):
        QueueChoice().next([], 0)


@pytest.mark.parametrize(
    ("latency", "penalty"),
    [
        (0, 0), (50, 0), (100, 0), (549, 0), (550, 30_000), (999, 30_000), (1_000, 60_000), (2_000, 120_000),
        (3_000, 180_000), (14_999, 180_000), (15_000, 600_000), (99_999, 600_000),
    ],
)  # fmt: skip
def test_a_slow_broker_is_left_alone_as_long_as_upstream_s_table_says(latency: int, penalty: int) -> None:
    assert penalty_ms(latency) == penalty
    faults = Faults()
    faults.observe("a", latency, 1_000)
    assert faults.is_available("a", 1_000 + penalty)
    assert penalty == 0 or not faults.is_available("a", 1_000 + penalty - 1)


def test_a_broker_that_did_not_answer_is_left_alone_for_ten_minutes() -> None:
    faults = Faults()
    choice = QueueChoice(faults=faults)
    faults.observe("a", 3, 0, failed=True)
    assert {choice.next(QUEUES, 599_999).broker_name for _ in range(8)} == {"b"}
    assert {choice.next(QUEUES, 600_000).broker_name for _ in range(8)} == {"a", "b"}


def test_an_answer_in_time_forgives() -> None:
    faults = Faults()
    faults.observe("a", 0, 0, failed=True)
    faults.observe("a", 5, 10)
    assert faults.is_available("a", 10)


def test_when_all_are_bad_the_better_half_is_tried_in_turn() -> None:
    faults = Faults()
    queues = [MessageQueue("T", broker, number) for broker in "abcd" for number in range(2)]
    for broker, latency in (("a", 16_000), ("b", 600), ("c", 700), ("d", 20_000)):
        faults.observe(broker, latency, 0)
    choice = QueueChoice(faults=faults)
    assert [choice.next(queues, 1).broker_name for _ in range(4)] == ["b", "c", "b", "c"]
    assert len({choice.next(queues, 1).queue_id for _ in range(8)}) == 2
    assert choice.next(queues, 1, avoid="b").broker_name == "c"


def test_a_forgotten_broker_starts_afresh() -> None:
    faults = Faults()
    faults.observe("a", 0, 0, failed=True)
    faults.forget("a")
    assert faults.is_available("a", 0)
    faults.forget("a")
