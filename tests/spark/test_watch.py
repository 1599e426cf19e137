"""The driver's side of a stream, with a place and a clock of the test's own: how far a batch goes, and what is kept when brokers leave."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from roquet.errors import ConnectFailed, NoRoute
from roquet.message import MessageQueue
from roquet.spark.offsets import Range
from roquet.spark.options import BadOption, read_options
from roquet.spark.places import Chunk, Wanted
from roquet.spark.scan import BrokerAway, DataLost, gathered
from roquet.spark.watch import Watch

GIVEN = {"namesrvAddr": "nowhere:1", "subscribe": "t"}


def queue(number: int, broker: str = "a", topic: str = "t") -> MessageQueue:
    return MessageQueue(topic, broker, number)


class Imagined:
    """A Place of numbers. A queue's messages are `size` bytes each, and stored one a millisecond from 0 on."""

    def __init__(self, **ends: int) -> None:
        self.there: dict[MessageQueue, tuple[int, int]] = {queue(int(name[1:])): (0, end) for name, end in ends.items()}
        self.away: set[str] = set()
        self.unreachable = False
        self.sizes: dict[MessageQueue, int] = {}
        self.asked = 0
        self.committed: list[tuple[str, dict[MessageQueue, int]]] = []

    def topics(self) -> list[str]:
        return sorted({one.topic for one in self.there})

    def queues(self, topic: str) -> list[MessageQueue]:
        if self.unreachable:
            raise ConnectFailed("no name server answered")
        found = sorted(one for one in self.there if one.topic == topic)
        if not found:
            raise NoRoute(f"no topic {topic}")
        return found

    def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        self.asked += 1
        return {one: self.there[one] for one in queues if one in self.there and one.broker_name not in self.away}

    def offsets_at(self, queues: Sequence[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        return {one: min(max(time_ms, self.there[one][0]), self.there[one][1]) for one in queues}

    def chunks(self, queue: MessageQueue, start: int, stop: int, wanted: Wanted) -> Iterator[Chunk]:
        count = stop - start
        sizes = np.full(count, self.sizes.get(queue, 100), np.int32)
        yield Chunk(memoryview(b""), np.arange(count, dtype=np.int64), sizes)

    def commit(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        self.committed.append((group, offsets))

    def close(self) -> None:
        pass


class Scene:
    def __init__(self, place: Imagined, **given: str) -> None:
        self.place = place
        self.now = 1_000.0
        self.watch = Watch(
            place, read_options(GIVEN | given), clock=lambda: self.now, sleep=self.sleep, now_ms=lambda: int(self.now * 1_000)
        )

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def later(self, start: dict[MessageQueue, int], seconds: float = 10.0) -> dict[MessageQueue, int]:
        """What comes next, asked again after a while."""
        self.now += seconds
        return self.watch.latest(start)


def test_a_new_query_begins_at_the_end_unless_told_otherwise() -> None:
    place = Imagined(q0=5, q1=7)
    place.there[queue(0)] = (2, 5)
    assert Scene(place).watch.initial() == {queue(0): 5, queue(1): 7}
    assert Scene(place, startingOffsets="earliest").watch.initial() == {queue(0): 2, queue(1): 0}
    assert Scene(place, startingTimestamp="3").watch.initial() == {queue(0): 3, queue(1): 3}
    assert Scene(place, startingOffsets='{"t": {"a": {"1": 4}}}').watch.initial() == {queue(0): 2, queue(1): 4}


def test_offsets_of_a_queue_that_is_not_there_are_refused() -> None:
    with pytest.raises(BadOption, match="startingOffsets names t/9 on a, which is not read; there are 0 on a"):
        Scene(Imagined(q0=5), startingOffsets='{"t": {"a": {"9": 4}}}').watch.initial()
    with pytest.raises(BadOption, match="endingOffsets names other/0 on a"):
        Scene(Imagined(q0=5), endingOffsets='{"other": {"a": {"0": 4}}}').watch.initial()


def test_a_new_query_does_not_begin_without_one_of_its_brokers() -> None:
    place = Imagined(q0=5)
    place.there[queue(0, "b")] = (0, 3)
    place.away.add("b")
    with pytest.raises(BrokerAway, match="b does not answer"):
        Scene(place).watch.initial()


def test_everything_that_is_there_is_the_next_batch() -> None:
    scene = Scene(Imagined(q0=5, q1=7))
    assert scene.watch.latest({queue(0): 1, queue(1): 7}) == {queue(0): 5, queue(1): 7}


def test_brokers_are_asked_seldom_while_nothing_happens() -> None:
    scene = Scene(Imagined(q0=5))
    start, began = {queue(0): 5}, scene.now
    for _ in range(100):
        assert scene.watch.latest(start) == start
    assert scene.place.asked <= 3 + (scene.now - began) / 0.5


def test_what_is_known_to_wait_is_not_asked_for_again() -> None:
    scene = Scene(Imagined(q0=100), maxOffsetsPerTrigger="10")
    start = {queue(0): 0}
    for _ in range(5):
        start = scene.watch.latest(start)
    assert (start, scene.place.asked) == ({queue(0): 50}, 1)


def test_a_limit_is_shared_among_the_queues() -> None:
    scene = Scene(Imagined(q0=300, q1=100), maxOffsetsPerTrigger="40")
    assert scene.watch.latest({queue(0): 0, queue(1): 0}) == {queue(0): 30, queue(1): 10}
    assert scene.watch.latest({queue(0): 0, queue(1): 0}, unlimited=True) == {queue(0): 300, queue(1): 100}


def test_bytes_are_limited_by_what_messages_weigh() -> None:
    place = Imagined(q0=1_000, q1=1_000)
    place.sizes = {queue(0): 10, queue(1): 100}
    for given in ({}, {"path": "files", "namesrvAddr": ""}):
        scene = Scene(place, maxBytesPerTrigger="11000", **given)
        assert scene.watch.latest({queue(0): 0, queue(1): 0}) == {queue(0): 100, queue(1): 100}


def test_of_files_bytes_are_exact() -> None:
    class Growing(Imagined):
        def chunks(self, queue: MessageQueue, start: int, stop: int, wanted: Wanted) -> Iterator[Chunk]:
            sizes = np.array([10 if offset < 64 else 1_000 for offset in range(start, stop)], np.int32)
            yield Chunk(memoryview(b""), np.arange(len(sizes), dtype=np.int64), sizes)

    scene = Scene(Growing(q0=1_000), maxBytesPerTrigger="2700", path="files", namesrvAddr="")
    assert scene.watch.latest({queue(0): 0}) == {queue(0): 66}
    assert scene.watch.latest({queue(0): 66}) == {queue(0): 68}


def test_few_messages_wait_for_more_but_not_too_long() -> None:
    scene = Scene(Imagined(q0=100), minOffsetsPerTrigger="50", maxTriggerDelay="60s")
    start = scene.watch.latest({queue(0): 0})
    assert start == {queue(0): 100}
    scene.place.there[queue(0)] = (0, 110)
    assert scene.later(start, 30) == start
    assert scene.later(start, 31) == {queue(0): 110}
    scene.place.there[queue(0)] = (0, 160)
    assert scene.later({queue(0): 110}, 1) == {queue(0): 160}


def test_a_run_that_ends_does_not_wait_for_more() -> None:
    scene = Scene(Imagined(q0=100), minOffsetsPerTrigger="50", maxTriggerDelay="60s")
    scene.watch.freeze()
    assert scene.watch.latest({queue(0): 0}) == {queue(0): 100}
    assert scene.watch.latest({queue(0): 90}) == {queue(0): 100}


def test_a_run_that_ends_waits_for_what_does_not_answer_and_does_not_end_without_it() -> None:
    class Flickering(Imagined):
        """As a name server that has just lost a broker, and then a broker that is being restarted."""

        looks = 0

        def queues(self, topic: str) -> list[MessageQueue]:
            self.looks += 1
            self.away = {"a"} if self.looks == 3 else set()
            return super().queues("nothing" if self.looks == 2 else topic)

    scene = Scene(Flickering(q0=100), startingOffsets="earliest")
    start = scene.watch.initial()
    scene.watch.freeze()
    assert scene.watch.latest(start) == {queue(0): 100}


def test_a_run_that_ends_fails_when_something_stays_away() -> None:
    place = Imagined(q0=100)
    place.away = {"a"}
    scene = Scene(place, timeout="30s")
    with pytest.raises(BrokerAway, match="a does not answer"):
        scene.watch.freeze()
    assert 1_030 <= scene.now < 1_040


def test_a_run_that_ends_reads_nothing_that_comes_later() -> None:
    scene = Scene(Imagined(q0=100))
    scene.watch.freeze()
    scene.place.there[queue(0)] = (0, 200)
    scene.place.there[queue(1)] = (0, 5)
    assert scene.later({queue(0): 0}) == {queue(0): 100}
    assert scene.later({queue(0): 100}) == {queue(0): 100}


def test_a_queue_that_is_added_is_read_from_its_first_message() -> None:
    scene = Scene(Imagined(q0=5))
    start = scene.watch.latest({queue(0): 0})
    scene.place.there[queue(1)] = (3, 9)
    registered = scene.later(start)
    assert registered == {queue(0): 5, queue(1): 3}
    assert scene.watch.planned(start, registered) == []
    after = scene.later(registered)
    assert scene.watch.planned(registered, after) == [Range(queue(1), 3, 9)]


def test_a_broker_that_is_away_keeps_its_offsets_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    place = Imagined(q0=5)
    place.there[queue(0, "b")] = (0, 5)
    scene = Scene(place)
    start = {queue(0): 0, queue(0, "b"): 0}
    place.away.add("b")
    with caplog.at_level(logging.WARNING):
        for end in (5, 6, 7):
            place.there[queue(0)] = (0, end)
            start = scene.later(start)
            assert start == {queue(0): end, queue(0, "b"): 0}
        place.away.clear()
        assert scene.later(start) == {queue(0): 7, queue(0, "b"): 5}
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["broker b does not answer", "broker b answers again"]


def test_a_broker_that_is_away_is_not_asked_at_every_look() -> None:
    place = Imagined(q0=5)
    scene = Scene(place)
    place.away.add("a")
    start, began = {queue(0): 0}, scene.now
    for _ in range(50):
        assert scene.watch.latest(start) == start
    assert place.asked <= 1 + (scene.now - began) / 2


def test_a_topic_that_is_gone_keeps_its_offsets_and_the_others_go_on() -> None:
    place = Imagined(q0=5)
    place.there[queue(0, topic="u")] = (0, 5)
    scene = Scene(place, subscribe="t,u")
    start = scene.watch.latest({queue(0): 0, queue(0, topic="u"): 0})
    del place.there[queue(0)]
    place.there[queue(0, topic="u")] = (0, 8)
    assert scene.later(start) == {queue(0): 5, queue(0, topic="u"): 8}


def test_without_name_servers_the_known_queues_are_read_on() -> None:
    scene = Scene(Imagined(q0=5))
    start = scene.watch.latest({queue(0): 0})
    scene.place.unreachable = True
    scene.place.there[queue(0)] = (0, 9)
    assert scene.later(start) == {queue(0): 9}


def test_a_checkpoint_of_other_topics_is_kept_and_not_read() -> None:
    place = Imagined(q0=5)
    place.there[queue(0, topic="old")] = (0, 50)
    scene = Scene(place)
    old = {queue(0, topic="old"): 10}
    registered = scene.watch.latest(old)
    assert registered == old | {queue(0): 0}
    assert scene.later(registered) == old | {queue(0): 5}


def test_a_queue_that_ends_earlier_than_before_fails_the_query() -> None:
    scene = Scene(Imagined(q0=30))
    with pytest.raises(DataLost, match=r"t/0 on a: messages 30 to 99 were to be read .* failOnDataLoss=false"):
        scene.watch.latest({queue(0): 100})


def test_or_is_read_on_from_its_new_end_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(Imagined(q0=30), failOnDataLoss="false")
    assert scene.watch.latest({queue(0): 100}) == {queue(0): 30}
    assert "messages 30 to 99" in caplog.text
    assert scene.watch.planned({queue(0): 100}, {queue(0): 30}) == []


def test_messages_that_retention_removed_fail_the_query() -> None:
    place = Imagined(q0=100)
    place.there[queue(0)] = (40, 100)
    scene = Scene(place)
    with pytest.raises(DataLost, match="messages 10 to 39 were to be read and are not there; the queue has 40 to 99"):
        scene.watch.planned({queue(0): 10}, scene.watch.latest({queue(0): 10}))


def test_or_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    place = Imagined(q0=100)
    place.there[queue(0)] = (40, 100)
    scene = Scene(place, failOnDataLoss="false")
    assert scene.watch.planned({queue(0): 10}, {queue(0): 60}) == [Range(queue(0), 40, 60)]
    assert scene.watch.planned({queue(0): 10}, {queue(0): 30}) == []
    assert "messages 10 to 39" in caplog.text


def test_a_stream_goes_no_further_than_its_end() -> None:
    scene = Scene(Imagined(q0=100, q1=100), endingOffsets='{"t": {"a": {"0": 20}}}')
    assert scene.watch.latest({queue(0): 0, queue(1): 0}) == {queue(0): 20, queue(1): 100}
    scene = Scene(Imagined(q0=100), endingTimestamp="30")
    start = scene.watch.latest({queue(0): 0})
    assert start == {queue(0): 30}
    scene.place.there[queue(0)] = (0, 200)
    assert scene.later(start) == start


def test_a_group_shows_what_is_done_and_is_told_once() -> None:
    scene = Scene(Imagined(q0=100), groupId="g")
    end = scene.watch.latest({queue(0): 10})
    assert scene.place.committed == [("g", {queue(0): 10})]
    scene.watch.latest(end)
    scene.watch.latest(end)
    assert scene.place.committed[1:] == [("g", {queue(0): 100})]


def test_a_group_that_cannot_be_written_does_not_stop_the_query(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(Imagined):
        def commit(self, group: str, offsets: dict[MessageQueue, int]) -> None:
            raise ConnectFailed("gone")

    assert Scene(Refusing(q0=100), groupId="g").watch.latest({queue(0): 10}) == {queue(0): 100}
    assert "progress of group g could not be written: gone" in caplog.text


def test_a_group_that_could_not_be_written_is_told_again_although_nothing_happens() -> None:
    class Refusing(Imagined):
        refuses = True

        def commit(self, group: str, offsets: dict[MessageQueue, int]) -> None:
            if self.refuses:
                raise ConnectFailed("gone")
            super().commit(group, offsets)

    place = Refusing(q0=100)
    scene = Scene(place, groupId="g")
    end = scene.watch.latest({queue(0): 10})
    scene.watch.latest(end)
    place.refuses = False
    for _ in range(100):
        scene.later(end)
    assert place.committed == [("g", {queue(0): 100})]


def test_the_newest_offsets_show_the_lag() -> None:
    scene = Scene(Imagined(q0=100), maxOffsetsPerTrigger="10")
    assert scene.watch.latest({queue(0): 0}) == {queue(0): 10}
    assert scene.watch.newest() == {queue(0): 100}


def test_small_batches_are_put_together_and_empty_ones_left_out() -> None:
    def of(rows: int) -> pa.RecordBatch:
        return pa.record_batch({"n": pa.array(range(rows), pa.int64())})

    found = list(gathered([of(1_000), of(0), of(1_000), of(500), of(4_096), of(0), of(3)]))
    assert [one.num_rows for one in found] == [2_500, 4_096, 3]
    assert found[0].column(0).to_pylist()[999:1_002] == [999, 0, 1]
    assert list(gathered([of(0)])) == []
