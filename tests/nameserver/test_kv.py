"""The KV configuration and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roquet.errors import Damaged, Refused
from roquet.nameserver import kv as kv_module
from roquet.nameserver.kv import KvStore
from roquet.store.disk import DiskFile, RealDisk


class Stopped(OSError):
    pass


class StoppingDisk(RealDisk):
    """Does a number of steps that change something, then nothing any more: the machine stopped there."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Stopped("stopped")

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        if size is not None:
            self._step()
        return super().open(path, size=size)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        self._step()
        super().sync_dir(path)


def stored(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def opened(tmp_path: Path, disk: RealDisk | None = None) -> KvStore:
    return KvStore(disk or RealDisk(), str(stored(tmp_path)))


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    opened(tmp_path).put("ns", "k", "值")
    kv = opened(tmp_path)
    assert kv.get("ns", "k") == "值"
    assert kv.namespace("ns") == {"k": "值"}
    assert json.loads(stored(tmp_path).read_text()) == {"configTable": {"ns": {"k": "值"}}}


def test_what_was_never_put_is_not_there(tmp_path: Path) -> None:
    kv = opened(tmp_path)
    assert kv.get("ns", "k") is None
    assert kv.namespace("ns") is None
    kv.delete("ns", "k")
    assert not stored(tmp_path).exists()


def test_a_deleted_value_is_gone_and_its_namespace_stays(tmp_path: Path) -> None:
    kv = opened(tmp_path)
    kv.put("ns", "k", "v")
    kv.delete("ns", "k")
    assert opened(tmp_path).namespace("ns") == {}


def test_a_namespace_handed_out_is_a_copy(tmp_path: Path) -> None:
    kv = opened(tmp_path)
    kv.put("ns", "k", "v")
    copy = kv.namespace("ns")
    assert copy is not None
    copy["k"] = "changed"
    assert kv.get("ns", "k") == "v"


def test_a_file_that_java_wrote_is_read(tmp_path: Path) -> None:
    stored(tmp_path).parent.mkdir()
    stored(tmp_path).write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}')
    assert opened(tmp_path).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4;broker-b:4"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"configTable":{"ns":5}}', b"\xff\x00", b'{"configTable":{"ns":{"k":{}}}}'])
def test_the_generation_before_is_used_when_the_file_is_damaged(tmp_path: Path, damage: bytes) -> None:
    kv = opened(tmp_path)
    kv.put("ns", "k", "1")
    kv.put("ns", "k", "2")
    stored(tmp_path).write_bytes(damage)
    kv = opened(tmp_path)
    assert kv.get("ns", "k") == "1"
    kv.put("ns", "k", "3")
    assert opened(tmp_path).get("ns", "k") == "3"
    stored(tmp_path).write_bytes(damage)
    assert opened(tmp_path).get("ns", "k") == "1", "the damaged file did not become the .bak"


def test_when_nothing_can_be_read_the_error_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    stored(tmp_path).parent.mkdir()
    stored(tmp_path).write_bytes(b"{")
    with pytest.raises(Damaged, match=r"kvConfig\.json cannot be used.*remove them to start anew"):
        opened(tmp_path)


def test_a_huge_file_is_not_read_into_memory(tmp_path: Path) -> None:
    stored(tmp_path).parent.mkdir()
    with stored(tmp_path).open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(Damaged, match="1073741824 bytes"):
        opened(tmp_path)


@pytest.mark.parametrize("steps", range(5))
def test_stopping_anywhere_leaves_the_old_value_or_the_new_one(tmp_path: Path, steps: int) -> None:
    kv = opened(tmp_path)
    kv.put("ns", "k", "0")
    kv.put("ns", "k", "old")
    kv = opened(tmp_path, StoppingDisk(steps))
    try:
        kv.put("ns", "k", "new")
        told = "new"
    except Refused:
        told = "old"
    assert kv.get("ns", "k") == told
    again = opened(tmp_path)
    assert again.get("ns", "k") in ({"new"} if told == "new" else {"old", "new"})
    again.put("ns", "k", "later")
    assert opened(tmp_path).get("ns", "k") == "later"


def test_a_full_disk_refuses_the_change_and_later_ones_work(tmp_path: Path) -> None:
    disk = StoppingDisk(0)
    kv = opened(tmp_path, disk)
    with pytest.raises(Refused, match=r"the KV table stays as it was.*kvConfig\.json cannot be written: stopped"):
        kv.put("ns", "k", "v")
    assert kv.get("ns", "k") is None
    disk.steps = 100
    kv.put("ns", "k", "v")
    assert opened(tmp_path).get("ns", "k") == "v"


def test_putting_the_same_again_writes_nothing(tmp_path: Path) -> None:
    kv = opened(tmp_path)
    kv.put("ns", "k", "v")
    kv.put("ns", "k", "w")
    before = stored(tmp_path).stat().st_ino
    kv.put("ns", "k", "w")
    assert stored(tmp_path).stat().st_ino == before


@pytest.mark.parametrize(
    ("namespace", "key", "value", "match"),
    [
        ("n" * 1025, "k", "v", "namespace of 1025 bytes, limit is 1024"),
        ("n", "é" * 600, "v", "key of 1200 bytes"),
        ("n", "k", "v" * (256 * 1024 + 1), "value of 262145 bytes"),
    ],
)
def test_sizes_are_bounded(tmp_path: Path, namespace: str, key: str, value: str, match: str) -> None:
    with pytest.raises(Refused, match=match):
        opened(tmp_path).put(namespace, key, value)


def test_the_number_of_entries_and_the_whole_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = opened(tmp_path)
    kv.put("ns", "k", "v")
    monkeypatch.setattr(kv_module, "ENTRIES_MAX", 1)
    with pytest.raises(Refused, match="1 entries, the limit"):
        kv.put("other", "k", "v")
    kv.put("ns", "k", "w")
    monkeypatch.setattr(kv_module, "FILE_SIZE_MAX", 20)
    with pytest.raises(Refused, match="limit is 20"):
        kv.put("ns", "k", "longer")
    assert kv.get("ns", "k") == "w"


def test_two_name_servers_with_one_file_do_not_take_each_other_s_entries_away(tmp_path: Path) -> None:
    path = str(tmp_path / "kvConfig.json")
    first, second = KvStore(RealDisk(), path), KvStore(RealDisk(), path)
    first.put("n", "a", "1")
    with pytest.raises(Refused, match="its own kvConfigPath"):
        second.put("n", "b", "2")
    first.put("n", "c", "3")
    assert KvStore(RealDisk(), path).namespace("n") == {"a": "1", "c": "3"}
