"""Timer files and the window: rows by the hour, what is pending of them, and what a crash leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.store import timers
from roquet.store.disk import RealDisk
from roquet.store.retention import HOUR_MS
from roquet.store.timers import GONE, NO_ROWS, NOTHING, ROW_SIZE, Fired, Rows, TimerCheckpoint, TimerFiles, Window, joined, rows_of

T0 = 500_000 * HOUR_MS
START = (0, -1)


@pytest.fixture
def files(tmp_path: Path) -> TimerFiles:
    return TimerFiles(RealDisk(), str(tmp_path / "timers"))


def write(files: TimerFiles) -> None:
    files.writer()[0]()


def load(files: TimerFiles, hour: int = 500_000, start: int = T0, mark: tuple[int, int] = START) -> tuple[list[list[int]], int]:
    rows, stop = files.loader(hour, start, Fired(mark))()
    return rows.tolist(), stop


# Files


def test_rows_go_to_the_file_of_their_hour_and_come_back(files: TimerFiles) -> None:
    files.add(rows_of([(T0 + 5, 100, 90), (T0 + HOUR_MS, 200, 91), (T0, 300, 92)]))
    files.add(rows_of([(T0 + 7, 400, 93)]))
    write(files)
    assert sorted(files.hours) == [500_000, 500_001]
    assert RealDisk().size(files.path(500_000)) == 3 * ROW_SIZE
    assert load(files) == ([[T0 + 5, 100, 90], [T0, 300, 92], [T0 + 7, 400, 93]], T0 + HOUR_MS)
    assert load(files, 500_001, T0 + HOUR_MS)[0] == [[T0 + HOUR_MS, 200, 91]]


def test_what_is_taken_back_fired_or_before_the_start_is_not_loaded(files: TimerFiles) -> None:
    files.add(rows_of([(T0 + n, 100 * n, 90) for n in range(1, 8)]))
    files.add(rows_of([(T0 + 5, 500, GONE)]))
    write(files)
    assert [due - T0 for due, _, _ in load(files, mark=(T0 + 2, 200))[0]] == [3, 4, 6, 7]
    assert [due - T0 for due, _, _ in load(files, start=T0 + 6)[0]] == [6, 7]


def test_an_hour_with_too_many_is_loaded_by_whole_seconds(files: TimerFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "WINDOW_ROWS", 10)
    files.add(rows_of([(T0 + n * 100, n, 90) for n in range(100)]))
    write(files)
    got: list[int] = []
    start = T0
    while start < T0 + HOUR_MS:
        rows, stop = load(files, start=start)
        assert len(rows) <= 10
        assert stop > start
        got += [offset for _, offset, _ in rows]
        start = stop
    assert got == list(range(100))


def test_a_single_second_with_too_many_is_loaded_whole(files: TimerFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "WINDOW_ROWS", 10)
    files.add(rows_of([(T0 + 5_000 + n, n, 90) for n in range(100)]))
    write(files)
    rows, stop = load(files, start=T0 + 5_000)
    assert (len(rows), stop) == (100, T0 + 6_000)


def test_the_oldest_record_needed_is_known_without_reading(files: TimerFiles) -> None:
    assert files.oldest() == NOTHING
    files.add(rows_of([(T0 + 5, 300, 90), (T0 + HOUR_MS, 200, 91), (T0 + 2 * HOUR_MS, 100, GONE)]))
    assert files.oldest() == 200
    assert files.forget_before(T0 + 2 * HOUR_MS) == [500_000, 500_001]
    assert files.oldest() == NOTHING


def test_rows_to_move_are_found_some_at_a_time(files: TimerFiles) -> None:
    files.add(rows_of([(T0 + n, 100 * n, 90) for n in range(1, 9)] + [(T0 + 3, 300, GONE)]))
    write(files)
    rows, first = files.mover(500_000, 600, Fired((T0 + 1, 100)), 2)()
    assert (rows[:, 1].tolist(), first) == ([200, 400], 500)
    rows, first = files.mover(500_000, 600, Fired((T0 + 1, 100)), 10)()
    assert (rows[:, 1].tolist(), first) == ([200, 400, 500], 600)


def test_a_write_that_failed_is_made_up_for_even_when_later_rows_were_written(files: TimerFiles) -> None:
    files.add(rows_of([(T0 + 1, 1, 90)]))
    _, failed = files.writer()
    files.add(rows_of([(T0 + 2, 2, 90)]))
    write(files)
    failed()
    files.add(rows_of([(T0 + 3, 3, 90)]))
    assert files.fresh_bytes == 2 * ROW_SIZE
    write(files)
    assert load(files)[0] == [[T0 + 1, 1, 90], [T0 + 2, 2, 90], [T0 + 3, 3, 90]]


def test_pieces_that_follow_each_other_are_joined() -> None:
    assert list(joined([(0, b"ab"), (2, b"c"), (5, b"d"), (6, b"e")])) == [(0, b"abc"), (5, b"de")]


def test_a_checkpoint_brings_the_files_back_as_they_were_then(files: TimerFiles, tmp_path: Path) -> None:
    files.add(rows_of([(T0 + 1, 1, 90), (T0 + HOUR_MS, 2, 90)]))
    write(files)
    files.syncer()()
    saved = TimerCheckpoint.decode(TimerCheckpoint(1_000, 2, (T0, -1), files.describe()).encode())
    assert (saved.log_end, saved.followed, saved.mark) == (1_000, 2, (T0, -1))
    files.add(rows_of([(T0 + 2, 3, 90), (T0 + 5 * HOUR_MS, 4, 90)]))
    write(files)
    again = TimerFiles(RealDisk(), str(tmp_path / "timers"))
    assert again.restore(saved.hours)
    assert sorted(again.hours) == [500_000, 500_001]
    assert load(again)[0] == [[T0 + 1, 1, 90]]
    assert not RealDisk().exists(again.path(500_005))
    again.add(rows_of([(T0 + 3, 5, 90)]))
    write(again)
    assert load(again)[0] == [[T0 + 1, 1, 90], [T0 + 3, 5, 90]]


def test_a_missing_or_short_file_is_noticed(files: TimerFiles, tmp_path: Path) -> None:
    files.add(rows_of([(T0 + 1, 1, 90), (T0 + HOUR_MS, 2, 90)]))
    write(files)
    hours = files.describe()
    (tmp_path / "timers" / f"{500_001:010d}").unlink()
    assert not TimerFiles(RealDisk(), str(tmp_path / "timers")).restore(hours)


# The window


@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1_000)), max_size=20),
            st.tuples(st.integers(0, 35), st.integers(1, 15)),
        ),
        max_size=30,
    )
)
def test_a_window_gives_rows_in_order_as_a_sorted_list_would(steps: list[list[tuple[int, int]] | tuple[int, int]]) -> None:
    window, model = Window(), list[tuple[int, int, int]]()
    for step in steps:
        if isinstance(step, list):
            rows = [(due, offset, 90) for due, offset in step]
            window.add(rows_of(rows))
            model = sorted(model + rows)
        else:
            before, count = step
            expected = [row for row in model if row[0] < before][:count]
            assert window.take(before, count).tolist() == [list(row) for row in expected]
            for row in expected:
                model.remove(row)
        assert len(window) == len(model)
        assert sorted(window.look(5, 20).tolist()) == [list(row) for row in model if 5 <= row[0] < 20]


def test_the_far_end_of_a_window_can_be_dropped() -> None:
    window = Window()
    window.add(rows_of([(n, n, 90) for n in range(100)]))
    window.add(rows_of([(n, 1_000 + n, 90) for n in range(0, 100, 10)]))
    assert window.due_of(11) == 10
    window.drop_from(10)
    assert len(window) == 11
    assert window.take(1_000, 100)[:, 0].tolist() == [0, *range(10)]
    assert len(window.take(1_000, 100)) == 0


def test_many_small_additions_leave_few_runs() -> None:
    window, random = Window(), np.random.default_rng(1)
    for _ in range(300):
        window.add(np.stack([random.integers(0, 1_000, 7), random.integers(0, 1 << 40, 7), np.full(7, 90)], axis=1))
    assert len(window) == 2_100
    assert len(window._runs) < 15
    taken: list[Rows] = []
    while len(rows := window.take(1_000, 100)):
        taken.append(rows)
    dues = np.concatenate(taken)[:, 0]
    assert (np.diff(dues) >= 0).all()
    assert len(dues) == 2_100


def test_nothing_is_added_for_no_rows(files: TimerFiles) -> None:
    files.add(NO_ROWS)
    assert files.hours == {}
