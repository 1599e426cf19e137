"""Send-back: a failed message comes again through the delay levels, and ends as a dead letter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.store.disk import Cold
from roquet.testing.disk import SimDisk
from roquet.testing.whole_broker import HOST
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import Record, decode_properties

from .conftest import Golden, golden, same_answer
from .whole import Whole, send_fields

RETRY, DEAD = "%RETRY%g", "%DLQ%g"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def whole(disk: SimDisk) -> Iterator[Whole]:
    made = Whole(Path("/store"), disk=disk)
    yield made
    made.background.hold = False
    made.background.release()
    made.close()


def stored(whole: Whole, topic: str, queue_id: int = 0) -> list[Record]:
    queue = whole.broker.store.find_queue(topic, queue_id)
    if queue is None:
        return []
    entries = [queue.entry(offset) for offset in range(queue.first, queue.visible)]
    return [Record.decode(whole.broker.store.record_at(entry[0])) for entry in entries if entry is not None]


def sent(whole: Whole, properties: str = "UNIQ_KEY\x01U1\x02TAGS\x01a", **more: str) -> Record:
    assert whole.ask(310, send_fields(properties=properties) | more, b"hello").code == 0
    return stored(whole, "T")[-1]


def back(whole: Whole, record: Record, *, level: int = 0, version: int = 407, **more: str) -> Command:
    fields = {
        "offset": str(record.physical_offset), "group": "g", "delayLevel": str(level), "originMsgId": "U1", "originTopic": "T",
        "unitMode": "false", "bname": "broker-a",
    } | more  # fmt: skip
    return whole.ask(SEND_BACK, fields, version=version)


class TestASentBackMessage:
    def test_comes_again_in_the_retry_topic_after_ten_seconds(self, whole: Whole) -> None:
        whole.peer.host = bytes((10, 0, 0, 9)) + (555).to_bytes(4, "big")
        record = sent(whole, "UNIQ_KEY\x01U1\x02TAGS\x01a\x02KEYS\x01k", h="7", f="1")
        whole.peer.host = bytes(8)
        answer = back(whole, record)
        assert (answer.code, answer.remark, answer.fields) == (0, None, {})
        whole.tick(9_999)
        assert stored(whole, RETRY) == []
        whole.tick(1)
        (again,) = stored(whole, RETRY)
        assert decode_properties(again.properties) == {
            "UNIQ_KEY": "U1", "TAGS": "a", "KEYS": "k", "CLUSTER": "DefaultCluster", "RETRY_TOPIC": "T", "WAIT": "false", "DELAY": "3",
            "ORIGIN_MESSAGE_ID": f"{HOST.hex().upper()}{record.physical_offset:016X}", "REAL_TOPIC": RETRY, "REAL_QID": "0",
        }  # fmt: skip
        assert again.reconsume_times == 1
        same = ("body", "flag", "sys_flag", "born_timestamp", "born_host", "store_host")
        assert [getattr(again, name) for name in same] == [getattr(record, name) for name in same]
        assert again.store_timestamp == record.store_timestamp + 10_000

    def test_waits_a_level_longer_each_time_and_is_a_dead_letter_after_sixteen(self, whole: Whole) -> None:
        record = first = sent(whole)
        for attempt in range(1, 17):
            assert back(whole, record).code == 0
            level = min(2 + attempt, 18)
            assert decode_properties(stored(whole, SCHEDULE, level - 1)[-1].properties)["DELAY"] == str(level)
            whole.tick(2 * 3_600_000)
            assert stored(whole, DEAD) == []
            record = stored(whole, RETRY)[-1]
            assert record.reconsume_times == attempt
        assert len(stored(whole, RETRY)) == 16
        assert back(whole, record).code == 0
        (dead,) = stored(whole, DEAD)
        assert dead.reconsume_times == 17
        properties = decode_properties(dead.properties)
        assert (properties["RETRY_TOPIC"], properties["DELAY"], properties["UNIQ_KEY"]) == ("T", "0", "U1")
        assert properties["ORIGIN_MESSAGE_ID"] == f"{HOST.hex().upper()}{first.physical_offset:016X}"
        topic = whole.broker.topics.get(DEAD)
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)

    def test_waits_as_long_as_the_consumer_says(self, whole: Whole) -> None:
        back(whole, sent(whole), level=1)
        whole.tick(1_000)
        assert len(stored(whole, RETRY)) == 1

    def test_with_a_negative_level_is_a_dead_letter_at_once(self, whole: Whole) -> None:
        back(whole, sent(whole), level=-1)
        assert [record.reconsume_times for record in stored(whole, DEAD)] == [1]

    def test_is_tried_as_often_as_the_request_says_if_the_client_is_not_too_old(self, whole: Whole) -> None:
        record = sent(whole)
        back(whole, record, maxReconsumeTimes="0", version=120)
        assert stored(whole, DEAD) == []
        back(whole, record, maxReconsumeTimes="0", version=121)
        assert len(stored(whole, DEAD)) == 1

    def test_is_tried_as_often_as_the_group_says(self, whole: Whole) -> None:
        whole.broker.groups.put(GroupConfig("g", retry_max_times=0))
        back(whole, sent(whole))
        assert len(stored(whole, DEAD)) == 1
        back(whole, sent(whole), maxReconsumeTimes="1")
        assert len(stored(whole, DEAD)) == 1

    def test_goes_to_any_of_the_group_s_retry_queues(self, whole: Whole) -> None:
        whole.broker.groups.put(GroupConfig("g", retry_queue_nums=3))
        record = sent(whole)
        for _ in range(40):
            back(whole, record, level=1)
        whole.tick(1_000)
        assert all(len(stored(whole, RETRY, queue_id)) > 4 for queue_id in range(3))

    def test_never_goes_to_a_queue_that_the_retry_topic_does_not_have(self, whole: Whole) -> None:
        record = sent(whole)
        back(whole, record, level=1)
        whole.broker.groups.put(GroupConfig("g", retry_queue_nums=9))
        for _ in range(20):
            back(whole, record, level=1)
        whole.tick(1_000)
        assert len(stored(whole, RETRY)) == 21

    def test_keeps_the_flag_of_a_committed_transaction_and_is_not_half_again(self, whole: Whole) -> None:
        """Its properties say TRAN_MSG, and always will."""
        store = whole.broker.store
        text = "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02PGROUP\x01p\x02TIMER_DELIVER_MS\x011\x02REAL_TOPIC\x01T"
        whole.ask(310, send_fields(), b"makes the topic")
        store.put(store.queue("T", 0), b"x", text, sys_flag=8, flag=0, born_ms=1, born_host=bytes(8), prepared=4711)
        store.commit()
        back(whole, stored(whole, "T")[-1], level=1)
        whole.tick(1_000)
        (again,) = stored(whole, RETRY)
        assert (again.sys_flag, again.prepared_transaction_offset) == (8, 0)

    def test_counts_in_the_statistics_of_its_group_and_topic(self, whole: Whole) -> None:
        back(whole, sent(whole))
        found = whole.broker.stats.find("SNDBCK_PUT_NUMS", "T@g")
        assert found is not None
        assert found[0].count == 1

    def test_of_a_group_without_retry_queues_is_dropped_and_that_is_success(self, whole: Whole) -> None:
        whole.broker.groups.put(GroupConfig("g", retry_queue_nums=0))
        assert back(whole, sent(whole)).code == 0
        whole.tick(3_600_000)
        assert stored(whole, RETRY) == []

    def test_with_unit_mode_makes_a_unit_retry_topic(self, whole: Whole) -> None:
        back(whole, sent(whole), unitMode="true")
        topic = whole.broker.topics.get(RETRY)
        assert topic is not None
        assert topic.topic_sys_flag == 2

    def test_that_is_not_in_memory_is_read_first_and_then_answered_to_the_one_who_asked(
        self, whole: Whole, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record = sent(whole)
        raw_at, warm = whole.broker.store.raw_at, [False]

        def cold(offset: int) -> bytes:
            if warm[0]:
                return raw_at(offset)
            raise Cold(lambda: warm.__setitem__(0, True))

        monkeypatch.setattr(whole.broker.store, "raw_at", cold)
        whole.background.hold = True
        fields = {"offset": str(record.physical_offset), "group": "g", "delayLevel": "1"}
        whole.frames(Command(SEND_BACK, fields, opaque=5))
        assert whole.peer.take() == []
        whole.background.release()
        assert [(answer.opaque, answer.code) for answer in whole.peer.take()] == [(5, 0)]
        monkeypatch.undo()
        assert len(stored(whole, SCHEDULE)) == 1


class TestIsRefused:
    def test_what_is_not_in_the_log(self, whole: Whole) -> None:
        answer = whole.ask(SEND_BACK, {"offset": "4711", "group": "g", "delayLevel": "0"})
        assert (answer.code, answer.remark) == (1, "look message by offset failed, 4711")

    def test_what_lies_inside_a_record(self, whole: Whole) -> None:
        record = sent(whole)
        answer = whole.ask(SEND_BACK, {"offset": str(record.physical_offset + 1), "group": "g", "delayLevel": "0"})
        assert answer.code == 1

    def test_a_group_that_may_not_be_made(self, tmp_path: Path) -> None:
        whole = Whole(tmp_path / "strict", auto_create_subscription_group=False)
        answer = back(whole, sent(whole))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert str(answer.remark).startswith("subscription group not exist, g ")
        whole.close()

    def test_a_broker_that_may_not_be_written(self, whole: Whole) -> None:
        record = sent(whole)
        whole.broker.settings.change({"broker_permission": 4})
        answer = back(whole, record)
        assert (answer.code, answer.remark) == (16, "the broker[] sending message is forbidden")

    def test_a_retry_topic_that_may_not_be_written(self, whole: Whole) -> None:
        record = sent(whole)
        whole.broker.topics.ensure(RETRY, perm=4)
        answer = back(whole, record)
        assert (answer.code, answer.remark) == (16, f"the topic[{RETRY}] sending message is forbidden")

    @pytest.mark.parametrize("group", ["../../x", "", "g" * 125])
    def test_a_name_that_would_be_no_topic(self, whole: Whole, group: str) -> None:
        assert back(whole, sent(whole), group=group).code != 0

    def test_success_when_the_disk_is_full_and_the_message_is_not_lost(self, whole: Whole, disk: SimDisk) -> None:
        record = sent(whole)
        whole.broker.store.trouble.full = "the disk is full"
        assert back(whole, record).code == ResponseCode.SERVICE_NOT_AVAILABLE
        whole.broker.store.trouble.full = ""
        disk.full = True
        answers = [back(whole, record, level=1).code for _ in range(200)]
        assert ResponseCode.SERVICE_NOT_AVAILABLE in answers
        disk.full = False
        for _ in range(30):
            whole.tick(1_000)
        assert len(stored(whole, RETRY)) == answers.count(0)


def test_under_sync_flush_the_answer_waits_for_the_flush(disk: SimDisk) -> None:
    whole = Whole(Path("/store"), disk=disk, flush_disk_type="SYNC_FLUSH")
    record = sent(whole)
    whole.background.hold = True
    whole.frames(Command(SEND_BACK, {"offset": str(record.physical_offset), "group": "g", "delayLevel": "1"}, opaque=5))
    assert whole.peer.take() == []
    whole.background.release()
    assert [(answer.opaque, answer.code) for answer in whole.peer.take()] == [(5, 0)]
    whole.background.hold = False
    whole.close()


class TestASendToTheRetryTopic:
    """What clients do when their send-back fails."""

    def test_comes_after_its_delay(self, whole: Whole) -> None:
        properties = "RETRY_TOPIC\x01T\x02DELAY\x014\x02ORIGIN_MESSAGE_ID\x01X"
        assert whole.ask(310, send_fields(RETRY, properties=properties, j="1", l="16"), b"again").code == 0
        whole.tick(30_000)
        (record,) = stored(whole, RETRY)
        assert (record.body, record.reconsume_times) == (b"again", 1)

    @pytest.mark.parametrize(("times", "said", "dead"), [("16", None, 1), ("15", None, 0), ("3", "3", 1), ("2", "3", 0), ("0", "0", 1)])
    def test_is_a_dead_letter_after_the_last_attempt(self, whole: Whole, times: str, said: str | None, dead: int) -> None:
        more = {"j": times} | ({} if said is None else {"l": said})
        fields = send_fields(RETRY, properties="RETRY_TOPIC\x01T\x02DELAY\x014") | more
        answer = whole.ask(310, fields, b"again", version=407)
        assert (answer.code, answer.fields["queueId"]) == (0, "0")
        whole.tick(30_000)  # the delay it asks for comes first, as with Apache's broker
        assert len(stored(whole, DEAD)) == dead

    def test_of_a_group_that_may_not_be_made_is_refused(self, tmp_path: Path) -> None:
        whole = Whole(tmp_path / "strict", auto_create_subscription_group=False)
        assert whole.ask(310, send_fields(RETRY), b"again").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        whole.close()


@pytest.mark.parametrize("pair", golden(SEND_BACK), ids=str)
def test_golden_send_backs_are_answered_byte_for_byte(whole: Whole, pair: Golden) -> None:
    request = pair.request
    whole.broker.store.log.start_at(0)
    record = sent(whole)
    fields: dict[str, Any] = dict(request.fields) | {"offset": str(record.physical_offset)}
    whole.frames(Command(request.code, fields, request.body, opaque=request.opaque, version=request.version, binary=request.binary))
    (answer,) = whole.peer.take()
    same_answer(answer, pair.response)
    whole.tick(1_000)
    (again,) = stored(whole, "%RETRY%vec_group")
    assert again.reconsume_times == 1
