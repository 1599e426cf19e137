from __future__ import annotations

import pytest
from chaos.availability import Happened, buckets, outages, pauses, rows


def steady(first: float, last: float) -> list[float]:
    return [first + 0.01 * number for number in range(int((last - first) / 0.01))]


def test_acknowledged_sends_are_counted_by_tenths_of_a_second() -> None:
    assert buckets([10.0, 10.05, 10.31, 99.0], 10.0, 10.45) == [2, 0, 0, 1, 0]


def test_short_pauses_are_service_and_long_ones_count_from_their_begin() -> None:
    times = [*steady(0, 2), *steady(2.4, 4), *steady(5, 6)]
    ((began, ended),) = pauses(times, 0, 6)
    assert began == pytest.approx(3.99)
    assert ended == pytest.approx(5.0)


def test_an_outage_belongs_to_the_fault_before_it() -> None:
    times = [*steady(0, 2), *steady(5, 8), *steady(9, 10)]
    first, second = outages([Happened("kill", "a", 2.0, 3.0), Happened("cut", "a", 8.0, 8.5)], times, 10.0)
    assert first.seconds == pytest.approx(3.0)
    assert second.seconds == pytest.approx(1.0)


def test_service_that_never_comes_back_is_an_outage_to_the_end() -> None:
    (only,) = outages([Happened("kill", "a", 2.0, 3.0)], steady(0, 2), 10.0)
    assert only.seconds == pytest.approx(8.0)


def test_rows_are_by_kind_with_all_last() -> None:
    times = [*steady(0, 2), *steady(5, 8), *steady(9, 10)]
    found = outages([Happened("kill", "a", 2.0, 3.0), Happened("cut", "a", 8.0, 8.5)], times, 10.0)
    assert [(row.kind, row.faults) for row in rows(found)] == [("cut", 1), ("kill", 1), ("all", 2)]
    assert rows(found)[-1].mean_s == pytest.approx(2.0)
    assert rows([]) == []
