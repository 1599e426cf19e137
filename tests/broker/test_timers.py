"""Timed messages, through a whole broker: when they are delivered, what is refused, cancelling, moving, and crashes."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roquet.broker.timed import firing, moving, near
from roquet.broker.writer import Draft
from roquet.store import timers as files_module
from roquet.store.scan import Found
from roquet.store.segments import Segments
from roquet.testing.clock import ManualClock
from roquet.testing.disk import PowerLost, SimDisk
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import TIMER_TOPIC
from roquet.wire.record import Record, decode_properties, decode_records

from .whole import Whole, pull_fields, send_fields

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


class Timed(Whole):
    """A broker to which timed messages are sent."""

    def send(self, body: bytes, asked: Mapping[str, int] | None = None, *, key: str = "", topic: str = "T", **more: object) -> Command:
        named = {"UNIQ_KEY": key or body.decode()} | {name: str(value) for name, value in (dict(asked or {}) | more).items()}
        text = "\x02".join(f"{name}\x01{value}" for name, value in named.items())
        return self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, properties=text), body)

    def cancel(self, handle: str) -> Command:
        return self.ask(RequestCode.RECALL_MESSAGE, {"producerGroup": "g", "topic": "T", "recallHandle": handle})

    def records(self, topic: str = "T") -> list[Record]:
        found: list[Record] = []
        queue = self.broker.store.find_queue(topic, 0)
        first = 0 if queue is None else queue.first
        while True:
            answer = self.ask(RequestCode.PULL_MESSAGE, pull_fields(topic, offset=first + len(found)))
            if answer.code:
                return found
            found += decode_records(answer.body)

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records()]

    def pass_time(self, ms: int, step: int = 50) -> None:
        """As ticks come; far ahead in larger steps, since nothing happens between."""
        end = self.clock.ms + ms
        while self.clock.ms < end:
            self.tick(min(step, end - self.clock.ms))

    def kill(self) -> None:
        """As SIGKILL leaves it."""
        store = self.broker.store
        assert store.is_open
        store.locks.close()


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Timed]:
    made = Timed(tmp_path / "store")
    yield made
    made.close()


# When


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": 2},
        {"TIMER_DELAY_MS": 2_000},
        {"TIMER_DELIVER_MS": 1_800_000_002_000},
        {"__STARTDELIVERTIME": 1_800_000_002_000},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_timed_message_is_delivered_at_its_time_and_not_before(whole: Timed, asked: dict[str, int]) -> None:
    assert whole.send(b"later", asked, TAGS="a").code == 0
    whole.pass_time(1_999)
    assert whole.bodies() == []
    whole.tick(1)
    [record] = whole.records()
    assert (record.body, record.topic, record.queue_id) == (b"later", "T", 0)
    assert record.store_timestamp == 1_800_000_002_000
    names = decode_properties(record.properties)
    assert names["TAGS"] == "a"
    assert names["UNIQ_KEY"] == "later"
    assert names["TIMER_OUT_MS"] == "1800000002000"
    assert "REAL_TOPIC" not in names
    assert "REAL_QID" not in names


@pytest.mark.parametrize("asked", [{"TIMER_DELIVER_MS": 1_799_999_999_999}, {"__STARTDELIVERTIME": 1}, {"TIMER_DELAY_MS": -5}])
def test_a_time_in_the_past_is_at_once(whole: Timed, asked: dict[str, int]) -> None:
    assert whole.send(b"now", asked).code == 0
    assert whole.bodies() == [b"now"]


def test_forty_days_are_allowed_and_a_millisecond_more_is_refused_with_the_limit(whole: Timed) -> None:
    assert whole.send(b"far", TIMER_DELIVER_MS=whole.clock.ms + 40 * DAY_MS).code == 0
    moment = whole.clock.ms + 40 * DAY_MS + 1
    for asked in ({"TIMER_DELIVER_MS": moment}, {"TIMER_DELAY_SEC": 40 * 86_400 + 1}, {"TIMER_DELAY_MS": 1 << 60}):
        answer = whole.send(b"too far", asked)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert "3456000000ms" in answer.remark
        assert "40 days" in answer.remark
    whole.pass_time(40 * DAY_MS, step=HOUR_MS // 2)
    assert whole.bodies() == [b"far"]


@pytest.mark.parametrize("value", ["soon", "1e9", "1" * 30, "２"])
def test_what_is_no_number_is_refused_with_the_value(whole: Timed, value: str) -> None:
    answer = whole.send(b"x", TIMER_DELIVER_MS=value)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert value[:40] in answer.remark


def test_a_delay_level_counts_before_a_time(whole: Timed) -> None:
    whole.send(b"level", DELAY=1, TIMER_DELAY_SEC=60)
    whole.pass_time(2_500)
    assert whole.bodies() == [b"level"]


def test_messages_come_in_the_order_of_their_times_whatever_the_order_of_sending(whole: Timed) -> None:
    delays = [700, 100, 3 * HOUR_MS, 500, 300, 2 * HOUR_MS, 100, HOUR_MS + 1]
    for number, delay in enumerate(delays):
        whole.send(f"{delay}.{number}".encode(), TIMER_DELAY_MS=delay)
    whole.pass_time(1_000)
    whole.pass_time(4 * HOUR_MS, step=30_000)
    expected = sorted(((delay, number) for number, delay in enumerate(delays)))
    assert whole.bodies() == [f"{delay}.{number}".encode() for delay, number in expected]


def test_many_that_are_due_at_once_are_delivered_in_portions_without_waiting_for_the_next_tick(whole: Timed) -> None:
    for number in range(firing.FIRE_MAX + 300):
        whole.send(b"%d" % number, {"TIMER_DELAY_MS": 1_000})
    whole.pass_time(900)
    whole.clock.ms += 5_000
    portions = [0]
    rest = whole.broker.tick(whole.clock.ms)
    while rest is not None:
        portions.append(len(whole.bodies()))
        rest = rest()
    assert portions == [0, firing.FIRE_MAX]
    assert len(whole.bodies()) == firing.FIRE_MAX + 300


def test_clients_cannot_write_to_the_timer_topic(whole: Timed) -> None:
    whole.send(b"later", TIMER_DELAY_SEC=60)
    answer = whole.send(b"forged", topic=TIMER_TOPIC)
    assert answer.code == ResponseCode.NO_PERMISSION


def test_a_message_that_was_delivered_and_is_tried_again_is_not_timed_again(whole: Timed) -> None:
    whole.send(b"later", TIMER_DELAY_SEC=1)
    whole.pass_time(1_050)
    [record] = whole.records()
    draft = Draft.of(record)
    assert draft.properties["TIMER_DELAY_SEC"] == "1"
    whole.broker.writer.put(draft)
    whole.tick(0)
    assert whole.bodies() == [b"later", b"later"]


def test_a_topic_that_is_gone_when_its_timer_is_due_is_made_again(whole: Timed) -> None:
    """A crash can lose a topic that was made by the very send of the timer."""
    whole.send(b"later", topic="Gone", TIMER_DELAY_SEC=1)
    whole.broker.topics.delete("Gone")
    whole.pass_time(2_000)
    assert [record.body for record in whole.records("Gone")] == [b"later"]
    assert whole.broker.topics.get("Gone") is not None


# Cancelling


def test_the_handle_of_the_answer_cancels(whole: Timed) -> None:
    handle = whole.send(b"never", TIMER_DELAY_SEC=10).fields["recallHandle"]
    assert base64.urlsafe_b64decode(handle) == b"v1 T broker-a 1800000010000 never"
    answer = whole.cancel(handle)
    assert answer.code == 0
    assert answer.fields["msgId"] == "never"
    whole.pass_time(11_000)
    assert whole.bodies() == []


def test_a_message_id_cancels_the_producers_and_the_brokers(whole: Timed) -> None:
    whole.send(b"one", TIMER_DELAY_SEC=10)
    offset_id = whole.send(b"two", TIMER_DELAY_SEC=10).fields["msgId"]
    assert whole.cancel("one").code == 0
    assert whole.cancel(offset_id).code == 0
    whole.pass_time(11_000)
    assert whole.bodies() == []


@pytest.mark.parametrize("value", ["never", "T_never"], ids=["5.1", "5.3"])
def test_a_message_with_the_delete_property_cancels(whole: Timed, value: str) -> None:
    whole.send(b"never", TIMER_DELAY_SEC=10)
    assert whole.send(b"0", key="other", TIMER_DEL_UNIQKEY=value, TIMER_DELIVER_MS=whole.clock.ms + 10_000).code == 0
    whole.pass_time(11_000)
    assert whole.bodies() == []


def test_one_of_another_hour_is_cancelled_in_its_file(whole: Timed) -> None:
    whole.send(b"never", TIMER_DELAY_SEC=7_200)
    whole.send(b"yes", TIMER_DELAY_SEC=7_200)
    whole.pass_time(3_000)
    assert whole.cancel("never").code == 0
    whole.pass_time(2 * HOUR_MS, step=10_000)
    assert whole.bodies() == [b"yes"]


def test_a_producers_second_attempt_is_cancelled_with_the_first(whole: Timed) -> None:
    for body in (b"first", b"second"):
        whole.send(body, key="same", TIMER_DELAY_SEC=10)
    assert whole.cancel("same").code == 0
    whole.pass_time(11_000)
    assert whole.bodies() == []


def test_what_is_not_pending_cannot_be_cancelled_and_the_answer_says_why(whole: Timed) -> None:
    whole.send(b"gone", TIMER_DELAY_MS=100)
    whole.send(b"never", TIMER_DELAY_SEC=10)
    whole.pass_time(200)
    whole.cancel("never")
    for handle, why in (("gone", "delivered already"), ("never", "cancelled already"), ("unheard", "not known")):
        answer = whole.cancel(handle)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark is not None
        assert why in answer.remark
    assert whole.cancel("").code == ResponseCode.MESSAGE_ILLEGAL
    assert whole.cancel("x" * 2_000).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_cancellation_that_could_not_be_written_does_not_count(whole: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.send(b"yes", TIMER_DELAY_SEC=1)
    whole.tick(50)

    def full() -> None:
        whole.broker.store.log.rollback()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole.broker.store.log, "commit", full)
    assert whole.cancel("yes").code == ResponseCode.SERVICE_NOT_AVAILABLE
    monkeypatch.undo()
    whole.broker.store.trouble.full = ""
    whole.pass_time(2_000)
    assert whole.bodies() == [b"yes"]


def test_under_sync_flush_a_cancelled_timer_does_not_fire_while_its_cancellation_is_being_flushed(tmp_path: Path) -> None:
    whole = Timed(tmp_path / "store", flush_disk_type="SYNC_FLUSH")
    whole.send(b"never", TIMER_DELAY_SEC=1)
    whole.tick(50)
    whole.background.hold = True
    whole.frames(Command(RequestCode.RECALL_MESSAGE, {"producerGroup": "g", "topic": "T", "recallHandle": "never"}, opaque=9))
    whole.pass_time(1_500)
    assert whole.peer.take() == []  # no promise before it is safe
    whole.background.hold = False
    whole.background.release()
    [answer] = whole.peer.take()
    assert answer.code == 0
    whole.pass_time(2_000)
    assert whole.bodies() == []
    whole.close()


# Much, and for long


def test_memory_holds_a_part_of_an_hour_that_has_too_many(whole: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "WINDOW_ROWS", 20)
    monkeypatch.setattr(files_module, "WINDOW_ROWS", 20)
    for number in range(200):
        whole.send(f"{number}".encode(), TIMER_DELAY_SEC=60 + number * 10)
    whole.pass_time(2_000)
    largest = 0
    while whole.broker.timers.firing.fired < 200 and whole.clock.ms < 1_800_000_000_000 + HOUR_MS:
        whole.tick(500)
        largest = max(largest, len(whole.broker.timers.near.window))
    assert whole.bodies() == [f"{number}".encode() for number in range(200)]
    assert largest <= 40


def test_a_cold_record_is_fetched_and_then_delivered(tmp_path: Path) -> None:
    disk = SimDisk(seed=3)
    disk.cold_ratio = 0.7
    whole = Timed(tmp_path / "store", disk)
    for number in range(50):
        whole.send(f"{number}".encode(), TIMER_DELAY_MS=1_000 + number)
    whole.send(b"never", TIMER_DELAY_MS=1_010)
    while whole.cancel("never").code:
        pass
    whole.pass_time(20_000)
    assert sorted(whole.bodies()) == sorted(f"{number}".encode() for number in range(50))


def test_while_the_disk_is_full_due_timers_wait_and_none_is_lost(whole: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        whole.send(f"{number}".encode(), TIMER_DELAY_SEC=1)
    whole.tick(50)
    commit = whole.broker.store.log.commit

    def full() -> None:
        whole.broker.store.log.rollback()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole.broker.store.log, "commit", full)
    whole.tick(1_000)
    monkeypatch.setattr(whole.broker.store.log, "commit", commit)
    assert whole.bodies() == []
    whole.pass_time(20_000)  # retention finds that there is room
    assert whole.bodies() == [f"{number}".encode() for number in range(10)]


def small_log(tmp_path: Path) -> Timed:
    clock = ManualClock()
    disk = SimDisk(clock)  # whose files have the clock's times
    return Timed(tmp_path / "store", disk, clock, mapped_file_size_commit_log=8_192, file_reserved_time=1, delete_when="")


def drop_old_files(whole: Timed) -> None:
    whole.broker.store.delete_expired_now()
    whole.pass_time(150_000, step=1_000)


def test_pending_timers_outlive_the_log_files_that_held_them(tmp_path: Path) -> None:
    whole = small_log(tmp_path)
    for number in range(40):
        whole.send(f"{number:02}".encode(), TIMER_DELAY_SEC=5 * 3_600 + number * 600)
    whole.send(b"soon", TIMER_DELAY_SEC=2 * 3_600 + 45)  # due just when its file is to go
    assert whole.cancel("07").code == 0
    first_file = whole.broker.store.log.start
    for _ in range(60):
        whole.send(b"." * 500, key="filler", topic="Filler")
    whole.pass_time(2 * HOUR_MS, step=10_000)
    drop_old_files(whole)
    assert whole.broker.store.log.start > first_file
    assert whole.broker.timers.moving.moved >= 39
    assert whole.cancel("11").code == 0  # after it was moved
    whole.pass_time(24 * HOUR_MS, step=10_000)
    assert whole.bodies() == [b"soon"] + [f"{number:02}".encode() for number in range(40) if number not in (7, 11)]
    whole.close()


def test_one_that_is_cancelled_while_its_neighbours_are_moved_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MOVE_MAX", 1)
    whole = small_log(tmp_path)
    for number in range(6):
        whole.send(f"{number}".encode(), TIMER_DELAY_SEC=5 * 3_600 + number)
    for _ in range(40):
        whole.send(b"." * 500, key="filler", topic="Filler")
    whole.pass_time(2 * HOUR_MS, step=10_000)
    whole.broker.store.delete_expired_now()
    while not whole.broker.timers.moving.moved:
        whole.tick(1_000)
    assert whole.cancel("4").code == 0  # not moved yet
    assert whole.cancel("0").code == 0  # moved just now
    whole.pass_time(4 * HOUR_MS, step=10_000)
    assert whole.broker.store.log.start > 0
    assert whole.bodies() == [b"1", b"2", b"3", b"5"]
    whole.close()


def test_a_log_file_stays_until_what_was_moved_out_of_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small_log(tmp_path)
    store = whole.broker.store
    whole.send(b"later", TIMER_DELAY_SEC=5 * 3_600)
    for _ in range(40):
        whole.send(b"." * 500, key="filler", topic="Filler")
    whole.pass_time(2 * HOUR_MS, step=10_000)
    monkeypatch.setattr(store.flush, "begin", lambda: None)
    store.delete_expired_now()
    whole.pass_time(60_000, step=1_000)
    assert whole.broker.timers.moving.moved == 1
    assert store.log.start == 0
    monkeypatch.undo()
    whole.pass_time(60_000, step=1_000)
    assert store.log.start > 0
    whole.close()


# Restarts


@pytest.mark.parametrize("seed", range(8))
def test_a_delivery_that_was_not_on_disk_happens_again_after_a_power_loss(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    disk = SimDisk(clock, seed)
    whole = Timed(Path("/store"), disk, clock)
    whole.send(b"later", TIMER_DELAY_SEC=5)
    whole.pass_time(4_000)
    monkeypatch.setattr(whole.broker.store.flush, "begin", lambda: None)
    whole.pass_time(30_000)  # longer than to the next checkpoint
    assert whole.bodies() == [b"later"]
    disk.crash()
    again = Timed(Path("/store"), disk, clock)
    again.pass_time(1_000)
    assert again.bodies() == [b"later"]
    again.close()


def test_a_clean_restart_goes_on_without_reading_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Timed(tmp_path / "store")
    for number in range(20):
        whole.send(f"{number}".encode(), TIMER_DELAY_SEC=1 + number)
    whole.pass_time(10_500)
    whole.close()
    starts: list[int] = []

    def nothing(segments: Segments, start: int, **rest: object) -> Iterator[Found]:
        starts.append(start)
        return iter(())

    monkeypatch.setattr(files_module, "Walk", nothing)
    again = Timed(tmp_path / "store", clock=whole.clock)
    assert again.broker.timers.following.followed == 20
    assert starts == [again.broker.store.log.written]
    again.pass_time(10_000)
    assert again.bodies() == [f"{number}".encode() for number in range(20)]
    again.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: bytes(len(data)),
        lambda data: data[:60] + bytes(24) + data[84:],
        lambda data: bytes([data[0] ^ 0x10]) + data[1:],
        lambda data: bytes(one ^ 0x11 for one in data),
        lambda data: data[:-5],
        lambda data: data[: len(data) // 2] + data[len(data) // 2 :][::-1],
    ],
    ids=["zeros", "a row of zeros", "one bit of a time", "nonsense", "short", "reversed"],
)
def test_damaged_timer_files_are_noticed_and_derived_from_the_log_again(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    whole = Timed(tmp_path / "store")
    for number in range(20):
        whole.send(f"{number}".encode(), TIMER_DELAY_SEC=1 + number)
    whole.pass_time(10_500)
    whole.close()
    for file in (tmp_path / "store" / "timers").iterdir():
        if file.name.isdigit():
            file.write_bytes(damage(file.read_bytes()))
    again = Timed(tmp_path / "store", clock=whole.clock)
    assert any("/timers/" in line for line in caplog.messages)
    again.pass_time(15_000)
    assert again.bodies() == [f"{number}".encode() for number in range(20)]
    again.close()


def test_without_timer_files_everything_is_derived_from_the_log(tmp_path: Path) -> None:
    whole = Timed(tmp_path / "store")
    for number in range(20):
        whole.send(f"{number}".encode(), TIMER_DELAY_SEC=1 + number * 600)
    whole.cancel("13")
    whole.pass_time(HOUR_MS, step=5_000)
    whole.close()
    shutil.rmtree(tmp_path / "store" / "timers")
    again = Timed(tmp_path / "store", clock=whole.clock)
    again.pass_time(3 * HOUR_MS, step=5_000)
    assert again.bodies() == [f"{number}".encode() for number in range(20) if number != 13]
    again.close()


def test_a_timer_file_that_lost_its_end_is_noticed_and_derived_again(tmp_path: Path) -> None:
    whole = Timed(tmp_path / "store")
    for number in range(20):
        whole.send(f"{number}".encode(), TIMER_DELAY_SEC=7_200 + number)
    whole.pass_time(20_000)
    whole.close()
    [path] = (tmp_path / "store" / "timers").glob("0*")
    path.write_bytes(path.read_bytes()[:-30])
    again = Timed(tmp_path / "store", clock=whole.clock)
    again.pass_time(3 * HOUR_MS, step=5_000)
    assert again.bodies() == [f"{number}".encode() for number in range(20)]
    again.close()


def test_what_was_due_while_the_broker_was_down_is_delivered_when_it_is_up(tmp_path: Path) -> None:
    whole = Timed(tmp_path / "store")
    for number in range(2_500):
        whole.send(f"{number}".encode(), TIMER_DELAY_SEC=60 + number * 10)
    whole.kill()
    whole.clock.ms += DAY_MS
    again = Timed(tmp_path / "store", clock=whole.clock)
    again.pass_time(5_000)
    assert again.bodies() == [f"{number}".encode() for number in range(2_500)]
    again.close()


# The model: whatever happens, in whatever order

step = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([0, 1, 30, 400, 5_000, 65_000, HOUR_MS, 3 * HOUR_MS, 30 * HOUR_MS])),
    st.tuples(st.just("send"), st.integers(1, 20_000)),
    st.tuples(st.just("cancel"), st.integers(0, 40)),
    st.tuples(st.just("pass"), st.sampled_from([1, 50, 1_000, 11_000, HOUR_MS, 2 * HOUR_MS])),
    st.tuples(st.just("fill"), st.integers(1, 20)),
    st.tuples(st.just("retain"), st.just(0)),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("kill"), st.just(0)),
    st.tuples(st.just("power"), st.integers(1, 60)),
    st.tuples(st.just("stop"), st.just(0)),
    st.tuples(st.just("clock"), st.sampled_from([0, 0, -30 * HOUR_MS, -HOUR_MS, -5_000, -300, 5_000, 65_000, HOUR_MS, 30 * HOUR_MS])),
)


class Model:
    """What must be true: each timed message is in its topic at most once, never early, never after it was cancelled;
    and at the end every one that was promised is there."""

    def __init__(self, root: Path, flush: str) -> None:
        self.clock = ManualClock()
        self.disk = SimDisk(self.clock, seed=7)
        self.settings: dict[str, Any] = {
            "flush_disk_type": flush, "mapped_file_size_commit_log": 8_192, "file_reserved_time": 1, "delete_when": "",
        }  # fmt: skip
        self.root = root
        self.sent: dict[bytes, int] = {}
        self.promised: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.maybe_cancelled: set[bytes] = set()
        self.expired: set[bytes] = set()  # delivered, and gone with an old log file since
        self.offsets: dict[bytes, int] = {}  # body -> where its timer stands in the log
        self.asking: dict[int, tuple[str, bytes]] = {}  # opaque -> what was asked for
        self.seen: dict[bytes, int] = {}  # body -> its place in the topic's queue
        self.latest_ms = 0  # that the clock ever showed after it was set; before that, store times tell more
        self.sync = flush == "SYNC_FLUSH"
        self.whole = self.open()

    def open(self) -> Timed:
        return Timed(self.root, self.disk, clock=self.clock, **self.settings)

    def do(self, name: str, value: Any) -> None:
        try:
            getattr(self, "clock_set" if name == "clock" else name)(value)
        except PowerLost:
            self.lose_power()

    def send(self, delay: int) -> None:
        body = f"m{len(self.sent)}".encode()
        self.sent[body] = self.clock.now_ms() + delay
        properties = f"UNIQ_KEY\x01{body.decode()}\x02TIMER_DELAY_MS\x01{delay}"
        self.ask("send", body, RequestCode.SEND_MESSAGE_V2, send_fields(properties=properties), body)

    def ask(self, what: str, about: bytes, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        opaque = 1_000_000 + len(self.asking)
        self.asking[opaque] = (what, about)
        self.whole.frames(Command(code, fields, body, opaque=opaque))
        self.listen()

    def listen(self) -> None:
        """Take what was answered: from here on it is a promise."""
        for answer in self.whole.peer.take():
            what, body = self.asking.get(answer.opaque, ("", b"")) if answer.is_response and answer.code == 0 else ("", b"")
            if what == "send":
                self.promised.add(body)
                self.offsets[body] = int(answer.fields["msgId"][-16:], 16)
            elif what == "cancel":
                self.cancelled.add(body)

    def cancel(self, number: int) -> None:
        body = f"m{number}".encode()
        if body not in self.sent:
            return
        self.maybe_cancelled.add(body)
        fields = {"producerGroup": "g", "topic": "T", "recallHandle": body.decode()}
        self.ask("cancel", body, RequestCode.RECALL_MESSAGE, fields)

    def fill(self, count: int) -> None:
        for _ in range(count):
            self.whole.frames(Command(RequestCode.SEND_MESSAGE_V2, send_fields("Filler"), b"." * 700))
        self.listen()

    def retain(self, _: int) -> None:
        self.check()  # before old deliveries go
        self.whole.broker.store.delete_expired_now()
        self.whole.pass_time(3_000, step=500)
        self.whole.broker.store.old_files.asked = 0
        seen = set(self.seen)
        self.expired |= seen - set(self.check())

    def hold(self, hold: bool) -> None:
        self.whole.background.hold = hold
        if not hold:
            self.whole.background.release()
            self.listen()

    def clock_set(self, ahead_ms: int) -> None:
        """The wall clock is ahead by so much, or behind, from now on."""
        self.latest_ms = max(self.latest_ms, self.clock.now_ms(), self.clock.ms + ahead_ms)
        self.clock.stepped_ms = ahead_ms

    def kill(self, _: int) -> None:
        self.disk.kill()
        self.whole = self.open()
        self.check()

    def power(self, operations: int) -> None:
        """It fails a little later."""
        self.disk.power_off_after(operations)

    def lose_power(self) -> None:
        self.disk.stay_on()
        self.disk.crash()
        if not self.sync:  # what was not synced may be lost: timers, deliveries, cancellations
            flushed = self.whole.broker.store.log.flushed
            self.promised = {body for body in self.promised if self.offsets[body] < flushed}
            self.cancelled.clear()
            self.seen.clear()
        self.whole = self.open()
        self.check()

    def stop(self, _: int) -> None:
        self.whole.background.hold = False
        self.whole.background.release()
        self.whole.close()
        self.whole = self.open()
        self.check()

    def check(self) -> list[bytes]:
        hold, self.whole.background.hold = self.whole.background.hold, False
        self.whole.background.release()
        self.listen()
        records = self.whole.records()
        self.whole.background.hold = hold
        bodies = [record.body for record in records]
        assert len(bodies) == len(set(bodies)), "delivered twice"
        for record in records:
            assert max(record.store_timestamp, self.latest_ms) >= self.sent[record.body], "early"
            assert self.seen.setdefault(record.body, record.queue_offset) == record.queue_offset, "delivered twice"
        return bodies

    def finish(self) -> None:
        self.disk.stay_on()
        self.hold(False)
        self.check()
        self.clock.stepped_ms = 0
        self.whole.pass_time(2_000)
        self.whole.pass_time(70 * HOUR_MS, step=HOUR_MS // 4)
        self.whole.pass_time(2_000)
        self.check()
        delivered = set(self.seen) | self.expired
        assert not self.cancelled & delivered, "cancelled and delivered"
        assert self.promised - self.maybe_cancelled <= delivered, "lost"
        # Of those whose cancelling nobody confirmed, either is right.


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(flush=st.sampled_from(["ASYNC_FLUSH", "SYNC_FLUSH"]), steps=st.lists(step, max_size=40))
@example(flush="SYNC_FLUSH", steps=[("send", 5_000), ("power", 9), ("pass", 11_000), ("pass", 11_000), ("send", 30), ("kill", 0)])
@example(
    flush="SYNC_FLUSH",
    steps=[("send", 1_000), ("pass", 50), ("hold", True), ("cancel", 0), ("pass", 1_000), ("hold", False)],
)
@example(
    flush="ASYNC_FLUSH",
    steps=[("hold", True), ("send", 65_000), ("pass", 50), ("send", 65_000), ("pass", 50), ("hold", False)],
)
@example(
    flush="ASYNC_FLUSH",
    steps=[("send", 5_000), ("clock", HOUR_MS), ("pass", 1_000), ("clock", 0), ("send", 5_000), ("pass", 11_000), ("kill", 0)],
)
@example(
    flush="ASYNC_FLUSH",
    steps=[("send", 30 * HOUR_MS), ("fill", 40), ("pass", 2 * HOUR_MS), ("retain", 0), ("kill", 0), ("retain", 0), ("kill", 0)],
)
def test_nothing_is_lost_early_or_twice_whatever_happens(monkeypatch: pytest.MonkeyPatch, flush: str, steps: list[tuple[str, Any]]) -> None:
    monkeypatch.setattr(moving, "MOVE_MAX", 1)
    monkeypatch.setattr(firing, "FIRE_AT_ONCE", 2)
    model = Model(Path("/store"), flush)  # on the simulated disk; a deeper path could be lost with its unsynced parents
    for name, value in steps:
        if name == "pass":
            try:
                model.whole.pass_time(value, step=50 if value <= 1_000 else 500 if value <= 11_000 else 60_000)
            except PowerLost:
                model.lose_power()
        else:
            model.do(name, value)
    model.finish()
