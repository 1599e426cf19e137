"""What is due when a loop stood still has a little longer, once."""

from __future__ import annotations

from roquet.net.grace import GRACE_MS, LATE_MS, Grace


def test_an_alarm_that_rings_in_time_judges_at_once() -> None:
    grace = Grace()
    assert grace.judge(1_000, 1_000) == (1_000, 1_000)
    assert grace.judge(1_000, 1_000 + LATE_MS) == (1_000 + LATE_MS, 1_000 + LATE_MS)


def test_what_is_due_by_a_late_alarm_is_over_at_the_next_one() -> None:
    grace = Grace()
    until, again = grace.judge(1_000, 5_000)
    assert until < 0
    assert again == 5_000 + GRACE_MS
    assert grace.judge(again, again + 10) == (again + 10, again + 10)


def test_when_the_next_alarm_is_late_too_what_had_its_grace_is_over_and_what_is_new_has_one() -> None:
    grace = Grace()
    _, again = grace.judge(1_000, 5_000)
    assert grace.judge(again, 9_000) == (5_000, 9_000 + GRACE_MS)
    assert grace.judge(9_000 + GRACE_MS, 20_000) == (9_000, 20_000 + GRACE_MS)
