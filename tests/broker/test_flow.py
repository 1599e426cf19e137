"""Flow control: which sends are turned away, with upstream's remarks, and that nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

from .whole import Whole, pull_fields, send_fields


@pytest.fixture
def sync(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "sync", flush_disk_type="SYNC_FLUSH", send_thread_pool_queue_capacity=5)
    made.ask(310, send_fields(), b"first")
    yield made
    made.background.hold = False
    made.background.release()
    made.close()


def test_an_fsync_that_hangs_is_rejectrequest_and_stored_sends_keep_waiting(sync: Whole) -> None:
    sync.background.hold = True
    sync.frames(Command(310, send_fields(), b"waiting", opaque=77))
    sync.tick(1_000)
    answer = sync.ask(310, send_fields(), b"late")
    assert (answer.code, answer.remark) == (2, "[REJECTREQUEST]system busy, start flow control for a while")
    sync.background.hold = False
    sync.background.release()
    sync.tick(50)
    assert [(answer.code, answer.opaque) for answer in sync.peer.take()] == [(0, 77)]
    assert sync.ask(310, send_fields(), b"after").code == 0


def test_too_many_sends_that_wait_for_their_fsync_are_overload(sync: Whole) -> None:
    sync.background.hold = True
    sync.frames(*(Command(310, send_fields(), b"waiting", opaque=n) for n in range(5)))
    sync.tick(10)
    answer = sync.ask(310, send_fields(), b"one more")
    assert (answer.code, answer.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")


def test_a_write_that_took_long_is_pcbusy_for_what_was_read_behind_it(sync: Whole) -> None:
    sync.broker.flow.log_was_written(1_500)
    answer = sync.ask(310, send_fields(), b"behind it")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert str(answer.remark).startswith("[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 1500ms")
    sync.tick(250)
    assert sync.ask(310, send_fields(), b"after").code == 0


def test_a_late_loop_sheds_a_growing_share_evenly_and_stops_when_it_keeps_up(sync: Whole) -> None:
    for _ in range(3):
        sync.broker.flow.loop_came_round(300)
    assert sync.ask(310, send_fields(), b"x").code == 0  # a hiccup
    for _ in range(5):
        sync.broker.flow.loop_came_round(300)
    codes = [sync.ask(310, send_fields(), b"x").code for _ in range(20)]
    assert codes.count(2) == 10
    assert codes[:2] != codes[2:4] or codes[0] != codes[1]  # not one after the other
    for _ in range(5):
        sync.broker.flow.loop_came_round(0)
    assert [sync.ask(310, send_fields(), b"x").code for _ in range(10)] == [0] * 10


def test_says_how_long_and_how_many_as_upstream_does(sync: Whole) -> None:
    for _ in range(20):
        sync.broker.flow.loop_came_round(345)
    refused = next(answer for answer in (sync.ask(310, send_fields(), b"x") for _ in range(9)) if answer.code)
    assert refused.remark == "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 345ms, size of queue: 0"


def test_pulls_heartbeats_and_administration_are_answered_throughout(sync: Whole) -> None:
    for _ in range(20):
        sync.broker.flow.loop_came_round(5_000)
    sync.broker.flow.log_was_written(5_000)
    assert sync.ask(310, send_fields(), b"x").code == 2
    assert sync.ask(11, pull_fields()).code == 0
    assert sync.ask(RequestCode.HEART_BEAT, body=b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}').code == 0
    assert sync.ask(RequestCode.GET_BROKER_CONFIG).code == 0
    assert any("turned away" in notice.text for notice in sync.broker.notices.list())


def test_can_be_switched_off(sync: Whole) -> None:
    assert sync.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerFastFailureEnable=false").code == 0
    sync.broker.flow.log_was_written(5_000)
    assert sync.ask(310, send_fields(), b"x").code == 0
