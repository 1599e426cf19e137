"""The archive under kill -9, a few quick rounds of `make exactly-once`: real servers, and a driver that is a process of its own.

One test with local Spark and one without; rounds on a cluster are left to `make exactly-once`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from soak.exactly_once import Settings, Soak
from soak.kills import BROKER, DRIVER, EXECUTOR, POINTS, Kill, choose_kills
from soak.rows import Row, differences, digest

from roquet.spark.java import NoJava, find_java


def test_a_worker_and_a_driver_of_local_spark_that_are_killed_cost_no_message_and_double_none(tmp_path: Path) -> None:
    try:
        find_java()
    except NoJava as error:
        pytest.skip(str(error))
    kills = [Kill("local", EXECUTOR, 0.3), Kill("local", "before commit", 0.2)]
    with Soak(tmp_path, Settings()) as soak:
        report = soak.run(kills)
    assert report.faults == []
    assert (report.kills["executor's Python worker"], report.kills["driver, by itself at a point"]) == (1, 1)
    assert report.rows >= len(soak.sender.record.acknowledged) > 500
    assert report.commits > 4


def test_a_driver_without_spark_and_a_broker_that_are_killed_cost_no_message_and_double_none(tmp_path: Path) -> None:
    kills = [Kill("here", "before commit", 0.2), Kill("here", BROKER, 0.3), Kill("here", DRIVER, 0.5), Kill("here", "renamed", 0.1)]
    with Soak(tmp_path, Settings(spark_check=False)) as soak:
        report = soak.run(kills)
    assert report.faults == []
    assert (report.kills["broker"], report.kills["driver"], report.kills["driver, by itself at a point"]) == (1, 1, 2)
    assert report.rows >= len(soak.sender.record.acknowledged) > 500
    assert report.commits > 8


def test_an_archive_that_forgets_offsets_is_found_out(tmp_path: Path) -> None:
    """Or the tests above show nothing."""
    with Soak(tmp_path, Settings(spark_check=False, bug="forget-offsets", settle_s=0.2)) as soak:
        report = soak.run([Kill("here", "before commit", 0.9)])
    assert any("there twice" in fault for fault in report.faults), report.faults


ROWS = [Row("t", 0, 0, 11), Row("t", 0, 1, 12), Row("t", 1, 0, 13)]


def test_rows_that_are_the_same_are_no_difference_whatever_their_order() -> None:
    assert differences("x", ROWS[::-1], ROWS, ROWS[:2]) == []
    assert digest(ROWS[::-1]) == digest(ROWS)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (ROWS[:2], "x: missing: 1 rows, the first t/1/0/13"),
        ([*ROWS, ROWS[0]], "x: there twice: 1 rows, the first t/0/0"),
        ([*ROWS, Row("t", 1, 1, 1)], "x: not in the topic: 1 rows, the first t/1/1/1"),
        ([*ROWS[:2], Row("t", 1, 0, 99)], "x: not in the topic: 1 rows, the first t/1/0/99"),
        (ROWS[1:], "x: acknowledged and not there: 1 rows, the first t/0/0/11"),
    ],
)
def test_a_row_that_is_missing_or_there_twice_or_changed_is_reported(rows: list[Row], sentence: str) -> None:
    assert sentence in differences("x", rows, ROWS, ROWS[:2])
    assert digest(rows) != digest(ROWS)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_thirty_rounds_kill_everything_in_every_mode(kind: str) -> None:
    kills = choose_kills(30, Random(7), kind)
    assert choose_kills(30, Random(7), kind) == kills
    victims = [kill.victim for kill in kills]
    assert min(victims.count(DRIVER), victims.count(EXECUTOR), victims.count(BROKER), victims.count("before commit")) >= 3
    assert {kill.mode for kill in kills} == {"here", "local", "cluster"}
    assert {kill.victim for kill in kills if kill.point} <= set(POINTS[kind])
    assert not [kill for kill in kills if kill.mode == "here" and kill.victim == EXECUTOR]
