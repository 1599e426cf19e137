"""Pulls: statuses, codes and remarks as upstream's, long polling, and cold reads that wait elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker.pull import FAQ
from roquet.broker.topics import Topic
from roquet.store.disk import Cold, RealFile
from roquet.testing import FakePeer
from roquet.wire.calls.members import HeartbeatBody
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_records

from .whole import Whole, pull_fields, send_fields

SUSPEND = "6"  # the subscription is in the request, and wait for messages


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store")
    yield made
    made.background.hold = False
    made.background.release()
    made.close()


def send(whole: Whole, *bodies: bytes, tag: str = "", queue_id: int = 0) -> None:
    properties = f"TAGS\x01{tag}" if tag else "a\x01b"
    for body in bodies:
        assert whole.ask(310, send_fields(properties=properties, queue_id=queue_id), body).code == 0


def pulled(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


class TestAPull:
    def test_finds_messages_with_the_next_offset(self, whole: Whole) -> None:
        send(whole, *(b"%d" % n for n in range(5)))
        answer = whole.ask(11, pull_fields(offset=2))
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert pulled(answer) == [b"2", b"3", b"4"]
        assert answer.fields == {"suggestWhichBrokerId": "0", "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5"}

    def test_is_the_same_as_361_and_in_the_binary_form(self, whole: Whole) -> None:
        send(whole, b"x")
        plain = whole.ask(11, pull_fields())
        for code, binary in ((361, False), (11, True)):
            answer = whole.ask(code, pull_fields(), binary=binary)
            assert (answer.code, answer.fields, answer.body, answer.remark) == (0, plain.fields, plain.body, "FOUND")
            assert answer.binary is binary

    @pytest.mark.parametrize(
        ("sent", "offset", "code", "remark", "next_offset"),
        [
            (0, 0, 19, "NO_MESSAGE_IN_QUEUE", "0"),
            (0, 7, 21, "NO_MESSAGE_IN_QUEUE", "0"),
            (3, 3, 19, "OFFSET_OVERFLOW_ONE", "3"),
            (3, 9, 21, "OFFSET_OVERFLOW_BADLY", "3"),
        ],
    )
    def test_says_why_it_finds_nothing(self, whole: Whole, sent: int, offset: int, code: int, remark: str, next_offset: str) -> None:
        send(whole, b"elsewhere", queue_id=1)
        send(whole, *[b"x"] * sent)
        answer = whole.ask(11, pull_fields(offset=offset))
        assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (code, remark, next_offset)

    def test_below_the_oldest_message_is_sent_to_it_and_that_is_on_record(self, whole: Whole) -> None:
        send(whole, *[b"x"] * 3)
        whole.broker.store.queue("T", 0).first = 2
        answer = whole.ask(11, pull_fields(offset=0))
        assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (21, "OFFSET_TOO_SMALL", "2")
        event = whole.ask(11, pull_fields(topic="OFFSET_MOVED_EVENT"))
        assert pulled(event)[0].startswith(b'{"consumerGroup":"g"')

    def test_takes_at_most_what_it_may(self, whole: Whole) -> None:
        send(whole, *[bytes(10_000)] * 40)
        assert len(pulled(whole.ask(11, pull_fields(maxMsgNums="3")))) == 3
        assert len(pulled(whole.ask(11, pull_fields(maxMsgNums="100")))) == 25  # 256 KiB
        send(whole, bytes(300_000))
        assert len(pulled(whole.ask(11, pull_fields(offset=40)))) == 1  # the first whatever its size

    def test_filters_by_tag_and_moves_over_what_it_turned_down(self, whole: Whole) -> None:
        for n in range(6):
            send(whole, b"%d" % n, tag="even" if n % 2 == 0 else "odd")
        answer = whole.ask(11, pull_fields(subscription="odd || other"))
        assert (pulled(answer), answer.fields["nextBeginOffset"]) == ([b"1", b"3", b"5"], "6")
        answer = whole.ask(11, pull_fields(subscription="nobody"))
        assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "6")

    def test_remembers_the_offset_that_came_along(self, whole: Whole) -> None:
        send(whole, b"x")
        whole.ask(11, pull_fields(sysFlag="5", commitOffset="1"))
        assert whole.broker.offsets.find("g", "T", 0) == 1


class TestIsRefused:
    def test_a_pull_of_an_unknown_topic(self, whole: Whole) -> None:
        assert whole.ask(11, pull_fields(topic="Nobody")).code == ResponseCode.TOPIC_NOT_EXIST

    def test_a_pull_of_a_queue_beyond_the_read_queues(self, whole: Whole) -> None:
        send(whole, b"x")
        answer = whole.ask(11, pull_fields(queue_id=4))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "queueId[4] is illegal" in str(answer.remark)

    def test_a_pull_of_a_group_that_is_not_online_and_brings_no_subscription(self, whole: Whole) -> None:
        send(whole, b"x")
        answer = whole.ask(11, pull_fields(sysFlag="0"))
        assert (answer.code, answer.remark) == (24, f"the consumer's group info not exist{FAQ}")

    def test_a_pull_whose_subscription_is_newer_than_the_heartbeat(self, whole: Whole) -> None:
        send(whole, b"x")
        beat = {
            "clientID": "c",
            "consumerDataSet": [
                {
                    "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 5, "expressionType": "TAG"}],
                }
            ],
            "producerDataSet": [],
        }  # fmt: skip
        assert whole.ask(RequestCode.HEART_BEAT, body=HeartbeatBody.from_json(beat).encode()).code == 0
        assert whole.ask(11, pull_fields(sysFlag="0", subVersion="5")).code == 0
        answer = whole.ask(11, pull_fields(sysFlag="0", subVersion="6"))
        assert (answer.code, answer.remark) == (25, "the consumer's subscription not latest")
        answer = whole.ask(11, pull_fields(topic="TBW102", sysFlag="0"))
        assert (answer.code, answer.remark) == (24, f"the consumer's subscription not exist{FAQ}")

    def test_an_sql_filter_where_it_is_switched_off(self, whole: Whole) -> None:
        send(whole, b"x")
        assert whole.ask(11, pull_fields(expressionType="SQL92", subscription="a > 1")).code == ResponseCode.SYSTEM_ERROR


class TestLongPolling:
    def test_holds_a_pull_until_a_message_comes(self, whole: Whole) -> None:
        send(whole, b"old")
        waiting = FakePeer("127.0.0.1:2")
        whole.broker.receive(waiting, [(0, *header_of(Command(11, pull_fields(offset=1, sysFlag=SUSPEND), opaque=3)))])
        assert waiting.take() == []
        send(whole, b"new")
        (answer,) = waiting.take()
        assert (answer.code, answer.opaque, pulled(answer)) == (0, 3, [b"new"])

    def test_holds_a_pull_of_a_queue_that_has_no_message_yet(self, whole: Whole) -> None:
        send(whole, b"elsewhere", queue_id=1)
        waiting = FakePeer("127.0.0.1:2")
        whole.broker.receive(waiting, [(0, *header_of(Command(11, pull_fields(sysFlag=SUSPEND))))])
        send(whole, b"new")
        assert pulled(waiting.take()[0]) == [b"new"]

    def test_answers_at_the_deadline(self, whole: Whole) -> None:
        send(whole, b"old")
        whole.frames(Command(11, pull_fields(offset=1, sysFlag=SUSPEND)))
        whole.tick(14_900)
        assert whole.peer.take() == []
        whole.tick(100)
        (answer,) = whole.peer.take()
        assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
        assert len(whole.broker.puller.parking) == 0

    def test_does_not_wake_for_messages_that_the_filter_turns_down_but_moves_over_them(self, whole: Whole) -> None:
        send(whole, b"old", tag="a")
        waiting = FakePeer("127.0.0.1:2")
        whole.broker.receive(waiting, [(0, *header_of(Command(11, pull_fields(offset=1, sysFlag=SUSPEND, subscription="a"))))])
        for n in range(5):
            send(whole, b"%d" % n, tag="b")
        assert waiting.take() == []
        whole.tick(15_000)
        (answer,) = waiting.take()
        assert (answer.code, answer.fields["nextBeginOffset"]) == (19, "6")
        whole.broker.receive(waiting, [(0, *header_of(Command(11, pull_fields(offset=6, sysFlag=SUSPEND, subscription="a"))))])
        send(whole, b"mine", tag="a")
        assert pulled(waiting.take()[0]) == [b"mine"]

    def test_under_sync_flush_wakes_when_the_message_is_safe(self, tmp_path: Path) -> None:
        whole = Whole(tmp_path / "sync", flush_disk_type="SYNC_FLUSH")
        send(whole, b"old")
        whole.frames(Command(11, pull_fields(offset=1, sysFlag=SUSPEND)))
        whole.background.hold = True
        sender = FakePeer("127.0.0.1:3")
        whole.broker.receive(sender, [(0, *header_of(Command(310, send_fields(), b"new"), b"new"))])
        assert whole.peer.take() == []
        whole.background.hold = False
        whole.background.release()
        assert pulled(whole.peer.take()[0]) == [b"new"]
        whole.close()

    def test_forgets_a_peer_that_left(self, whole: Whole) -> None:
        send(whole, b"old")
        gone = FakePeer("127.0.0.1:2")
        whole.broker.receive(gone, [(0, *header_of(Command(11, pull_fields(offset=1, sysFlag=SUSPEND))))])
        gone.closed = True
        whole.broker.disconnected(gone)
        send(whole, b"new")
        whole.tick(60_000)
        assert gone.sent == []


class TestAColdRead:
    def test_waits_elsewhere_while_others_are_served(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        send(whole, *[b"x"] * 3)
        whole.tick(2_000)  # the entries are in their file
        cold = {"log": True}
        read_now = RealFile.read_now

        def maybe(self: RealFile, offset: int, size: int) -> bytes:
            if cold["log"] and "commitlog" in self.path:
                raise Cold(lambda: cold.update(log=False))
            return read_now(self, offset, size)

        def maybe_into(self: RealFile, offset: int, room: memoryview) -> None:
            room[:] = maybe(self, offset, len(room))

        monkeypatch.setattr(RealFile, "read_now", maybe)
        monkeypatch.setattr(RealFile, "read_into", maybe_into)
        whole.background.hold = True
        reader = FakePeer("127.0.0.1:2")
        whole.broker.receive(reader, [(0, *header_of(Command(11, pull_fields(), opaque=4)))])
        assert reader.take() == []
        send(whole, b"meanwhile")
        whole.background.release()
        (answer,) = reader.take()
        assert (answer.opaque, pulled(answer)) == (4, [b"x", b"x", b"x", b"meanwhile"])

    def test_that_never_becomes_warm_is_an_answer(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        send(whole, b"x")

        def never(self: RealFile, offset: int, size: object) -> bytes:
            raise Cold(lambda: None)

        monkeypatch.setattr(RealFile, "read_now", never)
        monkeypatch.setattr(RealFile, "read_into", never)
        assert whole.ask(11, pull_fields()).code == ResponseCode.SYSTEM_BUSY


def header_of(command: Command, body: bytes = b"") -> tuple[bytes, bytes]:
    from roquet.wire.frame import Framer

    command.body = body
    ((_, header, rest),) = Framer().feed(command.encode())
    return header, rest


def test_a_oneway_pull_is_not_answered_and_one_for_no_messages_gets_one(whole: Whole) -> None:
    send(whole, *(b"%d" % n for n in range(5)))
    whole.frames(Command(11, pull_fields(), flag=2))
    assert whole.peer.take() == []
    answer = whole.ask(11, pull_fields(offset=2, maxMsgNums="0"))
    assert (pulled(answer), answer.fields["nextBeginOffset"]) == ([b"2"], "3")
    assert whole.ask(11, pull_fields(maxMsgNums="-1")).code == ResponseCode.SYSTEM_ERROR


def test_a_pull_reads_on_from_the_file_into_what_is_not_written_yet(whole: Whole) -> None:
    send(whole, b"0", b"1")
    whole.tick(2_000)  # these entries are in their file
    send(whole, b"2")
    assert pulled(whole.ask(11, pull_fields())) == [b"0", b"1", b"2"]


def test_progress_beyond_the_end_of_a_queue_that_comes_along_with_a_pull_is_not_remembered(tmp_path: Path) -> None:
    """It is from before a power loss that took messages: remembered, it would skip those that get their offsets again."""
    whole = Whole(tmp_path / "beyond")
    whole.broker.topics.put(Topic("T", 1, 1))
    whole.ask(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body")
    for said, kept in (("99", -1), ("1", 1)):
        whole.ask(RequestCode.PULL_MESSAGE, pull_fields(sysFlag="5", commitOffset=said))
        assert whole.broker.offsets.find("g", "T", 0) == kept
    whole.close()


def test_a_pull_that_matched_nothing_yet_is_not_parked_while_there_is_more_to_judge(tmp_path: Path) -> None:
    whole = Whole(tmp_path / "more")
    whole.broker.topics.put(Topic("T", 1, 1))
    for _ in range(900):
        whole.ask(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body")
    answer = whole.ask(RequestCode.PULL_MESSAGE, pull_fields(sysFlag="6", subscription="wanted"))
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "800")
    assert not len(whole.broker.puller.parking)
    whole.close()
