"""The end of the log that is written again after a crash: whatever ends that, what was safe before stays safe."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from roquet.store import rewriting
from roquet.store.disk import RealDisk
from roquet.store.segments import OpenFiles, Segments
from roquet.store.store import Store

from .conftest import StoreKit, bodies, put

BODIES = [b"%d" % number * 50 for number in range(30)]


@pytest.fixture
def killed(kit: StoreKit) -> StoreKit:
    """A store of some messages whose process was killed."""
    store = kit.open()
    for body in BODIES:
        store.begin(kit.clock.now_ms())
        put(store, body=body)
        store.commit()
    kit.crash(store)
    return kit


def interrupted(kit: StoreKit, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The next start ends while it writes again: its copy is there, and the first bytes of the log are spoiled."""

    class Ended(Exception):
        pass

    def spoil(segments: Segments, base: int) -> object:
        path = Path(segments.path(base))
        if (kit.root / rewriting.NAME).exists():
            raw = bytearray(path.read_bytes())
            raw[5] ^= 1
            path.write_bytes(raw)
            raise Ended
        return real(segments, base)

    real = Segments.file
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "file", spoil)
        with pytest.raises(Ended):
            kit.open()
    return kit.root / rewriting.NAME


def reopened(kit: StoreKit) -> Store:
    kit.opened.clear()
    return kit.open()


def test_a_start_that_ends_while_it_writes_again_loses_nothing(killed: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulation of whole groups, seed 5491: a member came back with an empty log, and what was committed was gone."""
    copy = interrupted(killed, monkeypatch)
    assert copy.exists()
    store = reopened(killed)
    assert bodies(store) == BODIES
    assert store.holes == []
    assert not copy.exists()
    store.close()


def test_a_copy_that_is_not_whole_is_not_used(killed: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = interrupted(killed, monkeypatch)
    log = killed.root / "commitlog" / f"{0:020}"
    raw = bytearray(log.read_bytes())
    raw[5] ^= 1  # sound again: nothing was written yet when the copy was cut off
    log.write_bytes(raw)
    torn = bytearray(copy.read_bytes())
    torn[-1] ^= 1
    copy.write_bytes(torn)
    store = reopened(killed)
    assert bodies(store) == BODIES
    assert not copy.exists()
    store.close()


def test_a_copy_of_a_log_that_another_broker_has_written_to_since_is_not_used(killed: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = interrupted(killed, monkeypatch)
    log = killed.root / "commitlog" / f"{0:020}"
    raw = bytearray(log.read_bytes())
    raw[5] ^= 1
    raw[200] ^= 1  # what the other one has there
    log.write_bytes(raw)
    (killed.root / "checkpoint").write_bytes(b"\1" * 4096)
    store = reopened(killed)
    assert log.read_bytes()[200] == raw[200]
    assert not copy.exists()
    store.close()


def test_a_full_disk_does_not_refuse_the_start(killed: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(disk: object, root: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rewriting, "checkpoint_of", no_room)
    store = killed.open()
    assert bodies(store) == BODIES
    assert not (killed.root / rewriting.NAME).exists()
    store.close()


def test_a_copy_is_put_back_over_files_that_it_spans(tmp_path: Path) -> None:
    disk = RealDisk()
    segments = Segments(OpenFiles(disk), str(tmp_path / "log"), 100)
    disk.make_dir(segments.directory)
    content = bytes(range(250))
    for base in (0, 100, 200):
        segments.create(base)
        segments.file(base).write(0, content[base : base + 100])
    rewriting.put_back(segments, 90, b"x" * 120)
    assert rewriting.read(segments, 0, 250) == content[:90] + b"x" * 120 + content[210:]
