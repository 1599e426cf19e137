"""The commit protocol of an archive: real files, no Spark, and a crash at every point."""

from __future__ import annotations

import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.errors import Damaged
from roquet.message import MessageQueue
from roquet.spark.archive import ledger as ledgers
from roquet.spark.archive.ledger import ArchiveBusy, Ledger, load, locate, staged_path
from roquet.spark.archive.manifest import ArchiveError, File, Gap, Span, State, evolved, partition, state_from_json, state_to_json

QUEUE = MessageQueue("orders", "broker-a", 0)
DATE = "2026-11-15"


class Crash(BaseException):
    """Nothing catches it, so what is on the disk is what kill -9 would leave."""


def crash_after(count: int) -> Callable[[str], None]:
    left = count

    def fault(_point: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash

    return fault


def write_file(ledger: Ledger, start: int, stop: int) -> File:
    """Offsets as lines: what a Parquet file would hold."""
    name = f"part-{uuid.uuid4().hex}"
    data = "\n".join(map(str, range(start, stop))).encode()
    staged_path(ledger.staging, name + ".parquet").write_bytes(data)
    path = f"{partition(QUEUE.topic, DATE)}/{name}.parquet"
    span = Span("broker-a", 0, start, stop, stop - start)
    return File(path, QUEUE.topic, DATE, stop - start, len(data), 1, zlib.crc32(data), 0, 0, (span,))


def append(ledger: Ledger, stop: int, files: int = 2) -> None:
    start = ledger.state.offsets.get(QUEUE, 0)
    ledger.stage()
    marks = [start + (stop - start) * number // files for number in range(files + 1)]
    made = [write_file(ledger, low, high) for low, high in pairwise(marks) if low < high]
    ledger.commit("append", made, ranges=[(QUEUE, start, stop)])


def compact(ledger: Ledger) -> None:
    old = sorted(ledger.state.files.values(), key=lambda file: file.spans)[:3]
    if len(old) > 1:
        ledger.stage()
        new = write_file(ledger, old[0].spans[0].start, old[-1].spans[0].stop)
        ledger.commit("replace", [new], removed=[file.path for file in old])


def rows(paths: list[Path]) -> list[int]:
    return sorted(int(line) for path in paths for line in path.read_text().split())


def visible(root: Path) -> list[int]:
    """What a reader of the directories sees."""
    return rows(list(root.glob("topic=*/date=*/*.parquet")))


def committed(root: Path) -> list[int]:
    """What a reader through the commits sees."""
    return rows([locate(root, file) for file in load(root).files.values()])


def test_a_batch_shows_after_its_commit_and_not_before(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.stage()
        made = write_file(ledger, 0, 5)
        assert visible(tmp_path) == []
        assert load(tmp_path).files == {}
        ledger.commit("append", [made], ranges=[(QUEUE, 0, 5)])
        assert visible(tmp_path) == committed(tmp_path) == [0, 1, 2, 3, 4]
        assert load(tmp_path).offsets == {QUEUE: 5}
        assert not ledger.staging.exists()
        assert list((tmp_path / "_staging").iterdir()) == []


def steps(ledger: Ledger, plan: list[tuple[str, int]]) -> None:
    for what, number in plan:
        if what == "append":
            append(ledger, ledger.state.offsets.get(QUEUE, 0) + number, files=1 + number % 3)
        else:
            compact(ledger)


def outcome(root: Path) -> None:
    """What must hold at every moment, also before anybody recovers."""
    state = load(root)
    reached = state.offsets.get(QUEUE, 0)
    assert committed(root) == list(range(reached)), "the commits do not give every row once"
    seen = visible(root)
    assert len(seen) == len(set(seen)), "a reader of the directories sees a row twice"
    assert set(seen) <= set(range(reached)), "a reader of the directories sees rows that were not committed"


@settings(max_examples=100, deadline=None)
@given(
    plan=st.lists(st.tuples(st.sampled_from(["append", "append", "compact"]), st.integers(1, 7)), min_size=1, max_size=5),
    crashes=st.lists(st.integers(0, 45), max_size=4),
)
def test_whatever_crashes_every_row_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[str, int]], crashes: list[int]
) -> None:
    root = tmp_path_factory.mktemp("archive")
    with mock.patch("os.fsync"):  # a process that dies loses nothing of what it wrote; only machines do
        survive(root, plan, crashes)


def survive(root: Path, plan: list[tuple[str, int]], crashes: list[int]) -> None:
    for after in crashes:
        ledger = None
        try:
            ledger = Ledger.open(root, fault=crash_after(after))
            steps(ledger, plan)
        except Crash:
            pass
        if ledger is not None:
            ledger.close()
        if (root / "_roquet" / "commits").is_dir():
            outcome(root)
    with Ledger.open(root) as ledger:
        steps(ledger, plan)
    outcome(root)
    assert visible(root) == committed(root)
    assert list((root / "_staging").iterdir()) == []
    assert not list((root / "_roquet" / "commits").glob(".*"))


def test_every_single_point_of_a_crash_is_survived(tmp_path: Path) -> None:
    """The same without chance: dies at the first point, then at the second, and so on, until nothing is left to die at."""
    plan = [("append", 5), ("append", 4), ("compact", 0), ("append", 2)]
    points = 0
    while True:
        root = tmp_path / str(points)
        ledger = Ledger.open(root, fault=crash_after(points))
        try:
            steps(ledger, plan)
            break
        except Crash:
            ledger.close()
            outcome(root)
            with Ledger.open(root) as again:
                reached = again.state.offsets.get(QUEUE, 0)
                if reached < 11:
                    append(again, 11)
            assert visible(root) == committed(root) == list(range(11))
        points += 1
    ledger.close()
    assert points > 25, f"only {points} points were tried; the faults are not where they should be"


CHILD = """
import os, sys
from pathlib import Path
from tests.spark.test_archive_ledger import append, compact
from roquet.spark.archive.ledger import Ledger
wanted, root = sys.argv[1], sys.argv[2]
def fault(point):
    if point == wanted:
        os._exit(9)
ledger = Ledger.open(root, fault=fault)
append(ledger, 20)
compact(ledger)
"""


@pytest.mark.parametrize(
    ("point", "rows_there"),
    [
        ("staged", 10),
        ("before commit", 10),
        ("commit written", 10),
        ("linked", 20),
        ("committed", 20),
        ("renamed", 20),
        ("before cleaning", 20),
        ("removed", 20),
    ],
)
def test_a_process_that_is_killed_leaves_all_or_nothing_of_its_batch(tmp_path: Path, point: str, rows_there: int) -> None:
    with Ledger.open(tmp_path) as ledger:
        append(ledger, 10)
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", CHILD, point, str(tmp_path)], cwd=root, timeout=900, check=False)
    assert done.returncode == 9
    assert committed(tmp_path) == list(range(rows_there))
    with Ledger.open(tmp_path) as ledger:
        assert visible(tmp_path) == list(range(rows_there))
        append(ledger, 20) if rows_there < 20 else None
    assert visible(tmp_path) == committed(tmp_path) == list(range(20))


def test_a_second_writer_is_sent_away(tmp_path: Path) -> None:
    with Ledger.open(tmp_path), pytest.raises(ArchiveBusy, match="another process"):
        Ledger.open(tmp_path)


def test_of_two_writers_without_a_lock_one_gets_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.spark.archive.ledger.fcntl.flock", lambda *_: None)
    first, second = Ledger.open(tmp_path), Ledger.open(tmp_path)
    for ledger in (first, second):
        ledger.stage()
    mine, theirs = write_file(first, 0, 5), write_file(second, 0, 7)
    first.commit("append", [mine], ranges=[(QUEUE, 0, 5)])
    with pytest.raises(ArchiveBusy, match="another writer"):
        second.commit("append", [theirs], ranges=[(QUEUE, 0, 7)])
    first.close()
    second.close()
    with Ledger.open(tmp_path):
        assert visible(tmp_path) == committed(tmp_path) == [0, 1, 2, 3, 4]


def test_a_writer_that_was_thought_dead_cannot_commit_files_that_were_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.spark.archive.ledger.fcntl.flock", lambda *_: None)
    old = Ledger.open(tmp_path)
    old.stage()
    made = write_file(old, 0, 5)
    kept = staged_path(old.staging, made.path).read_bytes()
    new = Ledger.open(tmp_path)  # sweeps what the old one staged
    old.staging.mkdir(parents=True, exist_ok=True)
    staged_path(old.staging, made.path).write_bytes(kept)
    with pytest.raises(ArchiveBusy):
        old.commit("append", [made], ranges=[(QUEUE, 0, 5)])
    append(new, 5)
    old.close()
    new.close()
    assert committed(tmp_path) == [0, 1, 2, 3, 4]


def test_a_commit_that_would_take_offsets_twice_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        append(ledger, 10)
        ledger.stage()
        again = write_file(ledger, 5, 15)
        with pytest.raises(Damaged, match="stands at 10"):
            ledger.commit("append", [again], ranges=[(QUEUE, 5, 15)])
        assert load(tmp_path).number == 0


def test_a_commit_whose_files_no_executor_left_here_is_refused(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.stage()
        made = write_file(ledger, 0, 5)
        staged_path(ledger.staging, made.path).unlink()
        with pytest.raises(ArchiveError, match="do all executors see"):
            ledger.commit("append", [made], ranges=[(QUEUE, 0, 5)])


def test_a_directory_with_other_files_is_not_made_an_archive(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(ArchiveError, match="other files"):
        Ledger.open(tmp_path)


def test_a_missing_commit_is_noticed(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        append(ledger, 1)
        append(ledger, 2)
        append(ledger, 3)
    (tmp_path / "_roquet" / "commits" / f"{1:020d}.json").unlink()
    with pytest.raises(Damaged, match="missing"):
        load(tmp_path)


def test_a_damaged_commit_is_named(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        append(ledger, 1)
    (tmp_path / "_roquet" / "commits" / f"{0:020d}.json").write_bytes(b'{"format": 1')
    with pytest.raises(Damaged, match=r"00000\.json is not a commit"):
        load(tmp_path)


def test_a_committed_file_that_is_gone_is_named_when_the_archive_is_opened(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, fault=crash_after(4))
    with pytest.raises(Crash):
        append(ledger, 5)
    ledger.close()
    for staged in (tmp_path / "_staging").glob("*/*"):
        staged.unlink()
    with pytest.raises(Damaged, match="is gone"):
        Ledger.open(tmp_path)


def test_an_archive_opens_from_its_checkpoint_as_from_its_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "COMMITS_PER_CHECKPOINT", 3)
    with Ledger.open(tmp_path) as ledger:
        for stop in range(1, 8):
            append(ledger, stop)
        compact(ledger)
    assert (tmp_path / "_roquet" / "checkpoint.json").exists()
    assert load(tmp_path) == load(tmp_path, whole=True)
    (tmp_path / "_roquet" / "checkpoint.json").write_bytes(b"torn")
    assert load(tmp_path) == load(tmp_path, whole=True)


def test_a_gap_is_kept_and_the_queue_goes_on_behind_it(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        append(ledger, 5)
        gap = Gap(QUEUE.topic, QUEUE.broker_name, QUEUE.queue_id, 5, 8)
        ledger.commit("append", ranges=[(QUEUE, 8, 9)], gaps=[gap])
    state = load(tmp_path)
    assert state.gaps == [gap]
    assert state.offsets == {QUEUE: 9}
    assert state_from_json(state_to_json(state)) == state


def test_columns_are_added_and_never_change_their_type() -> None:
    state = State(columns=("topic", "body"), properties=(("region", "string"),))
    assert evolved(state, (), [("amount", "double")]) == (("topic", "body"), (("region", "string"), ("amount", "double")))
    assert evolved(state, ("body", "keys"), []) == (("topic", "body", "keys"), (("region", "string"),))
    with pytest.raises(ArchiveError, match="region is string in this archive and cannot become double"):
        evolved(state, (), [("region", "double")])
    with pytest.raises(ArchiveError, match="differ in case"):
        evolved(state, (), [("Region", "string")])


def test_a_topic_with_a_percent_sign_has_a_directory_that_readers_take_apart() -> None:
    assert partition("%RETRY%billing", DATE) == "topic=%25RETRY%25billing/date=2026-11-15"
