"""Steps of the wall clock, and ages that do not follow them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.store.wall import WallWatch, step_text
from roquet.testing.clock import ManualClock

HOUR, DAY = 3_600_000, 86_400_000
TEN_YEARS = 3_650 * DAY


@pytest.mark.parametrize("step", [-TEN_YEARS, -1_001, 1_001, TEN_YEARS])
def test_a_step_is_told_once(step: int) -> None:
    clock = ManualClock()
    watch = WallWatch(clock)
    clock.forward(50)
    assert watch.look() == 0
    clock.step(step)
    clock.forward(50)
    assert watch.look() == step
    clock.forward(50)
    assert watch.look() == 0


def test_a_clock_that_is_adjusted_by_and_by_takes_no_step() -> None:
    clock = ManualClock()
    watch = WallWatch(clock)
    for _ in range(1_000):
        clock.forward(50)
        clock.step(-25)
        assert watch.look() == 0


def test_a_process_that_is_stopped_between_two_readings_sees_no_step() -> None:
    clock = ManualClock(wall_look_ms=5_000)
    watch = WallWatch(clock)
    for _ in range(3):
        assert watch.look() == 0


@given(
    ages=st.lists(st.integers(0, 10 * DAY), min_size=1, max_size=6),
    step=st.integers(-TEN_YEARS, TEN_YEARS),
    since=st.integers(0, 5 * DAY),
)
def test_nothing_is_older_than_it_is_whatever_the_clock_did(ages: list[int], step: int, since: int) -> None:
    """Marks of before the step, then one of after it."""
    ages = sorted(ages, reverse=True)
    clock = ManualClock()
    watch = WallWatch(clock)
    marks = [clock.now_ms() - age for age in ages]
    clock.step(step)
    marks.append(clock.now_ms())
    clock.forward(since)
    true = [*(age + since for age in ages), since]
    found = watch.ages_ms(marks)
    assert all(one <= sure for one, sure in zip(found, true, strict=True))
    assert found[-1] == (since if step <= 0 or step > since else since - step)


def test_a_mark_of_a_time_ahead_is_as_old_as_the_next() -> None:
    clock = ManualClock()
    watch = WallWatch(clock)
    start = clock.now_ms()
    clock.forward(5 * HOUR)
    assert watch.ages_ms([start, start + TEN_YEARS, start + HOUR, start + TEN_YEARS]) == [5 * HOUR, 4 * HOUR, 4 * HOUR, 0]
    assert watch.age_ms(start + TEN_YEARS) == 5 * HOUR - TEN_YEARS
    assert watch.age_ms(start) == 5 * HOUR


@pytest.mark.parametrize(("step", "words"), [(-3_600_000, "set back by 60.0 minutes, to "), (TEN_YEARS, "set forward by 3650.0 days, to ")])
def test_a_step_is_told_in_words(step: int, words: str) -> None:
    assert step_text(step, ManualClock().now_ms()).startswith(words)
    assert "ms since 1970" in step_text(step, 1 << 60)


def test_time_that_passed_while_the_steady_clock_stood_still_is_no_step_and_makes_things_older() -> None:
    clock = ManualClock()
    watch = WallWatch(clock)
    marked_ms = clock.now_ms()
    clock.step(3_600_000)
    watch.slept(3_600_000)
    assert watch.look() == 0
    assert watch.age_ms(marked_ms) == 3_600_000
