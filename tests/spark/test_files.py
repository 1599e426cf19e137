"""FilePlace: topics out of a store directory."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.errors import Damaged, NoRoute
from roquet.message import MessageQueue
from roquet.routing.sql92 import BadSql
from roquet.spark.columns import arrow_schema
from roquet.spark.decode import Decoder
from roquet.spark.files import FilePlace
from roquet.spark.places import Chunk, DataGone, Wanted
from roquet.store.queue import BLANK_ENTRY, ENTRY_SIZE
from roquet.store.store import Store
from roquet.wire.hashing import java_hash
from tests.store.conftest import StoreKit, put

QUEUE = MessageQueue("T", "broker-a", 0)
ALL = Wanted()


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[StoreKit]:
    made = StoreKit(tmp_path / "data" / "broker-0")
    yield made
    for store in made.opened:
        store.close()


def fill(store: Store, count: int, **given: Any) -> None:
    for number in range(count):
        put(store, body=b"%d" % number, **given)
        store.commit()


def column(place: FilePlace, name: str, start: int, stop: int, wanted: Wanted = ALL, queue: MessageQueue = QUEUE) -> list[Any]:
    decoder = Decoder(arrow_schema([name]), place.broker)
    batches = [batch for chunk in place.chunks(queue, start, stop, wanted) for batch in decoder.batches(chunk)]
    return [value for batch in batches for value in batch[name].to_pylist()]


def test_all_messages_come_in_order_over_all_log_files(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 1_000)
    assert len(store.log.segments.bases) > 3
    place = FilePlace(str(kit.root))
    assert place.topics() == ["T"]
    assert place.queues("T") == [QUEUE]
    assert place.bounds([QUEUE]) == {QUEUE: (0, 1_000)}
    assert column(place, "queue_offset", 0, 1_000) == list(range(1_000))
    assert column(place, "body", 500, 502) == [b"500", b"501"]
    assert column(place, "broker", 0, 1) == ["broker-a"]
    assert column(place, "body", 5, 5) == []


def test_chunks_are_of_bounded_size(kit: StoreKit, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(kit.open(), 100)
    place = FilePlace(str(kit.root))
    monkeypatch.setattr("roquet.spark.files.CHUNK_ROWS", 30)
    assert [len(chunk.positions) for chunk in place.chunks(QUEUE, 0, 100, Wanted())] == [30, 30, 30, 10]
    monkeypatch.setattr("roquet.spark.files.CHUNK_BYTES", 1_000)
    chunks: list[Chunk] = list(place.chunks(QUEUE, 0, 100, Wanted()))
    assert max(int(chunk.sizes.sum()) for chunk in chunks) <= 1_200
    assert sum(len(chunk.positions) for chunk in chunks) == 100


def test_tags_are_judged_by_the_tag_and_not_by_its_hash_alone(kit: StoreKit) -> None:
    assert java_hash("Aa") == java_hash("BB")
    store = kit.open()
    for tag in ("Aa", "BB", "c", ""):
        fill(store, 5, properties=f"TAGS\x01{tag}" if tag else "")
    place = FilePlace(str(kit.root))
    assert column(place, "tags", 0, 20, Wanted(tags="Aa")) == ["Aa"] * 5
    assert column(place, "queue_offset", 0, 20, Wanted(tags="BB || c")) == list(range(5, 15))
    assert column(place, "queue_offset", 3, 7, Wanted(tags="BB")) == [5, 6]
    assert column(place, "tags", 0, 20, Wanted(tags="*")) == ["Aa"] * 5 + ["BB"] * 5 + ["c"] * 5 + [None] * 5
    assert column(place, "tags", 0, 20, Wanted(tags="other")) == []


def test_sql_is_judged_by_the_properties(kit: StoreKit) -> None:
    store = kit.open()
    for price in range(10):
        fill(store, 1, properties=f"TAGS\x01a\x02price\x01{price}")
    place = FilePlace(str(kit.root))
    assert column(place, "queue_offset", 0, 10, Wanted(sql="price > 6 OR price = 2")) == [2, 7, 8, 9]
    assert column(place, "queue_offset", 0, 10, Wanted(sql="price > 6", tags="b")) == []
    with pytest.raises(BadSql):
        column(place, "body", 0, 10, Wanted(sql="price >"))


def test_a_range_gives_the_same_while_the_broker_goes_on(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 50)
    place = FilePlace(str(kit.root))
    before = column(place, "body", 10, 50)
    fill(store, 50)
    store.tails.write()
    assert column(place, "body", 10, 50) == before == column(FilePlace(str(kit.root)), "body", 10, 50)


def test_what_came_after_the_first_look_is_read_and_not_taken_for_lost(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 5)
    place = FilePlace(str(kit.root))
    assert place.bounds([QUEUE]) == {QUEUE: (0, 5)}
    fill(store, 3)
    assert column(place, "queue_offset", 5, 8) == [5, 6, 7]
    with pytest.raises(DataGone):
        column(place, "body", 8, 9)


def test_messages_that_retention_removed_are_told(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 1_000)
    store.tails.write()
    place = FilePlace(str(kit.root))
    assert place.bounds([QUEUE]) == {QUEUE: (0, 1_000)}
    store.log.segments.drop_first()
    first = FilePlace(str(kit.root)).bounds([QUEUE])[QUEUE][0]
    assert first > 0
    for one in (FilePlace(str(kit.root)), place):
        with pytest.raises(DataGone) as gone:
            column(one, "body", 0, 1_000)
        assert (gone.value.start, gone.value.available) == (0, first)
        assert column(one, "queue_offset", first, 1_000) == list(range(first, 1_000))
    assert pickle.loads(pickle.dumps(gone.value)).available == first


def test_a_log_file_that_goes_between_looks_is_data_gone(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 1_000)
    store.tails.write()
    place = FilePlace(str(kit.root))
    chunks = place.chunks(QUEUE, 0, 1_000, Wanted())
    next(chunks)
    while len(store.log.segments.bases) > 1:
        store.log.segments.drop_first()
    first = FilePlace(str(kit.root)).bounds([QUEUE])[QUEUE][0]
    with pytest.raises(DataGone) as gone:
        list(chunks)
    assert 0 < gone.value.start < gone.value.available == first


def test_a_topic_that_was_deleted_is_data_gone(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 10)
    store.tails.write()
    place = FilePlace(str(kit.root))
    store.delete_topic("T")
    topics = kit.root / "config" / "topics.json"
    topics.write_text('{"topicConfigTable":{}}')  # as the broker does then, later than the last message
    os.utime(topics, (kit.clock.ms / 1000 + 1,) * 2)
    assert place.topics() == []
    with pytest.raises(DataGone):
        column(place, "body", 0, 10)
    store.begin(kit.clock.ms + 2_000)
    fill(store, 3)
    with pytest.raises(DataGone) as gone:
        column(place, "body", 0, 10)
    assert gone.value.available == 3


def test_messages_that_the_log_lost_are_left_out(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 10)
    store.tails.write()
    store.queue("T", 0).segments.file(0).write(4 * ENTRY_SIZE, BLANK_ENTRY)
    assert column(FilePlace(str(kit.root)), "queue_offset", 0, 10) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_an_empty_entry_in_the_middle_is_damage(kit: StoreKit) -> None:
    store = kit.open()
    fill(store, 40)
    store.tails.write()
    store.queue("T", 0).segments.file(0).write(4 * ENTRY_SIZE, bytes(ENTRY_SIZE))
    with pytest.raises(Damaged, match="T/0 offset 4 "):
        column(FilePlace(str(kit.root)), "queue_offset", 0, 30)


def test_the_brokers_name_is_given_or_told_by_the_files_or_unknown(kit: StoreKit) -> None:
    store = kit.open(broker_name="broker-x")
    fill(store, 1)
    store.close()
    assert FilePlace(str(kit.root)).queues("T") == [MessageQueue("T", "broker-x", 0)]
    assert FilePlace(str(kit.root), "y").queues("T") == [MessageQueue("T", "y", 0)]
    for name in ("roquet.json", "roquet.json.bak"):
        (kit.root / "config" / name).unlink()
    unknown = FilePlace(str(kit.root))
    assert unknown.queues("T") == [MessageQueue("T", "", 0)]
    assert column(unknown, "broker", 0, 1) == [None]


def test_a_directory_above_the_store_will_do_when_there_is_one_store(kit: StoreKit, tmp_path: Path) -> None:
    fill(kit.open(), 3)
    data = kit.root.parent
    assert column(FilePlace(str(data)), "queue_offset", 0, 3) == [0, 1, 2]
    (data / "broker-1" / "commitlog").mkdir(parents=True)
    with pytest.raises(Damaged, match="2 brokers: broker-0, broker-1"):
        FilePlace(str(data))
    with pytest.raises(Damaged, match="found there: data"):
        FilePlace(str(tmp_path))
    with pytest.raises(Damaged, match="not a directory"):
        FilePlace(str(tmp_path / "nowhere"))


def test_an_unknown_topic_names_those_that_are_there(kit: StoreKit) -> None:
    fill(kit.open(), 1)
    place = FilePlace(str(kit.root))
    with pytest.raises(NoRoute, match="it has T"):
        place.queues("orders")
    assert place.bounds([MessageQueue("orders", "", 0)]) == {}


def test_offsets_of_a_time(kit: StoreKit) -> None:
    store = kit.open()
    start = kit.clock.ms
    for step in range(5):
        store.begin(start + step)
        fill(store, 2)
    place = FilePlace(str(kit.root))
    assert place.offsets_at([QUEUE], start + 2) == {QUEUE: 4}
    assert place.offsets_at([QUEUE], start + 20) == {QUEUE: 10}


def test_a_running_brokers_files(start_servers: Any) -> None:
    from roquet import Message

    servers = start_servers()
    topic = servers.topic("LiveFiles", 2)
    place = FilePlace(str(servers.store))
    queues = place.queues(topic)
    assert [queue.queue_id for queue in queues] == [0, 1]
    for number in range(3):
        servers.send(Message(topic, b"%d" % number, keys=str(number)) for _ in range(10))
        ends = place.bounds(queues)
        assert sum(end for _, end in ends.values()) == 10 * (number + 1)
    keys = [key for queue in queues for key in column(place, "keys", 0, ends[queue][1], queue=queue)]
    assert sorted(keys) == ["0"] * 10 + ["1"] * 10 + ["2"] * 10
