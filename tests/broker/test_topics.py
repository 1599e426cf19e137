"""Topics: what is answered when they cannot be written, and what a new one costs."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker.topics import Topic
from roquet.store.disk import DiskFile, RealDisk
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.registration import RegisterBrokerBody
from roquet.wire.calls.topics import TopicTable
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.fastjson import dumps

from .whole import Whole, send_fields


class FullDisk(RealDisk):
    """Has no room for the documents whose path ends like this."""

    def __init__(self) -> None:
        self.full = ""
        self.saved: list[str] = []

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        if self.full and path.endswith(self.full + ".tmp"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        if path.endswith(".tmp"):
            self.saved.append(path.rpartition("/")[2])
        return super().open(path, size=size)


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
def whole(tmp_path: Path, disk: FullDisk) -> Iterator[Whole]:
    made = Whole(tmp_path / "store", disk=disk, namesrv_addr="ns1:9876;ns2:9876")
    yield made
    disk.full = ""
    made.close()


def topic_fields(name: str, queues: int = 4) -> dict[str, str]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip


def on_disk(whole: Whole, name: str = "topics.json") -> str:
    path = whole.root / "config" / name
    return path.read_text() if path.exists() else ""


def many(count: int, start: int = 0) -> bytes:
    configs = [{"topicName": f"many-{start + n}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for n in range(count)]
    return dumps({"topicConfigList": configs})


def told(whole: Whole) -> list[RegisterBrokerBody]:
    calls = [command for _, command, _ in whole.caller.calls if command.code == RequestCode.REGISTER_BROKER]
    return [RegisterBrokerBody.decode(command.body) for command in calls]


class TestAFullDisk:
    @pytest.mark.parametrize(
        ("document", "code", "fields", "body"),
        [
            ("topics.json", RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Fresh"), b""),
            ("topics.json", RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, many(3)),
            ("topics.json", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Old"}, b""),
            ("subscriptionGroup.json", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GroupConfig("fresh").encode()),
            ("subscriptionGroup.json", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, b'[{"groupName":"fresh"}]'),
            ("subscriptionGroup.json", RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "old"}, b""),
            ("consumerOffset.json", RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "old", "removeOffset": "true"}, b""),
            ("consumerOffset.json", RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "old", "destGroup": "fresh", "offline": "true"}, b""),
        ],
        ids=lambda value: value.name if isinstance(value, RequestCode) else "",
    )
    def test_is_in_the_answer_of_every_change_that_it_keeps_from_the_disk(
        self, whole: Whole, disk: FullDisk, document: str, code: RequestCode, fields: dict[str, str], body: bytes
    ) -> None:
        whole.broker.topics.put(Topic("Old", 4, 4))
        whole.broker.groups.find("old")
        whole.broker.offsets.commit("old", "Old", 0, 7)
        for _ in range(3):
            whole.tick(5_000)
        disk.full = document
        whole.frames(Command(code, fields, body, opaque=1))
        (answer,) = whole.peer.take()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "No space left on device" in str(answer.remark)
        (notice,) = [notice for notice in whole.broker.notices.list() if document in notice.text]
        disk.full = ""
        for _ in range(3):
            whole.tick(5_000)
        assert notice not in whole.broker.notices.list()

    def test_does_not_lose_a_topic_once_there_is_room_again(self, whole: Whole, disk: FullDisk) -> None:
        disk.full = "topics.json"
        assert whole.ask(310, send_fields("Auto"), b"x").code == 0
        assert whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Fresh")).code == ResponseCode.SYSTEM_ERROR
        assert whole.ask(310, send_fields("Fresh"), b"x").code == 0
        disk.full = ""
        whole.tick(1_000)
        table = TopicTable.decode(on_disk(whole).encode()).topic_config_table
        assert {"Auto", "Fresh"} <= table.keys()

    def test_is_met_again_by_the_next_change_and_forgotten_by_the_one_after(self, whole: Whole, disk: FullDisk) -> None:
        disk.full = "topics.json"
        for name in ("A", "B"):
            assert whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name)).code == ResponseCode.SYSTEM_ERROR
        disk.full = ""
        assert whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("C")).code == 0
        assert TopicTable.decode(on_disk(whole).encode()).topic_config_table.keys() >= {"A", "B", "C"}


class TestTheFile:
    def test_holds_what_the_plain_encoder_would_write(self, whole: Whole) -> None:
        topics = whole.broker.topics
        topics.put(Topic("With attributes", 1, 2, 4, "MULTI_TAG", 1, True, {"+message.type": "FIFO"}))
        topics.put(Topic("Gone", 1, 1))
        topics.delete("Gone")
        topics.put(Topic("Gone", 3, 3))
        topics.put(Topic("Changed", 1, 1))
        topics.put(Topic("Changed", 2, 2))
        whole.tick(1_000)
        plain = TopicTable({topic.topic_name: topic for topic in topics.all()}, topics.data_version)
        assert topics.encode() == plain.encode()
        assert on_disk(whole).encode() == plain.encode()
        assert whole.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body == plain.encode()


class TestANewTopic:
    """Work is counted, not timed: topics encoded, saves, and what name servers are told."""

    @pytest.fixture
    def crowded(self, whole: Whole) -> Whole:
        whole.settings.new_names_per_second = 100_000
        whole.broker.topics.put_all([Topic(f"crowd-{n}", 4, 4) for n in range(1_000)])
        for _ in range(40):
            whole.tick(1_000)
        whole.caller.calls.clear()
        return whole

    def test_costs_one_encoding_however_many_there_are(self, crowded: Whole) -> None:
        before = crowded.broker.topics.texts.encoded
        for n in range(20):
            assert crowded.ask(310, send_fields(f"Auto-{n}"), b"x").code == 0
        crowded.tick(1_000)
        assert crowded.broker.topics.texts.encoded - before == 20

    def test_alone_is_told_to_the_name_servers(self, crowded: Whole) -> None:
        crowded.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Fresh"))
        bodies = told(crowded)
        assert [list(body.topics.topic_config_table) for body in bodies] == [["Fresh"], ["Fresh"]]
        assert [body.topics.data_version for body in bodies] == [crowded.broker.topics.data_version] * 2

    def test_made_while_a_registration_is_under_way_shares_the_next_one(self, crowded: Whole) -> None:
        crowded.caller.answering = False
        for n in range(50):
            crowded.frames(Command(310, send_fields(f"Auto-{n}"), b"x", opaque=n))
        first = list(crowded.caller.calls)
        assert len(first) == 2, "one for each name server"
        for _, command, done in first:
            done(command.reply())
        bodies = told(crowded)[2:]
        assert [len(body.topics.topic_config_table) for body in bodies] == [49, 49]

    def test_made_while_a_save_is_under_way_shares_the_next_one(self, crowded: Whole) -> None:
        crowded.background.hold = True
        for n in range(20):
            crowded.frames(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(f"T-{n}"), opaque=n))
        assert len(crowded.background.waiting) == 1
        crowded.background.hold = False
        crowded.background.release()
        crowded.tick(100)
        assert [answer.code for answer in crowded.peer.take()] == [0] * 20
        assert TopicTable.decode(on_disk(crowded).encode()).topic_config_table.keys() >= {f"T-{n}" for n in range(20)}

    def test_and_eight_hundred_of_them_in_one_request_are_one_save_and_one_registration(self, crowded: Whole, disk: FullDisk) -> None:
        disk.saved.clear()
        before = crowded.broker.topics.texts.encoded
        assert crowded.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=many(800)).code == 0
        assert disk.saved == ["topics.json.tmp"]
        assert crowded.broker.topics.texts.encoded - before == 800
        assert [len(body.topics.topic_config_table) for body in told(crowded)] == [800, 800]

    def test_list_is_taken_whole_or_not_at_all(self, whole: Whole) -> None:
        whole.settings.accept_topics_max = len(list(whole.broker.topics.all())) + 5
        answer = whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=many(6))
        assert (answer.code, whole.broker.topics.get("many-0")) == (ResponseCode.SYSTEM_ERROR, None)
        assert "acceptTopicsMax" in str(answer.remark)

    def test_list_has_a_limit_that_is_in_the_answer(self, whole: Whole) -> None:
        answer = whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=many(2_001))
        assert (answer.code, "limit is 2000" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)

    def test_of_a_large_table_is_written_at_most_so_often(self, whole: Whole, disk: FullDisk) -> None:
        whole.settings.new_names_per_second = 100_000
        whole.broker.topics.put_all([Topic(f"crowd-{n}", 4, 4) for n in range(10_000)])
        whole.tick(1_000)
        disk.saved.clear()
        for n in range(20):
            whole.frames(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(f"T-{n}"), opaque=n))
            whole.tick(5)
        whole.tick(50)
        assert [answer.code for answer in whole.peer.take()] == [0] * 20
        assert disk.saved.count("topics.json.tmp") <= 4, "20 changes in 100 ms, and 50 ms between two saves of 10,000 topics"


def test_queues_of_a_topic_are_found_without_looking_at_the_others(whole: Whole) -> None:
    store = whole.broker.store
    for topic in ("A", "B"):
        for queue_id in (10, 2, 0):
            store.queue(topic, queue_id)
    assert [(queue.topic, queue.queue_id) for queue in store.queues_of("A")] == [("A", 0), ("A", 2), ("A", 10)]
    store.delete_topic("A")
    assert store.queues_of("A") == []
    assert len(store.queues_of("B")) == 3


@pytest.mark.parametrize(("crashed", "queues"), [(True, 4), (False, 1)])
def test_a_queue_that_got_its_first_message_just_before_a_crash_is_read_again(tmp_path: Path, *, crashed: bool, queues: int) -> None:
    """topics.json is older than the log then. After a clean stop it is not: the topic is as small as an operator made it."""
    broker = Whole(tmp_path)
    broker.ask(310, send_fields("T", 3, ""), b"m")
    broker.broker.topics.put(Topic("T", 1, 1))
    broker.broker.topics.save_now()
    if crashed:
        broker.broker.store.locks.close()
    else:
        broker.close()
    again = Whole(tmp_path)
    found = again.broker.topics.get("T")
    assert found is not None
    assert found.read_queue_nums == queues
    again.close()
