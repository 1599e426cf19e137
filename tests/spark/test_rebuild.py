"""rebuild: queues and index come out of the log as the broker wrote them, byte for byte."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.cli.main import main
from roquet.errors import Damaged
from roquet.spark.pipelines.rebuild import QUEUED, Run, extent, rebuild, surviving, write_queue
from roquet.spark.pipelines.verify import verify
from roquet.store.queue import BLANK_ENTRY
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import ENTRY
from tests.spark.test_verify import SMALL, break_body, filled
from tests.store.conftest import VECTORS, StoreKit, put


@pytest.fixture
def kit(tmp_path: Path) -> StoreKit:
    return StoreKit(tmp_path / "store")


def derived(root: str | Path) -> dict[str, bytes]:
    """Every queue and index file, name -> bytes."""
    return {
        str(file.relative_to(root)): file.read_bytes()
        for name in ("consumequeue", "index")
        for file in Path(root, name).rglob("*")
        if file.is_file()
    }


def lose(root: str | Path) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(Path(root, name))


def rebuilt(root: str | Path, **options: Any) -> Any:
    return rebuild(None, str(root), piece_bytes=SMALL, **options)


SHAPE: dict[str, Any] = {"mapped_file_size_consume_queue": 600, "max_hash_slot_num": 100, "max_index_num": 400}


def shape() -> Any:
    """The sizes of the kit's files, which nothing tells once they are gone."""
    from roquet.settings import BrokerSettings

    return BrokerSettings(**SHAPE)


def test_lost_files_are_made_again_byte_for_byte_but_for_the_index_names(kit: StoreKit) -> None:
    path = filled(kit)
    before = derived(path)
    lose(path)
    result = rebuilt(path, settings=shape())
    after = derived(path)
    assert {name: data for name, data in after.items() if "queue" in name} == {
        name: data for name, data in before.items() if "queue" in name
    }
    assert [after[name] for name in sorted(after) if "index" in name] == [before[name] for name in sorted(before) if "index" in name]
    assert len(result.index_files) > 2
    assert verify(None, path, settings=shape()).ok


