"""Request-reply: replies are passed on to whoever waits for them, and stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.testing import FakePeer
from roquet.wire.calls.members import HeartbeatBody, ProducerData
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, Command
from roquet.wire.frame import Framer
from roquet.wire.record import Record, decode_properties

from .conftest import Golden, golden, recorded
from .whole import Whole, long_names, send_fields

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01asker\x02UNIQ_KEY\x01U\x02TTL\x016000\x02CORRELATION_ID\x01c1"


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store")
    yield made
    made.close()


def receive(whole: Whole, peer: FakePeer, command: Command) -> None:
    whole.broker.receive(peer, Framer().feed(command.encode()))


def join(whole: Whole, client_id: str = "asker", group: str = "pg", address: str = "127.0.0.1:40009") -> FakePeer:
    peer = FakePeer(address)
    body = HeartbeatBody(client_id, producer_data_set=[ProducerData(group)]).encode()
    receive(whole, peer, Command(RequestCode.HEART_BEAT, body=body, opaque=1))
    peer.take()
    return peer


def reply(whole: Whole, properties: str = PROPERTIES, body: bytes = b"re:ping", flag: int = 0, **more: str) -> None:
    fields = send_fields(REPLY_TOPIC, 0, properties, **more)
    receive(whole, whole.peer, Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields, body, opaque=5, flag=flag))


def stored(whole: Whole) -> list[Record]:
    store = whole.broker.store
    queue = store.queue(REPLY_TOPIC, 0)
    entries = [queue.entry(at) for at in range(queue.visible)]
    return [Record.decode(store.record_at(entry[0])) for entry in entries if entry is not None]


class TestAReply:
    @pytest.mark.parametrize("pair", golden(325), ids=str)
    def test_of_apache_is_passed_on_and_answered_as_apache_does(self, whole: Whole, pair: Golden) -> None:
        request, response = pair.request, pair.response
        asker = join(whole, decode_properties(request.fields["i"])["REPLY_TO_CLIENT"])
        receive(whole, whole.peer, request)
        assert whole.peer.take() == []
        (push,) = asker.take()
        theirs = recorded(326, "s->c")[0]
        assert (push.code, push.flag, push.binary, push.body) == (326, 0, False, b"re:ping")
        assert push.fields.keys() == theirs.fields.keys()
        ours = decode_properties(push.fields["properties"])
        assert ours.pop("PUSH_REPLY_TIME") == push.fields["storeTimestamp"] == str(whole.clock.ms)
        assert ours == decode_properties(request.fields["i"])
        assert push.fields["storeHost"] == "127.0.0.1:10911"
        for name in ("queueId", "flag", "sysFlag", "reconsumeTimes", "unitMode", "defaultTopic", "defaultTopicQueueNums", "topic"):
            assert push.fields[name] == theirs.fields[name]
        receive(whole, asker, push.reply())
        (answer,) = whole.peer.take()
        assert (answer.code, answer.remark, answer.binary, answer.opaque) == (0, None, response.binary, response.opaque)
        assert answer.fields.keys() == response.fields.keys()
        assert answer.fields["queueOffset"] == "0"
        (record,) = stored(whole)
        assert record.properties.decode() == request.fields["i"]  # to the byte: no CLUSTER, no PUSH_REPLY_TIME
        assert record.body == b"re:ping"

    def test_is_taken_with_long_names_too(self, whole: Whole) -> None:
        asker = join(whole)
        fields = long_names(send_fields(REPLY_TOPIC, 0, PROPERTIES))
        receive(whole, whole.peer, Command(RequestCode.SEND_REPLY_MESSAGE, fields, b"x", opaque=5))
        (push,) = asker.take()
        receive(whole, asker, push.reply())
        assert [answer.code for answer in whole.peer.take()] == [0]

    def test_goes_to_the_connection_of_the_last_heartbeat(self, whole: Whole) -> None:
        old = join(whole, address="127.0.0.1:40010")
        new = join(whole, address="127.0.0.1:40011")
        reply(whole)
        assert (len(old.take()), len(new.take())) == (0, 1)
        whole.broker.disconnected(old)
        reply(whole)
        assert len(new.take()) == 1

    def test_finds_nobody_once_the_requester_is_gone(self, whole: Whole) -> None:
        asker = join(whole)
        whole.broker.disconnected(asker)
        reply(whole)
        (answer,) = whole.peer.take()
        assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <asker> not found.")
        assert len(stored(whole)) == 1
        assert answer.fields["msgId"].endswith(f"{stored(whole)[0].physical_offset:016X}")

    def test_that_names_no_requester_is_stored_and_answered_with_1(self, whole: Whole) -> None:
        reply(whole, "MSG_TYPE\x01reply\x02UNIQ_KEY\x01U")
        (answer,) = whole.peer.take()
        assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
        assert len(stored(whole)) == 1

    def test_that_is_refused_carries_region_and_trace_as_every_answer_to_a_send_does(self, whole: Whole) -> None:
        fields = send_fields(REPLY_TOPIC, 0, PROPERTIES)
        del fields["b"]
        receive(whole, whole.peer, Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"re:ping", opaque=5))
        (answer,) = whole.peer.take()
        assert (answer.code, answer.fields) == (1, {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})

    def test_that_the_requester_refuses_is_answered_with_1(self, whole: Whole) -> None:
        asker = join(whole)
        reply(whole)
        (push,) = asker.take()
        receive(whole, asker, push.reply(1, "no"))
        (answer,) = whole.peer.take()
        assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")

    def test_waits_ten_seconds_for_the_requester(self, whole: Whole) -> None:
        asker = join(whole)
        reply(whole)
        whole.tick(9_999)
        assert whole.peer.take() == []
        whole.tick(1)
        (answer,) = whole.peer.take()
        assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
        (push,) = asker.take()
        receive(whole, asker, push.reply())  # too late: nobody minds
        assert whole.peer.take() == []

    def test_is_only_passed_on_when_the_broker_is_told_so(self, tmp_path: Path) -> None:
        whole = Whole(tmp_path / "other", store_reply_message_enable=False)
        asker = join(whole)
        reply(whole)
        (push,) = asker.take()
        receive(whole, asker, push.reply())
        (answer,) = whole.peer.take()
        assert (answer.code, answer.fields["msgId"], answer.fields["queueOffset"]) == (0, "0", "0")
        assert stored(whole) == []
        whole.close()

    def test_that_is_oneway_gets_no_answer(self, whole: Whole) -> None:
        asker = join(whole)
        reply(whole, flag=ONEWAY)
        (push,) = asker.take()
        receive(whole, asker, push.reply())
        reply(whole, "a\x01b", flag=ONEWAY)
        assert whole.peer.take() == []

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION),
            ({"b": "../x"}, ResponseCode.SYSTEM_ERROR),
            ({"b": "none", "c": "none"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"e": "7"}, ResponseCode.SYSTEM_ERROR),
            ({"i": "x" * 40_000}, ResponseCode.MESSAGE_ILLEGAL),
        ],
    )
    def test_is_checked_like_a_send(self, whole: Whole, change: dict[str, str], code: int) -> None:
        asker = join(whole)
        reply(whole, PROPERTIES, b"x", 0, **change)
        (answer,) = whole.peer.take()
        assert answer.code == code
        assert asker.take() == []

    def test_is_refused_while_too_many_wait_for_the_requester(self, whole: Whole) -> None:
        asker = join(whole)
        for _ in range(256):
            reply(whole)
        assert whole.peer.take() == []
        reply(whole)
        (answer,) = whole.peer.take()
        assert answer.code == 1
        assert "256 calls" in str(answer.remark)
        assert len(asker.take()) == 256
