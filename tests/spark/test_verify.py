"""verify: what is wrong is found and said where; what is normal is not."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roquet.cli.main import main
from roquet.spark.pipelines.store_files import layout_of, pieces_of
from roquet.spark.pipelines.verify import Report, verify
from roquet.store import queue
from roquet.wire.columns import ENTRIES
from roquet.wire.layout import ENTRY, MAGIC_V1
from tests.spark.test_derive import pack
from tests.store.conftest import VECTORS, StoreKit, put

SMALL = 3_000
"""Bytes of a piece, so that files of 16 KiB have several."""


@pytest.fixture
def kit(tmp_path: Path) -> StoreKit:
    return StoreKit(tmp_path / "store")


def filled(kit: StoreKit, count: int = 300) -> str:
    """A store of many small files, stopped cleanly: tags, keys, delays, halves and rolled back ones among plain messages."""
    store = kit.open()
    for number in range(count):
        store.begin(kit.clock.ms + number * 700)
        properties = f"UNIQ_KEY\x01id{number:06d}\x02KEYS\x01k{number} ключ{number % 7}\x02TAGS\x01t{number % 5}"
        put(store, ("T", "Other", "Third")[number % 3], number % 4, b"body %d" % number * (1 + number % 30), properties)
        if number % 10 == 0:
            put(store, "SCHEDULE_TOPIC_XXXX", 2, b"later", f"DELAY\x013\x02UNIQ_KEY\x01d{number}")
            for kind in (0x4, 0x8, 0xC):
                made = store.queue("Transactions", 0)
                store.put(made, b"half", f"UNIQ_KEY\x01h{number}", sys_flag=kind, flag=0, born_ms=1, born_host=bytes(20))
        store.commit()
    store.close()
    return str(kit.root)


def checked(path: str, **options: Any) -> Report:
    return verify(None, path, piece_bytes=SMALL, **options)


def test_a_store_that_is_whole_has_no_problems_and_everything_is_counted(kit: StoreKit) -> None:
    report = checked(filled(kit))
    assert report.problems == {}
    assert report.counts["records"] == 300 + 30 * 4
    assert report.counts["queue entries"] == 300 + 30 * 2
    assert report.counts["index entries"] == report.counts["keys"] == 300 * 3 + 30 * 3
    assert report.remarks == {"not queued": 60}
    assert len(layout_of(str(kit.root)).bases) > 3


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_stores_of_java_brokers_have_no_problems(tmp_path: Path, kind: str) -> None:
    with tarfile.open(VECTORS / f"store-4.9.7-{kind}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    report = checked(str(tmp_path / "store"))
    assert report.problems == {}
    assert report.counts["records"] == 135
    assert report.finished == (kind == "stopped")


def test_a_running_store_may_lack_the_entries_of_its_last_messages(kit: StoreKit) -> None:
    store = kit.open()
    for number in range(50):
        put(store, properties=f"KEYS\x01k{number}")
        store.commit()
    report = checked(str(kit.root))
    assert report.problems == {}
    assert report.remarks["not derived yet"] == 100
    store.close()
    assert checked(str(kit.root)).remarks == {}


def test_a_broker_that_goes_on_writing_makes_no_problems(kit: StoreKit) -> None:
    """The log grows into pieces that are read later, behind what looked like its end; entries come for records that were not there."""
    store = kit.open()

    def write(done: int = 1) -> None:
        for number in range(5):  # less than a piece
            put(store, "T", number % 2, b"x" * 300, f"KEYS\x01k{number}")
        store.commit()
        kit.clock.ms += 2_000
        store.begin(kit.clock.ms)
        store.tick(kit.clock.ms)

    write()
    report = checked(str(kit.root), progress=write)
    assert report.problems == {}
    assert report.counts["records"] > 5
    store.close()


def test_a_torn_last_record_of_a_killed_store_is_no_problem_and_of_a_stopped_one_it_is(kit: StoreKit) -> None:
    path = filled(kit)
    kit.crash(kit.open())
    end = checked(path).log_end
    layout = layout_of(path)
    log = Path(path, "commitlog", f"{layout.bases[-1]:020d}")
    with log.open("r+b") as file:
        file.seek(end - layout.bases[-1])
        file.write(pack(("T", "", b"torn", 0, 0, MAGIC_V1, 0, 999), end)[:60])
    report = checked(path)
    assert report.problems == {}
    assert report.remarks["unfinished end"] == 1
    assert report.log_end == end
    Path(path, "abort").unlink()
    assert checked(path).problems == {"record damaged": 1}


def test_records_of_deleted_and_made_again_topics_are_remarks(kit: StoreKit) -> None:
    store = kit.open()
    for topic in ("Gone", "Again", "Stays"):
        for _ in range(5):
            put(store, topic)
    store.commit()
    store.delete_topic("Gone")
    store.delete_topic("Again")
    for _ in range(3):
        put(store, "Again")
    store.commit()
    store.close()
    Path(kit.root, "config", "topics.json").write_text(json.dumps({"topicConfigTable": {"Again": {}, "Stays": {}}}))
    report = checked(str(kit.root))
    assert report.problems == {}
    assert report.remarks == {"deleted topic": 10}
    Path(kit.root, "config", "deletedTopics.json").unlink()  # as in a directory of Apache's
    report = checked(str(kit.root))
    assert report.problems == {}
    assert report.remarks == {"deleted topic": 5, "replaced": 5}


def test_entries_below_the_log_are_a_remark(kit: StoreKit) -> None:
    path = filled(kit)
    log = sorted(Path(path, "commitlog").iterdir())
    log[0].unlink()
    report = checked(path)
    assert set(report.problems) == set()
    assert report.remarks["below the log"] > 10


def test_a_record_inside_a_body_is_not_taken_for_one(kit: StoreKit) -> None:
    """Its copy says the very offset at which it stands, so a piece that is cut there begins with it, until the one before knows better."""
    store = kit.open()
    at, size = store.log.end, 12_000
    head = 88  # of a record, before its body
    decoys = b""
    while len(decoys) < size:
        decoys += pack(("T", "KEYS\x01decoy", b"?", 0, 0, MAGIC_V1, 0, 1), at + head + len(decoys))
    put(store, "T", 0, decoys, "KEYS\x01true")
    put(store, "T", 0, b"next", "KEYS\x01next")
    store.commit()
    store.close()
    report = checked(str(kit.root))
    assert report.problems == {}
    assert report.counts["records"] == 2


def spoil(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def break_body(root: Path) -> None:
    log = sorted((root / "commitlog").iterdir())[1]
    spoil(log, log.read_bytes().index(b"body 1") + 2, b"X")


def break_size(root: Path) -> None:
    log = sorted((root / "commitlog").iterdir())[1]
    at = log.read_bytes().index(b"body 1") - 88
    spoil(log, at, b"\0\0\x20\0")


def zero_log(root: Path) -> None:
    spoil(sorted((root / "commitlog").iterdir())[1], 5_000, bytes(6_000))


def lose_log(root: Path) -> None:
    sorted((root / "commitlog").iterdir())[1].unlink()


def first_queue(root: Path) -> Path:
    return root / "consumequeue" / "T" / "0" / f"{0:020d}"


def wrong_tag(root: Path) -> None:
    spoil(first_queue(root), 5 * queue.ENTRY_SIZE + 12, bytes(8))


def empty_entry(root: Path) -> None:
    spoil(first_queue(root), 5 * queue.ENTRY_SIZE, bytes(queue.ENTRY_SIZE))


def entry_elsewhere(root: Path) -> None:
    spoil(first_queue(root), 5 * queue.ENTRY_SIZE, (30_000).to_bytes(8, "big"))


def one_too_many(root: Path) -> None:
    last = sorted((root / "consumequeue" / "T" / "0").iterdir())[-1]
    written = np.flatnonzero(np.frombuffer(last.read_bytes(), dtype=ENTRIES)["size"])[-1]
    spoil(last, (written + 1) * queue.ENTRY_SIZE, ENTRY.pack(100, 200, 0))


def lose_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "T" / "0")


def lose_index(root: Path) -> None:
    sorted((root / "index").iterdir())[0].unlink()


def short_queue_file(root: Path) -> None:
    with first_queue(root).open("r+b") as file:
        file.truncate(100)


def other_hash(root: Path) -> None:
    spoil(sorted((root / "index").iterdir())[0], 40 + 100 * 4 + 7 * 20, (12345).to_bytes(4, "big"))


def other_slot(root: Path) -> None:
    file = sorted((root / "index").iterdir())[0]
    slots = np.frombuffer(file.read_bytes()[40:440], dtype=">i4")
    spoil(file, 40 + int(np.argmax(slots)) * 4, bytes(4))


def other_header(root: Path) -> None:
    spoil(sorted((root / "index").iterdir())[0], 16, (77).to_bytes(8, "big"))


def other_time(root: Path) -> None:
    spoil(sorted((root / "index").iterdir())[0], 40 + 100 * 4 + 7 * 20 + 12, (9_999).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("harm", "kinds"),
    [
        (break_body, {"record damaged"}),
        (break_size, {"record damaged", "queue entry surplus", "index entry surplus"}),
        (zero_log, {"record damaged", "queue entry surplus", "index entry surplus"}),
        (lose_log, {"log file missing", "queue entry surplus"}),
        (wrong_tag, {"queue entry wrong"}),
        (empty_entry, {"queue entry missing", "queue hole"}),
        (entry_elsewhere, {"queue entry surplus"}),
        (one_too_many, {"queue entry surplus"}),
        (lose_queue, {"queue entry missing"}),
        (short_queue_file, {"queue entry missing", "queue file wrong"}),
        (lose_index, {"index entry missing"}),
        (other_hash, {"index entry missing", "index entry surplus", "index chain wrong"}),
        (other_slot, {"index chain wrong"}),
        (other_header, {"index file wrong"}),
        (other_time, {"index entry surplus"}),
    ],
)
def test_harm_is_found(kit: StoreKit, harm: Callable[[Path], None], kinds: set[str]) -> None:
    path = filled(kit)
    harm(Path(path))
    report = checked(path)
    assert set(report.problems) == kinds
    assert all(report.places[kind] for kind in kinds)
    assert set(verify(None, path).problems) == kinds  # wherever the pieces are cut


def test_what_was_not_asked_for_is_not_checked(kit: StoreKit) -> None:
    path = filled(kit)
    lose_index(Path(path))
    assert checked(path, index=False).ok
    lose_queue(Path(path))
    assert set(checked(path, queues=False).problems) == {"index entry missing"}


def test_on_spark_the_same_is_found_with_progress(kit: StoreKit, spark: Any) -> None:
    path = filled(kit, 100)
    wrong_tag(Path(path))
    done: list[int] = []
    report = verify(spark, path, piece_bytes=SMALL * 5, progress=done.append)
    here = checked(path)
    assert (report.problems, report.places, report.counts, report.remarks) == (here.problems, here.places, here.counts, here.remarks)
    assert sum(done) == len(pieces_of(layout_of(path), SMALL * 5))


def test_the_command_prints_the_problems_and_exits_with_1(kit: StoreKit, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = filled(kit, 100)
    assert main(["pipeline", "verify", "--store", path]) == 0
    assert "Nothing is wrong." in capsys.readouterr().out
    wrong_tag(Path(path))
    assert main(["pipeline", "verify", "--store", path, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["problems"]["queue entry wrong"]["count"] == 1
    assert "T/0 offset 5" in printed["problems"]["queue entry wrong"]["first"][0]