def test_files_that_are_there_give_their_names_to_the_new_ones_and_are_kept_beside(kit: StoreKit) -> None:
    path = filled(kit)
    before = derived(path)
    result = rebuilt(path)
    assert derived(path) == before
    assert len(result.old) == 2
    assert {file.name for file in Path(result.old[0]).parent.iterdir()} >= {"commitlog", "consumequeue", "index"}
    assert not Path(path, "rebuild").exists()
    assert {name for name in before if name.startswith("index")} == {f"index/{file.name}" for file in Path(result.old[1]).iterdir()}


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_java_files_are_made_again_byte_for_byte(tmp_path: Path, kind: str) -> None:
    with tarfile.open(VECTORS / f"store-4.9.7-{kind}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "store"
    before = derived(root)
    rebuilt(root)
    assert derived(root) == before
    lose(root)
    rebuilt(root, settings=shape())
    assert {name: data for name, data in derived(root).items() if "queue" in name} == {
        name: data for name, data in before.items() if "queue" in name
    }
    assert [data for name, data in derived(root).items() if "index" in name] == [data for name, data in before.items() if "index" in name]


def test_a_rebuilt_store_opens_without_reading_its_log_again(kit: StoreKit) -> None:
    path = filled(kit)
    lose(path)
    rebuilt(path, settings=shape())
    store = kit.open()
    assert store.recovered_records == 0
    assert store.queue("T", 0).next == 25
    assert len(store.query("T", "k12", 10, 0, 1 << 60)[0]) == 1
    store.close()


def drop_first_log_file(kit: StoreKit) -> None:
    sorted(Path(kit.root, "commitlog").iterdir())[0].unlink()


def delete_and_make_again(kit: StoreKit) -> None:
    store = kit.open()
    store.delete_topic("T")
    for number in range(7):
        put(store, "T", 0, b"again", f"KEYS\x01again{number}")
    store.commit()
    store.close()


def nothing(kit: StoreKit) -> None:
    """As it is."""


@pytest.mark.parametrize("life", [nothing, drop_first_log_file, delete_and_make_again])
def test_lost_files_are_made_again_as_the_broker_makes_them(kit: StoreKit, tmp_path: Path, life: Callable[[StoreKit], None]) -> None:
    """The broker derives everything from the log when it finds nothing else: queues that start in their middle, topics made twice."""
    path = filled(kit)
    life(kit)
    lose(path)
    other = StoreKit(tmp_path / "other")
    shutil.copytree(path, other.root)
    other.open().close()
    rebuilt(path, settings=shape())
    theirs, ours = derived(other.root), derived(path)
    assert {name: data for name, data in ours.items() if "queue" in name} == {
        name: data for name, data in theirs.items() if "queue" in name
    }
    assert [ours[name] for name in sorted(ours) if "index" in name] == [theirs[name] for name in sorted(theirs) if "index" in name]


def test_queues_of_deleted_topics_stay_away_and_numbers_without_records_stay(kit: StoreKit) -> None:
    path = filled(kit)
    store = kit.open()
    for _ in range(3):
        put(store, "Gone")
    store.commit()
    store.delete_topic("Gone")
    store.close()
    topics: dict[str, dict[str, int]] = {name: {} for name in ("T", "Other", "Third", "Transactions", "Quiet")}
    Path(path, "config", "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    drop_first_log_file(kit)
    quiet = Path(path, "consumequeue", "Quiet", "0")
    quiet.mkdir(parents=True)
    (quiet / f"{0:020d}").write_bytes((ENTRY.pack(5, 100, 0) * 4).ljust(600, b"\0"))
    result = rebuilt(path)
    assert not Path(path, "consumequeue", "Gone").exists()
    assert result.kept == [("Quiet", 0)]
    assert (quiet / f"{0:020d}").read_bytes() == (ENTRY.pack(5, 100, 0) * 4).ljust(600, b"\0")


def test_a_store_that_a_broker_has_open_is_left_alone(kit: StoreKit) -> None:
    path = filled(kit)
    store = kit.open()
    with pytest.raises(Damaged, match="in use by a broker"):
        rebuilt(path)
    store.close()


def test_beside_a_running_broker_it_builds_into_another_directory(kit: StoreKit, tmp_path: Path) -> None:
    path = filled(kit)
    before = derived(path)
    store = kit.open()
    rebuilt(path, into=str(tmp_path / "beside"))
    assert derived(tmp_path / "beside") == before
    with pytest.raises(Damaged, match="exists already"):
        rebuilt(path, into=str(tmp_path / "beside"))
    store.close()


def test_a_damaged_log_is_refused_and_nothing_changes(kit: StoreKit) -> None:
    path = filled(kit)
    break_body(Path(path))
    before = derived(path)
    with pytest.raises(Damaged, match="nothing was rebuilt"):
        rebuilt(path)
    assert derived(path) == before
    assert not Path(path, "rebuild").exists()


def test_a_dry_run_says_what_would_be_and_writes_nothing(kit: StoreKit) -> None:
    path = filled(kit)
    everything = {file: file.stat().st_mtime_ns for file in Path(path).rglob("*")}
    result = rebuilt(path, dry_run=True)
    assert {file: file.stat().st_mtime_ns for file in Path(path).rglob("*")} == everything
    assert result.queues["T", 0] == (0, 25)
    assert result.index_entries == 300 * 3 + 30 * 3


def test_what_an_interrupted_run_left_behind_does_not_matter(kit: StoreKit) -> None:
    path = filled(kit)
    before = derived(path)
    shutil.copytree(Path(path, "consumequeue"), Path(path, "rebuild", "consumequeue"))
    Path(path, "rebuild", "parts").mkdir()
    rebuilt(path, index=False)
    assert derived(path) == before


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), min_size=1, max_size=6))
def test_a_queue_of_any_offsets_comes_out_as_recovery_leaves_it(tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]) -> None:
    """Recovery's rule, one record at a time: an offset that is there already cuts the queue off, a gap is filled with blanks."""
    expected: dict[int, int] = {}
    after = 0
    for position, number in enumerate(number for part in parts for number in part):
        expected = {known: where for known, where in expected.items() if known < number}
        if expected:
            expected |= dict.fromkeys(range(after, number), -1)
        expected[number] = position
        after = number + 1
    while expected[min(expected)] < 0:
        del expected[min(expected)]
    loads: dict[str, npt.NDArray[Any]] = {}
    runs = []
    position = 0
    for name, part in enumerate(parts):
        entries = np.zeros(len(part), dtype=QUEUED)
        entries["number"] = part
        entries["entry"]["offset"] = np.arange(position, position + len(part))
        entries["entry"]["size"] = 100
        position += len(part)
        loads[str(name)] = entries
        runs.append(Run(str(name), 0, len(part), min(part), max(part)))

    directory = tmp_path_factory.mktemp("queue")
    found: Iterator[Any] = surviving(runs, lambda run: loads[run.part])
    assert write_queue(str(directory), 10 * ENTRY.size, found) == (min(expected), after)

    files = sorted(directory.iterdir())
    entries = np.concatenate([np.frombuffer(file.read_bytes(), dtype=ENTRIES) for file in files])
    base = int(files[0].name) // ENTRY.size
    blank = np.frombuffer(BLANK_ENTRY, dtype=ENTRIES)[0]
    for number in range(base, base + len(entries)):
        entry = entries[number - base]
        if number >= after:
            assert entry["size"] == 0
        elif expected.get(number, -1) < 0:
            assert entry == blank
        else:
            assert entry["offset"] == expected[number]
    assert all(len(file.read_bytes()) == 200 for file in files)
    if all(sorted(part) == part for part in parts):
        assert extent(runs)[0] == min(expected)


def test_on_spark_it_is_the_same(kit: StoreKit, spark: Any) -> None:
    path = filled(kit, 100)
    before = derived(path)
    lose(path)
    rebuild(spark, path, settings=shape(), piece_bytes=SMALL * 5)
    after = derived(path)
    assert [after[name] for name in sorted(after)] == [before[name] for name in sorted(before)]


def test_the_command_asks_before_it_changes_anything(kit: StoreKit, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = filled(kit, 100)
    before = derived(path)
    assert main(["pipeline", "rebuild", "--store", path]) == 1
    assert "say --yes" in capsys.readouterr().err
    assert main(["pipeline", "rebuild", "--store", path, "--queues", "--yes", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["queueEntries"] == 120
    assert [Path(old).name.split(".")[0] for old in printed["old"]] == ["consumequeue"]
    assert derived(path) == before
