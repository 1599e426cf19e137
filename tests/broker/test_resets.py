"""Moving a group's progress: reset, clone, and looking at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.message import MessageQueue
from roquet.testing import FakePeer
from roquet.wire.calls.members import ConsumerData, HeartbeatBody, SubscriptionData
from roquet.wire.calls.offsets import ConsumerStatusBody, CorrectionOffsets, ResetOffsetBody
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, Command
from roquet.wire.frame import Framer

from .conftest import golden, recorded
from .whole import Whole, send_fields


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    """Topic T with four queues of five messages, a second apart; group g has consumed three of each."""
    made = Whole(tmp_path / "store")
    for _ in range(5):
        for queue_id in range(4):
            made.ask(310, send_fields(queue_id=queue_id), b"x")
        made.clock.ms += 1_000
    for queue_id in range(4):
        made.broker.offsets.commit("g", "T", queue_id, 3)
    yield made
    made.close()


def receive(whole: Whole, peer: FakePeer, command: Command) -> None:
    whole.broker.receive(peer, Framer().feed(command.encode()))


def join(
    whole: Whole, client_id: str = "c1", group: str = "g", topic: str = "T", language: str = "JAVA", version: int = 407, port: int = 40009
) -> FakePeer:
    peer = FakePeer(f"127.0.0.1:{port}")
    data = ConsumerData(group, subscription_data_set=[SubscriptionData(topic, "*")])
    body = HeartbeatBody(client_id, consumer_data_set=[data]).encode()
    receive(whole, peer, Command(RequestCode.HEART_BEAT, body=body, opaque=1, language=language, version=version))
    peer.take()
    return peer


def table(*offsets: int) -> dict[MessageQueue, int]:
    return {MessageQueue("T", "broker-a", queue_id): offset for queue_id, offset in enumerate(offsets)}


def reset(whole: Whole, timestamp: int, *, force: bool = True, **more: str) -> Command:
    fields = {"topic": "T", "group": "g", "timestamp": str(timestamp), "isForce": "true" if force else "false"} | more
    return whole.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


class TestReset:
    def test_tells_every_member_and_the_asker(self, whole: Whole) -> None:
        members = [join(whole), join(whole, "c2", port=40010)]
        for member in members:
            member.take()
        answer = reset(whole, whole.clock.ms - 4_000)  # when the second message of each queue was stored
        assert (answer.code, answer.remark) == (0, "not set any response code")
        assert ResetOffsetBody.decode(answer.body).offset_table == table(1, 1, 1, 1)
        for member in members:
            (told,) = member.take()
            assert (told.code, told.flag) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ONEWAY)
            assert told.fields == {"topic": "T", "group": "g", "timestamp": str(whole.clock.ms - 4_000), "isForce": "false"}
            assert told.body == answer.body

    def test_has_apache_s_spelling(self, whole: Whole) -> None:
        """Topic and group as in the recording; the offsets of our queues."""
        member = join(whole)
        pair = golden(222)[0]
        answer = whole.ask(222, pair.request.fields | {"topic": "T", "group": "g"})
        assert (answer.code, answer.remark, answer.fields) == (pair.response.code, pair.response.remark, pair.response.fields)
        theirs = pair.response.body.replace(b"VecTopic", b"T")
        for old, queue_id in ((12, 3), (10, 2), (7, 1), (19, 0)):
            theirs = theirs.replace(b'"queueId":%d,"topic":"T"}:%d' % (queue_id, old), b'"queueId":%d,"topic":"T"}:5' % queue_id)
        assert ResetOffsetBody.decode(answer.body) == ResetOffsetBody.decode(theirs)
        assert answer.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":')
        (told,), golden_told = member.take(), recorded(220, "s->c")[0]
        assert told.fields == golden_told.fields | {"topic": "T", "group": "g"}
        assert (told.flag, told.binary) == (golden_told.flag, golden_told.binary)

    def test_to_minus_one_skips_the_backlog(self, whole: Whole) -> None:
        join(whole)
        assert ResetOffsetBody.decode(reset(whole, -1).body).offset_table == table(5, 5, 5, 5)

    def test_goes_only_back_unless_it_is_forced(self, whole: Whole) -> None:
        join(whole)
        whole.broker.offsets.commit("g", "T", 1, 0)
        assert ResetOffsetBody.decode(reset(whole, whole.clock.ms - 4_000, force=False).body).offset_table == table(1, 0, 1, 1)

    def test_of_one_queue_leaves_the_others_alone(self, whole: Whole) -> None:
        join(whole)
        one = MessageQueue("T", "broker-a", 2)
        assert ResetOffsetBody.decode(reset(whole, -1, queueId="2").body).offset_table == {one: 5}
        assert ResetOffsetBody.decode(reset(whole, 0, queueId="2", offset="1").body).offset_table == {one: 1}
        assert ResetOffsetBody.decode(reset(whole, -1, queueId="-1", offset="-1").body).offset_table == table(5, 5, 5, 5)
        assert reset(whole, 0, queueId="9").code == 1
        assert reset(whole, 0, queueId="2", offset="77").code == 1

    def test_speaks_c_plus_plus_to_those_who_need_it(self, whole: Whole) -> None:
        java, cpp = join(whole), join(whole, "c2", language="CPP", port=40010)
        java.take()
        reset(whole, -1)
        (plain,), (array,) = java.take(), cpp.take()
        assert ResetOffsetBody.decode(plain.body).offset_table == table(5, 5, 5, 5)
        assert array.body.startswith(b'{"offsetTable":[{')
        assert b'"offset":5' in array.body
        whole.ask(222, {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}, language="CPP")
        (told,) = java.take()
        assert told.body == array.body

    def test_is_refused_with_206_when_nobody_is_online(self, whole: Whole) -> None:
        answer = reset(whole, 7)
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert answer.remark == "Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: 7"
        assert whole.broker.offsets.find("g", "T", 0) == 3

    def test_is_refused_for_a_topic_or_group_that_is_not_there(self, whole: Whole) -> None:
        join(whole, group="new")
        no_topic = reset(whole, -1, topic="none")
        assert (no_topic.code, no_topic.remark) == (1, "[reset-offset] reset offset failed, no topic in this broker. topic=none")
        no_group = reset(whole, -1, group="new")
        assert (no_group.code, no_group.remark) == (1, "THe consumer group <new> not exist")

    def test_is_refused_when_a_member_is_too_old(self, whole: Whole) -> None:
        young = join(whole)
        join(whole, "old", version=20, port=40010)
        young.take()
        answer = reset(whole, -1)
        assert answer.code == 1
        assert "does not support this feature" in str(answer.remark)
        assert young.take() == []


class TestStatus:
    def ask(self, whole: Whole, **more: str) -> None:
        fields = {"topic": "T", "group": "g"} | more
        receive(whole, whole.peer, Command(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields, opaque=3))

    def test_joins_what_the_members_say(self, whole: Whole) -> None:
        members = {"c1": join(whole), "c2": join(whole, "c2", port=40010)}
        members["c1"].take()
        self.ask(whole)
        for offset, member in enumerate(members.values()):
            (asked,) = member.take()
            assert (asked.code, asked.fields) == (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "g"})
            assert whole.peer.take() == []
            receive(whole, member, asked.reply(body=ConsumerStatusBody(table(offset)).encode()))
        (answer,) = whole.peer.take()
        assert answer.code == 0
        assert ConsumerStatusBody.decode(answer.body).consumer_table == {"c1": table(0), "c2": table(1)}

    def test_leaves_out_who_does_not_answer_in_five_seconds(self, whole: Whole) -> None:
        silent, broken = join(whole), join(whole, "c2", port=40010)
        silent.take()
        self.ask(whole)
        (asked,) = broken.take()
        receive(whole, broken, asked.reply(body=b"nonsense"))
        whole.tick(5_000)
        (answer,) = whole.peer.take()
        assert (answer.code, ConsumerStatusBody.decode(answer.body).consumer_table) == (0, {})

    def test_asks_one_member_when_one_is_named(self, whole: Whole) -> None:
        first, second = join(whole), join(whole, "c2", port=40010)
        first.take()
        self.ask(whole, clientAddr="c2")
        assert first.take() == []
        (asked,) = second.take()
        receive(whole, second, asked.reply(body=ConsumerStatusBody(table(4)).encode()))
        (answer,) = whole.peer.take()
        assert ConsumerStatusBody.decode(answer.body).consumer_table == {"c2": table(4)}

    def test_is_refused_when_nobody_is_online(self, whole: Whole) -> None:
        self.ask(whole)
        (answer,) = whole.peer.take()
        assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [g]")


class TestClone:
    def clone(self, whole: Whole, **more: str) -> int:
        whole.frames(Command(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h"} | more))
        for _ in range(3):  # the log is flushed, then the offsets are saved, then comes the answer
            whole.tick(500)
        (answer,) = [command for command in whole.peer.take() if command.is_response]
        return answer.code

    def test_copies_every_topic(self, whole: Whole) -> None:
        whole.ask(310, send_fields("Other"), b"x")
        whole.broker.offsets.commit("g", "Other", 0, 1)
        whole.broker.offsets.commit("g", "Gone", 0, 1)
        assert self.clone(whole) == 0
        assert whole.broker.offsets.queues_of("h", "T") == {0: 3, 1: 3, 2: 3, 3: 3}
        assert whole.broker.offsets.queues_of("h", "Other") == {0: 1}
        assert whole.broker.offsets.queues_of("h", "Gone") == {}

    def test_copies_one_topic(self, whole: Whole) -> None:
        whole.ask(310, send_fields("Other"), b"x")
        whole.broker.offsets.commit("g", "Other", 0, 1)
        assert self.clone(whole, topic="Other") == 0
        assert whole.broker.offsets.topics_of("h") == ["Other"]

    def test_leaves_out_what_the_members_do_not_subscribe_to_unless_told_that_they_are_offline(self, whole: Whole) -> None:
        whole.ask(310, send_fields("Other"), b"x")
        whole.broker.offsets.commit("g", "Other", 0, 1)
        join(whole)
        assert self.clone(whole, offline="false") == 0
        assert whole.broker.offsets.topics_of("h") == ["T"]
        assert self.clone(whole, offline="true") == 0
        assert sorted(whole.broker.offsets.topics_of("h")) == ["Other", "T"]

    def test_refuses_a_name_that_no_group_may_have(self, whole: Whole) -> None:
        assert self.clone(whole, destGroup="a@b") == 1

    def test_is_what_apache_did(self, tmp_path: Path) -> None:
        """The recorded request succeeds as it did there."""
        whole = Whole(tmp_path / "other")
        for pair in golden(314):
            assert whole.ask(314, pair.request.fields).code == pair.response.code
        whole.close()


class TestCorrection:
    def ask(self, whole: Whole, **more: str) -> dict[int, int]:
        answer = whole.ask(RequestCode.QUERY_CORRECTION_OFFSET, {"compareGroup": "g", "topic": "T"} | more)
        assert answer.code == 0
        return CorrectionOffsets.decode(answer.body).correction_offsets

    def test_is_the_smallest_progress_of_all_groups(self, whole: Whole) -> None:
        for queue_id, offset in enumerate((1, 5, 2, 3)):
            whole.broker.offsets.commit("h", "T", queue_id, offset)
        assert self.ask(whole) == {0: 1, 1: 3, 2: 2, 3: 3}

    def test_leaves_groups_out_without_forgetting_their_progress(self, whole: Whole) -> None:
        whole.broker.offsets.commit("h", "T", 0, 1)
        assert self.ask(whole, filterGroups="h,other")[0] == 3
        assert whole.broker.offsets.find("h", "T", 0) == 1

    def test_says_the_largest_number_where_the_compared_group_is_behind(self, whole: Whole) -> None:
        whole.broker.offsets.commit("behind", "T", 0, 1)
        assert self.ask(whole, compareGroup="behind", filterGroups="behind")[0] == (1 << 63) - 1
