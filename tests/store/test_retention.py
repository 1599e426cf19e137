"""Which files go and whether writes are taken: one test per rule."""

from __future__ import annotations

import pytest

from roquet.settings import BrokerSettings
from roquet.store.retention import HOUR_MS, Decision, LogFile, decide, hours

NOW = 1_000 * HOUR_MS
SETTINGS = BrokerSettings(delete_when="04;16", file_reserved_time=72)


def aged(*ages_h: float) -> list[LogFile]:
    """Files of these ages in hours, oldest first."""
    return [LogFile(number * 1024, int(NOW - age * HOUR_MS)) for number, age in enumerate(ages_h)]


def bases(found: Decision) -> list[int]:
    return [file.base // 1024 for file in found.delete]


@pytest.mark.parametrize(("hour", "gone"), [(4, [0, 1]), (16, [0, 1]), (5, []), (0, [])])
def test_expired_files_go_at_the_hours_of_delete_when(hour: int, gone: list[int]) -> None:
    found = decide(aged(100, 72, 71.9, 1), SETTINGS, now_ms=NOW, hour=hour, used_ratio=0.5)
    assert bases(found) == gone
    assert found.writable
    assert ("deleteWhen" in found.reason) == bool(gone)


def test_expired_files_go_at_any_hour_when_asked() -> None:
    found = decide(aged(100, 10, 1), SETTINGS, now_ms=NOW, hour=1, used_ratio=0.5, manual=True)
    assert bases(found) == [0]
    assert "asked" in found.reason


def test_above_the_ratio_expired_files_go_at_any_hour_but_no_younger_ones() -> None:
    assert bases(decide(aged(100, 10, 1), SETTINGS, now_ms=NOW, hour=1, used_ratio=0.75)) == []
    found = decide(aged(100, 10, 1), SETTINGS, now_ms=NOW, hour=1, used_ratio=0.76)
    assert bases(found) == [0]
    assert "76%" in found.reason
    none = decide(aged(10, 1), SETTINGS, now_ms=NOW, hour=1, used_ratio=0.76)
    assert bases(none) == []
    assert "not old enough" in none.reason


def test_above_85_percent_files_of_any_age_go_if_allowed() -> None:
    assert bases(decide(aged(3, 2, 1), SETTINGS, now_ms=NOW, hour=1, used_ratio=0.86)) == [0, 1]
    gentle = SETTINGS.replace(clean_file_forcibly_enable=False)
    assert bases(decide(aged(3, 2, 1), gentle, now_ms=NOW, hour=1, used_ratio=0.95)) == []


def test_a_young_file_protects_the_old_ones_after_it() -> None:
    """The log has no holes: deletion stops at the first file that stays."""
    assert bases(decide(aged(100, 1, 100, 1), SETTINGS, now_ms=NOW, hour=4, used_ratio=0.5)) == [0]


@pytest.mark.parametrize("ratio", [0.5, 0.8, 0.99])
def test_the_last_file_never_goes(ratio: float) -> None:
    found = decide(aged(1_000), SETTINGS, now_ms=NOW, hour=4, used_ratio=ratio, manual=True)
    assert bases(found) == []
    assert ("last file" in found.reason) == (ratio > 0.75)
    assert bases(decide([], SETTINGS, now_ms=NOW, hour=4, used_ratio=ratio)) == []


def test_at_most_ten_files_go_in_one_round_oldest_first() -> None:
    files = aged(*[100.0] * 30)
    found = decide(files[::-1], SETTINGS, now_ms=NOW, hour=4, used_ratio=0.5)
    assert bases(found) == list(range(10))


def test_writes_stop_above_90_percent_and_come_back_at_85() -> None:
    def writable(ratio: float, before: bool) -> bool:
        return decide(aged(1), SETTINGS, now_ms=NOW, hour=1, used_ratio=ratio, writable=before).writable

    assert writable(0.90, True)
    assert not writable(0.91, True)
    assert not writable(0.88, False)
    assert writable(0.85, False)
    found = decide(aged(1), SETTINGS, now_ms=NOW, hour=1, used_ratio=0.91)
    assert "91%" in found.reason
    assert "refused" in found.reason


def test_hours_leave_out_what_is_none() -> None:
    assert hours("04") == {4}
    assert hours("04; 16;") == {4, 16}
    assert hours("noon;25;-1;7") == {7}
    assert hours("") == set()
