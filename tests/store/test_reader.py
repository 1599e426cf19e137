"""StoreReader: a store directory as somebody sees it who is not its broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roquet.errors import Damaged, NoRoute
from roquet.store.queue import ENTRY_SIZE
from roquet.store.reader import Gone, StoreReader
from roquet.store.scan import Found, parse, read_records
from roquet.store.segments import Segments
from roquet.store.store import Store
from roquet.wire.columns import ENTRIES
from tests.store.conftest import VECTORS, StoreKit, put


def bodies(reader: StoreReader, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    first, end = reader.bounds(topic, queue_id)
    found = []
    for entry in reader.entries(topic, queue_id, first, end):
        base = reader.log.base_of(int(entry["offset"]))
        assert base is not None
        at = int(entry["offset"]) - base
        raw = bytes(reader.log_view(base)[at : at + int(entry["size"])])
        assert parse(raw, int(entry["offset"])) is not None
        found.append(raw[88 : 88 + int.from_bytes(raw[84:88], "big")])
    return found


def fill(store: Store, count: int, topic: str = "T", queue_id: int = 0, start: int = 0) -> list[bytes]:
    made = [b"%d" % number for number in range(start, start + count)]
    for body in made:
        put(store, topic, queue_id, body)
        store.commit()
    return made


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}


def test_messages_are_seen_before_the_broker_wrote_their_entries(kit: StoreKit) -> None:
    store = kit.open()
    sent = fill(store, 5)
    assert store.queue("T", 0).tail_start == 0, "the broker has written them already; this test shows nothing"
    assert bodies(StoreReader(str(kit.root))) == sent


def test_a_range_beyond_the_files_needs_the_log_from_the_last_entry_on_only(kit: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kit.open()
    fill(store, 20)
    store.tails.write()
    fill(store, 20)
    places: list[int] = []

    def noted(log: Segments, start: int, stop: int | None = None) -> Iterator[Found]:
        places.append(start)
        return read_records(log, start, stop)

    monkeypatch.setattr("roquet.store.reader.read_records", noted)
    reader = StoreReader(str(kit.root))
    found = [*reader.entries("T", 0, 15, 25), *reader.entries("T", 0, 25, 30)]
    assert min(places) > 0
    assert reader.bounds("T", 0) == (0, 40)
    assert reader.entries("T", 0, 0, 40)[15:30].tolist() == [entry.tolist() for entry in found]


def test_a_refresh_shows_what_came_since(kit: StoreKit) -> None:
    store = kit.open()
    sent = fill(store, 40)
    reader = StoreReader(str(kit.root))
    assert bodies(reader) == sent
    for _ in range(5):
        sent += fill(store, 40, start=len(sent))
        kit.clock.ms += 1_000
        store.tick(kit.clock.ms)
        sent += fill(store, 3, start=len(sent))
        assert reader.bounds("T", 0)[1] < len(sent)
        reader.refresh()
        assert bodies(reader) == sent


def test_entries_are_those_of_the_broker_tags_and_delivery_times_included(kit: StoreKit) -> None:
    store = kit.open()
    for level in range(1, 4):
        put(store, "SCHEDULE_TOPIC_XXXX", level - 1, properties=f"DELAY\x01{level}\x02TAGS\x01a")
    fill(store, 5)
    store.commit()
    reader = StoreReader(str(kit.root))
    for (topic, queue_id), queue in store.queues.items():
        expected = np.frombuffer(queue.read(0, 100), ENTRIES)
        assert reader.entries(topic, queue_id, 0, queue.next).tolist() == expected.tolist()


def test_a_store_of_apache_is_read_as_its_broker_said(apache_store: Path) -> None:
    reader = StoreReader(str(apache_store))
    topic = ""
    for line in (VECTORS / "store-4.9.7-offsets.txt").read_text().splitlines():
        if line.startswith("## "):
            topic = line[3:]
        elif line.strip() and topic in reader.topics():
            _, queue_id, first, end = line.split()
            assert reader.bounds(topic, int(queue_id)) == (int(first), int(end)), f"{topic}/{queue_id}"
    assert reader.queues("VecTopic") == [0, 1, 2, 3]
    assert reader.broker == ""


def test_nothing_is_written_and_no_lock_is_needed(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 50)
    before = tree(kit.root)
    reader = StoreReader(str(kit.root))
    bodies(reader)
    reader.topics(), reader.queues("T"), reader.offset_at("T", 0, 5)
    assert tree(kit.root) == before
    with pytest.raises(OSError, match="reading only"):
        reader.disk.open(f"{kit.root}/new", size=1)


def test_a_record_that_is_not_whole_ends_the_queue(kit: StoreKit) -> None:
    store = kit.open()
    sent = fill(store, 10)
    end = store.log.written
    store.log.segments.file(0).write(end - 3, b"\0\0\0")
    assert bodies(StoreReader(str(kit.root))) == sent[:-1]
    store.tails.write()
    assert bodies(StoreReader(str(kit.root))) == sent[:-1], "an entry in a file is no proof"


def test_what_retention_removed_is_gone_and_the_rest_keeps_its_numbers(kit: StoreKit) -> None:
    store = kit.open()
    sent = fill(store, 1_000)
    reader = StoreReader(str(kit.root))
    assert bodies(reader) == sent
    store.tails.write()
    while len(store.log.segments.bases) > 2:
        store.log.segments.drop_first()
    reader.refresh()
    first, end = reader.bounds("T", 0)
    assert 0 < first < end == 1_000
    assert bodies(reader) == sent[first:]
    with pytest.raises(Gone) as gone:
        reader.entries("T", 0, 0, end)
    assert gone.value.available == first


def test_derived_entries_go_with_their_log_file(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 130)
    fill(store, 35, "T", 1)
    reader = StoreReader(str(kit.root))
    assert reader.bounds("T", 0) == (0, 130)
    store.tails.write()
    store.log.segments.drop_first()
    fill(store, 1)
    reader.refresh()
    assert reader.bounds("T", 0) == (130, 131)


def test_a_queue_file_that_goes_while_it_is_read_is_an_answer(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 1_000)
    store.tails.write()
    reader = StoreReader(str(kit.root))
    assert reader.bounds("T", 0) == (0, 1_000)
    for base in store.queue("T", 0).segments.bases[:5]:
        (kit.root / "consumequeue" / "T" / "0" / f"{base:020d}").unlink()
    reader.files.close()
    with pytest.raises(Gone) as gone:
        reader.entries("T", 0, 0, 10)
    assert gone.value.available == 5 * 600 // ENTRY_SIZE
    for directory in ("consumequeue/T", "commitlog"):
        shutil.rmtree(kit.root / directory)
        reader.refresh()
        with pytest.raises(NoRoute, match="no queue T/0"):
            reader.bounds("T", 0)


def test_a_topic_that_is_deleted_and_made_again_starts_anew(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 30)
    reader = StoreReader(str(kit.root))
    assert reader.bounds("T", 0) == (0, 30)
    store.delete_topic("T")
    again = fill(store, 3, start=100)
    reader.refresh()
    assert bodies(reader) == again
    assert bodies(StoreReader(str(kit.root))) == again
    store.tails.write()
    reader.refresh()
    assert bodies(reader) == again
    assert bodies(StoreReader(str(kit.root))) == again


def test_queue_files_that_were_made_anew_are_opened_anew(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 30)
    store.tails.write()
    reader = StoreReader(str(kit.root))
    assert reader.bounds("T", 0) == (0, 30)
    store.delete_topic("T")
    again = fill(store, 30, start=100)
    store.tails.write()
    reader.refresh()
    assert bodies(reader) == again


def test_a_log_without_queue_files_is_enough(kit: StoreKit, tmp_path: Path) -> None:
    store = kit.open()
    sent = fill(store, 300)
    other = fill(store, 20, "U", 3)
    store.close()
    for config in (True, False):
        copy = tmp_path / f"copy-{config}"
        shutil.copytree(kit.root / "commitlog", copy / "commitlog")
        if config:
            shutil.copytree(kit.root / "config", copy / "config")
            shutil.copy(kit.root / "checkpoint", copy / "checkpoint")
        reader = StoreReader(str(copy))
        assert bodies(reader) == sent
        assert bodies(reader, "U", 3) == other
        assert reader.topics() == ["T", "U"]


def test_entries_lost_in_the_middle_are_derived_from_the_log(kit: StoreKit) -> None:
    store = kit.open()
    sent = fill(store, 20)
    store.tails.write()
    (file,) = (kit.root / "consumequeue" / "T" / "0").iterdir()
    data = bytearray(file.read_bytes())
    sent += fill(store, 10, start=20)
    kit.crash(store)
    data[10 * ENTRY_SIZE :] = bytes(len(data) - 10 * ENTRY_SIZE)
    file.write_bytes(data)
    assert bodies(StoreReader(str(kit.root))) == sent


def test_another_store_in_the_same_place_is_noticed(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 30)
    reader = StoreReader(str(kit.root))
    assert reader.bounds("T", 0) == (0, 30)
    store.close()
    shutil.rmtree(kit.root)
    again = fill(kit.open(), 2, start=50)
    reader.refresh()
    assert bodies(reader) == again


def test_the_offset_of_a_time_is_the_first_message_stored_then_or_later(kit: StoreKit) -> None:
    store = kit.open()
    start = kit.clock.ms
    for step in range(20):
        store.begin(start + step * 10)
        fill(store, 2, start=step)
    reader = StoreReader(str(kit.root))
    assert reader.offset_at("T", 0, 0) == 0
    assert reader.offset_at("T", 0, start + 50) == 10
    assert reader.offset_at("T", 0, start + 51) == 12
    assert reader.offset_at("T", 0, start + 10_000) == 40


def test_the_files_tell_their_brokers_name_from_the_start(kit: StoreKit) -> None:
    store = kit.open(broker_name="broker-x")
    assert StoreReader(str(kit.root)).broker == "broker-x"
    store.close()
    assert StoreReader(str(kit.root)).broker == "broker-x"


def test_a_topic_that_the_broker_knows_and_nobody_sent_to_is_empty(kit: StoreKit) -> None:
    kit.open()
    known = '{"topicConfigTable":{"E":{"readQueueNums":2,"perm":6},"W":{"readQueueNums":2,"perm":2}}}'
    (kit.root / "config" / "topics.json").write_text(known)
    reader = StoreReader(str(kit.root))
    assert reader.topics() == ["E"]
    assert reader.queues("E") == [0, 1]
    assert reader.bounds("E", 1) == (0, 0)
    with pytest.raises(NoRoute):
        reader.bounds("E", 2)


def test_a_directory_that_is_no_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="commitlog"):
        StoreReader(str(tmp_path))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("TUV"), st.integers(0, 1), st.integers(1, 60)),
        st.tuples(st.just("tick"), st.integers(1, 11_000)),
        st.tuples(st.just("delete"), st.sampled_from("TU")),
        st.tuples(st.just("retain")),
        st.tuples(st.just("look")),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_reader_sees_what_consumers_see_whatever_the_broker_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    kit = StoreKit(tmp_path_factory.mktemp("reader") / "store")
    store = kit.open()
    reader = StoreReader(str(kit.root))
    for step in [*steps, ("look",)]:
        match step:
            case "put", topic, queue_id, count:
                fill(store, count, topic, queue_id)
            case "tick", ms:
                kit.clock.ms += ms
                store.begin(kit.clock.ms)
                store.tick(kit.clock.ms)
            case "delete", topic:
                store.delete_topic(topic)
                # The broker saves its topics then; one that is made by the next send is in again.
                known = {name: {"readQueueNums": 1, "perm": 6} for name, _ in store.queues}
                (kit.root / "config" / "topics.json").write_text(f'{{"topicConfigTable":{known}}}'.replace("'", '"'))
                kit.clock.ms += 10
                store.begin(kit.clock.ms)
            case ("retain",):
                store.tails.write()
                if len(store.log.segments.bases) > 1:
                    store.log.segments.drop_first()
                    for queue in store.queues.values():
                        queue.first = max(queue.first, min(first_left(store, queue), queue.next))
            case ("look",):
                reader.refresh()
                for one in (reader, StoreReader(str(kit.root))):
                    for (topic, queue_id), queue in store.queues.items():
                        if queue.first < queue.visible:
                            assert one.bounds(topic, queue_id) == (queue.first, queue.visible), (topic, queue_id)
                            bodies(one, topic, queue_id)
                            read = StoreReader(str(kit.root)).entries(topic, queue_id, queue.first, queue.visible)
                            assert read.tolist() == one.entries(topic, queue_id, queue.first, queue.visible).tolist()
    store.close()


def first_left(store: Store, queue: object) -> int:
    from roquet.store.recovery import first_at_or_after

    return first_at_or_after(queue, store.log.segments.start)  # type: ignore[arg-type]


def test_a_search_by_time_misses_nothing_where_the_clock_was_set_back(kit: StoreKit) -> None:
    store = kit.open()
    times: list[int] = []
    for step_ms in (0, -30_000, 3_600_000, -3_600_000):
        kit.clock.step(step_ms)
        for _ in range(40):
            kit.clock.forward(1_000)
            store.begin(kit.clock.now_ms())
            times.append(store.staging.now_ms)
            fill(store, 1)
    store.tick(kit.clock.steady_ms())
    store.tick(kit.clock.steady_ms() + 10_000)
    reader = StoreReader(str(kit.root))
    for wanted in range(times[0] - 2_500, times[-1] + 3_000, 500):
        expected = next((number for number, time in enumerate(times) if time >= wanted), len(times))
        assert reader.offset_at("T", 0, wanted) == expected
    store.close()
