"""Delay levels: never early, never lost, not twice; and directories that open both ways with Apache RocketMQ 4.9.7."""

from __future__ import annotations

import errno
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roquet.broker import delay
from roquet.errors import BadSetting
from roquet.settings import BrokerSettings, delay_levels_ms
from roquet.store.disk import Cold, blocking
from roquet.store.fanout import delay_level
from roquet.testing.disk import PowerLost, SimDisk
from roquet.wire import fastjson
from roquet.wire.calls.brokers import KvTable
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.layout import BLANK_LENGTH
from roquet.wire.names import TIMER_TOPIC
from roquet.wire.record import Record, decode_properties

from .whole import Whole, pull_fields, send_fields

VECTORS = Path(__file__).parent.parent / "vectors"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HOUR = 3_600_000
ROOT = Path("/store")


def started(disk: SimDisk, now_ms: int | None = None, **settings: Any) -> Whole:
    made = Whole(ROOT, disk=disk, **settings)
    if now_ms is not None:
        made.clock.ms = now_ms
    return made


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def whole(disk: SimDisk) -> Iterator[Whole]:
    made = started(disk)
    yield made
    made.close()


def delayed(whole: Whole, level: object, body: bytes = b"hello", topic: str = "T", queue_id: int = 0, more: str = "") -> Command:
    return whole.ask(310, send_fields(topic, queue_id, f"UNIQ_KEY\x01U1\x02DELAY\x01{level}\x02WAIT\x01true{more}"), body)


def stored(whole: Whole, topic: str = "T", queue_id: int = 0) -> list[Record]:
    queue = whole.broker.store.find_queue(topic, queue_id)
    if queue is None:
        return []
    entries = [blocking(queue.entry, offset) for offset in range(queue.first, queue.visible)]
    read = whole.broker.store.record_at
    # A hole in the log leaves entries that lead nowhere.
    return [Record.decode(blocking(read, entry[0])) for entry in entries if entry is not None and entry[1] != BLANK_LENGTH]


def bodies(whole: Whole, topic: str = "T") -> list[bytes]:
    return [record.body for queue_id in range(4) for record in stored(whole, topic, queue_id)]


def put_cursors(disk: SimDisk, data: bytes) -> None:
    path = f"{ROOT}/config/delayOffset.json"
    disk.remove(path)
    disk.open(path, size=0).write(0, data)


