"""A topic that was deleted stays deleted, whatever happens to the broker; made again it begins at 0."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from roquet.testing.disk import PowerLost, SimDisk
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_records

from .test_topics import topic_fields
from .whole import Whole, pull_fields, send_fields

V2 = RequestCode.SEND_MESSAGE_V2
DELETE = RequestCode.DELETE_TOPIC_IN_BROKER


def started(disk: SimDisk, **more: Any) -> Whole:
    return Whole(Path("/store"), disk, mapped_file_size_commit_log=65_536, flush_disk_type="SYNC_FLUSH", **more)


def send(whole: Whole, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        assert whole.ask(V2, send_fields(topic, properties=f"KEYS\x01{topic}"), body).code == 0


def bodies(whole: Whole, topic: str) -> list[bytes] | None:
    """None when there is no such topic."""
    found: list[bytes] = []
    while True:
        answer = whole.ask(RequestCode.PULL_MESSAGE, pull_fields(topic, 0, len(found), suspendTimeoutMillis="0"))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code:
            return found
        records = decode_records(answer.body)
        assert [record.queue_offset for record in records] == list(range(len(found), len(found) + len(records)))
        found += [record.body for record in records]


def killed(disk: SimDisk, how: str) -> Whole:
    disk.kill() if how == "kill" else disk.crash()
    return started(disk)


HOW = pytest.mark.parametrize("how", ["kill", "power"])


@HOW
@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_a_deleted_topic_does_not_come_back_after_a_crash(how: str, idle: bool, saved: bool) -> None:
    disk = SimDisk()
    whole = started(disk)
    send(whole, "T", b"1", b"2", b"3")
    send(whole, "Kept", b"k")
    if saved:
        for _ in range(30):
            whole.tick(1_000)
    assert whole.ask(DELETE, {"topic": "T"}).code == 0
    if not idle:
        send(whole, "Kept", b"k2")
    for _ in range(2):
        whole = killed(disk, how)
        assert bodies(whole, "T") is None
        assert whole.broker.topics.get("T") is None
        assert whole.broker.store.queues_of("T") == []
        assert bodies(whole, "Kept") == ([b"k"] if idle else [b"k", b"k2"])


@HOW
def test_a_topic_made_again_counts_from_0_and_keeps_its_messages_over_crashes(how: str) -> None:
    disk = SimDisk()
    whole = started(disk)
    for round_ in range(3):
        send(whole, "T", *[b"%d.%d" % (round_, number) for number in range(5 - round_)])
        whole.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "4"})
        if round_ == 1:
            whole = killed(disk, how)
        assert whole.ask(DELETE, {"topic": "T"}).code == 0
    send(whole, "T", b"new")
    for _ in range(2):
        whole = killed(disk, how)
        assert bodies(whole, "T") == [b"new"]
        # Progress of the old topic would skip messages of the new one.
        found = whole.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": "0"})
        assert int(found.fields.get("offset", "0")) == 0
    send(whole, "T", b"newer")
    whole.close()
    whole = started(disk)
    assert bodies(whole, "T") == [b"new", b"newer"]


@HOW
def test_a_topic_made_again_after_topics_json_was_lost_stays(how: str) -> None:
    """Its version begins anew then, and the topic must not look as if it had been made before it was deleted."""
    disk = SimDisk()
    whole = started(disk)
    for topic in ("a", "b", "c", "d", "T"):
        send(whole, topic, b"1")
    assert whole.ask(DELETE, {"topic": "T"}).code == 0
    whole.close()
    for name in ("topics.json", "topics.json.bak"):
        disk.remove(f"/store/config/{name}")
    whole = started(disk)
    assert whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T")).code == 0
    whole = killed(disk, how)
    assert bodies(whole, "T") == []
    assert bodies(whole, "a") == [b"1"]


def test_progress_in_a_topic_made_again_is_kept() -> None:
    disk = SimDisk()
    whole = started(disk)
    send(whole, "T", b"old")
    assert whole.ask(DELETE, {"topic": "T"}).code == 0
    send(whole, "T", b"a", b"b", b"c")
    whole.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "2"})
    for _ in range(30):
        whole.tick(1_000)
    for clean in (False, True, True, False):
        if clean:
            whole.close()
        else:
            disk.kill()
        whole = started(disk)
        found = whole.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": "0"})
        assert found.fields["offset"] == "2"


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_kill_at_any_step_of_a_deletion_leaves_the_topic_deleted_or_whole(how: str) -> None:
    deleted = whole_ones = 0
    for step in range(1, 60):
        disk = SimDisk(seed=step)
        whole = started(disk)
        send(whole, "T", b"1", b"2", b"3")
        send(whole, "Kept", b"k")
        answer = whole.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "4",
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            },
        )  # fmt: skip
        assert answer.code == 0
        disk.power_off_after(step)
        try:
            whole.frames(Command(DELETE, {"topic": "T"}, opaque=1))
            disk.stay_on()
        except PowerLost:
            pass
        answered = bool(whole.peer.take())
        whole = killed(disk, how)
        found, topic = bodies(whole, "T"), whole.broker.topics.get("T")
        assert bodies(whole, "Kept") == [b"k"]
        if found is None:
            deleted += 1
            assert whole.broker.store.queues_of("T") == []
        else:
            whole_ones += 1
            assert not answered
            assert found == [b"1", b"2", b"3"]
            assert topic is not None
            assert (topic.read_queue_nums, topic.perm) == (3, 4)
        if answered:
            assert found is None
            break
    assert deleted
    assert whole_ones


def test_a_deletion_that_cannot_be_written_is_answered_with_that() -> None:
    disk = SimDisk()
    whole = started(disk)
    send(whole, "T", b"1")
    disk.fail("rename", errno.EIO, "deletedTopics.json")
    answer = whole.ask(DELETE, {"topic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "could not be written" in (answer.remark or "")
    assert bodies(whole, "T") is None


def test_what_was_sent_in_the_same_read_before_the_deletion_goes_with_it() -> None:
    disk = SimDisk()
    whole = started(disk)
    send(whole, "T", b"1")
    before, after = (Command(V2, send_fields("T"), body, opaque=int(body) - 1) for body in (b"2", b"4"))
    whole.frames(before, Command(DELETE, {"topic": "T"}, opaque=2), after)
    assert {answer.opaque: answer.code for answer in whole.peer.take()} == {1: 0, 2: 0, 3: 0}
    assert bodies(whole, "T") == [b"4"]
    assert bodies(killed(disk, "kill"), "T") == [b"4"]


def test_a_deletion_is_forgotten_when_the_log_begins_behind_it() -> None:
    disk = SimDisk()
    whole = started(disk, file_reserved_time=1, delete_when="0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23")
    send(whole, "T", b"1")
    assert whole.ask(DELETE, {"topic": "T"}).code == 0
    assert list(whole.broker.store.deletions.table) == ["T"]
    send(whole, "Kept", *[b"x" * 30_000] * 6)
    send(whole, "Young", b"1")
    assert whole.ask(DELETE, {"topic": "Young"}).code == 0
    whole.tick(3 * 3_600_000)
    for _ in range(5):
        whole.tick(20_000)
    assert whole.broker.store.log.start > 0
    assert list(whole.broker.store.deletions.table) == ["Young"], "the log still holds its record"


def test_deleting_what_never_was_leaves_no_trace() -> None:
    whole = started(SimDisk())
    for number in range(5):
        assert whole.ask(DELETE, {"topic": f"never-{number}"}).code == 0
    assert whole.broker.store.deletions.table == {}
