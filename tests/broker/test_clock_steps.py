"""Somebody sets the machine's clock, forward or back, by seconds or by years: nothing stops, nothing is lost, and it is said."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.message import MessageQueue
from roquet.testing import FakePeer
from roquet.testing.clock import ManualClock
from roquet.testing.disk import SimDisk
from roquet.wire import fastjson
from roquet.wire.calls.queues import LockBody, LockResult
from roquet.wire.codes import PullFlag, RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import Record

from .test_delay import bodies, delayed, stored
from .test_timers import Timed
from .whole import Whole, pull_fields, send_fields

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
TEN_YEARS = 3_650 * DAY
STEPS = [-TEN_YEARS, -HOUR, 60 * SECOND, HOUR, TEN_YEARS]
SUSPEND = str(int(PullFlag.SUSPEND | PullFlag.SUBSCRIPTION))

each_step = pytest.mark.parametrize("step", STEPS, ids=lambda ms: f"{ms // 1_000:+}s")


def started(root: Path, clock: ManualClock | None = None, **settings: Any) -> Timed:
    clock = clock or ManualClock()
    return Timed(root, clock=clock, **({"namesrv_addr": "ns1:9876"} | settings))


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Timed]:
    made = started(tmp_path / "store")
    made.tick(0)
    yield made
    made.close()


def restarted(whole: Timed) -> Timed:
    whole.close()
    return started(whole.root, whole.clock)


# What goes on as if nothing had happened


@each_step
def test_the_log_is_flushed_all_the_same(whole: Timed, step: int) -> None:
    whole.clock.step(step)
    whole.send(b"new")
    assert whole.broker.store.log.flushed < whole.broker.store.log.written
    whole.tick(500)
    assert whole.broker.store.log.flushed == whole.broker.store.log.written


@each_step
def test_offsets_are_saved_all_the_same(whole: Timed, step: int) -> None:
    whole.send(b"a message")
    whole.clock.step(step)
    whole.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"})
    whole.tick(5_000)
    assert fastjson.loads((whole.root / "config/consumerOffset.json").read_bytes())["offsetTable"]["T@g"] == {"0": 1}


@each_step
def test_queue_entries_and_checkpoint_reach_the_disk_all_the_same(whole: Timed, step: int) -> None:
    whole.clock.step(step)
    whole.send(b"a message")
    whole.tick(10_000)
    assert (whole.root / "consumequeue/T/0" / ("0" * 20)).read_bytes()[:20] != bytes(20)
    assert whole.broker.store.derived.checkpointed == whole.broker.store.log.written


@each_step
def test_registration_goes_on(whole: Timed, step: int) -> None:
    whole.tick(30_000)
    whole.caller.calls.clear()
    whole.clock.step(step)
    whole.tick(29_000)
    assert [command.code for _, command, _ in whole.caller.calls] == [RequestCode.GET_ROUTEINFO_BY_TOPIC], "a look at its own route"
    whole.tick(1_000)
    assert [command.code for _, command, _ in whole.caller.calls[1:]] == [RequestCode.REGISTER_BROKER]


@each_step
def test_a_long_poll_ends_in_time(whole: Timed, step: int) -> None:
    whole.send(b"old")
    whole.frames(Command(11, pull_fields(offset=1, sysFlag=SUSPEND)))
    whole.peer.take()
    whole.clock.step(step)
    whole.tick(14_900)
    assert whole.peer.take() == []
    whole.tick(100)
    assert [answer.code for answer in whole.peer.take()] == [ResponseCode.PULL_NOT_FOUND]


@each_step
def test_members_neither_leave_early_nor_stay_for_ever(whole: Timed, step: int) -> None:
    heartbeat = {"clientID": "c1", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}
    whole.ask(RequestCode.HEART_BEAT, body=fastjson.dumps(heartbeat))
    whole.clock.step(step)
    whole.tick(110_000)
    assert whole.broker.members.producers("g") == [whole.peer]
    whole.tick(20_000)
    assert whole.broker.members.producers("g") == []


@each_step
def test_a_send_that_waits_for_its_fsync_is_answered_in_time(tmp_path: Path, step: int) -> None:
    whole = started(tmp_path / "sync", flush_disk_type="SYNC_FLUSH")
    whole.background.hold = True
    whole.frames(Command(310, send_fields(), b"x", opaque=7))
    whole.clock.step(step)
    whole.tick(4_900)
    assert whole.peer.take() == []
    whole.tick(200)
    assert [answer.code for answer in whole.peer.take()] == [ResponseCode.FLUSH_DISK_TIMEOUT]
    whole.background.hold = False
    whole.background.release()
    whole.close()


@each_step
def test_a_queue_lock_keeps_its_minute(whole: Timed, step: int) -> None:
    queue = MessageQueue("T", "broker-a", 0)

    def lock(client_id: str) -> bool:
        body = LockBody("g", client_id, {queue}).encode()
        return queue in LockResult.decode(whole.ask(RequestCode.LOCK_BATCH_MQ, body=body).body).lock_ok_mq_set

    assert lock("one")
    whole.clock.step(step)
    assert not lock("two")
    whole.tick(59_000)
    assert not lock("two")
    whole.tick(1_001)
    assert lock("two")


# Delays and timers


@each_step
def test_a_delayed_message_of_before_the_step_is_delivered(whole: Timed, step: int) -> None:
    delayed(whole, 3)
    whole.clock.step(step)
    whole.tick(10_000)
    assert bodies(whole) == [b"hello"]


@each_step
def test_a_delayed_message_of_after_the_step_waits_its_ten_seconds(whole: Timed, step: int) -> None:
    whole.clock.step(step)
    delayed(whole, 3)
    whole.tick(9_000)
    assert bodies(whole) == []
    whole.tick(1_000)
    assert bodies(whole) == [b"hello"]


@pytest.mark.parametrize("again", [False, True], ids=["running", "restarted"])
def test_a_clock_ahead_for_a_moment_freezes_no_level(whole: Timed, again: bool) -> None:
    whole.clock.step(365 * DAY)
    delayed(whole, 3, b"of the future")
    whole.clock.step(-365 * DAY)
    delayed(whole, 3, b"behind it")
    whole = restarted(whole) if again else whole
    whole.tick(50)
    assert bodies(whole) == [b"of the future"]
    whole.tick(9_900)
    assert bodies(whole) == [b"of the future"]
    whole.tick(50)
    assert bodies(whole) == [b"of the future", b"behind it"]
    whole.close()


def test_a_message_of_the_future_in_a_level_that_is_no_longer_configured_freezes_nothing(tmp_path: Path) -> None:
    whole = started(tmp_path / "store", message_delay_level="1s 10s 30s")
    whole.clock.step(365 * DAY)
    delayed(whole, 3, b"of the future")
    whole.clock.step(-365 * DAY)
    whole.close()
    whole = started(whole.root, whole.clock, message_delay_level="1s 10s")
    whole.tick(50)
    assert bodies(whole) == [b"of the future"]
    whole.close()


def test_retries_of_a_clock_ahead_come_back(whole: Timed) -> None:
    whole.send(b"to fail")
    (record,) = whole.records()
    whole.clock.step(365 * DAY)
    fields = {
        "offset": str(record.physical_offset), "group": "g", "delayLevel": "0", "originMsgId": "U1", "originTopic": "T",
        "unitMode": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip
    assert whole.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0
    whole.clock.step(-365 * DAY)
    whole.tick(50)
    assert [one.body for one in stored(whole, "%RETRY%g")] == [b"to fail"]


@each_step
def test_a_timer_of_before_the_step_fires_when_it_is_due_by_the_clock(whole: Timed, step: int) -> None:
    whole.send(b"later", TIMER_DELIVER_MS=whole.clock.now_ms() + 2 * DAY)
    whole.tick(50)
    whole.clock.step(step)
    whole.pass_time(3_000)
    assert whole.bodies() == ([b"later"] if step == TEN_YEARS else [])
    whole.clock.step(-step)
    whole.pass_time(3_000)
    assert whole.bodies() == ([b"later"] if step == TEN_YEARS else [])
    whole.clock.forward(2 * DAY)
    whole.pass_time(1_000)
    assert whole.bodies() == [b"later"]  # and not twice


@pytest.mark.parametrize("end", ["running", "stopped", "killed"])
@each_step
def test_a_timer_of_after_the_step_fires_in_time(whole: Timed, step: int, end: str) -> None:
    whole.send(b"early", TIMER_DELAY_SEC=5)
    whole.pass_time(6_000)
    whole.clock.step(step)
    whole.pass_time(2_000)
    whole.clock.step(-step)
    whole.tick(50)
    whole.send(b"late", TIMER_DELAY_SEC=5)
    if end == "killed":
        whole.tick(1_000)
        whole.kill()
        whole = started(whole.root, whole.clock)
    elif end == "stopped":
        whole = restarted(whole)
    whole.pass_time(3_900)
    assert whole.bodies() == [b"early"]
    whole.pass_time(1_200)
    assert whole.bodies() == [b"early", b"late"]
    whole.pass_time(HOUR, step=60_000)
    assert whole.bodies() == [b"early", b"late"]
    whole.close()


@pytest.mark.parametrize("end", ["running", "stopped", "killed"])
def test_timers_fired_by_a_clock_ahead_do_not_fire_again_and_new_ones_fire_in_their_hours(whole: Timed, end: str) -> None:
    now_ms = whole.clock.now_ms()
    for minutes in range(0, 300, 10):
        whole.send(b"old %d" % minutes, TIMER_DELIVER_MS=now_ms + minutes * 60_000 + 30_000)
    whole.pass_time(2_000)
    whole.clock.step(150 * 60_000)
    whole.pass_time(20_000)  # half of them are due; the files of their hours are gone
    fired = [b"old %d" % minutes for minutes in range(0, 150, 10)]
    assert whole.bodies() == fired
    whole.clock.step(-150 * 60_000)
    whole.tick(50)
    for minutes in range(5, 300, 10):
        whole.send(b"new %d" % minutes, TIMER_DELIVER_MS=now_ms + minutes * 60_000 + 30_000)
    whole.pass_time(12_000)
    assert whole.bodies() == fired
    if end == "killed":
        whole.kill()
        whole = started(whole.root, whole.clock)
    elif end == "stopped":
        whole = restarted(whole)
    whole.pass_time(5 * HOUR, step=5_000)
    expected = sorted([b"new %d" % minutes for minutes in range(5, 300, 10)] + [b"old %d" % minutes for minutes in range(150, 300, 10)],
                      key=lambda name: int(name.split()[1]))  # fmt: skip
    assert whole.bodies() == fired + expected
    whole.close()


def test_a_timer_that_a_clock_ahead_fired_can_no_longer_be_cancelled(whole: Timed) -> None:
    whole.send(b"later", TIMER_DELAY_SEC=7_200)
    whole.tick(50)
    whole.clock.step(3 * HOUR)
    whole.pass_time(1_000)
    assert whole.bodies() == [b"later"]
    whole.clock.step(-3 * HOUR)
    whole.pass_time(1_000)
    answer = whole.cancel("later")
    assert (answer.code, "delivered already" in (answer.remark or "")) == (ResponseCode.QUERY_NOT_FOUND, True)


# Transactions


def test_a_clock_set_back_in_a_round_of_checks_asks_no_producer_twice(whole: Timed) -> None:
    fields = send_fields(properties="UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01g", f="4", g=str(whole.clock.now_ms()))
    heartbeat = {"clientID": "c1", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}
    whole.ask(RequestCode.HEART_BEAT, body=fastjson.dumps(heartbeat))
    assert whole.ask(310, fields, b"half").code == 0
    whole.clock.forward(60_000)
    asked = 0
    for _ in range(100):
        whole.clock.step(-HOUR)
        whole.tick(50)
        asked += sum(command.code == RequestCode.CHECK_TRANSACTION_STATE for command in whole.peer.take())
    assert asked == 1


def test_a_clock_ahead_gives_up_no_transaction(whole: Timed) -> None:
    fields = send_fields(properties="UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01g", f="4", g=str(whole.clock.now_ms()))
    assert whole.ask(310, fields, b"half").code == 0
    whole.clock.step(TEN_YEARS)
    for _ in range(3):
        whole.tick(60_000)
    whole.tick(50)
    assert (whole.broker.transactions.given_up, whole.broker.transactions.pending) == (0, 1)


# Log files


def filled(whole: Timed, files: int) -> None:
    while len(whole.broker.store.log.segments.bases) < files:
        whole.send(bytes(3_000), key="k")


def on_simulated_disk(**settings: Any) -> Timed:
    clock = ManualClock()
    every_hour = ";".join(f"{hour:02}" for hour in range(24))
    values: dict[str, Any] = {"mapped_file_size_commit_log": 16_384, "delete_when": every_hour, "file_reserved_time": 72}
    return Timed(Path("/store"), disk=SimDisk(clock), clock=clock, **(values | settings))


def log_files(whole: Timed) -> int:
    return len(whole.broker.store.log.segments.bases)


def test_a_clock_ahead_by_ten_years_expires_no_log_file() -> None:
    whole = on_simulated_disk()
    filled(whole, 5)
    whole.clock.step(TEN_YEARS)
    for _ in range(100):
        whole.tick(10_000)
    assert log_files(whole) == 5
    whole.clock.step(-TEN_YEARS)
    for _ in range(100):
        whole.tick(10_000)
    assert log_files(whole) == 5
    whole.clock.forward(72 * HOUR)
    whole.tick(10_000)
    assert log_files(whole) == 1


def test_files_written_while_the_clock_was_ahead_expire_with_those_behind_them() -> None:
    whole = on_simulated_disk()
    filled(whole, 2)
    whole.clock.step(TEN_YEARS)
    filled(whole, 4)
    whole.clock.step(-TEN_YEARS)
    filled(whole, 6)
    whole.tick(71 * HOUR)
    assert log_files(whole) == 6
    whole.tick(HOUR)
    assert log_files(whole) == 1


def test_a_start_with_a_clock_ten_years_ahead_waits_before_it_removes_anything(caplog: pytest.LogCaptureFixture) -> None:
    whole = on_simulated_disk()
    disk = whole.broker.store.disk
    filled(whole, 5)
    whole.close()
    clock = ManualClock(whole.clock.ms + TEN_YEARS)
    caplog.set_level(logging.WARNING)
    whole = Timed(Path("/store"), disk=disk, clock=clock, mapped_file_size_commit_log=16_384, file_reserved_time=72,
                  delete_when=";".join(f"{hour:02}" for hour in range(24)))  # fmt: skip
    assert any("set it right" in record.getMessage() for record in caplog.records)
    for _ in range(350):
        whole.tick(10_000)
    assert log_files(whole) == 5
    for _ in range(20):
        whole.tick(10_000)
    assert log_files(whole) == 1


def test_a_full_disk_frees_whatever_the_clock_did() -> None:
    whole = on_simulated_disk()
    filled(whole, 5)
    whole.clock.step(-TEN_YEARS)
    disk = whole.broker.store.disk
    disk.used_ratio = lambda path: 0.87  # type: ignore[method-assign]
    whole.tick(10_000)
    assert log_files(whole) == 1


# Times that are stored


def test_store_times_are_the_clocks_and_follow_it_back(whole: Timed) -> None:
    start_ms = whole.clock.now_ms()
    for step in (365 * DAY, -365 * DAY, -300, -HOUR):
        whole.clock.step(step)
        whole.send(b"x")
    times = [record.store_timestamp - start_ms for record in whole.records()]
    # 300 ms back is a clock that is put right: it stands still until it is right.
    assert times == [365 * DAY, 0, 0, -300 - HOUR]


@pytest.mark.parametrize("end", ["running", "stopped", "killed"])
def test_a_search_by_time_misses_nothing_where_the_clock_was_set_back(whole: Timed, end: str) -> None:
    start_ms = whole.clock.now_ms()
    times: list[int] = []

    def minutes(count: int) -> None:
        for _ in range(count):
            times.append(whole.clock.now_ms())
            whole.send(b"x")
            whole.clock.forward(60_000)

    minutes(60)
    whole.clock.step(-30 * 60_000)
    minutes(60)
    whole.clock.step(365 * DAY)
    minutes(5)
    whole.clock.step(-365 * DAY)
    minutes(60)
    if end == "killed":
        whole.kill()
        whole = started(whole.root, whole.clock)
    elif end == "stopped":
        whole = restarted(whole)
    for minute in range(-5, 200):
        wanted = start_ms + minute * 60_000 - 7
        first = next((n for n, time in enumerate(times) if time >= wanted), len(times))
        last = max([n for n, time in enumerate(times) if time <= wanted], default=0)
        fields = {"topic": "T", "queueId": "0", "timestamp": str(wanted)}

        def found(**more: str) -> int:
            return int(whole.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields | more).fields["offset"])  # noqa: B023

        assert found(boundaryType="LOWER") == first
        assert found(boundaryType="UPPER") == last
        assert found() in (first, max(0, first - 1))
    whole.close()


def test_a_query_by_key_and_time_finds_what_was_stored_before_the_clock_was_set_back(whole: Timed) -> None:
    start_ms = whole.clock.now_ms()
    for n in range(3):
        whole.send(b"before", KEYS=f"k{n}")
        whole.clock.forward(60_000)
    whole.clock.step(-HOUR)
    whole.send(b"after", KEYS="k0")

    def found(begin_ms: int, end_ms: int) -> int:
        fields = {"topic": "T", "key": "k0", "maxNum": "32", "beginTimestamp": str(begin_ms), "endTimestamp": str(end_ms)}
        answer = whole.ask(RequestCode.QUERY_MESSAGE, fields)
        return 0 if answer.code else len(list(decode_bodies(answer.body)))

    assert found(start_ms - 1_000, start_ms + 1_000) >= 1
    assert found(0, 1 << 62) == 2


def decode_bodies(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        record = Record.decode(data, at)
        at += int.from_bytes(data[at : at + 4], "big")
        yield record.body


# It is said


@each_step
def test_a_step_is_logged_once_with_how_much(whole: Timed, step: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(5):
        whole.tick(50)
    whole.clock.step(step)
    for _ in range(5):
        whole.tick(50)
    (line,) = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert ("set forward by" if step > 0 else "set back by") in line
    assert {60 * SECOND: "60.0 seconds", HOUR: "60.0 minutes", TEN_YEARS: "3650.0 days"}[abs(step)] in line


def test_a_clock_that_is_put_right_slowly_is_no_step(whole: Timed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(100):
        whole.clock.step(-20)
        whole.tick(50)
    assert caplog.records == []


@each_step
def test_what_is_shown_of_time_that_passed_is_what_passed(whole: Timed, step: int) -> None:
    whole.clock.step(step)
    whole.tick(65_000)
    whole.send(b"x")
    whole.tick(10_000)
    table = fastjson.loads(whole.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 15 seconds ]"
    assert float(str(table["putTps"]).split()[0]) >= 0


def test_a_second_peer_is_served_while_the_clock_jumps(whole: Whole) -> None:
    """A jump between the requests of one read."""
    peer = FakePeer("127.0.0.1:9")
    whole.clock.step(-TEN_YEARS)
    for step in STEPS:
        whole.clock.step(step)
        assert whole.ask(310, send_fields(), b"x").code == 0
    assert not peer.closed
