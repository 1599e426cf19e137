"""The checkpoint file, against Java's bytes and against files that are missing, short or torn."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from roquet.store.checkpoint import SIZE, Checkpoint
from roquet.store.derived import SYNC_DERIVED_MS
from roquet.store.disk import RealDisk
from tests.store.conftest import StoreKit, put

VECTORS = Path(__file__).parents[1] / "vectors"


def recorded(which: str) -> bytes:
    with tarfile.open(VECTORS / f"store-4.9.7-{which}.tar.gz") as archive:
        found = archive.extractfile("store/checkpoint")
        assert found is not None
        return found.read()


@pytest.mark.parametrize(("which", "queues_ms"), [("killed", 1794732929785), ("stopped", 1794732958551)])
def test_javas_file_is_read_and_written_byte_for_byte(tmp_path: Path, which: str, queues_ms: int) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(recorded(which))
    found = Checkpoint(RealDisk(), str(path))
    found.load()
    assert (found.log_ms, found.queues_ms, found.index_ms) == (1794732748075, queues_ms, 0)
    assert found.start_ms == 1794732745075
    path.unlink()
    found.save()
    assert path.read_bytes() == recorded(which)


def test_values_follow_the_log_also_where_the_clock_was_set_back(tmp_path: Path) -> None:
    checkpoint = Checkpoint(RealDisk(), str(tmp_path / "checkpoint"))
    checkpoint.note(log_ms=10, queues_ms=20, index_ms=30)
    checkpoint.note(log_ms=9, queues_ms=21)
    assert (checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms) == (9, 21, 30)
    checkpoint.save()
    again = Checkpoint(RealDisk(), checkpoint.path)
    again.load()
    assert (again.log_ms, again.queues_ms, again.index_ms) == (9, 21, 30)


def test_a_save_writes_the_values_of_when_it_began(tmp_path: Path) -> None:
    checkpoint = Checkpoint(RealDisk(), str(tmp_path / "checkpoint"))
    checkpoint.note(log_ms=10)
    work = checkpoint.begin_save()
    checkpoint.note(log_ms=11)
    work()
    again = Checkpoint(RealDisk(), checkpoint.path)
    again.load()
    assert again.log_ms == 10


def test_what_5x_keeps_there_survives(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(range(1, 9)) * 5 + bytes(SIZE - 40))
    checkpoint = Checkpoint(RealDisk(), str(path))
    checkpoint.load()
    checkpoint.save()
    assert path.read_bytes() == bytes(range(1, 9)) * 5 + bytes(SIZE - 40)


@pytest.mark.parametrize("size", [None, 0, 1, 23, 24, 39, 40])
def test_a_missing_or_short_file_vouches_for_nothing_it_does_not_hold(tmp_path: Path, size: int | None) -> None:
    path = tmp_path / "checkpoint"
    if size is not None:
        path.write_bytes((b"\0" * 7 + b"\5") * 3 + b"\0" * 16)
        path.write_bytes(path.read_bytes()[:size])
    checkpoint = Checkpoint(RealDisk(), str(path))
    checkpoint.load()
    assert checkpoint.log_ms == checkpoint.index_ms == (5 if size is not None and size >= 24 else 0)
    checkpoint.note(log_ms=7)
    checkpoint.save()
    assert path.stat().st_size == SIZE


def test_negative_times_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"\xff" * 24)
    checkpoint = Checkpoint(RealDisk(), str(path))
    checkpoint.load()
    assert (checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms) == (0, 0, 0)


def test_a_checkpoint_that_waits_says_nothing_of_a_log_that_begins_anew_meanwhile(kit: StoreKit) -> None:
    store = kit.open()
    waiting: list[Callable[[Exception | None], None]] = []
    store.derived.before_vouching = waiting.append
    store.applier.follow()
    kit.clock.forward(SYNC_DERIVED_MS)
    store.tick(kit.clock.steady_ms())
    start = 2 * kit.settings["mapped_file_size_commit_log"]
    store.begin_at(start)
    before = store.derived.checkpointed
    waiting.pop()(None)
    assert store.derived.checkpointed == before


def test_no_checkpoint_passes_messages_whose_topics_are_not_on_disk(kit: StoreKit) -> None:
    """Found by the simulation of whole groups, seed 161: a slave was killed, its checkpoint stood behind the first message of a queue, and
    the table of topics did not know that queue yet."""
    store = kit.open()
    waiting: list[Callable[[Exception | None], None]] = []
    store.derived.before_vouching = waiting.append

    def sync() -> None:
        kit.clock.forward(SYNC_DERIVED_MS)
        store.tick(kit.clock.steady_ms())

    put(store)
    store.commit()
    sync()
    assert len(waiting) == 1
    assert store.derived.checkpointed < store.log.written
    sync()
    assert len(waiting) == 1, "one at a time"
    waiting.pop()(OSError("no room"))
    assert store.derived.checkpointed < store.log.written
    sync()
    waiting.pop()(None)
    assert store.derived.checkpointed == store.log.written
    put(store)
    store.commit()
    sync()
    store.close()
    waiting.pop()(None)  # it comes too late, and nothing is written any more
    assert store.derived.checkpointed < store.log.written