class TestADelayedMessage:
    def test_waits_in_the_queue_of_its_level_with_the_time_of_delivery_in_place_of_a_tag(self, whole: Whole) -> None:
        answer = delayed(whole, 3, queue_id=2, more="\x02TAGS\x01a")
        assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "2", "0")
        (record,) = stored(whole, SCHEDULE, 2)
        assert decode_properties(record.properties) == {
            "UNIQ_KEY": "U1", "DELAY": "3", "WAIT": "true", "TAGS": "a", "CLUSTER": "DefaultCluster", "REAL_TOPIC": "T", "REAL_QID": "2",
        }  # fmt: skip
        entry = whole.broker.store.queue(SCHEDULE, 2).entry(0)
        assert entry is not None
        assert entry[2] == record.store_timestamp + 10_000

    def test_is_not_early_and_comes_with_the_first_tick_after_its_time(self, whole: Whole) -> None:
        delayed(whole, 1, queue_id=3)
        for _ in range(20):
            assert stored(whole, "T", 3) == []
            whole.tick(49)
        whole.tick(19)
        assert stored(whole, "T", 3) == []
        whole.tick(1)
        assert [record.body for record in stored(whole, "T", 3)] == [b"hello"]

    def test_is_delivered_as_apache_does_with_its_properties_and_hosts_and_a_new_store_time(self, whole: Whole) -> None:
        whole.peer.host = bytes((10, 0, 0, 9)) + (555).to_bytes(4, "big")
        delayed(whole, 1, more="\x02TAGS\x01a\x02KEYS\x01k")
        (waiting,) = stored(whole, SCHEDULE, 0)
        whole.broker.listening("127.0.0.1:20911", bytes(8))
        whole.tick(1_000)
        (record,) = stored(whole)
        assert record.properties == waiting.properties
        assert (record.born_host, record.store_host) == (whole.peer.host, waiting.store_host)
        assert (record.born_timestamp, record.flag, record.sys_flag) == (waiting.born_timestamp, waiting.flag, waiting.sys_flag)
        assert record.store_timestamp == waiting.store_timestamp + 1_000
        assert whole.broker.store.query("T", "k", 8, 0, 1 << 60)[0]
        entry = whole.broker.store.queue("T", 0).entry(0)
        assert entry is not None
        assert entry[2] == 97, "the queue entry of a delivery has the hash of its tag again"

    def test_above_the_last_level_waits_as_long_as_the_last(self, whole: Whole) -> None:
        delayed(whole, 99)
        delayed(whole, "9" * 5_000)
        assert [decode_properties(record.properties)["DELAY"] for record in stored(whole, SCHEDULE, 17)] == ["18", "18"]
        whole.tick(2 * HOUR - 1)
        assert bodies(whole) == []
        whole.tick(1)
        assert bodies(whole) == [b"hello", b"hello"]

    @pytest.mark.parametrize("level", ["0", "-1", "00"])
    def test_of_no_level_is_an_ordinary_one(self, whole: Whole, level: str) -> None:
        assert delayed(whole, level).code == 0
        assert bodies(whole) == [b"hello"]

    @pytest.mark.parametrize("level", ["x", "1.5", "²", "+3", " 3"])
    def test_of_a_level_that_is_no_number_is_refused(self, whole: Whole, level: str) -> None:
        answer = delayed(whole, level)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "allowed are 1 to 18" in str(answer.remark)
        assert bodies(whole) == []

    def test_wakes_the_pull_that_waits_for_it(self, whole: Whole) -> None:
        delayed(whole, 1)
        whole.frames(Command(11, pull_fields(sysFlag="6"), opaque=77))
        assert whole.peer.take() == []
        whole.tick(1_000)
        (answer,) = whole.peer.take()
        assert (answer.opaque, answer.code, Record.decode(answer.body).body) == (77, 0, b"hello")

    def test_is_not_delivered_before_it_is_flushed_under_sync_flush(self, disk: SimDisk) -> None:
        whole = started(disk, flush_disk_type="SYNC_FLUSH")
        whole.frames(Command(310, send_fields(), b"first", opaque=1))
        whole.peer.take()
        whole.background.hold = True
        whole.frames(Command(310, send_fields(properties="DELAY\x011"), b"hello", opaque=2))
        whole.tick(2_000)
        whole.tick(2_000)
        assert whole.broker.delays.delivered == 0
        whole.background.hold = False
        whole.background.release()
        whole.tick(50)
        whole.background.release()
        assert bodies(whole) == [b"first", b"hello"]
        whole.close()


