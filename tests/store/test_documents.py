"""Documents: generations, coalesced saves, and a crash after every single operation."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from roquet.store.disk import DiskFile, RealDisk
from roquet.store.documents import Document
from roquet.testing import ManualBackground, ManualClock, SimDisk

T = TypeVar("T")


def parse(data: bytes) -> dict[str, int]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found


def text(number: int) -> bytes:
    return json.dumps({"generation": number}).encode()


# -- a disk that crashes -------------------------------------------------------------------------------------------------


class Crash(Exception):
    pass


class Content:
    """A file's bytes: as written, and as the last sync left them."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytes(data)


class CrashFile:
    def __init__(self, disk: CrashDisk, path: str, content: Content) -> None:
        self.disk, self.path, self.content = disk, path, content

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.disk.step()
        self.content.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        self.disk.step()
        self.content.synced = bytes(self.content.data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.content.data[offset : offset + size])

    def size(self) -> int:
        return len(self.content.data)

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a document has no need of {name}")


class CrashDisk:
    """Crashes at operation number `crash_at`. Then of the names changed since the last sync_dir only the first `names_kept`
    changes survive (a file system keeps their order), and of every file what its last sync saw."""

    def __init__(self, crash_at: int = 1 << 30) -> None:
        self.crash_at = crash_at
        self.steps = 0
        self.names: dict[str, Content] = {}
        self.history: list[dict[str, Content]] = [{}]  # names at the last sync_dir, then after each change since

    def step(self) -> None:
        if self.steps == self.crash_at:
            raise Crash
        self.steps += 1

    def changed(self) -> None:
        self.history.append(dict(self.names))

    def after_crash(self, names_kept: int) -> CrashDisk:
        found = CrashDisk()
        found.names = {name: Content(content.synced) for name, content in self.history[names_kept].items()}
        found.history = [dict(found.names)]
        return found

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        if path not in self.names:
            if size is None:
                raise FileNotFoundError(path)
            self.step()
            self.names[path] = Content()
            self.changed()
        return CrashFile(self, path, self.names[path])

    def exists(self, path: str) -> bool:
        return path in self.names

    def remove(self, path: str) -> None:
        self.step()
        if self.names.pop(path, None) is not None:
            self.changed()

    def rename(self, old: str, new: str) -> None:
        self.step()
        self.names[new] = self.names.pop(old)
        self.changed()

    def sync_dir(self, path: str) -> None:
        self.step()
        self.history = [dict(self.names)]

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a document has no need of {name}")


def prepared(state: str) -> tuple[CrashDisk, set[int]]:
    """A disk before the save of generation 9, and what may be read from it before."""
    disk = CrashDisk()
    document = Document(disk, "d/topics.json")
    old = {"one": [1], "two": [1, 2], "damaged": [1, 2]}.get(state, [])
    for number in old:
        document.save(text(number))
    if state == "damaged":
        disk.names["d/topics.json"].data = bytearray(b"{")
        disk.names["d/topics.json"].synced = b"{"
    return disk, {1} if state == "damaged" else set(old[-1:])


@pytest.mark.parametrize("state", ["one", "two", "damaged"])
def test_a_crash_after_any_operation_leaves_the_old_or_the_new_document(state: str) -> None:
    crash_at = 0
    seen = set()
    while True:
        disk, before = prepared(state)
        document = Document(disk, "d/topics.json")
        document.load(parse)
        disk.steps, disk.crash_at = 0, crash_at
        try:
            document.save(text(9))
            crashed = False
        except Crash:
            crashed = True
        for names_kept in range(len(disk.history)):
            found = Document(disk.after_crash(names_kept), "d/topics.json").load(parse)
            assert found is not None, f"nothing left after a crash at operation {crash_at} with {names_kept} names kept"
            assert found["generation"] in (before if crashed else set()) | {9}
            seen.add(found["generation"])
        if not crashed:
            break
        crash_at += 1
    assert crash_at >= 5
    assert seen == before | {9}


def test_a_save_after_a_crash_at_any_operation_works_and_keeps_a_good_generation() -> None:
    for crash_at in range(7):
        disk, _ = prepared("two")
        document = Document(disk, "d/topics.json")
        document.load(parse)
        disk.steps, disk.crash_at = 0, crash_at
        with pytest.raises(Crash):
            document.save(text(9))
        disk = disk.after_crash(len(disk.history) - 1)
        document = Document(disk, "d/topics.json")
        document.load(parse)
        document.save(text(10))
        assert parse(bytes(disk.names["d/topics.json"].data)) == {"generation": 10}
        assert parse(bytes(disk.names["d/topics.json.bak"].data))["generation"] in (1, 2, 9)


# -- generations on the real disk ------------------------------------------------------------------------------------------


def test_a_document_that_never_was_is_none_without_a_warning(tmp_path: Path) -> None:
    document = Document(RealDisk(), str(tmp_path / "topics.json"))
    assert document.load(parse) is None
    assert document.warning == ""


