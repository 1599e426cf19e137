"""What a broker tells connections without being asked: whoever says that it belongs to a group, or has a client id, hears no more than its
account allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker.topics import Topic
from roquet.testing import FakePeer, WholeBroker
from roquet.wire.calls.members import ConsumerData, HeartbeatBody, ProducerData, SubscriptionData
from roquet.wire.codes import RequestCode as Code
from roquet.wire.codes import SysFlag
from roquet.wire.command import Command
from roquet.wire.signing import SIGNING_FIELDS, Credentials, sign

from ..broker.whole import send_fields
from .people import WHITE, accounts, signed

HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01U1"
REPLY = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c1"


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[WholeBroker]:
    made = WholeBroker(tmp_path / "store", accounts=accounts(tmp_path), transaction_time_out=1_000, transaction_check_interval=2_000)
    made.broker.topics.put(Topic("T", 4, 4))
    made.peer = FakePeer("10.1.1.1:40001")
    yield made
    made.close()


def joined(whole: WholeBroker, address: str, who: str, client_id: str = "asker") -> FakePeer:
    """Somebody who says that it produces for group pg. "": an address of the white list that signs nothing."""
    peer = FakePeer(address)
    body = HeartbeatBody(client_id, producer_data_set=[ProducerData("pg")]).encode()
    command = Command(Code.HEART_BEAT, body=body)
    whole.give(peer, signed(command, who) if who else command)
    assert [answer.code for answer in peer.take()] == [0]
    return peer


def checks(whole: WholeBroker, *peers: FakePeer) -> list[int]:
    """How often each of them is asked about a half message of topic T, that nobody ends."""
    fields = send_fields(f=str(int(SysFlag.TRANSACTION_PREPARED)), i=HALF, g=str(whole.clock.now_ms()))
    assert whole.ask(signed(Command(Code.SEND_MESSAGE_V2, fields, b"for few eyes"), "producer")).code == 0
    for _ in range(40):
        whole.tick(500)
    return [len([one for one in peer.take() if one.code == Code.CHECK_TRANSACTION_STATE]) for peer in peers]


def test_a_half_message_is_shown_to_nobody_who_may_not_send_to_its_topic(whole: WholeBroker) -> None:
    spy, honest, listed = joined(whole, "10.6.6.6:1", "consumer"), joined(whole, "10.1.1.1:2", "producer"), joined(whole, WHITE, "")
    seen = checks(whole, spy, honest, listed)
    assert seen[0] == 0
    assert seen[1] > 1
    assert seen[2] > 1


def test_where_nobody_may_be_asked_nobody_is(whole: WholeBroker) -> None:
    spy = joined(whole, "10.6.6.6:1", "nobody")
    assert checks(whole, spy) == [0]
    assert [one.key for one in whole.broker.notices.list()] == ["transactions of pg"]


def test_a_client_id_of_another_account_is_not_taken_over(whole: WholeBroker) -> None:
    asker = joined(whole, "10.1.1.1:2", "producer")
    thief = joined(whole, "10.6.6.6:1", "nobody")
    reply = Command(Code.SEND_REPLY_MESSAGE_V2, send_fields("DefaultCluster_REPLY_TOPIC", 0, REPLY), b"for few eyes")
    whole.give(whole.peer, signed(reply, "admin"))
    assert [one.code for one in asker.take()] == [Code.PUSH_REPLY_MESSAGE_TO_CLIENT]
    assert not thief.take()
    assert "clients with the access keys producer-key and nobody-key have the same client id" in whole.broker.notices.list()[0].text
    again = joined(whole, "10.1.1.1:3", "producer")  # the same client on a new connection
    whole.give(whole.peer, signed(reply, "admin"))
    assert [one.code for one in again.take()] == [Code.PUSH_REPLY_MESSAGE_TO_CLIENT]
    whole.broker.disconnected(again)
    late = joined(whole, "10.6.6.6:1", "nobody")  # nobody has it any more
    whole.give(whole.peer, signed(reply, "admin"))
    assert [one.code for one in late.take()] == [Code.PUSH_REPLY_MESSAGE_TO_CLIENT]


# Signatures


def admins(code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    """A request with all that signing adds."""
    command = Command(code, fields, body)
    sign(command, Credentials("admin-key", "admin-secret", "a token"))
    assert command.fields.keys() >= SIGNING_FIELDS
    return command


def member_of_all(whole: WholeBroker) -> FakePeer:
    peer = FakePeer("10.6.6.6:1")
    consumer = ConsumerData("g", subscription_data_set=[SubscriptionData("T")])
    body = HeartbeatBody("asker", producer_data_set=[ProducerData("pg")], consumer_data_set=[consumer]).encode()
    whole.give(peer, signed(Command(Code.HEART_BEAT, body=body), "named"))
    return peer


def test_nothing_that_a_client_is_told_holds_the_signature_of_somebody_else(whole: WholeBroker) -> None:
    """It covers the values and not the code: a consumer that saw an admin's could make an admin of itself with it."""
    member = member_of_all(whole)
    half = {"f": str(int(SysFlag.TRANSACTION_PREPARED)), "i": HALF, "g": str(whole.clock.now_ms())}
    stored = whole.ask(admins(Code.SEND_MESSAGE_V2, send_fields(), b"body"))
    assert whole.ask(admins(Code.SEND_MESSAGE_V2, send_fields() | half, b"half")).code == 0
    about = {"topic": "T", "group": "g"}
    for code, fields in (
        (Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "asker", "jstackEnable": "false"}),
        (Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g", "clientId": "asker", "msgId": stored.fields["msgId"]}),
        (Code.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "0"}),
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, about | {"timestamp": "-1", "isForce": "true", "queueId": "0"}),
        (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, dict(about)),
        (Code.SEND_REPLY_MESSAGE_V2, send_fields("DefaultCluster_REPLY_TOPIC", 0, REPLY)),
    ):
        whole.give(whole.peer, admins(code, fields))
    for _ in range(40):
        whole.tick(500)
    told = [one for one in member.take() if not one.is_response]
    assert {one.code for one in told} == {
        Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY, Code.RESET_CONSUMER_CLIENT_OFFSET,
        Code.GET_CONSUMER_STATUS_FROM_CLIENT, Code.PUSH_REPLY_MESSAGE_TO_CLIENT, Code.CHECK_TRANSACTION_STATE,
    }  # fmt: skip
    for one in told:
        assert not one.fields.keys() & SIGNING_FIELDS, one
    passed_on = next(one for one in told if one.code == Code.GET_CONSUMER_RUNNING_INFO)
    assert passed_on.fields == {"consumerGroup": "g", "clientId": "asker", "jstackEnable": "false"}