class TestManyDelayedMessages:
    def test_come_in_the_order_they_were_sent(self, whole: Whole) -> None:
        for number in range(20):
            delayed(whole, 2, b"%d" % number)
            whole.tick(7)
        whole.tick(5_000)
        assert bodies(whole) == [b"%d" % number for number in range(20)]

    def test_are_delivered_in_portions_between_which_others_have_their_turn_and_no_level_starves(self, whole: Whole) -> None:
        for level in (1, 2):
            whole.frames(*(Command(310, send_fields(properties=f"DELAY\x01{level}"), b"%d" % level, opaque=n) for n in range(700)))
        whole.peer.take()
        whole.clock.ms += 5_000
        counts = []
        rest = whole.broker.tick(whole.clock.ms)
        while rest is not None:
            counts.append(Counter(bodies(whole)))
            rest = rest()
        assert [count.total() for count in counts] == [500, 1_000]
        assert set(counts[1]) == {b"1", b"2"}
        assert Counter(bodies(whole)) == {b"1": 700, b"2": 700}, "all of them, without waiting for the next tick"

    def test_that_cannot_be_stored_wait_for_the_next_tick(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        whole.frames(*(Command(310, send_fields(properties="DELAY\x011"), b"1", opaque=n) for n in range(700)))
        whole.peer.take()
        whole.clock.ms += 5_000
        rest = whole.broker.tick(whole.clock.ms)
        assert rest is not None
        monkeypatch.setattr(whole.broker.store.trouble, "refuse_own", lambda: "the disk is full")
        assert rest() is None, "a turn for nothing would be followed by another one at once"
        assert len(bodies(whole)) == 500
        monkeypatch.undo()
        whole.tick()
        assert len(bodies(whole)) == 700

    def test_of_large_bodies_are_bounded_by_bytes(self, disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delay, "BYTES_MAX", 10_000)
        whole = started(disk)
        for _ in range(10):
            delayed(whole, 1, bytes(4_000))
        whole.tick(1_000)
        assert len(bodies(whole)) == 3
        whole.close()

    def test_that_are_not_in_memory_come_when_they_were_read_in_the_same_order(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(5):
            delayed(whole, 1, b"%d" % number)
        whole.tick(500)
        warm: set[int] = set()
        read = whole.broker.store.log.read

        def cold(offset: int, size: int) -> bytes:
            if offset in warm:
                return read(offset, size)
            raise Cold(lambda: warm.add(offset))

        def cold_into(offset: int, room: memoryview) -> None:
            raise Cold(lambda: None)

        monkeypatch.setattr(whole.broker.store.log, "read", cold)
        monkeypatch.setattr(whole.broker.store.log, "read_into", cold_into)
        whole.background.hold = True
        whole.tick(600)
        whole.tick(50)
        assert len(whole.background.waiting) == 1, "a level asks the disk once, and waits"
        for _ in range(5):
            whole.background.release()
            whole.tick(50)
        monkeypatch.undo()
        whole.background.hold = False
        whole.background.release()
        assert bodies(whole) == [b"0", b"1", b"2", b"3", b"4"]


class TestWhatCannotBeDelivered:
    @pytest.mark.parametrize(
        "properties", ["DELAY\x011", "DELAY\x011\x02REAL_TOPIC\x01../x\x02REAL_QID\x010", "DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x01x"]
    )
    def test_does_not_hold_up_the_others(self, whole: Whole, properties: str) -> None:
        store = whole.broker.store
        store.put(store.queue(SCHEDULE, 0), b"bad", properties, sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))
        store.commit()
        delayed(whole, 1, b"good")
        whole.tick(1_000)
        assert bodies(whole) == [b"good"]
        assert whole.broker.delays.offsets[1] == 2

    def test_such_as_a_delayed_half_message_is_dropped_as_upstream_drops_it(self, whole: Whole) -> None:
        store = whole.broker.store
        text = "DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010"
        store.put(store.queue(SCHEDULE, 0), b"half", text, sys_flag=0, flag=0, born_ms=1, born_host=bytes(8))
        store.commit()
        whole.tick(1_000)
        assert store.find_queue("RMQ_SYS_TRANS_HALF_TOPIC", 0) is None

    def test_because_the_disk_is_full_comes_once_when_there_is_room(self, disk: SimDisk, whole: Whole) -> None:
        delayed(whole, 1, b"x" * 5_000)
        disk.full = True
        for _ in range(4):
            whole.tick(1_000)
        disk.full = False
        for _ in range(30):
            whole.tick(1_000)
        assert len(bodies(whole)) == 1


class TestTheLevels:
    def test_are_those_of_message_delay_level(self, disk: SimDisk) -> None:
        whole = started(disk, message_delay_level="2s 1m")
        assert whole.broker.topics.get(SCHEDULE) is not None
        delayed(whole, 5)
        whole.tick(59_999)
        assert bodies(whole) == []
        whole.tick(1)
        assert bodies(whole) == [b"hello"]
        whole.close()

    def test_may_be_more_than_eighteen(self, disk: SimDisk) -> None:
        whole = started(disk, message_delay_level="1s " * 19 + "3d")
        topic = whole.broker.topics.get(SCHEDULE)
        assert topic is not None
        assert topic.read_queue_nums == 20
        delayed(whole, 20)
        whole.tick(3 * 24 * HOUR)
        assert bodies(whole) == [b"hello"]
        whole.close()

    def test_that_are_no_longer_configured_are_emptied_all_the_same(self, disk: SimDisk) -> None:
        whole = started(disk)
        delayed(whole, 18)
        whole.close()
        whole = started(disk, message_delay_level="1s 5s")
        whole.tick(2 * HOUR - 1)
        assert bodies(whole) == []
        whole.tick(1)
        assert bodies(whole) == [b"hello"]
        whole.close()

    def test_are_read_as_upstream_writes_them(self) -> None:
        assert delay_levels_ms("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")[13:] == (
            600_000, 1_200_000, 1_800_000, HOUR, 2 * HOUR,
        )  # fmt: skip
        made, warnings = BrokerSettings.read({"messageDelayLevel": "1s 1d"})
        assert (made.message_delay_level, warnings) == ("1s 1d", [])

    @pytest.mark.parametrize("text", ["", "1", "1x", "s", "1s -5s", "0s", "1s 367d", "1s,5s", "²s", "1s " * 300])
    def test_that_make_no_sense_are_refused_at_the_start(self, text: str) -> None:
        with pytest.raises(BadSetting, match="messageDelayLevel"):
            BrokerSettings.read({"messageDelayLevel": text})

    @given(st.text(max_size=12))
    def test_of_any_property_are_a_level_or_none(self, text: str) -> None:
        assert 0 <= delay_level(text, 18) <= 18

    def test_an_entry_with_an_address_of_its_time_is_due_by_its_record(self, whole: Whole) -> None:
        """Upstream's enableConsumeQueueExt puts the address of the time where the time would be."""
        delayed(whole, 2)
        queue = whole.broker.store.queue(SCHEDULE, 1)
        entry = queue.entry(0)
        assert entry is not None
        queue.tail[12:20] = (-(1 << 63) + 40).to_bytes(8, "big", signed=True)
        whole.tick(4_999)
        assert bodies(whole) == []
        whole.tick(1)
        assert bodies(whole) == [b"hello"]


class TestCursors:
    def offsets(self, disk: SimDisk) -> Any:
        path = f"{ROOT}/config/delayOffset.json"
        if not disk.exists(path):
            return None
        file = disk.open(path)
        return fastjson.loads(file.read(0, file.size()))

    def test_are_saved_every_ten_seconds_once_the_log_is_flushed_that_far(self, disk: SimDisk, whole: Whole) -> None:
        delayed(whole, 1)
        whole.tick(1_000)
        whole.background.hold = True
        whole.tick(10_000)
        assert self.offsets(disk) is None
        whole.background.release()
        whole.tick(500)
        whole.background.release()
        whole.tick(50)
        whole.background.hold = False
        whole.background.release()
        assert self.offsets(disk)["offsetTable"] == {"1": 1}

    def test_are_saved_at_a_stop_and_nothing_comes_twice(self, disk: SimDisk) -> None:
        whole = started(disk)
        delayed(whole, 1, b"1")
        delayed(whole, 2, b"2")
        whole.tick(1_000)
        whole.close()
        assert self.offsets(disk)["offsetTable"] == {"1": 1}
        whole = started(disk, whole.clock.ms)
        whole.tick(10_000)
        assert bodies(whole) == [b"1", b"2"]
        whole.close()

    def test_are_told_to_slaves_and_to_operators(self, whole: Whole) -> None:
        delayed(whole, 1)
        delayed(whole, 1)
        delayed(whole, 4)
        whole.tick(1_000)
        assert whole.ask(RequestCode.GET_ALL_DELAY_OFFSET).body == b'{"offsetTable":{1:2}}'
        table = KvTable.decode(whole.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
        assert (table["scheduleMessageOffset_1"], table["scheduleMessageOffset_4"]) == ("2,2", "0,1")

    def test_beyond_the_end_of_their_queue_are_put_back(self, disk: SimDisk) -> None:
        started(disk).close()
        put_cursors(disk, b'{"offsetTable":{1:7,3:2},"dataVersion":{"counter":1}}')
        whole = started(disk)
        delayed(whole, 1)
        whole.tick(1_000)
        assert bodies(whole) == [b"hello"]
        whole.close()

    @pytest.mark.parametrize("text", [b"[]", b'{"offsetTable":{0:1}}', b'{"offsetTable":{1:-1}}', b'{"offsetTable":{"x":1}}', b"{"])
    def test_that_nobody_can_read_stop_the_start(self, disk: SimDisk, text: bytes) -> None:
        started(disk).close()
        put_cursors(disk, text)
        with pytest.raises(Exception, match=r"delayOffset\.json"):
            started(disk)


class TestAfterAKill:
    def test_deliveries_since_the_last_save_are_found_in_the_log(self, disk: SimDisk) -> None:
        whole = started(disk)
        for number in range(10):
            delayed(whole, 1, b"same" if number % 2 else b"%d" % number)
        whole.tick(1_000)
        for _ in range(3):
            delayed(whole, 1, b"same")
        disk.kill()
        whole = started(disk, whole.clock.ms)
        assert whole.broker.delays.offsets[1] == 10
        whole.tick(5_000)
        assert len(bodies(whole)) == 13
        whole.close()

    def test_without_a_file_they_are_found_too(self, disk: SimDisk) -> None:
        whole = started(disk)
        delayed(whole, 1)
        whole.tick(1_000)
        disk.kill()
        disk.remove(f"{ROOT}/config/delayOffset.json")
        whole = started(disk, whole.clock.ms)
        whole.tick(5_000)
        assert bodies(whole) == [b"hello"]
        whole.close()

    def test_without_a_mark_in_the_file_what_was_delivered_since_comes_again(self, disk: SimDisk) -> None:
        """Apache's file, and Apache's rule: its cursors are up to ten seconds old."""
        whole = started(disk)
        delayed(whole, 1)
        whole.tick(1_000)
        disk.kill()
        put_cursors(disk, b'{\n\t"offsetTable":{1:0\n\t}\n}')
        whole = started(disk, whole.clock.ms)
        whole.tick(5_000)
        assert bodies(whole) == [b"hello", b"hello"]
        whole.close()


class TestADeliveryThatOutlivedOneBeforeIt:
    """A power loss took the first delivery of a level and left the second."""

    @pytest.fixture
    def outlived(self, disk: SimDisk) -> Iterator[Whole]:
        whole = started(disk)
        for body in (b"first", b"second"):
            delayed(whole, 1, body)
        whole.tick(1_000)
        (first, second) = stored(whole)
        disk.kill()
        log_file = f"{ROOT}/commitlog/{0:020}"
        disk.open(log_file).write(first.physical_offset, bytes(second.physical_offset - first.physical_offset))
        whole = started(disk, whole.clock.ms)
        yield whole
        whole.close()

    def test_is_not_made_again(self, outlived: Whole) -> None:
        outlived.tick(1_000)
        assert Counter(bodies(outlived)) == {b"first": 1, b"second": 1}

    def test_is_not_made_again_when_the_write_of_the_one_before_it_fails_at_first(self, disk: SimDisk, outlived: Whole) -> None:
        disk.fail("write", errno.ENOSPC, "/commitlog/")
        for _ in range(30):
            outlived.tick(1_000)
        assert not disk.faults, "it failed"
        assert Counter(bodies(outlived)) == {b"first": 1, b"second": 1}

    def test_is_not_handed_over_to_the_timers(self, outlived: Whole) -> None:
        handover = outlived.broker.handover
        assert not handover.may_drop(outlived.broker.store.log.written)
        outlived.broker.store.begin(outlived.clock.ms)
        handover.tick(outlived.clock.ms)
        assert [record.body for record in stored(outlived, TIMER_TOPIC)] == [b"first"]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 5), st.sampled_from([b"a", b"a", b"b"]), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.integers(1, 8_000)),
        st.tuples(st.just("plain"), st.just(b"a")),
        st.sampled_from([("stop",), ("kill",), ("power",)]),
        st.tuples(st.just("power in"), st.integers(1, 12)),
    ),
    max_size=25,
)