def test_the_generation_before_stays_as_bak(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    document = Document(RealDisk(), str(path))
    document.save(text(1))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["topics.json"]
    document.save(text(2))
    assert path.read_bytes() == text(2)
    assert (tmp_path / "topics.json.bak").read_bytes() == text(1)
    assert document.load(parse) == {"generation": 2}
    assert document.warning == ""
    assert not (tmp_path / "topics.json.tmp").exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", None])
def test_a_damaged_or_missing_main_falls_back_and_says_so(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "topics.json"
    document = Document(RealDisk(), str(path))
    document.save(text(1))
    document.save(text(2))
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    document = Document(RealDisk(), str(path))
    assert document.load(parse) == {"generation": 1}
    assert "topics.json.bak" in document.warning
    document.save(text(3))
    assert (tmp_path / "topics.json.bak").read_bytes() == text(1), "the damaged one must not replace the good one"
    assert document.load(parse) == {"generation": 3}


def test_two_damaged_generations_are_none_with_a_warning_that_names_both(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{")
    (tmp_path / "topics.json.bak").write_bytes(b"")
    document = Document(RealDisk(), str(path))
    assert document.load(parse) is None
    assert "topics.json cannot" in document.warning
    assert "topics.json.bak cannot" in document.warning


def test_a_shorter_document_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    (tmp_path / "topics.json.tmp").write_bytes(b"x" * 1000)
    document = Document(RealDisk(), str(path))
    document.save(text(1))
    assert path.read_bytes() == text(1)


def test_an_empty_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        Document(RealDisk(), str(tmp_path / "topics.json")).save(b"")


def test_a_full_disk_leaves_the_present_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Document(RealDisk(), str(tmp_path / "topics.json"))
    document.save(text(1))

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("roquet.store.disk.pwrite", full)
        with pytest.raises(OSError, match="No space"):
            document.save(text(2))
    assert document.load(parse) == {"generation": 1}
    document.save(text(3))
    assert document.load(parse) == {"generation": 3}


# -- saving later ----------------------------------------------------------------------------------------------------------


def test_saves_that_wait_become_one_and_every_caller_is_told(tmp_path: Path) -> None:
    document, background = Document(RealDisk(), str(tmp_path / "topics.json")), ManualBackground(hold=True)
    told: list[tuple[int, Exception | None, bytes]] = []

    def tell(number: int) -> Callable[[Exception | None], None]:
        return lambda result: told.append((number, result, (tmp_path / "topics.json").read_bytes()))

    document.save_later(text(1), background, tell(1))
    assert document.busy
    document.save_later(text(2), background, tell(2))
    document.save_later(text(3), background, tell(3))
    document.save_later(text(4), background)
    assert len(background.waiting) == 1
    background.release_one()
    assert told == [(1, None, text(1))]
    background.release_one()
    assert told[1:] == [(2, None, text(4)), (3, None, text(4))]
    assert not background.waiting
    assert not document.busy
    assert (tmp_path / "topics.json.bak").read_bytes() == text(1)


def test_a_failed_save_is_told_and_the_next_one_goes_on(tmp_path: Path) -> None:
    document, background = Document(RealDisk(), str(tmp_path / "missing" / "topics.json")), ManualBackground(hold=True)
    told: list[Exception | None] = []
    document.save_later(text(1), background, told.append)
    document.save_later(text(2), background, told.append)
    background.release_one()
    assert isinstance(told[0], FileNotFoundError)
    (tmp_path / "missing").mkdir()
    background.release_one()
    assert told[1] is None
    assert document.load(parse) == {"generation": 2}


def test_a_done_that_saves_again_is_served(tmp_path: Path) -> None:
    document, background = Document(RealDisk(), str(tmp_path / "topics.json")), ManualBackground(hold=True)
    told: list[Exception | None] = []
    document.save_later(text(1), background, lambda _: document.save_later(text(2), background, told.append))
    background.release_one()
    background.release_one()
    assert told == [None]
    assert document.load(parse) == {"generation": 2}


def test_a_blocking_save_beside_one_under_way_is_refused(tmp_path: Path) -> None:
    document, background = Document(RealDisk(), str(tmp_path / "topics.json")), ManualBackground(hold=True)
    document.save_later(text(1), background)
    with pytest.raises(RuntimeError, match="under way"):
        document.save(text(2))
    background.release_one()
    document.save(text(2))
    assert document.load(parse) == {"generation": 2}


def test_a_want_of_file_descriptors_is_no_reason_for_the_older_generation() -> None:
    """Found by the simulation of groups (seed 241): the older generation of progress would be used, or the start refused for good."""
    disk = SimDisk(ManualClock(), "1")
    disk.make_dir("/d")
    document = Document(disk, "/d/table.json")
    for number in (1, 2):
        document.save(text(number))
    disk.fail("open", errno.EMFILE, "table.json")
    with pytest.raises(OSError, match="Too many open files"):
        document.load(parse)
    assert document.load(parse) == {"generation": 2}
    disk.fail("open", errno.EIO, "table.json")
    assert document.load(parse) == {"generation": 1}  # the file itself cannot be read