def test_an_answer_that_is_passed_on_holds_no_signature_either(whole: WholeBroker) -> None:
    member = member_of_all(whole)
    member.take()
    whole.give(whole.peer, admins(Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "asker"}))
    (asked,) = member.take()
    answer = asked.reply(0, None, {"AccessKey": "named-key", "Signature": "c2lnbmVk", "SecurityToken": "t", "more": "1"}, b"{}")
    whole.give(member, answer)
    assert [(one.code, one.fields, one.body) for one in whole.peer.take()] == [(0, {"more": "1"}, b"{}")]


# Client ids


def reply_to_asker(whole: WholeBroker) -> None:
    reply = Command(Code.SEND_REPLY_MESSAGE_V2, send_fields("DefaultCluster_REPLY_TOPIC", 0, REPLY), b"for few eyes")
    whole.give(whole.peer, signed(reply, "admin"))


def beat(whole: WholeBroker, peer: FakePeer, who: str, client_id: str, group: str = "pg") -> None:
    body = HeartbeatBody(client_id, producer_data_set=[ProducerData(group)] if group else []).encode()
    whole.give(peer, signed(Command(Code.HEART_BEAT, body=body), who))
    assert [answer.code for answer in peer.take() if answer.is_response] == [0]


@pytest.mark.parametrize("group", ["pg", "another", ""])
def test_a_connection_does_not_keep_the_ids_that_it_had_before(whole: WholeBroker, group: str) -> None:
    """Nobody sits on the ids of others with one connection."""
    squatter = joined(whole, "10.6.6.6:1", "nobody")
    beat(whole, squatter, "nobody", "something else", group)
    asker = joined(whole, "10.1.1.1:2", "producer")
    reply_to_asker(whole)
    assert [one.code for one in asker.take()] == [Code.PUSH_REPLY_MESSAGE_TO_CLIENT]
    assert not squatter.take()


def test_an_id_is_free_when_the_connection_that_had_it_is_gone(whole: WholeBroker) -> None:
    squatter = joined(whole, "10.6.6.6:1", "nobody", "first")
    beat(whole, squatter, "nobody", "asker")
    asker = joined(whole, "10.1.1.1:2", "producer")
    reply_to_asker(whole)
    assert [one.code for one in squatter.take()] == [Code.PUSH_REPLY_MESSAGE_TO_CLIENT], "it came first"
    whole.broker.disconnected(squatter)
    beat(whole, asker, "producer", "asker")
    reply_to_asker(whole)
    assert [one.code for one in asker.take()] == [Code.PUSH_REPLY_MESSAGE_TO_CLIENT]