SEND_A = ("send", 1, b"a", 0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.integers(0, 1 << 30), st.sampled_from([0.0, 0.3]), st.sampled_from(["SYNC_FLUSH", "ASYNC_FLUSH"]))
@example([*[SEND_A] * 2, ("wait", 950), SEND_A, ("plain", b"a"), SEND_A, ("power",)], 214_496, 0.0, "ASYNC_FLUSH")  # leaves a hole
def test_nothing_is_lost_early_or_twice_whatever_ends_the_broker(
    steps: list[tuple[Any, ...]], seed: int, cold_ratio: float, flush: str
) -> None:
    """The log holds exactly one delivery of each waiting message that it holds; under SYNC_FLUSH, of each acknowledged one."""
    delays = (1_000, 2_000, 3_000, 5_000, 10_000)
    disk = SimDisk(seed=seed)
    disk.cold_ratio = cold_ratio
    config: dict[str, Any] = {
        "message_delay_level": "1s 2s 3s 5s 10s", "flush_disk_type": flush, "flush_delay_offset_interval": 4_000,
    }  # fmt: skip
    whole = started(disk, **config)
    sent: Counter[tuple[bytes, int]] = Counter()
    plain = doubtful = 0

    def restart() -> None:
        nonlocal whole
        whole = started(disk, whole.clock.ms, **config)

    for step in steps:
        try:
            match step:
                case ("send", level, body, queue_id):
                    if delayed(whole, level, body, queue_id=queue_id).code == 0:
                        sent[body, level] += 1
                case ("plain", body):
                    whole.ask(310, send_fields(), body)
                    plain += 1
                case ("wait", ms):
                    whole.tick(ms)
                    whole.tick(50)
                case ("stop",):
                    whole.close()
                    restart()
                case ("kill",):
                    disk.kill()
                    restart()
                case ("power",):
                    disk.crash()
                    restart()
                case ("power in", operations):
                    disk.power_off_after(operations)
        except PowerLost:
            doubtful += 1  # whether the one under way counts is open, as for any producer without an answer
            disk.crash()
            restart()
    disk.stay_on()
    for _ in range(40):
        whole.tick(1_000)
    found: Counter[tuple[bytes, int]] = Counter()
    for queue_id in (0, 1):
        for record in stored(whole, "T", queue_id):
            properties = decode_properties(record.properties)
            if "DELAY" in properties:
                found[record.body, int(properties["DELAY"])] += 1
    due: Counter[tuple[bytes, int]] = Counter()
    for number, delay_ms in enumerate(delays):
        waiting = stored(whole, SCHEDULE, number)
        for record in waiting:
            due[record.body, number + 1] += 1
        made = sorted(record.store_timestamp + delay_ms for record in waiting)
        came = sorted(
            record.store_timestamp
            for queue_id in (0, 1)
            for record in stored(whole, "T", queue_id)
            if decode_properties(record.properties).get("DELAY") == str(number + 1)
        )
        assert all(earliest <= arrived for earliest, arrived in zip(made, came, strict=True)), "one came before its time"
    assert found == due, "each waiting message was delivered exactly once"
    if flush == "SYNC_FLUSH" or not ({"power", "power in"} & {step[0] for step in steps}):
        assert not sent - due, "what was acknowledged is there"
    assert (due - sent).total() <= doubtful
    whole.close()


