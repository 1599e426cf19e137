"""How long puts and gets take, as 28 shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker.pull_requests import KnownPull
from roquet.broker.put_times import KINDS_MAX, PutTimes
from roquet.store.queue import ConsumeQueue
from roquet.wire.command import Command

from .whole import Whole, pull_fields, send_fields


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store")
    made.ask(310, send_fields(), b"the topic is made")
    yield made
    made.background.hold = False
    made.background.release()
    made.close()


def runtime(whole: Whole) -> dict[str, str]:
    return whole.broker.admin.runtime_table()


def spans(whole: Whole) -> dict[str, int]:
    """Those that hold something."""
    pairs = [item.rsplit(":", 1) for item in runtime(whole)["putMessageDistributeTime"].split()]
    return {span.strip("[]"): int(count) for span, count in pairs if count != "0"}


def slow_write(whole: Whole, monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Every write of the log takes so long from now on."""
    log, clock = whole.broker.store.log, whole.clock
    commit = type(log).commit

    def slow() -> None:
        clock.forward(ms)
        commit(log)

    monkeypatch.setattr(log, "commit", slow)


def test_each_send_of_a_read_counts_with_the_time_of_their_one_write(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spans(whole) == {"<=0ms": 1}
    slow_write(whole, monkeypatch, 30)
    whole.frames(*(Command(310, send_fields(), b"plain", opaque=n) for n in range(3)))
    whole.frames(Command(310, send_fields(properties="DELAY\x011"), b"not plain"))
    assert spans(whole) == {"<=0ms": 1, "10~50ms": 4}
    assert runtime(whole)["putMessageEntireTimeMax"] == "30"
    assert runtime(whole)["putLatency99"] == "30.00"


def test_a_send_that_waits_for_the_disk_counts_with_its_wait(tmp_path: Path) -> None:
    whole = Whole(tmp_path / "store", flush_disk_type="SYNC_FLUSH")
    whole.background.hold = True
    whole.frames(Command(310, send_fields(), b"waits"))
    assert spans(whole) == {}
    whole.clock.forward(700)
    whole.background.hold = False
    whole.background.release()
    assert spans(whole) == {"500ms~1s": 1}
    whole.close()


def test_a_minute_later_the_times_of_the_last_whole_minute_are_shown(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_write(whole, monkeypatch, 5)
    whole.ask(310, send_fields(), b"slow")
    for _ in range(61):
        whole.tick(1_000)
    whole.ask(310, send_fields(), b"of the next minute")
    assert spans(whole) == {"<=0ms": 1, "0~10ms": 1}
    for _ in range(61):
        whole.tick(1_000)
    assert spans(whole) == {"0~10ms": 1}
    for _ in range(61):
        whole.tick(1_000)
    assert spans(whole) == {}
    assert (runtime(whole)["putLatency99"], runtime(whole)["putMessageEntireTimeMax"]) == ("0.00", "5")


def test_the_latency_is_that_which_so_many_do_not_exceed() -> None:
    times = PutTimes(0)
    times.note(0, 98)
    times.note(7, 1)
    times.note(90, 1)
    assert (times.percentile(0.5), times.percentile(0.99), times.percentile(0.999)) == (0, 7, 90)


def test_times_of_all_lengths_take_little_memory() -> None:
    times = PutTimes(0)
    for ms in range(0, 200_000, 7):
        times.note(ms, 1)
    assert len(times.now) <= KINDS_MAX
    assert times.longest_ms == 199_997


def test_a_message_that_is_too_large_is_a_put_that_failed(whole: Whole) -> None:
    limit = whole.broker.settings.max_message_size
    assert whole.ask(310, send_fields(), b"x" * (limit + 1)).code == 13
    assert runtime(whole)["putMessageFailedTimes"] == "1"
    assert whole.ask(310, send_fields(topic="no such topic!"), b"x").code == 1
    assert runtime(whole)["putMessageFailedTimes"] == "1", "nothing was to be stored"


@pytest.mark.parametrize("expression", ["*", "a || b"])
def test_the_longest_pull_is_known(whole: Whole, expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pull = pull_fields(sysFlag="4", subscription=expression)
    whole.ask(11, pull)
    assert runtime(whole)["getMessageEntireTimeMax"] == "0"
    find, read = whole.broker.store.find_queue, whole.broker.puller.ahead.read
    slow = iter((12, 40, 3))

    def find_slowly(topic: str, queue_id: int) -> object:
        whole.clock.forward(next(slow, 0))
        return find(topic, queue_id)

    def read_slowly(known: KnownPull, queue: ConsumeQueue, offset: int, count: int) -> object:
        whole.clock.forward(next(slow, 0))
        return read(known, queue, offset, count)

    monkeypatch.setattr(whole.broker.store, "find_queue", find_slowly)  # the way of the first of its kind
    monkeypatch.setattr(whole.broker.puller.ahead, "read", read_slowly)  # and of those like it
    whole.ask(11, pull)
    assert int(runtime(whole)["getMessageEntireTimeMax"]) >= 12