class TestADirectoryOfApache:
    @pytest.fixture(params=["stopped", "killed"])
    def root(self, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("roquet.system.sync_data", lambda fd: None)
        monkeypatch.setattr("os.fsync", lambda fd: None)
        with tarfile.open(VECTORS / f"store-4.9.7-{request.param}.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / "store"

    def opened(self, root: Path) -> Whole:
        return Whole(root, mapped_file_size_commit_log=65_536, mapped_file_size_consume_queue=600, max_hash_slot_num=100, max_index_num=400)

    def test_goes_on_where_apache_stopped(self, root: Path) -> None:
        whole = self.opened(root)
        assert whole.broker.delays.offsets == {1: 8}
        before = len(stored(whole, "VecTopic", 0))
        whole.tick(10_000)
        assert len(stored(whole, "VecTopic", 0)) == before
        delayed(whole, 1, topic="VecTopic")
        whole.tick(1_000)
        assert len(stored(whole, "VecTopic", 0)) == before + 1
        whole.close()
        assert fastjson.loads((root / "config/delayOffset.json").read_bytes())["offsetTable"] == {"1": 9}

    def test_delivers_what_waited_there_byte_for_byte_as_apache_did(self, root: Path) -> None:
        (root / "config/delayOffset.json").write_text('{"offsetTable":{1:0}}')
        whole = self.opened(root)
        counts = {key: queue.visible for key, queue in whole.broker.store.queues.items()}
        whole.tick(10_000)
        assert whole.broker.delays.delivered == 8
        for waiting in stored(whole, SCHEDULE, 0):
            properties = decode_properties(waiting.properties)
            topic, queue_id = properties["REAL_TOPIC"], int(properties["REAL_QID"])
            every = stored(whole, topic, queue_id)
            theirs = [one for one in every[: counts[topic, queue_id]] if one.properties == waiting.properties]
            ours = [one for one in every[counts[topic, queue_id] :] if one.properties == waiting.properties]
            assert len(theirs) == len(ours) == 1
            for one in (*theirs, *ours):
                one.physical_offset = one.queue_offset = one.store_timestamp = 0
            assert ours == theirs
        whole.close()

    def test_has_the_queue_entries_that_our_own_derivation_makes(self, root: Path) -> None:
        whole = self.opened(root)
        queue = whole.broker.store.queue(SCHEDULE, 0)
        for offset, record in enumerate(stored(whole, SCHEDULE, 0)):
            entry = queue.entry(offset)
            assert entry is not None
            assert entry[2] == record.store_timestamp + 1_000
        whole.close()
